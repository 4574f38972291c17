"""What the JSON API's answers are made of: one place that knows the store, the windows, incidents and explanation.

Handlers run in worker threads; everything asked here may be asked from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.explain.diagnosing import diagnose_since
from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.explain.engine import Explanation
from gpumon.explain.group import Group
from gpumon.explain.latency_tracks import SIGNALS
from gpumon.requests.statistics import RequestStatistics
from gpumon.requests.windows import Ladder, Signal
from gpumon.store import View
from gpumon.web import bound as bounds
from gpumon.web import gpus as boards
from gpumon.web import heatmap as heat
from gpumon.web import node_state, request_list
from gpumon.web import servers as served
from gpumon.web import timeline as lanes
from gpumon.web.activity import Activity
from gpumon.web.gpu_history import gpu_history
from gpumon.web.live import Snapshot
from gpumon.web.past import Points
from gpumon.web.questions import SINCE_MAX_S, DiagnoseQuery
from gpumon.web.server_history import server_history

_OF_TRACE = 256
"""Requests of a trace that are looked at: an agent's may have thousands."""
_TOKEN_P95 = SIGNALS.index("inter_token_p95")


class Knowledge(NamedTuple):
    """See the module. None: a part that is switched off."""

    view: Callable[[float], View]
    """The store at a steady second."""
    now_s: Callable[[], float]
    to_unix: Callable[[float], float]
    facts: node_state.Facts
    incidents: Callable[[], Sequence[Incident]]
    """Those kept, newest first."""
    activity: Activity
    statistics: RequestStatistics | None = None
    explanation: Explanation | None = None

    # --- now --------------------------------------------------------------------------------------------------------

    def node(self) -> node_state.Node:
        return node_state.node(self.view(self.now_s()), self.facts, self.to_unix)

    def gpus(self, wanted: boards.Wanted, history_s: float) -> boards.Gpus:
        """history_s: 0: none."""
        view = self.view(self.now_s())
        found = boards.gpus(view, self.incidents(), self.to_unix, wanted)
        if history_s > 0.0:
            for gpu in found.gpus:
                gpu.history = gpu_history(view, (gpu.gpu, gpu.uuid), history_s, self.to_unix, self.facts.publish_s)
        return found

    def servers(self, history_s: float) -> served.Servers:
        """history_s: 0: none."""
        view = self.view(self.now_s())
        found = self._servers(view)
        if history_s > 0.0:
            for server in found.servers:
                pair = (server.server, server.model)
                labels = [(page.server, page.model, page.endpoint) for page in server.pages]
                server.history = server_history(view, pair, labels, self._tracks(pair), history_s, self.to_unix)
        return found

    def snapshot(self, at_s: float) -> Snapshot:
        """For the stream."""
        view = self.view(at_s)
        incidents = [each for each in self.incidents() if each.is_open]
        found = boards.gpus(view, incidents, self.to_unix, boards.Wanted(processes=False))
        return Snapshot(
            at=found.at,
            nvml=node_state.nvml(view),
            gpus=found.gpus,
            servers=self._servers(view).servers,
            incidents=len(incidents),
        )

    def _servers(self, view: View) -> served.Servers:
        window_s = heat.first_minute_s(view.at_s, 2)
        rows = self.statistics.rows(window_s, view.at_s, Ladder.CONCURRENCY) if self.statistics is not None else []
        known = served.Known(rows, window_s, self._groups(), self.activity.lateness.of)
        return served.servers(view, known, self.incidents(), self.to_unix)

    def _groups(self) -> list[Group]:
        return self.explanation.dimensions.groups() if self.explanation is not None else []

    def _tracks(self, pair: tuple[str, str]) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        if self.explanation is None:
            return []
        return [self.explanation.latencies.series(of) for of in self._groups() if (of.server, of.model) == pair]

    # --- the last hour ------------------------------------------------------------------------------------------------

    def heatmap(self, of: heat.Of, by: heat.By, minutes: int, server: str, model: str) -> heat.Heatmap:
        at_s = self.now_s()
        since_s = heat.first_minute_s(at_s, minutes)
        rows = self.statistics.rows(since_s, at_s, heat.LADDERS[by]) if self.statistics is not None else []
        return heat.heatmap(rows, of, by, at_s, minutes, self.to_unix, server=server, model=model)

    def bound(self, minutes: int, uuid: str | None) -> bounds.Bound:
        return bounds.bound(self.activity, self.now_s(), minutes, self.to_unix, uuid)

    def scatter(self, minutes: int, uuid: str | None) -> bounds.Scatter:
        at_s = self.now_s()
        by_minute: dict[tuple[str, str], list[tuple[float, float]]] = {}
        if self.statistics is not None:
            for cell in self.statistics.cells(heat.first_minute_s(at_s, minutes), at_s, None):
                if cell.signal is Signal.INTER_TOKEN:
                    by_minute.setdefault((cell.server, cell.model), []).append((cell.start_s, cell.p95_s))

        def latencies(of: str) -> bounds.Latencies:
            groups = [group for group in self._groups() if of in group.gpus]
            pairs = dict.fromkeys((group.server, group.model) for group in groups)
            minutes_of = [_points(by_minute[pair]) for pair in pairs if pair in by_minute]
            return bounds.Latencies(minutes_of, [self._token_p95(group) for group in groups])

        return bounds.scatter(self.activity, at_s, minutes, self.to_unix, uuid, latencies)

    def _token_p95(self, group: Group) -> Points:
        assert self.explanation is not None
        seconds, values = self.explanation.latencies.series(group)
        return seconds.astype(np.float64), values[_TOKEN_P95]

    # --- requests -----------------------------------------------------------------------------------------------------

    def requests(self, explanation: Explanation, wish: request_list.Wish) -> request_list.Requests:
        """Raises UnreadableError for a cursor that is none."""
        return request_list.request_list(explanation.log, wish, self.to_unix, explanation.details.knows)

    def timeline(
        self, explanation: Explanation, trace_id: str, request_id: str, margin_s: float
    ) -> lanes.Timeline | None:
        """None where nothing is known of the trace, or of this request of it. request_id: empty: all."""
        ran = _ran(explanation, trace_id)
        ran = [each for each in ran if request_id in ("", each.request_id)]
        if not ran:
            return None
        now_s = self.now_s()
        present = self.view(now_s).family(catalogue.GPU_PRESENT)
        return lanes.timeline(
            trace_id,
            ran,
            margin_s,
            _Signals(explanation, now_s),
            self.incidents(),
            {sample.labels[1]: sample.labels[0] for sample in present},
            self.to_unix,
        )

    def diagnose(self, explanation: Explanation, query: DiagnoseQuery) -> Diagnosis:
        """Raises ValueError for an attribute that there is not."""
        now_s = self.now_s()
        began_s = self.to_unix(0.0)  # unix time of steady 0
        until_s = now_s if query.to_unix_s is None else min(query.to_unix_s - began_s, now_s)
        since_s = until_s - query.since_s if query.from_unix_s is None else query.from_unix_s - began_s
        found = diagnose_since(
            explanation,
            self.incidents(),
            self.view(now_s),
            self.to_unix,
            since_s=min(max(since_s, until_s - SINCE_MAX_S), until_s),
            until_s=until_s,
            node=self.facts.name,
            server=query.server,
            model=query.model,
            x=query.x,
            y=query.y,
            quantile=query.quantile,
        )
        slowest = [
            each.model_copy(update={"detailed": explanation.details.knows(each.trace_id, each.span_id)})
            for each in found.slowest
        ]
        return found.model_copy(update={"slowest": tuple(slowest)})


