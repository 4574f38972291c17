"""Inference servers by their own metrics pages: queue, running batch, KV cache, preemptions, tokens, graph passes.

Reads the pages the configuration names, and those that ``server_discovery`` finds while their sockets listen; which
server each is of is recognised from its families (``server_names``).
Label ``endpoint`` is host:port of the address; ``model`` what the page says, else the ``model`` parameter of the
address (llama.cpp's router), else "". A page that cannot be had, or is of no known server, is a miss and
``server_up`` 0, and its neighbours go on.

A target that did not answer in time is asked again after those that did, one such target per pass, and a pass ends
after ``TIMEOUTS`` of those: so servers that hang delay the others by seconds at most, and only in the first pass.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs, urlsplit

from gpumon.catalogue import SERVER_MODELS, SERVER_UP
from gpumon.host.http import Http, HttpError
from gpumon.model import Item, Miss, Reason, Rejection, Sample, Unit
from gpumon.sources.gpu_state import CarryCounter
from gpumon.sources.server_discovery import NO_METRICS, Discovery, Port
from gpumon.sources.server_names import FAMILIES
from gpumon.sources.server_page import Page, Parser
from gpumon.sources.server_values import MAX_MODEL, Key, Parts, Values, recognise, values_of

log = logging.getLogger(__name__)

PAGE_BYTES = 8 << 20
"""Largest page; one of 16 engines has 1 MB."""
PROBE_BYTES = 2 << 20
"""Largest page of a port that is asked whether it has one."""
TIMEOUTS = 4
GONE = 16
"""Targets that are there no more, whose counters are remembered."""
MODELS = SERVER_MODELS
"""Of one target, those named first on the page."""
PARTS = 256
"""Parts of a counter remembered; of those past it that are no longer told only the sum is."""
UNKNOWN = "unknown"
_MOST = 1e18  # more tokens, requests or bytes than any server has seen
_REJECTIONS = 100


class _Total:
    """A counter in parts, each of which may start anew: never falls."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, ...], tuple[CarryCounter, float]] = {}
        self._gone = 0.0

    def feed(self, parts: Parts) -> float:
        """The total after these readings. Parts that are not told keep what they had."""
        for part, raw in parts.items():
            counter = self._parts[part][0] if part in self._parts else CarryCounter()
            self._parts[part] = counter, counter.feed(raw)
        if len(self._parts) > PARTS:
            for part in [part for part in self._parts if part not in parts]:
                self._gone += self._parts.pop(part)[1]
        return self._gone + sum(total for _, total in self._parts.values())


