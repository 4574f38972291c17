"""Answers scrapes with bytes that are ready, and renders them anew only when there is something new to say.

A page serves until the data changed and it is older than ``min_interval_s``; a page of which a batch expired serves
no longer. Whoever finds no page that serves renders one, in its own thread; those who come meanwhile wait for it and
share it. So the event loop should ask ``ready`` first, and only when that has nothing call ``scrape`` in a worker
thread. ``refresh``, called in a worker thread after a sweep, renders ahead for scrapers that came lately.

Nothing here reads a source: a sick GPU is missing from the page, it does not delay or fail it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

from gpumon.export.negotiate import Choice, choose
from gpumon.export.text import Format, Page
from gpumon.store import View


class Response(NamedTuple):
    """An HTTP answer, as ASGI wants it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Snapshot:
    page: Page
    view: View
    expires_at_s: float

    def serves(self, at_s: float, min_interval_s: float) -> bool:
        return at_s < self.view.at_s + min_interval_s and at_s <= self.expires_at_s


class ScrapeCache:
    """The pages of one set of names. Every method may be called from any thread."""

    def __init__(
        self,
        view: Callable[[float], View],
        render: Callable[[View], Page],
        *,
        min_interval_s: float = 1.0,
        watched_s: float = 60.0,
        text_only: bool = False,
    ) -> None:
        """view: what is true at a time, such as ``Store.view``; render: called by one thread at a time.

        min_interval_s: least age of a page before it is replaced; watched_s: how long after a scrape ``refresh``
        still renders ahead. text_only: never OpenMetrics, for names that it forbids.
        """
        self._view = view
        self._render = render
        self._min_interval_s = min_interval_s
        self._watched_s = watched_s
        self._text_only = text_only
        self._lock = threading.Lock()
        self._snapshot: _Snapshot | None = None
        self._asked_at_s: dict[tuple[Format, bool], float] = {}
        """When each form was last asked for: at most four."""

    def ready(self, accept: str | None, accept_encoding: str | None, at_s: float) -> Response | None:
        """The answer if its bytes exist and still serve; never renders, compresses or waits."""
        choice = choose(accept, accept_encoding, text_only=self._text_only)
        snapshot = self._snapshot
        if snapshot is None or not snapshot.serves(at_s, self._min_interval_s):
            return None
        body = snapshot.page.ready(choice.form, compressed=choice.compressed)
        if body is None:
            return None
        self._asked_at_s[choice.form, choice.compressed] = at_s
        return _response(choice, body)

    def scrape(self, accept: str | None, accept_encoding: str | None, at_s: float) -> Response:
        """The answer, rendered now if need be: milliseconds, so not on an event loop. Headers: None when absent."""
        choice = choose(accept, accept_encoding, text_only=self._text_only)
        self._asked_at_s[choice.form, choice.compressed] = at_s
        page = self._current(at_s)
        return _response(choice, page.body(choice.form, compressed=choice.compressed))

    def refresh(self, at_s: float) -> bool:
        """Render ahead the forms asked for in the last ``watched_s``; False when none was, and nothing was done."""
        wanted = [form for form, asked_at_s in self._asked_at_s.copy().items() if at_s - asked_at_s <= self._watched_s]
        if wanted:
            page = self._current(at_s)
            for form, compressed in wanted:
                page.body(form, compressed=compressed)
        return bool(wanted)

    def _current(self, at_s: float) -> Page:
        snapshot = self._snapshot
        if snapshot is not None and snapshot.serves(at_s, self._min_interval_s):
            return snapshot.page
        with self._lock:
            snapshot = self._snapshot
            if snapshot is not None and snapshot.serves(at_s, self._min_interval_s):
                return snapshot.page
            view = self._view(at_s)
            page = snapshot.page if snapshot is not None and _same(snapshot.view, view) else self._render(view)
            expires_at_s = min((batch.expires_at_s for batch in view.batches.values()), default=float("inf"))
            self._snapshot = _Snapshot(page, view, expires_at_s)
            return page


def _same(one: View, other: View) -> bool:
    return one.batches.keys() == other.batches.keys() and all(
        batch is other.batches[owner] for owner, batch in one.batches.items()
    )


def _response(choice: Choice, body: bytes) -> Response:
    headers = [
        (b"content-type", choice.content_type.encode("ascii")),
        (b"content-length", str(len(body)).encode("ascii")),
        (b"vary", b"accept, accept-encoding"),
    ]
    if choice.compressed:
        headers.append((b"content-encoding", b"gzip"))
    return Response(HTTPStatus.OK, headers, body)
