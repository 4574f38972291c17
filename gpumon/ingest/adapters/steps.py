"""Step spans that came as single spans: with a status, without a parent, or among too few to be columns."""

from __future__ import annotations

from gpumon.ingest.adapters.seen import StepSeen
from gpumon.ingest.adapters.values import count
from gpumon.ingest.records import TOKEN_COUNT, SpanRecord


def step_seen(span: SpanRecord, index_attribute: str) -> StepSeen:
    """The step that a span says, numbered by ``index_attribute``; one token where no count is told."""
    index = count(span.attributes.get(index_attribute))
    tokens = count(span.attributes.get(TOKEN_COUNT))
    return StepSeen(
        span.start_ns, span.end_ns, -1 if index is None else index, 1 if tokens is None else min(tokens, 1 << 30)
    )
