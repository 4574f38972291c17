"""How right the causes of slow tokens are: every labelled scenario in fast mode, against what the simulation knows.

What each figure means is said in ``attribution_judge``. Prints one line of JSON last. ``--verbose`` tells of each run
before it: per fault the seconds by cause of the requests that overlap it, true and attributed (those of at least one
per cent of the excess), with the share of right answers and the errors; then wrong answers by phase, pairs, and faults
that were blamed where nothing was wrong. Names may be patterns (``"pair_*"``); ``--mid`` leaves out what is only
another strength. The exit status is 1 where an excess is not the sum of its shares.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.attribution_figures import RunFigures, confusion, summary
from benchmarks.attribution_judge import Said, joined, judge_run, said_of, struck
from benchmarks.attribution_picture import as_json, draw
from benchmarks.attribution_text import lines, table
from benchmarks.common import report
from gpumon.config import CadenceConfig, Config, StateConfig
from gpumon.explain.explained import Explained
from gpumon.host.garbage import few_collections
from gpumon.sim.scenario import load_scenario
from gpumon.sim.state import FinishedRequest
from gpumon.simulated import STARTED_S, SimulatedNode

SCENARIOS = Path(__file__).resolve().parent.parent / "tests" / "scenarios"
CLEAN = ("clean_wave", "clean_bursty")
CONSERVED_S = 1e-6
_OTHER_STRENGTHS = ("_weak", "_strong", "_short", "_long")
_STRIDE_S = 1.0
_DRAIN_S = 15.0
"""After the story: what has ended is assembled and explained by then."""


class Task(NamedTuple):
    """One run to do."""

    path: Path
    seed: int | None
    """None: the scenario's own."""
    fast_s: float
    warm_s: float
    duration_s: float | None


def run(task: Task) -> RunFigures:
    """One run of one scenario."""
    scenario = load_scenario(task.path)
    seed = scenario.seed if task.seed is None else task.seed
    duration_s = task.duration_s or scenario.duration_s
    config = Config(cadence=CadenceConfig(fast_s=task.fast_s), state=StateConfig(folder=None))
    told: list[tuple[bytes, FinishedRequest]] = []
    said: dict[bytes, Said] = {}

    def tell(trace_id: bytes, request: FinishedRequest) -> None:
        # The times of the tokens are most of it, and only the first and the last are asked for.
        if request.end_s <= STARTED_S + duration_s:
            ends = (request.token_s[0], request.token_s[-1]) if request.token_s else ()
            told.append((trace_id, request._replace(token_s=ends)))

    def explain(found: Sequence[Explained]) -> None:
        for each in found:
            said[each.record.trace_id] = said_of(each)

    node = SimulatedNode(scenario, seed, config, on_truth=tell, on_explained=explain)
    story_s = 0.0
    while story_s < duration_s + _DRAIN_S:
        story_s = min(duration_s + _DRAIN_S, story_s + _STRIDE_S)
        node.advance(story_s)
    return judge_run(
        task.path.stem,
        seed,
        joined(told, said, scenario, STARTED_S),
        struck(scenario),
        off_s=max((each.off_s for each in said.values()), default=0.0),
        warm_s=task.warm_s,
    )


def _run(task: Task) -> RunFigures:
    logging.getLogger("gpumon").setLevel(logging.ERROR)  # incidents are no news here
    with few_collections():
        return run(task)


def paths(names: Sequence[str], *, mid: bool) -> list[Path]:
    """Scenarios whose name is one of these or matches one of these patterns; without names, all."""
    found = sorted(SCENARIOS.glob("*.yaml"))
    if names:
        found = [path for path in found if any(fnmatch.fnmatchcase(path.stem, name) for name in names)]
    return [path for path in found if not (mid and path.stem.endswith(_OTHER_STRENGTHS))]


def _tell(lines: Iterable[str]) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def main() -> int:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="scenarios, or patterns of their names; default: all")
    parser.add_argument("--mid", action="store_true", help="one strength of each fault")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each scenario with other noise")
    parser.add_argument("--first-seed", type=int, default=None, help="default: the scenario's own")
    parser.add_argument("--fast-s", type=float, default=0.5, help="cadence of the GPU rows")
    parser.add_argument("--warm-s", type=float, default=40.0, help="requests that began before are left out")
    parser.add_argument("--clean-s", type=float, default=None, help="of every clean scenario; default: all of it")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--picture", type=Path, default=None, help="PNG of the confusion matrix")
    parser.add_argument("--json-matrix", type=Path, default=None, help="the same as JSON")
    arguments = parser.parse_args()
    scenarios = paths(arguments.names, mid=arguments.mid)
    if not scenarios:
        parser.error(f"no scenario has such a name: {' '.join(arguments.names)}")
    for path in scenarios:
        load_scenario(path)  # before minutes of others: a file that cannot be taken
    work = []
    for path in scenarios:
        clean_s = arguments.clean_s if path.stem in CLEAN else None
        for number in range(arguments.seeds):
            seed = None if arguments.first_seed is None else arguments.first_seed + number
            if seed is None and number:
                seed = 1000 + number
            work.append(Task(path, seed, arguments.fast_s, arguments.warm_s, clean_s))
    began = time.perf_counter()
    runs: list[RunFigures] = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for figures in pool.map(_run, work):
            runs.append(figures)
            if arguments.verbose:
                _tell(lines(figures))
    if arguments.verbose:
        _tell(table(runs))
    found = confusion(runs)
    if arguments.json_matrix is not None:
        arguments.json_matrix.write_text(as_json(found), encoding="utf-8")
    if arguments.picture is not None:
        draw(found, arguments.picture)
    report(
        "attribution",
        **summary(runs),
        seeds=arguments.seeds,
        scenarios=len(scenarios),
        runs=len(runs),
        wall_s=round(time.perf_counter() - began, 1),
    )
    return 0 if max(one.off_s for one in runs) < CONSERVED_S else 1


if __name__ == "__main__":
    sys.exit(main())
