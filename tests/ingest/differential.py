"""The fast path held to the walk: same bodies, same records, same refusals.

Usage: python -m tests.ingest.differential [--payloads N] [--seed N]. Prints one JSON line; exits 1 on a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random

import numpy as np

from gpumon.ingest.decode import decode_traces
from gpumon.ingest.decode_limits import DEFAULT_LIMITS, DecodeLimits
from gpumon.ingest.records import Decoded, DecodeError, SpanRecord, StepColumns
from gpumon.ingest.walk import decode_traces_walk
from tests.ingest.payloads import Dice, mutated, random_request, repeated_event

SMALL_LIMITS = DecodeLimits(
    max_scopes=3,
    max_spans=3,
    max_steps=2,
    max_attributes=2,
    max_event_attributes=1,
    max_events=2,
    max_token_events=20,
    max_links=0,
    max_text=10,
    max_name=30,
    max_array=50,
    max_short_array=10,
)
Plain = object


def payloads(seed: int) -> Iterator[bytes]:
    """Without end: each random request is followed by three mutations and a repeated event."""
    random = Dice(seed)
    while True:
        body = random_request(random)
        yield body
        for _ in range(3):
            yield mutated(body, random)
        yield repeated_event(random)


def batches(bodies: Iterable[bytes], seed: int) -> Iterator[list[bytes]]:
    """The bodies, one to five at a time."""
    random = Random(seed)
    rest = iter(bodies)
    while batch := list(islice(rest, random.choice((1, 1, 2, 5)))):
        yield batch


def walked(body: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> Decoded | DecodeError:
    try:
        return decode_traces_walk(body, limits)
    except DecodeError as err:
        return err


def differing(bodies: Sequence[bytes], limits: DecodeLimits = DEFAULT_LIMITS) -> list[bytes]:
    """Those bodies of a batch on which the two disagree."""
    fast = decode_traces(bodies, limits)
    return [body for body, one in zip(bodies, fast, strict=True) if plain(one) != plain(walked(body, limits))]


def plain(decoded: Decoded | DecodeError) -> Plain:
    """All that it says, comparable; NaN equals NaN."""
    if isinstance(decoded, DecodeError):
        return str(decoded)
    return (
        [_span(span) for span in decoded.spans],
        sorted((_step(step) for step in decoded.steps), key=repr),
        decoded.rejected,
        decoded.truncated,
        decoded.message,
    )


def _span(span: SpanRecord) -> Plain:
    tokens = span.tokens
    return (
        (span.resource.key, _value(span.resource.attributes), span.scope),
        (span.trace_id, span.span_id, span.parent_id, span.name, span.kind, span.start_ns, span.end_ns, span.status),
        _value(span.attributes),
        [(event.name, event.at_ns, _value(event.attributes)) for event in span.events],
        None if tokens is None else (_value(tokens.at_ns), _value(tokens.counts), _value(tokens.latency_us)),
        (span.dropped_events, tuple(span.links)),
    )


def _step(step: StepColumns) -> Plain:
    return (
        (step.resource.key, step.scope, step.name, step.trace_id, step.parent_id, step.span_ids),
        tuple(_value(column) for column in (step.start_ns, step.end_ns, step.index, step.counts)),
    )


def _value(value: object) -> Plain:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return sorted((key, _value(item)) for key, item in value.items())
    if isinstance(value, tuple):
        return tuple(map(_value, value))
    return type(value).__name__, repr(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payloads", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    compared = accepted = tokens = 0
    found: list[str] = []
    for number, batch in enumerate(batches(islice(payloads(options.seed), options.payloads), options.seed)):
        limits = SMALL_LIMITS if number % 4 == 3 else DEFAULT_LIMITS
        found += [body.hex() for body in differing(batch, limits)]
        compared += len(batch)
        for one in decode_traces(batch):
            if isinstance(one, Decoded):
                accepted += 1
                tokens += sum(len(span.tokens.at_ns) for span in one.spans if span.tokens is not None)
    print(json.dumps({"payloads": compared, "accepted": accepted, "tokens": tokens, "differing": found[:5]}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
