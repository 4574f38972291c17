"""Runs sources on their schedules, each in a thread of its own, and keeps account of their health.

A source that hangs stalls itself alone: its thread is stuck, its series expire, and ``gpumon_source_up`` says so.
One that fails loses its own series at once, so that nothing stale looks live.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gpumon.health import Health
from gpumon.host.clock import Clock
from gpumon.model import Item, Reason, Rejection, Sample, SourceError, apart

log = logging.getLogger(__name__)


class Source(Protocol):
    """One origin of samples. Holds no clock, thread, retry or exporter type; opens nothing when constructed."""

    name: str
    """Label value of gpumon_source_*."""

    def read(self, at_s: float) -> Iterable[Item]:
        """All there is to say at this moment: samples, misses and rejections.

        ``at_s``: steady seconds (CLOCK_MONOTONIC). One thing that fails is a Miss and its neighbours go on;
        SourceError only when nothing can be read at all.
        """
        ...


class Sink(Protocol):
    """Where samples go."""

    def put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None: ...

    def drop(self, owner: str) -> None: ...

    def count_rejections(self, rejections: Iterable[Rejection]) -> None: ...


@dataclass(slots=True, eq=False)
class _Entry:
    source: Source
    every_s: float
    deadline_s: float
    thread: threading.Thread | None = None
    reported_stuck: bool = field(default=False)


class Runner:
    """The schedule. ``add`` before ``start``."""

    def __init__(self, clock: Clock, sink: Sink, health: Health) -> None:
        self._clock = clock
        self._sink = sink
        self._health = health
        self._entries: list[_Entry] = []
        self._stop = threading.Event()
        self._told_bugs: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """Of the sources, as added."""
        return [entry.source.name for entry in self._entries]

    def add(self, source: Source, every_s: float, *, deadline_s: float | None = None) -> None:
        """Read the source every ``every_s``; a pass longer than ``deadline_s`` (3 cadences, 5 s at least) is stuck."""
        deadline_s = max(5.0, 3 * every_s) if deadline_s is None else deadline_s
        self._health.expect(source.name, deadline_s=deadline_s)
        self._entries.append(_Entry(source, every_s, deadline_s))

    def start(self) -> None:
        """A thread per source."""
        for entry in self._entries:
            entry.thread = threading.Thread(
                target=self._loop, args=(entry,), name=f"source-{entry.source.name}", daemon=True
            )
            entry.thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Ask all threads to end; one that hangs is left behind."""
        self._stop.set()
        end_s = self._clock.now_s() + timeout_s
        for entry in self._entries:
            if entry.thread is not None:
                entry.thread.join(max(0.0, end_s - self._clock.now_s()))

    def watch(self, at_s: float) -> None:
        """Look for passes past their deadline; counted once each."""
        stuck = set(self._health.stuck(at_s))
        for entry in self._entries:
            is_stuck = entry.source.name in stuck
            if is_stuck and not entry.reported_stuck:
                self._health.count_stuck(entry.source.name)
                self._sink.drop(entry.source.name)
            entry.reported_stuck = is_stuck

    def run_once(self, source: Source, every_s: float, at_s: float, elapsed: Callable[[], float]) -> None:
        """One pass at a given time. ``elapsed``: seconds since ``at_s``."""
        name = source.name
        self._health.began(name, at_s)
        try:
            samples, misses, rejections = apart(source.read(at_s))
            if self._stop.is_set():
                return  # a pass that outlived its runner: another one may be speaking for this source by now
            self._sink.put(name, at_s, samples, 3 * every_s + 2.0)
            self._sink.count_rejections(rejections)
        except SourceError as error:
            self._failed(name, elapsed(), error.reason, error.detail)
            return
        except Exception as error:  # the one loop around one source: a bug in it must not end the rest
            detail = repr(error)[:200]
            if self._told_bugs.get(name) != detail:  # the same one may come at every pass
                self._told_bugs[name] = detail
                log.exception("source=%s state=bug detail='said once, counted always'", name)
            self._failed(name, elapsed(), Reason.BUG, detail)
            return
        self._told_bugs.pop(name, None)
        self._health.succeeded(name, at_s, elapsed(), misses)

    def _failed(self, name: str, duration_s: float, reason: Reason, detail: str) -> None:
        if not self._stop.is_set():  # see run_once
            self._sink.drop(name)
            self._health.failed(name, duration_s, reason, detail)

    def _loop(self, entry: _Entry) -> None:
        clock = self._clock
        due_s = clock.now_s()
        while not self._stop.wait(max(0.0, due_s - clock.now_s())):
            at_s = clock.now_s()
            self.run_once(entry.source, entry.every_s, at_s, lambda at_s=at_s: clock.now_s() - at_s)  # type: ignore[misc]
            # The same grid for all sources: one waking of the machine serves several. Passes missed by a long one are
            # left out, not made up for.
            due_s = (clock.now_s() // entry.every_s + 1) * entry.every_s
