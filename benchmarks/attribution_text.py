"""What a run of ``benchmarks.attribution`` found, in a few lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from benchmarks.attribution_figures import PHASES, FaultFigures, RunFigures
from gpumon.catalogue import CAUSES

_LEAST_SHARE = 0.01
_MOST_WRONG = 6


def lines(run: RunFigures) -> Iterator[str]:
    """One per fault, and one each for wrong answers, a pair and faults that were blamed without one."""
    top1 = "-" if run.top1 is None else f"{run.top1:.2f}"
    yield f"{run.name} ({run.seed}): top1 {top1} of {run.confusion.total()} slow phases, {run.requests} requests" + (
        f", {run.missing} not explained" if run.missing else ""
    )
    for fault in run.faults:
        yield f"    {_fault(fault)}"
    wrong = [(key, count) for key, count in run.confusion.most_common() if key[1] != key[2]]
    if wrong:
        told = ", ".join(f"{phase} {true} > {said} {count}" for (phase, true, said), count in wrong[:_MOST_WRONG])
        yield f"    wrong: {told}"
    if run.pair is not None:
        verdict = "right" if run.pair.right else "WRONG" if run.pair.asked else "not asked"
        gained = "; ".join(
            f"{cause}: {_seconds(dict(said))}" for cause, said in zip(run.pair.causes, run.pair.said, strict=True)
        )
        yield f"    pair {verdict}, gained where it strikes: {gained}"
    if run.clean.token_s:
        shares = {cause: f"{seconds / run.clean.token_s:.2%}" for cause, seconds in run.clean.faults.items() if seconds}
        told = " ".join(f"{cause} {share}" for cause, share in shares.items())
        unexplained = run.clean.unexplained_s / run.clean.token_s
        yield f"    clean {run.clean.token_s:.0f} s: unexplained {unexplained:.2%}, faults: {told or 'none'}"


def _fault(fault: FaultFigures) -> str:
    verdict = "not asked" if not fault.asked else "right" if fault.said_gained == fault.cause else "WRONG"
    error = "-" if fault.error is None else f"{fault.error:.2f}"
    total = "-" if fault.total_error is None else f"{fault.total_error:.2f}"
    return (
        f"{fault.kind} = {fault.cause}: gained most {fault.said_gained} (true {fault.true_gained}, {verdict}), "
        f"top1 {fault.right}/{fault.slow}, error {error} total {total}\n"
        f"        true {_seconds(fault.true)}\n        said {_seconds(fault.said)}"
    )


def _seconds(by_cause: Mapping[str, float]) -> str:
    least_s = _LEAST_SHARE * sum(by_cause.values())
    told = sorted(by_cause.items(), key=lambda item: -item[1])
    return " ".join(f"{cause} {seconds:.1f}" for cause, seconds in told if seconds >= least_s) or "nothing"


def table(runs: Iterable[RunFigures]) -> Iterator[str]:
    """Of all runs: per phase and true cause, the share of right answers and the most frequent wrong ones."""
    found: Counter[tuple[str, str, str]] = Counter()
    for run in runs:
        found.update(run.confusion)
    for phase in PHASES:
        yield f"{phase}:"
        for cause in CAUSES:
            row = Counter({said: count for (of, true, said), count in found.items() if (of, true) == (phase, cause)})
            if row:
                wrong = ", ".join(f"{said} {count}" for said, count in row.most_common(_MOST_WRONG) if said != cause)
                yield f"    {cause:22} {row[cause] / row.total():6.1%} of {row.total():6}   {wrong}"
