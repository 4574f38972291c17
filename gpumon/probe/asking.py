"""One completion, asked for and timed: what is sent, what is read of the stream, and what became of it.

A token's time is that of the piece of the stream which completes its event; events without output (a role, a comment,
the usage) have none. Temperature is 0, the answer is streamed, and usage is asked for: lengths are the server's where
it tells them. An answer of more tokens than were asked for is cut: some servers know no ``max_tokens``. Each request is
a trace of its own, told in ``traceparent``, by which spans of the server, or of gpumon's proxy, can be found. Nothing
of a prompt or an answer is kept; of an error the server's words, cut, without the key.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpumon.api_client import error_detail
from gpumon.probe.counting import read_counts, tokens_at_least
from gpumon.probe.endpoint import Endpoint, Interface
from gpumon.probe.exchange import Exchange, ExchangeError, NowNs
from gpumon.probe.masking import shown
from gpumon.proxy.answers import Told, read_event
from gpumon.proxy.http_head import Framing, ResponseHead, write_head
from gpumon.proxy.sse import EVENT_BYTES, SseSplitter, data_of
from gpumon.proxy.trace_context import trace_context

OK: Final = "ok"
TOO_LONG: Final = "context_too_long"
OVER: Final = "over_max_tokens"
SLACK: Final = 16
"""Tokens that an answer may have beyond those asked for: some servers make several at a time."""
GONE: Final = frozenset({"connect", "closed"})
"""Reasons that a server has which is no more."""
Admits = Callable[[int], bool]
_ERROR_BYTES: Final = 64 << 10
_SAID_MAX: Final = 200
_CONTEXT_STATUS: Final = frozenset({400, 413, 422, 500})
_CONTEXT: Final = re.compile(
    r"context[ _-](?:length|size|window)|exceed_context|max_model_len|max_seq_len|max_new_tokens|max_num_tokens"
    r"|max(?:imum)? (?:context|input|prompt|model|sequence|allowed)|too (?:long|many tokens)|longer than the"
    r"|(?:prompt|input)[^.]{0,60}exceed",
    re.IGNORECASE,
)
"""What servers say of a prompt that does not fit: vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, OpenAI."""


@dataclass(slots=True)
class Answer:
    """What became of one request. Times are nanoseconds since it was sent."""

    trace_id: str
    words: int
    outcome: str = ""
    """``ok``, ``context_too_long``, or why it failed; empty while it is not over."""
    said: str = ""
    """By the server, where it refused."""
    token_ns: array[int] = field(default_factory=lambda: array("q"))
    """Of each event with output."""
    end_ns: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    sent: bool = False
    came: int = 0
    """Tokens at least, by the events and how long they are."""

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK

    @property
    def tokens(self) -> int:
        """Made: as the server counts them, or as many as came."""
        return self.completion_tokens if self.completion_tokens is not None else len(self.token_ns)

    @property
    def most_tokens(self) -> int:
        """The larger of what the server says that it made and what came: what is charged."""
        return max(self.tokens, self.came)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of every completion."""

    interface: Interface
    model: str
    max_tokens: int
    ignore_eos: bool
    timeout_s: float


