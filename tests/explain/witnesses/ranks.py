"""A tensor-parallel job, for tests: all leave an operation together and come to the next when their work is done."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from gpumon.ingest.nccl import CollectiveRecord

RANKS = 4
WORK_S = 0.02
TRANSFER_S = 0.002
FIRST_PID = 4000

Works = Callable[[int], Sequence[float]]
"""Seconds of work before operation n, by rank."""


def even(number: int) -> list[float]:
    """Ranks differ by a hundredth."""
    chance = random.Random(number)
    return [WORK_S * (1 - 0.01 * chance.random()) for _ in range(RANKS)]


def slow(rank: int, times: float) -> Works:
    """One rank takes so many times as long."""

    def works(number: int) -> list[float]:
        found = even(number)
        found[rank] *= times
        return found

    return works


class Job:
    """Operations in numbers; ``stamps`` and ``pids`` say what is told of them."""

    def __init__(
        self, comm_id: str = "0x9e1f", *, collective: str = "AllReduce", stamps: bool = True, pids: bool = True
    ) -> None:
        self.comm_id = comm_id
        self.collective = collective
        self.stamps = stamps
        self.pids = pids
        self.timing = "kernel_gpu"
        self.number = 0

    def second(self, begin_ns: int, works: Works = even) -> list[CollectiveRecord]:
        """Operations of a second from a moment on, in the order in which they happened."""
        found: list[CollectiveRecord] = []
        left_ns = begin_ns
        while True:
            starts = [left_ns + round(work_s * 1e9) for work_s in works(self.number)]
            stop_ns = max(starts) + round(TRANSFER_S * 1e9)
            if stop_ns > begin_ns + 10**9:
                return found
            for rank, start_ns in enumerate(starts):
                found.append(
                    CollectiveRecord(
                        comm_id=self.comm_id,
                        comm_name="tp",
                        rank=rank,
                        n_ranks=RANKS,
                        collective=self.collective,
                        sequence=self.number,
                        size_bytes=1 << 20,
                        exec_s=(stop_ns - start_ns) / 1e9,
                        start_ns=start_ns if self.stamps else 0,
                        stop_ns=stop_ns if self.stamps else 0,
                        timing=self.timing,
                        host="n1",
                        pid=FIRST_PID + rank if self.pids else 0,
                    )
                )
            self.number += 1
            left_ns = stop_ns
