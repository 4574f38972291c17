"""The attributes that servers have in common, as a RequestRecord: usage, parameters, latencies, token times, identity.

Old and new spellings of the GenAI conventions are both read, the new one first (facts: OpenTelemetry semantic
conventions 1.41.1 and what vLLM, SGLang, TensorRT-LLM and their clients still send). Only the attributes named here
are looked at, so prompts, completions and token ids cannot get into a record.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpumon.ingest.adapters.seen import Reading, RequestSeen
from gpumon.ingest.adapters.values import count, integers, number, text, words
from gpumon.ingest.records import TOKEN_COUNTS, TOKEN_TIMES, SpanRecord, Value
from gpumon.model import RequestRecord

TIME_TO_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"  # noqa: S105
TIME_IN_QUEUE = "gen_ai.latency.time_in_queue"
TIME_IN_PREFILL = "gen_ai.latency.time_in_model_prefill"
TIME_IN_DECODE = "gen_ai.latency.time_in_model_decode"
KV_TRANSFER_TIME = "gen_ai.latency.kv_cache_transfer_time"
_FIRST_TOKEN = (  # seconds; the second is the convention's client view, the third inference-perf's
    TIME_TO_FIRST_TOKEN,
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.response.time_to_first_token",
)
_LATENCIES = frozenset({*_FIRST_TOKEN, TIME_IN_QUEUE, TIME_IN_PREFILL, TIME_IN_DECODE, KV_TRANSFER_TIME})
_PARAMETERS = {
    "temperature": ("gen_ai.request.temperature",),
    "top_p": ("gen_ai.request.top_p",),
    "top_k": ("gen_ai.request.top_k",),
    "max_tokens": ("gen_ai.request.max_tokens",),
    "frequency_penalty": ("gen_ai.request.frequency_penalty",),
    "presence_penalty": ("gen_ai.request.presence_penalty",),
    "n": ("gen_ai.request.choice.count", "gen_ai.request.n"),
    "seed": ("gen_ai.request.seed", "seed"),
}
_PROMPT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_COMPLETION_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED_TOKENS = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")
_MODEL = ("gen_ai.response.model", "gen_ai.request.model")
_RESOURCE_MODEL = ("gen_ai.response.model", "gen_ai.request.model", "gpumon.model", "model_name")
_REQUEST_ID = ("gen_ai.request.id", "gen_ai.response.id", "request.id")
_INFERENCE_ID = ("inference_id", "gen_ai.inference.id")
_PROMPT_HASH = ("prompt_hash", "gen_ai.prompt_hash")
_ABORTS = frozenset({"abort", "aborted", "cancel", "cancelled", "canceled"})


def request_seen(span: SpanRecord, server: str, reading: Reading, *, one_token_each: bool = True) -> RequestSeen:
    """What the request span of any server says by the common attributes. ``model`` may still be empty."""
    attributes = span.attributes
    start_ns, end_ns = span.start_ns, span.end_ns
    timed = start_ns > 0 and end_ns > 0 and _can_be_true(start_ns, end_ns, reading)
    if not timed:  # without both ends there is no latency, and no share of one
        start_ns = end_ns = start_ns or end_ns
    span_s = (end_ns - start_ns) / 1e9 if timed else None
    record = RequestRecord(
        trace_id=span.trace_id,
        request_id=_first_text(attributes, _REQUEST_ID),
        server=server,
        model=_first_text(attributes, _MODEL) or model_of(span.resource.attributes, server, reading),
        arrived_s=0.0,
        start_ns=start_ns,
        end_ns=end_ns,
        prompt_tokens=_first_count(attributes, _PROMPT_TOKENS),
        completion_tokens=_first_count(attributes, _COMPLETION_TOKENS),
        cached_tokens=_first_count(attributes, _CACHED_TOKENS),
        outcome=outcome_of(span) if timed else "incomplete",
        tenant=_first_text(attributes, reading.tenant_attributes)
        or _first_text(span.resource.attributes, reading.tenant_attributes),
        inference_id=_first_text(attributes, _INFERENCE_ID),
        prompt_hash=_first_text(attributes, _PROMPT_HASH),
        parameters=parameters_of(attributes),
        span_id=span.span_id,
    )
    seen = RequestSeen(record, span.dropped_events, one_token_each)
    if timed:
        _read_latencies(record, attributes, span_s, reading)
        seen.cut = _read_tokens(record, span, reading)
    return seen


def _can_be_true(start_ns: int, end_ns: int, reading: Reading) -> bool:
    return reading.gate.check("duration", (end_ns - start_ns) / 1e9, None) is not None


def model_of(resource: Mapping[str, Value], server: str, reading: Reading) -> str:
    """Model by what the resource says, or by the configuration; empty where neither does."""
    told = _first_text(resource, _RESOURCE_MODEL)
    return told or reading.models.get(text(resource.get("service.name")), "") or reading.models.get(server, "")


def outcome_of(span: SpanRecord) -> str:
    """ok, error or aborted, by finish reasons, status and ``error.type``."""
    reasons = words(span.attributes.get("gen_ai.response.finish_reasons"))
    if not _ABORTS.isdisjoint(reasons) or "abort_info" in span.attributes:
        return "aborted"
    return "error" if span.status == 2 or "error.type" in span.attributes or "error" in reasons else "ok"


def parameters_of(attributes: Mapping[str, Value]) -> dict[str, float]:
    """The request's parameters that are finite numbers."""
    told: dict[str, float] = {}
    for name, spellings in _PARAMETERS.items():
        for spelling in spellings:
            if spelling in attributes:
                value = number(attributes[spelling])
                if value is not None and abs(value) <= 1e18:  # also refuses NaN
                    told[name] = value
                break
    return told


