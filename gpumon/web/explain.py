"""The JSON API's part about slow tokens: one trace, those that were late, and the diagnosis of a period.

Times are unix seconds. What is asked is bounded; handlers run in FastAPI's worker threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Query
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, ValidationError, WithJsonSchema

from gpumon.catalogue import CAUSES
from gpumon.explain.diagnosis.asked import UnknownNameError, of_named
from gpumon.explain.diagnosis.model import Diagnosis, Surface
from gpumon.explain.explained import Explained
from gpumon.web.answers import NOT_FOUND, REFUSED, Answers
from gpumon.web.explanation import Late, Trace, late, trace
from gpumon.web.questions import (
    NAME_MAX,
    QUANTILE,
    QUANTILE_LEAST,
    QUANTILE_MOST,
    SINCE_MAX_S,
    SINCE_S,
    DiagnoseQuery,
)

_UNIX_MAX_S: Final = 253_402_300_799.0  # of the year 9999


TRACE_ID = r"[0-9a-fA-F]{8,32}"
TOLD_MAX = 8
"""Most traces that are named where several begin alike."""


def _trace_id(text: str) -> str:
    # fullmatch, for $ would let a line break through.
    if not re.fullmatch(TRACE_ID, text):
        raise ValueError("a trace id is 32 hexadecimal digits; 8 are enough where no other begins with them")
    return text.lower()


def whole_trace_id(text: str, traces: Callable[[str], Sequence[str]]) -> str:
    """The one id that begins like this; the text itself where none does. traces: those that do, of which something is
    known. Raises RequestValidationError where there are several."""
    found = [text] if len(text) == 32 else traces(text)
    if len(found) > 1:
        more = f" and {len(found) - TOLD_MAX} more" if len(found) > TOLD_MAX else ""
        message = f"{len(found)} traces begin with it: {', '.join(found[:TOLD_MAX])}{more}"
        raise RequestValidationError([{"loc": ("query", "trace_id"), "msg": message, "type": "value_error"}])
    return found[0] if found else text


def _known_cause(cause: str) -> str:
    if cause not in CAUSES:
        raise ValueError(f"no cause; they are {', '.join(CAUSES)}")
    return cause


# What the validators say is for people; machines are told by the schema.
TraceId = Annotated[
    str,
    AfterValidator(_trace_id),
    WithJsonSchema({"type": "string", "pattern": f"^{TRACE_ID}$"}),
    Query(description="32 hex digits, or at least the first 8, where no other trace begins with them."),
]
Cause = Annotated[str, AfterValidator(_known_cause), WithJsonSchema({"type": "string", "enum": [*CAUSES]})]


_Since = Annotated[
    float | None,
    Query(
        gt=0.0,
        le=SINCE_MAX_S,
        allow_inf_nan=False,
        description=f"Seconds back from the end of the period; {SINCE_S:g} where neither this nor from is given.",
    ),
]
_From = Annotated[
    float | None,
    Query(
        alias="from",
        ge=0.0,
        le=_UNIX_MAX_S,
        allow_inf_nan=False,
        description=f"Begin of the period in unix seconds, instead of since: at most {SINCE_MAX_S:g} s before its end.",
    ),
]
_To = Annotated[
    float | None,
    Query(alias="to", ge=0.0, le=_UNIX_MAX_S, allow_inf_nan=False, description="Its end, in unix seconds; empty: now."),
]
_Name = Annotated[str, Query(max_length=NAME_MAX, description="Empty: all.")]
_Model = Annotated[str, Query(max_length=NAME_MAX, description="Its name, or server/name; empty: all.")]
_Attribute = Annotated[
    str,
    Query(
        max_length=NAME_MAX,
        description="Attribute of requests for the response surface: prompt_tokens, concurrency, tenant, temperature, "
        "…; empty: that with which latency varies most.",
    ),
]
_Quantile = Annotated[
    float, Query(ge=QUANTILE_LEAST, le=QUANTILE_MOST, allow_inf_nan=False, description="Of the response surface.")
]


def explain_routes(
    find: Callable[[str], list[Explained]],
    traces: Callable[[str], Sequence[str]],
    newest: Callable[[], Sequence[Explained]],
    to_unix: Callable[[float], float],
) -> APIRouter:
    """find: requests of a trace, by its id in lower case; none where it is not known. traces: ids of those known that
    begin like this. newest: of the newest that were slow, the newest first. to_unix: unix time of steady seconds."""
    router = APIRouter(prefix="/api/v1", route_class=Answers, responses=REFUSED)

    @router.get("/explain", responses=NOT_FOUND)
    def explain(trace_id: TraceId) -> Trace:
        """Why the tokens of one trace were slow: its requests, their gaps, and the causes under each."""
        trace_id = whole_trace_id(trace_id, traces)
        found = find(trace_id)
        if not found:
            raise HTTPException(
                404,
                "no details are kept of this trace. A request is explained some seconds after it ended; kept are the "
                "newest, for an hour the slowest of each minute, and those that incidents name, since gpumon started. "
                "The view Latency of the page shows which: click a cell; so does /api/v1/requests (detailed)",
            )
        return trace(trace_id, found, to_unix)

    @router.get("/explained")
    def explained(
        model: _Name = "",
        cause: Annotated[Cause | None, Query(description="The main one.")] = None,
        min_excess: Annotated[float, Query(ge=0.0, allow_inf_nan=False, description="Seconds.")] = 0.0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> list[Late]:
        """Requests that were slow, at least in part, the newest first."""
        chosen: list[Late] = []
        for each in newest():
            if len(chosen) == limit:
                break
            if each.excess_s <= 0.0 or each.excess_s < min_excess or model not in ("", each.record.model):
                continue
            if cause is None or next(iter(each.by_cause()), "") == cause:
                chosen.append(late(each, to_unix))
        return chosen

    return router


def diagnose_routes(diagnose: Callable[[DiagnoseQuery], Diagnosis]) -> APIRouter:
    """diagnose: raises ValueError for an attribute that there is not; its text says which there are."""
    router = APIRouter(prefix="/api/v1", route_class=Answers, responses=REFUSED)

    def answer(query: DiagnoseQuery) -> Diagnosis:
        try:
            return of_named(
                lambda server, model: diagnose(query._replace(server=server, model=model)), query.server, query.model
            )
        except UnknownNameError as error:
            raise HTTPException(404, str(error)) from error
        except ValidationError:
            raise  # what was found out cannot be said: a bug, not the question
        except ValueError as error:
            if not query.x and not query.y:
                raise
            wrong = "x" if query.x and repr(query.x) in str(error) else "y"
            raise _refused(wrong, str(error)) from error

    @router.get(
        "/diagnose",
        responses=NOT_FOUND,
    )
    def diagnosis(
        since: _Since = None,
        begin: _From = None,
        end: _To = None,
        server: _Name = "",
        model: _Model = "",
        x: _Attribute = "",
        y: _Attribute = "",
        quantile: _Quantile = QUANTILE,
    ) -> Diagnosis:
        """Why tokens were slow: the causes with the seconds lost, what was different, and what to do."""
        return answer(_asked(since, begin, end)._replace(server=server, model=model, x=x, y=y, quantile=quantile))

    @router.get("/surface", responses=NOT_FOUND)
    def surface(
        x: _Attribute = "",
        y: _Attribute = "",
        quantile: _Quantile = QUANTILE,
        since: _Since = None,
        begin: _From = None,
        end: _To = None,
        server: _Name = "",
        model: _Model = "",
    ) -> Surface:
        """A latency's quantile over two attributes of requests; without any named, over those that vary."""
        query = _asked(since, begin, end)._replace(server=server, model=model, x=x, y=y, quantile=quantile)
        found = answer(query).surface
        if found is None:
            raise HTTPException(404, "no surface: too few requests in this time, or they do not vary in two attributes")
        return found

    return router


def _asked(since: float | None, begin: float | None, end: float | None) -> DiagnoseQuery:
    """The period. Raises RequestValidationError for one that is none."""
    if begin is not None and since is not None:
        raise _refused("since", "either since or from: both say when the period begins")
    if begin is not None and end is not None and not 0.0 < end - begin <= SINCE_MAX_S:
        raise _refused("from", f"a period is up to {SINCE_MAX_S:g} s long and begins before it ends")
    return DiagnoseQuery(SINCE_S if since is None else since, from_unix_s=begin, to_unix_s=end)


def _refused(where: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("query", where), "msg": message, "type": "value_error"}])
