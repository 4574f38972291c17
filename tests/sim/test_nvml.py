from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
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
from gpumon.sim.boards import MODELS
from gpumon.sim.nvml import SimNvml
from gpumon.sim.state import Rate
from tests.sim.nodes import GPUS, STARTED_S, clock_at, node, opened

ALL_LINKS = 0xFFFFFFFF
COUNTERS = [3, 4, 5, 6, 38, 74, 83, 94, 142, 143, 191, 197, 198, 269, 270, 271]
SUPPORTED = [
    *(1, 3, 4, 5, 6, 38, 45, 52, 59, 160, 74, 76, 77, 78, 79, 81, 269, 270, 271, 82, 83, 185, 186, 91, 94, 95),
    *(142, 143, 144, 145, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196, 197, 198, 230),
]


def _calls() -> list[Call]:
    groups = [value for value in vars(port).values() if isinstance(value, (tuple, dict))]
    nested = [item for group in groups for item in (group.values() if isinstance(group, dict) else group)]
    return [item for item in [*vars(port).values(), *nested] if isinstance(item, Call)]


CALLS = _calls()
TEXTS = [call for call in vars(port).values() if isinstance(call, TextCall)]


def refusal(ask: Callable[[], object]) -> Code:
    with pytest.raises(NvmlError) as error:
        ask()
    return Code(error.value.code)


def test_the_simulation_is_the_whole_port() -> None:
    nvml: Nvml = SimNvml(node(), clock_at(0))
    for name in (name for name in dir(Nvml) if not name.startswith("_")):
        assert hasattr(nvml, name), name


@pytest.mark.parametrize("model", MODELS)
def test_every_call_is_answered_or_never_will_be(model: str) -> None:
    nvml = opened(node(model=model), clock_at(3.0))
    for call in CALLS:
        for index in range(nvml.device_count()):
            device = nvml.device(index)
            code = Code.SUCCESS
            answers: tuple[int, ...] = ()
            try:
                answers = nvml.numbers(device, call)
            except NvmlError as error:
                code = Code(error.code)
            if code is not Code.SUCCESS:
                absent_link = call in NVLINK_STATES[MODELS[model].nvlinks :]
                assert code in ({Code.INVALID_ARGUMENT} if absent_link else NEVER), call.name
                continue
            assert len(answers) == len(call.outs)
            assert nvml.number(device, call) == answers[0]
            assert all(0 <= answer < 1 << 64 for answer in answers)


def test_calls_an_h200_answers() -> None:
    nvml = opened(node(), clock_at(3.0))
    refused = set()
    for call in CALLS:
        try:
            nvml.numbers(nvml.device(0), call)
        except NvmlError:
            refused.add(call.name)
    assert refused == {
        "fans",
        *(f"fan_{i}" for i in range(8)),
        *(f"nvlink_state_{i}" for i in range(18, 36)),
        *(f"threshold_{limit}" for limit in ("shutdown", "slowdown", "memory_max", "gpu_max")),
    }


def test_every_method_of_the_port_answers_for_every_gpu() -> None:
    world, clock = node("kind: gpu_contention, at_s: 2, for_s: 20, gpu: 1"), clock_at(10.0)
    nvml = opened(world, clock)
    assert nvml.driver().driver_version == "590.48.01"
    for index in range(GPUS):
        device = nvml.device(index)
        uuid = world.boards[index].uuid
        assert [nvml.text(device, call) for call in TEXTS] == ["NVIDIA H200", uuid, "96.00.D0.00.03"]
        assert nvml.device_by_uuid(uuid).index == index
        assert nvml.pci_bus_id(device) == world.boards[index].bdf
        memory = nvml.memory(device)
        assert memory.reserved is not None
        assert memory.used + memory.free + memory.reserved == memory.total == 143_771 << 20
        bar1 = nvml.bar1(device)
        assert bar1.used + bar1.free == bar1.total
        assert 20 <= nvml.temperature(device) <= 90
        assert nvml.temperature_margin(device) == 87 - nvml.temperature(device)
        assert 0 <= nvml.utilization(device).memory <= nvml.utilization(device).gpu <= 100
        assert nvml.gpm_supported(device)
        assert len(nvml.processes(device, "compute")) == (2 if index == 1 else 1)
        assert nvml.processes(device, "graphics") == nvml.processes(device, "mps") == []
        assert refusal(partial(nvml.mig_device, device, 0)) is Code.NOT_FOUND


