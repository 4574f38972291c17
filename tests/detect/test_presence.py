"""GPUs that are lost, a driver that is gone or does not fit, and what is none of these."""

from __future__ import annotations

import pytest

from gpumon import catalogue as c
from gpumon.detect.detector import Severity
from gpumon.detect.presence import DriverMismatch, GpuLost
from tests.detect.scenes import Stage, check_described, evidence, gpu

MISMATCH = (c.NVML_ERROR, ("LIB_RM_VERSION_MISMATCH",))


def nvml(stage: Stage, state: str, *, gpus: int = 8, lost: tuple[int, ...] = ()) -> None:
    """What the sampler's link says: with another state than running, no GPU is present."""
    stage.put({(c.NVML_STATE, (name,)): float(name == state) for name in c.NVML_STATE.values})
    stage.put({(c.GPU_PRESENT, gpu(index)): float(state == "running" and index not in lost) for index in range(gpus)})


def test_a_lost_gpu_is_found_within_seconds_and_its_neighbours_are_well() -> None:
    stage, detector = Stage(), GpuLost()
    nvml(stage, "running")
    assert stage.run(detector, 10) == []
    stage.put({(c.GPU_XID_LAST, (*gpu(3), "31")): 1.7e9, (c.GPU_XID_LAST, (*gpu(3), "79")): 1.8e9})
    stage.put({(c.GPU_XID_LAST, (*gpu(4), "13")): 1.9e9})
    nvml(stage, "running", lost=(3,))
    began_s = stage.at_s + 1
    found = stage.run(detector, 10)
    assert len(found) == 7
    assert {each.entity.gpu for each in found} == {"3"}
    assert (found[0].severity, found[0].since_s) == (Severity.CRITICAL, began_s)
    assert found[0].summary == "GPU 3 does not answer; its last XID was 79"
    assert evidence(found[0], "gpus_answering")[1:] == (7.0, c.GPU_PRESENT.unit, 8.0)
    assert evidence(found[0], "last_xid").observed == 79.0
    nvml(stage, "running")
    assert stage.run(detector, 10) == []


def test_the_only_gpu_of_a_node_may_be_lost_too() -> None:
    stage, detector = Stage(), GpuLost()
    nvml(stage, "running", gpus=1, lost=(0,))
    assert {each.entity.gpu for each in stage.run(detector, 10)} == {"0"}


def test_a_gpu_that_hangs_for_two_seconds_is_not_lost() -> None:
    stage, detector = Stage(), GpuLost()
    nvml(stage, "running", lost=(3,))
    assert stage.run(detector, 3) == []
    nvml(stage, "running")
    assert stage.run(detector, 5) == []


@pytest.mark.parametrize("state", ["starting", "released"])
def test_nvml_that_starts_or_was_released_loses_no_gpu(state: str) -> None:
    stage, lost, mismatch = Stage(), GpuLost(), DriverMismatch()
    nvml(stage, "running")
    stage.run(lost, 10)
    nvml(stage, state)
    assert stage.run(lost, 300) == []
    assert stage.run(mismatch, 300) == []


@pytest.mark.parametrize("state", ["unavailable", "stuck"])
def test_a_driver_that_comes_back_within_seconds_is_no_incident_and_one_that_does_not_is_one(state: str) -> None:
    stage, detector = Stage(), GpuLost()
    nvml(stage, "running")
    stage.run(detector, 10)
    nvml(stage, state)
    assert stage.run(detector, 15) == []
    nvml(stage, "running")
    assert stage.run(detector, 10) == []
    nvml(stage, state)
    stage.put({(c.NVML_ERROR, ("DRIVER_NOT_LOADED",)): 1.0})
    began_s = stage.at_s + 1
    found = stage.run(detector, 30)
    assert len(found) == 10
    assert {each.entity for each in found} == {("host", "all GPUs", "", "")}
    assert found[0].since_s == began_s
    assert found[0].summary == f"NVML is {state}: none of 8 GPUs answers, DRIVER_NOT_LOADED"


def test_a_gpu_that_is_lost_stays_so_while_nvml_is_opened_anew() -> None:
    stage, detector = Stage(), GpuLost()
    nvml(stage, "running", lost=(3,))
    first = stage.run(detector, 10)
    nvml(stage, "starting")
    assert stage.run(detector, 3) == []
    nvml(stage, "running", lost=(3,))
    assert stage.run(detector, 1)[0].since_s == first[0].since_s


def test_a_node_on_which_no_gpu_ever_answered_has_lost_none() -> None:
    stage, detector = Stage(), GpuLost()
    nvml(stage, "unavailable", gpus=0)
    stage.put({(c.NVML_ERROR, ("LIBRARY_NOT_FOUND",)): 1.0})
    assert stage.run(detector, 600) == []
    assert Stage().run(detector, 10) == []  # and where nobody says anything


def test_a_gpu_whose_series_ended_is_forgotten() -> None:
    stage, detector = Stage(), GpuLost()
    nvml(stage, "running", lost=(3,))
    stage.run(detector, 10)
    stage.drop(c.GPU_PRESENT, labels=gpu(3))
    assert stage.run(detector, 10) == []
    nvml(stage, "running", lost=(3,))
    assert stage.run(detector, 3) == []


def test_lost_at_steps_of_ten_seconds() -> None:
    stage, detector = Stage(), GpuLost()
    nvml(stage, "running", lost=(3,))
    assert len(stage.run(detector, 30, step_s=10.0)) == 2


def test_an_upgraded_driver_is_a_mismatch_and_no_lost_gpu() -> None:
    stage, mismatch, lost = Stage(), DriverMismatch(), GpuLost()
    nvml(stage, "running")
    assert stage.run(mismatch, 10) == []
    nvml(stage, "unavailable")
    stage.put({MISMATCH: 1.0})
    began_s = stage.at_s + 1
    assert stage.run(mismatch, 20) == []
    (found,) = stage.run(mismatch, 1)
    assert (found.severity, found.since_s, found.entity.scope) == (Severity.CRITICAL, began_s, "host")
    assert evidence(found, "unavailable").observed == 20.0
    assert stage.run(lost, 100) == []
    nvml(stage, "running")
    stage.drop(c.NVML_ERROR)
    assert stage.run(mismatch, 5) == []


def test_a_mismatch_from_the_start_is_found_though_no_gpu_is_known() -> None:
    stage, detector = Stage(), DriverMismatch()
    nvml(stage, "unavailable", gpus=0)
    stage.put({MISMATCH: 1.0})
    assert stage.run(detector, 30)


def test_a_mismatch_in_the_middle_of_an_upgrade_and_another_error_are_none() -> None:
    stage, detector = Stage(), DriverMismatch()
    nvml(stage, "unavailable")
    stage.put({MISMATCH: 1.0})
    assert stage.run(detector, 15) == []
    stage.drop(c.NVML_ERROR)
    stage.put({(c.NVML_ERROR, ("DRIVER_NOT_LOADED",)): 1.0})
    assert stage.run(detector, 60) == []


def test_all_is_described() -> None:
    check_described(GpuLost, DriverMismatch)