class _Target:
    """One page and what is remembered of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.endpoint, self._model = _endpoint(url)
        self.server = UNKNOWN
        self.is_slow = False
        self.is_up: bool | None = None
        self._totals: dict[Key, _Total] = {}
        self._summaries: dict[Key, tuple[_Total, _Total, float, float]] = {}

    @property
    def up(self) -> Iterator[Sample]:
        """Whether the page could be read the last time; nothing before the first time."""
        if self.is_up is not None:
            yield Sample(SERVER_UP, (self.server, self.endpoint), float(self.is_up))

    def samples(self, values: Values, rejected: Counter[Rejection]) -> Iterator[Sample]:
        found: dict[Key, float] = {**values.gauges}
        for key, parts in values.counters.items():
            found[key] = self._total(key).feed(_possible(key, parts, rejected))
        for key, (sums, counts) in values.summaries.items():
            mean = self._mean(key, _possible(key, sums, rejected), _possible(key, counts, rejected))
            if mean is not None:
                found[key] = mean
        models = [*{key.model: None for key in found}][:MODELS]
        for key, value in found.items():
            if key.model not in models:
                rejected[Rejection("server_model", Reason.OUT_OF_RANGE)] += 1
            elif not 0 <= value <= (1 if key.metric.unit is Unit.RATIO else _MOST):
                rejected[Rejection(key.metric.stem, Reason.OUT_OF_RANGE)] += 1
            else:
                labels = (self.server, key.model or self._model, self.endpoint)
                yield Sample(key.metric, (*labels, key.value) if key.value else labels, value)
        self._forget(models)

    def _total(self, key: Key) -> _Total:
        total = self._totals.get(key)
        if total is None:
            total = self._totals[key] = _Total()
        return total

    def _mean(self, key: Key, sums: Parts, counts: Parts) -> float | None:
        """Of what was observed since the page before; None where that is nothing."""
        before = self._summaries.get(key)
        of_sum, of_count = before[:2] if before is not None else (_Total(), _Total())
        total, count = of_sum.feed(sums), of_count.feed(counts)
        self._summaries[key] = of_sum, of_count, total, count
        if before is None or count <= before[3]:
            return None
        return (total - before[2]) / (count - before[3])

    def _forget(self, models: Sequence[str]) -> None:
        """Models that a target had before it had others, once there are too many."""
        kept = {key.model for key in (*self._totals, *self._summaries)}
        if len(kept) > 2 * MODELS:
            self._totals = {key: total for key, total in self._totals.items() if key.model in models}
            self._summaries = {key: each for key, each in self._summaries.items() if key.model in models}


class ServerSource:
    """Source ``servers``. Opens nothing when constructed."""

    name = "servers"

    def __init__(
        self, http: Http, urls: Sequence[str], *, timeout_s: float, discovery: Discovery | None = None
    ) -> None:
        """urls: pages. timeout_s: for each page, all of it. discovery: finds further ones."""
        self._http = http
        self._timeout_s = timeout_s
        self._discovery = discovery
        self._configured = [_Target(url) for url in dict.fromkeys(urls)]
        self._found: dict[str, _Target] = {}
        self._gone: dict[str, _Target] = {}
        self._parser = Parser(FAMILIES)
        self._next_slow = 0

    @property
    def _targets(self) -> list[_Target]:
        return [*self._configured, *self._found.values()]

    @property
    def ports(self) -> list[Port]:
        """What discovery knows of each port; nothing where it is off."""
        return self._discovery.ports() if self._discovery is not None else []

    def read(self, at_s: float) -> Iterator[Item]:
        if self._discovery is not None:
            self._discovery.follow(at_s)
            self._follow(self._discovery.urls)
        timeouts = 0
        rejected: Counter[Rejection] = Counter()
        asked = self._asked()
        for target in asked:
            if timeouts == TIMEOUTS:
                yield Miss(f"server {target.endpoint}", Reason.TIMEOUT, "not asked: others took the time")
                continue
            try:
                values = self._values(target, rejected)
                yield from target.samples(values, rejected)
                self._went(target, is_up=True, reason="")
            except HttpError as error:
                target.is_slow = error.reason is Reason.TIMEOUT
                timeouts += target.is_slow
                if self._discovery is not None and target.is_up and target.url in self._found:
                    self._discovery.look_soon()
                self._went(target, is_up=False, reason=str(error))
                yield Miss(f"server {target.endpoint}", error.reason, error.detail)
        for target in self._targets:
            if target not in asked:
                yield Miss(f"server {target.endpoint}", Reason.TIMEOUT, "not asked: it did not answer in time before")
            yield from target.up
        if self._discovery is not None:
            if timeouts < TIMEOUTS:
                self._discovery.ask(at_s, self._is_server)
            yield from self._discovery.samples()
            yield from self._discovery.misses()
        for rejection, count in rejected.items():
            yield from [rejection] * min(count, _REJECTIONS)

    def _follow(self, urls: Sequence[str]) -> None:
        """Have a target for each of these that discovery found, and for no other."""
        for url in [url for url in self._found if url not in urls]:
            target = self._gone[url] = self._found.pop(url)
            target.is_up, target.is_slow = None, False
            log.info("server=%s endpoint=%s state=gone", target.server, target.endpoint)
        for url in urls:
            if url not in self._found:
                self._found[url] = self._gone.pop(url) if url in self._gone else _Target(url)
        while len(self._gone) > GONE:
            del self._gone[next(iter(self._gone))]

    def _is_server(self, url: str) -> bool:
        page = self._http.get(url, timeout_s=self._timeout_s, limit=PROBE_BYTES)
        return recognise(self._parser.parse(page).families) is not None

    def _asked(self) -> list[_Target]:
        """Targets that answered the last time, then one of those that did not, each in its turn."""
        slow = [target for target in self._targets if target.is_slow]
        asked = [target for target in self._targets if not target.is_slow]
        if slow:
            self._next_slow += 1
            asked.append(slow[self._next_slow % len(slow)])
        return asked

    def _values(self, target: _Target, rejected: Counter[Rejection]) -> Values:
        page = self._parser.parse(self._http.get(target.url, timeout_s=self._timeout_s, limit=PAGE_BYTES))
        target.is_slow = False
        _count(page, rejected)
        server = recognise(page.families)
        if server is None:
            raise HttpError(Reason.UNAVAILABLE, NO_METRICS)
        target.server = server.name
        return values_of(server, page.families)

    def _went(self, target: _Target, *, is_up: bool, reason: str) -> None:
        if target.is_up is not is_up:
            state = "up" if is_up else "down"
            log.log(
                logging.INFO if is_up else logging.WARNING,
                "server=%s endpoint=%s state=%s reason=%r",
                *(target.server, target.endpoint, state, reason),
            )
        target.is_up = is_up


def _possible(key: Key, parts: Parts, rejected: Counter[Rejection]) -> Parts:
    """Readings that a counter can have: one that cannot be would spoil its total for good."""
    possible = {part: raw for part, raw in parts.items() if 0 <= raw <= _MOST}
    if len(possible) < len(parts):
        rejected[Rejection(key.metric.stem, Reason.OUT_OF_RANGE)] += len(parts) - len(possible)
    return possible


def _count(page: Page, rejected: Counter[Rejection]) -> None:
    for field, reason, count in (
        ("server_line", Reason.MALFORMED, page.malformed),
        ("server_line", Reason.OUT_OF_RANGE, page.dropped),
        ("server_value", Reason.OUT_OF_RANGE, page.not_finite),
    ):
        if count:
            rejected[Rejection(field, reason)] += count


def _endpoint(url: str) -> tuple[str, str]:
    """host:port of an address, and its ``model`` parameter."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return "invalid", ""
    model = parse_qs(parts.query).get("model", [""])[0][:MAX_MODEL]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", model
