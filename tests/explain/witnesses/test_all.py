"""The list of witnesses: whole, and each its own."""

from __future__ import annotations

from collections import Counter

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import is_fault
from gpumon.explain.witnesses.all import make_witnesses
from tests.detect.scenes import Stage


def test_every_fault_has_one_witness_and_every_witness_known_causes() -> None:
    told = Counter(cause for witness in make_witnesses() for cause in witness.causes)
    assert set(told) <= set(CAUSES)
    assert {cause for cause in CAUSES if is_fault(cause)} <= set(told)
    assert set(told.values()) == {1}


def test_they_are_made_anew_and_see_nothing_where_nothing_is() -> None:
    first, second = make_witnesses(), make_witnesses()
    assert not {id(witness) for witness in first} & {id(witness) for witness in second}
    stage = Stage()
    for _ in range(3):
        scene = stage.step()
        assert [sign for witness in first for sign in witness.look(scene, ())] == []
