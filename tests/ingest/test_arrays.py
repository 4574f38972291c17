from __future__ import annotations

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from gpumon.ingest.arrays import PACKED_ABOVE, read_packed_ints, unpacked
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.records import Decoded
from tests.ingest.differential import plain, walked
from tests.ingest.spans import body, span

INTS = [10**9 * number + 7 for number in range(300)]


def array(*values: int | str | bool | None) -> ArrayValue:
    made = ArrayValue()
    for value in values:
        element = made.values.add()
        if isinstance(value, bool):
            element.bool_value = value
        elif isinstance(value, int):
            element.int_value = value
        elif isinstance(value, str):
            element.string_value = value
    return made


def attribute(key: str, *values: int | str | bool | None) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(array_value=array(*values)))


GOOD = attribute("good", *INTS)
BAD: dict[str, tuple[int | str | bool | None, ...]] = {
    "a text among ints": (*INTS, "x"),
    "a bool among ints": (*INTS[:20], True, *INTS[20:]),
    "nothing among ints": (*INTS[:20], None, *INTS[20:]),
    "negative": (*INTS[:20], -1),
    "ten bytes": (*INTS[:20], 2**63 - 1),
    "texts": ("x" * 300,) * 20,
}


def same_as_the_walk(*bodies: bytes, limits: DecodeLimits | None = None) -> list[Decoded]:
    limits = limits or DecodeLimits()
    results = decode_traces(bodies, limits)
    for one, result in zip(bodies, results, strict=True):
        assert plain(result) == plain(walked(one, limits))
        assert isinstance(result, Decoded)
    return [result for result in results if isinstance(result, Decoded)]


@pytest.mark.parametrize("name", BAD)
def test_an_array_of_anything_else_is_read_as_if_alone_and_costs_its_neighbours_nothing(name: str) -> None:
    bad = attribute("bad", *BAD[name])
    spans = [span(number, attributes=[GOOD, bad] if number == 2 else [GOOD]) for number in range(1, 5)]
    [decoded] = same_as_the_walk(body(*spans))
    assert all(np.array_equal(np.asarray(one.attributes["good"]), INTS) for one in decoded.spans)


@pytest.mark.parametrize("name", BAD)
def test_of_equal_keys_the_last_one_with_a_value_wins(name: str) -> None:
    bad = attribute("good", *BAD[name])
    same_as_the_walk(body(span(1, attributes=[GOOD, bad]), span(2, attributes=[bad, GOOD]), span(3, attributes=[GOOD])))


def test_what_was_cut_is_counted_once_though_a_span_is_read_twice() -> None:
    long_text = KeyValue(key="text", value=AnyValue(string_value="x" * 50))
    bad = attribute("bad", *INTS[:20], "x")
    spans = [span(number, attributes=[long_text, GOOD, bad] if number % 2 else [long_text]) for number in range(1, 6)]
    limits = DecodeLimits(max_text=10)
    [decoded] = same_as_the_walk(body(*spans), limits=limits)
    assert decoded.truncated == {"strings": 5}


def test_more_than_a_pass_and_several_bodies() -> None:
    attributes = [attribute("times", *range(number, number + 3000)) for number in range(20)]
    bodies = [body(*(span(1 + number, attributes=[one]) for number, one in enumerate(attributes))) for _ in range(2)]
    for decoded in same_as_the_walk(*bodies, body(span(1, attributes=[attribute("bad", *range(20), "x")]))):
        assert decoded.spans


def test_arrays_are_filled_even_if_a_later_body_cannot_be_parsed() -> None:
    good, bad = decode_traces([body(span(1, attributes=[GOOD])), b"\xff"])
    assert isinstance(good, Decoded)
    assert np.array_equal(np.asarray(good.spans[0].attributes["good"]), INTS)
    assert not isinstance(bad, Decoded)


def test_arrays_of_a_resource_tell_resources_apart() -> None:
    request = ExportTraceServiceRequest()
    for number in (1, 1, 2):
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.append(attribute("times", *(number * value for value in INTS)))
        resource_spans.scope_spans.add().spans.append(span(number))
    [decoded] = same_as_the_walk(request.SerializeToString())
    first, second, third = (one.resource for one in decoded.spans)
    assert first is second
    assert first.key != third.key


@pytest.mark.parametrize("sizes", [[15, 17], [17, 15], [16, 17]])
def test_arrays_read_together_have_to_have_the_sizes_they_are_said_to_have(sizes: list[int]) -> None:
    raws = [array(*INTS[:16]).SerializeToString(), array(*INTS[16:32]).SerializeToString()]
    assert unpacked(raws, sizes) is None
    values = unpacked(raws, [16, 16])
    assert values is not None
    assert values.tolist() == INTS[:32]


def test_short_arrays_are_left_alone() -> None:
    assert read_packed_ints(array(*INTS[: PACKED_ABOVE - 1])) is None
