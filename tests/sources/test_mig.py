from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.host.nvml import Bar1, Code, GpmReading, Memory, NvmlError
from gpumon.model import Item, Metric, Miss, Reason, Rejection, Sample
from gpumon.sources.capabilities import GONE, Capabilities
from gpumon.sources.gpu_state import GpuState
from gpumon.sources.mig import GPM_PATIENCE, RESCAN_S, Mig, profile_of
from tests.fake_port import GIB, FakeNvml, device

GPU = ("0", "GPU-a")
A, B = "MIG-aaaa", "MIG-bbbb"
CODES = [*(code for code in Code if code is not Code.SUCCESS), 31]
PERCENT = {1: 10.0, 2: 20.0, 3: 30.0, 5: 50.0, 10: 100.0}


def reading(handle: str, metrics: tuple[int, ...]) -> GpmReading:
    return GpmReading(tuple(PERCENT[metric] for metric in metrics), (0,) * len(metrics), 1.0)


def two_instances() -> FakeNvml:
    """Slots 0 and 2 hold an instance each, the others are holes."""
    nvml = FakeNvml()
    nvml.answers |= {
        "mig_mode": (1, 1),
        "mig_device:0": (A, 1, 0),
        "mig_device:2": (B, 5, 0),
        f"{A}/name": "NVIDIA H200 MIG 3g.71gb",
        f"{B}/name": "NVIDIA H200 MIG 1g.18gb+me",
        f"{A}/memory": Memory(70 * GIB, 20 * GIB, 49 * GIB, GIB),
        f"{B}/memory": Memory(17 * GIB, 2 * GIB, 15 * GIB, None),
        f"{A}/bar1": Bar1(128 * GIB, GIB, 127 * GIB),
        f"{B}/bar1": Bar1(32 * GIB, 2 * GIB, 30 * GIB),
        "gpm.read": reading,
    }
    return nvml


class Rig:
    def __init__(self, nvml: FakeNvml | None = None) -> None:
        self.nvml = nvml or two_instances()
        self.state = GpuState()
        self.capabilities = Capabilities("gpu 0")
        self.source = Mig(self.nvml, device(), GPU, self.capabilities, self.state)

    def read(self, at_s: float) -> list[Item]:
        return self.source.read(at_s)


def values(items: list[Item], metric: Metric) -> dict[tuple[str, ...], Any]:
    """By uuid, then the labels after MIG's own."""
    series = {
        (item.labels[0], *item.labels[5:]): item.value
        for item in items
        if isinstance(item, Sample) and item.metric is metric
    }
    assert len(series) == sum(isinstance(item, Sample) and item.metric is metric for item in items)
    return series


def misses(items: list[Item]) -> list[Miss]:
    return [item for item in items if isinstance(item, Miss)]


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "1g.5gb"),
        ("NVIDIA H200 MIG 1g.18gb+me", "1g.18gb+me"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", "1c.3g.40gb"),
        ("NVIDIA H200", ""),
        ("MIG", ""),
        ("NVIDIA H200 MIG ", ""),
        ("NVIDIA H200 MIG 1g.5gb\n{}", ""),
        ("", ""),
    ],
)
def test_profile_is_what_the_name_ends_with(name: str, profile: str) -> None:
    assert profile_of(name) == profile


@given(st.text())
def test_any_name_gives_a_profile_of_plain_characters_or_none(name: str) -> None:
    assert all(c.isalnum() or c in "._+-" for c in profile_of(name))


def test_instances_are_found_over_holes_with_all_they_have() -> None:
    items = Rig().read(1000.0)
    infos = [item.labels for item in items if isinstance(item, Sample) and item.metric is catalogue.MIG_INFO]
    assert infos == [
        (A, "GPU-a", "1", "0", "3g.71gb", "0", "NVIDIA H200 MIG 3g.71gb"),
        (B, "GPU-a", "5", "0", "1g.18gb+me", "0", "NVIDIA H200 MIG 1g.18gb+me"),
    ]
    assert values(items, catalogue.MIG_MEMORY) == {
        (A, "used"): 20 * GIB,
        (A, "free"): 49 * GIB,
        (A, "reserved"): GIB,
        (B, "used"): 2 * GIB,
        (B, "free"): 15 * GIB,
    }
    assert values(items, catalogue.MIG_BAR1) == {
        (A, "used"): GIB,
        (A, "free"): 127 * GIB,
        (B, "used"): 2 * GIB,
        (B, "free"): 30 * GIB,
    }
    assert misses(items) == []


