"""What each server sends, through real gRPC and HTTP into the running daemon, and the numbers on its page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from tests.e2e.page import Page, promtool_complaints
from tests.e2e.prometheus import Job
from tests.e2e.traces.conftest import Demo
from tests.e2e.traces.exemplars import ExemplarPrometheus, exemplars_of
from tests.e2e.traces.gateway import Gateway, as_of_now, parts_of, spans_of
from tests.e2e.waiting import eventually
from tests.ingest.senders import MS, T0, Sender
from tests.ingest.servers import (
    SGLANG_STEP_NS,
    SGLANG_STEPS,
    TGI_STEP_NS,
    TGI_STEPS,
    sglang_request,
    tgi_request,
    triton_request,
    trtllm_request,
    vllm_request,
    vllm_sender,
)

TRANSPORTS = ("grpc", "http", "grpc+gzip", "http+gzip")
MICROSECOND = 1e-6
FIRST = "gpumon_request_time_to_first_token_seconds"
INTER = "gpumon_inter_token_latency_seconds"
STEP_NS = 31_250_017


def histogram(page: Page, name: str, **labels: str) -> tuple[float, float]:
    """Number and sum of the observations, over all series with these labels."""
    counts = sum(value for _, value in page.select(f"{name}_count", **labels))
    return counts, sum(value for _, value in page.select(f"{name}_sum", **labels))


def has(page: Page, name: str, count: float, sum_s: float, **labels: str) -> None:
    """The histogram has exactly these observations, their sum to the microsecond."""
    found, found_s = histogram(page, name, **labels)
    assert found == count, name
    assert found_s == pytest.approx(sum_s, abs=MICROSECOND), name


def tokens(page: Page, **labels: str) -> dict[str, float]:
    return page.by("kind", "gpumon_tokens_total", **labels)


def counted(
    gateway: Gateway, spans: Sequence[ReadableSpan], transport: str, labels: dict[str, str], *, size: int = 10_000
) -> Page:
    """The page when the request in these spans is on it; ``size`` spans in a message, in their order."""
    for part in parts_of(as_of_now(spans), size):
        gateway.send(part, transport)
    gateway.await_requests(1, **labels)
    page = gateway.daemon.page()
    assert page.by("outcome", "gpumon_requests_total", **labels)["ok"] == 1
    assert gateway.received() == len(spans)
    return page


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_vllm(demo: Demo, transport: str) -> None:
    sender = vllm_sender(**{"gen_ai.request.model": "llama"})
    vllm_request(sender)
    labels = {"server": "vllm", "model": "llama"}
    page = counted(demo(), sender.spans, transport, labels)
    has(page, "gpumon_request_duration_seconds", 1, 2.0, **labels)
    has(page, FIRST, 1, 0.123457, **labels)
    has(page, "gpumon_request_queue_seconds", 1, 0.020001, **labels)
    has(page, "gpumon_request_prefill_seconds", 1, 0.0905, **labels)
    has(page, "gpumon_request_decode_seconds", 1, 1.8, **labels)
    has(page, INTER, 0, 0.0, **labels)
    assert tokens(page, **labels) == {"prompt": 12, "completion": 64, "cached": 0}


@pytest.mark.parametrize(("transport", "size"), [("grpc", 64), ("http", 512)])
def test_sglang_with_eight_ranks_children_first(demo: Demo, transport: str, size: int) -> None:
    gateway = demo()
    labels = {"server": "sglang", "model": "meta-llama/Llama-3.1-70B"}
    page = counted(gateway, sglang_request(ranks=8), transport, labels, size=size)
    has(page, FIRST, 1, 0.210, **labels)
    has(page, "gpumon_request_queue_seconds", 1, 0.060, **labels)
    has(page, "gpumon_request_prefill_seconds", 1, 0.140, **labels)
    has(page, INTER, SGLANG_STEPS, SGLANG_STEPS * SGLANG_STEP_NS / 1e9, **labels)
    has(page, "gpumon_decode_step_seconds", SGLANG_STEPS, SGLANG_STEPS * SGLANG_STEP_NS / 1e9, **labels)
    assert tokens(page, **labels) == {"prompt": 700, "completion": SGLANG_STEPS + 1, "cached": 512}
    assert gateway.dropped() == {}


@pytest.mark.parametrize("transport", ["grpc", "http+gzip"])
def test_tgi(demo: Demo, transport: str) -> None:
    gateway = demo({"GPUMON_REQUESTS__MODELS": '{"tgi": "falcon"}'})
    labels = {"server": "tgi", "model": "falcon"}
    spans = tgi_request()
    page = counted(gateway, spans, transport, labels)
    has(page, FIRST, 1, 0.097, **labels)
    has(page, "gpumon_request_queue_seconds", 1, 0.015, **labels)
    has(page, "gpumon_request_prefill_seconds", 1, 0.080, **labels)
    has(page, INTER, TGI_STEPS - 1, (TGI_STEPS - 1) * TGI_STEP_NS / 1e9, **labels)
    assert tokens(page, **labels)["completion"] == TGI_STEPS
    # Batches are traces of their own, shared by many requests.
    assert set(gateway.dropped()) <= {"unused"}


def test_triton_speaks_http_only(demo: Demo) -> None:
    page = counted(demo(), triton_request(responses=(100, 140, 185)), "http", {"server": "triton"})
    labels = {"server": "triton", "model": "tensorrt_llm_bls"}
    has(page, "gpumon_request_duration_seconds", 1, 0.300, **labels)
    has(page, "gpumon_request_queue_seconds", 1, 0.0417, **labels)
    has(page, "gpumon_decode_step_seconds", 2, 0.085, **labels)


def test_tensorrt_llm(demo: Demo) -> None:
    page = counted(demo(), trtllm_request(), "grpc", {"server": "trtllm"})
    has(page, FIRST, 1, 0.088125, server="trtllm")
    has(page, "gpumon_kv_sync_seconds", 1, 0.0125, server="trtllm")
    has(page, "gpumon_request_queue_seconds", 0, 0.0, server="trtllm")
    assert tokens(page, server="trtllm") == {"prompt": 100, "completion": 50, "cached": 0}


def first_token(seconds: float) -> dict[str, Any]:
    """Attributes of a vLLM request that took so long."""
    return {"gen_ai.latency.time_to_first_token": seconds}


def own_contract(form: str, *, steps: int = 10, prompt: int = 8190) -> Sender:
    """A request by docs/TOKENS.md, in each of its three forms: a token every 31.250017 ms, the first after 250 ms."""
    sender = Sender("gpumon.tokens", {"service.name": "shim"})
    times = [250 * MS + step * STEP_NS for step in range(steps)]
    attributes = {
        "gen_ai.request.model": "llama",
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": steps,
        "gen_ai.token.times_ns": times,
    }
    if form != "compact":
        del attributes["gen_ai.token.times_ns"]
    span = sender.start("gen_ai.request", T0, kind=SpanKind.SERVER, attributes=attributes)
    for step, at_ns in enumerate(times):
        if form == "events":
            span.add_event("gen_ai.token.generated", {}, T0 + at_ns)
        if form == "spans":
            index = {"gen_ai.token.index": step}
            sender.span("gen_ai.token", T0 + at_ns - MS, T0 + at_ns, parent=span, attributes=index)
    span.end(T0 + times[-1] + MS)
    return sender


@pytest.mark.parametrize("transport", ["grpc", "http"])
@pytest.mark.parametrize("form", ["compact", "events", "spans"])
def test_our_own_contract(demo: Demo, form: str, transport: str) -> None:
    labels = {"server": "gpumon", "model": "llama"}
    page = counted(demo(), own_contract(form).spans, transport, labels)
    has(page, FIRST, 1, 0.250, **labels)
    has(page, INTER, 9, 9 * STEP_NS / 1e9, **labels)
    # The second token is made of 8,191 tokens, the third of 8,192.
    by_context = f"{INTER[:-8]}_by_context_seconds"
    has(page, by_context, 1, STEP_NS / 1e9, context="4k", **labels)
    has(page, by_context, 8, 8 * STEP_NS / 1e9, context="8k", **labels)
    has(page, by_context, 9, 9 * STEP_NS / 1e9, **labels)
    has(page, f"{FIRST[:-8]}_by_context_seconds", 1, 0.250, context="4k", **labels)
    has(page, f"{INTER[:-8]}_by_concurrency_seconds", 9, 9 * STEP_NS / 1e9, concurrency="1", **labels)


def test_requests_that_ran_together_are_counted_by_how_many_there_were(demo: Demo) -> None:
    gateway = demo()
    sender = vllm_sender(**{"gen_ai.request.model": "llama"})
    for number in range(5):
        vllm_request(sender, T0 + number * 10 * MS)
    gateway.send(as_of_now(sender.spans), "grpc")
    gateway.await_requests(5, server="vllm")
    page = gateway.daemon.page()
    name = f"{FIRST[:-8]}_by_concurrency_seconds"
    has(page, name, 1, 0.123457, concurrency="1", server="vllm")
    has(page, name, 2, 2 * 0.123457, concurrency="2-3", server="vllm")
    has(page, name, 2, 2 * 0.123457, concurrency="4-7", server="vllm")
    has(page, name, 5, 5 * 0.123457, server="vllm")


def test_the_page_with_requests_is_one_that_promtool_passes(demo: Demo) -> None:
    gateway = demo()
    counted(gateway, own_contract("compact").spans, "http", {"server": "gpumon"})
    assert promtool_complaints(gateway.daemon.ask("/metrics").body) == ""


def test_exemplars_carry_the_trace_ids_that_were_sent(demo: Demo) -> None:
    gateway = demo()
    sender = vllm_sender(**{"gen_ai.request.model": "llama"})
    vllm_request(sender, **first_token(0.0123))
    vllm_request(sender, **first_token(1.23))
    sent = as_of_now(sender.spans)
    gateway.send(sent, "grpc")
    gateway.await_requests(2, server="vllm")
    reply = gateway.daemon.ask("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    found = exemplars_of(reply.body, FIRST, server="vllm")
    quick, slow = (span.trace_id.hex() for span in spans_of(sent))
    assert [(one.trace_id, one.value) for one in found] == [(quick, 0.0123), (slow, 1.23)]
    assert all(abs(one.at_s - time.time()) < 60 for one in found)
    assert b"trace_id" not in gateway.daemon.ask("/metrics").body


def test_prometheus_finds_the_exemplar_and_the_quantile(demo: Demo, tmp_path: Path) -> None:
    gateway = demo()
    sender = vllm_sender(**{"gen_ai.request.model": "llama"})
    for number in range(20):
        vllm_request(sender, T0 + number * 3000 * MS, **first_token(0.7))
    with ExemplarPrometheus(tmp_path / "prometheus", [Job("gpumon", gateway.daemon.port, 1)]) as prometheus:
        # The series are there at 0 before what is counted next, so that a rate sees it.
        first = vllm_sender(**{"gen_ai.request.model": "llama"})
        vllm_request(first, **first_token(0.02))
        gateway.send(as_of_now(first.spans), "grpc")
        count = f'{FIRST}_count{{server="vllm"}}'
        eventually(lambda: prometheus.query(count) and prometheus.number(count) == 1, "the first request")
        sent = as_of_now(sender.spans)
        gateway.send(sent, "http")
        eventually(lambda: prometheus.number(count) == 21, "all requests are scraped")
        bucket = f'{FIRST}_bucket{{server="vllm"}}'
        p95 = prometheus.number(f"histogram_quantile(0.95, sum by (le) (increase({bucket}[1m])))")
        assert 0.5 < p95 <= 1.0
        ids = {span.trace_id.hex() for span in spans_of(sent)}
        found = eventually(
            lambda: [one for one in prometheus.exemplars(bucket) if one.value == 0.7], "Prometheus has the exemplar"
        )
        assert {one.trace_id for one in found} <= ids
