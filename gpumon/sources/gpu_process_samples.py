"""Processes on GPUs as labelled samples: the largest by memory one by one, the rest of each GPU as one ``other``.

Pure: takes what ``gpu_processes`` read and a resolver from pid to names. A process whose names are not known keeps
empty ones. A process whose memory NVML does not tell counts as the smallest, and has no memory sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpumon.catalogue import PROCESS_GPU_MEMORY, PROCESS_GPU_SM
from gpumon.model import GpuProcess, Sample

Names = tuple[str, str, str, str]
"""process, namespace, pod, container."""

NO_NAMES: Names = ("", "", "", "")
OTHER = ("", "other", "", "", "")


class GpuProcessSamples:
    """Makes samples under a cap."""

    def __init__(self, limit: int) -> None:
        """``limit``: processes of the whole node that get series of their own; every GPU may add one ``other``."""
        self._limit = limit

    def samples(self, processes: Iterable[GpuProcess], names: Callable[[int], Names | None]) -> list[Sample]:
        """``gpumon_process_gpu_memory_bytes`` and ``gpumon_process_gpu_sm_ratio``.

        ``names``: names of a pid; None where it is not known.
        """
        # Ties by uuid and pid, so that the same processes stay named from pass to pass.
        ranked = sorted(processes, key=lambda each: (-(each.used_bytes or 0.0), each.uuid, each.pid))
        samples: list[Sample] = []
        for each in ranked[: self._limit]:
            labels = (each.gpu, each.uuid, str(each.pid), *(names(each.pid) or NO_NAMES))
            samples += _both(labels, each.used_bytes, each.sm_ratio)
        others: dict[tuple[str, str], tuple[float | None, float | None]] = {}
        for each in ranked[self._limit :]:
            key = (each.gpu, str(each.uuid))
            used_bytes, sm_ratio = others.get(key, (None, None))
            others[key] = (_sum(used_bytes, each.used_bytes), _sum(sm_ratio, each.sm_ratio))
        for key, (used_bytes, sm_ratio) in others.items():
            # Shares sampled at different moments can add up to more than the GPU.
            samples += _both((*key, *OTHER), used_bytes, None if sm_ratio is None else min(sm_ratio, 1.0))
        return samples


def _both(labels: tuple[str, ...], used_bytes: float | None, sm_ratio: float | None) -> Iterable[Sample]:
    if used_bytes is not None:
        yield Sample(PROCESS_GPU_MEMORY, labels, used_bytes)
    if sm_ratio is not None:
        yield Sample(PROCESS_GPU_SM, labels, sm_ratio)


def _sum(total: float | None, value: float | None) -> float | None:
    if value is None:
        return total
    return value if total is None else total + value
