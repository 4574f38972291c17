"""Trace requests at random: mostly what servers send, now and then what is merely legal, and mutations of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from tests.ingest import wire

TOKEN_NAMES = ("gen_ai.token.generated", "token_generated", "token_emitted")
OTHER_NAMES = ("schedule", "exception", "", "gen_ai.token.generated.x", "token", "é" * 40)
START_NS = 1_795_953_600_000_000_000
PROMPT = "the planted prompt, which nobody may see again"


class Dice(Random):
    """Source of chance, and whether the present request may hold what no parser takes."""

    broken = False


def random_request(random: Dice) -> bytes:
    """One ``ExportTraceServiceRequest``; one in six may be broken."""
    random.broken = random.random() < 1 / 6
    body = b"".join(_resource_spans(random) for _ in range(random.choice((1, 1, 1, 2))))
    return body + _unknown(random, 0.05)


def mutated(body: bytes, random: Dice) -> bytes:
    """The body with one to three bytes or ranges changed, most often so that it still parses."""
    raw = bytearray(body)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _mutate(raw, random)
    return bytes(raw)


def repeated_event(random: Dice) -> bytes:
    """A request with one event, mutated or odd, so often that it is worth a layout, and some sound ones around it."""
    shape = _Shape(random)
    shape.odd = random.choice((0.0, 0.0, 0.5))
    event = shape.event(random)
    if random.random() < 0.8:
        event = mutated(event, random)
    shape.odd = 0.0
    events = [shape.event(random) for _ in range(random.choice((0, 0, 30)))]
    events[len(events) // 2 : len(events) // 2] = [event] * 30
    ids = wire.delimited(1, b"0123456789abcdef") + wire.delimited(2, b"01234567")
    return wire.request(ids + b"".join(wire.delimited(11, event) for event in events))


def _mutate(raw: bytearray, random: Dice) -> None:
    if not raw:
        return
    at = random.randrange(len(raw))
    kind = random.choice((0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 6))
    if kind == 0:
        raw[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        raw[at] = random.randrange(256)
    elif kind == 2:
        del raw[at:]
    elif kind == 3:
        del raw[at : at + random.randrange(1, 20)]
    elif kind == 4:
        raw[at:at] = random.randbytes(random.randrange(1, 12))
    elif kind == 5:
        raw[at:at] = raw[at : at + random.randrange(1, 120)]
    else:  # swap the wire type or number of what may be a tag
        raw[at] = random.choice((0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x12, 0x18, 0x1A, 0x20, 0x21, 0x5A, 0x82))


def _resource_spans(random: Dice) -> bytes:
    out = bytearray()
    for _ in range(random.choice((1, 1, 1, 0, 2))):  # twice: the two merge
        out += wire.delimited(1, _attributes(random, 1, ("service.name", "k8s.pod.uid", "process.pid")))
    for _ in range(random.choice((1, 1, 2))):
        out += wire.delimited(2, _scope_spans(random))
    return wire.delimited(1, bytes(out) + _unknown(random, 0.05))


def _scope_spans(random: Dice) -> bytes:
    out = bytearray()
    if random.random() < 0.9:
        out += wire.delimited(1, wire.delimited(1, random.choice(("gpumon", "sglang server"))) + _unknown(random, 0.02))
    shape = _Shape(random)
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        out += wire.delimited(2, _span(random, shape))
    return bytes(out) + _unknown(random, 0.03)


class _Shape:
    """What the token events of one scope have in common, and how often they are odd."""

    def __init__(self, random: Dice) -> None:
        self.name = random.choice(TOKEN_NAMES)
        self.odd = random.choice((0.0, 0.0, 0.02, 0.02, 0.3, 1.0))
        self.timed = random.random() < 0.95
        self.keys = random.sample(
            (
                "gen_ai.token.count",
                "latency_us",
                "token_id",
                "gen_ai.token.index",
                "last",
                "iter_waiting_size",
            ),
            random.randrange(5),
        )
        self.latency = random.choice((wire.whole, wire.real))

    def event(self, random: Dice) -> bytes:
        if random.random() < self.odd:
            return _odd_event(random, self.name)
        out = bytearray()
        if self.timed:
            out += wire.fixed64(1, START_NS + random.randrange(10**10))
        out += wire.delimited(2, self.name)
        for key in self.keys:
            if key == "latency_us":
                value = self.latency(random.choice((0, 1, 127, 128, 18_000, 2**31, 2**52)))
            elif key == "last":
                value = wire.boolean(random.random() < 0.1)
            elif key == "gen_ai.token.count":
                value = wire.whole(random.choice((1, 1, 1, 2, 5, 0, 200, 1_000_001)))
            else:
                value = wire.whole(random.choice((0, 5, 200, 128_000)))
            out += wire.delimited(3, wire.pair(key, value))
        return bytes(out)


def _odd_event(random: Dice, name: str) -> bytes:
    name = random.choice((name, name, *TOKEN_NAMES, *OTHER_NAMES))
    parts = [
        wire.fixed64(1, random.choice((START_NS, 0, 2**63 - 1, 2**63, 2**64 - 1))),
        wire.delimited(2, name, size=random.choice((0, 0, 0, 2, 5))),
    ]
    keys = ("gen_ai.token.count", "latency_us", "token_id", "gen_ai.prompt", "text", "é", "")
    parts += [wire.delimited(3, _odd_pair(random, random.choice(keys))) for _ in range(random.randrange(4))]
    odd: Sequence[Callable[[], bytes]] = (
        lambda: random.choice(parts),  # twice: the last wins, or the attribute is repeated
        lambda: wire.integer(4, random.choice((0, 3, 2**40))),
        lambda: wire.integer(1, START_NS),  # another wire type: an unknown field
        lambda: wire.delimited(2, b"\xff\xfe" if random.broken else "x"),  # not UTF-8
        lambda: wire.tag(1, 1, size=3) + bytes(8),
        lambda: wire.delimited(
            3, wire.delimited(1, b"\xc3\x28" if random.broken else "x") + wire.delimited(2, wire.text("x"))
        ),
        lambda: _unknown(random, 1.0),
        lambda: wire.fixed32(2, 7),
        lambda: b"",
    )
    if random.random() < 0.6:
        parts.insert(random.randrange(len(parts) + 1), random.choice(odd)())
    if random.random() < 0.3:
        random.shuffle(parts)
    if random.random() < 0.15:
        parts.pop(random.randrange(len(parts)))
    return b"".join(parts)


def _odd_pair(random: Dice, key: str) -> bytes:
    """KeyValue in one of its legal or nearly legal spellings."""
    first, second = _any_value(random), _any_value(random)
    name = wire.delimited(1, key, size=random.choice((0, 0, 2)))
    return random.choice(
        (
            name + wire.delimited(2, first),
            name + wire.delimited(2, first),
            name + wire.delimited(2, first, size=3),
            wire.delimited(2, first) + name,
            name + wire.delimited(2, first) + wire.delimited(2, second),  # merges
            wire.delimited(1, "gen_ai.token.count") + wire.delimited(2, first) + name,  # the last key wins
            name + wire.delimited(2, first + second),  # the last of a oneof wins
            name,
            wire.delimited(2, first),
            name + wire.delimited(2, first) + _unknown(random, 1.0),
            name + wire.delimited(2, first) + wire.integer(3, 9),
            name + wire.integer(2, 5),
            b"",
        )
    )


def _any_value(random: Dice, depth: int = 0) -> bytes:
    number = random.choice((0, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**53 + 1, 2**62, -1, -(2**63), 1_000_000))
    scalar = random.choice(
        (
            wire.whole(number),
            wire.whole(number),
            wire.whole(number % 1000, size=random.choice((2, 5, 8, 9, 10, 11 if random.broken else 10))),
            wire.real(random.choice((0.0, -1.5, 64.0, 1e300, math.nan, math.inf))),
            wire.text(random.choice(("", "18.25ms", PROMPT, "é", "x" * 1200))),
            wire.boolean(True),
            wire.integer(2, 7, size=2),
            b"",
            wire.delimited(7, b"\0\1\2"),
            wire.integer(8, 3),  # string_value_strindex, part of the oneof in newer versions
            _unknown(random, 1.0),
        )
    )
    if depth < 3 and random.random() < 0.25:
        size = random.choice((0, 1, 2, 15, 16, 17, 40))
        if random.random() < 0.5:
            kind = random.choice((wire.whole, wire.real))
            return wire.array(
                *(kind(random.choice((0, 1, 300, 10**10))) for _ in range(size)), *([scalar] * (size % 2))
            )
        if random.random() < 0.5:
            return wire.array(*(_any_value(random, depth + 1) for _ in range(size % 4)))
        inner = wire.delimited(1, wire.pair("k", _any_value(random, depth + 1)))
        return wire.delimited(6, inner)
    return scalar


def _attributes(random: Dice, number: int, keys: Sequence[str]) -> bytes:
    out = bytearray()
    for key in keys:
        chance = random.random()
        if chance < 0.6:
            value = random.choice((wire.text("vllm"), wire.whole(random.randrange(5000)), wire.real(0.25)))
            out += wire.delimited(number, wire.pair(key, value))
        elif chance < 0.75:
            out += wire.delimited(number, _odd_pair(random, key))
    return bytes(out)


def _span(random: Dice, shape: _Shape) -> bytes:
    trace_id = random.choice((bytes(8) + b"12345678", b"0123456789abcdef", b"0123456789abcdef"))
    span_id = random.randbytes(7) + b"\1"
    parent = random.choice((b"", b"parent-1", b"parent-1", b"parent-2", bytes(8)))
    if random.random() < 0.06:
        trace_id = random.choice((b"", bytes(16), b"short", b"0123456789abcdef0"))
    if random.random() < 0.04:
        span_id = random.choice((b"", bytes(8), b"123456789"))
    if random.random() < 0.02:
        parent = b"1234"
    names = ("llm_request", "llm_request", " Req 01234567", "decode_loop", "infer", "gen_ai.token", "n" * 300)
    start = random.choice((START_NS, START_NS + 5, START_NS, 0, 2**63))
    parts = [
        wire.delimited(1, trace_id),
        wire.delimited(2, span_id),
        wire.delimited(5, random.choice(names)),
        wire.integer(6, random.choice((0, 1, 2, 9, -1))),
        wire.fixed64(7, start),
        _attributes(
            random,
            9,
            (
                "decode_ct",
                "gen_ai.token.index",
                "gen_ai.token.count",
                "gen_ai.token.times_ns",
                "gen_ai.prompt.0.content",
                "gen_ai.latency.e2e",
                "decode_ct",
            ),
        ),
    ]
    if parent:
        parts.append(wire.delimited(4, parent))
    if random.random() < 0.9:
        parts.append(wire.fixed64(8, START_NS + 10**9))
    if random.random() < 0.3:
        parts.append(wire.delimited(15, wire.integer(3, random.choice((0, 1, 2, 7)))))
    if random.random() < 0.05:
        parts.append(wire.delimited(15, wire.delimited(2, "the status' message")))
    if random.random() < 0.1:
        parts.append(wire.integer(12, random.choice((3, 2**33 + 1))))
    if random.random() < 0.1:
        parts.append(wire.delimited(13, wire.delimited(1, trace_id) + wire.delimited(2, random.choice((span_id, b"")))))
    if random.random() < 0.3:
        parts.append(wire.fixed32(16, 0x100))
    if random.random() < 0.2:
        parts.append(wire.delimited(9, wire.pair("gen_ai.token.times_ns", _times(random))))
    if random.random() < 0.2:
        random.shuffle(parts)
    events = [wire.delimited(11, shape.event(random)) for _ in range(random.choice((0, 0, 1, 3, 30, 70)))]
    if random.random() < 0.05:
        events.append(wire.integer(11, 4))
    split = random.randrange(len(parts) + 1)
    return b"".join([*parts[:split], *events, *parts[split:]]) + _unknown(random, 0.04)


def _times(random: Dice) -> bytes:
    """The compact form: mostly ascending ints."""
    at = 0
    values = []
    for _ in range(random.choice((3, 15, 16, 100))):
        at += random.randrange(3 * 10**7)
        values.append(wire.whole(at))
    if random.random() < 0.2:
        values[random.randrange(len(values))] = _any_value(random)
    return wire.array(*values)


def _unknown(random: Dice, chance: float) -> bytes:
    """A field that no version of the messages has; rarely a broken one."""
    if random.random() >= chance:
        return b""
    legal = (
        wire.integer(99, 5),
        wire.integer(99, -1),
        wire.integer(99, 1, size=10),
        wire.delimited(100, b"\xff\0 anything"),
        wire.fixed32(101, 1),
        wire.fixed64(102, 1),
        wire.group(103, wire.integer(1, 1)),
        wire.group(103, wire.group(1, b"") + wire.delimited(2, "x")),
    )
    broken = (
        wire.tag(103, 3) + wire.integer(1, 1),  # a group without an end
        wire.tag(103, 4),  # an end without a group
        wire.tag(103, 6),  # no such wire type
        wire.tag(0, 0) + b"\1",  # no such field number
        wire.integer(99, 1, size=11),
    )
    return random.choice(broken if random.broken and random.random() < 0.1 else legal)
