"""The claim about detection: on a node of 8 GPUs with 30 processes and 4 servers it takes at most 1.5 % of a core.

The node of ``busy_node`` in fast mode, at the daemon's own cadences and with its settings of the cycle collector.
Counted is the CPU time of the steps alone: the view of the store, the scene, every detector, the ledger, and putting
the samples. A step follows a second's worth of everything else gpumon does, as in the daemon. Memory is what can be
reached from detection and not from the rest of the node. One JSON line.
Usage: python -m benchmarks.detect_cost [--seconds N]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from types import FunctionType, ModuleType

from benchmarks.busy_node import GPUS, PROCESSES, SERVERS, WARM_UP_S, config, scenario
from benchmarks.common import percentiles, report
from gpumon import catalogue
from gpumon.detect.detector import Detector, Finding
from gpumon.detect.scene import Scene
from gpumon.host.garbage import short_pauses
from gpumon.simulated import SimulatedNode

BOUND_PERCENT = 1.5
DEAREST = 5


def size_of(root: object, others: Iterable[object]) -> int:
    """Bytes of all that can be reached from an object, and not from others without it, nor is code."""
    seen = {id(root)}
    for other in others:
        _reach(other, seen)
    return sys.getsizeof(root) + sum(_reach(part, seen) for part in gc.get_referents(root))


def _reach(root: object, seen: set[int]) -> int:
    """Bytes of what has not been seen yet."""
    todo, size = [root], 0
    while todo:
        each = todo.pop()
        if id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType):
            seen.add(id(each))
            size += sys.getsizeof(each)
            todo += gc.get_referents(each)
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="simulated, after the warm-up")
    seconds = parser.parse_args().seconds
    simulated = SimulatedNode(scenario(), 1, config())
    node = simulated.node
    steps: list[float] = []
    by_detector: dict[str, list[float]] = defaultdict(list)
    detection = node.detection
    simulated.advance(WARM_UP_S)
    (task,) = [task for task in node._tasks if task.name == detection.name]
    ask, run = detection._ask, task.run

    def timed_ask(name: str, detector: Detector, scene: Scene) -> list[Finding]:
        began = time.thread_time()
        found = ask(name, detector, scene)
        by_detector[name].append(time.thread_time() - began)
        return found

    def timed_step(at_s: float) -> None:
        began = time.thread_time()
        run(at_s)
        steps.append(time.thread_time() - began)

    detection._ask, task.run = timed_ask, timed_step  # type: ignore[method-assign]
    short_pauses()
    simulated.advance(WARM_UP_S + seconds)
    spent = sum(steps)
    percent = 100 * spent / seconds
    dearest = sorted(by_detector, key=lambda name: -sum(by_detector[name]))[:DEAREST]
    view = node.store.view(simulated.clock.now_s())
    report(
        "detect_cost",
        gpus=GPUS,
        processes=len({sample.labels[0] for sample in view.family(catalogue.PROCESS_CPU_SECONDS)}),
        servers=len(view.family(catalogue.SERVER_RUNNING)),
        series=sum(len(batch.samples) for batch in view.batches.values()),
        detectors=len(by_detector),
        steps=len(steps),
        percent_of_a_core=round(percent, 3),
        bound_percent=BOUND_PERCENT,
        within_bound=percent <= BOUND_PERCENT,
        step_ms=percentiles([1e3 * each for each in steps]),
        dearest_ms={name: round(1e3 * statistics.mean(by_detector[name]), 3) for name in dearest},
        memory_bytes=size_of(detection, [node.store, node.tracing, node.node, node.health, simulated.world]),
        incidents=len(simulated.incidents()),
    )
    assert (PROCESSES, SERVERS) == (30, 4)


if __name__ == "__main__":
    main()
