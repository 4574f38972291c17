"""The flight recorder: when an incident opens, the minutes around it go to a file.

Two sources of the runner, so that a disk that hangs costs recordings, and neither the memory of what was nor the
detection: ``FlightMemory`` takes the store's view into ``Past`` once a second; ``FlightRecorder`` hears of incidents
(a note in a bounded list, no more) and does all writing in its own passes.

A recording begins with all that the two pasts hold and goes on until ``after_s`` past the incident's opening, or
CLOSED_S past its closing if that is sooner. An incident that opens within JOIN_S of a recording's beginning, or when
no further recording may run (MOST_RUNNING), is recorded in the newest one that runs, which then lasts for it too, up
to twice ``after_s`` in all; MOST_INCIDENTS are listed in one recording. Further ones are counted as skipped.

When an incident of a recording that has ended closes later, what it came to and what was CLOSED_S around its closing
are added to the file, if it is still there and has room; MOST_ENDED recordings wait for that, as long as gpumon runs.

A write that fails ends that recording, whose file stays as far as it can be read; it is counted, and a miss of the
source until a write succeeds. While writing does not work it is tried every RETRY_S. Nothing is synced: a crash of the
machine may take the last seconds that were written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.model import Item, Miss, Reason, Sample
from gpumon.record.fast_past import FastPast, FastRows
from gpumon.record.flight_file import MOST_INCIDENTS, Appender, FlightFile, header
from gpumon.record.flight_folder import FlightFolder
from gpumon.record.flight_running import CLOSED_S, Recording, over_s
from gpumon.record.format import FormatError, Writer
from gpumon.record.past import Chunk, Past
from gpumon.store import View

log = logging.getLogger(__name__)

JOIN_S = 10.0
APPEND_S = 10.0
"""What follows is written this often."""
RETRY_S = 30.0
MOST_ENDED = 64
_FIRST_SHARE = 0.75
"""Of a file, for what was before."""
_SIZE_S = 10.0
"""How often the folder is looked through for its size."""
_INBOX = 256
_STOP_S = 2.0
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)

Create = Callable[[Path, Mapping[str, object]], Appender]
"""Begins a file with this header. Raises OSError."""
Reopen = Callable[[Path], Appender]
"""Goes on with a file. Raises OSError, FormatError."""


class FlightMemory:
    """Takes what is now into what was; a source without samples, once a second."""

    name = "flight"

    def __init__(self, view: Callable[[float], View], past: Past) -> None:
        """view: the store at a moment, steady seconds."""
        self._view = view
        self._past = past

    def read(self, at_s: float) -> list[Item]:
        """Take the view of this moment."""
        self._past.add(self._view(at_s))
        return []


class FlightRecorder:
    """Listener of incidents, and a source: ``read`` once a second. ``opened`` and ``closed`` from any thread."""

    name = "flight_files"

    def __init__(
        self,
        past: Past,
        fast_past: FastPast,
        folder: FlightFolder,
        to_unix: Callable[[float], float],
        *,
        after_s: float,
        file_bytes: int,
        create: Create = Writer.create,
        reopen: Reopen = Writer.open_append,
    ) -> None:
        """to_unix: of steady seconds. file_bytes: most of one recording; its oldest part is left out first."""
        self._past = past
        self._fast_past = fast_past
        self._folder = folder
        self._to_unix = to_unix
        self._after_s = after_s
        self._file_bytes = file_bytes
        self._create = create
        self._reopen = reopen
        self._lock = threading.Lock()
        """Over the two that follow, held for a moment."""
        self._inbox: list[tuple[Incident, float]] = []
        self._counts = dict.fromkeys(catalogue.FLIGHT_RECORDINGS.values, 0)
        self._step_lock = threading.Lock()
        """A pass that outlived a reload may still run. What follows is under it."""
        self._running: list[Recording] = []
        self._ended: deque[Recording] = deque(maxlen=MOST_ENDED)
        """Those with incidents that were open then."""
        self._appended_s = -math.inf
        """When what followed was last written to those that run."""
        self._is_ok: bool | None = None
        """None before anything was tried."""
        self._failure: Miss | None = None
        self._tried_s = 0.0
        self._folder_bytes: int | None = None
        self._sized_s = 0.0

    # --- incidents --------------------------------------------------------------------------------------------------

    def opened(self, incident: Incident, at_s: float) -> None:
        """Take note of it."""
        with self._lock:
            is_full = len(self._inbox) >= _INBOX
            if not is_full:
                self._inbox.append((incident, at_s))
        if is_full:
            self._count("skipped")

    def closed(self, incident: Incident, at_s: float) -> None:
        """Nothing to take note of: the incident tells itself, at the next pass."""

    # --- passes -----------------------------------------------------------------------------------------------------

    def read(self, at_s: float) -> list[Item]:
        """Begin, go on with and end recordings; then what there is to say about it."""
        with self._step_lock:
            with self._lock:
                new, self._inbox = self._inbox, []
            for incident, heard_s in new:
                self._take(incident, heard_s, at_s)
            self._go_on(at_s)
            if self._is_ok is None or (not self._is_ok and at_s - self._tried_s >= RETRY_S):
                self._probe(at_s)
            return list(self._items(at_s))

    def stop(self, at_s: float) -> None:
        """gpumon ends, and so do the recordings that run, as far as they are."""
        if not self._step_lock.acquire(timeout=_STOP_S):
            return  # a pass hangs in the disk; what is in its file can be read
        try:
            for recording in list(self._running):
                self._end(recording, at_s, "stopped")
        finally:
            self._step_lock.release()

    def _take(self, incident: Incident, heard_s: float, at_s: float) -> None:
        if incident.restored and (earlier := self._folder.find(incident.id)):
            incident.recording = earlier
            return
        newest = self._running[-1] if self._running else None
        if newest is None or (heard_s - newest.started_s > JOIN_S and len(self._running) < self._folder.most_running):
            self._begin(incident, heard_s, at_s)
        elif len(newest.incidents) < MOST_INCIDENTS:
            newest.add(incident, heard_s)
        else:
            self._count("skipped")

    def _begin(self, incident: Incident, heard_s: float, at_s: float) -> None:
        try:
            self._folder.make()
            self._count("removed", self._folder.make_room([recording.path.name for recording in self._running]))
            path = self._folder.free_path(incident.id)
            out = self._create(path, header(at_s, self._to_unix))
        except OSError as error:
            self._failed(error, at_s)
            return
        recording = Recording(path, FlightFile(out, self._file_bytes), at_s)
        self._running.append(recording)
        try:
            recording.file.incidents([incident])
            recording.add(incident, heard_s)
            recording.is_told = True
            self._past.seal()
            chunks, fast = self._past.chunks(), self._fast_past.after({})
            recording.file.begin(chunks, fast, int(self._file_bytes * _FIRST_SHARE))
            self._note(recording, chunks, fast)
        except OSError as error:
            self._failed(error, at_s, recording)
            if not incident.recording:  # it tells of nobody
                with contextlib.suppress(OSError):
                    path.unlink()
            return
        log.info("flight-recorder=recording incident=%s path=%r", incident.id, str(path))

    def _go_on(self, at_s: float) -> None:
        for recording in list(self._running):
            if at_s >= recording.end_s(self._after_s):
                self._end(recording, at_s, "complete")
        if self._running and at_s - self._appended_s >= APPEND_S:
            self._appended_s = at_s
            self._past.seal()  # once for all recordings: small chunks are large
            for recording in list(self._running):
                try:
                    self._append(recording)
                except OSError as error:
                    self._failed(error, at_s, recording)
        for recording in list(self._ended):
            ends_s = [over_s(incident) for incident in recording.open]
            first_s = min(ends_s)
            if at_s >= first_s:
                pairs = zip(recording.open, ends_s, strict=True)
                recording.open = [incident for incident, end_s in pairs if at_s < end_s]
                self._tell_end(recording, first_s, at_s)

    def _tell_end(self, recording: Recording, first_s: float, at_s: float) -> None:
        """Add to a recording that has ended what became of its incidents; the first of them was over at ``first_s``."""
        if not recording.open:
            self._ended.remove(recording)
        file = recording.file
        try:
            file.reopen(self._reopen(recording.path))
            running = [each.path.name for each in self._running]
            self._count("removed", self._folder.make_room([*running, recording.path.name], 0))
            self._past.seal()
            since_s = first_s - 2 * CLOSED_S
            chunks = [chunk for chunk in self._past.chunks(recording.chunk) if chunk.last_s >= since_s]
            file.go_on(chunks, ())
            self._note(recording, chunks, [])
            file.incidents(recording.incidents, is_last=True)
            file.end("complete", at_s)
        except (FileNotFoundError, FormatError):  # made room for others, or is no longer what it was
            self._forget(recording)
        except OSError as error:
            self._tried_s = at_s
            self._fails(error)
            self._forget(recording)

    def _forget(self, recording: Recording) -> None:
        """Let go of a recording that has ended."""
        if recording in self._ended:
            self._ended.remove(recording)
        with contextlib.suppress(OSError):
            recording.file.close()

    def _append(self, recording: Recording) -> None:
        chunks, fast = self._past.chunks(recording.chunk), self._fast_past.after(recording.fast_s)
        recording.tell()
        recording.file.go_on(chunks, fast)
        self._note(recording, chunks, fast)

    def _note(self, recording: Recording, chunks: list[Chunk], fast: list[FastRows]) -> None:
        recording.chunk = max([recording.chunk, *(chunk.number for chunk in chunks)])
        recording.fast_s |= {gpu.uuid: float(gpu.rows[-1, 0]) for gpu in fast}
        self._sized_s = -math.inf

    def _end(self, recording: Recording, at_s: float, reason: str) -> None:
        try:
            self._past.seal()
            self._append(recording)
            recording.open = [incident for incident in recording.incidents if incident.closed_s is None]
            recording.file.incidents(recording.incidents, is_last=True)
            recording.file.end(reason, at_s)
            if not os.path.lexists(recording.path):
                raise FileNotFoundError(errno.ENOENT, "it was removed while it was written")
        except OSError as error:
            self._failed(error, at_s, recording)
            return
        self._running.remove(recording)
        if recording.open:
            self._ended.append(recording)
        self._count("written")
        self._works()

    # --- whether it works ---------------------------------------------------------------------------------------------

    def _probe(self, at_s: float) -> None:
        self._tried_s = at_s
        try:
            self._folder.probe()
        except OSError as error:
            self._fails(error)
        else:
            self._works()

    def _failed(self, error: OSError, at_s: float, recording: Recording | None = None) -> None:
        """A recording could not be made, or not be made to its end."""
        self._tried_s = at_s
        self._count("failed")
        self._fails(error)
        if recording is not None:
            self._running.remove(recording)
            with contextlib.suppress(OSError):  # closing may tell once more what writing told
                recording.file.close()

    def _fails(self, error: OSError) -> None:
        self._is_ok = False
        reason = Reason.DENIED if error.errno in _DENIED else Reason.UNAVAILABLE
        self._failure = Miss(str(self._folder.path), reason, error.strerror or str(error))

    def _works(self) -> None:
        self._is_ok, self._failure = True, None

    def _count(self, outcome: str, by: int = 1) -> None:
        with self._lock:
            self._counts[outcome] += by

    def _items(self, at_s: float) -> Iterator[Item]:
        if self._failure is not None:
            yield self._failure
        yield Sample(catalogue.FLIGHT_OK, (), float(self._is_ok is True))
        with self._lock:
            counts = dict(self._counts)
        for outcome, count in counts.items():
            yield Sample(catalogue.FLIGHT_RECORDINGS, (outcome,), float(count))
        memory = self._past.size_bytes + self._fast_past.size_bytes
        yield Sample(catalogue.FLIGHT_BYTES, ("memory",), float(memory))
        if at_s - self._sized_s >= _SIZE_S:
            self._sized_s = at_s
            try:
                self._folder_bytes = self._folder.size_bytes()
            except OSError:
                self._folder_bytes = None  # not known; that it does not work is told by the rest
        if self._folder_bytes is not None:
            yield Sample(catalogue.FLIGHT_BYTES, ("folder",), float(self._folder_bytes))
