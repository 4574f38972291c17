"""The link, its sampler process and the driver's moods, end to end on the fake library."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpumon.model import Reason
from gpumon.sampler.link import SamplerLink
from tests.fakenvml.build import build_library
from tests.fakenvml.controller import FakeNode, Misuse
from tests.fakenvml.gpu import Proc
from tests.fakenvml.profiles import MigSpec
from tests.sampler.rig import PLAN, Rig, until

CLEAN = Misuse(0, 0, 0, 0, 0, 0, 0, 0)
MakeNode = Callable[..., FakeNode]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeNode]:
    made: list[FakeNode] = []

    def create(profile: str = "h200", count: int = 2) -> FakeNode:
        node = FakeNode.create(tmp_path / "scenario", profile, count)
        made.append(node)
        return node

    yield create
    for node in made:
        node.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- a healthy node ---------------------------------------------------------------------------------------------------


def test_all_values_of_a_node_flow(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make(count=2)
    fake.gpu(1).set_utilization(0.8, 0.1)
    fake.gpu(1).set_gpm("sm", 0.6)
    fake.gpu(1).set_processes([Proc(4321, 3 << 30)])
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        rig.wait_rows(10)
        assert rig.link.state == "running"
        assert rig.family("nvml_state") == {
            (state,): float(state == "running") for state in ("starting", "running", "unavailable", "released", "stuck")
        }
        until(lambda: rig.present() == rig.uuids())
        assert rig.by_uuid("gpu_utilization_ratio") == {rig.uuid(0): 0.0, rig.uuid(1): 0.8}
        assert rig.by_uuid("gpu_sm_active_ratio")[rig.uuid(1)] == pytest.approx(0.6, abs=0.1)
        until(lambda: [p.pid for p in rig.ears.holders()] == [4321])
        assert {(gpu.uuid, gpu.gpu) for gpu in rig.ears.known_gpus()} == {(rig.uuid(0), "0"), (rig.uuid(1), "1")}
        until(lambda: rig.family("gpus").get(("present",)) == 2.0)
        until(lambda: any(s.metric.name == "gpumon_nvml_call_seconds" for s in rig.samples()), 10)
        assert not [name for name in fake.all_calls() if "PcieThroughput" in name]
        sources = {labels[0] for labels, up in family(rig, "source_up").items() if up}
        assert {"nvml", "gpu_fast", "gpu_slow", "gpu_inventory", "inventory", "mig", "gpu_processes"} <= sources
    assert fake.misuse() == CLEAN
    assert fake.live().inits == 0


def family(rig: Rig, name: str) -> dict[tuple[str, ...], float]:
    """Of the health account, which the app exports and the rig does not."""
    return {
        s.labels: s.value
        for s in rig.health.samples(rig.clock.now_s())
        if s.metric.name == f"gpumon_{name}" and isinstance(s.value, float)
    }


def test_slow_calls_as_behind_a_busy_gsp_keep_all_values_flowing(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make(count=2)
    for function in (
        "nvmlDeviceGetFieldValues", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetClockInfo", "nvmlGpmSampleGet",
        "nvmlGpmMetricsGet", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetSamples", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3",
    ):  # fmt: skip
        fake.delay(function, 5_000)
    with Rig(fake, monkeypatch, fast_s=0.1) as rig:
        rig.wait_running()
        rig.wait_rows(10)
        assert len(rig.by_uuid("gpu_dram_active_ratio")) == 2
        until(lambda: rig.present() == rig.uuids())


def test_an_xid_arrives_once_and_names_its_gpu(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make(count=3)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        until(lambda: fake.calls("nvmlDeviceRegisterEvents") == 3)
        fake.gpu(2).push_xid(79)
        until(lambda: rig.ears.xids_heard)
        fake.gpu(0).push_xid(31)
        until(lambda: len(rig.ears.xids_heard) == 2)
        rig.wait_rows(5)
        assert rig.ears.xids_heard == [(rig.uuid(2), 79), (rig.uuid(0), 31)]


def test_mig_instances_flow(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make("h100", 2)
    fake.gpu(1).set_mig([MigSpec("1g.10gb", 7), None, MigSpec("2g.20gb", 3)])
    fake.gpu(1).mig(0).set_gpm("sm", 0.4)
    with Rig(fake, monkeypatch) as rig:
        until(lambda: len(rig.family("mig_info")) == 2 and len(rig.family("mig_sm_active_seconds_total")) == 2)
        rig.wait_rows(5)
        uuids = {fake.gpu(1).mig(0).uuid, fake.gpu(1).mig(2).uuid}
        assert {labels[0] for labels in rig.family("mig_memory_bytes")} == uuids
        assert {labels[1] for labels in rig.family("mig_memory_bytes")} == {rig.uuid(1)}
        assert rig.uuid(1) not in rig.by_uuid("gpu_utilization_ratio")
        assert rig.uuid(1) in rig.by_uuid("gpu_temperature_celsius", "gpu")
        os.kill(rig.link.pid or 0, signal.SIGKILL)
        until(lambda: rig.restarts("exited") == 1)
        until(lambda: len(rig.family("mig_sm_active_seconds_total")) == 2)  # and has not fallen: see Rig.samples
    assert fake.misuse().gpm_use_after_free == 0


def test_a_node_where_everything_is_ill_is_told_as_it_is(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make("sick8", 8)
    with Rig(fake, monkeypatch) as rig:
        until(lambda: len(rig.by_uuid("gpu_samples_total")) >= 6)
        end_s = time.monotonic() + 3.0
        until(lambda: rig.samples() and time.monotonic() > end_s)  # every look checks every value
        assert rig.restarts("exited") == rig.restarts("stuck") == rig.restarts("driver") == 0
        healthy = [slot for slot in range(8) if rig.uuid(slot) in rig.present()]
        assert len(healthy) >= 6
        rig.wait_rows(5, slots=healthy)
        until(lambda: rig.family("gpus").get(("present",)) == float(len(rig.present())))
        assert not [s for s in rig.health.samples(0.0) if s.labels[1:] == ("bug",) and s.value]


# --- the library and the driver ---------------------------------------------------------------------------------------


def test_a_library_that_appears_is_taken(
    make: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = tmp_path / "driver" / "libnvidia-ml.so.1"
    with Rig(make(), monkeypatch, library=library) as rig:
        until(lambda: rig.link.state == "unavailable")
        rig.wait_rows(0, slots=[])
        assert rig.ears.states[0][:2] == ("unavailable", Reason.UNAVAILABLE)
        assert "LIBRARY_NOT_FOUND" in rig.ears.states[0][2]
        assert "NVIDIA_VISIBLE_DEVICES" in caplog.text
        assert not rig.by_uuid("gpu_samples_total")
        library.parent.mkdir()
        library.symlink_to(build_library())
        rig.wait_running()
        assert rig.link.state == "running"
        assert rig.restarts("exited") == 0
    assert caplog.text.count("nvml=unavailable") == 1


def test_an_init_that_fails_a_few_times_is_tried_again(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make()
    fake.fail_init(4, 9)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        assert fake.calls("nvmlInitWithFlags") == 5
        assert {detail for state, _, detail in rig.ears.states if state == "unavailable"} == {
            "nvmlInitWithFlags: DRIVER_NOT_LOADED"
        }


def test_a_driver_that_goes_while_the_gpus_are_listed_is_no_crash(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make()
    fake.fail("nvmlDeviceGetCount_v2", 9, to_call=2)
    fake.fail("nvmlShutdown", 9, to_call=2)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        assert rig.restarts("exited") == 0


def test_a_driver_that_goes_and_comes_back_keeps_every_total(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make(count=3)
    fake.gpu(0).set_utilization(0.5)
    fake.gpu(0).ecc("corrected", 7)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        rig.wait_rows(10)
        energy = rig.by_uuid("gpu_energy_joules_total")
        fake.unload_driver()
        until(lambda: rig.link.state == "unavailable")
        until(lambda: not rig.by_uuid("gpu_utilization_ratio") and rig.present() == set())
        assert "DRIVER_NOT_LOADED" in rig.ears.states[-1][2]
        fake.reload_driver()  # counters of the hardware begin at zero
        rig.wait_running()
        rig.wait_rows(5)
        until(lambda: rig.present() == rig.uuids())
        assert all(value >= energy[uuid] for uuid, value in rig.by_uuid("gpu_energy_joules_total").items())
        assert rig.restarts("exited") == rig.restarts("driver") == 0
    assert fake.misuse().call_after_shutdown == 0


def test_a_driver_reload_that_nobody_announced_is_noticed_by_dead_handles(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make()
    with Rig(fake, monkeypatch, refresh_s=1.0) as rig:
        rig.wait_running()
        fake.reload_driver()
        until(lambda: fake.calls("nvmlDeviceGetHandleByUUID") > 4)
        rig.wait_rows(10)
        until(lambda: rig.present() == rig.uuids())


def test_a_driver_that_was_upgraded_gets_a_new_process(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make()
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        first = rig.link.pid
        fake.break_everything(18)
        until(lambda: rig.restarts("driver") >= 1)
        assert rig.link.state == "unavailable"
        assert "LIB_RM_VERSION_MISMATCH" in rig.ears.states[-1][2]
        fake.heal()
        rig.wait_running()
        assert rig.link.pid != first
        assert rig.restarts("exited") == 0


def test_unknown_at_init_gets_a_new_process_each_time(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = make()
    fake.fail_init(2, 999)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        assert rig.restarts("driver") == 2
        assert "daemon-reload" in caplog.text


def test_unknown_from_everything_in_the_middle_ends_in_a_new_process(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make()
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        fake.break_everything(999)
        until(lambda: rig.present() == set())
        until(lambda: not rig.by_uuid("gpu_utilization_ratio"))
        until(lambda: rig.restarts("driver") >= 1)
        fake.heal()
        rig.wait_running()
        until(lambda: rig.present() == rig.uuids())


# --- single GPUs ------------------------------------------------------------------------------------------------------


def test_a_lost_gpu_is_gone_its_neighbours_stay_and_it_comes_back(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fake = make(count=3)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        until(lambda: rig.family("gpus").get(("present",)) == 3.0)
        lost = rig.uuid(1)
        init = fake.calls("nvmlInitWithFlags")
        fake.gpu(1).lose()
        until(lambda: lost not in rig.present())
        assert rig.by_uuid("gpu_present") == {rig.uuid(0): 1.0, lost: 0.0, rig.uuid(2): 1.0}
        left = [s for s in rig.samples() if lost in s.labels and s.metric.name != "gpumon_gpu_present"]
        assert left == []
        rig.wait_rows(10, slots=[0, 2])
        until(lambda: rig.family("gpus").get(("present",)) == 2.0 and rig.family("gpus").get(("lost",)) == 1.0)
        waits = fake.calls("nvmlEventSetWait_v2")
        began_s = time.monotonic()
        rig.wait_rows(20, slots=[0, 2])
        assert fake.calls("nvmlEventSetWait_v2") - waits < 20 * (time.monotonic() - began_s) + 20  # no spinning
        fake.gpu(1).recover()
        until(lambda: rig.present() == rig.uuids())
        rig.wait_running()
        rig.wait_rows(5)
        until(lambda: rig.family("gpus").get(("lost",)) == 0.0)
        assert fake.calls("nvmlInitWithFlags") == init  # found by itself, nobody was disturbed
    assert caplog.text.count("state=lost") == 1
    assert caplog.text.count("state=back") == 1
    assert fake.misuse().stale_handle == 0


def test_a_gpu_that_is_lost_from_the_start_is_counted_and_taken_when_it_answers(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make(count=3)
    fake.gpu(2).lose()
    with Rig(fake, monkeypatch, refresh_s=0.6) as rig:
        rig.wait_running(2)
        until(lambda: rig.family("gpus").get(("lost",)) == 1.0)
        assert rig.family("gpus")["present",] == 2.0
        fake.gpu(2).recover()
        rig.wait_running(3)
        until(lambda: rig.present() == rig.uuids())


def test_a_gpu_that_leaves_the_count_and_new_numbers_for_the_others(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make(count=4)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        gone, moved = rig.uuid(1), rig.uuid(3)
        energy = rig.by_uuid("gpu_energy_joules_total")
        fake.remove_gpu(1)
        until(lambda: rig.family("gpu_samples_total").keys() == {("0", rig.uuid(0)), ("1", rig.uuid(2)), ("2", moved)})
        until(lambda: gone not in rig.present())
        assert rig.by_uuid("gpu_present")[gone] == 0.0
        until(lambda: len(rig.by_uuid("gpu_busy_seconds_total")) == 3)
        rig.wait_rows(5, slots=[0, 2, 3])
        after = rig.by_uuid("gpu_energy_joules_total")
        assert abs(after[moved] - energy[moved]) < 0.1 * energy[moved]  # each has its own, by uuid
        assert ("2", moved) in rig.family("gpu_present")
        fake.restore_gpu(1)
        rig.wait_running(4)
        until(lambda: rig.present() == rig.uuids())


def test_new_numbers_over_a_new_process_keep_the_totals_with_the_uuid(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make(count=3)
    for slot in range(3):
        fake.gpu(slot).set_utilization(0.2 + 0.3 * slot)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        until(lambda: all(rig.by_uuid("gpu_busy_seconds_total").get(rig.uuid(s), 0.0) > 0 for s in range(3)))
        fake.set_order([2, 0, 1])
        os.kill(rig.link.pid or 0, signal.SIGKILL)
        until(lambda: ("0", rig.uuid(2)) in rig.family("gpu_samples_total"))
        rig.wait_running()  # the rig holds every total against what it was, by uuid


@pytest.mark.parametrize("function", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetEnforcedPowerLimit"])
def test_a_call_that_hangs_on_one_gpu_leaves_the_others_at_their_rate(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    fake = make(count=4)
    with Rig(fake, monkeypatch, fast_s=0.1, inventory_s=300.0) as rig:
        rig.wait_running()
        first = rig.link.pid
        fake.hang(function, gpu=2)
        until(lambda: rig.uuid(2) not in rig.present())
        until(
            lambda: not [s for s in rig.samples() if rig.uuid(2) in s.labels and s.metric.name != "gpumon_gpu_present"]
        )
        others = [rig.uuid(slot) for slot in (0, 1, 3)]
        before, began_s = rig.by_uuid("gpu_samples_total"), time.monotonic()
        until(lambda: time.monotonic() - began_s > 2.0)
        after, took_s = rig.by_uuid("gpu_samples_total"), time.monotonic() - began_s
        rates = [(after[uuid] - before[uuid]) / took_s for uuid in others]
        assert min(rates) > 9.0 - 1.5  # a publication's worth either way
        assert rig.link.state == "running"
        until(lambda: rig.family("gpus").get(("present",)) == 3.0)
        fake.release()
        until(lambda: rig.present() == rig.uuids())
        rig.wait_rows(5)
        until(lambda: rig.uuid(2) in {labels[1] for labels in rig.family("gpu_info")})  # not at the next inventory
        assert rig.link.pid == first
    assert caplog.text.count("state=stuck") == 1
    assert function in caplog.text


def test_a_hang_while_a_gpu_is_looked_for_is_noticed_too(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make(count=2)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        fake.hang("nvmlDeviceGetHandleByUUID", gpu=1)
        fake.gpu(1).lose()
        until(lambda: rig.uuid(1) not in rig.present())
        fake.gpu(1).recover()
        until(lambda: fake.hanging("nvmlDeviceGetHandleByUUID") == 1)
        until(lambda: rig.by_uuid("gpu_present")[rig.uuid(1)] == 0.0)
        rig.wait_rows(10, slots=[0])
        assert rig.uuid(1) not in rig.present()
        fake.release()
        until(lambda: rig.present() == rig.uuids())


# --- the process ------------------------------------------------------------------------------------------------------


def test_a_hang_in_init_is_ended_by_a_new_process(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make()
    fake.hang("nvmlInitWithFlags")
    with Rig(fake, monkeypatch, restart_after_s=1.0) as rig:
        until(lambda: rig.restarts("stuck") == 1)
        assert rig.link.state in ("stuck", "starting")
        assert any(reason is Reason.TIMEOUT for _, reason, _ in rig.ears.states)
        fake.release()
        rig.wait_running()


def test_a_hang_of_the_whole_driver_is_told_before_it_is_ended(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make()
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        fake.hang("nvmlDeviceGetCount_v2")
        until(lambda: rig.link.state == "stuck")
        until(lambda: rig.present() == set())
        fake.release()
        until(lambda: rig.present() == rig.uuids())
        assert rig.link.state == "running"
        assert rig.restarts("stuck") == 0
        rig.link.reconfigure(PLAN, 0.05, 2.0)
        fake.hang("nvmlDeviceGetCount_v2")
        until(lambda: rig.restarts("stuck") == 1)
        fake.release()
        rig.wait_running()


def test_stop_does_not_wait_for_a_shutdown_that_hangs(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumon.sampler.link.STOP_S", 0.5)
    fake = make()
    rig = Rig(fake, monkeypatch)
    with rig:
        rig.wait_running()
        pid = rig.link.pid
        assert pid is not None
        fake.hang("nvmlShutdown")
        began_s = time.monotonic()
        rig.link.stop()
        assert time.monotonic() - began_s < 20.0
        assert rig.link.pid is None
        until(lambda: not alive(pid))


def grown(rig: Rig, name: str) -> None:
    """Until this total of the first GPU is more than it was at its first sight from here."""
    until(lambda: rig.uuid(0) in rig.by_uuid(name))
    before = rig.by_uuid(name)[rig.uuid(0)]
    until(lambda: rig.by_uuid(name).get(rig.uuid(0), 0.0) > before)


def test_a_killed_sampler_is_replaced_and_no_total_falls(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make(count=2)
    fake.gpu(0).set_utilization(0.9)
    fake.gpu(0).set_gpm("sm", 0.7)
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        until(lambda: rig.by_uuid("gpu_busy_seconds_total")[rig.uuid(0)] > 0.1)
        for kills in (1, 2):
            os.kill(rig.link.pid or 0, signal.SIGKILL)
            until(lambda kills=kills: rig.restarts("exited") == kills)  # type: ignore[misc]
            rig.wait_running()
            grown(rig, "gpu_busy_seconds_total")
            grown(rig, "gpu_sm_active_seconds_total")


def test_what_a_killed_sampler_said_is_gone_before_the_next_one_speaks(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make()
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        fake.fail_init(10_000, 9)
        os.kill(rig.link.pid or 0, signal.SIGKILL)
        until(lambda: rig.restarts("exited") == 1)
        names = {sample.metric.name for sample in rig.samples() if "uuid" in sample.metric.labels}
        assert names == {"gpumon_gpu_present"}
        assert rig.present() == set()
        assert rig.ears.holders() == []


def test_release_lets_go_and_acquire_takes_again_at_once(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make()
    fake.log_calls()
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        for _ in range(2):
            shutdowns = fake.calls("nvmlShutdown")
            rig.link.release()
            released_ns = time.monotonic_ns()
            assert rig.link.state == "released"
            assert rig.link.pid is None
            assert fake.calls("nvmlShutdown") == shutdowns + 1
            assert fake.live().inits == 0
            assert rig.present() == set()
            assert not rig.by_uuid("gpu_utilization_ratio")
            calls = fake.all_calls()
            until(lambda released_ns=released_ns: time.monotonic_ns() - released_ns > 3e8)  # type: ignore[misc]
            assert fake.all_calls() == calls
            assert max(call.end_ns for call in fake.log()) < released_ns
            rig.link.acquire()
            rig.wait_running()
            until(lambda: rig.present() == rig.uuids())
        assert rig.restarts("exited") == 0
    assert fake.misuse() == CLEAN


def test_release_of_a_sampler_that_hangs_and_acquire_right_after(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumon.sampler.link.STOP_S", 0.5)
    fake = make()
    with Rig(fake, monkeypatch) as rig:
        rig.wait_running()
        fake.hang("nvmlShutdown", to_call=1)
        began_s = time.monotonic()
        rig.link.release()
        assert time.monotonic() - began_s < 20.0
        assert rig.link.state == "released"
        rig.link.acquire()
        fake.release()
        rig.wait_running()


def test_release_while_nothing_runs_and_acquire(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig(make(), monkeypatch, interpreter=["/nonexistent/python"]) as rig:
        until(lambda: rig.link.state == "unavailable")
        rig.link.release()
        assert rig.link.state == "released"
        rig.link.acquire()
        until(lambda: rig.link.state == "unavailable")


def test_another_plan_is_followed_by_a_new_process(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make()
    fake.gpu(0).set_gpm("sm", 0.5)
    with Rig(fake, monkeypatch, fast_s=0.02) as rig:
        rig.wait_running()
        first = rig.link.pid
        rig.link.reconfigure(PLAN, 0.05, 20.0)
        until(lambda: rig.link.pid not in (first, None))
        rig.wait_running()
        second = rig.link.pid
        until(lambda: rig.uuid(0) in rig.by_uuid("gpu_sm_active_seconds_total"))
        active = rig.by_uuid("gpu_sm_active_seconds_total")[rig.uuid(0)]
        until(lambda: rig.by_uuid("gpu_sm_active_seconds_total").get(rig.uuid(0), 0.0) > active)
        rig.link.reconfigure(PLAN, 0.06, 21.0)  # nothing that concerns the sampler
        rig.wait_rows(5)
        assert rig.link.pid == second
        assert rig.restarts("exited") == 0


@pytest.mark.parametrize("interpreter", [["/nonexistent/python"], ["/dev/null"]])
def test_a_sampler_that_cannot_be_started_is_told_and_tried_again_ever_more_slowly(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, interpreter: list[str]
) -> None:
    with Rig(make(), monkeypatch, interpreter=interpreter) as rig:
        until(lambda: caplog.text.count("restart_in_s=1.0") == 1)
        assert rig.link.state == "unavailable"
        assert "cannot be started" in rig.ears.states[-1][2]
        assert caplog.text.count("restart_in_s=") == 2
        assert rig.link.pid is None


def test_a_ring_that_cannot_be_had_is_a_sampler_that_cannot_be_started_and_leaves_nothing_open(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = make()
    before = len(os.listdir("/proc/self/fd"))
    with Rig(node, monkeypatch, plan=replace(PLAN, fast_s=1e-12)) as rig:  # a ring larger than any memory
        until(lambda: caplog.text.count("restart_in_s=1.0") == 1)
        assert rig.link.state == "unavailable"
        assert "cannot be started" in rig.ears.states[-1][2]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_sampler_that_ends_at_once_is_tried_ever_more_slowly(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Rig(make(), monkeypatch, interpreter=[sys.executable, "-c", "raise SystemExit(3)"]) as rig:
        until(lambda: rig.restarts("exited") == 2)
        assert "restart_in_s=1.0" in caplog.text
        assert rig.ears.states[-1][0] == "unavailable"
        assert "exit status 3" in rig.ears.states[-1][2]


def test_a_bug_in_who_listens_is_told_once_and_nothing_stops(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(make(), monkeypatch)
    heard: list[str] = []

    def identity(uuid: str, gpu: str, pci_bus_id: str) -> None:
        heard.append(uuid)
        raise ZeroDivisionError("by the test")

    monkeypatch.setattr(rig.ears, "gpu_identity", identity)
    with rig:
        until(lambda: len(heard) >= 4)
        rig.wait_running()
    assert caplog.text.count("ZeroDivisionError: by the test") == 1


def test_nothing_is_left_open_by_twenty_samplers(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumon.sampler.link.PAUSE_MIN_S", 0.01)
    monkeypatch.setattr("gpumon.sampler.link.PAUSE_MAX_S", 0.01)
    with Rig(make(count=1), monkeypatch) as rig:
        open_before = 0
        for life in range(20):
            until(lambda: rig.link.state == "running" and rig.link.pid)
            if life == 1:
                open_before = len(os.listdir("/proc/self/fd"))
            os.kill(rig.link.pid or 0, signal.SIGKILL)
            until(lambda life=life: rig.restarts("exited") == life + 1)  # type: ignore[misc]
        until(lambda: rig.link.state == "running" and rig.link.pid)
        assert len(os.listdir("/proc/self/fd")) <= open_before


ORPHANING = """
import sys, time
sys.path.insert(0, {root!r})
from gpumon.host.clock import SystemClock
from gpumon.host.interpreter import module_command
from gpumon.health import Health
from gpumon.node import Node
from gpumon.sampler.handover import Plan
from gpumon.sampler.link import SamplerLink
from gpumon.store import Store
clock = SystemClock()
health = Health(clock.to_unix)
node = Node(Store(), health, clock)
options = {{"library": {library!r}, "procfs": "/proc", "sysfs": "/sys", "cgroupfs": "/sys/fs/cgroup"}}
link = SamplerLink(module_command("gpumon.sampler"), options, Plan(), clock, node)
link.start()
while link.state != {state!r} or link.pid is None:
    time.sleep(0.01)
