"""Spans made by the official SDK."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def sdk_spans(count: int) -> Sequence[ReadableSpan]:
    """So many finished ``llm_request`` spans."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "vllm"}))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("vllm.tracing.otel")
    for number in range(count):
        with tracer.start_as_current_span("llm_request") as span:
            span.set_attribute("gen_ai.usage.completion_tokens", number)
    return memory.get_finished_spans()


def export(exporter: SpanExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
    """What the exporter says of one batch; it is shut down afterwards."""
    result = exporter.export(spans)
    exporter.shutdown()
    return result
