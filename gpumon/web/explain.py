"""The JSON API's part about slow tokens: one trace, those that were late, and the diagnosis of a period.

Times are unix seconds. What is asked is bounded; handlers run in FastAPI's worker threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, ValidationError, WithJsonSchema

from gpumon.catalogue import CAUSES
from gpumon.explain.diagnosis.asked import UnknownNameError, of_named
from gpumon.explain.diagnosis.model import Diagnosis, Surface
from gpumon.explain.explained import Explained
from gpumon.explain.recent import ON_TIME_MAX, SLOW_MAX
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


def _trace_id(text: str) -> str:
    # fullmatch, for $ would let a line break through.
    if not re.fullmatch(r"[0-9a-fA-F]{32}", text):
        raise ValueError("a trace id is 32 hexadecimal digits")
    return text.lower()


def _known_cause(cause: str) -> str:
    if cause not in CAUSES:
        raise ValueError(f"no cause; they are {', '.join(CAUSES)}")
    return cause


# What the validators say is for people; machines are told by the schema.
TraceId = Annotated[str, AfterValidator(_trace_id), WithJsonSchema({"type": "string", "pattern": "^[0-9a-fA-F]{32}$"})]
Cause = Annotated[str, AfterValidator(_known_cause), WithJsonSchema({"type": "string", "enum": [*CAUSES]})]


_Since = Annotated[float, Query(gt=0.0, le=SINCE_MAX_S, allow_inf_nan=False, description="Seconds back from now.")]
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
    newest: Callable[[], Sequence[Explained]],
    to_unix: Callable[[float], float],
) -> APIRouter:
    """find: requests of a trace, by its id in lower case; none where it is not known. newest: of those kept, the newest
    first. to_unix: unix time of steady seconds."""
    router = APIRouter(prefix="/api/v1", route_class=Answers, responses=REFUSED)

    @router.get("/explain", responses=NOT_FOUND)
    def explain(trace_id: Annotated[TraceId, Query(description="32 hex digits.")]) -> Trace:
        """Why the tokens of one trace were slow: its requests, their gaps, and the causes under each."""
        found = find(trace_id)
        if not found:
            raise HTTPException(
                404,
                "nothing is known of this trace: a request is explained some seconds after it ended, and known while "
                f"it is among the newest {SLOW_MAX:,} that were late or among {ON_TIME_MAX:,} others; "
                "/api/v1/explained lists the former",
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
            said = {"loc": ("query", wrong), "msg": str(error), "type": "value_error"}
            raise RequestValidationError([said]) from error

    @router.get(
        "/diagnose",
        responses=NOT_FOUND,
    )
    def diagnosis(
        since: _Since = SINCE_S,
        server: _Name = "",
        model: _Model = "",
        x: _Attribute = "",
        y: _Attribute = "",
        quantile: _Quantile = QUANTILE,
    ) -> Diagnosis:
        """Why tokens were slow: the causes with the seconds lost, what was different, and what to do."""
        return answer(DiagnoseQuery(since, server, model, x, y, quantile))

    @router.get("/surface", responses=NOT_FOUND)
    def surface(
        x: _Attribute = "",
        y: _Attribute = "",
        quantile: _Quantile = QUANTILE,
        since: _Since = SINCE_S,
        server: _Name = "",
        model: _Model = "",
    ) -> Surface:
        """A latency's quantile over two attributes of requests; without any named, over those that vary."""
        found = answer(DiagnoseQuery(since, server, model, x, y, quantile)).surface
        if found is None:
            raise HTTPException(404, "no surface: too few requests in this time, or they do not vary in two attributes")
        return found

    return router
