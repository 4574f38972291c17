"""Whether tenants slow one another down: each one's tokens/s against how many tenants were active.

In cells of ten seconds or more. Tokens/s are those that one request of the tenant gets, its waiting included: tokens of
a request spread over its time, over the seconds for which the tenant's requests were open. In sum they would also fall
where a tenant merely asks for less. A tenant is active in a cell if its requests were open for 2 % of it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpumon.explain.diagnosis import figures
from gpumon.explain.diagnosis.model import Interference, TenantEffect, Verdict
from gpumon.explain.diagnosis.seen import Seen

ENGINES: Final = 8
TENANTS: Final = 20
ACTIVE: Final = 0.02
LEAST_CELLS: Final = 12
LEAST_OTHER: Final = 4
"""Of those, how many must have another number of active tenants than most have."""
BAD_R: Final = -0.7
SUSPECT_R: Final = -0.5
LOSS: Final = 0.2
"""Share of its tokens/s that a tenant must lose between the fewest and the most active tenants for a bad verdict."""


def interference(seen: Seen) -> tuple[Interference, ...]:
    """For each engine with more than one tenant, those with the most requests first."""
    found = []
    for engine in seen.engines:
        told = _of(seen, engine)
        if told is not None:
            found.append(told)
            if len(found) == ENGINES:
                break
    return tuple(found)


def _of(seen: Seen, engine: int) -> Interference | None:
    mine = seen.members(engine) & (seen.completion > 0)
    names, owners, requests = np.unique(seen.tenant[mine], return_inverse=True, return_counts=True)
    if len(names) < 2:
        return None
    cells = seen.cells
    span = seen.start_s[mine], seen.end_s[mine]
    open_s = cells.spread(*span, seen.duration_s[mine], owners, len(names))
    tokens = cells.spread(*span, seen.completion[mine], owners, len(names))
    is_active = open_s > ACTIVE * cells.width_s
    active = is_active.sum(axis=0).astype(np.float64)
    rates = np.where(is_active, tokens / np.maximum(open_s, 1e-9), np.nan)
    some = active > 0
    if not some.any():
        return None
    told = []
    for i, name in enumerate(names.tolist()):
        if not is_active[i].any():
            continue
        r, slope, n = figures.line(active, rates[i], least=LEAST_CELLS)
        if len(counts := np.bincount(active[is_active[i]].astype(np.intp))) and n - counts.max() < LEAST_OTHER:
            r = slope = None
        mean = float(np.nanmean(rates[i]))
        spread = float(np.ptp(active[is_active[i]]))
        effect = TenantEffect(
            tenant=seen.rows.tenants[name],
            requests=int(requests[i]),
            tokens_per_second=mean,
            n=n,
            r=r,
            slope=slope,
            verdict=_verdict(r, slope, mean, spread),
        )
        told.append((0.0 if slope is None else slope / mean if mean else 0.0, effect))
    told.sort(key=lambda each: (each[0], -each[1].requests, each[1].tenant))
    group = seen.of(engine)
    return Interference(
        server=group.server,
        model=group.model,
        cell_seconds=cells.width_s,
        active_mean=float(active[some].mean()),
        active_most=int(active.max()),
        tenants=tuple(effect for _, effect in told[:TENANTS]),
    )


def _verdict(r: float | None, slope: float | None, mean: float, spread: float) -> Verdict:
    if r is None or slope is None:
        return "unknown"
    loss = -slope * spread / max(mean - slope * spread / 2, 1e-9)
    if r < BAD_R and loss > LOSS:
        return "bad"
    return "suspect" if r < SUSPECT_R else "ok"
