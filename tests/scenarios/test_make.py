"""The labelled scenarios are whole and fresh, and each can be taken."""

from __future__ import annotations

from collections import Counter

import pytest

from gpumon.sim.faults import KINDS
from gpumon.sim.labels import REQUIRED
from gpumon.sim.scenario import load_scenario
from tests.scenarios.make import FOLDER, stale

PATHS = sorted(FOLDER.glob("*.yaml"))


def test_the_files_are_what_the_tables_say() -> None:
    assert stale() == [], "run python -m tests.scenarios.make"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_scenario_can_be_taken_and_is_named_after_its_file(path: object) -> None:
    assert load_scenario(path).name == path.stem.replace("_", "-")  # type: ignore[arg-type, attr-defined]


def test_every_fault_is_in_the_set_and_those_with_a_strength_at_three_of_them() -> None:
    alone: Counter[str] = Counter()
    every: set[str] = set()
    for path in PATHS:
        faults = load_scenario(path).faults
        every.update(fault.kind for fault in faults)
        if len(faults) == 1:
            alone[faults[0].kind] += 1
    assert every == set(KINDS)
    once = {"ecc_uncorrected", "row_remap_pending", "row_remap_failed", "gpu_lost", "driver_mismatch"}
    assert {kind for kind, required in REQUIRED.items() if required and alone[kind] < 3} == once


def test_there_are_at_least_sixty() -> None:
    assert len(PATHS) >= 60