class _Signals:
    """``lanes.Signals``."""

    def __init__(self, explanation: Explanation, now_s: float) -> None:
        self._explanation = explanation
        self.now_s = now_s

    def fast(self, uuid: str, first: int, last: int) -> NDArray[np.float64]:
        return self._explanation.correlations.fast_series([uuid], first, last)

    def dimensions(self, group: Group) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self._explanation.dimensions.series(group)


def _ran(explanation: Explanation, trace_id: str) -> list[lanes.Ran]:
    """When and where the requests of a trace ran: those whose details are kept, else by their rows."""
    found = explanation.find(trace_id)
    if found:
        return [
            lanes.Ran(
                each.record.request_id,
                each.record.span_id.hex(),
                each.group,
                each.start_s,
                each.start_s + first_s if (first_s := each.record.time_to_first_token_s) is not None else None,
                each.end_s,
            )
            for each in found
        ]
    if len(trace_id) != 32:
        return []
    wanted = np.void(bytes.fromhex(trace_id))
    rows = explanation.log.select(lambda rows: np.flatnonzero(rows.table["trace_id"] == wanted)[-_OF_TRACE:])
    firsts_s = rows.column("first_token_s").tolist()
    starts_s, ends_s, groups = rows.start_s.tolist(), rows.end_s.tolist(), rows.index("group").tolist()
    return [
        lanes.Ran(
            rows.request_id(row),
            rows.span_id(row),
            rows.groups[groups[row]],
            starts_s[row],
            starts_s[row] + firsts_s[row] if firsts_s[row] == firsts_s[row] else None,
            ends_s[row],
        )
        for row in range(len(rows))
    ]


def _points(pairs: Sequence[tuple[float, float]]) -> Points:
    times, values = np.array(sorted(pairs)).T
    return times, values
