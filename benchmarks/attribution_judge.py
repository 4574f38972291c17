"""How right causes are: what a simulation knows of each request against what was said of it, as figures.

Two phases of a request are judged, each by itself: ``first_token``, from its arrival to its first token, and
``decode``, from there to its last. All seconds are those of the request's client. The true excess by cause is the
simulator's account (``FinishedRequest.first_truth`` and ``.truth``), the attributed one that of ``Explained``.

- *Truly slow*: a phase whose true excess is at least 20 ms and 5 % of the time that it took.
- *Top-1*: over truly slow phases with a dominant cause, one that has at least half of the true excess: the share of
  which the largest attributed cause is that one. Where nothing was said to be slow, or nothing was said at all, the
  answer is ``none``, and wrong. ``top1`` is the mean over the runs of each run's share, so that a run with many slow
  phases weighs no more than one with few; ``top1_pooled`` and ``top1_by_cause`` are over all phases, the latter by the
  true cause; ``top1_by_cause_mean`` is the mean over the runs with at least five phases of a cause.
- *Of a fault*: a fault is judged by the requests that overlap it on the servers that it strikes. *Before* are those
  that ended on these servers before the first fault began. What a cause *gained* are its seconds, less those that the
  same token time had before. A fault of a moment that ends a server lasts until the server is back.
- *Scenario top-1*: the share of faults whose cause gained most, of the causes that are a fault or load. Asked for are
  faults whose cause truly gained most, and at least 1 % of the token time, and which share their servers with no other
  fault at the time.
- *Share error*: in scenarios with one fault, the difference between attributed and true seconds of the fault's cause,
  over the true excess of all causes. The *total* one is half the sum of the differences of all causes.
- *Pairs*: the share of runs of ``pair_…`` in which each of the two causes is among the two that gained most,
  ``unexplained`` counted among them, on the servers that its fault strikes, while both faults were at work (or either,
  where they do not overlap). Asked for where that is so of the true seconds.
- *Clean*: what ended before the first fault of any scenario, and all of a scenario without one: the share of token time
  (both phases) that was blamed on a fault, and the unexplained one, which is told as a share of the excess, too.
- *Conserved within*: the largest difference between an excess and the sum of its shares. A negative share is one.

Requests that began in the first seconds are left out, while nothing can be known of what is usual.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.attribution_figures import PHASES, CleanFigures, FaultFigures, PairFigures, RunFigures
from gpumon.catalogue import CAUSES
from gpumon.explain.causes import LOAD, UNEXPLAINED, is_fault
from gpumon.explain.explained import Explained, Share
from gpumon.sim.labels import strikes
from gpumon.sim.scenario import Scenario
from gpumon.sim.state import FinishedRequest

NONE: Final = "none"
"""The answer where nothing was said to be slow."""
_LEAST_S, _LEAST_SHARE = 0.020, 0.05  # of a truly slow phase
_DOMINANT = 0.5
_NOTICED = 0.01  # of token time: what a fault takes at least that is asked for
_OUTAGE_S = 12.0  # from the end of a process until its server serves again (gpumon.sim.population)

Seconds = Mapping[str, float]
"""By cause."""


class Said(NamedTuple):
    """What was said of a request."""

    first_token: Seconds
    decode: Seconds
    off_s: float
    """By which an excess differs from the sum of its shares, at worst."""


class Phase(NamedTuple):
    """One phase of a request."""

    name: str
    actual_s: float
    true: Seconds
    said: Seconds
    """Empty where it was not said to be slow."""

    @property
    def true_cause(self) -> str | None:
        """The dominant one; None where it was not truly slow, or where none is."""
        excess_s = sum(self.true.values())
        if excess_s < max(_LEAST_S, _LEAST_SHARE * self.actual_s):
            return None
        cause = _largest(self.true)
        return cause if self.true[cause] >= _DOMINANT * excess_s else None

    @property
    def said_cause(self) -> str:
        """The largest, or ``none``."""
        return _largest(self.said)


class Request(NamedTuple):
    """One request, as it was and as it was explained."""

    model: str
    start_s: float
    """Of the story."""
    end_s: float
    phases: tuple[Phase, ...]
    explained: bool = True
    """Whether anything was said of it."""


class Struck(NamedTuple):
    """One fault of a scenario."""

    kind: str
    cause: str | None
    models: frozenset[str]
    """Of the servers that it strikes."""
    begins_s: float
    """Of the story."""
    ends_s: float

    def overlaps(self, other: Struck) -> bool:
        """Whether it strikes a server that the other strikes too, at the same time."""
        return bool(self.models & other.models) and self.begins_s < other.ends_s and other.begins_s < self.ends_s


def said_of(explained: Explained) -> Said:
    """What is kept of an explanation."""
    offs = [_off_s(account.excess_s, account.shares) for account in (explained.first_token, explained.decode)]
    offs += [_off_s(gap.excess_s, gap.shares) for gap in explained.slow_gaps]
    off_s = max(offs)
    return Said(_by_cause(explained.first_token.shares), _by_cause(explained.decode.shares), off_s)


def struck(scenario: Scenario) -> list[Struck]:
    """Faults of a scenario, by their begin; those that strike the node strike all servers."""
    everybody = frozenset(server.model for server in scenario.servers)
    found = []
    for fault in scenario.faults:
        gpus, models = strikes(scenario, fault)
        ends_s = fault.at_s + fault.for_s + (_OUTAGE_S if fault.what.cause == "gpu_error" else 0.0)
        found.append(Struck(fault.kind, fault.what.cause, models if gpus or models else everybody, fault.at_s, ends_s))
    return sorted(found, key=lambda each: (each.begins_s, each.kind))


def joined(
    told: Iterable[tuple[bytes, FinishedRequest]], said: Mapping[bytes, Said], scenario: Scenario, started_s: float
) -> list[Request]:
    """Requests with what was said of them. told: with their trace ids. started_s: steady time of the story's begin.

    Those that never had a token have no phases.
    """
    found = []
    for trace_id, request in told:
        about = said.get(trace_id)
        phases: tuple[Phase, ...] = ()
        if request.token_s:
            first_s, last_s = request.token_s[0], request.token_s[-1]
            phases = (
                Phase(
                    PHASES[0], first_s - request.start_s, dict(request.first_truth), about.first_token if about else {}
                ),
                Phase(PHASES[1], last_s - first_s, dict(request.truth), about.decode if about else {}),
            )
        model = scenario.servers[request.server].model
        found.append(Request(model, request.start_s - started_s, request.end_s - started_s, phases, about is not None))
    return found


def judge_run(
    name: str,
    seed: int,
    requests: Sequence[Request],
    faults: Sequence[Struck],
    *,
    off_s: float = 0.0,
    warm_s: float = 0.0,
) -> RunFigures:
    """The figures of one run. faults: by their begin. warm_s: requests that began before are left out."""
    requests = [request for request in requests if request.start_s >= warm_s]
    first_s = faults[0].begins_s if faults else math.inf
    before = [request for request in requests if request.end_s < first_s]
    return RunFigures(
        name=name,
        seed=seed,
        requests=len(requests),
        missing=sum(not request.explained for request in requests if request.phases),
        confusion=_confusion(requests),
        faults=[_of_fault(fault, faults, requests, before) for fault in faults if fault.cause is not None],
        pair=_pair(faults, requests, before) if name.startswith("pair_") else None,
        clean=_clean(before),
        off_s=off_s,
    )


# --- one run ----------------------------------------------------------------------------------------------------------


def _confusion(requests: Iterable[Request]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for request in requests:
        for phase in request.phases:
            if (true := phase.true_cause) is not None:
                found[phase.name, true, phase.said_cause] += 1
    return found


def _of_fault(
    fault: Struck, faults: Sequence[Struck], requests: Iterable[Request], before: Iterable[Request]
) -> FaultFigures:
    assert fault.cause is not None
    during = _on(requests, fault.models, fault.begins_s, fault.ends_s)
    before = [request for request in before if request.model in fault.models]
    gained = _gained(during, before, said=False)
    true_gained = _most(gained)
    others = [other for other in faults if other is not fault]
    noticed = true_gained == fault.cause and gained[fault.cause] >= _NOTICED * _token_s(during)
    slow = _confusion(during)
    return FaultFigures(
        kind=fault.kind,
        cause=fault.cause,
        requests=len(during),
        true=_sums(during, said=False),
        said=_sums(during, said=True),
        true_gained=true_gained,
        said_gained=_most(_gained(during, before, said=True)),
        asked=noticed and not any(fault.overlaps(other) for other in others),
        right=sum(count for (_, true, said), count in slow.items() if true == said),
        slow=slow.total(),
        alone=not others,
    )


def _pair(faults: Sequence[Struck], requests: Iterable[Request], before: Sequence[Request]) -> PairFigures | None:
    """None where there are not two faults that each have a cause."""
    causes = [fault.cause for fault in faults if fault.cause is not None]
    if len(faults) != 2 or len(causes) != 2:
        return None
    begins_s, ends_s = max(fault.begins_s for fault in faults), min(fault.ends_s for fault in faults)
    if begins_s >= ends_s:
        begins_s, ends_s = min(fault.begins_s for fault in faults), max(fault.ends_s for fault in faults)
    pair = PairFigures()
    for fault, cause in zip(faults, causes, strict=True):
        during = _on(requests, fault.models, begins_s, ends_s)
        earlier = [request for request in before if request.model in fault.models]
        pair.causes.append(cause)
        pair.true.append(_ranked(_gained(during, earlier, said=False)))
        pair.said.append(_ranked(_gained(during, earlier, said=True)))
    return pair


def _clean(requests: Sequence[Request]) -> CleanFigures:
    found = CleanFigures(token_s=_token_s(requests))
    for cause, seconds in _sums(requests, said=True).items():
        found.excess_s += seconds
        if cause == UNEXPLAINED:
            found.unexplained_s += seconds
        elif is_fault(cause):
            found.fault_s += seconds
            found.faults[cause] = seconds
    return found


# --- sums -------------------------------------------------------------------------------------------------------------


def _on(requests: Iterable[Request], models: frozenset[str], begins_s: float, ends_s: float) -> list[Request]:
    """Those on these servers that overlap a stretch of the story."""
    return [
        request
        for request in requests
        if request.model in models and request.start_s < ends_s and request.end_s > begins_s
    ]


def _token_s(requests: Iterable[Request]) -> float:
    return sum(phase.actual_s for request in requests for phase in request.phases)


def _sums(requests: Iterable[Request], *, said: bool) -> dict[str, float]:
    """Seconds by cause, in the order of CAUSES; those that are none are left out."""
    sums = dict.fromkeys(CAUSES, 0.0)
    for request in requests:
        for phase in request.phases:
            for cause, seconds in (phase.said if said else phase.true).items():
                sums[cause] += seconds
    return {cause: seconds for cause, seconds in sums.items() if seconds}


def _gained(during: Sequence[Request], before: Sequence[Request], *, said: bool) -> dict[str, float]:
    """Seconds by cause, less those that the same token time had before."""
    after, earlier = _sums(during, said=said), _sums(before, said=said)
    before_s = _token_s(before)
    times = _token_s(during) / before_s if before_s else 0.0
    return {cause: after.get(cause, 0.0) - times * earlier.get(cause, 0.0) for cause in CAUSES}


def _most(gained: Seconds) -> str:
    """The cause of a fault or of load that gained most; ``none`` where none did."""
    return _largest({cause: gained[cause] for cause in gained if cause in LOAD or is_fault(cause)})


def _ranked(gained: Seconds) -> list[tuple[str, float]]:
    """Causes that gained, the most first."""
    return sorted(((cause, seconds) for cause, seconds in gained.items() if seconds > 0), key=lambda item: -item[1])


def _largest(seconds: Seconds) -> str:
    """The first one where several are as large; ``none`` where there is nothing."""
    cause = max(seconds, key=lambda each: seconds[each], default=NONE)
    return cause if cause != NONE and seconds[cause] > 0 else NONE


def _by_cause(shares: Iterable[Share]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for share in shares:
        sums[share.cause] = sums.get(share.cause, 0.0) + share.seconds
    return sums


def _off_s(excess_s: float, shares: Sequence[Share]) -> float:
    seconds = [share.seconds for share in shares]
    off_s = max(abs(math.fsum(seconds) - excess_s), -min(seconds, default=0.0))
    return off_s if math.isfinite(off_s) else math.inf
