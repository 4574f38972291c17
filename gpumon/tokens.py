"""Client library: times the tokens of a request and sends them on an OpenTelemetry span, for less than a µs each.

For whoever makes or passes on tokens: a server, a shim, a proxy. Depends on the OpenTelemetry API alone; which SDK,
exporter and endpoint is the application's choice, and without any nothing is sent. What goes out is docs/TOKENS.md's
contract: the compact form (one attribute for all tokens), or span events.

    with trace_request(model="llama", prompt_tokens=len(prompt)) as request:
        for piece in generate(prompt):
            request.token()
            yield piece

The span is not made the current one, so that it may begin and end in different contexts, as in an async generator;
``request.span`` is there for who wants that. Never give it prompts, completions or token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns, time_ns
from types import TracebackType

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

SCOPE = "gpumon.tokens"
SPAN_NAME = "gen_ai.request"
EVENT_NAME = "gen_ai.token.generated"
TOKEN_COUNT = "gen_ai.token.count"  # noqa: S105 - names of attributes
TOKEN_TIMES = "gen_ai.token.times_ns"  # noqa: S105
TOKEN_COUNTS = "gen_ai.token.counts"  # noqa: S105
PHASES = {
    "queue": "gen_ai.latency.time_in_queue",
    "prefill": "gen_ai.latency.time_in_model_prefill",
    "decode": "gen_ai.latency.time_in_model_decode",
    "kv_sync": "gen_ai.latency.kv_cache_transfer_time",
}
"""Phases that can be timed, and the attribute that tells each, in seconds."""

_LEFT = frozenset({"CancelledError", "Cancelled", "GeneratorExit"})
"""Exceptions that mean that the client left, by name: importing asyncio costs more than all of this module."""


def trace_request(
    *,
    model: str = "",
    tenant: str = "",
    request_id: str = "",
    inference_id: str = "",
    prompt_hash: str = "",
    prompt_tokens: int | None = None,
    parameters: Mapping[str, float] | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    events: bool = False,
    tracer: Tracer | None = None,
) -> TracedRequest:
    """A request that begins now; a context manager, which ends it.

    parameters: temperature, top_p, top_k, max_tokens, frequency_penalty, presence_penalty, n, seed.
    attributes: more attributes of the span. events: a span event for each token instead of the compact form; the
    SDK keeps 128 of them unless OTEL_SPAN_EVENT_COUNT_LIMIT says more. tracer: instead of the global provider's.
    """
    told: dict[str, AttributeValue] = dict(attributes or {})
    named = {
        "gen_ai.request.model": model,
        "tenant.id": tenant,
        "gen_ai.request.id": request_id,
        "inference_id": inference_id,
        "prompt_hash": prompt_hash,
    }
    told.update({name: value for name, value in named.items() if value})
    told.update({f"gen_ai.request.{name}": value for name, value in (parameters or {}).items()})
    if prompt_tokens is not None:
        told["gen_ai.usage.input_tokens"] = prompt_tokens
    return TracedRequest(tracer or trace.get_tracer(SCOPE), told, events=events)


class TracedRequest:
    """One request. ``span``: the OpenTelemetry span behind it."""

    __slots__ = (
        "_completion_tokens",
        "_counts",
        "_events",
        "_phases_ns",
        "_start_ns",
        "_start_unix_ns",
        "_times",
        "span",
    )

    def __init__(self, tracer: Tracer, attributes: Mapping[str, AttributeValue], *, events: bool) -> None:
        self._events = events
        self._times: list[int] = []
        self._counts: list[int] | None = None
        self._completion_tokens: int | None = None
        self._phases_ns: dict[str, int] = {}
        self._start_unix_ns = time_ns()
        self._start_ns = perf_counter_ns()
        self.span: Span = tracer.start_span(
            SPAN_NAME, kind=SpanKind.SERVER, attributes=attributes, start_time=self._start_unix_ns
        )

    def token(self) -> None:
        """A token is there, now."""
        self._times.append(perf_counter_ns())
        if self._counts is not None:
            self._counts.append(1)

    def step(self, tokens: int) -> None:
        """A step that made several tokens is done, now: speculative decoding, or a chunk of a stream."""
        self._times.append(perf_counter_ns())
        if self._counts is None:
            self._counts = [1] * (len(self._times) - 1)
        self._counts.append(tokens)

    def phase(self, name: str) -> Timed:
        """A context manager that times a phase; several of one name add up. name: one of ``PHASES``."""
        if name not in PHASES:
            raise ValueError(f"unknown phase {name!r}, expected one of {', '.join(PHASES)}")
        return Timed(self._phases_ns, name)

    def usage(
        self,
        *,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """What the server says it used; without it completion tokens are those that were counted."""
        if prompt_tokens is not None:
            self.span.set_attribute("gen_ai.usage.input_tokens", prompt_tokens)
        if cached_tokens is not None:
            self.span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached_tokens)
        if completion_tokens is not None:
            self._completion_tokens = completion_tokens

    def finish(self, reason: str) -> None:
        """Why generation ended: stop, length, abort, …"""
        self.span.set_attribute("gen_ai.response.finish_reasons", (reason,))

    def end(self) -> None:
        """End the request now; only the first call counts. Leaving the ``with`` block does it."""
        end_ns = perf_counter_ns()
        if not self.span.is_recording():  # ended, not sampled, or no SDK
            return
        times, counts, since = self._times, self._counts, self._start_ns
        if times:
            if self._completion_tokens is None:
                self._completion_tokens = len(times) if counts is None else sum(counts)
            if self._events:
                self._add_events()
            else:
                self.span.set_attribute(TOKEN_TIMES, [at - since for at in times])
                if counts is not None:
                    self.span.set_attribute(TOKEN_COUNTS, counts)
        if self._completion_tokens is not None:
            self.span.set_attribute("gen_ai.usage.output_tokens", self._completion_tokens)
        for name, duration_ns in self._phases_ns.items():
            self.span.set_attribute(PHASES[name], duration_ns / 1e9)
        # By the same steady clock as the tokens, so that a step of the wall clock in between does no harm.
        self.span.end(self._start_unix_ns + end_ns - since)

    def _add_events(self) -> None:
        zero = self._start_unix_ns - self._start_ns
        counts = self._counts or [1] * len(self._times)
        for at, tokens in zip(self._times, counts, strict=True):
            self.span.add_event(EVENT_NAME, None if tokens == 1 else {TOKEN_COUNT: tokens}, at + zero)

    def __enter__(self) -> TracedRequest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and kind.__name__ in _LEFT:
            self.finish("cancelled")
        elif kind is not None:
            # The class alone: an error's text may quote the prompt.
            self.span.set_attribute("error.type", kind.__qualname__)
            self.span.set_status(StatusCode.ERROR)
        self.end()


class Timed:
    """Times a ``with`` block."""

    __slots__ = ("_name", "_start_ns", "_totals_ns")

    def __init__(self, totals_ns: dict[str, int], name: str) -> None:
        self._totals_ns = totals_ns
        self._name = name
        self._start_ns = 0

    def __enter__(self) -> None:
        self._start_ns = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        elapsed_ns = perf_counter_ns() - self._start_ns
        self._totals_ns[self._name] = self._totals_ns.get(self._name, 0) + elapsed_ns