print(link.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("hanging", [None, "nvmlInitWithFlags", "nvmlDeviceGetUtilizationRates"])
def test_a_sampler_whose_main_process_was_killed_ends_by_itself(make: MakeNode, hanging: str | None) -> None:
    fake = make(count=1)
    if hanging:
        fake.hang(hanging)
    state = "starting" if hanging == "nvmlInitWithFlags" else "running"
    script = ORPHANING.format(root=str(Path(__file__).parents[2]), library=str(fake.library), state=state)
    main = subprocess.Popen([sys.executable, "-c", script], env=fake.env(), stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    pid = int(main.stdout.readline())
    if hanging:
        until(lambda: fake.hanging(hanging) == 1)
    else:
        until(lambda: fake.calls("nvmlDeviceGetFieldValues") > 2)
    main.kill()
    main.wait()
    main.stdout.close()
    until(lambda: not alive(pid), 8.0)
    if not hanging:
        assert fake.live().inits == 0  # in order: nvmlShutdown was called
        assert fake.misuse() == CLEAN


def test_messages_and_rows_that_were_lost_are_counted(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make(count=1)
    rig = Rig(fake, monkeypatch, fast_s=0.01)
    with rig:
        rig.wait_running()
        pid = rig.link.pid
        assert pid is not None
        original = SamplerLink.tend
        began_s = time.monotonic()

        def late(link: SamplerLink, at_s: float) -> None:
            monkeypatch.setattr(SamplerLink, "tend", original)
            until(lambda: time.monotonic() - began_s > 1.0)

        monkeypatch.setattr("gpumon.sampler.link.RING_SECONDS", 0.16)
        rig.link.reconfigure(PLAN, 0.05, 20.0)
        until(lambda: rig.link.pid not in (pid, None))
        rig.wait_running()
        monkeypatch.setattr(SamplerLink, "tend", late)
        began_s = time.monotonic()
        until(lambda: time.monotonic() - began_s > 1.1)
        until(lambda: next(iter(rig.ears.own_samples())).value > 0)  # type: ignore[operator]


def test_logging_of_life_is_one_line_a_change(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Rig(make(), monkeypatch) as rig:
        rig.wait_running()
        rig.wait_rows(20)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("gpumon.sampler")]
    assert [line.split()[0] for line in lines] == ["sampler=started", "nvml=running"]