def test_a_board_without_gpm_says_so() -> None:
    nvml = opened(node(model="a100"), clock_at(1.0))
    device = nvml.device(0)
    assert not nvml.gpm_supported(device)
    assert refusal(lambda: nvml.gpm(device, [2])) is Code.NOT_SUPPORTED
    assert nvml.fields(device, [Field(91)]).read() == [12]


def test_nothing_answers_before_open_or_after_close() -> None:
    nvml = SimNvml(node(), clock_at(0))
    assert refusal(nvml.device_count) is Code.UNINITIALIZED
    nvml.close()
    nvml.open()
    device = nvml.device(0)
    nvml.close()
    with pytest.raises(StaleDeviceError):
        nvml.memory(device)


def test_a_device_of_an_earlier_generation_is_stale_in_every_part_made_of_it() -> None:
    nvml = opened(node(), clock_at(0))
    device = nvml.device(0)
    batch, gpm, waiting = nvml.fields(device, [Field(83)]), nvml.gpm(device, [2]), nvml.events()
    nvml.close()
    nvml.open()
    assert nvml.generation == 2
    for use in (batch.read, gpm.read, lambda: nvml.temperature(device), lambda: waiting.register(device)):
        with pytest.raises(StaleDeviceError):
            use()


@pytest.mark.parametrize("index", [-1, GPUS])
def test_a_gpu_that_is_not_there_is_refused(index: int) -> None:
    nvml = opened(node(), clock_at(0))
    assert refusal(lambda: nvml.device(index)) is Code.INVALID_ARGUMENT


def test_an_unknown_uuid_is_not_found() -> None:
    nvml = opened(node(), clock_at(0))
    assert refusal(lambda: nvml.device_by_uuid("GPU-none")) is Code.NOT_FOUND


def test_fields_answer_as_an_h200_does() -> None:
    nvml = opened(node(), clock_at(11.0))
    retired = [29, 30, 31]
    wanted = [Field(number) for number in (*SUPPORTED, *retired, 4096)] + [Field(138, ALL_LINKS), Field(139, 3)]
    batch = nvml.fields(nvml.device(3), wanted)
    values = dict(zip(wanted, batch.read(), strict=True))
    assert batch.codes().count(Code.NOT_SUPPORTED) == 4
    assert [values[Field(number)] for number in (*retired, 4096)] == [None] * 4
    assert all(isinstance(values[Field(number)], int) for number in SUPPORTED)
    assert [values[Field(number)] for number in (193, 194, 195, 196)] == [-8, -2, 0, 0]
    one, of_all = values[Field(139, 3)], values[Field(138, ALL_LINKS)]
    assert one is not None
    assert of_all is not None
    assert of_all / one == pytest.approx(18, rel=0.02)


@settings(max_examples=20)  # each makes a world
@given(st.integers(0, GPUS - 1), st.lists(st.floats(0, 5), min_size=1, max_size=6))
def test_counter_fields_never_fall(index: int, steps_s: list[float]) -> None:
    clock = clock_at(1.0)
    nvml = opened(node("kind: ecc_corrected, at_s: 3, for_s: 20, gpu: 1, strength: 2"), clock)
    batch = nvml.fields(nvml.device(index), [*map(Field, COUNTERS), Field(138, ALL_LINKS), Field(139, ALL_LINKS)])
    before = batch.read()
    for step_s in steps_s:
        clock.step(step_s)
        now = batch.read()
        for old, new in zip(before, now, strict=True):
            assert old is not None
            assert new is not None
            assert new >= old > -1
        before = now


