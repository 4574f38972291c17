"""Why a first token was late: the wait for a place in the batch, and the computing of the prompt, looked at apart.

The wait is slow where it is over what is usual by more than two steps, and over what one in twenty waits: then it is
the queue's, or the full KV cache's. The wait is the fault's where a fault was there, in or shortly before it, and no
more requests came than usual: a slow server has a queue. The computing of the prompt is slow where it took over
``SLOW`` times what prompts of its length take, or where the prompt is over ``LONG`` times the mean one: that part is
its own length's, before anybody else is asked. Prompts of others that were computed in the same steps have their cost
per token; the rest is for the conditions to claim, as between tokens.

Where a server does not tell how long a request waited, all of it counts as computing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import INDEX, is_fault
from gpumon.explain.shares import Array, Claims, divide, held_up, sureness
from gpumon.explain.usual import Load

SLOW: Final = 1.25
SLOW_THEN: Final = 1.08
LONG: Final = 1.5
SLACK_S: Final = 0.01
BEFORE_S: Final = 20.0
"""How long before its wait a fault can have made the queue."""
_MAKES_QUEUE: Final = np.array([is_fault(cause) and cause != "gpu_error" for cause in CAUSES])
"""What makes those wait that come after it. A server that was gone makes only those wait that came meanwhile."""
_STALLS: Final = [INDEX["process_stopped"], INDEX["gpu_error"]]


class Waited(NamedTuple):
    """n requests, as columns."""

    wait_s: Array
    prompt_s: Array
    """From admission to the first token."""
    computed: Array
    """Prompt tokens to be computed."""
    beside: Array
    """Those of others meanwhile."""
    beside_length: Array
    """Mean length of the prompts these are of."""
    step_s: Array
    """Expected, of a decode step then."""
    grown: NDArray[np.bool_]
    wait_tokens: Array
    """Prompt tokens of others that were computed while it waited, and the mean length of their prompts."""
    wait_length: Array
    wait_evidence: Array
    """(n, CAUSES): while it waited."""
    wait_lost_s: Array
    """(n, CAUSES): time of the half seconds touched that each condition can have taken."""
    before_evidence: Array
    """(n, CAUSES): from ``BEFORE_S`` before it on."""
    prompt_evidence: Array
    """(n, CAUSES): while its prompt was computed."""
    prompt_lost: Array
    prompt_lost_s: Array
    """(n, CAUSES): likewise, as time in the half seconds touched."""


class Judged(NamedTuple):
    """Of n requests."""

    expected_s: Array
    excess_s: Array
    shares_s: Array
    """(n, CAUSES)"""


class Usually(NamedTuple):
    """Of n requests."""

    expected_s: Array
    """Of those that are not late."""
    may_be_late: NDArray[np.bool_]
    """All others surely are not, whatever held."""


def usually(wait_s: Array, prompt_s: Array, computed: Array, step_s: Array, load: Load) -> Usually | None:
    """A look at n requests, as columns of ``Waited``, before it is asked what held. None while too little is known."""
    computed = np.maximum(computed, 1.0)
    usual_prompt_s, mean_computed = load.prompt_s.at(computed), load.computed.mean()
    if usual_prompt_s is None or mean_computed is None:
        return None
    usual_wait_s = load.queue_s.value() or 0.0
    queued = (wait_s - usual_wait_s > 2 * step_s + SLACK_S) & (wait_s > (load.queue_s.high() or 0.0))
    is_slow = (prompt_s > SLOW_THEN * usual_prompt_s) & (prompt_s - usual_prompt_s > SLACK_S)
    return Usually(usual_wait_s + usual_prompt_s, queued | is_slow | (computed > LONG * mean_computed))


def judge(waited: Waited, load: Load, weights: Array) -> Judged | None:
    """None while too little is known. weights: of each cause, by its lift."""
    computed = np.maximum(waited.computed, 1.0)
    usual_prompt_s = load.prompt_s.at(computed)
    mean_computed = load.computed.mean()
    if usual_prompt_s is None or mean_computed is None:
        return None
    wait_s = load.queue_s.value() or 0.0
    shares = np.zeros((len(computed), len(CAUSES)))
    wait_cost_s = load.token_s.at(np.maximum(waited.wait_length, 1.0))
    busy_s = waited.wait_tokens * wait_cost_s if wait_cost_s is not None else np.zeros(len(computed))
    queued = _queued(waited, wait_s, load.queue_s.high() or 0.0, busy_s, weights, shares)
    short_s = load.prompt_s.at(np.minimum(computed, max(mean_computed, 1.0)))
    assert short_s is not None
    is_long = (computed > LONG * mean_computed) & (usual_prompt_s - short_s > SLACK_S)
    expected_s = np.where(is_long, short_s, usual_prompt_s)
    over = waited.prompt_s - usual_prompt_s
    # Where something surely was wrong, less is more than chance.
    limit = np.where(held_up(waited.prompt_evidence, weights) > 0.5, SLOW_THEN, SLOW)
    is_slow = (waited.prompt_s > limit * usual_prompt_s) & (over > SLACK_S)
    longer_s = np.where(is_long, np.clip(waited.prompt_s - short_s, 0.0, usual_prompt_s - short_s), 0.0)
    excess = np.maximum(np.where(is_slow, over, 0.0) + longer_s, 0.0)
    # What a prompt's own length adds is its own, whatever else there is.
    shares[:, INDEX["long_context"]] = longer_s = np.minimum(longer_s, excess)
    load_s = np.zeros_like(shares)
    token_s = load.token_s.at(np.maximum(waited.beside_length, 1.0))
    if token_s is not None:
        more = np.maximum(waited.beside - (load.beside.value() or 0.0), 0.0)
        load_s[:, INDEX["prefill_interference"]] = np.where(is_slow, more * token_s, 0.0)
    claims = Claims(
        excess_s=excess - longer_s,
        expected_s=expected_s + longer_s,
        load_s=load_s,
        spare_s=np.zeros(len(computed)),
        evidence=waited.prompt_evidence,
        before=waited.prompt_evidence,
        lost=waited.prompt_lost,
        lost_s=waited.prompt_lost_s,
        weights=weights,
        grown=np.ones(len(computed), dtype=bool),
        # On slow hardware a prompt has more of others beside it, for as long as it takes.
        load_first=False,
    )
    shares += divide(claims)
    return Judged(wait_s + expected_s, queued + excess, shares)


def _queued(waited: Waited, usual_s: float, high_s: float, busy_s: Array, weights: Array, shares: Array) -> Array:
    """Excess of the waits; divides it into ``shares``. high_s: a wait that is not unusual yet. busy_s: what the prompts
    that were computed meanwhile are worth."""
    excess = waited.wait_s - usual_s
    excess = np.where((excess > 2 * waited.step_s + SLACK_S) & (waited.wait_s > high_s), excess, 0.0)
    # Time in which nothing went on at all.
    # The wait itself is seen: whether the same condition slows those that run, which is its lift, does not matter.
    sure = sureness(waited.wait_evidence)
    stalls = sure[:, _STALLS] * waited.wait_lost_s[:, _STALLS]
    sums = stalls.sum(axis=1)
    stalls *= np.minimum(1.0, np.divide(excess, sums, out=np.ones(len(sums)), where=sums > 0))[:, None]
    shares[:, _STALLS] += stalls
    rest = np.maximum(excess - stalls.sum(axis=1), 0.0)
    behind = np.where(_MAKES_QUEUE, sureness(waited.before_evidence) * weights, 0.0)
    most = np.where(waited.grown, 0.0, behind.max(axis=1))
    parts = np.divide(
        behind, behind.sum(axis=1)[:, None], out=np.zeros_like(behind), where=behind.sum(axis=1)[:, None] > 0
    )
    shares += parts * (rest * most)[:, None]
    rest = rest * (1 - most)
    full = sure[:, INDEX["kv_pressure"]]
    # With a place free in the batch it waited for the step under way, which was long for the prompts in it.
    free = 1 - np.maximum(full, sure[:, INDEX["queueing"]])
    step_s = np.minimum(rest * free, busy_s)
    shares[:, INDEX["prefill_interference"]] += step_s
    rest = rest - step_s
    shares[:, INDEX["kv_pressure"]] += rest * full
    shares[:, INDEX["queueing"]] += rest * (1 - full)
    return np.asarray(excess)
