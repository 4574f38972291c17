"""What the receivers hand on: spans as records, token events as columns, whatever form they came in.

Produced by the decoders (protobuf fast path, official protobuf classes, JSON), consumed by the adapters. Times are
unix nanoseconds as the sender wrote them; ``Received`` says when they arrived by our own clock. Prompts, completions
and token ids never get this far: attributes that may hold them are dropped by name while decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scalar = str | bool | int | float
Value = Scalar | tuple[Scalar, ...] | NDArray[np.int64]
"""Attribute value. Int arrays of 16 or more come as an array (the compact form of token times); an empty AnyValue,
bytes, maps and mixed arrays are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """OTLP resource, one object per distinct content in a batch; without one in the message: no attributes."""

    attributes: Mapping[str, Value]
    key: int
    """Hash of the content: equal resources have equal keys, in this process."""


class Scope(NamedTuple):
    """Instrumentation scope; empty names where the message has none."""

    name: str
    version: str


class EventRecord(NamedTuple):
    """A span event that is not a token event."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value]


@dataclass(slots=True, eq=False)  # frozen would triple the time to make one
class TokenColumns:
    """Token events of one span, in the order in which the sender wrote them.

    The arrays may be views of one that the whole batch shares: copy what is kept for long.
    """

    at_ns: NDArray[np.int64]
    """0 where the event has no time, or one past the year 2262."""
    counts: NDArray[np.int32] | None
    """Tokens per event (``gen_ai.token.count``); None: one each."""
    latency_us: NDArray[np.float64] | None
    """Sender's own per-token latency where every event has one; NaN is possible inside."""


@dataclass(slots=True, eq=False)
class SpanRecord:
    """One span with valid ids. ``start_ns``/``end_ns`` are 0 where the sender wrote none."""

    resource: Resource
    scope: Scope
    trace_id: bytes
    """16 bytes, never all zero."""
    span_id: bytes
    """8 bytes, never all zero."""
    parent_id: bytes | None
    name: str
    kind: int
    start_ns: int
    end_ns: int
    status: int
    """0 unset, 1 ok, 2 error."""
    attributes: Mapping[str, Value]
    events: Sequence[EventRecord] = ()
    tokens: TokenColumns | None = None
    dropped_events: int = 0
    links: Sequence[tuple[bytes, bytes]] = ()
    """(trace id, span id)."""


@dataclass(slots=True, eq=False)
class StepColumns:
    """Spans that say nothing but "a step ran", as columns: all of one name below one parent in one batch.

    For servers that send a span per decode step, where an object per span would cost more than all the rest. Their
    events, links and other attributes are not kept. The arrays may be views of one that the whole batch shares.
    """

    resource: Resource
    scope: Scope
    name: str
    trace_id: bytes
    parent_id: bytes | None
    span_ids: tuple[bytes, ...]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    index: NDArray[np.int64] | None
    """The step's number (``decode_ct`` or ``gen_ai.token.index``) where every span has one."""
    counts: NDArray[np.int32] | None
    """Tokens per step (``gen_ai.token.count``) where any span has one, else 1 there."""


class LogEvent(NamedTuple):
    """An OTLP log record that is an event gpumon knows (``gen_ai.evaluation.result``); others are only counted."""

    resource: Resource
    scope: Scope
    trace_id: bytes | None
    span_id: bytes | None
    name: str
    at_ns: int
    attributes: Mapping[str, Value]


@dataclass(slots=True)
class Decoded:
    """What one or several gathered requests of one signal held."""

    spans: list[SpanRecord] = field(default_factory=list)
    steps: list[StepColumns] = field(default_factory=list)
    logs: list[LogEvent] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    """Spans (or log records) left out, by reason: ``bad_id``, ``bad_time``, ``too_many_spans``."""
    truncated: dict[str, int] = field(default_factory=dict)
    """Things cut off spans that were kept, by kind: ``attributes``, ``events``, ``links``, ``tokens``, ``strings``,
    ``arrays``. Not part of ``rejected_count``: the sender is told about lost spans only."""
    ignored: int = 0
    """Log records that were read and are no event gpumon knows."""
    message: str = ""
    """For partial_success: what was wrong, for the sender's developer."""

    @property
    def rejected_count(self) -> int:
        return sum(self.rejected.values())


class DecodeError(Exception):
    """The whole request cannot be read: 400 / INVALID_ARGUMENT. The text is for the sender's developer."""


TOKEN_EVENT_NAMES = frozenset({"gen_ai.token.generated", "token_generated", "token_emitted"})
STEP_SPAN_NAMES = frozenset({"decode_loop", "infer", "decode_step", "gen_ai.token", "gen_ai.decode_step"})
"""Names of step spans: SGLang's, TGI's, our own contract's. Status must be unset or ok and parent present."""
TOKEN_COUNT = "gen_ai.token.count"  # noqa: S105 - the name of an attribute
TOKEN_LATENCY_US = "latency_us"  # noqa: S105
TOKEN_TIMES = "gen_ai.token.times_ns"  # noqa: S105
"""Compact form: int array on the request span, each token's time in ns since the span's start."""
TOKEN_COUNTS = "gen_ai.token.counts"  # noqa: S105
"""With it, where a step made several tokens: int array of the same length."""

DROPPED_ATTRIBUTES = frozenset(
    {
        "token_id",
        "new_token_ids",
        "gen_ai.prompt",
        "gen_ai.completion",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.definitions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.evaluation.explanation",
        "input.value",
        "output.value",
        "llm.prompts",
        "llm.completions",
        "generation",  # TGI's send_generation
    }
)
"""Attributes that may hold prompts, completions or token ids. Dropped while decoding, whatever the span. So is every
attribute whose name begins with ``gen_ai.prompt.``, ``gen_ai.completion.``, ``llm.input_messages`` or
``llm.output_messages``."""
