"""SGLang: a tree per request; tokenizer, one thread span per rank, phases below it, a span per decode step.

``{role} Req {rid}`` is the request (role empty, or prefill/decode where the two are disaggregated, tied by
``bootstrap_room``). Every tensor-parallel rank sends its own phases and ``decode_loop`` steps. The first token comes
out of ``prefill_forward``; the step with ``decode_ct`` 0 is the second. ``gen_ai.latency.time_in_model_prefill`` is
counted from dispatch and holds the queue, so the phases are taken from their spans alone.
"""

from __future__ import annotations

from gpumon.ingest.adapters.request import request_seen
from gpumon.ingest.adapters.seen import Ignored, LinkSeen, Phase, PhaseSeen, RankSeen, Reading, RequestSeen, Seen
from gpumon.ingest.adapters.steps import step_seen
from gpumon.ingest.adapters.values import count, text
from gpumon.ingest.records import SpanRecord

_PHASES = {
    "prefill_waiting": Phase.QUEUE,
    "prefill_forward": Phase.PREFILL,
    "decode_forward": Phase.DECODE,
    "prefill_transfer_kv_cache": Phase.KV_SYNC,
    "decode_transferred": Phase.KV_SYNC,
}
_HALVES = frozenset({"prefill", "decode"})


class Sglang:
    """Adapter of SGLang's spans."""

    server = "sglang"
    first_in_steps = False
    first_is_prefill = False

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        name = span.name
        phase = _PHASES.get(name)
        if phase is not None:
            return PhaseSeen(phase, span.start_ns, span.end_ns, first_token_at_end=phase is Phase.PREFILL)
        if name == "decode_loop":
            return step_seen(span, "decode_ct")
        attributes = span.attributes
        if "rid" in attributes or " Req " in name:
            return self._request(span, reading)
        if "tp_rank" in attributes or "pp_rank" in attributes:
            # A span that SGLang's own clean-up closed has the status too.
            aborted = span.status == 2 and "auto closed" not in text(attributes.get("reason"))
            tensor, pipeline = count(attributes.get("tp_rank")) or 0, count(attributes.get("pp_rank")) or 0
            return RankSeen(pipeline, tensor, text(attributes.get("host_id")), aborted, span.start_ns, span.end_ns)
        if span.parent_id is None:
            return Ignored.UNUSED
        return LinkSeen(span.start_ns, span.end_ns, text(attributes.get("host_id")))

    def _request(self, span: SpanRecord, reading: Reading) -> RequestSeen:
        seen = request_seen(span, self.server, reading, one_token_each=False)
        seen.record.prefill_s = None
        if not seen.record.request_id:
            seen.record.request_id = text(span.attributes.get("rid"))
        half = span.name.partition(" Req ")[0]
        room = text(span.attributes.get("bootstrap_room"))
        if half in _HALVES and room:
            seen.half, seen.room = half, room
        return seen
