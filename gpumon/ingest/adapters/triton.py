"""Triton: ``InferRequest`` as the request, a span named after the model, ``compute``; the moments are span events.

Queue time is QUEUE_START (model span) to COMPUTE_START (``compute`` span), both of the server's steady clock. Triton
knows no tokens: prefill and decode stay unknown. A stream reports INFER_RESPONSE_COMPLETE once for each response: from
the second on these are taken as steps of unknown size, the first as the first token. Ensembles: queues of all models.
"""

from __future__ import annotations

import numpy as np

from gpumon.ingest.adapters.request import request_seen
from gpumon.ingest.adapters.seen import Ignored, MarksSeen, Reading, RequestSeen, Seen
from gpumon.ingest.adapters.values import text
from gpumon.ingest.records import SpanRecord

QUEUE_START = "QUEUE_START"
COMPUTE_START = "COMPUTE_START"
_RESPONSE = "INFER_RESPONSE_COMPLETE"


class Triton:
    """Adapter of Triton's spans."""

    server = "triton"
    first_in_steps = True
    first_is_prefill = False

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        if span.name == "InferRequest":
            return self._request(span, reading)
        if span.parent_id is None:
            return Ignored.UNUSED
        marks = {event.name: event.at_ns for event in span.events if event.name in (QUEUE_START, COMPUTE_START)}
        return MarksSeen(marks, text(span.attributes.get("triton.model_name")), span.start_ns, span.end_ns)

    def _request(self, span: SpanRecord, reading: Reading) -> RequestSeen:
        seen = request_seen(span, self.server, reading, one_token_each=False)
        record = seen.record
        if not record.request_id:
            record.request_id = text(span.attributes.get("triton.request_id"))
        responses = sorted(event.at_ns for event in span.events if event.name == _RESPONSE)[: reading.max_tokens]
        inside = len(responses) > 1 and record.start_ns <= responses[0] and responses[-1] <= record.end_ns
        if inside and record.outcome != "incomplete" and record.token_ns is None:
            record.token_ns = np.array(responses, np.int64)
        return seen
