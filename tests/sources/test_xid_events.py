from __future__ import annotations

from itertools import pairwise

import pytest

from gpumon.host.nvml import DRIVER_GONE, EVENT_XID, NEVER, Code, Event, NvmlError
from gpumon.model import Miss, Reason, Rejection
from gpumon.sources.xid_events import BURST_MAX, XidWatcher
from tests.fake_port import FakeNvml, device

CODES = [*(code for code in Code if code is not Code.SUCCESS), 31]
XID_79 = Event("GPU-0", EVENT_XID, 79)


class Rig:
    """Three GPUs. Events pending are given one per wait; a lost GPU makes every wait with it fail."""

    def __init__(self) -> None:
        self.nvml = FakeNvml()
        self.devices = [device(i) for i in range(3)]
        self.pending: list[Event] = []
        self.lost: set[object] = set()
        self.known_lost: set[object] = set()
        self.waited: list[tuple[tuple[object, ...], int]] = []
        self.nvml.answers |= {"events.register": True, "events.wait": self.wait}
        self.watcher = XidWatcher(self.nvml, self.devices, lambda gpu: gpu.handle in self.known_lost)

    def wait(self, handles: tuple[object, ...], timeout_ms: int) -> Event | None:
        self.waited.append((handles, timeout_ms))
        if self.lost & set(handles):
            raise NvmlError(Code.GPU_IS_LOST, "events.wait")
        return self.pending.pop(0) if self.pending else None

    def registered(self) -> set[object]:
        (event_set,) = self.nvml.sets
        return set(event_set.handles)


def test_quiet_is_normal_and_one_set_serves_for_ever() -> None:
    rig = Rig()
    for tick in range(5):
        assert rig.watcher.poll(1000.0 + tick, 1000) == []
    assert rig.watcher.take() == []
    assert rig.waited == [(("gpu0", "gpu1", "gpu2"), 1000)] * 5
    assert rig.nvml.log.count("events.register") == 3


def test_a_timeout_that_comes_as_an_error_is_just_as_normal() -> None:
    rig = Rig()
    rig.nvml.errors["events.wait"] = Code.TIMEOUT
    for tick in range(3):
        assert rig.watcher.poll(1000.0 + tick, 1000) == []
    assert rig.watcher.take() == []
    assert rig.nvml.log.count("events.register") == 3


def test_events_that_are_there_come_together_without_more_waiting() -> None:
    rig = Rig()
    rig.pending = [XID_79, Event(None, EVENT_XID, 999), Event("GPU-1", EVENT_XID, 13)]
    assert rig.watcher.poll(1000.0, 1000) == [XID_79, Event(None, EVENT_XID, 999), Event("GPU-1", EVENT_XID, 13)]
    assert [timeout_ms for _, timeout_ms in rig.waited] == [1000, 0, 0, 0]


def test_a_storm_is_taken_in_bounded_bursts() -> None:
    rig = Rig()
    rig.pending = [XID_79] * (BURST_MAX + 5)
    assert len(rig.watcher.poll(1000.0, 1000)) == BURST_MAX
    assert len(rig.watcher.poll(1001.0, 1000)) == 5


@pytest.mark.parametrize("event", [Event("GPU-0", EVENT_XID, 0), Event("GPU-0", EVENT_XID, 1 << 40), Event("x", 2, 79)])
def test_what_is_no_xid_is_malformed_and_its_neighbours_come(event: Event) -> None:
    rig = Rig()
    rig.pending = [event, XID_79]
    assert rig.watcher.poll(1000.0, 1000) == [XID_79]
    assert rig.watcher.take() == [Rejection("xid", Reason.MALFORMED)]
    assert rig.watcher.take() == []


def test_a_lost_gpu_is_left_out_and_the_others_go_on() -> None:
    rig = Rig()
    rig.watcher.poll(1000.0, 1000)
    rig.lost = {"gpu1"}
    assert rig.watcher.poll(1001.0, 1000) == []
    assert rig.watcher.resume_at_s == 1002.0
    assert rig.watcher.take() == [Miss("xid events", Reason.UNAVAILABLE, "GPU_IS_LOST")]
    rig.pending = [XID_79]
    assert rig.watcher.poll(1002.0, 1000) == [XID_79]
    assert rig.registered() == {"gpu0", "gpu2"}


def test_an_event_that_comes_while_the_lost_gpu_is_sought_is_kept() -> None:
    rig = Rig()
    rig.watcher.poll(1000.0, 1000)
    rig.lost = {"gpu1"}
    rig.pending = [XID_79]
    assert rig.watcher.poll(1001.0, 1000) == [XID_79]


def test_a_gpu_that_comes_back_is_registered_again() -> None:
    rig = Rig()
    rig.watcher.poll(1000.0, 1000)
    rig.lost = {"gpu1"}
    rig.watcher.poll(1001.0, 1000)
    rig.lost = set()
    rig.watcher.poll(1030.9, 1000)
    assert rig.registered() == {"gpu0", "gpu2"}
    rig.watcher.poll(1031.0, 1000)
    assert rig.registered() == {"gpu0", "gpu1", "gpu2"}


def test_a_gpu_that_others_know_to_be_lost_is_not_touched() -> None:
    rig = Rig()
    rig.known_lost = {"gpu1"}
    rig.watcher.poll(1000.0, 1000)
    assert rig.registered() == {"gpu0", "gpu2"}


def test_a_wait_that_always_fails_is_tried_ever_more_rarely_and_never_spins() -> None:
    rig = Rig()
    rig.nvml.errors["events.wait"] = Code.GPU_IS_LOST
    tries, at_s = [], 1000.0
    while at_s < 1120.0:
        before = rig.nvml.log.count("events.wait")
        rig.watcher.poll(at_s, 1000)
        if rig.nvml.log.count("events.wait") > before:
            tries.append(at_s)
        at_s += 0.5
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert len(rig.nvml.sets) <= 1


