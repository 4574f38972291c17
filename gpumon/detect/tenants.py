"""One tenant takes a server's tokens from the others: ``tenant_interference``.

From ``detect.recent``, per model: the newest ten seconds of token time against the two minutes before. Named is the
tenant whose share of the requests grew most, if that is no chance and the others have not grown as well; interference
it is when the others are worse off: each of their requests gets fewer tokens per second, the wait for its first one
included. That is a ratio of what has come, so it does not have to wait until all has; tokens per second in sum would
also fall where the others merely ask for less. Over the bins of that time, the tenant's requests and what the others
got must have gone opposite ways.

What is compared with stays as it was before for as long as it lasts. Requests without a tenant or without token times
are not seen; a model with one tenant has none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity
from gpumon.detect.recent import BIN_S, ModelLatencies, TenantRates
from gpumon.detect.scene import Scene
from gpumon.detect.spoken import change, duration, figure, percent
from gpumon.model import Unit

NOW: Final = 2
"""Bins."""
BEFORE: Final = 24
BEFORE_LEAST: Final = 6
"""Bins with tokens of the others."""
_EVERY_S: Final = 1.9
_LEAST_REQUESTS: Final = 5
_LEAST_TOKENS: Final = 50
_DEVIATIONS: Final = 4.0
"""Of the share that so many requests have by chance."""
_ALL_GREW: Final = 2.0
"""Times the requests of the others: then it is the load that grew."""
_EASED: Final = 2 / 3
"""Of the fall: what is left of it is still interference."""
OFF_S: Final = 20.0
_SETTLED_S: Final = 900.0


class _Shares(NamedTuple):
    """Of one tenant against the others, over some bins."""

    share: float
    """Of the requests."""
    requests: float
    """Of all."""
    per_s: float
    """Tokens per second that a request of the others gets, waiting included."""
    first_s: float | None
    """Mean time to first token of the others; None where none of them got one."""
    others_per_s: float
    """Requests of the others, per second."""
    tokens: float
    """Of the others."""


@dataclass(slots=True)
class _Interference:
    """One that goes on."""

    tenant: str
    since_s: float
    true_s: float
    before: _Shares
    now: _Shares
    relation: float
    active: int


class TenantInterference:
    """Finds ``tenant_interference``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "tenant_interference",
            "Over ten seconds one tenant's share of a model's requests is over its share in the two minutes before by "
            "more than `share` and by more than chance, the others have not grown as much, and each of their "
            "requests gets less than 1 - `fall` of the tokens per second that it got; what the tenant asked for and "
            "what the others got are correlated by less than -`relation`.",
            (Severity.WARNING,),
            "Limit the tenant: a quota on its requests or tokens at the gateway, a priority below the others', or a "
            "server of its own.",
            hold_s=20.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "share": "Growth of the tenant's share of the requests.",
        "fall": "Ratio of tokens per second and request that the others lose. Bursts within a healthy load reach 0.3.",
        "relation": "Correlation over bins of five seconds, its sign turned.",
    }

    def __init__(self, *, share: float = 0.2, fall: float = 0.33, relation: float = 0.5) -> None:
        self._share = share
        self._fall = fall
        self._relation = relation
        self._looked: dict[str, tuple[int, float]] = {}
        """By model: version and time."""
        self._open: dict[str, _Interference] = {}

    def step(self, scene: Scene) -> Iterable[Finding]:
        models = scene.latencies.models()
        names = {model.name for model in models}
        self._looked = {name: looked for name, looked in self._looked.items() if name in names}
        self._open = {name: one for name, one in self._open.items() if name in names}
        findings: list[Finding] = []
        for model in models:
            version, looked_s = self._looked.get(model.name, (-1, float("-inf")))
            if model.version != version and scene.at_s - looked_s >= _EVERY_S:
                self._looked[model.name] = (model.version, scene.at_s)
                self._look(model, scene.at_s)
            one = self._open.get(model.name)
            if one is not None:
                is_over = scene.at_s - one.true_s > OFF_S or scene.at_s - one.since_s > _SETTLED_S
                if is_over:
                    del self._open[model.name]
                findings.append(_finding(model.name, one, over=is_over))
        return findings

    def _look(self, model: ModelLatencies, at_s: float) -> None:
        first = max(model.oldest, model.newest - NOW - BEFORE + 1)
        rates = model.tenants(first, model.newest)
        if len(rates.names) < 2 or len(rates.tokens) <= NOW:
            return
        one = self._open.get(model.name)
        if one is not None:
            if one.tenant in rates.names:
                now = _shares(rates, rates.names.index(one.tenant), slice(-NOW, None))
                if now.tokens and now.per_s < (1 - _EASED * self._fall) * one.before.per_s:
                    # Its requests may have come at once, and wait.
                    one.now, one.true_s = now._replace(share=max(now.share, one.now.share)), at_s
            return
        tenant = _most_grown(rates)
        before, now = (_shares(rates, tenant, part) for part in (slice(0, -NOW), slice(-NOW, None)))
        chance = np.sqrt(max(before.share * (1 - before.share), 0.01) / max(now.requests, 1.0))
        if (
            min(now.requests, before.requests) >= _LEAST_REQUESTS
            and min(now.tokens, before.tokens) >= _LEAST_TOKENS
            and now.share - before.share > max(self._share, _DEVIATIONS * float(chance))
            and now.others_per_s < _ALL_GREW * before.others_per_s
            and now.per_s < (1 - self._fall) * before.per_s
        ):
            relation = _relation(rates, tenant)
            if relation is not None and relation < -self._relation:
                since_s = (model.newest - NOW + 1) * BIN_S
                active = int((rates.tokens[-NOW:].sum(axis=0) > 0).sum())
                name = rates.names[tenant]
                self._open[model.name] = _Interference(name, since_s, at_s, before, now, relation, active)


