"""TensorRT-LLM and trtllm-serve: one ``llm_request`` span per request, latencies as attributes, -1 for not measured.

KV transfer between context and generation servers is an attribute, or two events. ``trtllm-serve`` also sends spans of
its HTTP handlers, which add nothing.
"""

from __future__ import annotations

from gpumon.ingest.adapters.request import request_seen
from gpumon.ingest.adapters.seen import Ignored, Reading, Seen
from gpumon.ingest.records import SpanRecord

_TRANSFER_START = "kv_cache_transfer_start"
_TRANSFER_END = "kv_cache_transfer_end"


class TrtLlm:
    """Adapter of TensorRT-LLM's spans."""

    server = "trtllm"
    first_in_steps = True
    first_is_prefill = False

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        if span.name != "llm_request" and "gen_ai.latency.e2e" not in span.attributes:
            return Ignored.UNUSED
        seen = request_seen(span, self.server, reading, one_token_each=False)
        record = seen.record
        if record.kv_sync_s is None and record.outcome != "incomplete":
            at_ns = {event.name: event.at_ns for event in span.events}
            if _TRANSFER_START in at_ns and _TRANSFER_END in at_ns:
                transfer_s = (at_ns[_TRANSFER_END] - at_ns[_TRANSFER_START]) / 1e9
                span_s = (record.end_ns - record.start_ns) / 1e9
                record.kv_sync_s = reading.gate.check(_TRANSFER_END, transfer_s, span_s)
        return seen
