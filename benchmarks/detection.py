"""How well incidents are found: every labelled scenario in fast mode, and clean hours.

A label (``gpumon.sim.labels``) is found when an incident of its kind, on what the fault struck, opens between the
fault's begin and a little after its end. An incident that neither is a label nor a true consequence of a fault is
false. Seconds to detect count from when the effect can be seen: for throttling when the driver first shows the
reason, for what only requests tell when five that ran during the fault have ended, for ratios over a window when the
window is full of it, otherwise from the fault's begin.

Prints one line of JSON; ``--verbose`` tells of every miss and every false incident before it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import report
from gpumon.config import CadenceConfig, Config, StateConfig
from gpumon.host.garbage import few_collections
from gpumon.model import RequestRecord
from gpumon.sim.labels import Label, labels, strikes
from gpumon.sim.scenario import Scenario, load_scenario
from gpumon.simulated import STARTED_S, SimulatedNode, judge

SCENARIOS = Path(__file__).resolve().parent.parent / "tests" / "scenarios"
CLEAN = ("clean_wave", "clean_bursty")
STRIDE_S = 1.0
_THROTTLE_BITS = {"thermal_throttle": 0x20 | 0x40, "power_throttle": 0x4, "hw_slowdown": 0x8 | 0x80}
_BY_REQUESTS = frozenset({"latency_shift", "tenant_interference", "quality_drop", "batch_jitter", "context_cliff"})
_ENDED = 5
_OVER_A_WINDOW = {"memory_bound": 10.0, "kv_mismatch": 600.0, "allocator_gap": 120.0}
"""Kinds whose definition asks for this many seconds of it."""


@dataclass
class Result:
    """Of one scenario."""

    name: str
    seed: int
    gpu_hours: float
    wall_s: float
    story_s: float
    labels: int = 0
    missed: list[str] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    true: int = 0
    clean: bool = False


class _Watch:
    """When the effect of each label could first be seen."""

    def __init__(self, scenario: Scenario, wanted: Sequence[Label]) -> None:
        self._scenario = scenario
        self._wanted = wanted
        self._ended: Counter[int] = Counter()
        self.visible_s: dict[int, float] = {}
        self.node: SimulatedNode | None = None

    def requests(self, records: Iterable[RequestRecord]) -> None:
        assert self.node is not None
        story_s, to_unix = self.node.story_s, self.node.clock.to_unix
        for record in records:
            ended_s = record.end_ns / 1e9 - to_unix(0.0) - STARTED_S
            for number, label in enumerate(self._wanted):
                _, models = strikes(self._scenario, label.fault)
                if label.kind in _BY_REQUESTS and record.model in models and ended_s > label.begins_s:
                    self._ended[number] += 1
                    if self._ended[number] == _ENDED:
                        self.visible_s.setdefault(number, story_s)

    def look(self) -> None:
        assert self.node is not None
        for number, label in enumerate(self._wanted):
            bits = _THROTTLE_BITS.get(label.kind)
            if bits is None or number in self.visible_s or not label.begins_s <= self.node.story_s:
                continue
            assert label.fault.gpu is not None
            if self.node.world.gpu(label.fault.gpu, self.node.clock.now_s()).reasons & bits:
                self.visible_s[number] = self.node.story_s

    def since_s(self, number: int) -> float:
        label = self._wanted[number]
        begins_s = label.begins_s + _OVER_A_WINDOW.get(label.kind, 0.0)
        return self.visible_s.get(number, begins_s)


def run(path: Path, seed: int | None, fast_s: float, duration_s: float | None) -> Result:
    """One scenario."""
    scenario = load_scenario(path)
    duration_s = duration_s or scenario.duration_s
    seed = scenario.seed if seed is None else seed
    wanted = labels(scenario, duration_s)
    watch = _Watch(scenario, wanted)
    config = Config(cadence=CadenceConfig(fast_s=fast_s), state=StateConfig(folder=None))
    began = time.perf_counter()
    node = watch.node = SimulatedNode(scenario, seed, config, on_requests=watch.requests)
    story_s = 0.0
    while story_s < duration_s:
        story_s = min(duration_s, story_s + STRIDE_S)
        node.advance(story_s)
        watch.look()
    result = Result(
        path.stem, seed, duration_s * scenario.node.gpus / 3600, time.perf_counter() - began, duration_s, len(wanted)
    )
    result.clean = not scenario.faults
    verdict = judge(scenario, node, duration_s)
    for label, hit in verdict.found:
        result.seconds.append((label.kind, max(0.0, hit.opened_s - STARTED_S - watch.since_s(wanted.index(label)))))
    result.missed = [f"{label.kind} of {label.fault.kind} at {label.begins_s:g} s" for label in verdict.missed]
    result.true = len(verdict.true)
    result.false = [
        f"{each.kind} {each.entity.name} at {each.opened_s - STARTED_S:.0f} s: {each.summary}" for each in verdict.false
    ]
    return result


def _run(arguments: tuple[Path, int | None, float, float | None]) -> Result:
    with few_collections():
        return run(*arguments)


def main() -> int:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios; default: all")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each scenario with other noise")
    parser.add_argument("--first-seed", type=int, default=None, help="default: the scenario's own")
    parser.add_argument("--fast-s", type=float, default=0.5, help="cadence of the GPU rows")
    parser.add_argument("--clean-hours", type=float, default=0.5, help="simulated hours of every clean scenario")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    paths = sorted(SCENARIOS.glob("*.yaml"))
    if arguments.names:
        paths = [path for path in paths if path.stem in arguments.names]
    for path in paths:
        load_scenario(path)  # before hours of others: a file that cannot be taken
    work: list[tuple[Path, int | None, float, float | None]] = []
    for path in paths:
        clean_s = arguments.clean_hours * 3600 if path.stem in CLEAN else None
        for run_number in range(arguments.seeds):
            seed = None if arguments.first_seed is None else arguments.first_seed + run_number
            if clean_s != 0.0:
                work.append(
                    (path, seed if seed is not None or not run_number else 1000 + run_number, arguments.fast_s, clean_s)
                )
    began = time.perf_counter()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(_run, work))
    if arguments.verbose:
        for result in results:
            for text in result.missed:
                sys.stderr.write(f"missed {result.name}: {text}\n")
            for text in result.false:
                sys.stderr.write(f"false  {result.name}: {text}\n")
    wanted = sum(result.labels for result in results)
    found = len([None for result in results for _ in result.seconds])
    false = [text for result in results for text in result.false]
    clean = [result for result in results if result.clean]
    right = sum(result.true for result in results)
    seconds = [value for result in results for _, value in result.seconds]
    by_kind: dict[str, list[float]] = {}
    for result in results:
        for kind, value in result.seconds:
            by_kind.setdefault(kind, []).append(value)
    report(
        "detection",
        recall=round(found / wanted, 4) if wanted else None,
        precision=round(right / (right + len(false)), 4) if right or false else None,
        median_seconds_to_detect=round(statistics.median(seconds), 2) if seconds else None,
        false_incidents=sum(len(result.false) for result in clean),
        clean_gpu_hours=round(sum(result.gpu_hours for result in clean), 1),
        scenarios=len({result.name for result in results}),
        runs=len(results),
        labels=wanted,
        incidents=right + len(false),
        seconds_by_kind={kind: round(statistics.median(of), 1) for kind, of in sorted(by_kind.items())},
        times_real_time=round(sum(r.story_s for r in results) / sum(r.wall_s for r in results), 1),
        wall_s=round(time.perf_counter() - began, 1),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
