"""Text Generation Inference: the router's request span, ``queued``, and an ``infer`` span per request and step.

The request span is the HTTP handler's, which alone carries ``total_time`` or ``parameters``; its inner functions use
the same names and only tie. Times are texts in Rust's Debug form. The first ``infer`` is the prefill and makes the
first token. ``batch`` spans are roots of traces of their own and ignored, as is ``send_generation``, whose attribute
``generation`` holds the text.
"""

from __future__ import annotations

from gpumon.ingest.adapters.request import request_seen
from gpumon.ingest.adapters.seen import Ignored, LinkSeen, Phase, PhaseSeen, Reading, RequestSeen, Seen
from gpumon.ingest.adapters.steps import step_seen
from gpumon.ingest.adapters.values import seconds
from gpumon.ingest.records import SpanRecord

_HANDLERS = frozenset({"generate", "generate_stream", "chat_completions", "completions", "compat_generate"})
_LINKS = _HANDLERS | {"schedule", "async_stream", "generate_best_of", "kserve_model_infer", "vertex_compatibility"}
_QUEUE_TIME = "queue_time"
_INFERENCE_TIME = "inference_time"
_TIME_PER_TOKEN = "time_per_token"  # noqa: S105


class Tgi:
    """Adapter of TGI's spans."""

    server = "tgi"
    first_in_steps = True
    first_is_prefill = True

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        name = span.name
        if name == "infer":
            return step_seen(span, "")
        if name == "queued":
            return PhaseSeen(Phase.QUEUE, span.start_ns, span.end_ns)
        if name in _LINKS:
            if "total_time" in span.attributes or "parameters" in span.attributes:
                return self._request(span, reading)
            if span.parent_id is not None:
                return LinkSeen(span.start_ns, span.end_ns)
        return Ignored.UNUSED

    def _request(self, span: SpanRecord, reading: Reading) -> RequestSeen:
        seen = request_seen(span, self.server, reading, one_token_each=False)
        record = seen.record
        if record.outcome == "incomplete":
            return seen
        attributes, gate = span.attributes, reading.gate
        span_s = (record.end_ns - record.start_ns) / 1e9
        record.queue_s = gate.latency(attributes, _QUEUE_TIME, span_s)
        inference_s = gate.latency(attributes, _INFERENCE_TIME, span_s)
        per_token_s = seconds(attributes.get(_TIME_PER_TOKEN))
        if record.completion_tokens is None and inference_s and per_token_s and per_token_s <= inference_s:
            # The router divides the one by the number of tokens, in whole nanoseconds, to get the other.
            record.completion_tokens = round(inference_s / per_token_s)
        return seen
