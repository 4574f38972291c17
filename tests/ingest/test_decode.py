"""Trace requests decoded: users' own spans, values, token columns, steps, limits, floods, privacy and errors."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gpumon.ingest.columns import read_events
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.records import DROPPED_ATTRIBUTES, Decoded, DecodeError, TokenColumns
from gpumon.ingest.schema import ReducedTraceRequest, raw_events
from gpumon.ingest.walk import decode_traces_walk
from tests.ingest import vectors, wire
from tests.ingest.differential import SMALL_LIMITS, differing, plain
from tests.ingest.payloads import PROMPT, Dice
from tests.ingest.vectors import START, Json, attribute, envelope, only, span

Decode = Callable[[Json], Decoded]


@pytest.fixture(params=[vectors.decode_fast, vectors.decode_walk, vectors.decode_json], ids=["fast", "walk", "json"])
def decode(request: pytest.FixtureRequest) -> Decode:
    """Each of the three decoders, on a request given as OTLP/JSON."""
    chosen: Decode = request.param
    return chosen


def token(at_ns: int, *, name: str = "gen_ai.token.generated", **attributes: int | float) -> Json:
    """A token event; ``count`` and ``latency`` are its attributes."""
    keys = {"count": "gen_ai.token.count", "latency": "latency_us"}
    pairs = [
        attribute(keys.get(key, key), doubleValue=value)
        if isinstance(value, float)
        else attribute(keys.get(key, key), intValue=value)
        for key, value in attributes.items()
    ]
    return {"timeUnixNano": str(at_ns), "name": name, "attributes": pairs}


def tokens_of(decoded: Decoded) -> TokenColumns:
    [record] = decoded.spans
    assert record.tokens is not None
    return record.tokens


# Spans of bug reports


def test_impossible_latencies_are_passed_on_as_they_are_for_the_adapters_to_judge(decode: Decode) -> None:
    [record] = decode(envelope(vectors.HOST_UPTIME_AS_QUEUE_TIME)).spans
    assert record.attributes == {
        "gen_ai.latency.time_in_queue": -182345.25,
        "gen_ai.latency.time_in_model_prefill": 182345.5,
        "gen_ai.latency.e2e": 0.25,
    }


def test_trace_ids_whose_upper_half_is_zero_are_valid(decode: Decode) -> None:
    [record] = decode(envelope(vectors.NEGATIVE_TTFT)).spans
    assert record.trace_id.hex() == "0000000000000000a1b2c3d4e5f60718"
    assert record.name == " Req 01234567"


def test_an_absent_end_stays_zero_and_a_step_without_parent_stays_a_span(decode: Decode) -> None:
    decoded = decode(envelope(vectors.NO_END))
    [record] = decoded.spans
    assert (record.start_ns, record.end_ns, record.attributes, decoded.steps) == (START, 0, {"decode_ct": 4}, [])


def test_a_start_of_zero_stays_zero(decode: Decode) -> None:
    [record] = decode(envelope(vectors.NO_START)).spans
    assert (record.start_ns, record.end_ns) == (0, START + 10**9)


def test_a_step_becomes_a_row_of_columns(decode: Decode) -> None:
    decoded = decode(envelope(vectors.STEP))
    [step] = decoded.steps
    assert decoded.spans == []
    assert (step.name, step.parent_id) == ("decode_loop", bytes.fromhex("00f067aa0ba902b7"))
    assert step.span_ids == (bytes.fromhex("eee19b7ec3c1b176"),)
    assert step.start_ns.tolist() == [START]
    assert step.end_ns.tolist() == [1795953600018000000]
    assert step.index is not None
    assert step.index.tolist() == [0]
    assert step.counts is None


def test_steps_of_tensor_parallel_ranks_stay_apart_by_their_parents(decode: Decode) -> None:
    ranks = [{**vectors.STEP, "spanId": f"{rank + 1:016x}", "parentSpanId": f"{rank + 9:016x}"} for rank in range(8)]
    steps = decode(envelope(*ranks, *({**rank, "spanId": "ff" + rank["spanId"][2:]} for rank in ranks))).steps
    assert sorted(int.from_bytes(step.parent_id or b"") for step in steps) == [*range(9, 17)]
    assert [len(step.span_ids) for step in steps] == [2] * 8


def test_a_span_listed_twice_comes_twice_for_the_dedupe_behind(decode: Decode) -> None:
    assert len(decode(envelope(vectors.NO_KIND, vectors.NO_KIND)).spans) == 2


def test_zero_ids_reject_that_span_and_no_other(decode: Decode) -> None:
    decoded = decode(envelope(vectors.ZERO_IDS, vectors.NO_KIND))
    assert len(decoded.spans) == 1
    assert decoded.rejected == {"bad_id": 1}
    assert "16 bytes" in decoded.message
    assert "/v1/logs" not in decoded.message


def test_a_span_without_kind_is_kept(decode: Decode) -> None:
    [record] = decode(envelope(vectors.NO_KIND)).spans
    assert record.kind == 0


def test_numbers_keep_the_kind_in_which_they_were_sent(decode: Decode) -> None:
    [record] = decode(envelope(vectors.MIXED_NUMBERS)).spans
    assert [(type(value), value) for value in record.attributes.values()] == [
        (int, 2),
        (int, 1),
        (float, 64.0),
        (str, "18.25ms"),
    ]


def test_no_resource_is_an_empty_resource(decode: Decode) -> None:
    [record] = decode({"resourceSpans": [{"scopeSpans": [{"spans": [vectors.NO_KIND]}]}]}).spans
    assert record.resource.attributes == {}
    assert record.scope == ("", "")


def test_late_future_and_skewed_times_are_not_judged_here(decode: Decode) -> None:
    early = span(startTimeUnixNano=START - 26 * 3600 * 10**9, endTimeUnixNano=START - 25 * 3600 * 10**9)
    future = span(startTimeUnixNano=START + 10**12, endTimeUnixNano=START)
    assert len(decode(envelope(early, future, vectors.SKEWED)).spans) == 3


def test_thirty_thousand_steps_in_one_request() -> None:
    body = vectors.as_protobuf(envelope(vectors.STEP))
    decoded = only(decode_traces([body * 30_000]))
    [step] = decoded.steps
    assert len(step.span_ids) == len(step.start_ns) == 30_000


def test_log_records_on_the_trace_path_are_rejected_with_a_hint() -> None:
    log = wire.delimited(5, wire.text("x"))
    decoded = only(decode_traces([wire.request(log)]))
    assert decoded.rejected == {"bad_id": 1}
    assert "/v1/logs" in decoded.message


# Values


def test_an_empty_request_is_a_success(decode: Decode) -> None:
    assert plain(decode({})) == plain(Decoded())


def test_what_is_no_plain_value_is_left_out(decode: Decode) -> None:
    attributes = [
        attribute("none"),
        attribute("bytes", bytesValue="AAEC"),
        attribute("map", kvlistValue={"values": [attribute("a", intValue=1)]}),
        attribute("mixed", arrayValue={"values": [{"intValue": 1}, {"stringValue": "a"}]}),
        attribute("nested", arrayValue={"values": [{"arrayValue": {"values": []}}]}),
        attribute("hole", arrayValue={"values": [{"intValue": 1}, {}]}),
        attribute("flag", boolValue=True),
        attribute("empty", arrayValue={}),
        attribute("texts", arrayValue={"values": [{"stringValue": "stop"}, {"stringValue": "length"}]}),
        attribute("numbers", arrayValue={"values": [{"intValue": 1}, {"doubleValue": 2.5}]}),
        attribute("few", arrayValue={"values": [{"intValue": 1}] * 15}),
        attribute("nan", doubleValue="NaN"),
    ]
    [record] = decode(envelope(span(attributes=attributes))).spans
    nan = record.attributes["nan"]
    assert isinstance(nan, float)
    assert np.isnan(nan)
    assert {key: value for key, value in record.attributes.items() if key != "nan"} == {
        "flag": True,
        "empty": (),
        "texts": ("stop", "length"),
        "numbers": (1.0, 2.5),
        "few": (1,) * 15,
    }


@pytest.mark.parametrize("size", [16, 1000])
@pytest.mark.parametrize("odd", [0, 127, 128, 2**56, 2**63 - 1, -1, -(2**63)])
def test_the_compact_form_is_an_int_array(decode: Decode, size: int, odd: int) -> None:
    values = [at * 17_000_003 for at in range(size - 1)] + [odd]
    elements = [{"intValue": str(value)} for value in values]
    attributes = [attribute("gen_ai.token.times_ns", arrayValue={"values": elements})]
    [record] = decode(envelope(span(attributes=attributes))).spans
    found = record.attributes["gen_ai.token.times_ns"]
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int64
    assert found.tolist() == values


def test_the_last_of_equal_keys_wins(decode: Decode) -> None:
    attributes = [attribute("a", intValue=1), attribute("a", stringValue="x"), attribute("a")]
    [record] = decode(envelope(span(attributes=attributes))).spans
    assert record.attributes == {"a": "x"}


def test_equal_resources_are_one_object_in_a_batch_and_have_one_key_whatever_the_encoding() -> None:
    request = envelope(vectors.NO_KIND)
    body = vectors.as_protobuf(request)
    first, second = decode_traces([body, body])
    assert isinstance(first, Decoded)
    assert isinstance(second, Decoded)
    assert first.spans[0].resource is second.spans[0].resource
    assert first.spans[0].resource.key == vectors.decode_json(request).spans[0].resource.key
    other = {"resourceSpans": [{"scopeSpans": [{"spans": [vectors.NO_KIND]}]}]}
    assert vectors.decode_fast(other).spans[0].resource.key != first.spans[0].resource.key


def test_status_links_and_dropped_events_are_read(decode: Decode) -> None:
    links = [{"traceId": vectors.TRACE, "spanId": vectors.SPAN}, {"traceId": "00" * 16, "spanId": vectors.SPAN}]
    [record] = decode(envelope(span(status={"code": 2}, droppedEventsCount=72, links=links))).spans
    assert (record.status, record.dropped_events) == (2, 72)
    assert list(record.links) == [(bytes.fromhex(vectors.TRACE), bytes.fromhex(vectors.SPAN))]


def test_numbers_of_future_enums_are_read_as_unset(decode: Decode) -> None:
    [record] = decode(envelope(span(kind=77, status={"code": 9}))).spans
    assert (record.kind, record.status) == (0, 0)


@pytest.mark.parametrize("field", ["startTimeUnixNano", "endTimeUnixNano"])
def test_a_time_past_the_year_2262_rejects_the_span(decode: Decode, field: str) -> None:
    decoded = decode(envelope(span(**{field: str(2**63)}), span()))
    assert (len(decoded.spans), decoded.rejected) == (1, {"bad_time": 1})


@pytest.mark.parametrize(
    "fields", [{"parentSpanId": "0011"}, {"spanId": None}, {"traceId": "ab" * 17}, {"traceId": None}]
)
def test_ids_of_a_wrong_length_reject_the_span(decode: Decode, fields: Json) -> None:
    decoded = decode(envelope(span(**fields)))
    assert (decoded.spans, decoded.rejected) == ([], {"bad_id": 1})


def test_a_parent_of_zeros_is_none(decode: Decode) -> None:
    [record] = decode(envelope(span(parentSpanId="00" * 8))).spans
    assert record.parent_id is None


# Token events


@pytest.mark.parametrize("size", [3, 100, 20_000])
def test_token_events_become_columns_in_the_order_in_which_they_were_sent(decode: Decode, size: int) -> None:
    times = [START + (at * 7919 % size) * 20_000_000 for at in range(size)]
    latencies = [(at * 37 % 300_000) for at in range(size)]
    events = [token(at, latency=us, count=1, token_id=us) for at, us in zip(times, latencies, strict=True)]
    tokens = tokens_of(decode(envelope(span(events=events))))
    assert tokens.at_ns.tolist() == times
    assert tokens.counts is None
    assert tokens.latency_us is not None
    assert tokens.latency_us.tolist() == latencies


@pytest.mark.parametrize("size", [3, 100])
def test_counts_are_a_column_as_soon_as_one_event_has_several_tokens(decode: Decode, size: int) -> None:
    events = [token(START, count=4), *(token(START) for _ in range(size)), token(START, count=0)]
    counts = tokens_of(decode(envelope(span(events=events)))).counts
    assert counts is not None
    assert counts.dtype == np.int32
    assert counts.tolist() == [4, *([1] * size), 0]


@pytest.mark.parametrize("count", [-1, 1_000_001, 2**40, 2.5])
def test_a_count_that_cannot_be_is_read_as_if_absent(decode: Decode, count: float) -> None:
    assert tokens_of(decode(envelope(span(events=[token(START, count=count)] * 50)))).counts is None


def test_a_count_as_a_whole_double_counts(decode: Decode) -> None:
    counts = tokens_of(decode(envelope(span(events=[token(START, count=3.0)] * 50)))).counts
    assert counts is not None
    assert counts.tolist() == [3] * 50


def test_latency_is_a_column_only_where_every_event_has_one(decode: Decode) -> None:
    events = [token(START, latency=1.5) for _ in range(60)]
    complete = tokens_of(decode(envelope(span(events=events))))
    assert complete.latency_us is not None
    assert complete.latency_us.tolist() == [1.5] * 60
    assert tokens_of(decode(envelope(span(events=[*events, token(START)])))).latency_us is None


def test_all_names_of_token_events_count_and_other_events_are_kept_as_events(decode: Decode) -> None:
    events = [
        token(START + 1),
        {"timeUnixNano": str(START + 2), "name": "exception", "attributes": [attribute("a", boolValue=False)]},
        token(START + 3, name="token_generated"),
        token(START + 4, name="token_emitted"),
    ]
    decoded = decode(envelope(span(events=events)))
    assert tokens_of(decoded).at_ns.tolist() == [START + 1, START + 3, START + 4]
    [event] = decoded.spans[0].events
    assert event == ("exception", START + 2, {"a": False})


def test_an_event_without_time_or_with_an_impossible_one_has_time_zero(decode: Decode) -> None:
    events = [{"name": "token_generated"}, token(2**63), token(2**64 - 1), token(5)] * 10
    assert tokens_of(decode(envelope(span(events=events)))).at_ns.tolist() == [0, 0, 0, 5] * 10


def test_one_odd_event_sends_only_itself_to_the_slow_path() -> None:
    pair = wire.pair("gen_ai.token.count", wire.whole(1))
    plain_event = wire.token_event(START, pair)
    odd = {
        0: wire.token_event(START, wire.pair("gen_ai.token.count", wire.whole(-1))),
        100: wire.token_event(START, pair, name="exception"),
        2500: wire.token_event(START, wire.pair("note", wire.text("x" * 20))),
        4999: plain_event + wire.integer(4, 1),
    }
    taken = read_events([odd.get(row, plain_event) for row in range(5000)]).taken
    assert np.flatnonzero(~taken).tolist() == [*odd]


def test_varints_of_different_sizes_all_go_through_numpy() -> None:
    dice = Dice(5)
    values = [(dice.choice((1, 200, 40_000)), 2 ** dice.randrange(50)) for _ in range(4000)]
    events = [
        wire.token_event(
            START + row,
            wire.pair("gen_ai.token.count", wire.whole(count)),
            wire.pair("latency_us", wire.whole(latency)),
        )
        for row, (count, latency) in enumerate(values)
    ]
    table = read_events(events)
    taken = table.taken
    assert taken.mean() > 0.98
    assert table.at_ns[taken].tolist() == (START + np.flatnonzero(taken)).tolist()
    assert list(zip(table.counts[taken].tolist(), table.latency_us[taken].tolist(), strict=True)) == [
        values[row] for row in np.flatnonzero(taken)
    ]


def test_tokens_of_gathered_requests_go_back_to_their_own_spans() -> None:
    bodies = [
        wire.request(
            *(wire.span(*(wire.token_event(1000 * number + row) for row in range(number * 7))) for _ in range(2))
        )
        for number in range(40)
    ]
    for number, decoded in enumerate(decode_traces(bodies)):
        assert isinstance(decoded, Decoded)
        for record in decoded.spans:
            found = [] if record.tokens is None else record.tokens.at_ns.tolist()
            assert found == [1000 * number + row for row in range(number * 7)]


def test_odd_events_around_the_borders_of_a_pass_find_their_spans() -> None:
    events = [wire.delimited(2, "token_emitted")] * 40_000
    for row in (0, 9, 16_383, 16_384, 16_385, 32_767, 32_768, 39_999):
        events[row] = wire.delimited(2, "other") + wire.fixed64(1, row)
    spans = [
        wire.span(*events[first:last]) for first, last in ((0, 10), (10, 16_384), (16_384, 33_000), (33_000, 40_000))
    ]
    for body in (wire.request(*spans), wire.request(wire.span(*events))):
        assert differing([body]) == []


def test_a_body_that_cannot_be_read_leaves_its_neighbours_alone() -> None:
    good = wire.request(wire.span(*[wire.token_event(START)] * 40))
    torn = good[:-3]
    bad_text = wire.request(wire.span(*[wire.token_event(START)] * 40, wire.delimited(2, b"\xff")))
    bad_event_of_a_rejected_span = wire.request(wire.delimited(11, b"\x12\x01\xff"))
    results = decode_traces([good, torn, good, bad_text, bad_event_of_a_rejected_span, good])
    assert [isinstance(result, DecodeError) for result in results] == [False, True, False, True, True, False]
    for result in (results[0], results[2], results[5]):
        assert isinstance(result, Decoded)
        assert tokens_of(result).at_ns.tolist() == [START] * 40


def test_real_spans_of_the_sdk_come_through() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    with provider.get_tracer("gpumon", "1.2").start_as_current_span(
        "llm_request", attributes={"none": None, "n": 3}
    ) as one:
        for row in range(200):
            one.add_event("gen_ai.token.generated", {"gen_ai.token.count": 2, "latency_us": 2.5}, START + row)
    provider.shutdown()
    body = encode_spans(memory.get_finished_spans()).SerializeToString()
    decoded = only(decode_traces([body]))
    tokens = tokens_of(decoded)
    assert tokens.at_ns.tolist() == [START + row for row in range(72, 200)]  # the SDK keeps the last 128
    assert decoded.spans[0].dropped_events == 72
    assert decoded.spans[0].scope == ("gpumon", "1.2")
    assert decoded.spans[0].attributes == {"n": 3}
    assert tokens.latency_us is not None
    assert tokens.latency_us.tolist() == [2.5] * 128
    [one_span] = ReducedTraceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert read_events(raw_events(one_span)[:]).taken.all()


# Steps


def test_step_numbers_are_a_column_only_where_every_step_has_one(decode: Decode) -> None:
    steps = [
        {**vectors.STEP, "name": "gen_ai.token", "attributes": [attribute("gen_ai.token.index", intValue=number)]}
        for number in range(3)
    ]
    [complete] = decode(envelope(*steps)).steps
    assert complete.index is not None
    assert complete.index.tolist() == [0, 1, 2]
    [gaps] = decode(envelope(*steps, {**vectors.STEP, "name": "gen_ai.token", "attributes": []})).steps
    assert gaps.index is None


def test_tokens_of_a_step_are_counted_where_any_step_tells(decode: Decode) -> None:
    told = {**vectors.STEP, "attributes": [attribute("gen_ai.token.count", intValue=3)]}
    [step] = decode(envelope(vectors.STEP, told)).steps
    assert step.counts is not None
    assert step.counts.tolist() == [1, 3]


def test_a_failed_step_stays_a_span_with_its_events(decode: Decode) -> None:
    decoded = decode(envelope({**vectors.STEP, "status": {"code": 2}}))
    [record] = decoded.spans
    assert [event.name for event in record.events] == ["schedule"]


def test_steps_of_equal_scopes_are_one_group_wherever_they_stand(decode: Decode) -> None:
    twice = {"resourceSpans": envelope(vectors.STEP)["resourceSpans"] * 2}
    [step] = decode(twice).steps
    assert len(step.span_ids) == 2


# Limits

LIMITED: list[tuple[Json, dict[str, int], dict[str, int]]] = [
    (envelope(*[span()] * 5), {"too_many_spans": 2}, {}),
    (envelope(*[vectors.STEP] * 5), {"too_many_spans": 3}, {}),
    (envelope(*[span(traceId=None)] * 7), {"bad_id": 5, "too_many_spans": 2}, {}),
    ({"resourceSpans": [{"scopeSpans": [{}, {}]}] * 4}, {"too_many_scopes": 4}, {}),
    (envelope(span(attributes=[attribute(f"a{n}", intValue=n) for n in range(5)])), {}, {"attributes": 3}),
    (envelope(span(attributes=[attribute("k" * 31, intValue=1)])), {}, {"attributes": 1}),
    (envelope(span(attributes=[attribute("a", stringValue="x" * 11)])), {}, {"strings": 1}),
    (envelope(span(name="n" * 31)), {}, {"strings": 1}),
    (envelope(span(), scope="s" * 31), {}, {"strings": 1}),
    (envelope(span(links=[{"traceId": vectors.TRACE, "spanId": vectors.SPAN}] * 3)), {}, {"links": 3}),
    (envelope(span(events=[{"name": "exception"}] * 5)), {}, {"events": 3}),
    (envelope(span(events=[token(START)] * 50)), {}, {"tokens": 30}),
    (envelope(span(attributes=[attribute("a", arrayValue={"values": [{"intValue": 1}] * 60})])), {}, {"arrays": 1}),
    (
        envelope(span(attributes=[attribute("a", arrayValue={"values": [{"boolValue": 1 > 0}] * 60})])),
        {},
        {"arrays": 1},
    ),
]


@pytest.mark.parametrize(("request_", "rejected", "truncated"), LIMITED)
def test_what_is_over_a_limit_is_cut_and_counted(
    request_: Json, rejected: dict[str, int], truncated: dict[str, int]
) -> None:
    body = vectors.as_protobuf(request_)
    for decoded in (
        only(decode_traces([body], SMALL_LIMITS)),
        decode_traces_walk(body, SMALL_LIMITS),
        decode_traces_json(vectors.as_json(request_), SMALL_LIMITS),
    ):
        assert (decoded.rejected, decoded.truncated) == (rejected, truncated)
        assert all(len(record.attributes) <= 2 and len(record.name) <= 30 for record in decoded.spans)


def test_a_mebibyte_of_tokens_in_one_span_keeps_the_first_of_them() -> None:
    decoded = only(
        decode_traces([wire.request(wire.span(*[wire.token_event(START)] * 30_000))], DecodeLimits(max_token_events=9))
    )
    assert tokens_of(decoded).at_ns.tolist() == [START] * 9
    assert decoded.truncated == {"tokens": 30_000 - 9}


def test_a_full_size_request_of_a_million_tokens_takes_bounded_memory() -> None:
    """64 MiB of events with 3 columns: less than 8 times the body, in a process of its own."""
    program = """
