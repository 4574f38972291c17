"""Totals over many processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.model import Distribution, Metric, Sample
from gpumon.sampler import totals
from gpumon.sampler.totals import SUMMED_IN_SAMPLER, Totals

LABELS = ("0", "GPU-1")
ECC = catalogue.GPU_ECC_ERRORS


def busy(value: float, gpu: str = "0") -> Sample:
    return Sample(catalogue.GPU_BUSY_SECONDS, (gpu, "GPU-1"), value)


@given(lives=st.lists(st.lists(st.floats(0, 1e6).map(lambda value: round(value, 3)), max_size=6), max_size=6))
def test_a_sum_is_that_of_all_processes(lives: list[list[float]]) -> None:
    subject = Totals()
    past = before = 0.0
    for life in lives:
        subject.new_process()
        reached = 0.0
        for step in life:
            reached += step
            value = subject.carry(busy(reached)).value
            assert value == pytest.approx(past + reached)
            assert isinstance(value, float)
            assert value >= before
            before = value
        past += reached


def test_a_histogram_of_sums_goes_on_bucket_by_bucket() -> None:
    subject = Totals()
    metric = catalogue.GPU_UTILIZATION_SAMPLES
    for _ in range(3):
        subject.new_process()
        value = subject.carry(Sample(metric, LABELS, Distribution((1, 2), 0.5))).value
    assert value == Distribution((3, 6), 1.5)


@given(raws=st.lists(st.tuples(st.booleans(), st.integers(0, 10**9)), max_size=30))
def test_a_counter_of_the_hardware_is_absolute_and_never_falls(raws: list[tuple[bool, int]]) -> None:
    subject = Totals()
    last_raw, last = 0.0, 0.0
    for number, (fresh, raw) in enumerate(raws):
        if fresh:
            subject.new_process()
        value = subject.carry(Sample(ECC, (*LABELS, "corrected", "volatile"), float(raw))).value
        assert isinstance(value, float)
        if number == 0:
            assert value == raw
        elif raw >= last_raw:
            assert value == last + (raw - last_raw)
        else:
            assert value == last + raw
        last_raw, last = raw, value


def test_gauges_pass_as_they_are() -> None:
    subject = Totals()
    for value in (5.0, 3.0):
        sample = Sample(catalogue.GPU_BAR1, (*LABELS, "used"), value)
        assert subject.carry(sample) is sample
    assert len(subject) == 0


def test_another_index_is_the_same_gpu_and_another_gpu_is_not() -> None:
    subject = Totals()
    subject.carry(busy(5.0, "0"))
    subject.new_process()
    assert subject.carry(busy(1.0, "3")) == busy(6.0, "3")
    other = Sample(catalogue.GPU_BUSY_SECONDS, ("0", "GPU-2"), 1.0)
    assert subject.carry(other) == other


def test_instances_that_come_and_go_for_ever_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "KEPT", 100)
    subject = Totals()
    for number in range(10_000):
        labels = (f"MIG-{number}", "GPU-1", "7", "0", "1g.10gb")
        subject.carry(Sample(catalogue.MIG_SM_ACTIVE_SECONDS, labels, 1.0))
        subject.carry(busy(1.0))
    assert len(subject) <= 101
    subject.new_process()
    assert subject.carry(busy(1.0)).value == 2.0


SUMS: list[Metric] = list(SUMMED_IN_SAMPLER)


@pytest.mark.parametrize("number", range(len(SUMS)))
def test_every_sum_survives_a_process(number: int) -> None:
    metric = SUMS[number]
    subject = Totals()
    labels = tuple("x" for _ in metric.labels)
    one: float | Distribution = Distribution((1,), 1.0) if metric.bounds else 1.0
    two: float | Distribution = Distribution((2,), 2.0) if metric.bounds else 2.0
    subject.carry(Sample(metric, labels, one))
    subject.new_process()
    assert subject.carry(Sample(metric, labels, one)).value == two
