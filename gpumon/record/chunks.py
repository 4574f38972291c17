"""Answers made into chunks: questions numbered, identifiers masked, large contents cut to what changed, all packed.

Used by the recorder's writing thread. ``begin``, then what there is in order, then ``finish``; a chunk ends earlier
where it becomes large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpumon.record.entries import (
    BUS_ID,
    GET,
    HEAD,
    KERNEL_LINES,
    LINK,
    LIST,
    READ,
    TEXT,
    WAIT,
    Batch,
    Block,
    Body,
    Calls,
    Failed,
    Key,
    Question,
    pack,
    splice,
    to_bytes,
)
from gpumon.record.format import Writer
from gpumon.record.mask import Mask

LARGE = 4096
"""Contents above this are compared with the one before, and only what changed is written."""
EPOCH_S = 600.0
_PLAIN = frozenset({READ, LIST, LINK, GET, TEXT, BUS_ID})
"""Answers that are bytes as they are; the others come packed."""
_OVERHEAD = 32


@dataclass(frozen=True, slots=True)
class Bounds:
    """Every bound of recording."""

    flush_s: float = 2.0
    """Longest that something waits to be written."""
    flush_bytes: int = 256 << 10
    """With as much waiting it is written at once."""
    pending_bytes: int = 64 << 20
    """Most that waits: of answers (then recording ends), and of OTLP bodies (then one is left out)."""
    body_bytes: int = 16 << 20
    """A larger OTLP body is not recorded."""
    chunk_bytes: int = 8 << 20
    """Where a chunk ends and the next begins, if so much came at once."""
    epoch_s: float = EPOCH_S
    """After this all is written once more."""
    questions: int = 100_000
    """Of an epoch, after which the next begins."""
    contents_bytes: int = 32 << 20
    """Most of large contents that is remembered; then all of it is forgotten."""


class Chunks:
    """One writer of one stream."""

    def __init__(self, writer: Writer, stream: int, writer_id: int, mask: Mask | None, bounds: Bounds) -> None:
        """writer_id: tells it apart from others that append to the same stream."""
        self._writer = writer
        self._stream = stream
        self._mask = mask
        self._bounds = bounds
        self._batch = Batch(writer_id, True, [], [], [], [])
        self._size = 0
        self._now_s = self._offset_s = 0.0
        self._epoch_s = float("-inf")
        self._scope = ""
        self._block: Block | None = None
        self._last_block = Block(0.0, "", False, [])
        self._numbers: dict[tuple[str, Key], int] = {}
        self._contents: dict[tuple[str, Key], bytes] = {}
        self._contents_bytes = 0

    def begin(self, now_s: float, offset_s: float) -> bool:
        """Begin to write. True when an epoch begins: whoever leaves out what was written has to write it again."""
        self._now_s, self._offset_s = now_s, offset_s
        if now_s - self._epoch_s < self._bounds.epoch_s and len(self._numbers) < self._bounds.questions:
            return False
        self._epoch_s = now_s
        self._batch.fresh = True
        self._numbers = {}
        self._forget_contents()
        return True

    def block(self, scope: str, at_s: float, *, begins: bool) -> None:
        """Answers of a pass follow. begins: whether none of them were written before, and it is a pass."""
        self._block = Block(at_s, self._text(scope), begins, [])
        self._batch.blocks.append(self._block)
        self._scope = scope
        self._grow(_OVERHEAD)

    def answer(self, key: Key, answer: bytes | Failed, took_us: int) -> None:
        """One answer, in the block begun last."""
        if self._block is None:  # the chunk with its beginning was full
            last = self._last_block
            self._block = Block(last.at_s, last.scope, False, [])
            self._batch.blocks.append(self._block)
        known = (self._scope, key)
        number = self._numbers.get(known)
        if number is None:
            number = self._numbers[known] = len(self._numbers)
            kind, subject, detail = key
            question = Question(
                self._text(self._scope), kind, to_bytes(self._subject(kind, subject)), to_bytes(self._text(detail))
            )
            self._batch.questions.append(question)
            self._size += len(question.subject) + len(question.detail) + _OVERHEAD
        if isinstance(answer, Failed):
            self._forget(known)
            packed = pack(Failed(answer.code, self._text(clean(answer.text))))
        else:
            packed = self._packed(known, answer)
        self._block.answers.append((number, took_us, isinstance(answer, Failed), msgspec.Raw(packed)))
        self._grow(len(packed) + _OVERHEAD)

    def body(self, body: Body) -> None:
        """One OTLP request; its peer is masked here."""
        body.peer = self._text(body.peer)
        self._batch.bodies.append(body)
        self._grow(len(body.body) + _OVERHEAD)

    def finish(self, calls: Sequence[Calls]) -> None:
        """Write what there is. Raises OSError."""
        for each in calls:
            each.device = self._text(each.device)
        self._batch.calls = list(calls)
        self._write()

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size >= self._bounds.chunk_bytes:
            self._write()

    def _write(self) -> None:
        batch = self._batch
        times = [block.at_s for block in batch.blocks] + [body.at_s for body in batch.bodies]
        if self._block is not None:
            self._last_block = self._block
        self._block = None
        self._size = 0
        if times or batch.calls:
            first_s, last_s = min(times, default=self._now_s), max(times, default=self._now_s)
            head = HEAD.pack(first_s, last_s, self._now_s, self._offset_s)
            self._writer.write(self._stream, head + pack(batch))
            self._batch = Batch(batch.writer, False, [], [], [], [])

    # --- answers ----------------------------------------------------------------------------------------------------

    def _packed(self, known: tuple[str, Key], answer: bytes) -> bytes:
        kind, subject, _ = known[1]
        mask = self._mask
        if kind not in _PLAIN:
            return _masked_packed(mask, kind, answer) if mask is not None else answer
        if mask is not None:
            answer = _masked(mask, kind, subject, answer)
        if len(answer) <= LARGE or kind not in (READ, GET):
            self._forget(known)
            return pack(answer)
        before = self._forget(known)
        self._contents[known] = answer
        self._contents_bytes += len(answer)
        if self._contents_bytes > self._bounds.contents_bytes:
            self._forget_contents()
        change = splice(before, answer) if before is not None else None
        return pack(answer if change is None else change)

    def _forget(self, known: tuple[str, Key]) -> bytes | None:
        before = self._contents.pop(known, None)
        self._contents_bytes -= len(before) if before is not None else 0
        return before

    def _forget_contents(self) -> None:
        self._contents = {}
        self._contents_bytes = 0

    def _text(self, text: str) -> str:
        return text if self._mask is None else self._mask.text(text)

    def _subject(self, kind: int, subject: str) -> str:
        return self._mask.url(subject) if self._mask is not None and kind == GET else self._text(subject)


def clean(text: str) -> str:
    """The text without what UTF-8 has no bytes for."""
    return text.encode("utf-8", "replace").decode()


def _masked(mask: Mask, kind: int, subject: str, answer: bytes) -> bytes:
    if kind == READ:
        return mask.file(subject, answer)
    return mask.page(answer) if kind == GET else mask.data(answer)


def _masked_packed(mask: Mask, kind: int, answer: bytes) -> bytes:
    if kind == WAIT:
        uuid, event_kind, data = msgspec.msgpack.decode(answer)
        return pack((mask.text(uuid) if uuid is not None else None, event_kind, data))
    if kind == KERNEL_LINES:
        return pack([(at_s, mask.text(text)) for at_s, text in msgspec.msgpack.decode(answer)])
    return answer