@settings(max_examples=20)  # each makes a world
@given(st.integers(0, GPUS - 1), st.floats(0, 10), st.floats(0.1, 10))
def test_energy_power_bytes_and_gpm_agree(index: int, story_s: float, length_s: float) -> None:
    clock = clock_at(story_s)
    nvml = opened(node(), clock)
    device = nvml.device(index)
    batch, gpm = nvml.fields(device, [Field(83), Field(197), Field(138, ALL_LINKS)]), nvml.gpm(device, [20, 61])
    assert gpm.read() is None
    before = batch.read()
    clock.step(length_s)
    after, reading = batch.read(), gpm.read()
    assert reading is not None
    assert reading.interval_s == pytest.approx(length_s)
    grown = [int(new or 0) - int(old or 0) for old, new in zip(before, after, strict=True)]
    assert 60 <= grown[0] / 1000 / reading.interval_s <= 710
    assert grown[1] / length_s == pytest.approx((reading.values[0] or 0) * (1 << 20), rel=1e-3, abs=20)
    assert grown[2] / length_s == pytest.approx((reading.values[1] or 0) * 1024, rel=1e-3, abs=20)


def test_average_power_is_the_slope_of_energy_over_a_second() -> None:
    clock = clock_at(10.0)
    nvml = opened(node(), clock)
    batch = nvml.fields(nvml.device(2), [Field(83), Field(185)])
    before, _ = batch.read()
    clock.step(1.0)
    after, average_mw = batch.read()
    assert average_mw == pytest.approx((after or 0) - (before or 0), abs=2)
    assert average_mw == nvml.number(nvml.device(2), port.POWER_USAGE)


def test_gpm_knows_which_metrics_there_are_and_needs_time_to_pass() -> None:
    clock = clock_at(10.0)
    nvml = opened(node(), clock)
    gpm = nvml.gpm(nvml.device(0), [1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21, 60, 61, 30])
    assert gpm.read() is None
    assert refusal(gpm.read) is Code.INVALID_ARGUMENT
    clock.step(0.1)
    reading = gpm.read()
    assert reading is not None
    assert reading.codes == (*[Code.SUCCESS] * 13, Code.NOT_SUPPORTED)
    assert reading.values[-1] is None
    assert all(value is not None and 0 <= value < 100.001 for value in reading.values[:9])
    assert reading.values[6] == 0  # nobody computes in double precision
    gpm.reset()
    clock.step(0.1)
    assert gpm.read() is None
    gpm.close()


@settings(max_examples=20)  # each makes a world
@given(st.integers(0, GPUS - 1), st.floats(0, 15), st.floats(0.1, 2))
def test_gpm_activity_is_the_growth_of_the_integral(index: int, story_s: float, length_s: float) -> None:
    clock, world = clock_at(story_s), node()
    nvml = opened(world, clock)
    gpm = nvml.gpm(nvml.device(index), [2, 10, 13])
    gpm.read()
    before = world.gpu(index, clock.now_s())
    totals = [before.total(rate) for rate in (Rate.SM, Rate.DRAM, Rate.TENSOR)]
    clock.step(length_s)
    reading = gpm.read()
    assert reading is not None
    after = world.gpu(index, clock.now_s())
    sm, dram, tensor = (
        (after.total(rate) - old) / reading.interval_s
        for rate, old in zip((Rate.SM, Rate.DRAM, Rate.TENSOR), totals, strict=True)
    )
    assert reading.values == pytest.approx((100 * sm, 100 * dram, 7 * sm + 6 * tensor), abs=1e-6)


def test_the_utilization_ring_holds_ten_seconds_at_7_hz_and_tells_each_sample_once() -> None:
    clock = clock_at(15.0)
    nvml = opened(node(), clock)
    device = nvml.device(0)
    whole = nvml.utilization_samples(device, 0)
    assert len(whole) == 72
    assert whole[-1].timestamp_us - whole[0].timestamp_us == pytest.approx(71e6 / 7, abs=2)
    assert all(0 <= sample.value <= 100 for sample in whole)
    assert nvml.utilization(device).gpu == whole[-1].value
    assert nvml.utilization_samples(device, whole[-1].timestamp_us) == []
    clock.step(1.0)
    newer = nvml.utilization_samples(device, whole[-1].timestamp_us)
    assert len(newer) == 7


