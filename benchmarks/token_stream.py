"""Tokens of four busy servers, as many as one likes, in the forms in which they are sent, for ``explain_cost``.

Each server makes steps that all of its requests share, as a batch does: of ``STEP_S``, a few of them long as a prompt
in the batch makes them, and now and then a second in which all are slower. A request is so many successive steps. So
5 % of the tokens are slow, at the same moments for all requests of a server, and nothing is slow for itself alone.

An export is serialised once for each form; a fresh one has its ids and times written over, and costs little more than
a copy of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PER_S: Final = 25_000
"""Tokens of a server, near enough: long steps make it fewer."""
SPANS: Final = 25
"""Requests in an export."""
STEP_S: Final = 0.02
FIRST_S: Final = 0.3
"""From a request's begin to its first token."""
LONG: Final = 2.5
LONG_SHARE: Final = 0.03
SLOWER: Final = 1.4
EVERY_S: Final = 40.0
"""From one slow second to the next."""
PROMPT, CACHED = 1000, 600

Floats = NDArray[np.float64]
Times = NDArray[np.int64]


class Requests(NamedTuple):
    """Some requests of one server, unix nanoseconds."""

    starts_ns: Times
    tokens_ns: Times
    """(requests, tokens)"""


class Server:
    """One of them. Requests come in the order in which they end."""

    def __init__(self, model: str, gpus: Sequence[str], begin_s: float, seconds: float, seed: int, tokens: int) -> None:
        """begin_s: steady seconds of its first step. seconds: how long it goes on. tokens: of a request."""
        self.model = model
        self.gpus = tuple(gpus)
        self.tokens = tokens
        random = np.random.default_rng(seed)
        count = int(seconds / STEP_S)
        steps_s = STEP_S * (1 + 0.01 * random.standard_normal(count))
        is_long = random.random(count) < LONG_SHARE
        steps_s[is_long] *= LONG
        # Servers have their slow second one after the other.
        first_s = begin_s + EVERY_S * (0.3 + 0.2 * (seed % 4))
        self.slow_s = [(start_s, start_s + 1.0) for start_s in np.arange(first_s, begin_s + seconds, EVERY_S).tolist()]
        """From, to: when all of its steps are slower."""
        ends_s = begin_s + np.cumsum(steps_s)
        is_slower = np.zeros(count, dtype=bool)
        for start_s, end_s in self.slow_s:
            is_slower |= (ends_s > start_s) & (ends_s <= end_s)
        steps_s[is_slower] *= SLOWER
        self._ends_s = begin_s + np.cumsum(steps_s)
        self.slow_share = float((is_long | is_slower).mean())
        """Of its tokens."""
        self._next = 0
        """Requests made so far."""

    def ended(self, until_s: float, unix_s: float) -> list[Requests]:
        """Exports of the requests that ended up to a steady second, as far as they fill one. unix_s: of steady 0."""
        found: list[Requests] = []
        while True:
            numbers = np.arange(self._next, self._next + SPANS)
            firsts = (numbers * (self.tokens / (PER_S * STEP_S))).astype(np.intp)
            last = int(firsts[-1]) + self.tokens - 1
            if last >= len(self._ends_s) or self._ends_s[last] > until_s:
                return found
            self._next += SPANS
            times_s = self._ends_s[firsts[:, None] + np.arange(self.tokens)] + unix_s
            tokens_ns = np.rint(times_s * 1e9).astype(np.int64)
            found.append(Requests(tokens_ns[:, 0] - round(FIRST_S * 1e9), tokens_ns))


@dataclass
class Form:
    """An export of one server, and where in it what is."""

    body: NDArray[np.uint8]
    ids: NDArray[np.intp]
    """(spans, 24): a trace id and a span id."""
    starts: NDArray[np.intp]
    """(spans, 8), as the ends."""
    ends: NDArray[np.intp]
    tokens: NDArray[np.intp]
    """(spans, tokens, bytes of each)"""

    def fresh(self, requests: Requests, random: np.random.Generator) -> bytes:
        """With these requests."""
        body = self.body.copy()
        body[self.ids] = random.integers(1, 256, self.ids.shape, np.uint8)
        body[self.starts] = _bytes(requests.starts_ns)
        body[self.ends] = _bytes(requests.tokens_ns[:, -1])
        if self.tokens.shape[-1] == 8:
            body[self.tokens] = _bytes(requests.tokens_ns)
        else:
            body[self.tokens] = _varints(requests.tokens_ns - requests.starts_ns[:, None])
        return body.tobytes()


