"""The table of causes: every name of the closed list once, told in full, and either fault or load."""

from __future__ import annotations

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import INDEX, LOAD, SLOWING, TABLE, UNEXPLAINED, is_fault


def test_every_cause_of_the_closed_list_is_told_of_in_its_order_and_in_full() -> None:
    assert tuple(TABLE) == CAUSES
    for cause in TABLE.values():
        assert cause.title
        assert not cause.title.endswith(".")
        assert cause.meaning.endswith(".")
        assert cause.action.endswith(".")
        assert "`" not in cause.title + cause.meaning + cause.action  # they are told on terminals and pages as they are
    assert len({cause.title for cause in TABLE.values()}) == len(CAUSES)


def test_a_position_is_that_in_the_closed_list() -> None:
    assert [CAUSES[INDEX[cause]] for cause in CAUSES] == list(CAUSES)


def test_a_cause_is_a_fault_or_load_or_unknown_and_only_one_of_them() -> None:
    faults = {cause for cause in CAUSES if is_fault(cause)}
    assert faults | LOAD | {UNEXPLAINED} == set(CAUSES)
    assert not faults & LOAD
    assert not is_fault(UNEXPLAINED)


def test_what_makes_work_longer_is_a_fault() -> None:
    assert set(CAUSES) >= SLOWING
    assert all(is_fault(cause) for cause in SLOWING)
