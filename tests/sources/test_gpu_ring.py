from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.catalogue import GPU_BUSY_SECONDS, GPU_UTILIZATION_SAMPLES
from gpumon.host.nvml import Code, UtilizationSample
from gpumon.model import Distribution, Item, Reason, Rejection, Sample
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu_ring import RING, UtilizationRing
from gpumon.sources.gpu_state import GpuState
from tests.fake_port import FakeNvml, device

GPU = ("0", "GPU-a")


class Rig:
    def __init__(self) -> None:
        self.nvml = FakeNvml()
        self.capabilities = Capabilities("gpu 0")
        self.state = GpuState()
        self.ring = UtilizationRing(self.nvml, device(), GPU, self.capabilities, self.state)
        self.asked: list[int] = []

    def read(self, at_s: float, *samples: tuple[int, int]) -> list[Item]:
        def answer(since_us: int) -> list[UtilizationSample]:
            self.asked.append(since_us)
            return [UtilizationSample(*sample) for sample in samples]

        self.nvml.answers["utilization_samples"] = answer
        return self.ring.read(at_s)


def busy(items: list[Item]) -> float:
    (value,) = [item.value for item in items if isinstance(item, Sample) and item.metric is GPU_BUSY_SECONDS]
    assert isinstance(value, float)
    return value


def observed(items: list[Item]) -> int:
    (value,) = [item.value for item in items if isinstance(item, Sample) and item.metric is GPU_UTILIZATION_SAMPLES]
    assert isinstance(value, Distribution)
    return sum(value.counts)


def test_first_reading_counts_nothing_since_it_is_history() -> None:
    rig = Rig()
    items = rig.read(1000.0, (1_000_000, 100), (1_500_000, 100))
    assert (busy(items), observed(items)) == (0.0, 0)


def test_each_sample_weighs_the_time_since_the_one_before() -> None:
    rig = Rig()
    rig.read(1000.0, (1_000_000, 0))
    items = rig.read(1005.0, (1_200_000, 50), (2_200_000, 100), (2_300_000, 0))
    assert busy(items) == pytest.approx(0.2 * 0.5 + 1.0)
    assert observed(items) == 3
    assert rig.asked == [0, 1_000_000]


def test_order_in_the_ring_does_not_matter() -> None:
    rig = Rig()
    rig.read(1000.0, (1_000_000, 0))
    assert busy(rig.read(1005.0, (2_200_000, 100), (1_200_000, 50))) == pytest.approx(1.1)


def test_what_is_known_and_placeholders_at_zero_are_left_out() -> None:
    rig = Rig()
    rig.read(1000.0, (0, 0), (1_000_000, 0))
    items = rig.read(1005.0, (0, 100), (900_000, 100), (1_000_000, 100), (1_500_000, 100), (1_500_000, 100))
    assert busy(items) == pytest.approx(0.5)
    assert observed(items) == 1


@pytest.mark.parametrize("percent", [-1, 101, 0xFFFFFFFF, 2**63])
def test_a_share_above_the_whole_is_rejected_and_its_neighbours_count(percent: int) -> None:
    rig = Rig()
    rig.read(1000.0, (1_000_000, 0))
    items = rig.read(1005.0, (1_500_000, percent), (2_000_000, 100))
    assert Rejection(RING, Reason.OUT_OF_RANGE) in items
    assert busy(items) == pytest.approx(1.0)
    assert observed(items) == 1


def test_after_a_gap_one_sample_does_not_speak_for_all_of_it() -> None:
    rig = Rig()
    rig.read(1000.0, (1_000_000, 0))
    assert busy(rig.read(1020.0, (20_000_000, 100))) == 2.0


def test_nothing_newer_keeps_the_totals() -> None:
    rig = Rig()
    rig.read(1000.0, (1_000_000, 0))
    rig.read(1005.0, (2_000_000, 100))
    assert busy(rig.read(1010.0)) == 1.0


def test_a_clock_that_goes_back_is_followed_after_half_a_minute() -> None:
    rig = Rig()
    rig.read(1000.0, (9_000_000_000, 100))
    for at_s in (1005.0, 1030.0):
        assert busy(rig.read(at_s)) == 0.0
    rig.read(1035.0, (1_000_000, 100))
    assert busy(rig.read(1040.0, (2_000_000, 100))) == 1.0
    assert rig.asked == [0, 9_000_000_000, 9_000_000_000, 0, 1_000_000]


def test_totals_outlive_the_generation() -> None:
    rig = Rig()
    rig.read(1000.0, (1_000_000, 0))
    rig.read(1005.0, (2_000_000, 100))
    rig.ring = UtilizationRing(rig.nvml, device(), GPU, Capabilities("gpu 0"), rig.state)
    assert busy(rig.read(1010.0, (3_000_000, 100))) == 1.0
    assert busy(rig.read(1015.0, (4_000_000, 100))) == 2.0


def test_a_failure_gives_no_sample_since_a_standing_counter_would_say_idle() -> None:
    rig = Rig()
    rig.read(1000.0, (1_000_000, 0))
    rig.nvml.errors["utilization_samples"] = Code.UNKNOWN
    assert rig.ring.read(1005.0) == []
    assert rig.capabilities.supported(RING) is True


def test_without_a_ring_the_capability_says_who_must_integrate() -> None:
    rig = Rig()
    rig.nvml.errors["utilization_samples"] = Code.NOT_SUPPORTED
    assert rig.ring.read(1000.0) == []
    assert rig.capabilities.supported(RING) is False


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 10**8), st.integers(-5, 2**64 - 1)), max_size=8),
        max_size=8,
    )
)
def test_garbage_never_makes_busy_time_fall_or_pass_the_longest_sample(passes: list[list[tuple[int, int]]]) -> None:
    rig = Rig()
    before, at_s = 0.0, 1000.0
    for samples in passes:
        items = rig.read(at_s, *samples)
        assert before <= busy(items) <= before + 2.0 * len(samples)
        before, at_s = busy(items), at_s + 5.0
