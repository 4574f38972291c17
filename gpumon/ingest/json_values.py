"""OTLP/JSON values: hex ids, numbers that may be strings, attributes. The rules of ``attributes`` hold here too."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Sequence

from gpumon.ingest import json_messages as messages
from gpumon.ingest.attributes import Cuts, array_of, cut, is_dropped, keep, shortened
from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.records import Scalar, Scope, Value

_MAX_DIGITS = 20
"""Of 2**64; int() takes time by the square of the length."""
_DOUBLE = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def read_id(text: str | None) -> bytes:
    """Id from hex digits of either case; empty where it is absent, one zero byte where it is no hex."""
    if not text:
        return b""
    try:
        return bytes.fromhex(text) if " " not in text else b"\0"
    except ValueError:
        return b"\0"


def is_base64_id(text: str | None, size: int) -> bool:
    """Whether an id of that many bytes was written as base64, as the generic protobuf JSON mapping would."""
    if not text or len(text) == 2 * size or len(text) > 2 * size:
        return False
    try:
        return len(base64.b64decode(text + "=" * (-len(text) % 4), validate=True)) == size
    except (binascii.Error, ValueError):
        return False


def read_int(value: messages.Integer) -> int | None:
    """Whole number from a number or a string of digits; None where it is neither."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        return int(value) if len(digits) <= _MAX_DIGITS and digits.isdecimal() and digits.isascii() else None
    if isinstance(value, int):
        return value
    return int(value) if value is not None and value.is_integer() else None


def read_int64(value: messages.Integer) -> int | None:
    number = read_int(value)
    return number if number is not None and -(2**63) <= number < 2**63 else None


def read_ns(value: messages.Integer) -> int | None:
    """Unix nanoseconds, 0 where absent; None where it is no unsigned 64-bit int."""
    if value is None:
        return 0
    number = read_int(value)
    return number if number is not None and 0 <= number < 2**64 else None


def read_double(value: messages.Double) -> float | None:
    if isinstance(value, str):
        return float(value) if _DOUBLE.fullmatch(value) else _NAMED.get(value)
    return value


def read_scalar(value: messages.AnyValue | None) -> Scalar | None:
    """The value where it is a string, bool, int or double."""
    if value is None:
        return None
    if value.int_value is not None:
        return read_int64(value.int_value)
    if value.double_value is not None:
        return read_double(value.double_value)
    if value.string_value is not None:
        return value.string_value
    return value.bool_value


def read_attributes(
    pairs: Sequence[messages.KeyValue] | None, limits: DecodeLimits, most: int, cuts: Cuts
) -> dict[str, Value]:
    """The first ``most`` attributes of a message."""
    found: dict[str, Value] = {}
    if pairs is None:
        return found
    if len(pairs) > most:
        cut(cuts, "attributes", len(pairs) - most)
    for pair in pairs[:most]:
        if not is_dropped(pair.key):
            keep(found, pair.key, _read_value(pair.value, limits, cuts), limits, cuts)
    return found


def read_scope(message: messages.Scope | None, limits: DecodeLimits, cuts: Cuts) -> Scope:
    if message is None:
        return Scope("", "")
    return Scope(
        shortened(message.name or "", limits.max_name, cuts), shortened(message.version or "", limits.max_name, cuts)
    )


def _read_value(value: messages.AnyValue | None, limits: DecodeLimits, cuts: Cuts) -> Value | None:
    if value is None:
        return None
    if value.string_value is not None:
        return shortened(value.string_value, limits.max_text, cuts)
    if value.array_value is None:
        return read_scalar(value)
    elements = value.array_value.values or []
    return array_of([read_scalar(element) for element in elements[: limits.max_array]], len(elements), limits, cuts)
