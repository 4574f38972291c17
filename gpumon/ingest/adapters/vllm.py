"""vLLM 0.6 to 0.33: one ``llm_request`` span per request, its latencies as attributes, no token times.

With the events of vllm#32573 (``token_generated``, not released) the engine's steps as well: the SDK keeps the newest
128 events, so first ones may be gone, which shows in ``dropped_events``. A step may make several tokens. Neither
spans nor resource name the model. Start-up spans (minutes long) are ignored; aborted and refused requests send none.
``n`` > 1: one span per sequence, with the same ``gen_ai.request.id``.
"""

from __future__ import annotations

from gpumon.ingest.adapters.request import request_seen
from gpumon.ingest.adapters.seen import Ignored, Phase, PhaseSeen, Reading, Seen
from gpumon.ingest.records import SpanRecord

_PHASES = {  # vllm#44402, not released
    "vllm_queue": Phase.QUEUE,
    "vllm_prefill": Phase.PREFILL,
    "vllm_decode": Phase.DECODE,
    "vllm_async_kv_transfer": Phase.KV_SYNC,
}


class Vllm:
    """Adapter of vLLM's spans."""

    server = "vllm"
    first_in_steps = True
    first_is_prefill = False

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        name = span.name
        if name == "llm_request":
            return request_seen(span, self.server, reading, one_token_each=False)
        phase = _PHASES.get(name)
        if phase is not None:
            return PhaseSeen(phase, span.start_ns, span.end_ns, first_token_at_end=phase is Phase.PREFILL)
        if "code.function" in span.attributes or name == "Dynamo bytecode transform":
            return Ignored.STARTUP
        return Ignored.UNUSED
