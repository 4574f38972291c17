"""One expert-parallel rank has far more tokens than the others: ``moe_imbalance``.

From the balance that the server's page tells (SGLang: ``eplb_balancedness``; vLLM logs it only), mean over maximum of
the tokens per rank. All ranks wait for the fullest, so 0.5 doubles the expert part of every step. Whether it does is
looked up in the requests that ended meanwhile: the correlation of their inter-token latency with the imbalance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, server_entity
from gpumon.detect.hysteresis import Baseline, Held
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.model import RequestRecord, Unit

_BALANCES: Final = 300
_REQUESTS: Final = 64
_REQUESTS_LEAST: Final = 16
"""Fewer have no correlation."""
_PER_STEP: Final = 32
"""Requests looked at per step, the newest."""
_USUAL: Final = 120
_USUAL_LEAST: Final = 5


@dataclass(slots=True)
class _Experts:
    """One server's balance over the last minutes."""

    balances: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_BALANCES))
    usual: Baseline = field(default_factory=lambda: Baseline(_USUAL, _USUAL_LEAST))
    delays: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_REQUESTS))
    """Of a request: mean imbalance (1 / balance) and mean time between tokens while it made them."""
    worst: float = 1.0
    """Since it was found."""


class MoeImbalance:
    """See the module."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "moe_imbalance",
            "The mean over the maximum of the tokens per expert-parallel rank was below `balance` for `on_s` while "
            "requests ran: the fullest rank has more than 1 / `balance` times the mean.",
            (Severity.WARNING,),
            "All ranks wait for the one with the hot experts. Rebalance (SGLang: --enable-eplb; vLLM: --enable-eplb "
            "with --eplb-config), give hot experts redundant copies, or mix the traffic: one kind of prompt asks for "
            "the same experts.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "balance": "Mean over maximum of the tokens per rank; ratio. 0.5: the fullest rank has twice the mean.",
        "on_s": "True for this long; seconds. A few prompts alike are over sooner.",
        "off_s": "Untrue for this long, it is over; seconds.",
    }

    def __init__(self, *, balance: float = 0.5, on_s: float = 5.0, off_s: float = 10.0) -> None:
        self._balance = balance
        self._experts: Kept[Labels, _Experts] = Kept(_Experts)
        self._held: Held[Labels] = Held(on_s=on_s, off_s=off_s)

    def step(self, scene: Scene) -> Iterator[Finding]:
        told = scene.read(catalogue.SERVER_EXPERT_BALANCE)
        running = scene.values(catalogue.SERVER_RUNNING) if told else {}
        for labels, balance, at_s in told:
            experts = self._experts.look(labels, scene.at_s)
            if balance <= 0 or (experts.balances and at_s <= experts.balances[-1][0]):
                is_new = False
            else:
                is_new = True
                experts.balances.append((at_s, balance))
            self._note_requests(scene, labels, experts)
            runs = running.get(labels, 1.0)
            is_true = 0 < balance < self._balance and runs > 0
            since_s = self._held.feed(labels, is_true, at_s)
            if since_s is None:
                experts.worst = 1.0
                if is_new and not is_true and runs > 0:
                    experts.usual.feed(balance)
            elif is_true:
                experts.worst = min(experts.worst, balance)
                yield _finding(labels, experts, balance, since_s, running.get(labels))
        self._experts.sweep(scene.at_s)
        self._held.keep([key for key, _ in self._experts.items()])

    def _note_requests(self, scene: Scene, labels: Labels, experts: _Experts) -> None:
        """Requests of this server: of the same model where both name one, else of the same kind of server."""
        for record in scene.requests[-_PER_STEP:]:
            if record.server == labels[0] and (not record.model or not labels[1] or record.model == labels[1]):
                gap_s = _gap_s(record)
                if gap_s is None:
                    continue
                since_s, until_s = (scene.to_steady(moment) for moment in (record.first_token_ns or 0, record.end_ns))
                during = [1.0 / balance for at_s, balance in experts.balances if since_s <= at_s <= until_s + 1.0]
                if during:
                    experts.delays.append((sum(during) / len(during), gap_s))


def _gap_s(record: RequestRecord) -> float | None:
    """Mean time between the tokens of a request."""
    tokens, first_ns = record.completion_tokens, record.first_token_ns
    if record.outcome != "ok" or first_ns is None or tokens is None or tokens < 2:
        return None
    return max(0, record.end_ns - first_ns) / 1e9 / (tokens - 1)


def _correlation(delays: deque[tuple[float, float]]) -> float | None:
    """Pearson's r; None for few requests and where nothing varies."""
    if len(delays) < _REQUESTS_LEAST:
        return None
    imbalances, gaps = np.array(delays).T
    spread = float(imbalances.std() * gaps.std())
    if spread <= 1e-12:
        return None
    return float(np.mean((imbalances - imbalances.mean()) * (gaps - gaps.mean())) / spread)


def _finding(labels: Labels, experts: _Experts, balance: float, since_s: float, running: float | None) -> Finding:
    evidence = [
        Evidence("expert_balance", balance, Unit.RATIO, experts.usual.median),
        Evidence("lowest_balance", experts.worst, Unit.RATIO),
        Evidence("fullest_rank_over_mean", 1.0 / balance, Unit.RATIO),
    ]
    if running is not None:
        evidence.append(Evidence("running", running, Unit.NONE))
    correlation = _correlation(experts.delays)
    if correlation is not None:
        evidence.append(Evidence("correlation_with_inter_token", correlation, Unit.RATIO))
    return Finding(
        "moe_imbalance",
        server_entity(labels),
        Severity.WARNING,
        since_s,
        f"the fullest expert-parallel rank has {1.0 / balance:.1f} times the mean",
        tuple(evidence),
        weight=1.0 - balance,
    )
