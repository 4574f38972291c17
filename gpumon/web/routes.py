"""The JSON API's part for the live page: what is true now, the last hour, and requests one by one. See docs/API.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, HTTPException, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from gpumon.explain.engine import Explanation
from gpumon.web.answers import NOT_FOUND, REFUSED, Answers, Asked, Problem
from gpumon.web.asgi import Receive, Scope, Send
from gpumon.web.bound import Bound, Scatter
from gpumon.web.explain import Cause, TraceId, whole_trace_id
from gpumon.web.gpus import Gpus, Wanted
from gpumon.web.heatmap import By, CellId, Heatmap, Of, cell_id
from gpumon.web.knowledge import Knowledge
from gpumon.web.node_state import Node, SourceHealth
from gpumon.web.past import HISTORY_MAX_S
from gpumon.web.questions import NAME_MAX, SINCE_MAX_S, UnreadableError
from gpumon.web.request_list import Requests, Sort, Wish
from gpumon.web.servers import Servers
from gpumon.web.stream import LISTENERS_MAX, Stream
from gpumon.web.timeline import Timeline

_T = TypeVar("_T")
_Name = Annotated[str, Query(max_length=NAME_MAX, description="Empty: all.")]
_Uuid = Annotated[str | None, Query(min_length=1, max_length=96, description="Of a GPU; without it: all.")]
_History = Annotated[
    float,
    Query(ge=0.0, le=HISTORY_MAX_S, allow_inf_nan=False, description="Seconds of history, as far as it is kept."),
]
_Minutes = Annotated[int, Query(ge=1, le=60, description="Back from now.")]
_Seconds = Annotated[float, Query(ge=0.0, le=86_400.0, allow_inf_nan=False, description="Seconds.")]
_Outcome = Literal["", "ok", "error", "aborted", "incomplete"]


def now_routes(knowledge: Knowledge) -> APIRouter:
    """What is true now."""
    router = APIRouter(prefix="/api/v1", route_class=Answers, responses=REFUSED)

    @router.get("/node")
    def node() -> Node:
        """Which gpumon this is, what it can see and what it cannot."""
        return knowledge.node()

    @router.get("/sources")
    def sources() -> list[SourceHealth]:
        """Where the numbers come from, and whether they come."""
        return knowledge.node().sources

    @router.get("/gpus", responses=NOT_FOUND)
    def gpus(
        uuid: _Uuid = None,
        history: _History = 0.0,
        readings: Annotated[
            bool | None,
            Query(description="Every series of a GPU on /metrics; by default with a uuid."),
        ] = None,
    ) -> Gpus:
        """Every GPU now, and its last minutes."""
        wanted = Wanted(uuid, readings=uuid is not None if readings is None else readings)
        found = knowledge.gpus(wanted, history)
        if uuid is not None and not found.gpus:
            raise HTTPException(404, "no GPU of this node has this uuid; /api/v1/gpus lists them")
        return found

    @router.get("/servers")
    def servers(history: _History = 0.0) -> Servers:
        """Every model that is served: latencies, token rates, queues, KV cache, its GPUs."""
        return knowledge.servers(history)

    return router


def hour_routes(knowledge: Knowledge) -> APIRouter:
    """The last hour."""
    router = APIRouter(prefix="/api/v1", route_class=Answers, responses=REFUSED)

    @router.get("/heatmap")
    def heatmap(
        of: Annotated[Of, Query(description="Time to first token, or between tokens.")] = "inter_token",
        by: Annotated[By, Query(description="Requests open meanwhile, or tokens of context.")] = "concurrency",
        minutes: _Minutes = 60,
        server: _Name = "",
        model: _Name = "",
    ) -> Heatmap:
        """Latency by minute, and by open requests or length of context."""
        return knowledge.heatmap(of, by, minutes, server, model)

    @router.get("/scatter")
    def scatter(uuid: _Uuid = None, minutes: _Minutes = 10) -> Scatter:
        """SM against DRAM activity of each GPU, and the latency between tokens at that time."""
        return knowledge.scatter(minutes, uuid)

    @router.get("/bound")
    def bound(uuid: _Uuid = None, minutes: _Minutes = 60) -> Bound:
        """What limited each GPU, over time."""
        return knowledge.bound(minutes, uuid)

    return router


def request_routes(knowledge: Knowledge, explanation: Explanation) -> APIRouter:
    """Requests one by one."""
    router = APIRouter(prefix="/api/v1", route_class=Answers, responses=REFUSED)

    @router.get("/requests")
    def requests(
        server: _Name = "",
        model: _Name = "",
        tenant: _Name = "",
        outcome: Annotated[_Outcome, Query(description="Empty: all.")] = "",
        cause: Annotated[Cause | None, Query(description="The main one.")] = None,
        uuid: _Uuid = None,
        since: Annotated[
            float, Query(gt=0.0, le=SINCE_MAX_S, allow_inf_nan=False, description="Seconds back from now.")
        ] = SINCE_MAX_S,
        min_ttft: _Seconds = 0.0,
        min_gap: Annotated[_Seconds, Query(description="Seconds: the longest gap between tokens.")] = 0.0,
        min_late: _Seconds = 0.0,
        cell: Annotated[str, Query(max_length=64, description="Id of a cell of /api/v1/heatmap; empty: all.")] = "",
        sort: Annotated[Sort, Query(description="Slowest: by what the cell is of, else by how late.")] = "slowest",
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        cursor: Annotated[str, Query(max_length=128, description="Of the page before; empty: the first.")] = "",
    ) -> Requests:
        """Requests that ended and were explained, by page."""
        wish = Wish(
            server=server,
            model=model,
            tenant=tenant,
            outcome=outcome,
            cause=cause or "",
            uuid=uuid or "",
            since_s=knowledge.now_s() - since,
            min_ttft_s=min_ttft,
            min_gap_s=min_gap,
            min_late_s=min_late,
            cell=_cell(cell, knowledge.to_unix) if cell else None,
            sort=sort,
            limit=limit,
            cursor=cursor,
        )
        return _asked("cursor", lambda: knowledge.requests(explanation, wish))

    @router.get("/timeline", responses=NOT_FOUND)
    def timeline(
        trace_id: TraceId,
        request_id: Annotated[str, Query(max_length=NAME_MAX, description="One of its requests; empty: all.")] = "",
        margin: Annotated[
            float, Query(ge=0.0, le=30.0, allow_inf_nan=False, description="Seconds before and after.")
        ] = 2.0,
    ) -> Timeline:
        """What GPUs, processes, servers and the host did while a request ran."""
        whole = whole_trace_id(trace_id, explanation.details.traces)
        found = knowledge.timeline(explanation, whole, request_id, margin)
        if found is None:
            raise HTTPException(404, "nothing is known of this request; /api/v1/requests lists those that are kept")
        return found

    return router


def stream_routes(stream: Stream) -> APIRouter:
    """Server-sent events."""
    router = APIRouter(prefix="/api/v1", route_class=Asked, responses=REFUSED)

    @router.get(
        "/stream",
        status_code=200,
        response_class=Events,
        responses={
            200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
            503: {"model": Problem, "description": f"{LISTENERS_MAX} listen already, or gpumon ends."},
        },
    )
    async def events() -> Response:
        """A snapshot of the node each second, and incidents as they open and close: server-sent events."""
        return Events(stream)

    return router


class Events(Response):
    """Hands the connection to the stream."""

    media_type = "text/event-stream"

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]  # narrower
        await self._stream.serve(scope, receive, send)


def _cell(text: str, to_unix: Callable[[float], float]) -> CellId:
    return _asked("cell", lambda: cell_id(text, to_unix))


def _asked(name: str, answer: Callable[[], _T]) -> _T:
    """An answer that depends on whether a parameter can be read."""
    try:
        return answer()
    except UnreadableError as error:
        raise RequestValidationError([{"loc": ("query", name), "msg": str(error), "type": "value_error"}]) from error
