"""A recording made in a test: a recorder on a stepped clock, and the replay of what it wrote."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpumon.host.clock import ManualClock
from gpumon.record.chunks import Bounds
from gpumon.record.format import Reader
from gpumon.record.mask import Mask
from gpumon.record.recorder import Recorder
from gpumon.record.timeline import Recording

STARTED_S = 1000.0
UNIX_S = 1_800_000_000.0


class Tape:
    """``recorder`` and ``clock`` to record with; ``replay`` for a recording and a clock of its own."""

    def __init__(self, path: Path, mask: Mask | None = None, bounds: Bounds | None = None, **about: object) -> None:
        self.path = path
        self.clock = ManualClock(STARTED_S, UNIX_S)
        self.stops: list[str] = []
        self.mask = mask
        self.recorder = Recorder.create(
            path, self.clock, self.stops.append, about, mask=mask, bounds=bounds or Bounds()
        )

    def joined(self, stream: int = 1) -> Recorder:
        """The recorder of another process."""
        return Recorder.join(self.path, stream, self.clock, self.stops.append, mask=self.mask)

    def replay(self) -> tuple[Recording, ManualClock]:
        """Close, and read from the start."""
        self.recorder.close()
        return Recording(self.path), ManualClock(STARTED_S, UNIX_S)

    def unpacked(self) -> bytes:
        """Everything in the file, decompressed."""
        reader = Reader(self.path)
        return repr(reader.header).encode() + b"".join(chunk.payload for chunk in reader.chunks())


@contextmanager
def new_tape(mask: Mask | None = None, bounds: Bounds | None = None, **about: object) -> Iterator[Tape]:
    """A tape in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tape = Tape(Path(folder) / "tape", mask, bounds, **about)
        try:
            yield tape
        finally:
            tape.recorder.close()


def now_ns() -> int:
    return time.monotonic_ns()
