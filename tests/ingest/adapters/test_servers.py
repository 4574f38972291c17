"""Each server's trace, through the SDK, its encoder and gpumon's decoder, gives the right request."""

from __future__ import annotations

import numpy as np
import pytest
from opentelemetry.sdk.trace import SpanLimits

from gpumon.ingest.assembly import Assembler
from tests.ingest.senders import MS, NOW_S, T0, Event, Ids, Sender, assemble, decode, dropped
from tests.ingest.servers import (
    SGLANG_END_NS,
    SGLANG_FIRST_NS,
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

MICROSECOND = 1e-6


def test_vllm_tells_phases_and_usage_and_no_token_times() -> None:
    sender = vllm_sender()
    vllm_request(sender)
    [record] = assemble(sender.spans)
    assert record.server == "vllm"
    assert record.request_id == "cmpl-1"
    assert record.time_to_first_token_s == 0.123457
    assert record.first_token_ns == T0 + 123_457_000
    assert (record.queue_s, record.prefill_s, record.decode_s) == (0.020001, 0.0905, 1.8)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (12, 64, None)
    assert (record.start_ns, record.end_ns) == (T0, T0 + 2000 * MS)
    assert record.token_ns is None
    assert not record.per_token
    assert record.parameters == {"top_p": 0.9, "max_tokens": 64.0, "n": 1.0}
    assert record.outcome == "ok"


def test_vllm_start_up_spans_are_no_requests() -> None:
    sender = vllm_sender()
    code = {"code.function": "load_model", "code.namespace": "vllm", "code.lineno": "1"}
    with_parent = sender.span("Load model", T0, T0 + 25_000 * MS, attributes=code)
    sender.span("Load weights", T0, T0 + 20_000 * MS, parent=with_parent, attributes=code)
    assembler = Assembler()
    assert assemble(sender.spans, assembler=assembler, later_s=1000) == []
    assert dropped(assembler) == {"startup": 2}
    assert assembler.open_requests() == []


def test_vllm_sequences_of_one_request_are_counted_each() -> None:
    sender = vllm_sender()
    vllm_request(sender)
    vllm_request(sender, duration_ns=2_500 * MS)
    records = assemble(sender.spans)
    assert [record.request_id for record in records] == ["cmpl-1", "cmpl-1"]
    assert [record.completion_tokens for record in records] == [64, 64]


def vllm_with_events(steps: int, completion_tokens: int, limits: SpanLimits | None = None) -> Sender:
    sender = Sender("vllm.tracing.otel", {"service.name": "vllm"}, limits=limits)
    events: list[Event] = []
    for step in range(steps):
        at_ns = T0 + 100 * MS + step * 20 * MS
        events.append(("token_scheduled", at_ns - 15 * MS, {"iter_batch_size": 3, "iter_waiting_size": 0}))
        events.append(("token_generated", at_ns, {"iter_total_tokens_count": 9, "new_token_ids": [step]}))
    attributes = {
        "gen_ai.usage.completion_tokens": completion_tokens,
        "gen_ai.latency.time_to_first_token": 0.1004,
        "gen_ai.request.trace_level": 2,
    }
    sender.span("llm_request", T0, T0 + 5000 * MS, attributes=attributes, events=events)
    return sender


def test_vllm_token_events_are_tokens_where_there_are_as_many_as_tokens() -> None:
    [record] = assemble(vllm_with_events(40, 40).spans)
    assert record.token_ns is not None
    assert (np.diff(record.token_ns) == 20 * MS).all()
    assert record.per_token
    assert record.first_token_ns == T0 + 100 * MS
    assert record.time_to_first_token_s == 0.1004  # as its frontend saw it


def test_vllm_token_events_with_several_tokens_a_step_are_steps() -> None:
    [record] = assemble(vllm_with_events(40, 97).spans)
    assert record.token_ns is not None
    assert len(record.token_ns) == 40
    assert not record.per_token
    assert record.completion_tokens == 97


def test_vllm_token_events_of_which_the_first_were_lost_tell_no_first_token() -> None:
    sender = vllm_with_events(100, 100, SpanLimits(max_events=128))
    for span in sender.spans:
        assert span.attributes is not None
    [record] = assemble(sender.spans)
    assert record.token_ns is not None
    assert len(record.token_ns) == 64
    assert record.first_token_ns == T0 + round(0.1004e9)  # from the attribute alone
    assert record.first_token_ns != record.token_ns[0]
    assert not record.per_token


def check_sglang(record_assembler: Assembler, *batches: list) -> None:  # type: ignore[type-arg]
    [record] = assemble(*batches, assembler=record_assembler)
    assert record.server == "sglang"
    assert record.model == "meta-llama/Llama-3.1-70B"
    assert record.request_id == "0123456789abcdef"
    assert record.outcome == "ok"
    assert record.token_ns is not None
    assert len(record.token_ns) == SGLANG_STEPS + 1
    assert record.token_ns[0] == record.first_token_ns == SGLANG_FIRST_NS
    assert (np.diff(record.token_ns) == SGLANG_STEP_NS).all()
    assert record.time_to_first_token_s == pytest.approx(0.210, abs=MICROSECOND)
    assert record.queue_s == pytest.approx(0.060, abs=MICROSECOND)
    assert record.prefill_s == pytest.approx(0.140, abs=MICROSECOND)
    assert record.decode_s == pytest.approx(SGLANG_STEPS * SGLANG_STEP_NS / 1e9, abs=MICROSECOND)
    assert record.per_token
    assert record.completion_tokens == SGLANG_STEPS + 1
    assert (record.prompt_tokens, record.cached_tokens) == (700, 512)
    assert record.end_ns == SGLANG_END_NS
    assert sorted(record.rank_steps) == list(range(8))
    for rank, ends in record.rank_steps.items():
        assert (ends == record.token_ns[1:] + rank * 1000).all()


def test_sglang_with_eight_ranks_is_one_request_with_each_token_once() -> None:
    check_sglang(Assembler(), sglang_request())


def test_sglang_in_many_small_batches_with_parents_last() -> None:
    spans = sglang_request()
    assert spans[-1].name == " Req 01234567"
    check_sglang(Assembler(), *[spans[i : i + 64] for i in range(0, len(spans), 64)])


def test_sglang_trace_ids_of_64_bits_are_valid() -> None:
    [record] = assemble(sglang_request(1))
    assert record.trace_id[:8] == bytes(8)
    assert len(record.trace_id.hex()) == 32


def test_sglang_speculative_steps_are_not_taken_for_tokens() -> None:
    [record] = assemble(sglang_request(2, completion_tokens=120))
    assert record.token_ns is not None
    assert len(record.token_ns) == SGLANG_STEPS + 1
    assert not record.per_token
    assert record.completion_tokens == 120


def test_sglang_below_level_three_has_phases_and_first_token_without_steps() -> None:
    [record] = assemble(sglang_request(2, level=1))
    assert record.token_ns is None
    assert record.first_token_ns == SGLANG_FIRST_NS
    assert record.time_to_first_token_s == pytest.approx(0.210, abs=MICROSECOND)
    assert record.decode_s == pytest.approx(SGLANG_STEPS * SGLANG_STEP_NS / 1e9, abs=MICROSECOND)
    assert record.rank_steps == {}


def test_sglang_with_a_step_lost_keeps_the_longer_run_and_counts_the_rest() -> None:
    assembler = Assembler()
    [record] = assemble(sglang_request(1, lost=[10]), assembler=assembler)
    assert record.token_ns is not None
    assert (np.diff(record.token_ns) == SGLANG_STEP_NS).all()  # no gap of two steps
    assert len(record.token_ns) == SGLANG_STEPS - 11
    assert dropped(assembler)["gap"] == 10
    assert record.first_token_ns == SGLANG_FIRST_NS
    assert not record.per_token


def test_sglang_steps_lost_on_one_rank_are_taken_from_another() -> None:
    [record] = assemble(sglang_request(2, lost=range(5, 20)))
    assert record.token_ns is not None
    assert (np.diff(record.token_ns) == SGLANG_STEP_NS).all()
    assert len(record.token_ns) == SGLANG_STEPS + 1
    assert record.first_token_ns == SGLANG_FIRST_NS + 1000  # of rank 1
    assert record.per_token
    assert {rank: len(ends) for rank, ends in record.rank_steps.items()} == {0: SGLANG_STEPS - 15, 1: SGLANG_STEPS}


def test_sglang_first_token_is_not_told_across_hosts() -> None:
    [record] = assemble(sglang_request(8, host="another"))
    assert record.time_to_first_token_s is None
    assert record.first_token_ns is None
    assert record.prefill_s == pytest.approx(0.140, abs=MICROSECOND)  # one clock
    assert record.token_ns is not None
    assert (np.diff(record.token_ns) == SGLANG_STEP_NS).all()


def test_sglang_abort() -> None:
    sender = Sender("sglang server", {"service.name": "sglang"}, Ids(1))
    root = sender.start(" Req 01234567", T0, attributes={"rid": "0123"})
    for name, more in (("[TP 0]", {"type": "abort", "message": "client left"}), ("[TP 1]", {})):
        sender.span(
            f"Scheduler {name}", T0, T0 + 9 * MS, parent=root, attributes={"tp_rank": 0, **more}, error=bool(more)
        )
    root.end(T0 + 10 * MS)
    [record] = assemble(sender.spans)
    assert record.outcome == "aborted"


def test_sglang_spans_that_its_clean_up_closed_are_no_abort() -> None:
    sender = Sender("sglang server", {"service.name": "sglang"}, Ids(1))
    root = sender.start(" Req 01234567", T0, attributes={"rid": "0123"})
    leak = {"tp_rank": 0, "reason": "have unclosed span, auto closed"}
    sender.span("Scheduler [TP 0]", T0, T0 + 9 * MS, parent=root, attributes=leak, error=True)
    root.end(T0 + 10 * MS)
    [record] = assemble(sender.spans)
    assert record.outcome == "ok"


def sglang_half(role: str, service: str, start_ns: int, room: str = "0x1f2e3d4c") -> Sender:
    """A half on a host whose clock is its own."""
    sender = Sender("sglang server", {"service.name": service}, Ids(hash(role)))
    root = sender.start(
        f"{role} Req 01234567",
        start_ns,
        attributes={"rid": f"{role}-rid", "module": "sglang::request", "bootstrap_room": room},
    )
    scheduler = sender.start(
        "Scheduler [TP 0]",
        start_ns,
        parent=root,
        attributes={"tp_rank": 0, "pp_rank": 0, "host_id": service, "pid": 3, "thread_label": "Scheduler"},
    )
    if role == "prefill":
        sender.span("prefill_waiting", start_ns + 10 * MS, start_ns + 30 * MS, parent=scheduler)
        sender.span("prefill_forward", start_ns + 30 * MS, start_ns + 130 * MS, parent=scheduler)
        sender.span("prefill_transfer_kv_cache", start_ns + 130 * MS, start_ns + 150 * MS, parent=scheduler)
        tokens: dict[str, float] = {"gen_ai.usage.completion_tokens": 1, "gen_ai.usage.cached_tokens": 64}
        end_ns = start_ns + 151 * MS
    else:
        sender.span("decode_transferred", start_ns + 5 * MS, start_ns + 155 * MS, parent=scheduler)
        forward = sender.start("decode_forward", start_ns + 160 * MS, parent=scheduler)
        for step in range(30):
            step_ns = start_ns + 160 * MS + step * 10 * MS
            sender.span("decode_loop", step_ns, step_ns + 10 * MS, parent=forward, attributes={"decode_ct": step})
        forward.end(start_ns + 460 * MS)
        tokens = {"gen_ai.usage.completion_tokens": 31, "gen_ai.latency.time_to_first_token": 0.158}
        end_ns = start_ns + 470 * MS
    scheduler.end(end_ns)
    root.set_attributes({"gen_ai.usage.prompt_tokens": 900, **tokens})
    root.end(end_ns)
    return sender


@pytest.mark.parametrize("order", [1, -1])
def test_sglang_halves_on_two_hosts_become_one_request_with_each_clock_for_itself(order: int) -> None:
    hours_ns = 200_000 * MS
    halves = [sglang_half("prefill", "prefill-0", T0 - hours_ns), sglang_half("decode", "decode-0", T0)]
    [record] = assemble(*[half.spans for half in halves[::order]])
    assert record.request_id == "decode-rid"
    assert (record.start_ns, record.end_ns) == (T0, T0 + 470 * MS)
    assert record.time_to_first_token_s == 0.158
    assert record.queue_s == pytest.approx(0.020, abs=MICROSECOND)
    assert record.prefill_s == pytest.approx(0.100, abs=MICROSECOND)
    assert record.kv_sync_s == pytest.approx(0.150, abs=MICROSECOND)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (900, 31, 64)
    assert record.token_ns is not None
    assert (np.diff(record.token_ns) == 10 * MS).all()
    assert len(record.token_ns) == 30  # the first token was made by the other host
    assert record.first_token_ns == T0 + 158 * MS


def test_sglang_half_whose_partner_reports_elsewhere_is_a_request_of_its_own_in_the_end() -> None:
    assembler = Assembler()
    assert assemble(sglang_half("prefill", "prefill-0", T0).spans, assembler=assembler) == []
    [record] = assembler.tick(NOW_S + 10 + 301)
    assert record.request_id == "prefill-rid"
    assert record.prefill_s == pytest.approx(0.100, abs=MICROSECOND)


def test_sglang_two_requests_of_one_half_and_room_do_not_mix() -> None:
    assembler = Assembler()
    [first] = assemble(
        sglang_half("decode", "decode-0", T0).spans, sglang_half("decode", "decode-1", T0).spans, assembler=assembler
    )
    assert first.prefill_s is None
    [second] = assembler.tick(NOW_S + 10 + 301)
    assert second is not first


def test_tgi_tells_times_in_rusts_debug_form_and_steps() -> None:
    [record] = assemble(tgi_request())
    assert record.server == "tgi"
    assert record.token_ns is not None
    assert len(record.token_ns) == TGI_STEPS
    first_ns = T0 + 2 * MS + 15 * MS + 80 * MS
    assert record.first_token_ns == record.token_ns[0] == first_ns
    assert (np.diff(record.token_ns) == TGI_STEP_NS).all()
    assert record.time_to_first_token_s == pytest.approx(0.097, abs=MICROSECOND)
    assert record.queue_s == pytest.approx(0.015000001, abs=1e-12)
    assert record.prefill_s == pytest.approx(0.080, abs=MICROSECOND)
    assert record.decode_s == pytest.approx((TGI_STEPS - 1) * TGI_STEP_NS / 1e9, abs=MICROSECOND)
    assert record.completion_tokens == TGI_STEPS
    assert record.per_token
    assert record.parameters == {"seed": 1.0}


def test_tgi_batches_and_their_calls_belong_to_no_request() -> None:
    assembler = Assembler()
    assert len(assemble(tgi_request(), assembler=assembler, later_s=1000)) == 1
    # batch and rpc spans, and send_generation, of every step
    assert dropped(assembler) == {"unused": 3 * TGI_STEPS}


def test_tgi_first_step_lost_means_no_first_token() -> None:
    [record] = assemble(tgi_request(skip_first=True))
    assert record.time_to_first_token_s is None
    assert record.first_token_ns is None
    assert not record.per_token


def test_tgi_failed_request_has_no_times_but_its_steps() -> None:
    [record] = assemble(tgi_request(told=False))
    assert record.queue_s == pytest.approx(0.015, abs=MICROSECOND)  # from the span
    assert record.completion_tokens is None
    assert not record.per_token


def test_triton_tells_its_queue_and_model_and_no_tokens() -> None:
    [record] = assemble(triton_request())
    assert record.server == "triton"
    assert record.model == "tensorrt_llm_bls"
    assert record.queue_s == pytest.approx(0.0417, abs=MICROSECOND)
    assert (record.start_ns, record.end_ns) == (T0, T0 + 300 * MS)
    assert record.time_to_first_token_s is None
    assert record.token_ns is None
    assert record.completion_tokens is None


def test_triton_stream_has_steps_of_unknown_size() -> None:
    [record] = assemble(triton_request((100, 125, 151)))
    assert record.time_to_first_token_s == pytest.approx(0.100, abs=MICROSECOND)
    assert record.token_ns is not None
    assert (np.diff(record.token_ns) == [25 * MS, 26 * MS]).all()
    assert not record.per_token


def test_trtllm_minus_one_is_absent() -> None:
    assembler = Assembler()
    [record] = assemble(trtllm_request(), assembler=assembler)
    assert record.server == "trtllm"
    assert record.time_to_first_token_s == 0.088125
    assert record.queue_s is None
    assert record.kv_sync_s == pytest.approx(0.0125, abs=MICROSECOND)
    assert (record.prompt_tokens, record.completion_tokens) == (100, 50)
    assert not [s for s in assembler.samples() if s.metric.name == "gpumon_span_values_rejected_total"]


def test_trtllm_transfer_time_told_as_attribute() -> None:
    [record] = assemble(trtllm_request(**{"gen_ai.latency.kv_cache_transfer_time": 0.034}))
    assert record.kv_sync_s == 0.034


def test_dynamo_frontend_request_and_its_engine_are_two_requests_of_one_trace() -> None:
    frontend = Sender("dynamo", {"service.name": "dynamo"})
    request = frontend.start(
        "http-request", T0, attributes={"uri": "/v1/chat/completions", "request_id": "d-1", "method": "POST"}
    )
    payload = frontend.start("handle_payload", T0 + MS, parent=request)
    engine = vllm_sender()
    vllm_request(engine, T0 + 2 * MS, parent=payload.get_span_context())
    payload.end(T0 + 2100 * MS)
    request.end(T0 + 2110 * MS)
    frontend.span("http-request", T0, T0 + MS, attributes={"uri": "/health"})
    records = {record.server: record for record in assemble(engine.spans, frontend.spans)}
    assert sorted(records) == ["dynamo", "vllm"]
    assert records["dynamo"].request_id == "d-1"
    assert records["vllm"].completion_tokens == 64
    assert records["dynamo"].trace_id == records["vllm"].trace_id


@pytest.mark.parametrize(
    ("prompt", "completion", "cached"),
    [
        ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens"),
        ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens", "gen_ai.usage.cached_tokens"),
    ],
)
def test_genai_conventions_old_and_new(prompt: str, completion: str, cached: str) -> None:
    sender = Sender("opentelemetry.instrumentation.openai_v2", {"service.name": "chatbot", "tenant.id": "blue"})
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-oss",
        "gen_ai.response.id": "chatcmpl-9",
        prompt: 10,
        completion: 20,
        cached: 3,
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.frequency_penalty": 0.5,
        "gen_ai.request.seed": 7,
    }
    sender.span("chat gpt-oss", T0, T0 + 1000 * MS, attributes=attributes)
    sender.span("execute_tool lookup", T0, T0 + MS, attributes={"gen_ai.operation.name": "execute_tool"})
    [record] = assemble(sender.spans)
    assert record.server == "genai"
    assert record.model == "gpt-oss"
    assert record.request_id == "chatcmpl-9"
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (10, 20, 3)
    assert record.time_to_first_token_s == 0.25
    assert record.parameters == {"n": 2.0, "frequency_penalty": 0.5, "seed": 7.0}
    assert record.tenant == "blue"


def test_unknown_scopes_are_counted_and_ignored() -> None:
    sender = Sender("my.web.framework", {"service.name": "shop"})
    request = sender.start("generate", T0)
    sender.span("infer", T0, T0 + MS, parent=request)  # a step span of TGI's, by name alone
    sender.span("decode_loop", T0, T0 + MS, parent=request)
    request.end(T0 + MS)
    assembler = Assembler()
    assert assemble(sender.spans, assembler=assembler, later_s=1000) == []
    assert dropped(assembler) == {"unknown_scope": 3}
    assert {s.labels: s.value for s in assembler.samples() if s.metric.name == "gpumon_spans_received_total"}[
        ("unknown",)
    ] == 3


def test_steps_come_as_columns() -> None:
    """So that the tests above do not all go by single spans."""
    assert decode(sglang_request(1)).steps
    assert decode(tgi_request()).steps
