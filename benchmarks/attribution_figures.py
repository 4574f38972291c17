"""Figures of runs of ``benchmarks.attribution``, and what they come to over all runs. Terms: ``attribution_judge``."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpumon.catalogue import CAUSES

PHASES: Final = ("first_token", "decode")

FEW: Final = 5
"""Phases of a cause below which a run says nothing of it."""


@dataclass
class FaultFigures:
    """What was said of one fault. Seconds by cause over the requests that overlap it."""

    kind: str
    cause: str
    requests: int
    true: dict[str, float]
    said: dict[str, float]
    true_gained: str
    """The cause that truly gained most."""
    said_gained: str
    asked: bool
    """Whether it is asked for."""
    right: int = 0
    slow: int = 0
    """Truly slow phases of these requests that have a dominant cause, and for how many of them it was said."""
    alone: bool = False
    """Whether it is the only fault of its scenario."""

    @property
    def error(self) -> float | None:
        """Of the seconds of its cause; None where nothing was truly late."""
        whole_s = sum(self.true.values())
        return abs(self.said.get(self.cause, 0.0) - self.true.get(self.cause, 0.0)) / whole_s if whole_s else None

    @property
    def total_error(self) -> float | None:
        """Of all causes."""
        whole_s = sum(self.true.values())
        off_s = sum(abs(self.said.get(cause, 0.0) - self.true.get(cause, 0.0)) for cause in CAUSES)
        return off_s / 2 / whole_s if whole_s else None


Ranking = list[tuple[str, float]]
"""Causes and the seconds that they gained, the most first."""


@dataclass
class PairFigures:
    """Of a run with two faults, a row for each. Rankings are of the servers that it strikes."""

    causes: list[str] = field(default_factory=list)
    true: list[Ranking] = field(default_factory=list)
    said: list[Ranking] = field(default_factory=list)

    @property
    def asked(self) -> bool:
        """Whether each cause truly is among the two that gained most."""
        return self._among(self.true)

    @property
    def right(self) -> bool:
        """Whether each was said to be."""
        return self._among(self.said)

    def _among(self, rankings: Sequence[Ranking]) -> bool:
        return all(
            cause in [each for each, _ in ranking[:2]] for cause, ranking in zip(self.causes, rankings, strict=True)
        )


@dataclass
class CleanFigures:
    """Seconds of requests of which nothing was wrong."""

    token_s: float = 0.0
    fault_s: float = 0.0
    unexplained_s: float = 0.0
    excess_s: float = 0.0
    """Attributed, to any cause."""
    faults: dict[str, float] = field(default_factory=dict)
    """``fault_s`` by cause."""

    def add(self, other: CleanFigures) -> None:
        """Those of another run too."""
        self.token_s += other.token_s
        self.fault_s += other.fault_s
        self.unexplained_s += other.unexplained_s
        self.excess_s += other.excess_s
        for cause, seconds in other.faults.items():
            self.faults[cause] = self.faults.get(cause, 0.0) + seconds


@dataclass
class RunFigures:
    """Of one run of one scenario."""

    name: str
    seed: int
    requests: int
    missing: int
    """Those that had a token, and of which nothing was said."""
    confusion: Counter[tuple[str, str, str]]
    """Truly slow phases by phase, dominant cause and answer."""
    faults: list[FaultFigures]
    pair: PairFigures | None
    clean: CleanFigures
    off_s: float

    @property
    def top1(self) -> float | None:
        """Its share; None where nothing was truly slow."""
        return _top1(self.confusion)


def confusion(runs: Iterable[RunFigures]) -> Counter[tuple[str, str]]:
    """Truly slow phases of all runs by dominant cause and answer."""
    found: Counter[tuple[str, str]] = Counter()
    for run in runs:
        for (_, true, said), count in run.confusion.items():
            found[true, said] += count
    return found


def summary(runs: Sequence[RunFigures]) -> dict[str, object]:
    """The figures of all runs; None where there is nothing to tell of."""
    pooled: Counter[tuple[str, str, str]] = Counter()
    clean = CleanFigures()
    for run in runs:
        pooled.update(run.confusion)
        clean.add(run.clean)
    alone = [fault for run in runs for fault in run.faults if fault.alone]
    errors = [(fault.cause, fault.error) for fault in alone if fault.error is not None]
    asked = [fault for run in runs for fault in run.faults if fault.asked]
    pairs = [run.pair.right for run in runs if run.pair is not None and run.pair.asked]
    by_cause = {cause: _only(pooled, 1, cause) for cause in CAUSES}
    return {
        "top1": _mean([run.top1 for run in runs]),
        "top1_pooled": _round(_top1(pooled)),
        "top1_by_phase": {phase: _round(_top1(_only(pooled, 0, phase))) for phase in PHASES},
        "top1_by_cause": {cause: _round(_top1(found)) for cause, found in by_cause.items() if found},
        "top1_by_cause_mean": _by_run(runs),
        "slow_by_cause": {cause: found.total() for cause, found in by_cause.items() if found},
        "scenario_top1": _mean([float(fault.said_gained == fault.cause) for fault in asked]),
        "scenario_faults": len(asked),
        "share_error": _mean([error for _, error in errors]),
        "share_error_median": _round(statistics.median([error for _, error in errors])) if errors else None,
        "share_error_max": _round(max(error for _, error in errors)) if errors else None,
        "share_error_by_cause": {
            cause: _mean([error for of, error in errors if of == cause])
            for cause in CAUSES
            if any(of == cause for of, _ in errors)
        },
        "share_error_total": _mean([fault.total_error for fault in alone]),
        "pairs_top2": _mean([float(right) for right in pairs]),
        "pairs": len(pairs),
        "fault_on_clean": _ratio(clean.fault_s, clean.token_s),
        "fault_on_clean_by_cause": {
            cause: _ratio(clean.faults[cause], clean.token_s) for cause in CAUSES if clean.faults.get(cause)
        },
        "unexplained_clean": _ratio(clean.unexplained_s, clean.token_s),
        "unexplained_clean_of_excess": _ratio(clean.unexplained_s, clean.excess_s),
        "clean_token_s": round(clean.token_s),
        "conserved_within_s": max((run.off_s for run in runs), default=0.0),
        "requests": sum(run.requests for run in runs),
        "missing": sum(run.missing for run in runs),
    }


def _by_run(runs: Sequence[RunFigures]) -> dict[str, float | None]:
    """By true cause, the mean over runs that have some phases of it: a long run weighs no more than a short one."""
    found: dict[str, float | None] = {}
    for cause in CAUSES:
        of = [_only(run.confusion, 1, cause) for run in runs]
        shares = [share for each in of if each.total() >= FEW and (share := _top1(each)) is not None]
        if shares:
            found[cause] = _mean(shares)
    return found


def _only(found: Counter[tuple[str, str, str]], place: int, value: str) -> Counter[tuple[str, str, str]]:
    return Counter({key: count for key, count in found.items() if key[place] == value})


def _top1(found: Counter[tuple[str, str, str]]) -> float | None:
    right = sum(count for (_, true, said), count in found.items() if true == said)
    return right / found.total() if found else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _round(statistics.fmean(known)) if known else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 5) if whole else None
