"""Divides an excess among what may have caused it. Conserved: what is divided is the excess, no more and no less.

Three steps, for each slow stretch:

1. What load explains is worked out: the prompt tokens of others that were computed in it, by what such a token costs;
   what a larger batch or a longer context adds to a step, by what is expected of them.
2. Conditions claim the rest. A claim is as large as the condition can have cost (its cap: a clock that fell by 29 %
   makes work longer by 0.29 / 0.71 of it, a process that was stopped for 0.4 s adds 0.4 s), times how sure it is, times
   what its lift says. Claims that are more than the rest share it in proportion.
3. What is left is unexplained, except that load may have cost somewhat more than was worked out, that a batch or a
   context larger than any known may have, and that prompts of requests that still run, which only the server's page
   knows of, may have been computed in it.

A batch that grows because the hardware is slow is the hardware's: where a condition is sure and no more requests came
than usual, what the batch adds goes to step 2; where more came, the part that is told (``behind_s``). A straggler that
has a reason of its own is not the reason.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import INDEX, LOAD, SLOWING, UNEXPLAINED, is_fault

Array = NDArray[np.float64]

_UNSURE: Final = 0.15
_SURE: Final = 0.7
_ROOM: Final = 1.3
"""Times its cap that a condition may claim: caps are as exact as sampling is."""
_STRETCH: Final = 0.1
"""Part of its worth by which load may have cost more."""
_SLOWING: Final = np.array([cause in SLOWING for cause in CAUSES])
_SPECIFIC: Final = np.array([is_fault(cause) and cause != "straggler" for cause in CAUSES])
_FAULT: Final = np.array([is_fault(cause) for cause in CAUSES])
_PROMPTS: Final = INDEX["prefill_interference"]
_HOLDS_UP: Final = _FAULT & np.array([cause != "gpu_error" for cause in CAUSES])
"""What makes a batch grow. A server that was gone has no batch, and what came meanwhile is its load once it is back."""
_OR_HELD: Final = _HOLDS_UP | np.array([cause == "queueing" for cause in CAUSES])
"""The same, or a scheduler that holds steps back."""
_GROWTH, _LONG = INDEX["batch_growth"], INDEX["long_context"]
_STRAGGLER, _QUEUEING, _UNEXPLAINED = INDEX["straggler"], INDEX["queueing"], INDEX[UNEXPLAINED]
_ALWAYS: Final = [_GROWTH, _LONG, _STRAGGLER, _QUEUEING, _PROMPTS, _UNEXPLAINED]
_LOAD: Final = np.array([cause in LOAD for cause in CAUSES])


def sureness(evidence: Array) -> Array:
    """Evidence as a weight: none below 0.15, all from 0.7 on. What is likely is taken for true: shares are of causes,
    not of probabilities."""
    return np.asarray(np.clip((evidence - _UNSURE) / (_SURE - _UNSURE), 0.0, 1.0))


def held_up(evidence: Array, weights: Array, *, queueing: bool = True) -> Array:
    """Of evidence of shape (n, CAUSES): how sure it is that something makes a batch grow but more requests, (n,).

    queueing: whether a scheduler that holds steps back is such a thing."""
    return _held_up(evidence, weights, _OR_HELD if queueing else _HOLDS_UP)


def _held_up(evidence: Array, weights: Array, holds_up: NDArray[np.bool_]) -> Array:
    return np.asarray(np.where(holds_up, sureness(evidence) * weights, 0.0).max(axis=1))


class Claims(NamedTuple):
    """What is known of n slow stretches."""

    excess_s: Array
    """(n,)"""
    expected_s: Array
    load_s: Array
    """(n, CAUSES): seconds that load is worth; 0 elsewhere."""
    spare_s: Array
    """(n,): what prompts of which nothing is known can have cost, if nothing else did."""
    evidence: Array
    """(n, CAUSES)"""
    before: Array
    """(n, CAUSES): the greatest in it and in the seconds before: what a batch grows behind."""
    lost: Array
    """(n, CAUSES): mean share of the time around that each condition can have taken."""
    lost_s: Array
    """(n, CAUSES): all of that time, in the half seconds that the stretch touches."""
    weights: Array
    """(CAUSES,): by lift."""
    grown: NDArray[np.bool_]
    """(n,): whether more came than usual."""
    load_first: bool = True
    """Whether what load is worth is so well known that conditions only get the rest; else all claims are alike."""
    behind_s: Array | float = 0.0
    """(n,): what a batch costs that a condition made larger, beside what more requests made of it."""
    guess_s: Array | float = 0.0
    """(n,): what a batch larger than any that is known can cost beyond what it is expected to."""
    longer_s: Array | float = 0.0
    """(n,): the same of a context that has grown, and is longer than any known."""


class _Kinds(NamedTuple):
    """Which of some causes are what: masks over their columns, and places among them."""

    columns: NDArray[np.intp]
    """Positions in CAUSES."""
    slowing: NDArray[np.bool_]
    specific: NDArray[np.bool_]
    fault: NDArray[np.bool_]
    holds_up: NDArray[np.bool_]
    load: NDArray[np.bool_]
    growth: int
    long: int
    straggler: int
    queueing: int
    prompts: int
    unexplained: int


@lru_cache(maxsize=64)
def _kinds(columns: tuple[int, ...]) -> _Kinds:
    of = np.array(columns, dtype=np.intp)
    return _Kinds(
        columns=of,
        slowing=_SLOWING[of],
        specific=_SPECIFIC[of],
        fault=_FAULT[of],
        holds_up=_OR_HELD[of],
        load=_LOAD[of],
        growth=columns.index(_GROWTH),
        long=columns.index(_LONG),
        straggler=columns.index(_STRAGGLER),
        queueing=columns.index(_QUEUEING),
        prompts=columns.index(_PROMPTS),
        unexplained=columns.index(_UNEXPLAINED),
    )


def divide(claims: Claims) -> Array:
    """Seconds by stretch and cause, shape (n, CAUSES). Rows add up to the excess; none is negative."""
    # Most causes are of no stretch: it is divided among the others.
    some = {*_ALWAYS}
    for each in (claims.evidence, claims.before, claims.load_s):
        some.update(np.flatnonzero(each.any(axis=0)).tolist())
    of = _kinds(tuple(sorted(some)))
    shares = np.zeros((len(claims.excess_s), len(CAUSES)))
    shares[:, of.columns] = _divided(
        claims._replace(
            load_s=claims.load_s[:, of.columns],
            evidence=claims.evidence[:, of.columns],
            before=claims.before[:, of.columns],
            lost=claims.lost[:, of.columns],
            lost_s=claims.lost_s[:, of.columns],
            weights=claims.weights[of.columns],
        ),
        of,
    )
    return shares


def _divided(claims: Claims, of: _Kinds) -> Array:
    """The same, of some causes."""
    excess = claims.excess_s
    sure = sureness(claims.evidence)
    specific = np.where(of.specific, sure * claims.weights, 0.0).max(axis=1)
    sure[:, of.straggler] *= 1 - specific
    load = claims.load_s.copy()
    # Whatever the load is worth, it is no more than the excess.
    load *= np.minimum(1.0, excess / np.maximum(load.sum(axis=1), 1e-12))[:, None]
    held = _held_up(claims.before, claims.weights, of.holds_up)
    behind = np.where(claims.grown, 0.0, held)
    behind_s = np.minimum(claims.behind_s, np.maximum(excess - load.sum(axis=1), 0.0))
    inherited = load[:, of.growth] * behind + behind_s
    load[:, of.growth] *= 1 - behind
    roots = np.where(of.holds_up, sureness(claims.before) * claims.weights, 0.0)
    roots[:, of.straggler] *= 1 - np.where(of.specific, roots, 0.0).max(axis=1)
    roots[:, of.queueing] *= 1 - np.where(of.fault, roots, 0.0).max(axis=1)
    whole = roots.sum(axis=1)[:, None]
    parts = np.divide(roots, whole, out=np.zeros_like(roots), where=whole > 0)
    roots = parts * inherited[:, None]
    faults = np.where(of.fault, sure * claims.weights, 0.0).max(axis=1)
    sure[:, of.load] *= np.where(claims.grown, 1.0, 1 - faults)[:, None]
    # Pauses between steps are seen in the excess itself: where something else is there, they are that.
    sure[:, of.queueing] *= np.where(claims.grown, 1 - faults, 1.0)
    rest = np.maximum(excess - load.sum(axis=1) - roots.sum(axis=1), 0.0)
    # Work that is longer by a factor, or time in which nothing went on: that may all be in this one step.
    work = claims.expected_s + load.sum(axis=1) + inherited
    slowed = work[:, None] * claims.lost / np.maximum(1 - claims.lost, 1e-3)
    bounds = _ROOM * np.where(of.slowing, slowed, np.maximum(slowed, claims.lost_s))
    most = rest if claims.load_first else excess
    # What only a page knows of a load is more of what was worked out, or it is nothing.
    wanted = sure * claims.weights * np.minimum(bounds, np.where(of.load, rest[:, None], most[:, None]))
    sums = wanted.sum(axis=1) + (0.0 if claims.load_first else load.sum(axis=1))
    fits = np.minimum(1.0, np.divide(most, sums, out=np.ones(len(most)), where=sums > 0))[:, None]
    wanted *= fits
    if not claims.load_first:
        load *= fits
        rest = np.maximum(excess - load.sum(axis=1) - roots.sum(axis=1), 0.0)
    left = np.maximum(rest - wanted.sum(axis=1), 0.0)
    worth = load.sum(axis=1)
    # With a fault at work, what is left may as well be the fault's.
    more = np.minimum(left, _STRETCH * worth * (1 - faults))
    load *= (1 + np.divide(more, worth, out=np.zeros(len(worth)), where=worth > 0))[:, None]
    left = left - more
    # A batch of a size never seen: it is the hardware's where that has made it grow, and load where more came.
    guess = np.minimum(left, claims.guess_s)
    roots += parts * (guess * held)[:, None]
    load[:, of.growth] += np.where(claims.grown, guess * (1 - held), 0.0)
    left = np.maximum(left - np.where(claims.grown, guess, guess * held), 0.0)
    longer = np.minimum(left, claims.longer_s)
    load[:, of.long] += longer
    left = left - longer
    load[:, of.prompts] += np.minimum(left, claims.spare_s)
    shares = load + roots + wanted
    shares[:, of.unexplained] += np.maximum(excess - shares.sum(axis=1), 0.0)
    # Rounding: the sum is the excess.
    total = shares.sum(axis=1)
    shares *= np.divide(excess, total, out=np.zeros(len(total)), where=total > 0)[:, None]
    return np.asarray(shares)