def test_activity_comes_as_ratios_and_as_integrals() -> None:
    rig = Rig()
    rig.read(1000.0)
    items = rig.read(1001.0)
    for metric, ratio in (
        (catalogue.MIG_GRAPHICS_ACTIVE, 0.1),
        (catalogue.MIG_SM_ACTIVE, 0.2),
        (catalogue.MIG_SM_OCCUPANCY, 0.3),
        (catalogue.MIG_TENSOR_ACTIVE, 0.5),
        (catalogue.MIG_DRAM_ACTIVE, 1.0),
    ):
        assert values(items, metric) == {(A,): ratio, (B,): ratio}
    assert values(items, catalogue.MIG_SM_ACTIVE_SECONDS) == {(A,): 0.4, (B,): 0.4}
    assert values(items, catalogue.MIG_DRAM_ACTIVE_SECONDS) == {(A,): 2.0, (B,): 2.0}


def test_integrals_outlive_the_generation() -> None:
    rig = Rig()
    rig.read(1000.0)
    rig.source.close()
    assert rig.nvml.readers == set()
    again = Mig(rig.nvml, device(), GPU, Capabilities("gpu 0"), rig.state)
    assert values(again.read(1060.0), catalogue.MIG_SM_ACTIVE_SECONDS) == {(A,): 0.4, (B,): 0.4}


def test_a_gpu_that_has_no_mig_is_asked_once() -> None:
    rig = Rig(FakeNvml())
    rig.nvml.errors["mig_mode"] = Code.NOT_SUPPORTED
    for at_s in (1000.0, 1001.0, 1002.0):
        assert [item for item in rig.read(at_s) if isinstance(item, Sample)] == []
    assert rig.nvml.log == ["mig_mode"]


def test_with_mig_off_only_the_mode_is_asked() -> None:
    rig = Rig(FakeNvml())
    assert rig.read(1000.0) == []
    assert rig.read(1001.0) == []
    assert rig.nvml.log == ["mig_mode", "mig_mode"]


def test_empty_slots_are_looked_at_every_few_seconds_and_instances_always() -> None:
    rig = Rig()
    for tick in range(5):
        rig.read(1000.0 + tick)
    assert rig.nvml.log.count("mig_device:1") == 1
    assert rig.nvml.log.count("uuid") == 2 + 2 * 4
    rig.read(1000.0 + RESCAN_S)
    assert rig.nvml.log.count("mig_device:1") == 2


def test_a_slot_given_to_another_instance_with_the_same_ids_starts_anew() -> None:
    rig = Rig()
    rig.read(1000.0)
    (old,) = [reader for reader in rig.nvml.readers if reader.device.handle == A]
    new = "MIG-cccc"
    # The old handle now stands for the new instance, as after a reconfiguration to the same layout.
    rig.nvml.answers |= {
        f"{A}/uuid": new,
        "mig_device:0": (new, 1, 0),
        f"{new}/name": "NVIDIA H200 MIG 3g.71gb",
        f"{new}/memory": Memory(70 * GIB, GIB, 69 * GIB, None),
        f"{new}/bar1": Bar1(128 * GIB, GIB, 127 * GIB),
    }
    items = rig.read(1001.0)
    assert {instance.uuid for instance in rig.source.instances()} == {new, B}
    assert old not in rig.nvml.readers
    assert len(rig.nvml.readers) == 2
    assert values(items, catalogue.MIG_SM_ACTIVE_SECONDS) == {(new,): 0.2, (B,): 0.4}
    assert A not in rig.state.mig_active_s


def test_an_instance_that_moves_to_another_slot_keeps_its_integral() -> None:
    rig = Rig()
    rig.read(1000.0)
    del rig.nvml.answers["mig_device:0"]
    rig.nvml.answers["mig_device:4"] = (A, 1, 0)
    items = rig.read(1000.0 + RESCAN_S)
    assert values(items, catalogue.MIG_SM_ACTIVE_SECONDS)[A,] == pytest.approx(0.4)
    assert len(rig.nvml.readers) == 2


