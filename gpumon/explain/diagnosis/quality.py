"""Evaluation scores against token rate, by engine, prompt group and evaluation.

A prompt group is a prompt hash; requests without one are a group of their own. Answers that get worse as they get
slower have one cause for both on this node (an overloaded server that cuts answers short); r says whether it is so.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpumon.explain.diagnosis import figures
from gpumon.explain.diagnosis.model import QualityLink, Verdict
from gpumon.explain.diagnosis.seen import Seen

LINKS: Final = 20
GROUPS: Final = 50
"""Prompt groups of an evaluation that are looked at: those with the most requests."""
HASH: Final = 16
"""Characters of a prompt hash that are told."""
LEAST: Final = 5
"""Requests for a line at all; a correlation needs figures.LEAST."""
BAD_R: Final = 0.7
SUSPECT_R: Final = 0.5


def quality(seen: Seen) -> tuple[QualityLink, ...]:
    """The strongest links first, then those with the most requests."""
    rates = seen.rows.column("tokens_per_s")
    prompts = seen.rows.index("prompt")
    found = []
    for name in seen.rows.score_names():
        scores = seen.rows.score(name)
        told = np.flatnonzero(np.isfinite(scores) & np.isfinite(rates))
        keys = seen.group[told] * len(seen.rows.prompts) + prompts[told]
        unique, counts = np.unique(keys, return_counts=True)
        most = np.argsort(-counts, kind="stable")[:GROUPS]
        for key in unique[most[counts[most] >= LEAST]].tolist():
            mine = told[keys == key]
            r, slope, n = figures.line(rates[mine], scores[mine])
            group = seen.of(int(seen.group[mine[0]]))
            found.append(
                QualityLink(
                    server=group.server,
                    model=group.model,
                    prompts=seen.rows.prompts[prompts[mine[0]]][:HASH],
                    evaluation=name,
                    n=n,
                    score_mean=float(scores[mine].mean()),
                    tokens_per_second_mean=float(rates[mine].mean()),
                    r=r,
                    slope=slope,
                    verdict=_verdict(r),
                )
            )
    found.sort(key=lambda link: (-abs(link.r or 0.0), -link.n, link.evaluation, link.prompts))
    return tuple(found[:LINKS])


def _verdict(r: float | None) -> Verdict:
    if r is None:
        return "unknown"
    # A score that rises as answers get slower is no harm that slowness does.
    return "bad" if r > BAD_R else "suspect" if r > SUSPECT_R else "ok"
