"""OTLP attributes to plain values: what is dropped by name, what is cut, what counts as a number.

The rules hold for protobuf and JSON alike; the protobuf side reads the official and the reduced classes, which have
the same fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from gpumon.ingest.arrays import PACKED_ABOVE
from gpumon.ingest.columns import MAX_COUNT
from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.records import DROPPED_ATTRIBUTES, Scalar, Value

DROPPED_PREFIXES = ("gen_ai.prompt.", "gen_ai.completion.", "llm.input_messages", "llm.output_messages")

Cuts = dict[str, int]
"""``Decoded.truncated``: how many things were cut, by kind."""


class ArrayReader(Protocol):
    """Reads an int array out of a message; None where it cannot."""

    def __call__(self, array: ArrayValue) -> NDArray[np.int64] | None: ...


def cut(cuts: Cuts, what: str, number: int = 1) -> None:
    cuts[what] = cuts.get(what, 0) + number


@lru_cache(maxsize=1024)  # the same few keys over and over
def is_dropped(key: str) -> bool:
    """Whether an attribute may hold a prompt, a completion or token ids."""
    return key in DROPPED_ATTRIBUTES or key.startswith(DROPPED_PREFIXES)


def shortened(text: str, most: int, cuts: Cuts) -> str:
    if len(text) <= most:
        return text
    cut(cuts, "strings")
    return text[:most]


def count_of(value: object) -> int | None:
    """Tokens per event or step: a whole number from 0 to ``MAX_COUNT``; None: as if absent."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT:
        return value
    return None


def latency_of(value: object) -> float | None:
    """Microseconds; NaN and infinities pass, what is no number does not."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def index_of(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def keep(found: dict[str, Value], key: str, value: Value | None, limits: DecodeLimits, cuts: Cuts) -> None:
    """Add an attribute that is not dropped; the last of equal keys wins, and no value (None) changes nothing."""
    if value is None:
        return
    if len(key) > limits.max_name:
        cut(cuts, "attributes")
    else:
        found[key] = value


def array_of(elements: Sequence[Scalar | None], size: int, limits: DecodeLimits, cuts: Cuts) -> Value | None:
    """Value of an array of ``size`` elements, of which the first ``limits.max_array`` are given; None if mixed.

    Ints among doubles are doubles: some SDKs write 1.0 as an int.
    """
    kinds = set(map(type, elements))
    if kinds == {int} and len(elements) >= PACKED_ABOVE:
        if size > len(elements):
            cut(cuts, "arrays")
        return np.array(elements, np.int64)
    if kinds == {int, float}:
        elements = [float(element) for element in elements if element is not None]
    elif len(kinds) > 1 or type(None) in kinds:
        return None
    if size > limits.max_short_array:
        cut(cuts, "arrays")
    return tuple(
        shortened(element, limits.max_text, cuts) if isinstance(element, str) else element
        for element in elements[: limits.max_short_array]
        if element is not None
    )


def read_attributes(
    pairs: Sequence[KeyValue], limits: DecodeLimits, most: int, cuts: Cuts, ints: ArrayReader
) -> dict[str, Value]:
    """The first ``most`` attributes of a protobuf message."""
    found: dict[str, Value] = {}
    if len(pairs) > most:
        cut(cuts, "attributes", len(pairs) - most)
    for pair in pairs[:most]:  # a slice is a list: iterating the message's own container costs three times as much
        key = pair.key
        if not is_dropped(key):
            keep(found, key, _read_value(pair.value, limits, cuts, ints), limits, cuts)
    return found


def read_scalar(value: AnyValue) -> Scalar | None:
    """The value where it is a string, bool, int or double."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value
    if kind == "int_value":
        return value.int_value
    if kind == "double_value":
        return value.double_value
    if kind == "bool_value":
        return value.bool_value
    return None


def _read_value(value: AnyValue, limits: DecodeLimits, cuts: Cuts, ints: ArrayReader) -> Value | None:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return shortened(value.string_value, limits.max_text, cuts)
    if kind != "array_value":
        return read_scalar(value)
    array = value.array_value
    size = len(array.values)
    if size <= limits.max_array:
        packed = ints(array)
        if packed is not None:
            return packed
    return array_of([read_scalar(element) for element in array.values[: limits.max_array]], size, limits, cuts)