class Asker:
    """Asks one endpoint. random_bytes: of trace ids. now_ns: steady."""

    def __init__(
        self,
        endpoint: Endpoint,
        wish: Wish,
        tls: ssl.SSLContext | None,
        now_ns: NowNs,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._endpoint = endpoint
        self._wish = wish
        self._tls = tls
        self._now_ns = now_ns
        self._random_bytes = random_bytes

    def start(self, words: int) -> Answer:
        """An answer to be, with its trace id."""
        return Answer(trace_context(None, self._random_bytes).trace_id.hex(), words)

    async def ask(self, answer: Answer, text: str, max_tokens: int | None = None, admits: Admits | None = None) -> None:
        """Fills the answer; raises nothing but what cancels it, and has told by then what came so far.

        max_tokens: instead of the wish's. admits: whether so many tokens beyond those may be spent.
        """
        most = max_tokens or self._wish.max_tokens
        exchange = Exchange(self._endpoint, self._tls, self._now_ns)
        request = self._request(answer.trace_id, text, most)
        try:
            async with asyncio.timeout(self._wish.timeout_s):
                await exchange.open()
                began_ns = exchange.send(request)
                answer.sent = True
                head = await exchange.head()
                if head.status == 200 and _media_type(head) == b"text/event-stream":
                    reading = _Reading(exchange, head, answer, began_ns)
                    await reading.read(most, admits)
                else:
                    await self._read_refusal(exchange, head, answer)
        except TimeoutError:
            answer.outcome = "timeout"
        except ExchangeError as error:
            answer.outcome, answer.said = error.reason, self._shown(str(error))
        finally:
            exchange.close()

    def _request(self, trace_id: str, text: str, max_tokens: int) -> bytes:
        wish = self._wish
        told: dict[str, object] = {
            "model": wish.model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if wish.ignore_eos:
            told["ignore_eos"] = True
        if wish.interface is Interface.CHAT:
            told["messages"] = [{"role": "user", "content": text}]
            path = "chat/completions"
        else:
            told["prompt"] = text
            path = "completions"
        return request_bytes(
            self._endpoint,
            "POST",
            path,
            json.dumps(told).encode(),
            traceparent=f"00-{trace_id}-{self._random_bytes(8).hex()}-01",
        )

    async def _read_refusal(self, exchange: Exchange, head: ResponseHead, answer: Answer) -> None:
        """An answer that is no stream."""
        body = b""
        async for piece in exchange.pieces(head):
            body += piece.data
            if len(body) > _ERROR_BYTES:
                break
        said = _words_of(body)
        if head.status == 200:
            answer.outcome, answer.said = "malformed", "no stream of events"
        elif 300 <= head.status < 400:
            answer.outcome, answer.said = "redirect", "to elsewhere, which is not followed"
        elif head.status in _CONTEXT_STATUS and (head.status == 413 or _CONTEXT.search(said)):
            answer.outcome = TOO_LONG
        else:
            answer.outcome = f"http_{head.status}"
        answer.said = answer.said or self._shown(said)

    def _shown(self, said: str) -> str:
        """The server's words, harmless, and without the key if it sends that back."""
        return shown(said, self._endpoint.key, _SAID_MAX)


def request_bytes(endpoint: Endpoint, method: str, path: str, body: bytes = b"", traceparent: str = "") -> bytes:
    """A request as it goes over the wire; the connection ends with its answer."""
    headers = [
        (b"Host", endpoint.authority.encode()),
        (b"User-Agent", b"gpumon-probe"),
        (b"Accept", b"text/event-stream, application/json"),
        (b"Connection", b"close"),
    ]
    if body:
        headers += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
    if traceparent:
        headers.append((b"traceparent", traceparent.encode()))
    if endpoint.key:
        headers.append((b"Authorization", b"Bearer " + endpoint.key.encode()))
    return write_head(f"{method} {endpoint.target(path)} HTTP/1.1".encode(), headers) + body


class _Reading:
    """Of one answer that is a stream."""

    def __init__(self, exchange: Exchange, head: ResponseHead, answer: Answer, began_ns: int) -> None:
        self._exchange = exchange
        self._head = head
        self._answer = answer
        self._began_ns = began_ns
        self._beyond = 0
        """Tokens more than asked for that were admitted."""

    async def read(self, most: int, admits: Admits | None) -> None:
        """Until it ends, or has more than ``most`` tokens and it is not admitted, or is no longer slack."""
        answer, splitter, finished = self._answer, SseSplitter(), False
        async for piece in self._exchange.pieces(self._head):
            for event in splitter.feed(piece.data):
                data = data_of(event)
                if not data:
                    continue
                if data == b"[DONE]":
                    _end(answer, finished=True)
                    return
                told = read_event(data, names=False)
                if told.malformed or len(event) > EVENT_BYTES or splitter.oversized:
                    answer.outcome, answer.said = "malformed", "an event that is no JSON object"
                    return
                if told.error:
                    is_context = not answer.token_ns and _CONTEXT.search(data[:_ERROR_BYTES].decode("utf-8", "replace"))
                    answer.outcome = TOO_LONG if is_context else told.error
                    return
                _take(answer, told, data, piece.at_ns - self._began_ns)
                if not self._is_within(most, admits):
                    answer.outcome = OVER
                    answer.said = f"{answer.most_tokens:,} tokens came where {most:,} were asked for: cut off there"
                    return
                finished = finished or bool(told.finish)
        # Where the end of the body is told, it has not been cut: some servers say no more than that.
        _end(answer, finished=finished or self._head.framing is not Framing.EOF)

    def _is_within(self, most: int, admits: Admits | None) -> bool:
        beyond = self._answer.most_tokens - most
        if beyond <= self._beyond:
            return True
        more, self._beyond = beyond - self._beyond, beyond
        return (admits is None or admits(more)) and beyond <= SLACK


def _take(answer: Answer, told: Told, data: bytes, at_ns: int) -> None:
    if told.tokens:
        answer.token_ns.append(at_ns)
        answer.end_ns = at_ns
        answer.came += tokens_at_least(data)
    if told.usage is not None:
        counts = read_counts(data, answer.words)
        answer.prompt_tokens = counts.prompt if counts.prompt is not None else answer.prompt_tokens
        answer.completion_tokens = counts.completion if counts.completion is not None else answer.completion_tokens
        answer.cached_tokens = counts.cached if counts.cached is not None else answer.cached_tokens


def _end(answer: Answer, *, finished: bool) -> None:
    """The stream ended as it should, or without a word that it does."""
    if not answer.token_ns:
        answer.outcome, answer.said = "empty", "an answer without output"
    else:
        answer.outcome = OK if finished else "closed"


def _media_type(head: ResponseHead) -> bytes:
    return (head.header(b"content-type") or b"").partition(b";")[0].strip().lower()


def _words_of(body: bytes) -> str:
    """The message of an error, as OpenAI, FastAPI and others write it; else the beginning of the text."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return body[:_ERROR_BYTES].decode("utf-8", "replace")
    error = said.get("error", said) if isinstance(said, dict) else said
    parts = [error] if isinstance(error, str) else []
    if isinstance(error, dict):
        named = (error.get(name) for name in ("message", "type", "error_type", "code"))
        parts = [str(each) for each in named if each and isinstance(each, str | int | float)]
    return "; ".join(parts) or error_detail(body)
