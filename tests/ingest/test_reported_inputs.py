"""Inputs that users of other tools reported as mishandled (T1 … T15), as JSON bodies, through decoder and assembly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpumon.ingest.assembly import Assembler
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.model import RequestRecord
from tests.ingest.senders import MS, NOW_S, T0, counts, dropped, to_steady

VLLM = ("vllm", "vllm.tracing.otel")
SGLANG = ("sglang", "sglang server")
TRACE = "5b8efff798038103d269b633813fc60c"
SHORT_TRACE = "0000000000000000a1b2c3d4e5f60718"


def span(number: int, name: str = "llm_request", *, start: int = T0, end: int = T0 + 1000 * MS, **more: Any) -> Any:
    times = {"startTimeUnixNano": str(start), "endTimeUnixNano": str(end)}
    return {"traceId": TRACE, "spanId": f"eee19b7ec3c1b1{number:02x}", "name": name, "kind": 2, **times, **more}


def attributes(**values: Any) -> list[Any]:
    """As JSON AnyValues; a tuple gives (kind, value) where another than the natural kind is wanted."""
    kinds = {float: "doubleValue", int: "intValue", str: "stringValue"}
    told = []
    for key, value in values.items():
        kind, value = value if isinstance(value, tuple) else (kinds[type(value)], value)
        told.append({"key": key.replace("__", "."), "value": {kind: value}})
    return told


def send(
    assembler: Assembler, *spans: Any, server: tuple[str, str] = VLLM, at_s: float = NOW_S, resource: bool = True
) -> None:
    service, scope = server
    resource_spans: dict[str, Any] = {"scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}]}
    if resource:
        resource_spans["resource"] = {"attributes": attributes(service__name=service)}
    body = json.dumps({"resourceSpans": [resource_spans]}).encode()
    assembler.add(decode_traces_json(body), "10.0.0.7:1", at_s, to_steady)


def records(*spans: Any, server: tuple[str, str] = VLLM) -> tuple[list[RequestRecord], Assembler]:
    assembler = Assembler()
    send(assembler, *spans, server=server)
    return assembler.tick(NOW_S + 10), assembler


def rejected(assembler: Assembler) -> Any:
    return counts(assembler, "gpumon_span_values_rejected_total")


T1 = span(
    0x71,
    end=T0 + 250 * MS,
    attributes=attributes(
        gen_ai__latency__time_in_queue=-182345.25,
        gen_ai__latency__time_in_model_prefill=182345.5,
        gen_ai__latency__e2e=0.25,
    ),
)


def test_t1_latencies_as_large_as_the_uptime_or_negative_are_left_out_and_counted_and_the_span_kept() -> None:
    [record], assembler = records(T1)
    assert record.queue_s is None
    assert record.prefill_s is None
    assert record.end_ns - record.start_ns == 250 * MS
    assert record.outcome == "ok"
    assert rejected(assembler) == {
        ("gen_ai.latency.time_in_queue", "negative"): 1,
        ("gen_ai.latency.time_in_model_prefill", "over_cap"): 1,
    }


def test_t2_time_to_first_token_from_two_clocks() -> None:
    sent = span(
        0x72,
        " Req 01234567",
        traceId=SHORT_TRACE,
        kind=1,
        attributes=attributes(gen_ai__latency__time_to_first_token=-1795900000.5),
    )
    [record], assembler = records(sent, server=SGLANG)
    assert record.time_to_first_token_s is None
    assert record.first_token_ns is None
    assert rejected(assembler) == {("gen_ai.latency.time_to_first_token", "negative"): 1}


def test_latency_longer_than_its_span_is_left_out() -> None:
    [record], assembler = records(span(1, attributes=attributes(gen_ai__latency__time_to_first_token=1.2)))
    assert record.time_to_first_token_s is None
    assert rejected(assembler) == {("gen_ai.latency.time_to_first_token", "over_span"): 1}


def test_t3_step_without_an_end_is_unfinished_and_no_step() -> None:
    step = span(
        0x73, "decode_loop", parentSpanId="00f067aa0ba902b7", kind=1, attributes=attributes(decode_ct=("intValue", "4"))
    )
    del step["endTimeUnixNano"]
    root = span(0x72, " Req 01234567", spanId="00f067aa0ba902b7", kind=1)
    [record], assembler = records(step, root, server=SGLANG)
    assert record.token_ns is None
    assert dropped(assembler) == {"unfinished": 1}


def test_t3_request_without_an_end_is_open_until_its_finished_span_comes() -> None:
    assembler = Assembler()
    begun = span(1, attributes=attributes(gen_ai__usage__prompt_tokens=5))
    del begun["endTimeUnixNano"]
    send(assembler, begun)
    assert assembler.tick(NOW_S + 10) == []
    assert [one.requests for one in assembler.open_requests()] == [1]
    send(assembler, span(1, attributes=attributes(gen_ai__usage__completion_tokens=9)), at_s=NOW_S + 20)
    assert assembler.open_requests() == []
    [record] = assembler.tick(NOW_S + 30)
    assert (record.outcome, record.completion_tokens) == ("ok", 9)
    assert dropped(assembler) == {"unfinished": 1}


def test_t3_request_that_never_ends_is_incomplete_and_has_no_duration() -> None:
    assembler = Assembler()
    send(assembler, span(1, end=0, attributes=attributes(gen_ai__latency__e2e=1.0, gen_ai__usage__prompt_tokens=5)))
    [record] = assembler.tick(NOW_S + 301)
    assert record.outcome == "incomplete"
    assert record.start_ns == record.end_ns == T0
    assert record.prompt_tokens == 5
    assert assembler.open_requests() == []


def test_t4_start_of_zero_gives_no_latency() -> None:
    [record], _ = records(span(0x74, start=0, attributes=attributes(gen_ai__latency__time_to_first_token=0.1)))
    assert record.outcome == "incomplete"
    assert record.start_ns == record.end_ns
    assert record.time_to_first_token_s is None


def test_span_that_ends_before_it_starts_gives_no_latency() -> None:
    [record], assembler = records(span(1, start=T0, end=T0 - MS))
    assert record.outcome == "incomplete"
    assert rejected(assembler) == {("duration", "negative"): 1}


def test_t5_copies_count_nothing() -> None:
    sent = span(0x75, attributes=attributes(gen_ai__usage__completion_tokens=10))
    assembler = Assembler()
    send(assembler, sent, sent)
    send(assembler, sent, at_s=NOW_S + 1)
    [record] = assembler.tick(NOW_S + 2)
    send(assembler, sent, at_s=NOW_S + 60)  # a retry after the record was made
    assert assembler.tick(NOW_S + 100) == []
    assert record.completion_tokens == 10
    assert dropped(assembler) == {"duplicate": 3}


def t6(number: int, parent: int) -> Any:
    schedule = {"name": "schedule", "timeUnixNano": str(T0), "attributes": attributes(bid=71, batch_size=16)}
    return span(
        number,
        "decode_loop",
        traceId=SHORT_TRACE,
        parentSpanId=f"00f067aa0ba902{parent:02x}",
        kind=1,
        flags=256,
        end=T0 + 18 * MS,
        attributes=attributes(decode_ct=("intValue", "0")),
        events=[schedule],
    )


def test_t6_children_whose_parent_never_comes_are_an_incomplete_request_after_a_while() -> None:
    assembler = Assembler()
    send(assembler, t6(0x76, 0xB7), server=SGLANG)
    assert assembler.open_by_model() == {("sglang", ""): 1}
    assert assembler.tick(NOW_S + 299) == []
    [record] = assembler.tick(NOW_S + 301)
    assert record.outcome == "incomplete"
    assert record.server == "sglang"
    assert record.token_ns is not None
    assert len(record.token_ns) == 1
    assert record.time_to_first_token_s is None
    assert dropped(assembler) == {"orphan": 1}
    assert assembler.open_requests() == []


def test_t6_children_whose_parent_comes_after_them() -> None:
    assembler = Assembler()
    send(assembler, t6(0x76, 0xB7), server=SGLANG)
    root = span(0x72, " Req 01234567", traceId=SHORT_TRACE, spanId="00f067aa0ba902b7", kind=1)
    send(assembler, root, server=SGLANG, at_s=NOW_S + 60)
    [record] = assembler.tick(NOW_S + 62)
    assert record.token_ns is not None
    assert len(record.token_ns) == 1
    assert dropped(assembler) == {}


def test_t7_ranks_repeat_a_token_and_are_one_token_and_eight_ranks() -> None:
    rid = attributes(rid="abc", gen_ai__usage__completion_tokens=2)
    root = span(0x70, " Req 01234567", traceId=SHORT_TRACE, kind=1, attributes=rid)
    steps = [t6(0x80 + rank, 0xB0 + rank) for rank in range(8)]
    ranks = [
        span(
            0,
            f"Scheduler [TP {rank}]",
            traceId=SHORT_TRACE,
            spanId=f"00f067aa0ba902b{rank}",
            parentSpanId=root["spanId"],
            attributes=attributes(tp_rank=rank),
        )
        for rank in range(8)
    ]
    [record], assembler = records(*steps, *ranks, root, server=SGLANG)
    assert record.token_ns is not None
    assert len(record.token_ns) == 1
    assert record.per_token
    assert {rank: len(ends) for rank, ends in record.rank_steps.items()} == dict.fromkeys(range(8), 1)
    assert dropped(assembler) == {}


def test_t10_trace_ids_whose_upper_half_is_zero_are_kept_as_they_are() -> None:
    root = span(0x72, " Req 01234567", traceId=SHORT_TRACE, kind=1)
    [record], _ = records(root, server=SGLANG)
    assert record.trace_id.hex() == SHORT_TRACE


def test_t12_numbers_in_every_spelling() -> None:
    sent = span(
        0x7C,
        end=T0 + 2000 * MS,
        attributes=attributes(
            gen_ai__latency__e2e=("intValue", "2"),
            gen_ai__latency__time_to_first_token=("intValue", 1),
            gen_ai__usage__completion_tokens=("doubleValue", 64.0),
            gen_ai__usage__prompt_tokens="12",
            gen_ai__latency__time_in_queue="18.25ms",
        ),
    )
    [record], assembler = records(sent)
    assert record.time_to_first_token_s == 1.0
    assert record.completion_tokens == 64
    assert record.prompt_tokens == 12
    assert record.queue_s == pytest.approx(0.01825, abs=1e-12)
    assert rejected(assembler) == {}


def test_t13_no_resource() -> None:
    assembler = Assembler()
    send(assembler, span(0x7D), resource=False)
    [record] = assembler.tick(NOW_S + 10)
    assert record.server == "vllm"
    assert record.model == ""


@pytest.mark.parametrize(("shift_s", "reason"), [(-26 * 3600, "late"), (600, "future")])
def test_t14_spans_from_yesterday_or_from_the_future_are_no_requests_of_now(shift_s: int, reason: str) -> None:
    shift_ns = shift_s * 1_000_000_000
    root = span(0x7B, start=T0 + shift_ns, end=T0 + shift_ns + 1000 * MS)
    step = t6(0x76, 0xB7) | {
        "startTimeUnixNano": str(T0 + shift_ns),
        "endTimeUnixNano": str(T0 + shift_ns + 18 * MS),
    }
    assembler = Assembler()
    send(assembler, root)
    send(assembler, step, server=SGLANG)
    assert assembler.tick(NOW_S + 1000) == []
    assert dropped(assembler) == {reason: 2}
    assert assembler.open_requests() == []


def test_t15_child_on_another_clock_gives_no_latency_between_the_two_and_shows_the_skew() -> None:
    root = span(0x72, " Req 01234567", traceId=SHORT_TRACE, kind=1, attributes=attributes(rid="abc"))
    child = span(
        0x7F,
        "prefill_forward",
        traceId=SHORT_TRACE,
        parentSpanId=root["spanId"],
        start=T0 - 3000 * MS,
        end=T0 - 2700 * MS,
    )
    [record], assembler = records(root, child, server=SGLANG)
    assert record.time_to_first_token_s is None
    assert record.first_token_ns is None
    assert record.prefill_s == pytest.approx(0.3)  # of the child's own clock
    assert counts(assembler, "gpumon_requests_skewed_total") == {"sglang": 1}
    assert counts(assembler, "gpumon_request_clock_skew_seconds") == {"sglang": pytest.approx(3.0)}


def array(kind: str, *values: Any) -> dict[str, Any]:
    return {"arrayValue": {"values": [{kind: value} for value in values]}}


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        ({"gen_ai.token.times_ns": array("doubleValue", 1e8, 2e8)}, ("gen_ai.token.times_ns", "not_integers")),
        ({"gen_ai.token.times_ns": array("stringValue", "a", "b")}, ("gen_ai.token.times_ns", "not_integers")),
        ({"gen_ai.token.counts": array("intValue", 1)}, ("gen_ai.token.counts", "malformed")),
        ({"gen_ai.token.counts": array("intValue", -1, 5)}, ("gen_ai.token.counts", "malformed")),
        ({"gen_ai.token.counts": array("intValue", 10**18, 10**18)}, ("gen_ai.token.counts", "malformed")),
    ],
)
def test_token_arrays_that_cannot_be_read_are_counted_and_give_no_token_times(
    told: dict[str, Any], refused: tuple[str, str]
) -> None:
    good = {"gen_ai.token.times_ns": array("intValue", 100 * MS, 200 * MS)}
    listed = [{"key": key, "value": value} for key, value in (good | told).items()]
    [record], assembler = records(span(1, "gen_ai.request", attributes=listed), server=("shim", "gpumon.tokens"))
    assert record.token_ns is None
    assert rejected(assembler) == {refused: 1}
