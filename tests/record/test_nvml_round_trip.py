from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.catalogue import CALL_BOUNDS
from gpumon.host.clock import ManualClock
from gpumon.host.nvml import (
    COMPUTE_CAPABILITY,
    ENERGY,
    NAME,
    UUID,
    Bar1,
    CallTimes,
    Code,
    Device,
    Driver,
    Event,
    Field,
    GpmReading,
    Memory,
    NvmlError,
    ProcessUtilization,
    RunningProcess,
    StaleDeviceError,
    Utilization,
    UtilizationSample,
)
from gpumon.record.entries import NVML_CLOSE, NVML_OPEN, XID_EVENTS, Calls, gpu_pass
from gpumon.record.recording_nvml import MOST_DEVICES, RecordingNvml
from gpumon.record.replay_nvml import ReplayEvents, ReplayNvml
from gpumon.record.timeline import Pass, Recording
from tests.fake_port import FakeNvml, device
from tests.record.tapes import Tape, new_tape

GPU = "GPU-0a1b2c3d-1234-5678-9abc-def012345678"
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
CODES = st.one_of(st.sampled_from(Code).filter(bool), st.integers(100, 2000))
FIELDS = (Field(82), Field(138, 0xFFFFFFFF), Field(83))
METRICS = (2, 10)

Ask = Callable[[Any, Device], Any]


