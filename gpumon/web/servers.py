"""Every model that is served, as the JSON API says it: what its requests tell, what its metrics pages tell, its GPUs.

Reads a view of the store, the latency windows of ``requests.statistics``, the open incidents and, where there is
explanation, its groups and second tracks. Replicas of a model on this node are one server: their pages cannot be told
apart from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.explain.group import Group
from gpumon.model import Distribution, Metric
from gpumon.requests.logbuckets import quantiles
from gpumon.requests.windows import Row, Signal
from gpumon.store import View
from gpumon.web.gpus import OpenIncident, open_incident
from gpumon.web.past import rate
from gpumon.web.said import Said, Series, rounded

Pair = tuple[str, str]
_QUANTILES: Final = (0.5, 0.95, 0.99)


class Latency(Said):
    """Since ``window_from``. Quantiles are at most 2.2 % off; null without observations."""

    count: int = Field(description="Observations: first tokens, or gaps between tokens.")
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None


class Page(Said):
    """What a server's own metrics page says. Rates are of the last minute."""

    server: str
    model: str = Field(description="As the page names it; empty where it names none, or cannot be read.")
    endpoint: str
    up: bool = Field(description="It could be read the last time.")
    running: float | None
    waiting: float | None
    kv_usage: float | None = Field(description="Share of the KV cache's blocks in use.")
    kv_capacity_tokens: float | None
    tokens_per_second: float | None
    prompt_tokens_per_second: float | None
    preemptions_per_second: float | None


class ServerGpu(Said):
    """A GPU that requests ran on."""

    gpu: str | None = Field(description="Index; null where it is not known any more.")
    uuid: str


class Server(Said):
    """A kind of server and a model, with all replicas on this node."""

    server: str
    model: str
    tokens_per_second: float | None = Field(description="Made, of requests that ended in the last minute.")
    prompt_tokens_per_second: float | None
    requests_per_second: float | None = Field(description="That ended in the last minute.")
    errors_per_second: float | None = Field(description="Likewise, with the outcome error.")
    requests_open: float | None = Field(description="Known to be open; null where it only tells of those that ended.")
    time_to_first_token: Latency
    inter_token: Latency
    pages: list[Page]
    running: float | None = Field(description="Of all pages together.")
    waiting: float | None
    kv_usage: float | None = Field(description="The highest of all pages.")
    gpus: list[ServerGpu] = Field(description="Empty where it is not known.")
    late_seconds_per_second: float | None = Field(
        description="By which tokens were late, in the last minute; null where nothing was explained yet."
    )
    causes: dict[str, float] | None = Field(description="Of these, by cause, the largest first.")
    incidents: list[OpenIncident] = Field(description="Open ones of this server.")
    history: Series | None = Field(default=None, description="Null unless asked for.")


class Servers(Said):
    """All of them."""

    at: float = Field(description="Unix seconds.")
    window_from: float = Field(description="Since when the latencies are: one to two minutes ago. Unix seconds.")
    servers: list[Server]


class Known(NamedTuple):
    """What there is beside the view."""

    rows: Sequence[tuple[Pair, Row]]
    """Of one ladder, of the minute under way and the one before."""
    window_s: float
    """Start of these, steady."""
    groups: Sequence[Group]
    late: Callable[[str, str], Mapping[str, float] | None]
    """Seconds lost each second, by cause, the largest first, of a server and model; None where it is not known."""


def servers(view: View, known: Known, incidents: Iterable[Incident], to_unix: Callable[[float], float]) -> Servers:
    """incidents: those that are kept, or the open ones."""
    pages = _pages(view)
    pairs = list(dict.fromkeys(sample.labels[:2] for sample in view.family(catalogue.REQUESTS)))
    taken: set[tuple[str, ...]] = set()
    latencies = _latencies(known.rows)
    opened = [each for each in incidents if each.is_open and each.entity.scope == "server"]
    found = []
    for pair in pairs:
        mine = [labels for labels in pages if is_page(pair, labels)]
        taken.update(mine)
        found.append(_server(view, (pair[0], pair[1]), mine, latencies, known, opened, to_unix))
    rest: dict[Pair, list[tuple[str, ...]]] = {}
    for labels in pages:
        if labels not in taken:
            rest.setdefault((labels[0], labels[1]), []).append(labels)
    found += [_server(view, pair, mine, latencies, known, opened, to_unix) for pair, mine in rest.items()]
    shown = [server for server in found if server.model or _is_at_work(server)]
    return Servers(at=to_unix(view.at_s), window_from=to_unix(known.window_s), servers=shown)


def _is_at_work(server: Server) -> bool:
    """Of requests that named no model the counters stay for as long as gpumon runs: without any in the last minutes
    they are of nothing that could be looked at."""
    latest = server.time_to_first_token.count or server.inter_token.count or server.requests_open
    return bool(server.pages or server.incidents or latest) or server.requests_per_second != 0.0


def is_page(pair: tuple[str, ...], page: tuple[str, ...]) -> bool:
    """Whether a page (server, model, endpoint) tells of this server: by its model, else by its kind."""
    return page[1] == pair[1] if page[1] else page[0] == pair[0]