def events(server: Server) -> Form:
    """With an event for each token."""
    request, spans = _export(server)
    marks = _marks(server.tokens)
    for span, times in zip(spans, marks, strict=True):
        for at_ns in times.tolist():
            event = span.events.add(name="gen_ai.token.generated", time_unix_nano=at_ns)
            _put(event.attributes.add(), "gen_ai.token.count", 1)
    return _form(request, [[at_ns.tobytes() for at_ns in times] for times in marks])


def compact(server: Server) -> Form:
    """With all token times in one attribute."""
    request, spans = _export(server)
    marks = _marks(server.tokens)
    for span, times in zip(spans, marks, strict=True):
        values = span.attributes.add(key="gen_ai.token.times_ns").value.array_value.values
        for since_ns in times.tolist():
            values.add(int_value=since_ns)
    return _form(request, [[row.tobytes() for row in _varints(times)] for times in marks])


_VARINT: Final = 5
"""Bytes of a time between 0.27 and 34 seconds."""
_LEAST, _MOST = 1 << 28, 1 << 35


def _marks(tokens: int) -> Times:
    """Numbers that are nowhere else in the export."""
    numbers = np.random.default_rng(5).integers(_LEAST, _MOST, 2 * SPANS * tokens)
    return np.asarray(np.unique(numbers)[: SPANS * tokens].astype(np.int64)).reshape(SPANS, tokens)


def _export(server: Server) -> tuple[ExportTraceServiceRequest, list[Span]]:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for key, value in (("service.name", server.model), ("gpumon.gpu.uuid", ",".join(server.gpus))):
        _put(resource.resource.attributes.add(), key, value)
    scope = resource.scope_spans.add()
    scope.scope.name = "gpumon.tokens"
    spans = []
    for number in range(SPANS):
        mark = bytes([255, 254, number, 253])
        span = scope.spans.add(
            trace_id=4 * mark, span_id=2 * mark, name="gen_ai.request", kind=Span.SPAN_KIND_SERVER, flags=0x100
        )
        span.start_time_unix_nano, span.end_time_unix_nano = (1 << 56) + number, (1 << 57) + number
        _put(span.attributes.add(), "gen_ai.request.model", server.model)
        for key, count in (("input", PROMPT), ("cache_read.input", CACHED), ("output", server.tokens)):
            _put(span.attributes.add(), f"gen_ai.usage.{key}_tokens", count)
        spans.append(span)
    return request, spans


def _form(request: ExportTraceServiceRequest, marks: list[list[bytes]]) -> Form:
    raw = request.SerializeToString()
    ids, starts, ends, tokens = [], [], [], []
    begin = 0

    def after(mark: bytes) -> NDArray[np.intp]:
        """Where it is: all of them are found in the order in which protobuf writes the fields."""
        nonlocal begin
        found = raw.index(mark, begin)
        begin = found + len(mark)
        return found + np.arange(len(mark))

    for span, of in zip(request.resource_spans[0].scope_spans[0].spans, marks, strict=True):
        ids.append(np.concatenate([after(span.trace_id), after(span.span_id)]))
        starts.append(after(span.start_time_unix_nano.to_bytes(8, "little")))
        ends.append(after(span.end_time_unix_nano.to_bytes(8, "little")))
        tokens.append(np.array([after(mark) for mark in of]))
    return Form(np.frombuffer(raw, np.uint8), *map(np.array, (ids, starts, ends, tokens)))


def _bytes(numbers: Times) -> NDArray[np.uint8]:
    """As protobuf's fixed64."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(*numbers.shape, 8)


def _varints(numbers: Times) -> NDArray[np.uint8]:
    """As protobuf's varints, all of the same length."""
    if numbers.min() < _LEAST or numbers.max() >= _MOST:
        raise RuntimeError("a time that takes more or fewer bytes")
    groups = (numbers[..., None] >> (7 * np.arange(_VARINT))) & 0x7F
    groups[..., :-1] |= 0x80
    return np.asarray(groups.astype(np.uint8))


def _put(pair: KeyValue, key: str, value: str | int) -> None:
    pair.key = key
    if isinstance(value, str):
        pair.value.string_value = value
    else:
        pair.value.int_value = value
