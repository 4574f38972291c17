"""How much of one request the decoders keep. What is over a limit is cut or left out, and counted; nothing raises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Limits per request body; its size in bytes is the receiver's to limit."""

    max_scopes: int = 100_000
    """Resources, and scopes of all of them. Those over it: ``rejected["too_many_scopes"]``."""
    max_spans: int = 100_000
    """Span records; about 1 kB each. Over it: ``rejected["too_many_spans"]``."""
    max_steps: int = 1_000_000
    """Step spans, kept as columns; about 100 bytes each. Over it: ``rejected["too_many_spans"]``. No more than
    ``max_spans`` plus this are looked at."""
    max_attributes: int = 256
    """Per resource, span or log record; the first are read. The SDKs' own default is 128."""
    max_event_attributes: int = 64
    """Per event; of token events the first ``columns.MAX_ATTRIBUTES`` are read."""
    max_events: int = 256
    """Events per span that are no token events; the first are kept."""
    max_token_events: int = 1_000_000
    """Per span; the first are kept. No model makes more in one request."""
    max_links: int = 128
    max_text: int = 1024
    """Characters of an attribute's string; the rest is cut."""
    max_name: int = 256
    """Characters of a name (span, event, scope, attribute key). Names are cut; attributes with a longer key are left
    out."""
    max_array: int = 262_144
    """Elements of an int array (the compact form: one per token)."""
    max_short_array: int = 256
    """Elements of any other array."""
    max_json_objects: int = 2_500_000
    """Objects in a JSON body, each some 150 bytes while decoded; 64 MiB of token events have 2 million."""


DEFAULT_LIMITS = DecodeLimits()
