"""gpumon's own contract (docs/TOKENS.md): shims, proxies and ``gpumon.tokens``.

The request span carries token events or the compact array; or every token or step is a child span. A token event or
step without a count is one token.
"""

from __future__ import annotations

from gpumon.ingest.adapters.request import request_seen
from gpumon.ingest.adapters.seen import Ignored, LinkSeen, Reading, Seen
from gpumon.ingest.adapters.steps import step_seen
from gpumon.ingest.records import STEP_SPAN_NAMES, TOKEN_TIMES, SpanRecord

SCOPE = "gpumon.tokens"
REQUEST = "gen_ai.request"
"""Name of the request span in the contract's own scope."""


class Contract:
    """Adapter of gpumon's own contract."""

    server = "gpumon"
    first_in_steps = True
    first_is_prefill = False

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        if span.name in STEP_SPAN_NAMES:
            return step_seen(span, "gen_ai.token.index")
        if span.name == REQUEST or span.tokens is not None or TOKEN_TIMES in span.attributes:
            return request_seen(span, self.server, reading)
        return LinkSeen(span.start_ns, span.end_ns) if span.parent_id is not None else Ignored.UNUSED
