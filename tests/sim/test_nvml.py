from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.catalogue import CALL_BOUNDS
from gpumon.host import nvml as port
from gpumon.host.nvml import (
    EVENT_XID,
    NEVER,
    NVLINK_STATES,
    Call,
    Code,
    Event,
    Field,
    Nvml,
    NvmlError,
    StaleDeviceError,
    TextCall,
)
from gpumon.sim.nvml import SimNvml
from gpumon.sim.story import STORY_S, Kind, events
from gpumon.sim.workload import Rate
from tests.sim.nodes import STARTED_S, clock_at, opened, world

ALL_LINKS = 0xFFFFFFFF
COUNTERS = [3, 5, 74, 83, 94, 197, 198, 269, 270, 271]
SUPPORTED = [
    *(1, 3, 4, 5, 6, 38, 45, 52, 59, 160, 74, 76, 77, 78, 79, 81, 269, 270, 271, 82, 83, 185, 186, 91, 94, 95),
    *(142, 143, 144, 145, 193, 194, 195, 196, 197, 198, 230),
]


def _calls() -> list[Call]:
    groups = [value for value in vars(port).values() if isinstance(value, (tuple, dict))]
    nested = [item for group in groups for item in (group.values() if isinstance(group, dict) else group)]
    return [item for item in [*vars(port).values(), *nested] if isinstance(item, Call)]


CALLS = _calls()
TEXTS = [call for call in vars(port).values() if isinstance(call, TextCall)]


def test_the_simulation_is_the_whole_port() -> None:
    nvml: Nvml = SimNvml(world(), clock_at(0))
    for name in (name for name in dir(Nvml) if not name.startswith("_")):
        assert hasattr(nvml, name), name


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_every_call_is_answered_or_never_will_be(call: Call) -> None:
    nvml = opened(clock_at(33.0))
    for index in range(nvml.device_count()):
        device = nvml.device(index)
        code = Code.SUCCESS
        answers: tuple[int, ...] = ()
        try:
            answers = nvml.numbers(device, call)
        except NvmlError as error:
            code = Code(error.code)
        if code is not Code.SUCCESS:
            absent_link = call in NVLINK_STATES[18:]
            assert code in ({Code.INVALID_ARGUMENT} if absent_link else NEVER)
            continue
        assert len(answers) == len(call.outs)
        assert nvml.number(device, call) == answers[0]
        assert all(0 <= answer < 1 << 64 for answer in answers)


def test_calls_an_h200_answers() -> None:
    nvml = opened(clock_at(33.0))
    answered = set()
    for call in CALLS:
        try:
            nvml.numbers(nvml.device(0), call)
        except NvmlError:
            continue
        answered.add(call.name)
    refused = {call.name for call in CALLS} - answered
    assert refused == {
        "fans",
        *(f"fan_{i}" for i in range(8)),
        *(f"nvlink_state_{i}" for i in range(18, 36)),
        *(f"threshold_{limit}" for limit in ("shutdown", "slowdown", "memory_max", "gpu_max")),
    }


def test_every_method_of_the_port_answers_for_every_gpu() -> None:
    nvml = opened(clock_at(165.0))
    assert nvml.driver().driver_version == "590.48.01"
    for index in range(8):
        device = nvml.device(index)
        assert [nvml.text(device, call) for call in TEXTS] == [
            "NVIDIA H200",
            world().boards[index].uuid,
            "96.00.D0.00.03",
        ]
        assert nvml.device_by_uuid(world().boards[index].uuid).index == index
        assert nvml.pci_bus_id(device) == world().boards[index].bdf
        memory = nvml.memory(device)
        assert memory.reserved is not None
        assert memory.used + memory.free + memory.reserved == memory.total == 143_771 << 20
        bar1 = nvml.bar1(device)
        assert bar1.used + bar1.free == bar1.total
        assert 28 <= nvml.temperature(device) <= 90
        assert nvml.temperature_margin(device) == 87 - nvml.temperature(device)
        assert 0 <= nvml.utilization(device).memory <= nvml.utilization(device).gpu <= 100
        assert nvml.gpm_supported(device)
        assert len(nvml.processes(device, "compute")) == (2 if index == 5 else 1)
        assert nvml.processes(device, "graphics") == nvml.processes(device, "mps") == []
        with pytest.raises(NvmlError) as hole:
            nvml.mig_device(device, 0)
        assert hole.value.code == Code.NOT_FOUND


def test_nothing_answers_before_open_or_after_close() -> None:
    nvml = SimNvml(world(), clock_at(0))
    with pytest.raises(NvmlError) as error:
        nvml.device_count()
    assert error.value.code == Code.UNINITIALIZED
    nvml.close()
    nvml.open()
    device = nvml.device(0)
    nvml.close()
    with pytest.raises(StaleDeviceError):
        nvml.memory(device)


