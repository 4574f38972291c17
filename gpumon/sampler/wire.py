"""Messages between the sampler process and the main process: whole, bounded, never waited for.

A SOCK_SEQPACKET pair keeps message borders. The sampler never blocks on it: what does not fit is dropped and
counted, and the count is the next message's. Bodies are ``marshal`` of plain tuples (both ends are the same
interpreter and the same release; nothing from outside travels here).
"""

from __future__ import annotations

import errno
import marshal
import socket
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from gpumon.catalogue import METRICS
from gpumon.model import Distribution, Item, Miss, Reason, Rejection, Sample, apart

MAX_MESSAGE = 1 << 20
_INDEX = {metric: i for i, metric in enumerate(METRICS)}


class Batch(NamedTuple):
    """One pass of one source over one entity."""

    source: str
    """Label value of gpumon_source_*."""
    owner: str
    """What the batch replaces in the store."""
    at_s: float
    ttl_s: float
    duration_s: float | None
    """None where it is not measured."""
    samples: list[Sample]
    misses: list[Miss]
    rejections: list[Rejection]


class Messages(Protocol):
    """Where the sampler's messages go: to another process, or straight to who hears them."""

    def send(self, kind: str, *body: Any) -> bool: ...  # noqa: ANN401 - plain values, whatever marshal takes


class Channel:
    """One end of the pair. ``send`` may be called from any thread, ``receive`` from one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()  # over the count: held for a send that does not wait
        self._dropped = 0
        self._buffer = bytearray(0)

    def fileno(self) -> int:
        """For select; -1 once closed."""
        return self._socket.fileno()

    def send(self, kind: str, *body: Any) -> bool:  # noqa: ANN401 - plain values, whatever marshal takes
        """Send without waiting; False if the message was dropped. Raises BrokenPipeError when the other end is gone."""
        with self._lock:
            data = marshal.dumps((kind, self._dropped, body))
            try:
                if len(data) > MAX_MESSAGE:  # the receiver would get a part of it
                    raise OSError(errno.EMSGSIZE, "too long")
                self._socket.send(data, socket.MSG_DONTWAIT)
            except ConnectionError as error:
                raise BrokenPipeError from error
            except OSError:  # EAGAIN, EMSGSIZE, ENOBUFS
                self._dropped += 1
                return False
            self._dropped = 0
            return True

    def receive(self, *, wait: bool = True) -> tuple[str, int, tuple[Any, ...]] | None:
        """The next message: its kind, how many were dropped before it, its body. None when the other end is gone.

        Raises BlockingIOError when there is none and ``wait`` is off.
        """
        if not self._buffer:
            self._buffer = bytearray(MAX_MESSAGE)  # kept: a new one for each message would be mapped anew each time
        try:
            size = self._socket.recv_into(self._buffer, 0, 0 if wait else socket.MSG_DONTWAIT)
        except ConnectionError:
            return None
        if not size:
            return None
        message: tuple[str, int, tuple[Any, ...]] = marshal.loads(memoryview(self._buffer)[:size])  # noqa: S302 - from our own child, see above
        return message

    def close(self) -> None:
        """Close this end; the other sees its end."""
        self._socket.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair with room for a node's slow pass."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (left, right):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE)
    return left, right


def pack_batch(batch: Batch) -> tuple[Any, ...]:
    """The batch as plain values."""
    return (
        batch.source,
        batch.owner,
        batch.at_s,
        batch.ttl_s,
        batch.duration_s,
        [
            (_INDEX[s.metric], s.labels, tuple(s.value) if isinstance(s.value, tuple) else s.value)
            for s in batch.samples
        ],
        [(what, str(reason), detail) for what, reason, detail in batch.misses],
        [(field, str(reason)) for field, reason in batch.rejections],
    )


def send_batch(
    channel: Messages, source: str, owner: str, at_s: float, every_s: float, took_s: float | None, items: Iterable[Item]
) -> None:
    """Send what one pass yielded. It is believed for three times its cadence."""
    channel.send("batch", *pack_batch(Batch(source, owner, at_s, 3 * every_s, took_s, *apart(items))))


def unpack_batch(body: tuple[Any, ...]) -> Batch:
    """The inverse of ``pack_batch``."""
    source, owner, at_s, ttl_s, duration_s, samples, misses, rejections = body
    return Batch(
        source,
        owner,
        at_s,
        ttl_s,
        duration_s,
        [
            Sample(METRICS[i], labels, Distribution(*value) if isinstance(value, tuple) else value)
            for i, labels, value in samples
        ],
        [Miss(what, Reason(reason), detail) for what, reason, detail in misses],
        [Rejection(field, Reason(reason)) for field, reason in rejections],
    )
