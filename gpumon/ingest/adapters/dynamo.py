"""Dynamo: ``http-request`` at the frontend is the request; ``handle_payload`` at the worker adds nothing.

The frontend's span says little: identity and duration; tokens and latencies come with the engine's own spans, which
are requests of their own (server vllm, sglang or trtllm) in the same trace. Health checks and listings are no requests.
"""

from __future__ import annotations

from gpumon.ingest.adapters.request import request_seen
from gpumon.ingest.adapters.seen import Ignored, Reading, Seen
from gpumon.ingest.adapters.values import text
from gpumon.ingest.records import SpanRecord

_INFERENCE_PATHS = ("completions", "responses", "messages", "generate", "embeddings", "infer")


class Dynamo:
    """Adapter of Dynamo's spans."""

    server = "dynamo"
    first_in_steps = True
    first_is_prefill = False

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        attributes = span.attributes
        if span.name == "http-request":
            path = text(attributes.get("uri") or attributes.get("http.target") or attributes.get("url.path"))
            if path and not any(word in path for word in _INFERENCE_PATHS):
                return Ignored.UNUSED
            seen = request_seen(span, self.server, reading)
            if not seen.record.request_id:
                seen.record.request_id = text(attributes.get("request_id") or attributes.get("x_request_id"))
            return seen
        return Ignored.UNUSED
