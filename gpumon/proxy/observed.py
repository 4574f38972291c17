"""What is learnt of one inference request while it passes: times of its tokens, usage, how it ended. Never its text.

Nanoseconds of a steady clock, handed in. Bounded: so many token times, so many bytes of an answer that is no stream.
Tokens are counted from ``usage`` where the server tells it; where it tells it with every chunk, each chunk's own count
is known too. Else every chunk with output counts as one, and the trace says so.
"""

from __future__ import annotations

from array import array
from typing import Final

from gpumon.proxy.answers import Told, read_answer, read_event
from gpumon.proxy.http_head import ResponseHead
from gpumon.proxy.request_body import NOTHING, Asked
from gpumon.proxy.routes import Kind
from gpumon.proxy.sse import SseSplitter, data_of
from gpumon.proxy.trace_context import TraceContext

TIMED_TOKENS: Final = 1 << 17
"""Most token times kept of a request, 1 MiB; later ones are counted."""
ANSWER_BYTES: Final = 256 << 10
"""Largest answer that is no stream of which usage is read."""
ANSWERS_BYTES: Final = 64 << 20
"""The same of all requests together."""
_DONE: Final = b"[DONE]"
_ONE_CHUNK: Final = Told(tokens=True)


class Budget:
    """Bytes of bodies held to be looked at, of all requests together."""

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> bool:
        """Whether there is room."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        """Room again."""
        self._left += size


class Observed:
    """One request. Complete once ``end`` was called."""

    def __init__(
        self,
        kind: Kind,
        context: TraceContext,
        start_ns: int,
        start_unix_ns: int,
        budget: Budget,
        *,
        tenant: str,
        request_id: str,
        inference_id: str,
    ) -> None:
        """tenant, request_id, inference_id: as the headers have them, or empty."""
        self.kind = kind
        self.context = context
        self.start_ns = start_ns
        self.start_unix_ns = start_unix_ns
        self.end_ns = start_ns
        self.tenant = tenant
        self.request_id = request_id
        self.asked: Asked = NOTHING
        self.status = 0
        self.response_id = ""
        self.response_model = ""
        self.finish = ""
        self.error = ""
        self.aborted = False
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.times_ns = array("q")
        """Of the chunks with output, since the start."""
        self.chunks = 0
        """With output; more than there are times of where those were too many."""
        self.malformed = 0
        """Events that could not be read."""
        self.injected_ns = 0
        self._header_inference_id = inference_id
        self._budget = budget
        self._splitter: SseSplitter | None = None
        self._by_pieces = False
        self._body: list[bytes] | None = None
        self._body_bytes = 0
        self._done = False
        self._counts: array[int] | None = array("i")
        self._counted = 0

    @property
    def inference_id(self) -> str:
        """By the header or, without, by the body."""
        return self._header_inference_id or self.asked.inference_id

    @property
    def counts(self) -> array[int] | None:
        """Tokens of each chunk, where the server told it with every one of them."""
        counts = self._counts
        told = counts is not None and len(counts) == len(self.times_ns) == self.chunks > 0
        return counts if told and self._counted == self.completion_tokens else None

    @property
    def token_source(self) -> str:
        """What the number of tokens is by: usage, chunk, or empty where there is none."""
        return "usage" if self.completion_tokens is not None else "chunk" if self.chunks else ""

    def begin_answer(self, head: ResponseHead) -> None:
        """The head of the answer: decides how its body is looked at."""
        self.status = head.status
        media = (head.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        plain = (head.header(b"content-encoding") or b"identity").strip().lower() == b"identity"
        if media == b"text/event-stream":
            self._splitter = SseSplitter() if plain else None
            self._by_pieces = not plain
        elif media == b"application/json" and plain:
            self._body = []

    def units(self, piece: bytes) -> list[tuple[bytes, Told | None]]:
        """A piece of the answer, cut where tokens begin; each part with what it says. See ``rest``."""
        if self._splitter is not None:
            return [(event, self._read(event)) for event in self._splitter.feed(piece)]
        if self._by_pieces:
            return [(piece, _ONE_CHUNK)]
        if self._body is not None:
            self._keep(piece)
        return [(piece, None)]

    @property
    def rest(self) -> bytes:
        """What ``units`` still holds of the pieces it was given."""
        return self._splitter.rest if self._splitter is not None else b""

    def look(self, piece: bytes, at_ns: int) -> None:
        """A piece of the answer that was passed on at this time."""
        if self._splitter is not None:
            for event in self._splitter.feed(piece):
                told = self._read(event)
                if told is not None:
                    self.note(told, at_ns)
        elif self._by_pieces:
            self.note(_ONE_CHUNK, at_ns)
        elif self._body is not None:
            self._keep(piece)

    def note(self, told: Told, at_ns: int) -> None:
        """Something that the answer said, and when it was passed on."""
        usage = told.usage
        if usage is not None:
            self.prompt_tokens = usage.prompt if usage.prompt is not None else self.prompt_tokens
            self.cached_tokens = usage.cached if usage.cached is not None else self.cached_tokens
            self.completion_tokens = usage.completion if usage.completion is not None else self.completion_tokens
        if told.tokens:
            self.chunks += 1
            if len(self.times_ns) < TIMED_TOKENS:
                self.times_ns.append(at_ns - self.start_ns)
                self._count(None if usage is None else usage.completion)
        self.finish = told.finish or self.finish
        self.error = told.error or self.error
        self.response_id = told.response_id or self.response_id
        self.response_model = told.model or self.response_model
        self.malformed += told.malformed

    def end(self, at_ns: int, *, error: str = "", aborted: bool = False) -> None:
        """The answer has ended, or will not go on. error: why not; aborted: the client left."""
        self.end_ns = at_ns
        if self._body is not None:
            if not error and not aborted:
                told = read_answer(b"".join(self._body))
                told.malformed = False  # an error page, say
                self.note(told, at_ns)
            self._drop_body()
        # Clients hang up when they have read the last event, which need not be the last byte.
        self.aborted = aborted and not self._done
        self.error = self.error or error or (str(self.status) if self.status >= 400 else "")

    def _read(self, event: bytes) -> Told | None:
        data = data_of(event)
        if not data:
            return None
        if data == _DONE:
            self._done = True
            return None
        told = read_event(data, names=not self.response_id)
        # The responses interface has no [DONE]: its last event says how it ended.
        self._done |= self.kind is Kind.RESPONSE and bool(told.finish or told.error)
        return told

    def _count(self, completion: int | None) -> None:
        if self._counts is None:
            return
        step = -1 if completion is None else completion - self._counted
        if not 0 <= step < 1 << 31:
            self._counts = None
            return
        self._counts.append(step)
        self._counted += step

    def _keep(self, piece: bytes) -> None:
        assert self._body is not None
        if self._body_bytes + len(piece) > ANSWER_BYTES or not self._budget.take(len(piece)):
            self._drop_body()
            return
        self._body.append(piece)
        self._body_bytes += len(piece)

    def _drop_body(self) -> None:
        self._budget.give(self._body_bytes)
        self._body, self._body_bytes = None, 0
