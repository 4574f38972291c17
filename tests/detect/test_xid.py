"""XID errors by tier, and what the driver asks for."""

from __future__ import annotations

import pytest

from gpumon import catalogue as c
from gpumon.detect.detector import Finding, Severity
from gpumon.detect.xid import RECOVERY, XIDS, XidErrors
from tests.detect.scenes import Stage, check_described, evidence, gpu


def known(stage: Stage, *indexes: int) -> None:
    """The XIDs that are counted from 0."""
    stage.put({(c.GPU_XID_ERRORS, (*gpu(index), str(xid))): 0.0 for index in indexes for xid in c.XID_PRECREATED})


def happens(stage: Stage, *xids: int | str, index: int = 0) -> None:
    stage.grow({(c.GPU_XID_ERRORS, (*gpu(index), str(xid))): 1.0 for xid in xids})


def looking(*indexes: int) -> tuple[Stage, XidErrors]:
    stage, detector = Stage(), XidErrors()
    known(stage, *(indexes or (0,)))
    assert stage.run(detector, 3) == []
    return stage, detector


@pytest.mark.parametrize(
    ("xid", "expected"),
    [
        *((xid, Severity.CRITICAL) for xid in (48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 149)),
        *((xid, Severity.WARNING) for xid in (94, 154, 122, 61, 999, "other")),
        *((xid, Severity.INFO) for xid in (13, 31, 43, 45, 63, 68, 69, 92, 109)),
    ],
)
def test_every_xid_has_its_tier_and_says_what_to_do(xid: int | str, expected: Severity) -> None:
    stage, detector = looking()
    happens(stage, xid)
    (found,) = stage.run(detector, 1)
    assert (found.severity, found.entity.gpu, found.since_s) == (expected, "0", stage.at_s)
    assert found.summary.startswith(f"XID {xid}, ")
    assert evidence(found, f"xid_{xid}").observed == 1.0
    assert stage.run(detector, 100) == []  # the incident's own hold keeps it open


def test_a_gpu_that_fell_off_the_bus_is_told_in_one_line() -> None:
    stage, detector = looking(0, 1)
    happens(stage, 79, index=1)
    (found,) = stage.run(detector, 1)
    assert found.entity.uuid == gpu(1)[1]
    assert found.summary == "XID 79, the GPU fell off the bus: drain the node and power-cycle it; check power and seat"


def test_xids_of_a_minute_are_one_finding_with_the_newest_in_front() -> None:
    stage, detector = looking()
    happens(stage, 79)
    stage.run(detector, 1)
    began_s = stage.at_s
    stage.run(detector, 30)
    happens(stage, 31)
    happens(stage, 31)
    (found,) = stage.run(detector, 1)
    assert found.summary.startswith("XID 31, ")
    assert found.severity is Severity.CRITICAL  # for the other one
    assert found.since_s == began_s
    assert [(each.name, each.observed) for each in found.evidence] == [("xid_79", 1.0), ("xid_31", 2.0)]
    stage.run(detector, 70)
    happens(stage, 31)
    (later,) = stage.run(detector, 1)
    assert (later.severity, later.since_s) == (Severity.INFO, stage.at_s)
    assert [each.name for each in later.evidence] == ["xid_31"]


def test_of_several_at_once_the_worst_is_in_front() -> None:
    stage, detector = looking()
    happens(stage, 45, 79, 31)
    (found,) = stage.run(detector, 1)
    assert found.summary.startswith("XID 79, ")
    assert len(found.evidence) == 3


def test_what_was_counted_before_the_first_look_is_not_new() -> None:
    stage, detector = Stage(), XidErrors()
    known(stage, 0)
    happens(stage, 79, 61)
    assert stage.run(detector, 10) == []
    happens(stage, 61)
    assert len(stage.run(detector, 1)) == 1


def test_a_gpu_that_comes_with_counts_a_reset_and_a_pause_are_no_errors() -> None:
    stage, detector = looking()
    known(stage, 1)
    happens(stage, 79, 61, index=1)
    assert stage.run(detector, 2) == []
    stage.put({(c.GPU_XID_ERRORS, (*gpu(1), "79")): 0.0})
    assert stage.run(detector, 2) == []
    stage.drop_owner("stage")  # nobody tells for a while
    assert stage.run(detector, 5) == []
    known(stage, 0, 1)
    happens(stage, 61, index=1)
    assert stage.run(detector, 2) == []
    happens(stage, 48, index=1)  # and what came meanwhile is seen
    assert {found.entity.gpu for found in stage.run(detector, 2)} == {"1"}


def test_an_action_the_driver_asks_for_holds_until_it_is_done() -> None:
    stage, detector = looking()
    stage.put({(c.GPU_RECOVERY_ACTION, gpu()): 0.0})
    assert stage.run(detector, 5) == []
    happens(stage, 154)
    stage.put({(c.GPU_RECOVERY_ACTION, gpu()): 2.0})
    found = stage.run(detector, 200)
    assert len(found) == 200
    assert {each.severity for each in found} == {Severity.CRITICAL}
    assert found[-1].summary.endswith("; the driver asks for a reboot of the node")
    assert evidence(found[-1], "recovery_action").observed == 2.0
    assert evidence(found[-1], "xid_154").observed == 1.0
    stage.put({(c.GPU_RECOVERY_ACTION, gpu()): 0.0})
    assert stage.run(detector, 5) == []


def test_an_action_without_an_xid_and_one_that_nobody_knows() -> None:
    stage, detector = Stage(), XidErrors()
    stage.put({(c.GPU_RECOVERY_ACTION, gpu()): 1.0, (c.GPU_RECOVERY_ACTION, gpu(1)): 200.0})
    found: list[Finding] = stage.run(detector, 1)
    assert [each.summary for each in found] == [
        "the driver asks for a reset of the GPU",
        "the driver asks for recovery action 200",
    ]


def test_a_flood_of_different_xids_stays_short() -> None:
    stage, detector = looking()
    happens(stage, *range(200, 240))
    (found,) = stage.run(detector, 1)
    assert len(found.evidence) == 12


def test_every_xid_that_is_counted_from_0_is_known() -> None:
    assert {str(xid) for xid in c.XID_PRECREATED} <= set(XIDS)
    assert set(RECOVERY) == set(range(1, 8))
    for xid in XIDS.values():
        assert xid.meaning
        assert xid.advice


def test_all_is_described() -> None:
    check_described(XidErrors)
