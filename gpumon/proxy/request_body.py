"""What is read of an inference request's body: model, parameters, a hash of the prompt. No text is kept.

The body passes as it came; a copy of at most so many bytes is held until it is complete and then looked at once. The
hash is keyed with a salt (BLAKE2b, 64 bits shown): equal prompts have equal hashes while the salt is the same, and
without the salt nobody can tell from the hash what was asked. What is not JSON, or larger, tells nothing.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

PARAMETERS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "n": "n",
    "seed": "seed",
}
"""Of the body, and what gpumon calls them (``gen_ai.request.…``, docs/TOKENS.md)."""
NAME_CHARACTERS: Final = 128

_T = TypeVar("_T")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for."""

    model: str = ""
    stream: bool = False
    parameters: dict[str, float] = field(default_factory=dict)
    inference_id: str = ""
    prompt_hash: str = ""


NOTHING: Final = Asked()


class _Body(msgspec.Struct):
    """The keys that are looked at; whatever a value is, it is taken, and judged one by one."""

    model: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    stream_options: msgspec.Raw = msgspec.Raw()
    inference_id: msgspec.Raw = msgspec.Raw()
    temperature: msgspec.Raw = msgspec.Raw()
    top_p: msgspec.Raw = msgspec.Raw()
    top_k: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    max_output_tokens: msgspec.Raw = msgspec.Raw()
    frequency_penalty: msgspec.Raw = msgspec.Raw()
    presence_penalty: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()
    seed: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Body)
_numbers = msgspec.json.Decoder(float)
_texts = msgspec.json.Decoder(str)


def read_body(body: bytes, salt: bytes) -> Asked:
    """What a complete body asks for; NOTHING where it is no JSON object."""
    told = decoded(_decoder, body)
    if told is None:
        return NOTHING
    return Asked(
        model=text_of(told.model),
        stream=bytes(told.stream) == b"true",
        parameters=_parameters(told),
        inference_id=text_of(told.inference_id),
        prompt_hash=_prompt_hash(told, salt),
    )


def asking_for_usage(body: bytes) -> bytes | None:
    """The body with ``stream_options.include_usage``; None where it streams nothing or says something of that itself.

    Everything else stands in it as it stood.
    """
    told = decoded(_decoder, body)
    if told is None:
        return None
    if bytes(told.stream) != b"true" or bytes(told.stream_options) not in (b"", b"null"):
        return None
    # A key said twice counts as said last, by every parser in use: so at the end.
    before, brace, after = body.rpartition(b"}")
    return before + b',"stream_options":{"include_usage":true}' + brace + after


def decoded(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T | None:
    """What JSON says; None where it is none, or not of this form."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        # Half of a character: allowed in JSON, written by servers that cut one in two, and refused by msgspec.
        whole = _SURROGATE.sub(rb"\\ufffd", data)
    try:
        return decoder.decode(whole) if whole != data else None
    except (msgspec.DecodeError, RecursionError):
        return None


def text_of(raw: msgspec.Raw) -> str:
    """A text that may be shown: of a reasonable length; else empty."""
    if not 2 < len(raw_bytes(raw)) <= 8 * NAME_CHARACTERS:
        return ""
    try:
        return _texts.decode(raw)[:NAME_CHARACTERS]
    except msgspec.DecodeError:
        return ""


def raw_bytes(raw: msgspec.Raw) -> bytes:
    """A value as it was written; empty where there was none."""
    return bytes(raw)


def number_of(raw: msgspec.Raw) -> float | None:
    """A finite number, or nothing."""
    text = raw_bytes(raw)
    if not 0 < len(text) <= 64:
        return None
    try:
        value = _numbers.decode(text)
    except msgspec.DecodeError:
        return None
    return value if math.isfinite(value) else None


def _parameters(told: _Body) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, shown in PARAMETERS.items():
        value = number_of(getattr(told, name))
        if value is not None:
            found[shown] = value
    return found


def _prompt_hash(told: _Body, salt: bytes) -> str:
    digest = hashlib.blake2b(key=salt, digest_size=8)
    parts = [raw_bytes(part) for part in (told.messages, told.prompt, told.input, told.instructions)]
    if not any(parts):
        return ""
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()