class Batch:
    """A field batch that answers what the script says."""

    def __init__(self, nvml: FakeNvml, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self._nvml = nvml
        self._codes = [int(Code.UNKNOWN)] * len(fields)

    def read(self) -> list[int | float | None]:
        values: list[int | float | None]
        values, self._codes = self._nvml.ask(None, "batch")
        return values

    def codes(self) -> list[int]:
        return self._codes


class Nvml(FakeNvml):
    def fields(self, device: Device, fields: Sequence[Field]) -> Batch:  # type: ignore[override]
        return Batch(self, fields)


def read_fields(nvml: Any, gpu: Device) -> Any:
    batch = nvml.fields(gpu, FIELDS)
    return batch.read(), batch.codes()


QUESTIONS: dict[str, tuple[Ask, st.SearchStrategy[Any]]] = {
    "driver": (lambda nvml, gpu: nvml.driver(), st.builds(Driver, *[st.none() | st.text(max_size=9)] * 3)),
    "device_count": (lambda nvml, gpu: nvml.device_count(), U32),
    "energy": (lambda nvml, gpu: nvml.number(gpu, ENERGY), U64 | st.integers(-(2**31), -1)),
    "compute_capability": (
        lambda nvml, gpu: nvml.numbers(gpu, COMPUTE_CAPABILITY),
        st.tuples(U32, st.integers(-(2**31), 2**31)),
    ),
    "name": (lambda nvml, gpu: nvml.text(gpu, NAME), st.text(max_size=20)),
    "pci_bus_id": (lambda nvml, gpu: nvml.pci_bus_id(gpu), st.just("0000:3b:00.0") | st.text(max_size=12)),
    "utilization": (lambda nvml, gpu: nvml.utilization(gpu), st.builds(Utilization, U32, U32)),
    "memory": (lambda nvml, gpu: nvml.memory(gpu), st.builds(Memory, U64, U64, U64, st.none() | U64)),
    "bar1": (lambda nvml, gpu: nvml.bar1(gpu), st.builds(Bar1, U64, U64, U64)),
    "temperature": (lambda nvml, gpu: nvml.temperature(gpu), st.integers(-300, 300)),
    "temperature_margin": (lambda nvml, gpu: nvml.temperature_margin(gpu), st.integers(-300, 300)),
    "batch": (
        read_fields,
        st.tuples(st.lists(U64 | FLOATS | st.none(), min_size=3, max_size=3), st.lists(U32, min_size=3, max_size=3)),
    ),
    "gpm_supported": (lambda nvml, gpu: nvml.gpm_supported(gpu), st.booleans()),
    "gpm.read": (
        lambda nvml, gpu: nvml.gpm(gpu, METRICS).read(),
        st.none() | st.builds(GpmReading, st.tuples(*[FLOATS | st.none()] * 2), st.tuples(U32, U32), FLOATS),
    ),
    "utilization_samples": (
        lambda nvml, gpu: nvml.utilization_samples(gpu, 5),
        st.lists(st.builds(UtilizationSample, U64, st.integers(-1, 2**32))),
    ),
    "processes:compute": (
        lambda nvml, gpu: nvml.processes(gpu, "compute"),
        st.lists(st.builds(RunningProcess, U32, st.none() | U64, st.none() | U32, st.none() | U32)),
    ),
    "process_utilization": (
        lambda nvml, gpu: nvml.process_utilization(gpu, 5),
        st.lists(st.builds(ProcessUtilization, U32, U64, U32, U32)),
    ),
}


class Taped:
    """A scripted NVML with one GPU under a recorder."""

    def __init__(self, tape: Tape) -> None:
        self.inner = Nvml()
        self.inner.generation = 0
        self.inner.answers[f"device:{GPU}"] = lambda: device()
        self.inner.answers["device:0"] = lambda: device()
        self.inner.answers["uuid"] = GPU
        self.tape = tape
        self.nvml = RecordingNvml(self.inner, tape.recorder, tape.clock)

    def replay(self) -> tuple[Recording, ReplayNvml, ManualClock]:
        recording, clock = self.tape.replay()
        return recording, ReplayNvml(recording, clock), clock


def outcome(ask: Ask, nvml: Any, gpu: Device) -> Any:
    """The answer with its types, or the code and function of the error."""
    try:
        answer = ask(nvml, gpu)
    except NvmlError as error:
        return int(error.code), error.function
    return answer, repr(answer)


@pytest.mark.parametrize("name", QUESTIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_answer_and_refusal_comes_back_at_its_time(name: str, data: st.DataObject) -> None:
    ask, values = QUESTIONS[name]
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        gpu = taped.nvml.device_by_uuid(GPU)
        told: list[Calls] = []
        for value in data.draw(st.lists(values | CODES.map(lambda code: ("error", code)), min_size=1, max_size=5)):
            taped.inner.errors.pop(name, None)
            if isinstance(value, tuple) and value[:1] == ("error",):
                taped.inner.errors[name] = value[1]
            else:
                taped.inner.answers[name] = value
            tape.recorder.mark(gpu_pass(GPU), tape.clock.now_s())
            told.append(outcome(ask, taped.nvml, gpu))
            tape.clock.step(0.1)
        _, replay, clock = taped.replay()
        replay.open()
        replayed = replay.device_by_uuid(GPU)
        for answer in told:
            assert outcome(ask, replay, replayed) == answer
            assert outcome(ask, replay, replayed) == answer, "it holds until there is another"
            clock.step(0.1)


def test_devices_keep_their_names_whether_found_by_index_or_by_uuid() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        found = taped.nvml.device(0)
        assert taped.nvml.text(found, UUID) == GPU
        taped.inner.answers["energy"] = 5
        assert taped.nvml.number(found, ENERGY) == 5
        _, replay, _ = taped.replay()
        replay.open()
        by_uuid = replay.device_by_uuid
        with pytest.raises(NvmlError, match="not in the recording"):
            by_uuid(GPU)
        again = replay.device(0)
        assert again.index == 0
        assert replay.text(again, UUID) == GPU
        assert replay.number(again, ENERGY) == 5


def test_mig_instances_and_holes_come_back() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        gpu = taped.nvml.device_by_uuid(GPU)
        taped.inner.answers["mig_device:1"] = ("MIG-1", 3, 0)
        instance = taped.nvml.mig_device(gpu, 1)
        assert taped.nvml.text(instance, UUID) == "MIG-1"
        with pytest.raises(NvmlError):
            taped.nvml.mig_device(gpu, 0)
        _, replay, _ = taped.replay()
        replay.open()
        parent = replay.device_by_uuid(GPU)
        again = replay.mig_device(parent, 1)
        assert (again.index, again.gpu_instance, again.compute_instance, again.parent) == (1, 3, 0, parent)
        assert again.calls is parent.calls
        assert replay.text(again, UUID) == "MIG-1"
        for hole in (0, 2):
            with pytest.raises(NvmlError) as error:
                replay.mig_device(parent, hole)
            assert error.value.code == Code.NOT_FOUND


def test_openings_closings_and_generations_come_back() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        failing = [Code.DRIVER_NOT_LOADED, None]

        def opened(nvml: FakeNvml = taped.inner) -> None:
            if (code := failing.pop(0)) is not None:
                raise NvmlError(code, "nvmlInitWithFlags")
            nvml.generation += 1

        taped.inner.open = opened  # type: ignore[method-assign]
        with pytest.raises(NvmlError):
            taped.nvml.open()
        tape.clock.step(5.0)
        taped.nvml.open()
        assert taped.nvml.generation == 1
        tape.clock.step(5.0)
        taped.nvml.close()
        recording, replay, clock = taped.replay()
        names = [(event.at_s - 1000.0, event.name) for event in recording.passes() if isinstance(event, Pass)]
        assert names == [(0.0, NVML_OPEN), (5.0, NVML_OPEN), (10.0, NVML_CLOSE)]

        recording, clock = tape.replay()
        replay = ReplayNvml(recording, clock)
        replay.close()  # not open: nothing
        with pytest.raises(NvmlError) as error:
            replay.open()
        assert (error.value.code, error.value.function) == (Code.DRIVER_NOT_LOADED, "nvmlInitWithFlags")
        assert replay.generation == 0
        clock.step(5.0)
        replay.open()
        assert replay.generation == 1
        clock.step(5.0)
        replay.close()


def test_a_device_of_an_earlier_generation_is_stale() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        taped.nvml.device_by_uuid(GPU)
        _, replay, _ = taped.replay()
        replay.open()
        gpu = replay.device_by_uuid(GPU)
        replay.close()
        with pytest.raises(StaleDeviceError):
            replay.utilization(gpu)
        replay.open()
        with pytest.raises(StaleDeviceError):
            replay.utilization(gpu)


def test_events_are_passes_of_their_own_and_are_told_once() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        gpu = taped.nvml.device_by_uuid(GPU)
        answers: list[Event | Code | None] = [None, Event(GPU, 8, 79), Event(None, 8, 13), None, Code.GPU_IS_LOST]

        def wait(handles: object, timeout_ms: int) -> Event | None:
            answer = answers.pop(0)
            if isinstance(answer, Code):
                raise NvmlError(answer, "nvmlEventSetWait_v2")
            return answer

        taped.inner.answers |= {"events.register": True, "events.wait": wait}
        tape.clock.step(1.0)
        events = taped.nvml.events()
        assert events.register(gpu)
        for _ in range(4):
            tape.clock.step(1.0)
            events.wait(500)
        tape.clock.step(1.0)
        with pytest.raises(NvmlError):
            events.wait(500)
        events.close()
        recording, replay, clock = taped.replay()
        replayed: ReplayEvents | None = None
        told: list[object] = []
        at_s = []
        for event in recording.passes():
            clock.move_to(event.at_s)
            if not isinstance(event, Pass) or event.name != XID_EVENTS:
                continue
            at_s.append(event.at_s - 1000.0)
            if replayed is None:
                replay.open()
                replayed = replay.events()
                assert replayed.register(replay.device_by_uuid(GPU))
            try:
                told.append(replayed.wait(500))
            except NvmlError as error:
                told.append((error.code, error.function))
        assert at_s == [1.0, 3.0, 4.0, 6.0]
        assert told == [None, Event(GPU, 8, 79), Event(None, 8, 13), (Code.GPU_IS_LOST, "nvmlEventSetWait_v2")]
        assert replayed is not None
        assert replayed.wait(500) is None
        replayed.close()


def test_a_ring_asked_from_another_moment_gives_what_is_newer() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        gpu = taped.nvml.device_by_uuid(GPU)
        rows = [UtilizationSample(100, 1), UtilizationSample(300, 2)]
        taped.inner.answers["utilization_samples"] = rows
        taped.inner.answers["process_utilization"] = [
            ProcessUtilization(1, 100, 1, 1),
            ProcessUtilization(1, 300, 1, 1),
        ]
        taped.nvml.utilization_samples(gpu, 200)
        taped.nvml.process_utilization(gpu, 200)
        _, replay, _ = taped.replay()
        replay.open()
        again = replay.device_by_uuid(GPU)
        assert replay.utilization_samples(again, 200) == rows, "stale rows too, where the question is the same"
        assert replay.utilization_samples(again, 250) == rows[1:]
        assert [row.timestamp_us for row in replay.process_utilization(again, 250)] == [300]
        assert len(replay.process_utilization(again, 200)) == 2


def test_codes_before_the_first_reading_are_unknown_and_stay_after_a_failed_one() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        gpu = taped.nvml.device_by_uuid(GPU)
        batch = taped.nvml.fields(gpu, FIELDS)
        assert batch.fields == FIELDS
        taped.inner.answers["batch"] = ([1, 2.5, None], [0, 0, 3])
        batch.read()
        tape.clock.step(1.0)
        tape.recorder.mark(gpu_pass(GPU), tape.clock.now_s())
        taped.inner.errors["batch"] = Code.TIMEOUT
        with pytest.raises(NvmlError):
            batch.read()
        _, replay, clock = taped.replay()
        replay.open()
        again = replay.fields(replay.device_by_uuid(GPU), FIELDS)
        assert again.codes() == [999] * 3
        assert again.read() == [1, 2.5, None]
        assert again.codes() == [0, 0, 3]
        clock.step(1.0)
        with pytest.raises(NvmlError):
            again.read()
        assert again.codes() == [0, 0, 3]


def test_gpm_readers_that_cannot_be_had_are_refused_again() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        gpu = taped.nvml.device_by_uuid(GPU)
        taped.inner.answers["gpm.read"] = GpmReading((1.0, None), (0, 3), 0.1)
        reader = taped.nvml.gpm(gpu, METRICS)
        reader.read()
        reader.reset()
        reader.close()
        assert not taped.inner.readers, "closed with it"
        tape.clock.step(1.0)
        tape.recorder.mark(gpu_pass(GPU), tape.clock.now_s())
        taped.inner.errors["gpm"] = Code.NO_PERMISSION
        with pytest.raises(NvmlError):
            taped.nvml.gpm(gpu, METRICS)
        _, replay, clock = taped.replay()
        replay.open()
        again = replay.device_by_uuid(GPU)
        replayed = replay.gpm(again, METRICS)
        assert replayed.metrics == METRICS
        assert replayed.read() == GpmReading((1.0, None), (0, 3), 0.1)
        replayed.reset()
        replayed.close()
        clock.step(1.0)
        with pytest.raises(NvmlError) as error:
            replay.gpm(again, METRICS)
        assert error.value.code == Code.NO_PERMISSION


def test_call_times_come_back_as_counts() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        gpu = device()
        taped.inner.answers[f"device:{GPU}"] = gpu
        taped.inner.calls.durations["nvmlInitWithFlags"] = [1, *[0] * len(CALL_BOUNDS), 700]
        taped.nvml.open()
        taped.nvml.device_by_uuid(GPU)
        row = gpu.calls.durations["nvmlDeviceGetUtilizationRates"] = [0] * (len(CALL_BOUNDS) + 2)
        for _ in range(3):
            tape.clock.step(2.0)
            row[1] += 2
            row[-1] += 50_000
            tape.recorder.flush()
        _, replay, clock = taped.replay()
        replay.open()
        again = replay.device_by_uuid(GPU)
        clock.step(4.5)
        with pytest.raises(NvmlError):
            replay.utilization(again)
        assert again.calls.durations["nvmlDeviceGetUtilizationRates"][1] == 4
        clock.step(10.0)
        with pytest.raises(NvmlError):
            replay.utilization(again)
        assert again.calls.durations["nvmlDeviceGetUtilizationRates"] == row
        assert replay.calls.durations["nvmlInitWithFlags"] == [1, *[0] * len(CALL_BOUNDS), 700]


def test_call_times_of_past_generations_are_counted_once(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "tape")
    taped = Taped(tape)
    old, new = device(), device()
    for each, count in ((old, 3), (new, 5)):
        each.calls = CallTimes()
        each.calls.durations["call"] = [count, *[0] * len(CALL_BOUNDS), 1]
    taped.inner.answers[f"device:{GPU}"] = old
    taped.nvml.open()
    taped.nvml.device_by_uuid(GPU)
    tape.clock.step(1.0)
    tape.recorder.flush()
    old.calls.durations["call"][0] = 4
    taped.nvml.open()
    taped.inner.answers[f"device:{GPU}"] = new
    taped.nvml.device_by_uuid(GPU)
    tape.recorder.flush()
    tape.recorder.flush()
    _, replay, clock = taped.replay()
    replay.open()
    again = replay.device_by_uuid(GPU)
    clock.step(2.0)
    with pytest.raises(NvmlError):
        replay.utilization(again)
    assert again.calls.durations["call"][0] == 4 + 5


def test_devices_that_nobody_uses_are_forgotten_and_their_calls_counted_once(tmp_path: Path) -> None:
    """Every scan makes new ones, of a lost GPU or a MIG instance; the one in use keeps its name."""
    tape = Tape(tmp_path / "tape")
    taped = Taped(tape)
    made: list[Device] = []

    def new() -> Device:
        made.append(device())
        made[-1].calls = CallTimes()
        made[-1].calls.durations["call"] = [1, *[0] * len(CALL_BOUNDS), 1]
        return made[-1]

    taped.inner.answers["device:other"] = new
    taped.inner.answers["utilization"] = Utilization(1, 2)
    taped.nvml.open()
    used = taped.nvml.device_by_uuid(GPU)
    for number in range(3 * MOST_DEVICES):
        taped.nvml.device_by_uuid("other")
        if number % 100 == 0:
            taped.nvml.utilization(used)
            tape.recorder.flush()
    assert taped.nvml.name(used) == GPU
    assert taped.nvml.name(made[-1]) == "other"
    assert taped.nvml.name(made[0]) == ""
    tape.recorder.flush()
    tape.recorder.flush()
    recording, _, _ = taped.replay()
    told: list[Calls] = []
    recording.on_calls = told.extend
    for _ in recording.passes():
        pass
    assert sum(calls.row[0] for calls in told if calls.function == "call") == 3 * MOST_DEVICES


def test_a_recording_without_nvml_has_no_library(tmp_path: Path) -> None:
    recording, clock = Tape(tmp_path / "tape").replay()
    nvml = ReplayNvml(recording, clock)
    with pytest.raises(NvmlError) as error:
        nvml.open()
    assert error.value.code == Code.LIBRARY_NOT_FOUND
    for ask in (lambda: nvml.device_by_uuid(GPU), lambda: nvml.device(0), nvml.device_count, nvml.driver, nvml.events):
        with pytest.raises(NvmlError):
            ask()


def test_what_was_never_asked_of_a_device_has_no_data() -> None:
    with new_tape() as tape:
        taped = Taped(tape)
        taped.nvml.open()
        taped.nvml.device_by_uuid(GPU)
        _, replay, _ = taped.replay()
        replay.open()
        gpu = replay.device_by_uuid(GPU)
        for name, (ask, _) in QUESTIONS.items():
            with pytest.raises(NvmlError) as error:
                ask(replay, gpu)
            assert error.value.code == Code.NO_DATA, name
        with pytest.raises(NvmlError):
            replay.events().register(gpu)
