"""The fast path agrees with the walk on every request: random, mutated, odd, deep, and what fuzzing found."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon.ingest.decode import decode_traces
from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.records import DecodeError
from gpumon.ingest.schema import ReducedTraceRequest
from gpumon.ingest.walk import decode_traces_walk
from tests.ingest import wire
from tests.ingest.differential import SMALL_LIMITS, batches, differing, payloads
from tests.ingest.payloads import Dice, mutated, random_request
from tests.ingest.vectors import START

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))


@pytest.mark.parametrize("seed", range(4))
def test_the_fast_path_and_the_walk_agree_on_random_and_mutated_requests(seed: int) -> None:
    for number, batch in enumerate(batches(islice(payloads(seed), 500), seed)):
        assert differing(batch, SMALL_LIMITS if number % 4 == 3 else DecodeLimits()) == []


@given(st.integers(0, 2**32), st.lists(st.integers(0, 2**32), max_size=4))
@settings(max_examples=150, deadline=None)
def test_the_fast_path_and_the_walk_agree_whatever_the_request(seed: int, mutations: list[int]) -> None:
    body = random_request(Dice(seed))
    for mutation in mutations:
        body = mutated(body, Dice(mutation))
    assert differing([body]) == []


@given(st.lists(st.binary(max_size=60), max_size=40))
def test_the_fast_path_and_the_walk_agree_whatever_the_events(events: list[bytes]) -> None:
    assert differing([wire.request(wire.span(*events))]) == []


COUNT_KEY = "gen_ai.token.count"


@pytest.mark.parametrize(
    "trap",
    [
        wire.pair(COUNT_KEY, wire.whole(5) + wire.boolean(True)),  # as long as a varint of three bytes
        wire.pair(COUNT_KEY, wire.whole(5) + wire.integer(15, 1)),
        wire.pair(COUNT_KEY, wire.integer(2, 2**14)),
        wire.pair(COUNT_KEY, wire.text("ab")),
        wire.pair(COUNT_KEY, wire.whole(5, size=3)),
        wire.delimited(2, wire.whole(2**14)) + wire.delimited(1, COUNT_KEY),
        wire.pair("gen_ai.token.COUNT", wire.whole(2**14)),
    ],
)
@pytest.mark.parametrize("sizes", [(30, 30), (30, 1), (1, 30)])
def test_events_as_long_as_others_and_laid_out_differently_do_not_pass_for_them(
    trap: bytes, sizes: tuple[int, int]
) -> None:
    plain_event = wire.token_event(START, wire.pair(COUNT_KEY, wire.whole(2**14)))
    other = wire.token_event(START, trap)
    assert len(plain_event) == len(other)
    for events in ([plain_event] * sizes[0] + [other] * sizes[1], [other] * sizes[1] + [plain_event] * sizes[0]):
        body = wire.request(wire.span(*events))
        decode_traces_walk(body)
        assert differing([body]) == []


@pytest.mark.parametrize("key", [COUNT_KEY, "latency_us", "x"])
@pytest.mark.parametrize(
    "value", [wire.boolean(True), wire.real(2.0), wire.whole(2), wire.whole(-2), wire.text("2"), b""]
)
def test_attributes_of_every_kind_mean_the_same_in_hundreds_and_one_by_one(key: str, value: bytes) -> None:
    twice = wire.token_event(START, wire.pair(key, wire.whole(7)), wire.pair(key, value)) + wire.fixed64(1, START + 1)
    for event in (wire.token_event(START, wire.pair(key, value)), twice, twice + wire.delimited(2, "token_emitted")):
        body = wire.request(wire.span(*[event] * 100))
        decode_traces_walk(body)
        assert differing([body]) == []


@pytest.mark.parametrize("size", [16, 100])
@pytest.mark.parametrize(
    "odd",
    [
        wire.whole(5) + wire.integer(99, 1),
        wire.whole(5) + wire.fixed32(99, 1),
        b"",
        wire.real(1.0),
        wire.text("\n\2\x18\1"),
    ],
)
def test_arrays_with_an_odd_element_are_read_element_by_element(size: int, odd: bytes) -> None:
    for values in ([odd] * size, [wire.whole(1)] * size + [odd], [odd] + [wire.whole(300)] * size):
        attribute_ = wire.delimited(9, wire.pair("gen_ai.token.times_ns", wire.array(*values)))
        assert differing([wire.request(wire.span() + attribute_)]) == []


@pytest.mark.parametrize("depth", [20, *range(40, 52), 1000])
def test_the_fast_path_and_the_walk_agree_on_how_deep_an_event_may_nest(depth: int) -> None:
    value = wire.whole(1)
    for _ in range(depth):
        value = wire.array(value)
    body = wire.request(wire.span(wire.token_event(START, wire.pair("deep", value))))
    step = wire.request(
        wire.span(wire.token_event(START, wire.pair("deep", value)), name="decode_loop")
        + wire.delimited(4, b"parent-1")
    )
    assert differing([body, step]) == []


@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_the_fast_path_and_the_walk_agree_on_what_fuzzing_found(path: Path) -> None:
    assert differing([path.read_bytes()]) == []


@pytest.mark.parametrize("seed", range(30))
def test_the_reduced_schema_writes_back_what_it_read(seed: int) -> None:
    body = random_request(Dice(seed))
    if not isinstance(decode_traces([body])[0], DecodeError):
        again = ReducedTraceRequest.FromString(body).SerializeToString()
        whole, copy = ExportTraceServiceRequest.FromString(body), ExportTraceServiceRequest.FromString(again)
        assert whole.SerializeToString(deterministic=True) == copy.SerializeToString(deterministic=True)
