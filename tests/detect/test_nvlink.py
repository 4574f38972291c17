"""NVLinks that went down and links with errors."""

from __future__ import annotations

import pytest

from gpumon import catalogue as c
from gpumon.detect.detector import Finding, Severity
from gpumon.detect.nvlink import NvlinkDegraded
from tests.detect.scenes import Stage, check_described, evidence, gpu

KINDS = c.GPU_NVLINK_ERRORS.values


def links(stage: Stage, active: float, inactive: float = 0.0, index: int = 0) -> None:
    stage.put(
        {
            (c.GPU_NVLINKS, (*gpu(index), "active")): active,
            (c.GPU_NVLINKS, (*gpu(index), "inactive")): inactive,
        }
    )


def errors(stage: Stage, detector: NvlinkDegraded, seconds: int, **amounts: float) -> list[Finding]:
    """Steps of 5 s, in each so many new errors."""
    new = dict.fromkeys(KINDS, 0.0) | amounts

    def grow() -> None:
        stage.grow({(c.GPU_NVLINK_ERRORS, (*gpu(), kind)): amount for kind, amount in new.items()})

    return stage.run(detector, seconds, step_s=5.0, each=grow)


def test_a_link_that_went_down_is_found_at_the_second_reading() -> None:
    stage, detector = Stage(), NvlinkDegraded()
    links(stage, 18)
    assert stage.run(detector, 20, step_s=5.0) == []
    links(stage, 16, 2)
    began_s = stage.at_s + 5
    (found,) = stage.run(detector, 10, step_s=5.0)
    assert (found.severity, found.since_s, found.entity.gpu) == (Severity.WARNING, began_s, "0")
    assert evidence(found, "nvlinks_active")[1:] == (16.0, c.GPU_NVLINKS.unit, 18.0)
    assert found.summary == "16 of 18 NVLinks active"
    links(stage, 18)
    assert stage.run(detector, 10, step_s=5.0) == []


def test_it_is_critical_when_no_link_is_left() -> None:
    stage, detector = Stage(), NvlinkDegraded()
    links(stage, 18)
    stage.run(detector, 5, step_s=5.0)
    links(stage, 0, 18)
    assert {found.severity for found in stage.run(detector, 20, step_s=5.0)} == {Severity.CRITICAL}


def test_links_that_never_were_active_are_not_missed_and_one_short_break_is_none() -> None:
    stage, detector = Stage(), NvlinkDegraded()
    links(stage, 12, 6)
    assert stage.run(detector, 60) == []
    links(stage, 11, 7)
    assert stage.run(detector, 5, step_s=5.0) == []
    links(stage, 12, 6)
    assert stage.run(detector, 60) == []


def test_a_reading_that_grows_old_is_no_second_one() -> None:
    stage, detector = Stage(), NvlinkDegraded()
    links(stage, 18)
    stage.run(detector, 2)
    links(stage, 17, 1)
    stage.run(detector, 1)
    stage.silent = {"stage"}
    assert stage.run(detector, 30) == []


@pytest.mark.parametrize("kind", ["replay", "recovery", "ecc_data"])
def test_one_grave_error_is_found_at_once(kind: str) -> None:
    stage, detector = Stage(), NvlinkDegraded()
    errors(stage, detector, 20)
    began_s = stage.at_s
    (found,) = errors(stage, detector, 5, **{kind: 3.0})
    assert (found.severity, found.since_s) == (Severity.WARNING, began_s)
    assert evidence(found, f"nvlink_{kind}_errors").observed == 3.0
    assert found.summary == f"NVLink errors: 3 {kind}"
    assert errors(stage, detector, 30) == []
    (again,) = errors(stage, detector, 5, **{kind: 1.0})
    assert again.since_s == began_s
    assert evidence(again, f"nvlink_{kind}_errors").observed == 4.0
    assert errors(stage, detector, 60) == []
    (later,) = errors(stage, detector, 5, **{kind: 1.0})
    assert later.since_s == stage.at_s - 5.0
    assert evidence(later, f"nvlink_{kind}_errors").observed == 1.0


def test_crc_errors_count_by_their_rate_twice_running() -> None:
    stage, detector = Stage(), NvlinkDegraded()
    errors(stage, detector, 20)
    assert errors(stage, detector, 60, crc_flit=4.0) == []  # less than one a second
    began_s = stage.at_s
    assert errors(stage, detector, 5, crc_flit=400.0) == []
    assert errors(stage, detector, 20) == []
    found = errors(stage, detector, 20, crc_flit=100.0, crc_data=50.0)
    assert len(found) == 3
    assert {(each.severity, each.since_s) for each in found} == {(Severity.WARNING, began_s)}
    assert evidence(found[-1], "nvlink_crc_flit_errors").observed == 800.0
    assert evidence(found[-1], "nvlink_crc_data_errors").observed == 200.0
    grave = errors(stage, detector, 5, crc_flit=5000.0)
    assert [each.severity for each in grave] == [Severity.CRITICAL]


def test_a_lost_link_and_its_errors_are_one_finding() -> None:
    stage, detector = Stage(), NvlinkDegraded()
    links(stage, 18)
    errors(stage, detector, 20)
    links(stage, 17, 1)
    found = errors(stage, detector, 15, recovery=1.0)
    assert found[-1].summary == "17 of 18 NVLinks active; NVLink errors: 3 recovery"
    assert len(found) == 3
    links(stage, 18)
    (last,) = errors(stage, detector, 5, recovery=1.0)
    assert last.summary == "NVLink errors: 4 recovery"
    assert evidence(last, "nvlinks_active")[1:] == (17.0, c.GPU_NVLINKS.unit, 18.0)  # what it came to
    errors(stage, detector, 70)
    (later,) = errors(stage, detector, 5, recovery=1.0)
    assert evidence(later, "nvlinks_active").observed == 18.0


def test_gpus_without_nvlink_counters_that_begin_anew_and_gpus_that_vanished_are_silent() -> None:
    stage, detector = Stage(), NvlinkDegraded()
    stage.put({(c.GPU_UTILIZATION, gpu()): 1.0})
    assert stage.run(detector, 10) == []
    stage.put({(c.GPU_NVLINK_ERRORS, (*gpu(), kind)): 1e6 for kind in KINDS})
    assert stage.run(detector, 10) == []
    stage.put({(c.GPU_NVLINK_ERRORS, (*gpu(), kind)): 3.0 for kind in KINDS})
    assert stage.run(detector, 10) == []
    links(stage, 18)
    assert errors(stage, detector, 5, recovery=1.0)
    stage.drop(c.GPU_NVLINK_ERRORS)
    assert stage.run(detector, 1) == []  # its links are still told, its errors are not
    links(stage, 9, 9)
    assert stage.run(detector, 10)
    stage.drop(c.GPU_NVLINKS)
    assert stage.run(detector, 1) == []
    links(stage, 9, 9)
    assert stage.run(detector, 10) == []  # the most it had is forgotten with it


def test_all_is_described() -> None:
    check_described(NvlinkDegraded)