def _pages(view: View) -> list[tuple[str, ...]]:
    """Labels of what pages tell; of one that cannot be read, without a model."""
    named = list(
        dict.fromkeys(
            sample.labels[:3]
            for metric in (catalogue.SERVER_RUNNING, catalogue.SERVER_WAITING, catalogue.SERVER_TOKENS)
            for sample in view.family(metric)
        )
    )
    there = {(server, endpoint) for server, _, endpoint in named}
    silent = [sample.labels for sample in view.family(catalogue.SERVER_UP) if sample.labels not in there]
    return named + [(server, "", endpoint) for server, endpoint in silent]


def _server(
    view: View,
    pair: Pair,
    labels: Sequence[tuple[str, ...]],
    latencies: dict[tuple[Pair, Signal], NDArray[np.int64]],
    known: Known,
    opened: Sequence[Incident],
    to_unix: Callable[[float], float],
) -> Server:
    pages = [_page(view, of) for of in labels]
    names = {f"{server}/{pair[1]}" for server in (pair[0], *(page.server for page in pages))}
    late = known.late(*pair)
    outcomes = [rate(view, catalogue.REQUESTS, (*pair, outcome)) for outcome in catalogue.REQUEST_OUTCOMES]
    return Server(
        server=pair[0],
        model=pair[1],
        tokens_per_second=rounded(rate(view, catalogue.TOKENS, (*pair, "completion")), 3),
        prompt_tokens_per_second=rounded(rate(view, catalogue.TOKENS, (*pair, "prompt")), 3),
        requests_per_second=rounded(_sum(outcomes), 4),
        errors_per_second=rounded(rate(view, catalogue.REQUESTS, (*pair, "error")), 4),
        requests_open=_number(view, catalogue.REQUESTS_OPEN, pair),
        time_to_first_token=_latency(latencies.get((pair, Signal.FIRST_TOKEN))),
        inter_token=_latency(latencies.get((pair, Signal.INTER_TOKEN))),
        pages=pages,
        running=_sum([page.running for page in pages]),
        waiting=_sum([page.waiting for page in pages]),
        kv_usage=max([page.kv_usage for page in pages if page.kv_usage is not None], default=None),
        gpus=_gpus(view, pair, known.groups),
        late_seconds_per_second=rounded(sum(late.values()), 4) if late is not None else None,
        causes={cause: round(seconds, 4) for cause, seconds in late.items()} if late is not None else None,
        incidents=[open_incident(each, to_unix) for each in opened if each.entity.name.partition(" at ")[0] in names],
    )


def _page(view: View, of: tuple[str, ...]) -> Page:
    server, model, endpoint = of
    return Page(
        server=server,
        model=model,
        endpoint=endpoint,
        up=view.value(catalogue.SERVER_UP, (server, endpoint)) == 1.0,
        running=_number(view, catalogue.SERVER_RUNNING, of),
        waiting=_number(view, catalogue.SERVER_WAITING, of),
        kv_usage=rounded(_number(view, catalogue.SERVER_KV_USAGE, of), 4),
        kv_capacity_tokens=_number(view, catalogue.SERVER_KV_CAPACITY, of),
        tokens_per_second=rounded(rate(view, catalogue.SERVER_TOKENS, (*of, "generation")), 3),
        prompt_tokens_per_second=rounded(rate(view, catalogue.SERVER_TOKENS, (*of, "prompt")), 3),
        preemptions_per_second=rounded(rate(view, catalogue.SERVER_PREEMPTIONS, of), 4),
    )


def _latencies(rows: Sequence[tuple[Pair, Row]]) -> dict[tuple[Pair, Signal], NDArray[np.int64]]:
    sums: dict[tuple[Pair, Signal], NDArray[np.int64]] = {}
    for pair, row in rows:
        before = sums.get((pair, row.signal))
        sums[pair, row.signal] = row.counts if before is None else before + row.counts
    return sums


def _latency(counts: NDArray[np.int64] | None) -> Latency:
    if counts is None or not counts.any():
        return Latency(count=0, p50_seconds=None, p95_seconds=None, p99_seconds=None)
    p50_s, p95_s, p99_s = quantiles(counts[None], _QUANTILES)[0].tolist()
    return Latency(
        count=int(counts.sum()),
        p50_seconds=round(p50_s, 6),
        p95_seconds=round(p95_s, 6),
        p99_seconds=round(p99_s, 6),
    )


def _gpus(view: View, pair: Pair, groups: Sequence[Group]) -> list[ServerGpu]:
    indices = {sample.labels[1]: sample.labels[0] for sample in view.family(catalogue.GPU_PRESENT)}
    uuids = dict.fromkeys(uuid for group in groups if (group.server, group.model) == pair for uuid in group.gpus)
    found = [ServerGpu(gpu=indices.get(uuid), uuid=uuid) for uuid in uuids]
    return sorted(found, key=lambda each: (each.gpu is None, len(each.gpu or ""), each.gpu or "", each.uuid))


def _number(view: View, metric: Metric, labels: tuple[str, ...]) -> float | None:
    value = view.value(metric, labels)
    return None if isinstance(value, Distribution) else value


def _sum(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) if there else None
