"""How steadily an engine's batch is filled, and whether rare queries pay for it.

Where requests are held back until a batch is full, a query like many others finds company soon and a rare one waits.
Frequent and rare queries are told apart by prompt hash, else by tenant: rare are those of which there were less than
half as many as of the average one, frequent the others. What they wait shows in the time to first token, what the steps
are held back in the gaps; of both the P99 over what is usual for that class.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.diagnosis.figures import Floats, quantile
from gpumon.explain.diagnosis.model import BatchJitter, QueryClass, Verdict
from gpumon.explain.diagnosis.seen import Seen

ENGINES: Final = 8
LEAST: Final = 20
"""Requests of an engine, and of each class for a verdict."""
RARE: Final = 0.5
"""Of the requests of an average query."""
HASHED: Final = 0.5
"""Share of the requests that must have a hash."""
FILL: Final = 0.75
"""Up to which a batch is not full; as ``detect.batch``. On a full one waiting is what a queue does."""
BAD: Final = 2.0
SUSPECT: Final = 1.5
FLOOR_S: Final = 0.02
"""Difference that nobody notices; as ``detect.batch``."""


def batches(seen: Seen) -> tuple[BatchJitter, ...]:
    """For each engine with enough requests, those with the most first."""
    return tuple(_of(seen, engine) for engine in seen.engines[:ENGINES] if seen.members(engine).sum() >= LEAST)


def _of(seen: Seen, engine: int) -> BatchJitter:
    mine = seen.members(engine)
    group = seen.of(engine)
    # Whoever is counted was open itself.
    opened = np.maximum(seen.rows.column("concurrency")[mine], 1.0)
    classed_by, is_rare = _rare(seen, mine)
    frequent, rare = _class(seen, mine & ~is_rare), _class(seen, mine & is_rare)
    fill = float(opened.mean() / opened.max())
    ratio, apart_s = _compared(rare, frequent)
    return BatchJitter(
        server=group.server,
        model=group.model,
        fill=fill,
        open_most=int(opened.max()),
        spacing_jitter=_spacing(seen.start_s[mine]),
        classed_by=classed_by,
        frequent=frequent,
        rare=rare,
        rare_over_frequent=ratio,
        verdict=_verdict(ratio, apart_s, fill, min(rare.requests, frequent.requests)),
    )


def _rare(seen: Seen, mine: NDArray[np.bool_]) -> tuple[Literal["prompt_hash", "tenant", "none"], NDArray[np.bool_]]:
    """By what queries are classed, and which are rare."""
    prompts, tenants = seen.rows.index("prompt"), seen.tenant
    is_hashed = np.array([bool(name) for name in seen.rows.prompts])[prompts]
    if (mine & is_hashed).sum() >= HASHED * mine.sum():
        rare = _few(prompts, mine & is_hashed, len(seen.rows.prompts))
        if rare.any():
            return "prompt_hash", rare
    rare = _few(tenants, mine, len(seen.rows.tenants))
    return ("tenant" if rare.any() else "none"), rare


def _few(keys: NDArray[np.intp], chosen: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    counts = np.bincount(keys[chosen], minlength=size)
    average = counts.sum() / max(int((counts > 0).sum()), 1)
    few: NDArray[np.bool_] = chosen & (counts < RARE * average)[keys]
    return few


def _class(seen: Seen, chosen: NDArray[np.bool_]) -> QueryClass:
    first_s = seen.rows.column("first_token_s")[chosen]
    gaps_s = (seen.rows.column("gap_max_s") - seen.rows.column("gap_mean_s"))[chosen]
    middle, high = quantile(first_s, 0.5), quantile(first_s, 0.99)
    return QueryClass(
        requests=int(chosen.sum()),
        first_token_p50=middle,
        first_token_jitter_p99=None if middle is None or high is None else high - middle,
        gap_jitter_p99=quantile(gaps_s, 0.99),
    )


def _compared(rare: QueryClass, frequent: QueryClass) -> tuple[float | None, float]:
    """The worse ratio of the two jitters, and its difference in seconds."""
    found: tuple[float | None, float] = None, 0.0
    pairs = (
        (rare.first_token_jitter_p99, frequent.first_token_jitter_p99),
        (rare.gap_jitter_p99, frequent.gap_jitter_p99),
    )
    for few, many in pairs:
        if few is not None and many is not None and many > 0 and (found[0] is None or few / many > found[0]):
            found = few / many, few - many
    return found


def _spacing(start_s: Floats) -> float | None:
    apart_s = np.diff(np.sort(start_s))
    mean_s = float(apart_s.mean()) if len(apart_s) else 0.0
    return float(apart_s.std() / mean_s) if mean_s > 0 else None


def _verdict(ratio: float | None, apart_s: float, fill: float, least: int) -> Verdict:
    if ratio is None or least < LEAST:
        return "unknown"
    if fill > FILL or apart_s < FLOOR_S or ratio < SUSPECT:
        return "ok"
    return "bad" if ratio > BAD else "suspect"
