"""The XID ledger: each error once, whichever way and in whichever order it is told."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.model import GpuUuid, Reason, Rejection
from gpumon.sources.kernel_log import KernelXid
from gpumon.sources.xid import DISTINCT_MAX, GPUS_MAX, KnownGpu, XidLedger

A = KnownGpu("0", GpuUuid("GPU-a"), "0000:3b:00.0")
B = KnownGpu("1", GpuUuid("GPU-b"), "0000:5d:00.0")
OFFSET = 1_800_000_000.0


@pytest.fixture
def ledger() -> XidLedger:
    return XidLedger(lambda: [A, B], lambda at_s: at_s + OFFSET)


def counts(ledger: XidLedger, gpu: KnownGpu = A) -> dict[str, object]:
    """XIDs that happened."""
    return {
        sample.labels[2]: sample.value
        for sample in ledger.samples()
        if sample.metric is catalogue.GPU_XID_ERRORS and sample.labels[1] == gpu.uuid and sample.value
    }


def nvml(ledger: XidLedger, xid: int, at_s: float) -> None:
    ledger.nvml_event(A.uuid, xid, at_s)


def kernel(ledger: XidLedger, xid: int, at_s: float) -> None:
    ledger.kernel_event(KernelXid(A.pci_bus_id, xid), at_s)


def test_known_xids_are_there_at_zero_before_the_first_event(ledger: XidLedger) -> None:
    samples = ledger.samples()
    assert len(samples) == 2 * len(catalogue.XID_PRECREATED)
    assert {sample.value for sample in samples} == {0}
    assert {sample.metric for sample in samples} == {catalogue.GPU_XID_ERRORS}


def test_one_error_told_both_ways_counts_once(ledger: XidLedger) -> None:
    nvml(ledger, 79, 100.0)
    kernel(ledger, 79, 101.0)
    assert counts(ledger) == {"79": 1}
    assert counts(ledger, B) == {}


def test_the_order_of_telling_does_not_matter(ledger: XidLedger) -> None:
    kernel(ledger, 79, 100.0)
    nvml(ledger, 79, 99.5)
    assert counts(ledger) == {"79": 1}


def test_repeats_from_one_way_all_count(ledger: XidLedger) -> None:
    for at_s in (100.0, 100.3, 100.6):
        nvml(ledger, 31, at_s)
    assert counts(ledger) == {"31": 3}


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("nnnkkk"))))
def test_three_told_both_ways_are_three_in_every_order(ledger: XidLedger, order: tuple[str, ...]) -> None:
    for i, way in enumerate(order):
        (nvml if way == "n" else kernel)(ledger, 31, 100.0 + i / 10)
    assert counts(ledger) == {"31": 3}


@given(st.lists(st.sampled_from("nk"), max_size=40))
def test_within_the_window_the_count_is_that_of_the_way_that_told_more(order: list[str]) -> None:
    ledger = XidLedger(lambda: [A, B], lambda at_s: at_s)
    for i, way in enumerate(order):
        (nvml if way == "n" else kernel)(ledger, 31, 100.0 + i / 10)
    assert counts(ledger).get("31", 0) == max(order.count("n"), order.count("k"))


def test_the_same_xid_later_is_another_error(ledger: XidLedger) -> None:
    nvml(ledger, 79, 100.0)
    kernel(ledger, 79, 105.1)
    assert counts(ledger) == {"79": 2}


def test_another_xid_or_gpu_is_another_error(ledger: XidLedger) -> None:
    nvml(ledger, 79, 100.0)
    kernel(ledger, 48, 100.0)
    ledger.kernel_event(KernelXid(B.pci_bus_id, 79), 100.0)
    assert counts(ledger) == {"79": 1, "48": 1}
    assert counts(ledger, B) == {"79": 1}


def test_the_last_time_is_unix_time_of_the_newest(ledger: XidLedger) -> None:
    nvml(ledger, 79, 100.0)
    nvml(ledger, 79, 200.0)
    nvml(ledger, 79, 150.0)
    last = [s for s in ledger.samples() if s.metric is catalogue.GPU_XID_LAST]
    assert [(s.labels, s.value) for s in last] == [(("0", "GPU-a", "79"), OFFSET + 200.0)]


@pytest.mark.parametrize("xid", [0, -1, 1024, 2**32 - 1, 2**63])
def test_an_xid_that_cannot_be_is_rejected_and_not_counted(ledger: XidLedger, xid: int) -> None:
    nvml(ledger, xid, 100.0)
    kernel(ledger, xid, 100.0)
    assert counts(ledger) == {}
    assert ledger.take_rejections() == [Rejection("xid", Reason.OUT_OF_RANGE)] * 2
    assert ledger.take_rejections() == []


def test_999_stands_for_unknown_and_counts(ledger: XidLedger) -> None:
    nvml(ledger, 999, 100.0)
    assert counts(ledger) == {"999": 1}


def test_events_of_unknown_gpus_are_rejected(ledger: XidLedger) -> None:
    ledger.nvml_event(None, 79, 100.0)
    ledger.nvml_event(GpuUuid("GPU-x"), 79, 100.0)
    ledger.kernel_event(KernelXid("0000:ff:00.0", 79), 100.0)
    assert ledger.take_rejections() == [Rejection("xid_gpu", Reason.UNAVAILABLE)] * 3


def test_a_storm_of_bad_events_is_bounded(ledger: XidLedger) -> None:
    for _ in range(10_000):
        nvml(ledger, 0, 100.0)
    assert len(ledger.take_rejections()) == 256


def test_xids_past_the_budget_are_other(ledger: XidLedger) -> None:
    for xid in range(200, 400):
        nvml(ledger, xid, 100.0)
    own = DISTINCT_MAX - len(catalogue.XID_PRECREATED)
    found = counts(ledger)
    assert found["other"] == 200 - own
    assert len(found) == own + 1
    series = [s for s in ledger.samples() if s.metric is catalogue.GPU_XID_ERRORS and s.labels[1] == A.uuid]
    assert len(series) == 48
    nvml(ledger, 79, 500.0)
    assert counts(ledger)["79"] == 1


def test_a_lost_gpu_keeps_its_counts() -> None:
    gpus = [A, B]
    ledger = XidLedger(lambda: gpus, lambda at_s: at_s)
    nvml(ledger, 79, 100.0)
    gpus.remove(A)
    kernel(ledger, 79, 101.0)
    kernel(ledger, 79, 102.0)
    assert counts(ledger) == {"79": 2}


def test_an_index_that_changes_changes_the_label() -> None:
    gpus = [A]
    ledger = XidLedger(lambda: gpus, lambda at_s: at_s)
    nvml(ledger, 79, 100.0)
    gpus[0] = A._replace(gpu="5")
    assert {sample.labels[0] for sample in ledger.samples()} == {"5"}
    assert counts(ledger) == {"79": 1}


def test_gpus_that_come_and_go_for_ever_are_bounded() -> None:
    serial = itertools.count()
    ledger = XidLedger(lambda: [KnownGpu("0", GpuUuid(f"GPU-{next(serial)}"), "0000:01:00.0")], lambda at_s: at_s)
    for _ in range(3 * GPUS_MAX):
        ledger.samples()
    assert len({sample.labels[1] for sample in ledger.samples()}) == GPUS_MAX


def test_reading_as_a_source_gives_samples_and_rejections_once(ledger: XidLedger) -> None:
    nvml(ledger, 0, 100.0)
    assert Rejection("xid", Reason.OUT_OF_RANGE) in list(ledger.read(101.0))
    assert Rejection("xid", Reason.OUT_OF_RANGE) not in list(ledger.read(102.0))


def test_threads_lose_no_event(ledger: XidLedger) -> None:
    def tell() -> None:
        for i in range(2000):
            nvml(ledger, 31, float(i))

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts(ledger) == {"31": 8000}