def test_a_destroyed_instance_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.read(1000.0)
    del rig.nvml.answers["mig_device:0"]
    rig.nvml.errors[f"{A}/uuid"] = Code.NOT_FOUND
    items = rig.read(1001.0)
    assert {sample.labels[0] for sample in items if isinstance(sample, Sample)} == {B}
    assert {reader.device.handle for reader in rig.nvml.readers} == {B}
    assert rig.state.mig_active_s.keys() == {B}
    assert misses(items) == []


def test_mig_turned_off_closes_everything_and_asks_the_parent_anew() -> None:
    rig = Rig()
    rig.capabilities.note(999.0, "utilization", Code.NOT_SUPPORTED)
    rig.read(1000.0)
    rig.nvml.answers["mig_mode"] = (1, 0)
    assert len(rig.source.instances()) == 2  # only pending
    rig.nvml.answers["mig_mode"] = (0, 0)
    assert rig.read(1001.0) == []
    assert (rig.source.instances(), rig.nvml.readers, rig.state.mig_active_s) == ((), set(), {})
    assert rig.capabilities.wanted(1002.0, "utilization")


def test_mig_turned_on_is_noticed_within_a_pass() -> None:
    rig = Rig()
    rig.nvml.answers["mig_mode"] = (0, 1)
    assert rig.read(1000.0) == []
    rig.nvml.answers["mig_mode"] = (1, 1)
    assert len(values(rig.read(1001.0), catalogue.MIG_INFO)) == 2


def test_many_reconfigurations_leak_no_buffers_and_no_integrals() -> None:
    rig = Rig()
    for round_ in range(200):
        uuid = f"MIG-{round_}"
        rig.nvml.answers |= {
            "mig_device:0": (uuid, 1, 0),
            f"{uuid}/name": "x MIG 1g.5gb",
            f"{uuid}/memory": Memory(GIB, 0, GIB, None),
            f"{uuid}/bar1": Bar1(GIB, 0, GIB),
        }
        rig.read(1000.0 + RESCAN_S * round_)
        assert len(rig.nvml.readers) == 2
        assert len(rig.state.mig_active_s) == 2
    rig.source.close()
    assert rig.nvml.readers == set()


def test_denied_slots_are_a_miss_each_minute_and_the_visible_ones_stay() -> None:
    rig = Rig()
    rig.nvml.errors["mig_device:0"] = Code.NO_PERMISSION
    denied = 0
    for tick in range(60):
        items = rig.read(1000.0 + tick)
        denied += sum(miss.reason is Reason.DENIED for miss in misses(items))
        assert values(items, catalogue.MIG_INFO).keys() == {(B, "0", "NVIDIA H200 MIG 1g.18gb+me")}
    assert denied == 1


def test_a_slot_that_cannot_be_read_now_keeps_its_instance() -> None:
    rig = Rig()
    rig.read(1000.0)
    rig.nvml.errors["mig_device:0"] = Code.UNKNOWN
    items = rig.read(1000.0 + RESCAN_S)
    assert len(values(items, catalogue.MIG_INFO)) == 2
    assert [miss.reason for miss in misses(items)] == [Reason.UNAVAILABLE]


@pytest.mark.parametrize("most", [0xFFFFFFFF, 65])
def test_an_absurd_number_of_slots_is_bounded(most: int) -> None:
    rig = Rig()
    rig.nvml.answers["max_mig"] = most
    rig.read(1000.0)
    assert sum(name.startswith("mig_device:") for name in rig.nvml.log) == 64


# --- GPM ------------------------------------------------------------------------------------------------------------


def test_a_part_without_gpm_has_the_rest() -> None:
    rig = Rig()
    rig.nvml.answers["gpm_supported"] = False
    for at_s in (1000.0, 1001.0):
        items = rig.read(at_s)
    assert len(values(items, catalogue.MIG_MEMORY)) == 5
    assert values(items, catalogue.MIG_SM_ACTIVE) == {}
    assert rig.nvml.log.count("gpm_supported") == 2


def test_denied_gpm_frees_its_buffers_and_is_tried_again_after_a_minute() -> None:
    rig = Rig()
    rig.nvml.errors["gpm.read"] = Code.NO_PERMISSION
    for tick in range(60):
        items = rig.read(1000.0 + tick)
        assert rig.nvml.readers == set()
        assert len(values(items, catalogue.MIG_MEMORY)) == 5
    assert rig.nvml.log.count("gpm.read") == 2
    del rig.nvml.errors["gpm.read"]
    assert len(values(rig.read(1060.0), catalogue.MIG_SM_ACTIVE)) == 2


