"""ECC errors and rows to be remapped."""

from __future__ import annotations

import pytest

from gpumon import catalogue as c
from gpumon.detect.detector import Severity
from gpumon.detect.memory_health import EccErrors, RowRemap
from tests.detect.scenes import Stage, check_described, evidence, gpu


def counted(stage: Stage, *, corrected: float = 0.0, uncorrected: float = 0.0, scopes: tuple[str, ...]) -> None:
    """So many new errors."""
    for scope in scopes:
        stage.grow(
            {
                (c.GPU_ECC_ERRORS, (*gpu(), "corrected", scope)): corrected,
                (c.GPU_ECC_ERRORS, (*gpu(), "uncorrected", scope)): uncorrected,
            }
        )


BOTH = ("volatile", "aggregate")


@pytest.mark.parametrize("scopes", [BOTH, ("volatile",), ("aggregate",)])
def test_an_uncorrectable_error_is_critical_and_counted_once(scopes: tuple[str, ...]) -> None:
    stage, detector = Stage(), EccErrors()
    counted(stage, scopes=scopes)
    stage.step(5.0)
    assert stage.run(detector, 20, step_s=5.0) == []
    began_s = stage.at_s
    counted(stage, uncorrected=2.0, scopes=scopes)
    (found,) = stage.run(detector, 20, step_s=5.0)
    assert (found.severity, found.since_s, found.entity.gpu) == (Severity.CRITICAL, began_s, "0")
    assert evidence(found, "uncorrected_errors").observed == 2.0
    assert found.summary == "2 uncorrectable memory errors"
    counted(stage, uncorrected=1.0, scopes=scopes)
    (more,) = stage.run(detector, 5, step_s=5.0)
    assert evidence(more, "uncorrected_errors").observed == 3.0
    assert more.since_s == began_s
    assert more.weight > found.weight > 1e9, "no number of corrected errors outweighs one"
    stage.run(detector, 100, step_s=5.0)
    counted(stage, uncorrected=1.0, scopes=scopes)
    (later,) = stage.run(detector, 5, step_s=5.0)
    assert evidence(later, "uncorrected_errors").observed == 1.0


def test_corrected_errors_count_by_their_rate() -> None:
    stage, detector = Stage(), EccErrors()
    counted(stage, scopes=BOTH)
    stage.run(detector, 5)
    for _ in range(60):  # one in 20 s
        counted(stage, corrected=0.25, scopes=BOTH)
        assert stage.run(detector, 5, step_s=5.0) == []
    for _ in range(3):
        counted(stage, corrected=5.0, scopes=BOTH)
        found = stage.run(detector, 5, step_s=5.0)
    assert [each.severity for each in found] == [Severity.INFO]
    assert evidence(found[0], "corrected_errors_per_minute").observed == pytest.approx(15.0 + 9 * 0.25)
    counted(stage, corrected=200.0, scopes=BOTH)
    (storm,) = stage.run(detector, 5, step_s=5.0)
    assert storm.severity is Severity.WARNING
    assert storm.weight > found[0].weight == pytest.approx(17.25)
    assert len(stage.run(detector, 300, step_s=5.0)) < 12


def test_ecc_that_is_off_counters_that_begin_anew_and_gpus_that_vanished_are_silent() -> None:
    stage, detector = Stage(), EccErrors()
    assert stage.run(detector, 5) == []
    counted(stage, corrected=1e6, uncorrected=7.0, scopes=BOTH)  # before the first look
    assert stage.run(detector, 10) == []
    stage.put({(c.GPU_ECC_ERRORS, (*gpu(), "uncorrected", scope)): 1.0 for scope in BOTH})
    assert stage.run(detector, 10) == []
    counted(stage, corrected=50.0, scopes=BOTH)
    assert stage.run(detector, 1)
    stage.drop(c.GPU_ECC_ERRORS)
    assert stage.run(detector, 2) == []
    counted(stage, scopes=BOTH)
    assert stage.run(detector, 5) == []


def flags(stage: Stage, *, pending: float = 0.0, failed: float = 0.0, index: int = 0) -> None:
    stage.put({(c.GPU_ROW_REMAP_PENDING, gpu(index)): pending, (c.GPU_ROW_REMAP_FAILED, gpu(index)): failed})


def test_a_pending_remap_is_a_warning_and_a_failed_one_critical() -> None:
    stage, detector = Stage(), RowRemap()
    flags(stage)
    flags(stage, index=1)
    assert stage.run(detector, 5) == []
    flags(stage, pending=1.0)
    stage.put({(c.GPU_REMAPPED_ROWS, (*gpu(), "uncorrectable")): 2.0})
    began_s = stage.at_s + 1
    found = stage.run(detector, 5)
    assert len(found) == 5
    assert (found[-1].severity, found[-1].since_s) == (Severity.WARNING, began_s)
    assert found[-1].summary == "a memory row is replaced at the next reset"
    assert evidence(found[-1], "remapped_rows_uncorrectable").observed == 2.0
    flags(stage, pending=1.0, failed=1.0)
    (worse,) = stage.run(detector, 1)
    assert (worse.severity, worse.since_s) == (Severity.CRITICAL, began_s)
    assert [each.name for each in worse.evidence[:2]] == ["row_remap_failed", "row_remap_pending"]
    flags(stage)
    assert stage.run(detector, 5) == []


def test_a_page_retirement_is_the_same_on_older_boards() -> None:
    stage, detector = Stage(), RowRemap()
    stage.put({(c.GPU_RETIRED_PAGES_PENDING, gpu()): 1.0})
    (found,) = stage.run(detector, 1)
    assert found.summary == "a memory page is retired at the next reset"
    stage.drop(c.GPU_RETIRED_PAGES_PENDING)
    assert stage.run(detector, 3) == []


def test_all_is_described() -> None:
    check_described(EccErrors, RowRemap)