def test_a_device_of_an_earlier_generation_is_stale_in_every_part_made_of_it() -> None:
    clock = clock_at(0)
    nvml = opened(clock)
    device = nvml.device(0)
    batch, gpm, waiting = nvml.fields(device, [Field(83)]), nvml.gpm(device, [2]), nvml.events()
    nvml.close()
    nvml.open()
    assert nvml.generation == 2
    for use in (batch.read, gpm.read, lambda: nvml.temperature(device), lambda: waiting.register(device)):
        with pytest.raises(StaleDeviceError):
            use()


@pytest.mark.parametrize("index", [-1, 8])
def test_a_gpu_that_is_not_there_is_refused(index: int) -> None:
    with pytest.raises(NvmlError) as error:
        opened(clock_at(0)).device(index)
    assert error.value.code == Code.INVALID_ARGUMENT


def test_an_unknown_uuid_is_not_found() -> None:
    with pytest.raises(NvmlError) as error:
        opened(clock_at(0)).device_by_uuid("GPU-none")
    assert error.value.code == Code.NOT_FOUND


def test_fields_answer_as_an_h200_does() -> None:
    nvml = opened(clock_at(61.0))
    retired = [29, 30, 31]
    wanted = [Field(number) for number in (*SUPPORTED, *retired, 4096)] + [Field(138, ALL_LINKS), Field(139, 3)]
    batch = nvml.fields(nvml.device(3), wanted)
    values = dict(zip(wanted, batch.read(), strict=True))
    assert batch.codes().count(Code.NOT_SUPPORTED) == 4
    assert [values[Field(number)] for number in (*retired, 4096)] == [None] * 4
    assert all(values[Field(number)] is not None for number in SUPPORTED)
    assert [values[Field(number)] for number in (193, 194, 195, 196)] == [-8, -2, 0, 0]
    one, of_all = values[Field(139, 3)], values[Field(138, ALL_LINKS)]
    assert one is not None
    assert of_all is not None
    assert of_all / one == pytest.approx(18, rel=0.02)


@given(st.integers(0, 7), st.floats(0, 5000), st.floats(0, 400))
def test_counter_fields_never_fall(index: int, story_s: float, step_s: float) -> None:
    clock = clock_at(story_s)
    nvml = opened(clock)
    batch = nvml.fields(nvml.device(index), [*map(Field, COUNTERS), Field(138, ALL_LINKS), Field(139, ALL_LINKS)])
    before = batch.read()
    clock.step(step_s)
    for old, new in zip(before, batch.read(), strict=True):
        assert old is not None
        assert new is not None
        assert new >= old > -1


@given(st.integers(0, 7), st.floats(0, 3000), st.floats(0.1, 20))
def test_energy_power_and_gpm_agree(index: int, story_s: float, length_s: float) -> None:
    clock = clock_at(story_s)
    nvml = opened(clock)
    device = nvml.device(index)
    batch, gpm = nvml.fields(device, [Field(83), Field(197), Field(138, ALL_LINKS)]), nvml.gpm(device, [20, 61])
    assert gpm.read() is None
    before = batch.read()
    clock.step(length_s)
    after, reading = batch.read(), gpm.read()
    assert reading is not None
    assert reading.interval_s == pytest.approx(length_s)
    grown = [int(new or 0) - int(old or 0) for old, new in zip(before, after, strict=True)]
    mean_w = grown[0] / 1000 / reading.interval_s
    assert 68 - 0.1 <= mean_w <= 700
    assert grown[1] / length_s == pytest.approx((reading.values[0] or 0) * (1 << 20), rel=1e-3, abs=20)
    assert grown[2] / length_s == pytest.approx((reading.values[1] or 0) * 1024, rel=1e-3, abs=20)


def test_average_power_is_the_slope_of_energy_over_a_second() -> None:
    clock = clock_at(100.0)
    nvml = opened(clock)
    batch = nvml.fields(nvml.device(2), [Field(83), Field(185)])
    before, _ = batch.read()
    clock.step(1.0)
    after, average_mw = batch.read()
    assert average_mw == pytest.approx((after or 0) - (before or 0), abs=2)
    assert average_mw == nvml.number(nvml.device(2), port.POWER_USAGE)


def test_gpm_knows_which_metrics_there_are_and_needs_time_to_pass() -> None:
    clock = clock_at(100.0)
    nvml = opened(clock)
    gpm = nvml.gpm(nvml.device(4), [1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21, 60, 61, 30])
    assert gpm.read() is None
    with pytest.raises(NvmlError):
        gpm.read()
    clock.step(0.1)
    reading = gpm.read()
    assert reading is not None
    assert reading.codes == (*[Code.SUCCESS] * 13, Code.NOT_SUPPORTED)
    assert reading.values[-1] is None
    assert all(value is not None and 0 <= value < 100.001 for value in reading.values[:9])
    gpm.reset()
    clock.step(0.1)
    assert gpm.read() is None
    gpm.close()