def test_a_metric_it_does_not_have_is_left_out_from_then_on() -> None:
    rig = Rig()
    asked: list[tuple[int, ...]] = []

    def without_tensor(handle: str, metrics: tuple[int, ...]) -> GpmReading:
        asked.append(metrics)
        codes = tuple(Code.NOT_SUPPORTED if metric == 5 else 0 for metric in metrics)
        return GpmReading(tuple(None if code else 50.0 for code in codes), codes, 1.0)

    rig.nvml.answers["gpm.read"] = without_tensor
    for tick in range(3):
        items = rig.read(1000.0 + tick)
    assert values(items, catalogue.MIG_TENSOR_ACTIVE) == {}
    assert values(items, catalogue.MIG_SM_ACTIVE) == {(A,): 0.5, (B,): 0.5}
    assert asked[-1] == (1, 2, 3, 10)
    assert len(rig.nvml.readers) == 2


@pytest.mark.parametrize("percent", [None, float("nan"), float("inf"), -0.1, 106.0, 140737488355328.0])
def test_an_impossible_activity_is_rejected_and_its_neighbours_stay(percent: float | None) -> None:
    rig = Rig()
    rig.nvml.answers["gpm.read"] = lambda handle, metrics: GpmReading((10.0, percent, 30.0, 50.0, 99.0), (0,) * 5, 1.0)
    items = rig.read(1000.0)
    assert values(items, catalogue.MIG_SM_ACTIVE) == {}
    assert values(items, catalogue.MIG_SM_ACTIVE_SECONDS) == {}
    assert values(items, catalogue.MIG_DRAM_ACTIVE) == {(A,): 0.99, (B,): 0.99}
    assert [item for item in items if isinstance(item, Rejection)] == [
        Rejection("mig_sm_active", Reason.OUT_OF_RANGE)
    ] * 2


def test_timing_noise_just_past_the_whole_is_the_whole() -> None:
    rig = Rig()
    rig.nvml.answers["gpm.read"] = lambda handle, metrics: GpmReading((101.0,) * 5, (0,) * 5, 1.0)
    assert values(rig.read(1000.0), catalogue.MIG_SM_ACTIVE) == {(A,): 1.0, (B,): 1.0}


def test_a_window_over_a_stall_says_nothing() -> None:
    rig = Rig()
    rig.nvml.answers["gpm.read"] = lambda handle, metrics: GpmReading((50.0,) * 5, (0,) * 5, 45.0)
    items = rig.read(1000.0)
    assert values(items, catalogue.MIG_SM_ACTIVE) == {}
    assert len(values(items, catalogue.MIG_MEMORY)) == 5


def test_the_first_gpm_sample_has_nothing_to_compare_with() -> None:
    rig = Rig()
    rig.nvml.answers["gpm.read"] = None
    items = rig.read(1000.0)
    assert values(items, catalogue.MIG_SM_ACTIVE) == {}
    assert misses(items) == []


def test_an_older_sample_that_only_fails_is_forgotten() -> None:
    rig = Rig()
    rig.read(1000.0)
    rig.nvml.errors["gpm.read"] = Code.UNKNOWN
    for tick in range(GPM_PATIENCE):
        rig.read(1001.0 + tick)
    assert {reader.resets for reader in rig.nvml.readers} == {1}


def test_buffers_that_cannot_be_freed_stop_nothing() -> None:
    rig = Rig()
    rig.read(1000.0)
    rig.nvml.errors["gpm.close"] = Code.UNKNOWN
    rig.source.close()
    assert rig.source.instances() == ()


# --- failures ------------------------------------------------------------------------------------------------------

