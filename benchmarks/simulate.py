"""The claim about simulation: an hour of a busy node of eight GPUs, detection included, in under two minutes of a core.

The node of ``busy_node`` in fast mode, at the daemon's own cadences (rows of the GPUs every 0.1 s): world, faces,
sampler passes, sources, decoding of the exports, assembly, statistics and detectors. A stretch of it is run after a
warm-up and its CPU time scaled to an hour, by part as well. One JSON line; times are CPU time of this process, which
has one thread.
Usage: python -m benchmarks.simulate [--seconds N]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from benchmarks.busy_node import GPUS, WARM_UP_S, config, scenario
from benchmarks.common import report
from gpumon.host.garbage import few_collections
from gpumon.model import RequestRecord
from gpumon.simulated import SimulatedNode

BAR_S = 120.0
HOUR_S = 3600.0
P = ParamSpec("P")
R = TypeVar("R")


class Parts:
    """CPU time by part."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        """The same, with its time taken."""

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent[name] += time.process_time() - began

        return wrapper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="simulated, after the warm-up")
    seconds = parser.parse_args().seconds
    tokens = 0

    def count(records: Sequence[RequestRecord]) -> None:
        nonlocal tokens
        tokens += sum(record.completion_tokens or 0 for record in records)

    simulated = SimulatedNode(scenario(), 1, config(), on_requests=count)
    simulated.advance(WARM_UP_S)
    tokens = 0
    parts, node = Parts(), simulated.node
    for task in node._tasks:
        task.run = parts.timed(task.name, task.run)
    node.offer = parts.timed("offer", node.offer)  # type: ignore[method-assign]
    simulated._spans.bodies = parts.timed("export", simulated._spans.bodies)  # type: ignore[method-assign]
    with few_collections():  # as the command does
        began = time.process_time()
        simulated.advance(WARM_UP_S + seconds)
        spent = time.process_time() - began
    dearest = sorted(parts.spent.items(), key=lambda part: -part[1])
    report(
        "simulate",
        gpus=GPUS,
        tokens_per_s=round(tokens / seconds),
        simulated_s=seconds,
        cpu_ms_per_simulated_s=round(1e3 * spent / seconds, 2),
        cpu_s_per_hour=round(spent / seconds * HOUR_S, 1),
        bar_s=BAR_S,
        times_real_time=round(seconds / spent, 1),
        ms_by_part={name: round(1e3 * part / seconds, 2) for name, part in dearest},
        incidents=len(simulated.incidents()),
    )


if __name__ == "__main__":
    main()