def _shares(rates: TenantRates, tenant: int, part: slice) -> _Shares:
    others = [column for column in range(len(rates.names)) if column != tenant]
    requests, mine = float(rates.firsts[part].sum()), float(rates.firsts[part, tenant].sum())
    tokens = float(rates.tokens[part][:, others].sum())
    waited_s = float(rates.first_s[part][:, others].sum())
    spent_s = waited_s + float(rates.decode_s[part][:, others].sum())
    return _Shares(
        share=mine / requests if requests else 0.0,
        requests=requests,
        per_s=tokens / spent_s if spent_s else 0.0,
        first_s=waited_s / (requests - mine) if requests > mine else None,
        others_per_s=(requests - mine) / (len(rates.firsts[part]) * BIN_S),
        tokens=tokens,
    )


def _most_grown(rates: TenantRates) -> int:
    now, before = rates.firsts[-NOW:].sum(axis=0), rates.firsts[:-NOW].sum(axis=0)
    return int(np.argmax(now / max(now.sum(), 1.0) - before / max(before.sum(), 1.0)))


def _relation(rates: TenantRates, tenant: int) -> float | None:
    """Correlation of the tenant's requests with what the others got, over bins; None of too few."""
    others = np.arange(len(rates.names)) != tenant
    spent_s = (rates.first_s + rates.decode_s)[:, others].sum(axis=1)
    told = spent_s > 0
    if told.sum() < BEFORE_LEAST + NOW:
        return None
    got: NDArray[np.float64] = rates.tokens[told][:, others].sum(axis=1) / spent_s[told]
    asked = rates.firsts[told, tenant]
    if got.std() == 0 or asked.std() == 0:
        return None
    return float(np.corrcoef(asked, got)[0, 1])


def _finding(model: str, one: _Interference, *, over: bool) -> Finding:
    before, now = one.before, one.now
    summary = (
        f"{one.tenant} makes {percent(now.share)} of the requests to {model} ({percent(before.share)} before); one of "
        f"the others gets {figure(before.per_s)} → {figure(now.per_s)} tokens/s ({change(before.per_s, now.per_s)})"
    )
    evidence = [
        Evidence("share_of_requests", now.share, Unit.RATIO, before.share),
        Evidence("others_tokens_per_second", now.per_s, Unit.NONE, before.per_s),
        Evidence("correlation", one.relation, Unit.NONE),
        Evidence("active_tenants", float(one.active), Unit.NONE),
    ]
    if now.first_s is not None:
        evidence.append(Evidence("others_time_to_first_token", now.first_s, Unit.SECONDS, before.first_s))
        summary += f", its first after {duration(now.first_s)}"
    return Finding(
        "tenant_interference",
        Entity("tenant", one.tenant),
        Severity.WARNING,
        one.since_s,
        summary,
        tuple(evidence),
        over=over,
    )