OWN = {
    "memory": {catalogue.MIG_MEMORY},
    "bar1": {catalogue.MIG_BAR1},
    "name": set(),
    "uuid": set(),
    "mig_mode": set(),
    "max_mig": set(),
    "mig_device:1": set(),
    "mig_device:2": set(),
    "gpm_supported": set(),
    "gpm.read": {
        catalogue.MIG_GRAPHICS_ACTIVE,
        catalogue.MIG_SM_ACTIVE,
        catalogue.MIG_SM_OCCUPANCY,
        catalogue.MIG_TENSOR_ACTIVE,
        catalogue.MIG_DRAM_ACTIVE,
        catalogue.MIG_SM_ACTIVE_SECONDS,
        catalogue.MIG_DRAM_ACTIVE_SECONDS,
    },
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("question", OWN)
def test_a_question_of_one_instance_that_fails_leaves_the_other_and_its_own_rest(question: str, code: int) -> None:
    rig = Rig()
    everything = {(item.metric.name, item.labels) for item in rig.read(1000.0) if isinstance(item, Sample)}
    per_instance = question in ("memory", "bar1", "name", "uuid", "gpm.read")
    key = f"{B}/{question}" if per_instance else question
    rig.nvml.errors[key] = code
    if code in GONE and question not in ("name", "gpm_supported"):
        with pytest.raises(NvmlError):
            rig.read(1000.0 + RESCAN_S)
        return
    items = rig.read(1000.0 + RESCAN_S)
    got = {(item.metric.name, item.labels) for item in items if isinstance(item, Sample)}
    lost = everything - got
    assert all(labels[0] == B for _, labels in lost)
    vanishes = code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND)
    vanishes = vanishes or code in (Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED)
    if question in ("uuid", "mig_device:2") and vanishes:
        assert {labels[0] for _, labels in got} == {A}  # an instance without a device or a key is no instance
    elif question == "mig_mode":
        assert lost == set()
    else:
        assert {name for name, _ in lost} == {metric.name for metric in OWN[question]}
    rig.source.close()
    assert rig.nvml.readers == set()


@pytest.mark.parametrize("code", [code for code in CODES if code not in GONE])
@pytest.mark.parametrize("question", OWN)
def test_a_question_that_fails_from_the_start_raises_nothing(question: str, code: int) -> None:
    rig = Rig()
    rig.nvml.errors[question] = code
    for at_s in (1000.0, 1001.0, 1006.0):
        rig.read(at_s)
    rig.source.close()
    assert rig.nvml.readers == set()


def test_an_instance_without_a_name_is_watched_and_named_later() -> None:
    rig = Rig()
    rig.nvml.errors[f"{B}/name"] = Code.UNKNOWN
    assert len(values(rig.read(1000.0), catalogue.MIG_MEMORY)) == 5
    assert {instance.labels[4] for instance in rig.source.instances()} == {"3g.71gb", ""}
    del rig.nvml.errors[f"{B}/name"]
    rig.read(1000.0 + RESCAN_S)
    assert {instance.labels[4] for instance in rig.source.instances()} == {"3g.71gb", "1g.18gb+me"}


@pytest.mark.parametrize(
    "memory",
    [Memory((1 << 64) - 1, 0, 0, 0), Memory(GIB, 2 * GIB, 0, 0), Memory(GIB, (1 << 64) - 1, 0, None)],
)
def test_impossible_memory_is_rejected(memory: Memory) -> None:
    rig = Rig()
    rig.nvml.answers[f"{A}/memory"] = memory
    items = rig.read(1000.0)
    assert (A, "used") not in values(items, catalogue.MIG_MEMORY)
    assert (B, "used") in values(items, catalogue.MIG_MEMORY)
    assert Rejection("mig_memory", Reason.OUT_OF_RANGE) in items


def test_slots_past_the_end_are_dropped_when_the_gpu_has_fewer() -> None:
    rig = Rig()
    rig.read(1000.0)
    rig.nvml.answers["max_mig"] = 1
    rig.read(1000.0 + RESCAN_S)
    assert [instance.uuid for instance in rig.source.instances()] == [A]
    assert len(rig.nvml.readers) == 1


@pytest.mark.parametrize("code", sorted(GONE))
def test_what_is_gone_between_scans_is_raised(code: int) -> None:
    rig = Rig()
    rig.read(1000.0)
    rig.nvml.errors[f"{A}/uuid"] = code
    with pytest.raises(NvmlError):
        rig.read(1001.0)


def test_gpm_buffers_that_cannot_be_had_leave_the_rest() -> None:
    rig = Rig()
    rig.nvml.errors["gpm"] = Code.MEMORY
    items = rig.read(1000.0)
    assert len(values(items, catalogue.MIG_MEMORY)) == 5
    assert [miss.detail for miss in misses(items)] == ["MEMORY", "MEMORY"]
    del rig.nvml.errors["gpm"]
    assert len(values(rig.read(1001.0), catalogue.MIG_SM_ACTIVE)) == 2
