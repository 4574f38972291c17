"""Any client or gateway that follows OpenTelemetry's GenAI conventions, old spelling or new.

One span per call, as the caller saw it: its time to first token includes the network. Agents, tools and retrieval are
no inference requests.
"""

from __future__ import annotations

from gpumon.ingest.adapters.request import request_seen
from gpumon.ingest.adapters.seen import Ignored, Reading, Seen
from gpumon.ingest.adapters.steps import step_seen
from gpumon.ingest.records import STEP_SPAN_NAMES, SpanRecord

_OPERATION = "gen_ai.operation.name"
_INFERENCE = frozenset({"chat", "text_completion", "completion", "generate_content", "embeddings", "responses"})
_MARKS = (  # any one of them makes a span without an operation's name an inference request
    "gen_ai.request.model",
    "gen_ai.response.model",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "gen_ai.usage.input_tokens",
    "gen_ai.latency.e2e",
)


class GenAi:
    """Adapter of the GenAI conventions."""

    server = "genai"
    first_in_steps = True
    first_is_prefill = False

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        attributes = span.attributes
        operation = attributes.get(_OPERATION)
        if operation is not None:
            if operation in _INFERENCE:
                return request_seen(span, self.server, reading)
            return Ignored.UNUSED
        if span.name in STEP_SPAN_NAMES and span.parent_id is not None:
            return step_seen(span, "gen_ai.token.index")
        if any(mark in attributes for mark in _MARKS):
            return request_seen(span, self.server, reading)
        return Ignored.UNKNOWN_SCOPE