def test_back_off_begins_again_after_a_wait_that_worked() -> None:
    rig = Rig()
    rig.nvml.errors["events.wait"] = Code.UNKNOWN
    for at_s in (1000.0, 1001.0, 1003.0):
        rig.watcher.poll(at_s, 1000)
    assert rig.watcher.resume_at_s == 1007.0
    del rig.nvml.errors["events.wait"]
    rig.watcher.poll(1007.0, 1000)
    rig.nvml.errors["events.wait"] = Code.UNKNOWN
    rig.watcher.poll(1008.0, 1000)
    assert rig.watcher.resume_at_s == 1009.0


def test_unknown_at_registration_frees_the_set_and_the_next_one_goes_without() -> None:
    rig = Rig()
    rig.nvml.errors["gpu1/events.register"] = Code.UNKNOWN
    rig.pending = [XID_79]
    assert rig.watcher.poll(1000.0, 1000) == [XID_79]
    assert rig.registered() == {"gpu0", "gpu2"}
    assert rig.nvml.log.count("events") == 2
    assert rig.watcher.take() == [Miss("gpu 1 xid events", Reason.UNAVAILABLE, "UNKNOWN")]


def test_all_gpus_spoiling_the_set_ends() -> None:
    rig = Rig()
    rig.nvml.errors["events.register"] = Code.UNKNOWN
    assert rig.watcher.poll(1000.0, 1000) == []
    assert rig.registered() == set()
    assert rig.nvml.log.count("events.register") == 3


def test_a_gpu_without_events_is_asked_once_and_is_no_problem() -> None:
    rig = Rig()
    rig.nvml.answers["gpu1/events.register"] = False
    rig.nvml.errors["gpu2/events.register"] = Code.NOT_SUPPORTED
    for tick in range(100):
        rig.watcher.poll(1000.0 + tick, 1000)
    assert rig.registered() == {"gpu0"}
    assert rig.nvml.log.count("events.register") == 3
    assert rig.watcher.take() == []


def test_problems_that_nobody_takes_are_bounded() -> None:
    rig = Rig()
    rig.pending = [Event("GPU-0", EVENT_XID, 0)] * 10_000
    for tick in range(200):
        rig.watcher.poll(1000.0 + tick, 1000)
    assert len(rig.watcher.take()) == 256


def test_closing_frees_the_set_and_polling_makes_another() -> None:
    rig = Rig()
    rig.watcher.poll(1000.0, 1000)
    rig.watcher.close()
    rig.watcher.close()
    assert rig.nvml.sets == set()
    rig.watcher.poll(1001.0, 1000)
    assert rig.registered() == {"gpu0", "gpu1", "gpu2"}


def test_a_set_that_cannot_be_freed_stops_nothing() -> None:
    rig = Rig()
    rig.watcher.poll(1000.0, 1000)
    rig.nvml.errors["events.close"] = Code.UNKNOWN
    rig.watcher.close()


def test_events_before_the_driver_went_are_given_before_it_is_raised() -> None:
    rig = Rig()

    def wait(handles: tuple[object, ...], timeout_ms: int) -> Event:
        if timeout_ms:
            return XID_79
        rig.nvml.errors["events"] = Code.DRIVER_NOT_LOADED
        raise NvmlError(Code.DRIVER_NOT_LOADED, "events.wait")

    rig.nvml.answers["events.wait"] = wait
    assert rig.watcher.poll(1000.0, 1000) == [XID_79]
    with pytest.raises(NvmlError):
        rig.watcher.poll(1001.0, 1000)


def recovers(rig: Rig, at_s: float) -> bool:
    rig.nvml.errors.clear()
    rig.pending = [XID_79]
    return rig.watcher.poll(at_s, 1000) == [XID_79]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("question", ["events", "events.register", "gpu1/events.register", "events.wait"])
def test_any_failure_is_held_back_and_only_a_driver_that_went_is_raised(question: str, code: int) -> None:
    rig = Rig()
    rig.nvml.errors[question] = code
    if code in DRIVER_GONE:
        with pytest.raises(NvmlError) as raised:
            rig.watcher.poll(1000.0, 1000)
        assert raised.value.code == code
        assert rig.nvml.sets == set()
        return
    assert rig.watcher.poll(1000.0, 1000) == []
    if code not in NEVER and (code, question) != (Code.TIMEOUT, "events.wait") and question != "events":
        assert rig.watcher.take() != []
    if question == "gpu1/events.register":
        assert rig.registered() == {"gpu0", "gpu2"}
    assert recovers(rig, 1030.0)


def test_is_lost_is_asked_with_the_device() -> None:
    nvml = FakeNvml()
    nvml.answers |= {"events.register": True, "events.wait": None}
    watcher = XidWatcher(nvml, [device(0), device(1)], lambda gpu: gpu.index == 0)
    watcher.poll(1000.0, 1000)
    (event_set,) = nvml.sets
    assert event_set.handles == ["gpu1"]


def test_a_driver_that_goes_while_the_lost_gpu_is_sought_is_raised_with_all_sets_freed() -> None:
    rig = Rig()
    rig.watcher.poll(1000.0, 1000)

    def wait(handles: tuple[object, ...], timeout_ms: int) -> Event:
        raise NvmlError(Code.GPU_IS_LOST if timeout_ms else Code.DRIVER_NOT_LOADED, "events.wait")

    rig.nvml.answers["events.wait"] = wait
    with pytest.raises(NvmlError) as raised:
        rig.watcher.poll(1001.0, 1000)
    assert raised.value.code == Code.DRIVER_NOT_LOADED
    assert rig.nvml.sets == set()
