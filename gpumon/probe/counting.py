"""What a server says that it counted, as far as it can be believed. Pure: an event's JSON in, counts out.

A count is a whole number of at least one, and no more than could be: anything else is not told, and what was aimed at
or what came stands for it. Of cached tokens none is a count, and there are no more of them than of the prompt.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

_PER_WORD: Final = 32
_BESIDE: Final = 1 << 16
"""Tokens of a chat template and what a server puts before a prompt, at most."""
_COMPLETION: Final = 1 << 24
_EVENT: Final = 1024
"""Bytes of an event that are not its output: names, ids, times."""
_TOKEN: Final = 32
"""Bytes of a token's text: more than nearly any has."""


class Counts(NamedTuple):
    """None: not told."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


def read_counts(data: bytes, words: int) -> Counts:
    """Of an event with usage. words: of the prompt."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return Counts()
    usage = said.get("usage") if isinstance(said, dict) else None
    if not isinstance(usage, dict):
        return Counts()
    prompt = _whole(usage.get("prompt_tokens", usage.get("input_tokens")), 1, _PER_WORD * words + _BESIDE)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _whole(details.get("cached_tokens"), 0, prompt or 0) if isinstance(details, dict) else None
    made = usage.get("completion_tokens", usage.get("output_tokens"))
    return Counts(prompt, _whole(made, 1, _COMPLETION), cached)


def tokens_at_least(event: bytes) -> int:
    """Of an event with output: one, and more where it is so long that it cannot be one."""
    return 1 + max(0, len(event) - _EVENT) // _TOKEN


def _whole(said: object, least: int, most: int) -> int | None:
    if isinstance(said, bool) or not isinstance(said, int | float) or not least <= said <= most or said != int(said):
        return None
    return int(said)