@given(st.integers(0, 7), st.floats(0, 4000))
def test_gpm_activity_of_100_ms_is_the_mean_of_the_gauge(index: int, story_s: float) -> None:
    clock = clock_at(story_s)
    nvml = opened(clock)
    gpm = nvml.gpm(nvml.device(index), [2, 10])
    gpm.read()
    clock.step(0.1)
    reading = gpm.read()
    assert reading is not None
    moments = [world().gpu(index, STARTED_S + story_s + (i + 0.5) / 1000) for i in range(100)]
    assert reading.values[0] == pytest.approx(sum(m.rate(Rate.SM) for m in moments), abs=2.5)
    assert reading.values[1] == pytest.approx(sum(m.rate(Rate.DRAM) for m in moments), abs=2.5)


def test_the_utilization_ring_holds_ten_seconds_at_7_hz_and_tells_each_sample_once() -> None:
    clock = clock_at(100.0)
    nvml = opened(clock)
    device = nvml.device(0)
    whole = nvml.utilization_samples(device, 0)
    assert len(whole) == 72
    assert whole[-1].timestamp_us - whole[0].timestamp_us == pytest.approx(71e6 / 7, abs=2)
    assert nvml.utilization_samples(device, whole[-1].timestamp_us) == []
    clock.step(1.0)
    newer = nvml.utilization_samples(device, whole[-1].timestamp_us)
    assert len(newer) == 7
    assert {sample.value for sample in newer} == {100}


def test_a_burst_of_300_ms_is_in_the_ring_of_the_idle_gpu() -> None:
    (row, *_) = events(Kind.BURST, 7)
    nvml = opened(clock_at(row.end_s + 2))
    values = [sample.value for sample in nvml.utilization_samples(nvml.device(7), 0)]
    assert sum(values) / 100 / 7 == pytest.approx(0.3, abs=0.03)
    assert nvml.utilization(nvml.device(7)).gpu == 0


def test_process_utilization_names_who_worked_since_then() -> None:
    clock = clock_at(160.0)
    nvml = opened(clock)
    shared = nvml.process_utilization(nvml.device(5), 0)
    assert {row.pid for row in shared} == {process.pid for process in nvml.processes(nvml.device(5), "compute")}
    assert len(shared) == 2
    assert all(0 < row.sm <= 100 for row in shared)
    assert nvml.process_utilization(nvml.device(5), shared[0].timestamp_us) == []
    assert nvml.process_utilization(nvml.device(7), 0) == []


def test_the_xid_comes_at_its_time_and_once() -> None:
    (row,) = events(Kind.XID)
    clock = clock_at(row.start_s - 2.5)
    nvml = opened(clock)
    waiting = nvml.events()
    for index in range(8):
        assert waiting.register(nvml.device(index))
    assert waiting.wait(1000) is None
    assert waiting.wait(1000) is None
    assert clock.now_s() == pytest.approx(STARTED_S + row.start_s - 0.5)
    assert waiting.wait(1000) == Event(world().boards[row.gpu].uuid, EVENT_XID, 31)
    assert clock.now_s() == pytest.approx(STARTED_S + row.start_s)
    assert waiting.wait(1000) is None
    clock.step(STORY_S)
    assert waiting.wait(0) == Event(world().boards[row.gpu].uuid, EVENT_XID, 31)
    assert waiting.wait(0) is None
    waiting.close()
    assert waiting.wait(10) is None


def test_what_happened_before_registration_or_elsewhere_is_not_told() -> None:
    (row,) = events(Kind.XID)
    clock = clock_at(row.start_s - 1)
    nvml = opened(clock)
    others, late = nvml.events(), nvml.events()
    others.register(nvml.device(0))
    clock.step(2)
    late.register(nvml.device(row.gpu))
    assert others.wait(1000) is None
    assert late.wait(1000) is None


def test_every_call_is_counted_and_timed_on_its_device() -> None:
    nvml = opened(clock_at(10))
    device = nvml.device(0)
    for _ in range(3):
        nvml.memory(device)
    with pytest.raises(NvmlError):
        nvml.number(device, port.FANS)
    nvml.fields(device, [Field(83)]).read()
    calls = device.calls.durations
    assert set(calls) == {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetNumFans", "nvmlDeviceGetFieldValues"}
    row = calls["nvmlDeviceGetMemoryInfo_v2"]
    assert len(row) == len(CALL_BOUNDS) + 2
    assert sum(row[:-1]) == 3
    assert row[-1] > 0
    assert device.calls.name is None
    assert set(nvml.calls.durations) == {"nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2"}


def test_ecc_and_replays_trickle_only_where_the_story_says() -> None:
    clock = clock_at(0)
    nvml = opened(clock)
    batches = [nvml.fields(nvml.device(index), [Field(3), Field(94)]) for index in range(8)]
    before = [batch.read() for batch in batches]
    clock.step(STORY_S)
    grown = [
        [int(new or 0) - int(old or 0) for old, new in zip(was, batch.read(), strict=True)]
        for was, batch in zip(before, batches, strict=True)
    ]
    assert [row[0] for row in grown] == [0, 0, 0, 0, pytest.approx(15, abs=1), 0, 0, 0]
    assert [row[1] for row in grown] == [0, 0, pytest.approx(50, abs=1), 0, 0, 0, 0, 0]