import resource
from gpumon.ingest.decode import decode_traces
from tests.ingest import wire
pair = wire.pair("latency_us", wire.whole(20_000))
span = wire.span(*[wire.token_event(5, pair)] * 1000)
body = wire.request(*[span] * ((64 << 20) // len(span)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
[decoded] = decode_traces([body])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(len(one.tokens.at_ns) for one in decoded.spans), (after - before) * 1024 / len(body))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    tokens, factor = done.stdout.split()
    assert int(tokens) > 1_000_000
    assert float(factor) < 8


@pytest.mark.parametrize(
    ("count", "body"),
    [
        (400_000, wire.delimited(1, b"")),
        (400_000, wire.request(wire.span() + wire.delimited(9, b"") * 400_000)),
        (400_000, wire.request(wire.span() + wire.delimited(11, b"") * 400_000)),
        (400_000, wire.request(wire.span(wire.delimited(2, "token_emitted") + wire.delimited(3, b"") * 400_000))),
        (
            400_000,
            wire.request(
                wire.span(name="decode_loop") + wire.delimited(4, b"parent-1") + wire.delimited(9, b"") * 400_000
            ),
        ),
    ],
    ids=["resources", "attributes", "events", "attributes of a token", "attributes of a step"],
)
def test_a_flood_of_empty_messages_costs_little_time_and_memory(count: int, body: bytes) -> None:
    tracemalloc.start()
    started = time.process_time()
    decoded = only(decode_traces([body if len(body) > count else body * count]))
    took_s = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < 3
    assert peak < 64 * count  # of Python's own; upb's parse takes some 32 bytes for each byte of this
    assert len(decoded.spans) <= 1


@pytest.mark.parametrize("broken", [False, True])
def test_spans_beyond_the_limit_still_have_to_be_sound(broken: bool) -> None:
    late = wire.span(wire.delimited(2, b"\xff" if broken else b"x"))
    assert differing([wire.request(*[wire.span()] * 5, late)], SMALL_LIMITS) == []
    [decoded] = decode_traces([wire.request(*[wire.span()] * 5, late)], SMALL_LIMITS)
    assert isinstance(decoded, DecodeError) == broken


# Privacy and errors


def test_a_planted_prompt_is_nowhere_in_what_is_decoded(decode: Decode) -> None:
    prefixed = ("gen_ai.prompt.0.content", "gen_ai.completion.0.content", "llm.input_messages.0.message.content")
    planted = [
        attribute(key, **value)
        for key in (*sorted(DROPPED_ATTRIBUTES), *prefixed, "llm.output_messages")
        for value in ({"stringValue": PROMPT}, {"arrayValue": {"values": [{"stringValue": PROMPT}]}})
    ]
    events = [{"name": name, "attributes": planted} for name in ("token_generated", "exception")] * 20
    request = envelope(
        span(attributes=planted, events=events),
        {**vectors.STEP, "attributes": planted, "events": events},
        span(attributes=planted, traceId="00" * 16),
    )
    request["resourceSpans"][0]["resource"]["attributes"] = planted
    said = repr(plain(decode(request)))
    assert "llm_request" in said
    assert PROMPT not in said


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"\x1f\x8b" + PROMPT.encode(), "Content-Encoding: gzip"),
        (b' {"resourceSpans": "' + PROMPT.encode(), "Content-Type: application/json"),
        (wire.request(wire.span(wire.delimited(2, PROMPT.encode() + b"\xff"))), "not UTF-8"),
        (wire.request(wire.span(wire.token_event(1)))[:-1], "truncated"),
    ],
)
def test_the_error_tells_the_likeliest_reason_and_quotes_nothing(body: bytes, hint: str) -> None:
    [error] = decode_traces([body])
    assert isinstance(error, DecodeError)
    assert hint in str(error)
    assert PROMPT not in str(error)
    with pytest.raises(DecodeError, match=hint):
        decode_traces_walk(body)
