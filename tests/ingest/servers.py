"""Traces to the letter of what vLLM, SGLang, TGI, Triton and TensorRT-LLM send, with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, Span
from opentelemetry.trace import SpanContext, SpanKind

from tests.ingest.senders import MS, T0, Ids, Sender

SECRET = "correct horse battery staple"


def vllm_sender(**resource: str) -> Sender:
    return Sender(
        "vllm.tracing.otel",
        {"service.name": "vllm", "vllm.instrumenting_module_name": "vllm.llm_engine", "vllm.process_id": "71"}
        | resource,
    )


def vllm_request(
    sender: Sender, start_ns: int = T0, duration_ns: int = 2_000 * MS, parent: SpanContext | None = None, **more: Any
) -> Span:
    """TTFT 123.457 ms, queue 20.001 ms, prefill 90.5 ms, decode 1.8 s; 12 prompt and 64 completion tokens."""
    attributes: dict[str, Any] = {
        "gen_ai.latency.time_to_first_token": 0.123457,
        "gen_ai.latency.e2e": duration_ns / 1e9,
        "gen_ai.latency.time_in_queue": 0.020001,
        "gen_ai.latency.time_in_model_prefill": 0.0905,
        "gen_ai.latency.time_in_model_decode": 1.8,
        "gen_ai.latency.time_in_model_inference": 1.8905,
        "gen_ai.usage.prompt_tokens": 12,
        "gen_ai.usage.completion_tokens": 64,
        "gen_ai.request.id": "cmpl-1",
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.n": 1,
    } | more
    return sender.span(
        "llm_request", start_ns, start_ns + duration_ns, kind=SpanKind.SERVER, parent=parent, attributes=attributes
    )


SGLANG_STEPS = 40
SGLANG_STEP_NS = 18_250_001
SGLANG_FIRST_NS = T0 + 210 * MS
SGLANG_END_NS = SGLANG_FIRST_NS + SGLANG_STEPS * SGLANG_STEP_NS + 2 * MS


def sglang_request(
    ranks: int = 8,
    *,
    steps: int = SGLANG_STEPS,
    completion_tokens: int | None = None,
    level: int = 3,
    seed: int = 1,
    host: str = "aabbccddee",
    lost: Sequence[int] = (),
) -> list[ReadableSpan]:
    """A whole request in SGLang's order of export: steps, phases, schedulers, and the root last.

    Queue 60 ms, prefill 140 ms, first token 210 ms after the start; rank r's steps end r µs later. One token more
    than steps, the first coming out of the prefill. lost: steps of rank 0 that were never exported.
    """
    sender = Sender("sglang server", {"service.name": "sglang"}, Ids(seed))
    rid = "0123456789abcdef"
    root = sender.start(" Req 01234567", T0, attributes={"rid": rid, "module": "sglang::request"})
    tokenizer = sender.start(
        "Tokenizer(host:aabbccdd | pid:9)",
        T0,
        parent=root,
        attributes={"host_id": host, "pid": 9, "thread_label": "Tokenizer"},
    )
    sender.span("tokenize", T0, T0 + 3 * MS, parent=tokenizer)
    tokenizer.end(T0 + 5 * MS)
    for rank in range(ranks):
        sglang_rank(sender, root, rank, steps, level, lost if rank == 0 else ())
    end_ns = SGLANG_FIRST_NS + steps * SGLANG_STEP_NS + 2 * MS
    root.set_attributes(
        {
            "gen_ai.usage.prompt_tokens": 700,
            "gen_ai.usage.completion_tokens": steps + 1 if completion_tokens is None else completion_tokens,
            "gen_ai.usage.cached_tokens": 512,
            "gen_ai.request.max_tokens": 128,
            "gen_ai.request.temperature": 0.7,
            "gen_ai.request.top_k": 40,
            "gen_ai.response.model": "meta-llama/Llama-3.1-70B",
            "gen_ai.response.finish_reasons": '["stop"]',
            "gen_ai.latency.e2e": (end_ns - T0) / 1e9,
            "gen_ai.latency.time_in_model_prefill": 0.205,
        }
    )
    root.end(end_ns)
    return sender.spans


def sglang_rank(sender: Sender, root: Span, rank: int, steps: int, level: int = 3, lost: Sequence[int] = ()) -> None:
    """Phases and steps of one tensor-parallel rank."""
    late_ns = rank * 1_000
    scheduler = sender.start(
        f"Scheduler [TP {rank}]  [PP 0] (host:aabbccdd | pid:{100 + rank})",
        T0 + 5 * MS,
        parent=root,
        attributes={
            "tp_rank": rank,
            "pp_rank": 0,
            "host_id": "aabbccddee",
            "pid": 100 + rank,
            "thread_label": "Scheduler",
        },
    )
    sender.span("request_process", T0 + 5 * MS, T0 + 10 * MS, parent=scheduler)
    sender.span("prefill_waiting", T0 + 10 * MS, T0 + 70 * MS, parent=scheduler)
    sender.span("prefill_forward", T0 + 70 * MS, SGLANG_FIRST_NS + late_ns, parent=scheduler)
    forward = sender.start("decode_forward", SGLANG_FIRST_NS + late_ns, parent=scheduler)
    for step in range(steps if level >= 3 else 0):
        start_ns = SGLANG_FIRST_NS + late_ns + step * SGLANG_STEP_NS
        if step in lost:
            continue
        schedule = ("schedule", start_ns, {"bid": "00c0ffee", "batch_size": 16, "forward_mode": "decode"})
        sender.span(
            "decode_loop",
            start_ns,
            start_ns + SGLANG_STEP_NS,
            parent=forward,
            attributes={"decode_ct": step},
            events=[schedule],
        )
    end_ns = SGLANG_FIRST_NS + late_ns + steps * SGLANG_STEP_NS
    forward.end(end_ns)
    scheduler.end(end_ns)


TGI_STEPS = 20
TGI_STEP_NS = 25_000_123


def tgi_request(sender: Sender | None = None, *, skip_first: bool = False, told: bool = True) -> list[ReadableSpan]:
    """``generate_stream`` with 20 tokens: queued 15 ms, prefill 80 ms, a step every 25.000123 ms; and batches."""
    sender = sender or Sender("opentelemetry-otlp", {"service.name": "text-generation-inference.router"})
    request = sender.start(
        "generate_stream", T0, attributes={"parameters": f"GenerateParameters {{ stop: [{SECRET!r}] }}"}
    )
    inner = sender.start("generate_stream", T0 + MS, parent=request)
    schedule = sender.span("schedule", T0 + 2 * MS, T0 + 2 * MS + 9, parent=inner)
    queued_ns = T0 + 2 * MS
    sender.span("queued", queued_ns, queued_ns + 15 * MS, parent=schedule)
    start_ns = queued_ns + 15 * MS
    for step in range(TGI_STEPS):
        end_ns = start_ns + (80 * MS if step == 0 else TGI_STEP_NS)
        batch = sender.span("batch", start_ns, end_ns, attributes={"batch_size": 4})
        sender.span("/generate.v3.TextGenerationService/Decode", start_ns, end_ns, parent=batch, kind=SpanKind.SERVER)
        if step or not skip_first:
            infer = sender.start("infer", start_ns, parent=schedule)
            sender.span(
                "send_generation", end_ns - 9, end_ns - 5, parent=infer, attributes={"generation": f"text: {SECRET}"}
            )
            infer.end(end_ns)
        start_ns = end_ns
    inner.end(start_ns)
    inference_ns = start_ns - queued_ns - 15 * MS + 12_345
    if told:
        request.set_attributes(
            {
                "total_time": f"{(start_ns - T0) / 1e6}ms",
                "validation_time": "1.5ms",
                "queue_time": "15.000001ms",
                "inference_time": f"{inference_ns / 1e6}ms",
                "time_per_token": f"{inference_ns // TGI_STEPS / 1e6}ms",
                "seed": "Some(1)",
            }
        )
    request.end(start_ns + MS)
    return sender.spans


def triton_request(responses: Sequence[int] = ()) -> list[ReadableSpan]:
    """A request of 300 ms that waits 41.7 ms in the model's queue. responses: ms after the start."""
    sender = Sender("triton-server", {"service.name": "triton-inference-server"})
    root = sender.start("InferRequest", T0, kind=SpanKind.SERVER)
    for name, at_ms in (("HTTP_RECV_START", 0), ("HTTP_RECV_END", 1)):
        root.add_event(name, {}, T0 + at_ms * MS)
    model = sender.start(
        "tensorrt_llm_bls",
        T0 + 2 * MS,
        parent=root,
        kind=SpanKind.SERVER,
        attributes={
            "triton.model_name": "tensorrt_llm_bls",
            "triton.model_version": 1,
            "triton.trace_id": 5,
            "triton.request_id": "r-5",
        },
    )
    model.add_event("REQUEST_START", {}, T0 + 2 * MS)
    model.add_event("QUEUE_START", {}, T0 + 3 * MS)
    compute = sender.start("compute", T0 + 44_700_000, parent=model, kind=SpanKind.SERVER)
    for name, after_ms in (("COMPUTE_START", 44.7), ("COMPUTE_INPUT_END", 46.0), ("COMPUTE_OUTPUT_START", 290.0)):
        compute.add_event(name, {}, T0 + round(after_ms * MS))
    compute.add_event("COMPUTE_END", {}, T0 + 295 * MS)
    compute.end(T0 + 295 * MS)
    model.add_event("REQUEST_END", {}, T0 + 296 * MS)
    model.end(T0 + 296 * MS)
    for at_ms in responses or (296,):
        root.add_event("INFER_RESPONSE_COMPLETE", {}, T0 + at_ms * MS)
    root.end(T0 + 300 * MS)
    return sender.spans


def trtllm_request(**more: Any) -> list[ReadableSpan]:
    """TTFT 88.125 ms, queue not measured (-1), transfer of the KV cache 12.5 ms by its events."""
    sender = Sender("trt.llm", {"service.name": "unknown_service"})
    attributes: dict[str, Any] = {
        "gen_ai.latency.time_to_first_token": 0.088125,
        "gen_ai.latency.e2e": 1.0,
        "gen_ai.latency.time_in_queue": -1,
        "gen_ai.latency.kv_cache_transfer_time": -1.0,
        "gen_ai.usage.prompt_tokens": 100,
        "gen_ai.usage.completion_tokens": 50,
        "gen_ai.request.id": "7",
        "gen_ai.request.top_k": 50,
        "gen_ai.response.finish_reasons": ["length"],
    } | more
    sender.span(
        "llm_request",
        T0,
        T0 + 1000 * MS,
        kind=SpanKind.SERVER,
        attributes=attributes,
        events=[
            ("ctx_server.selected", T0 + MS, {"server": "10.0.0.1:8001"}),
            ("kv_cache_transfer_start", T0 + 90 * MS, {}),
            ("kv_cache_transfer_end", T0 + 102_500_000, {}),
        ],
    )
    return sender.spans
