"""The plain walk, which is the oracle of the fast path: checked here against expectations written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.records import Decoded, DecodeError, TokenColumns
from gpumon.ingest.walk import decode_traces_walk
from tests.ingest import wire
from tests.ingest.vectors import START

IDS = wire.delimited(1, b"0123456789abcdef") + wire.delimited(2, b"01234567")
COUNT = "gen_ai.token.count"


def walk(*fields: bytes) -> Decoded:
    """One span with valid ids and these fields."""
    return decode_traces_walk(wire.request(IDS + b"".join(fields)))


def tokens(*events: bytes) -> TokenColumns:
    [record] = walk(*(wire.delimited(11, event) for event in events)).spans
    assert record.tokens is not None
    return record.tokens


def event(*fields: bytes) -> bytes:
    return wire.fixed64(1, START) + wire.delimited(2, "token_generated") + b"".join(fields)


def attribute(key: str, *values: bytes) -> bytes:
    """Attribute of an event; several values merge."""
    return wire.delimited(3, wire.delimited(1, key) + b"".join(wire.delimited(2, value) for value in values))


def counts_of(*fields: bytes) -> list[int]:
    counts = tokens(event(*fields)).counts
    return [1] if counts is None else counts.tolist()


def test_every_field_of_a_span_is_read() -> None:
    resource = wire.delimited(1, wire.pair("service.name", wire.text("vllm")))
    span = b"".join(
        (
            IDS,
            wire.delimited(4, b"parent-1"),
            wire.delimited(5, "llm_request"),
            wire.integer(6, 2),
            wire.fixed64(7, START),
            wire.fixed64(8, START + 5),
            wire.delimited(9, wire.pair("n", wire.whole(-7))),
            wire.delimited(
                11, wire.fixed64(1, 3) + wire.delimited(2, "e") + wire.delimited(3, wire.pair("b", wire.boolean(True)))
            ),
            wire.integer(12, 4),
            wire.delimited(13, wire.delimited(1, b"t" * 16) + wire.delimited(2, b"s" * 8)),
            wire.delimited(15, wire.integer(3, 1)),
        )
    )
    scope = wire.delimited(1, "gpumon") + wire.delimited(2, "1.0")
    [record] = decode_traces_walk(wire.request(span, resource=resource, scope=scope)).spans
    assert record.resource.attributes == {"service.name": "vllm"}
    assert record.scope == ("gpumon", "1.0")
    assert (record.trace_id, record.span_id, record.parent_id) == (b"0123456789abcdef", b"01234567", b"parent-1")
    assert (record.name, record.kind, record.status) == ("llm_request", 2, 1)
    assert (record.start_ns, record.end_ns, record.dropped_events) == (START, START + 5, 4)
    assert record.attributes == {"n": -7}
    assert list(record.events) == [("e", 3, {"b": True})]
    assert list(record.links) == [(b"t" * 16, b"s" * 8)]
    assert record.tokens is None


def test_split_messages_merge_and_the_last_scalar_wins() -> None:
    [record] = walk(
        wire.delimited(5, "first"),
        wire.delimited(15, wire.integer(3, 2)),
        wire.delimited(5, "last"),
        wire.delimited(15, wire.delimited(2, "a message")),
        wire.fixed64(7, 1),
        wire.fixed64(7, 2),
    ).spans
    assert (record.name, record.status, record.start_ns) == ("last", 2, 2)


def test_a_resource_in_two_parts_is_one() -> None:
    parts = [wire.delimited(1, wire.delimited(1, wire.pair(key, wire.text(key)))) for key in ("a", "b")]
    body = wire.delimited(1, b"".join([*parts, wire.delimited(2, wire.delimited(2, IDS))]))
    [record] = decode_traces_walk(body).spans
    assert record.resource.attributes == {"a": "a", "b": "b"}


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ([attribute(COUNT, wire.whole(3))], 3),
        ([attribute(COUNT, wire.whole(3, size=9))], 3),
        ([attribute(COUNT, wire.whole(3)), attribute(COUNT, wire.whole(4))], 4),
        ([attribute(COUNT, wire.whole(3)), attribute(COUNT, wire.text("4"))], 1),
        ([attribute(COUNT, wire.whole(3), wire.whole(5))], 5),
        ([attribute(COUNT, wire.whole(3) + wire.text("x"))], 1),
        ([attribute(COUNT, wire.text("x") + wire.whole(3))], 3),
        ([attribute(COUNT, b"")], 1),
        ([attribute(COUNT)], 1),
        ([attribute(COUNT, wire.boolean(True))], 1),
        ([attribute(COUNT, wire.real(2.0))], 2),
        ([attribute(COUNT, wire.real(math.nan))], 1),
        ([attribute(COUNT, wire.real(math.inf))], 1),
        ([wire.delimited(3, wire.delimited(2, wire.whole(6)) + wire.delimited(1, COUNT))], 6),
        ([wire.delimited(3, wire.delimited(1, "x") + wire.delimited(1, COUNT) + wire.delimited(2, wire.whole(6)))], 6),
        ([wire.group(9, wire.integer(1, 1)), attribute(COUNT, wire.whole(3)), wire.fixed32(30, 1)], 3),
        ([wire.fixed32(3, 1), attribute(COUNT, wire.whole(3))], 3),
    ],
)
def test_the_tokens_of_an_event_in_every_legal_spelling(fields: list[bytes], count: int) -> None:
    assert counts_of(*fields) == [count]


def test_latency_may_be_int_double_or_not_a_number() -> None:
    columns = tokens(
        *(event(attribute("latency_us", value)) for value in (wire.whole(5), wire.real(math.nan), wire.whole(-1)))
    )
    assert columns.latency_us is not None
    assert np.array_equal(columns.latency_us, [5.0, math.nan, -1.0], equal_nan=True)


def test_the_last_name_and_the_last_time_of_an_event_win() -> None:
    first = wire.fixed64(1, 1) + wire.delimited(2, "exception")
    columns = tokens(first + event())
    assert columns.at_ns.tolist() == [START]


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x05ab",
        wire.delimited(1, wire.tag(7, 3)),
        wire.request(IDS + wire.delimited(5, b"\xff")),
        wire.request(IDS + wire.integer(6, 1, size=11)),
        wire.tag(0, 0) + b"\0",
        b"\xff" * 20,
    ],
)
def test_what_is_no_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError, match=r"cannot parse the body \(\d+ bytes\) as an OTLP trace export request"):
        decode_traces_walk(body)


def test_limits_are_arguments() -> None:
    decoded = decode_traces_walk(wire.request(IDS, IDS, IDS), DecodeLimits(max_spans=2))
    assert (len(decoded.spans), decoded.rejected, decoded.rejected_count) == (2, {"too_many_spans": 1}, 1)
    assert "fewer spans" in decoded.message
