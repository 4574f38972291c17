from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.catalogue import PROCESS_GPU_MEMORY, PROCESS_GPU_SM
from gpumon.model import GpuProcess, GpuUuid, Metric, Sample
from gpumon.sources.gpu_process_samples import GpuProcessSamples, Names

NAMES: dict[int, Names] = {10: ("vllm", "prod", "vllm-0", "server"), 11: ("python", "", "", "")}


def process(pid: int, used: float | None, sm: float | None = None, gpu: str = "0") -> GpuProcess:
    return GpuProcess(pid, gpu, GpuUuid(f"GPU-{gpu}"), used, sm)


def values(samples: list[Sample], metric: Metric) -> dict[tuple[str, ...], object]:
    return {sample.labels: sample.value for sample in samples if sample.metric is metric}


def test_each_process_has_its_names_and_what_is_known_of_it() -> None:
    samples = GpuProcessSamples(8).samples(
        [process(10, 5.0, 0.5), process(11, None, 0.25), process(12, 1.0)], NAMES.get
    )
    assert values(samples, PROCESS_GPU_MEMORY) == {
        ("0", "GPU-0", "10", "vllm", "prod", "vllm-0", "server"): 5.0,
        ("0", "GPU-0", "12", "", "", "", ""): 1.0,
    }
    assert values(samples, PROCESS_GPU_SM) == {
        ("0", "GPU-0", "10", "vllm", "prod", "vllm-0", "server"): 0.5,
        ("0", "GPU-0", "11", "python", "", "", ""): 0.25,
    }


def test_the_largest_are_named_and_the_rest_of_each_gpu_is_summed() -> None:
    many = [process(pid, float(pid), 0.1) for pid in range(1, 6)] + [process(9, 0.5, None, gpu="1")]
    samples = GpuProcessSamples(2).samples(many, NAMES.get)
    memory = values(samples, PROCESS_GPU_MEMORY)
    assert memory == {
        ("0", "GPU-0", "5", "", "", "", ""): 5.0,
        ("0", "GPU-0", "4", "", "", "", ""): 4.0,
        ("0", "GPU-0", "", "other", "", "", ""): 6.0,
        ("1", "GPU-1", "", "other", "", "", ""): 0.5,
    }
    sm = values(samples, PROCESS_GPU_SM)
    assert sm["0", "GPU-0", "", "other", "", "", ""] == pytest.approx(0.3)
    assert ("1", "GPU-1", "", "other", "", "", "") not in sm


def test_a_rest_of_which_nothing_is_known_has_no_samples() -> None:
    assert GpuProcessSamples(0).samples([process(1, None), process(2, None)], NAMES.get) == []


def test_shares_that_add_up_to_more_than_the_gpu_are_the_gpu() -> None:
    samples = GpuProcessSamples(0).samples([process(1, None, 0.9), process(2, None, 0.8)], NAMES.get)
    assert [sample.value for sample in samples] == [1.0]


def test_the_same_processes_are_named_whatever_order_they_come_in() -> None:
    many = [process(pid, 1.0) for pid in range(10)]
    maker = GpuProcessSamples(3)
    assert maker.samples(many, NAMES.get) == maker.samples(many[::-1], NAMES.get)


PROCESSES = st.lists(
    st.builds(
        process,
        st.integers(1, 50),
        st.none() | st.integers(0, 2**40).map(float),
        st.none() | st.floats(0, 1),
        st.sampled_from(["0", "1"]),
    ),
    unique_by=lambda each: (each.gpu, each.pid),
    max_size=40,
)


@given(PROCESSES, st.integers(0, 20))
def test_memory_is_conserved_series_are_bounded_and_unique(processes: list[GpuProcess], limit: int) -> None:
    samples = GpuProcessSamples(limit).samples(processes, NAMES.get)
    memory = [sample for sample in samples if sample.metric is PROCESS_GPU_MEMORY]
    assert sum(sample.value for sample in memory if isinstance(sample.value, float)) == sum(
        each.used_bytes or 0.0 for each in processes
    )
    assert len(memory) <= limit + 2
    assert len({(sample.metric.name, sample.labels) for sample in samples}) == len(samples)