def _read_latencies(
    record: RequestRecord, attributes: Mapping[str, Value], span_s: float | None, reading: Reading
) -> None:
    if _LATENCIES.isdisjoint(attributes):  # those that send token times mostly tell none
        return
    latency = reading.gate.latency
    for attribute in _FIRST_TOKEN:
        record.time_to_first_token_s = latency(attributes, attribute, span_s)
        if record.time_to_first_token_s is not None:
            record.first_token_ns = record.start_ns + round(record.time_to_first_token_s * 1e9)
            break
    record.queue_s = latency(attributes, TIME_IN_QUEUE, span_s)
    record.prefill_s = latency(attributes, TIME_IN_PREFILL, span_s)
    record.decode_s = latency(attributes, TIME_IN_DECODE, span_s)
    record.kv_sync_s = latency(attributes, KV_TRANSFER_TIME, span_s)


def _read_tokens(record: RequestRecord, span: SpanRecord, reading: Reading) -> bool:
    """Token times out of events or of the compact form; refused as a whole where one cannot be true.

    True where there were more than are kept.
    """
    counts: NDArray[np.int32] | None = None
    if span.tokens is not None and len(span.tokens.at_ns):
        times, counts, attribute, zero_ns = span.tokens.at_ns, span.tokens.counts, "events", 0
    else:
        since_start = integers(span.attributes.get(TOKEN_TIMES))
        if since_start is None:
            if TOKEN_TIMES in span.attributes:
                reading.gate.refuse(TOKEN_TIMES, "not_integers")
            return False
        times, attribute, zero_ns = since_start, TOKEN_TIMES, span.start_ns
        if TOKEN_COUNTS in span.attributes:
            sizes = integers(span.attributes[TOKEN_COUNTS])
            if sizes is None or len(sizes) != len(times) or int(sizes.min()) < 0 or int(sizes.max()) >= 1 << 31:
                # Without them the times would pass for single tokens, which the sender has denied.
                reading.gate.refuse(TOKEN_COUNTS, "malformed")
                return False
            counts = sizes.astype(np.int32)
    if counts is not None and int(counts.min()) < 0:
        counts = None
    if (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times, counts = times[order], counts[order] if counts is not None else None
    slack_ns = int(reading.gate.slack_s * 1e9)
    # Checked before the addition, which would wrap around silently.
    if int(times[0]) < span.start_ns - zero_ns - slack_ns or int(times[-1]) > span.end_ns - zero_ns + slack_ns:
        reading.gate.refuse(attribute, "over_span")
        return False
    times = times + zero_ns if zero_ns else times
    record.token_ns = times[: reading.max_tokens]
    record.token_counts = counts[: reading.max_tokens] if counts is not None else None
    return len(times) > reading.max_tokens


def _first_text(attributes: Mapping[str, Value], names: tuple[str, ...]) -> str:
    for name in names:
        value = attributes.get(name)
        if value is not None:
            told = text(value)
            if told:
                return told
    return ""


def _first_count(attributes: Mapping[str, Value], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = attributes.get(name)
        if value is not None:
            told = count(value)
            if told is not None:
                return told
    return None
