"""Latency by context length, along the doubling ladder of the metrics, for each engine.

A request counts where its prompt does, as it does for ``detect.context_cliff``; those that failed are left out.
Normalised throughput is tokens/s over max(1, context / 8192), the context being prompt and answer: work per token does
not grow until attention outweighs the weights, and then with the context, so that a level line is in step with that and
a falling one is worse.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpumon.catalogue import CONTEXT_BUCKETS
from gpumon.detect.growth import RATIO
from gpumon.explain.diagnosis.figures import Floats, mean, quantile
from gpumon.explain.diagnosis.model import ContextProfile, ContextRow
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.request_rows import OUTCOMES
from gpumon.requests.buckets import context_buckets

ENGINES: Final = 8
UNIT_TOKENS: Final = 8192.0
LEAST: Final = 20
"""Requests of both buckets for a cliff."""


def contexts(seen: Seen) -> tuple[ContextProfile, ...]:
    """For each engine whose prompts are counted, those with the most requests first."""
    found = []
    is_ok = seen.rows.index("outcome") == OUTCOMES.index("ok")
    for engine in seen.engines:
        mine = np.flatnonzero(seen.members(engine) & is_ok & (seen.prompt >= 0))
        if len(mine):
            found.append(_profile(seen, engine, mine))
            if len(found) == ENGINES:
                break
    return tuple(found)


def _profile(seen: Seen, engine: int, mine: np.ndarray[tuple[int], np.dtype[np.intp]]) -> ContextProfile:
    buckets = context_buckets(seen.prompt[mine])
    per_s = seen.rows.column("tokens_per_s")
    first_s = seen.rows.column("first_token_s")
    context: Floats = seen.prompt + np.where(seen.completion > 0, seen.completion, 0.0)
    normalised = per_s / np.maximum(1.0, context / UNIT_TOKENS)
    rows: list[ContextRow] = []
    cliff, before = "", (-1, 0, 0.0)
    for bucket in np.unique(buckets).tolist():
        part = mine[buckets == bucket]
        taken_s = seen.duration_s[part]
        p95 = quantile(taken_s, 0.95) or 0.0
        growth = p95 / before[2] if before[0] == bucket - 1 and before[2] > 0 else None
        if not cliff and growth is not None and growth > RATIO and min(len(part), before[1]) >= LEAST:
            cliff = CONTEXT_BUCKETS[bucket]
        rows.append(
            ContextRow(
                bucket=CONTEXT_BUCKETS[bucket],
                requests=len(part),
                response_mean=mean(taken_s) or 0.0,
                response_p95=p95,
                first_token_p95=quantile(first_s[part], 0.95),
                decode_tokens_per_second=mean(per_s[part]),
                normalised_throughput=mean(normalised[part]),
                growth=growth,
            )
        )
        before = bucket, len(part), p95
    group = seen.of(engine)
    return ContextProfile(server=group.server, model=group.model, rows=tuple(rows), cliff=cliff)
