"""Which requests are inference: by the end of the path, as OpenAI-compatible servers have it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

_UP: Final = re.compile(rb"(?:/|\\|%2f|%5c)(?:\.|%2e){2}(?:/|\\|%2f|%5c|;|$)", re.IGNORECASE)


class Kind(StrEnum):
    """What a path asks for. Label values of ``gpumon_proxy_requests_total``."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"
    EMBEDDING = "embedding"
    MODELS = "models"
    OTHER = "other"


OPERATIONS = {
    Kind.CHAT: "chat",
    Kind.COMPLETION: "text_completion",
    Kind.RESPONSE: "responses",
    Kind.EMBEDDING: "embeddings",
}
"""Of which a trace is sent: the kind, and OpenTelemetry's name for it (``gen_ai.operation.name``)."""

_POSTS = (
    (b"/chat/completions", Kind.CHAT),
    (b"/completions", Kind.COMPLETION),
    (b"/responses", Kind.RESPONSE),
    (b"/embeddings", Kind.EMBEDDING),
)


def kind_of(method: bytes, target: bytes) -> Kind:
    """The kind of a request. target: as in the request line."""
    path = target.partition(b"?")[0].rstrip(b"/")
    if method == b"POST":
        return next((kind for ending, kind in _POSTS if path.endswith(ending)), Kind.OTHER)
    if method == b"GET" and (path.endswith(b"/models") or b"/models/" in path):
        return Kind.MODELS
    return Kind.OTHER


def leaves_prefix(target: bytes) -> bool:
    """Whether a request means something outside the path that is put before its own: the whole server, or further up.

    Slashes and dots count in every way of writing them, since servers differ in which they read.
    """
    return target == b"*" or _UP.search(target.partition(b"?")[0]) is not None
