"""What is read of an inference server's answer: an event of its stream, or the whole JSON body. No text is kept.

The vocabularies of OpenAI's chat, completions and responses interfaces, as vLLM, SGLang, TGI, llama.cpp and others
speak them. Texts of an answer are never decoded: whether one is empty shows in its raw bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from gpumon.proxy.request_body import decoded, number_of, raw_bytes, text_of

_ABSENT: Final = msgspec.Raw()
_EMPTY: Final = frozenset({b"", b"null", b'""', b"[]", b"{}", b"false"})
_TOKENS_MAX: Final = 1e9
_FAILURES: Final = {
    "error": "stream_error",
    "response.failed": "response_failed",
}


@dataclass(slots=True)
class Usage:
    """Tokens as the server counts them; None: not told."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


@dataclass(slots=True)
class Told:
    """What one event, or one body, says."""

    tokens: bool = False
    """Whether there is output in it."""
    usage: Usage | None = None
    finish: str = ""
    error: str = ""
    response_id: str = ""
    model: str = ""
    malformed: bool = False


class _Delta(msgspec.Struct):
    content: msgspec.Raw = _ABSENT
    reasoning_content: msgspec.Raw = _ABSENT
    reasoning: msgspec.Raw = _ABSENT
    refusal: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    audio: msgspec.Raw = _ABSENT


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: msgspec.Raw = _ABSENT
    finish_reason: msgspec.Raw = _ABSENT


class _Cached(msgspec.Struct):
    cached_tokens: msgspec.Raw = _ABSENT


class _Usage(msgspec.Struct):
    prompt_tokens: msgspec.Raw = _ABSENT
    input_tokens: msgspec.Raw = _ABSENT
    completion_tokens: msgspec.Raw = _ABSENT
    output_tokens: msgspec.Raw = _ABSENT
    prompt_tokens_details: msgspec.Raw = _ABSENT
    input_tokens_details: msgspec.Raw = _ABSENT


class _Incomplete(msgspec.Struct):
    reason: msgspec.Raw = _ABSENT


class _Response(msgspec.Struct):
    """Of the responses interface."""

    id: msgspec.Raw = _ABSENT
    model: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    incomplete_details: _Incomplete | None = None


class _Answer(msgspec.Struct):
    id: msgspec.Raw = _ABSENT
    model: msgspec.Raw = _ABSENT
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    type: msgspec.Raw = _ABSENT
    delta: msgspec.Raw = _ABSENT
    response: _Response | None = None
    status: msgspec.Raw = _ABSENT
    incomplete_details: _Incomplete | None = None


_answers = msgspec.json.Decoder(_Answer)
_usages = msgspec.json.Decoder(_Usage)
_details = msgspec.json.Decoder(_Cached)


def read_event(data: bytes, *, names: bool) -> Told:
    """The data of one event of a stream, neither empty nor ``[DONE]``. names: also read what the answer is called."""
    answer = decoded(_answers, data)
    if answer is None:
        return Told(malformed=True)
    told = Told()
    if names:
        told.response_id, told.model = text_of(answer.id), text_of(answer.model)
    for choice in answer.choices or ():
        if _has_output(choice):
            told.tokens = True
        if _has(choice.finish_reason):
            told.finish = text_of(choice.finish_reason)
    if answer.choices is None and answer.type is not _ABSENT:
        _read_typed(told, answer)
    if _has(answer.usage):
        told.usage = read_usage(answer.usage)
    if _has(answer.error):
        told.error = _FAILURES["error"]
    return told


def read_answer(body: bytes) -> Told:
    """The whole body of an answer that is no stream."""
    answer = decoded(_answers, body)
    if answer is None:
        return Told(malformed=True)
    told = Told(response_id=text_of(answer.id), model=text_of(answer.model))
    if _has(answer.usage):
        told.usage = read_usage(answer.usage)
    for choice in answer.choices or ():
        told.finish = text_of(choice.finish_reason) or told.finish
    if answer.choices is None and _has(answer.status):  # of the responses interface
        told.finish = _ended(text_of(answer.status), answer.incomplete_details)
    return told


def read_usage(raw: msgspec.Raw) -> Usage | None:
    """A usage object; None where it is none."""
    usage = decoded(_usages, raw_bytes(raw))
    if usage is None:
        return None
    details = raw_bytes(usage.prompt_tokens_details) or raw_bytes(usage.input_tokens_details)
    cached = decoded(_details, details) if details not in _EMPTY else None
    return Usage(
        prompt=_count(usage.prompt_tokens, usage.input_tokens),
        completion=_count(usage.completion_tokens, usage.output_tokens),
        cached=_count(cached.cached_tokens) if cached is not None else None,
    )


def _has_output(choice: _Choice) -> bool:
    if _has(choice.text):
        return True
    delta = choice.delta
    return delta is not None and (
        _has(delta.content)
        or _has(delta.reasoning_content)
        or _has(delta.reasoning)
        or _has(delta.tool_calls)
        or _has(delta.refusal)
        or _has(delta.function_call)
        or _has(delta.audio)
    )


def _has(raw: msgspec.Raw) -> bool:
    return raw is not _ABSENT and bytes(raw) not in _EMPTY


def _read_typed(told: Told, answer: _Answer) -> None:
    """An event of the responses interface: its type says what it is."""
    kind = text_of(answer.type)
    if kind.endswith(".delta"):
        told.tokens = _has(answer.delta)
    elif kind in _FAILURES:
        told.error = _FAILURES[kind]
    response = answer.response
    if response is not None:
        told.response_id, told.model = text_of(response.id), text_of(response.model)
        if _has(response.usage):
            told.usage = read_usage(response.usage)
        if kind in ("response.completed", "response.incomplete"):
            told.finish = _ended(kind.rpartition(".")[2], response.incomplete_details)


def _ended(status: str, incomplete: _Incomplete | None) -> str:
    """A finish reason in the words of the chat interface."""
    if status == "incomplete":
        reason = text_of(incomplete.reason) if incomplete is not None else ""
        return "length" if reason == "max_output_tokens" else reason or status
    return "stop" if status == "completed" else status


def _count(*spellings: msgspec.Raw) -> int | None:
    for raw in spellings:
        value = number_of(raw) if raw is not _ABSENT else None
        if value is not None and 0 <= value <= _TOKENS_MAX:
            return int(value)
    return None
