"""What is said of a request: how late it was, in which gaps, and why. Conserved: the causes of an account add up.

Seconds are those of the request's client: a gap that made one request wait 0.1 s is 0.1 s, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpumon.explain.group import Group
from gpumon.explain.signs import Fact
from gpumon.model import RequestRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Key = tuple[str, str]
"""Of a request: trace and span id in hex digits, the latter empty where it is not known."""


class Share(NamedTuple):
    """Part of an excess that a cause explains."""

    cause: str
    seconds: float
    evidence: float
    """Of the condition meanwhile, 0 to 1; 0 for ``unexplained``."""
    lift: float | None
    """How many times as much excess there was in the last minutes while it held than while it did not; None where it
    never or always held, or is worked out from load."""
    fact: Fact | None = None


class Account(NamedTuple):
    """Time to first token, or the gaps after it."""

    expected_s: float | None
    """What it usually takes under the usual load; None where too little is known yet. Then there is no excess."""
    actual_s: float
    excess_s: float
    """Of what was slow: actual over expected. Exactly the sum of the shares."""
    shares: tuple[Share, ...]
    """The largest first; ``unexplained`` stands in its place."""

    @property
    def cause(self) -> str:
        """The main one; empty where nothing was slow."""
        return self.shares[0].cause if self.shares else ""


class SlowGap(NamedTuple):
    """A gap that was slow, or a stretch of about a second whose gaps were each a little slow."""

    start_s: float
    """Steady seconds: of the token before."""
    end_s: float
    tokens: int
    """Made in it."""
    expected_s: float
    excess_s: float
    shares: tuple[Share, ...]


class Explained(NamedTuple):
    """One request that ended."""

    record: RequestRecord
    group: Group
    start_s: float
    """Steady seconds, as all times here."""
    end_s: float
    first_token: Account
    decode: Account
    slow_gaps: Sequence[SlowGap]
    """The slowest ones, at most 64, by time."""
    token_s: NDArray[np.float64] | None
    """Times of its decode steps, steady; None where they are not known or not kept."""
    signals: NDArray[np.float32]
    """Means over the request of ``dimensions.DIMENSIONS``, in their order; NaN where not known."""

    @property
    def excess_s(self) -> float:
        """Of both accounts."""
        return self.first_token.excess_s + self.decode.excess_s

    def by_cause(self) -> dict[str, float]:
        """Seconds of both accounts by cause, the largest first."""
        sums: dict[str, float] = {}
        for share in (*self.first_token.shares, *self.decode.shares):
            sums[share.cause] = sums.get(share.cause, 0.0) + share.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def key_of(explained: Explained) -> Key:
    """Of a request."""
    span_id = explained.record.span_id
    return explained.record.trace_id.hex(), span_id.hex() if any(span_id) else ""


def without_times(record: RequestRecord) -> RequestRecord:
    """A copy that keeps no times of tokens alive. By position: ``dataclasses.replace`` takes ten times as long."""
    return RequestRecord(
        record.trace_id,
        record.request_id,
        record.server,
        record.model,
        record.arrived_s,
        record.start_ns,
        record.end_ns,
        record.first_token_ns,
        record.time_to_first_token_s,
        record.queue_s,
        record.prefill_s,
        record.decode_s,
        record.kv_sync_s,
        None,
        None,
        record.per_token,
        record.prompt_tokens,
        record.completion_tokens,
        record.cached_tokens,
        record.outcome,
        record.tenant,
        record.inference_id,
        record.prompt_hash,
        record.parameters,
        record.evaluations,
        record.concurrency,
        record.binding,
        {},
        record.span_id,
    )