def test_process_utilization_names_who_worked_since_then() -> None:
    world, clock = node("kind: gpu_contention, at_s: 5, for_s: 20, gpu: 1, strength: 0.4"), clock_at(15.0)
    nvml = opened(world, clock)
    rows = nvml.process_utilization(nvml.device(1), 0)
    assert {row.pid for row in rows} == {process.pid for process in nvml.processes(nvml.device(1), "compute")}
    sm = {row.pid: row.sm for row in rows}
    guest = next(task.pid for task in world.gpu_tasks(1, clock.now_s()) if task.server == "job")
    assert sm[guest] / sum(sm.values()) == pytest.approx(0.4, abs=0.05)
    assert sum(sm.values()) <= 100
    assert nvml.process_utilization(nvml.device(1), rows[0].timestamp_us) == []
    (alone,) = nvml.process_utilization(nvml.device(0), 0)
    assert alone.pid == nvml.processes(nvml.device(0), "compute")[0].pid


def test_the_xid_comes_at_its_time_and_once() -> None:
    world, clock = node("kind: xid, at_s: 20, gpu: 2, strength: 43"), clock_at(17.5)
    nvml = opened(world, clock)
    waiting = nvml.events()
    for index in range(GPUS):
        assert waiting.register(nvml.device(index))
    assert waiting.wait(1000) is None
    assert waiting.wait(1000) is None
    assert clock.now_s() == pytest.approx(STARTED_S + 19.5)
    assert waiting.wait(1000) == Event(world.boards[2].uuid, EVENT_XID, 43)
    assert clock.now_s() == pytest.approx(STARTED_S + 20)
    assert waiting.wait(1000) is None
    waiting.close()
    assert waiting.wait(10) is None


def test_xids_of_one_moment_all_come() -> None:
    world, clock = node("kind: ecc_uncorrected, at_s: 5, gpu: 0"), clock_at(4.0)
    nvml = opened(world, clock)
    waiting = nvml.events()
    waiting.register(nvml.device(0))
    clock.step(3.0)
    xids = []
    while (event := waiting.wait(0)) is not None:
        xids.append(event.data)
    assert sorted(xids) == sorted(event.xid for event in world.xids(STARTED_S, clock.now_s()))
    assert len(xids) == 2


def test_what_happened_before_registration_or_elsewhere_is_not_told() -> None:
    clock = clock_at(9.0)
    nvml = opened(node("kind: xid, at_s: 10, gpu: 2, strength: 43"), clock)
    others, late = nvml.events(), nvml.events()
    others.register(nvml.device(0))
    clock.step(2)
    late.register(nvml.device(2))
    assert others.wait(1000) is None
    assert late.wait(1000) is None


