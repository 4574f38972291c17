"""What an adapter may say about a span, and what every adapter is: the vocabulary between adapters and assembly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from gpumon.ingest.adapters.values import Gate
from gpumon.ingest.records import SpanRecord
from gpumon.model import RequestRecord


class Phase(StrEnum):
    """Part of a request's life. Definitions: docs/TOKENS.md."""

    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    KV_SYNC = "kv_sync"


class Ignored(StrEnum):
    """Why a span is of no use here; label values of ``gpumon_spans_dropped_total``."""

    UNKNOWN_SCOPE = "unknown_scope"  # no server that gpumon knows, and no gen_ai attributes
    STARTUP = "startup"  # loading a model, capturing graphs: minutes long and no request
    UNUSED = "unused"  # of a known server, and tells nothing that is kept


@dataclass(slots=True, eq=False)
class RequestSeen:
    """The span of a request as a whole. Where start or end is missing both are the other and outcome is incomplete."""

    record: RequestRecord
    dropped_events: int = 0
    one_token_each: bool = True
    """Whether, by the sender's contract, a token event without a count is one token."""
    cut: bool = False
    """Whether there were more token times than are kept; the first are."""
    half: str = ""
    """prefill or decode, where the two are done by different servers."""
    room: str = ""
    """What the two halves have in common."""


class PhaseSeen(NamedTuple):
    """A span that is a phase."""

    phase: Phase
    start_ns: int
    end_ns: int
    first_token_at_end: bool = False


class RankSeen(NamedTuple):
    """A span below which everything happened in one rank of the engine."""

    pipeline: int
    tensor: int
    host: str
    """Empty where not told."""
    aborted: bool
    start_ns: int
    end_ns: int


class StepSeen(NamedTuple):
    """A span that is one decode step and did not come in columns."""

    start_ns: int
    end_ns: int
    number: int
    """-1 where not told."""
    tokens: int


class MarksSeen(NamedTuple):
    """A span that adds named moments to its request."""

    marks: Mapping[str, int]
    model: str
    start_ns: int
    end_ns: int


class LinkSeen(NamedTuple):
    """A span that only ties others to their request."""

    start_ns: int
    end_ns: int
    host: str = ""
    """Host on which the request itself was timed, where told."""


Seen = RequestSeen | PhaseSeen | RankSeen | StepSeen | MarksSeen | LinkSeen | Ignored


@dataclass(slots=True)
class Reading:
    """What adapters share: limits, and what the configuration says."""

    gate: Gate = field(default_factory=Gate)
    tenant_attributes: tuple[str, ...] = ("tenant.id", "x-tenant-id")
    models: Mapping[str, str] = field(default_factory=dict)
    """Model by ``service.name`` or by kind of server, for servers whose spans do not name it."""
    max_tokens: int = 1 << 20
    """Most token times kept of one request; the first ones."""


class Adapter(Protocol):
    """Reads the spans of one kind of server."""

    server: str
    """Label value of ``server``."""
    first_in_steps: bool
    """Whether the first step span is the one that made the first token."""
    first_is_prefill: bool
    """Whether that step's duration is the prefill."""

    def read(self, span: SpanRecord, reading: Reading) -> Seen:
        """What the span says."""
        ...
