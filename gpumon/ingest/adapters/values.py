"""Attribute values as senders write them, made into numbers and text; latencies that cannot be true refused.

Senders write 1.0 as an int, ints as strings, Rust's Debug form of a duration (``18.25ms``, ``Some(1)``), lists as JSON
text. An empty value, -1 and ``None`` stand for "not measured" and are absent. Some servers subtract clocks that do not
belong together (latencies as large as the host's uptime, or negative): such values are refused and counted by
attribute and reason; the span they stand on is kept. Refused values are never quoted.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from gpumon.ingest.records import Value

MAX_TEXT = 128
"""Longest text kept of any attribute: identifiers and names, in characters."""
MAX_COUNT = 1 << 53
_NUMBER = re.compile(r"[+-]?(?:\d{1,32}(?:\.\d{0,32})?|\.\d{1,32})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_DURATION = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)(ns|µs|μs|us|ms|s)")  # both micro signs of Unicode
_UNIT_S = {"ns": 1e-9, "µs": 1e-6, "μs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_SOME = re.compile(r"Some\((.{1,64})\)")
_ABSENT_TEXT = frozenset({"", "-1", "-1.0", "None", "null"})


def is_absent(value: Value | None) -> bool:
    """Whether the value stands for "not measured"."""
    if isinstance(value, str):
        return value.strip() in _ABSENT_TEXT
    if isinstance(value, (int, float)):
        return value == -1
    return value is None


def number(value: Value | None) -> float | None:
    """int, float or numeric text as a float, which may be infinite or NaN; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return float(value) if abs(value) <= 1 << 63 else math.inf
    if isinstance(value, float):
        return value
    if not isinstance(value, str):
        return None
    text = value.strip()
    some = _SOME.fullmatch(text)
    if some is not None:
        text = some.group(1)
    if _NUMBER.fullmatch(text) is not None:
        return float(text)
    if text.lower().lstrip("+-") in {"nan", "inf", "infinity"}:
        return math.nan
    return None


def seconds(value: Value | None) -> float | None:
    """Seconds out of a number (of seconds) or of Rust's Debug form of a duration; None for anything else."""
    if isinstance(value, str):
        text = value.strip()
        some = _SOME.fullmatch(text)
        found = _DURATION.fullmatch(some.group(1) if some is not None else text)
        if found is not None:
            return float(found.group(1)) * _UNIT_S[found.group(2)]
    return number(value)


def count(value: Value | None) -> int | None:
    """A number of tokens, or of anything else that is whole, not negative and below 2^53; None for anything else."""
    if value is None:
        return None
    if type(value) is int:
        return value if 0 <= value <= MAX_COUNT else None
    told = number(value)
    if told is None or not 0 <= told <= MAX_COUNT or told != int(told):
        return None
    return int(told)


def text(value: Value | None) -> str:
    """A name or identifier, cut at ``MAX_TEXT``; empty for anything that is none."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)[:MAX_TEXT]
    return ""


def words(value: Value | None) -> tuple[str, ...]:
    """Short texts out of a list of strings, or out of one written as JSON text; at most 16."""
    if isinstance(value, str):
        if not value.startswith("["):
            return (value[:MAX_TEXT],) if value else ()
        if len(value) > 4096:
            return ()
        try:
            listed = json.loads(value)
        except (ValueError, RecursionError):
            return ()
        return tuple(item[:MAX_TEXT] for item in listed[:16] if isinstance(item, str))
    if isinstance(value, Sequence):
        return tuple(item[:MAX_TEXT] for item in value[:16] if isinstance(item, str))
    return ()


def integers(value: Value | None) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """An int array, also where it was short enough to come as a tuple; None for anything else or empty."""
    if isinstance(value, np.ndarray):
        return value if value.ndim == 1 and len(value) else None
    if isinstance(value, tuple) and value and all(type(item) is int and abs(item) < 1 << 62 for item in value):
        return np.array(value, np.int64)
    return None


class Gate:
    """Lets through latencies that can be true and counts the others.

    cap_s: the longest latency believed. slack_s: how far a latency may exceed its span, for clocks read one after
    the other and rounded.
    """

    def __init__(self, cap_s: float = 3600.0, slack_s: float = 0.1) -> None:
        self.cap_s = cap_s
        self.slack_s = slack_s
        self.refused: Counter[tuple[str, str]] = Counter()
        """By attribute (from the closed list of those read) and reason."""

    def latency(self, attributes: Mapping[str, Value], attribute: str, span_s: float | None) -> float | None:
        """Seconds told by ``attribute``; None where absent or refused. span_s: duration of its span, if known."""
        value = attributes.get(attribute)
        if value is None:
            return None
        if type(value) is float and span_s is not None and 0.0 <= value <= span_s <= self.cap_s:
            return value
        if is_absent(value):
            return None
        told = seconds(value)
        if told is None:
            self.refuse(attribute, "not_a_number")
            return None
        return self.check(attribute, told, span_s)

    def check(self, attribute: str, value_s: float, span_s: float | None) -> float | None:
        """The same for a latency that was computed."""
        if not math.isfinite(value_s):
            reason = "not_finite"
        elif value_s < 0:
            reason = "negative"
        elif value_s > self.cap_s:
            reason = "over_cap"
        elif span_s is not None and value_s > span_s + self.slack_s:
            reason = "over_span"
        else:
            return value_s
        self.refuse(attribute, reason)
        return None

    def refuse(self, attribute: str, reason: str) -> None:
        """Count a refused value."""
        self.refused[attribute, reason] += 1