def test_every_call_is_counted_and_timed_on_its_device() -> None:
    nvml = opened(node(), clock_at(1))
    device = nvml.device(0)
    for _ in range(3):
        nvml.memory(device)
    assert refusal(lambda: nvml.number(device, port.FANS)) is Code.NOT_SUPPORTED
    nvml.fields(device, [Field(83)]).read()
    calls = device.calls.durations
    assert set(calls) == {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetNumFans", "nvmlDeviceGetFieldValues"}
    row = calls["nvmlDeviceGetMemoryInfo_v2"]
    assert len(row) == len(CALL_BOUNDS) + 2
    assert sum(row[:-1]) == 3
    mean_s = row[-1] / 3 / 1e9
    bucket = next(place for place, count in enumerate(row) if count)
    assert CALL_BOUNDS[bucket - 1] < mean_s <= CALL_BOUNDS[bucket]
    assert device.calls.name is None
    assert set(nvml.calls.durations) == {"nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2"}


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_lost_gpu_answers_every_call_with_that_and_its_neighbours_go_on() -> None:
    world, clock = node("kind: gpu_lost, at_s: 5, for_s: 10, gpu: 1"), clock_at(4.0)
    nvml = opened(world, clock)
    device, other = nvml.device(1), nvml.device(0)
    batch, gpm, waiting = nvml.fields(device, [Field(83)]), nvml.gpm(device, [2]), nvml.events()
    gpm.read()
    waiting.register(device)
    clock.step(2.0)
    uuid = world.boards[1].uuid
    asks: list[Callable[[], object]] = [
        lambda: nvml.memory(device),
        lambda: nvml.bar1(device),
        lambda: nvml.utilization(device),
        lambda: nvml.temperature(device),
        lambda: nvml.number(device, port.REASONS),
        lambda: nvml.text(device, port.UUID),
        lambda: nvml.processes(device, "compute"),
        lambda: nvml.device(1),
        lambda: nvml.device_by_uuid(uuid),
        batch.read,
        gpm.read,
    ]
    for ask in asks:
        assert refusal(ask) is Code.GPU_IS_LOST
    # The error that came first is told before the waiting fails.
    assert waiting.wait(1000) == Event(uuid, EVENT_XID, 79)
    assert refusal(lambda: waiting.wait(1000)) is Code.GPU_IS_LOST
    assert nvml.device_count() == GPUS
    assert nvml.memory(other).used > 0
    clock.step(10.0)
    assert nvml.device_by_uuid(uuid).index == 1


@pytest.mark.parametrize(
    ("kind", "code"),
    [("driver_restart", Code.DRIVER_NOT_LOADED), ("driver_mismatch", Code.LIB_RM_VERSION_MISMATCH)],
)
def test_without_its_driver_nothing_answers(kind: str, code: Code) -> None:
    world, clock = node(f"kind: {kind}, at_s: 5, for_s: 10"), clock_at(4.0)
    nvml = opened(world, clock)
    device, waiting = nvml.device(0), nvml.events()
    waiting.register(device)
    clock.step(2.0)
    asks: list[Callable[[], object]] = [
        lambda: nvml.memory(device),
        lambda: nvml.device(0),
        lambda: nvml.device_by_uuid(world.boards[0].uuid),
        nvml.device_count,
        nvml.driver,
        nvml.events,
        lambda: waiting.wait(0),
    ]
    for ask in asks:
        assert refusal(ask) is code
    nvml.close()
    assert refusal(nvml.open) is code
    assert nvml.generation == 1
    clock.step(10.0)
    nvml.open()
    assert nvml.device_count() == GPUS


def test_a_degraded_link_shows_in_generation_width_and_replays() -> None:
    clock = clock_at(4.0)
    nvml = opened(node("kind: pcie_degraded, at_s: 5, for_s: 20, gpu: 0, strength: 6"), clock)
    device = nvml.device(0)
    replays = nvml.fields(device, [Field(94)])
    (before,) = replays.read()
    assert nvml.number(device, port.PCIE_GENERATIONS["current"]) == 5
    clock.step(10.0)
    assert nvml.number(device, port.PCIE_GENERATIONS["current"]) == 1
    assert nvml.number(device, port.PCIE_WIDTHS["current"]) == 4
    assert nvml.number(device, port.PCIE_WIDTHS["max"]) == 16
    (after,) = replays.read()
    assert (after or 0) > (before or 0)


def test_lost_nvlinks_are_inactive_and_the_others_count_errors() -> None:
    clock = clock_at(4.0)
    nvml = opened(node("kind: nvlink_degraded, at_s: 5, for_s: 20, gpu: 1, strength: 9"), clock)
    device = nvml.device(1)
    errors = nvml.fields(device, [Field(38)])
    (before,) = errors.read()
    clock.step(10.0)
    assert sum(nvml.number(device, call) for call in NVLINK_STATES[:18]) == 9
    (after,) = errors.read()
    assert (after or 0) > (before or 0)


def test_a_lowered_power_cap_shows_in_the_limit_and_in_the_reasons() -> None:
    clock = clock_at(4.0)
    nvml = opened(node("kind: power_throttle, at_s: 5, for_s: 20, gpu: 1, strength: 0.6"), clock)
    device = nvml.device(1)
    capped = nvml.fields(device, [Field(74), Field(190)])
    before = capped.read()
    clock.step(15.0)
    after = capped.read()
    assert nvml.number(device, port.POWER_LIMITS["enforced"]) == after[1] == 280_000
    assert nvml.number(device, port.POWER_LIMITS["default"]) == before[1] == 700_000
    assert (after[0] or 0) > (before[0] or 0)


def test_row_remapping_shows_in_fields_and_in_the_call() -> None:
    clock = clock_at(6.0)
    nvml = opened(node("kind: row_remap_pending, at_s: 5, for_s: 20, gpu: 0, strength: 2"), clock)
    device = nvml.device(0)
    rows = nvml.fields(device, [Field(142), Field(143), Field(144), Field(145)]).read()
    assert tuple(rows) == nvml.numbers(device, port.REMAPPED_ROWS)
    assert rows[2] == 1
    assert rows[3] == 0
