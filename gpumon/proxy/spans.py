"""A request's trace in the compact form of docs/TOKENS.md: one span, the time of every token in one attribute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from gpumon import __version__
from gpumon.proxy.observed import Observed
from gpumon.proxy.routes import OPERATIONS
from gpumon.tokens import SCOPE, SPAN_NAME, TOKEN_COUNTS, TOKEN_TIMES

TOKEN_SOURCE = "gen_ai.token.source"  # noqa: S105 - the name of an attribute
_SCOPE = InstrumentationScope(name=SCOPE, version=__version__)


def build_request(ended: Iterable[Observed], resource: Mapping[str, str]) -> ExportTraceServiceRequest:
    """An export of these requests. resource: attributes of the proxy."""
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=[_text(name, value) for name, value in resource.items()]),
                scope_spans=[ScopeSpans(scope=_SCOPE, spans=[build_span(one) for one in ended])],
            )
        ]
    )


def build_span(one: Observed) -> Span:
    """The span of a request that has ended."""
    failed = bool(one.error) and not one.aborted
    return Span(
        trace_id=one.context.trace_id,
        span_id=one.context.span_id,
        parent_span_id=one.context.parent_id,
        name=SPAN_NAME,
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=one.start_unix_ns,
        # By the steady clock of the tokens, so that a step of the wall clock in between does no harm.
        end_time_unix_nano=one.start_unix_ns + one.end_ns - one.start_ns,
        attributes=list(_attributes(one, failed=failed)),
        status=Status(code=Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET),
    )


def _attributes(one: Observed, *, failed: bool) -> Iterable[KeyValue]:
    texts = {
        "gen_ai.operation.name": OPERATIONS[one.kind],
        "gen_ai.request.model": one.asked.model,
        "gen_ai.response.model": "" if one.asked.model else one.response_model,
        "gen_ai.request.id": one.request_id,
        "gen_ai.response.id": one.response_id,
        "inference_id": one.inference_id,
        "prompt_hash": one.asked.prompt_hash,
        "tenant.id": one.tenant,
        "error.type": one.error if failed else "",
        TOKEN_SOURCE: one.token_source,
    }
    yield from (_text(name, value) for name, value in texts.items() if value)
    numbers = {
        "http.response.status_code": one.status or None,
        "gen_ai.usage.input_tokens": one.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": one.cached_tokens,
        "gen_ai.usage.output_tokens": one.chunks or None if one.completion_tokens is None else one.completion_tokens,
        "gpumon.proxy.injected_ns": one.injected_ns or None,
        "gpumon.proxy.malformed_events": one.malformed or None,
    }
    yield from (_integer(name, value) for name, value in numbers.items() if value is not None)
    for name, number in one.asked.parameters.items():
        spelled = "choice.count" if name == "n" else name
        yield KeyValue(key=f"gen_ai.request.{spelled}", value=AnyValue(double_value=number))
    reason = "cancelled" if one.aborted else one.finish
    if reason:
        reasons = ArrayValue(values=[AnyValue(string_value=reason)])
        yield KeyValue(key="gen_ai.response.finish_reasons", value=AnyValue(array_value=reasons))
    if one.times_ns:
        yield _integers(TOKEN_TIMES, one.times_ns)
        counts = one.counts
        if counts is not None:
            yield _integers(TOKEN_COUNTS, counts)


def _text(name: str, value: str) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(string_value=value))


def _integer(name: str, value: int) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(int_value=value))


def _integers(name: str, values: Sequence[int]) -> KeyValue:
    array = ArrayValue(values=[AnyValue(int_value=value) for value in values])
    return KeyValue(key=name, value=AnyValue(array_value=array))
