"""/api/v1/explain, explained, diagnose and surface: what they say, filters, and questions that cannot be answered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.explain.dimensions import DIMENSIONS
from gpumon.explain.explained import Account, Explained
from gpumon.model import Binding
from gpumon.web.api import make_api
from gpumon.web.explain import diagnose_routes, explain_routes
from gpumon.web.explanation import POINTS_MAX, REQUESTS_MAX, Trace, trace
from gpumon.web.questions import DiagnoseQuery
from tests import diagnoses
from tests.explained import (
    OFFSET_S,
    ON_TIME,
    PREFILL,
    START_S,
    THERMAL,
    TRACE,
    UNKNOWN,
    explained,
    to_unix,
    token_times,
)
from tests.web.asking import Reply, ask

NEAR = pytest.approx


class Api:
    """The application over a few requests, and over one diagnosis."""

    def __init__(self, *found: Explained) -> None:
        self.found = [*found]
        self.queries: list[DiagnoseQuery] = []
        self.said: Diagnosis = diagnoses.full()
        self.error: Exception | None = None
        self.of_model = ""
        """Of any other one nothing is known; empty: all is."""
        explain = explain_routes(self._find, self._traces, lambda: self.found[::-1], to_unix)
        self.app = make_api(explain, diagnose_routes(self._diagnose))

    def get(self, path: str, query: str = "") -> Reply:
        return ask(self.app, f"/api/v1/{path}", query)

    def _find(self, trace_id: str) -> list[Explained]:
        return [each for each in self.found if each.record.trace_id.hex() == trace_id]

    def _traces(self, beginning: str) -> list[str]:
        ids = sorted({each.record.trace_id.hex() for each in self.found})
        return [trace_id for trace_id in ids if trace_id.startswith(beginning)]

    def _diagnose(self, query: DiagnoseQuery) -> Diagnosis:
        self.queries.append(query)
        if self.error is not None:
            raise self.error
        return self.said if not self.of_model or query.model in ("", self.of_model) else diagnoses.nothing()


def told(found: Explained) -> Any:
    """The one request of the trace, as JSON."""
    reply = Api(found).get("explain", f"trace_id={TRACE}")
    assert reply.status == 200, reply.body
    (request,) = reply.json["requests"]
    return request


# --- explain ----------------------------------------------------------------------------------------------------------


def test_a_request_is_told_with_both_accounts_and_their_shares() -> None:
    request = told(explained())
    assert (request["trace_id"], request["request_id"], request["server"]) == (TRACE, "cmpl-7", "vllm")
    assert (request["model"], request["tenant"], request["outcome"]) == ("llama-70b", "acme", "ok")
    assert (request["gpus"], request["unbound"]) == (["GPU-0003", "GPU-0004"], "")
    assert (request["start"], request["duration_seconds"]) == (OFFSET_S + START_S, NEAR(3.18))
    assert (request["prompt_tokens"], request["cached_tokens"], request["completion_tokens"]) == (2048, 512, 100)
    assert (request["time_to_first_token_seconds"], request["queue_seconds"]) == (0.4, 0.05)
    assert request["tokens_per_second"] == NEAR(99 / 2.78)
    assert request["excess_seconds"] == NEAR(0.9)
    assert request["first_token"] == {
        "expected_seconds": 0.3,
        "actual_seconds": 0.4,
        "excess_seconds": 0.1,
        "cause": "queueing",
        "title": "waiting in the queue",
        "shares": [
            {
                "cause": "queueing",
                "title": "waiting in the queue",
                "seconds": 0.1,
                "evidence": 1.0,
                "lift": None,
                "fact": None,
            }
        ],
    }
    assert request["decode"]["cause"] == "thermal_throttle"
    assert request["decode"]["shares"][0] == {
        "cause": "thermal_throttle",
        "title": "GPU too hot",
        "seconds": 0.5,
        "evidence": 0.97,
        "lift": 12.0,
        "fact": {
            "name": "sm_clock",
            "observed": 1.005e9,
            "unit": "hertz",
            "usual": 1.41e9,
            "text": "SM clock 1,005 MHz, usually 1,410 MHz",
        },
    }


def test_the_causes_of_both_accounts_add_up_to_the_excess() -> None:
    request = told(explained())
    assert [each["cause"] for each in request["causes"]] == [
        "thermal_throttle",
        "prefill_interference",
        "queueing",
        "unexplained",
    ]
    assert [each["fault"] for each in request["causes"]] == [True, False, False, False]
    assert request["causes"][0]["title"] == "GPU too hot"
    assert sum(each["seconds"] for each in request["causes"]) == NEAR(request["excess_seconds"])
    assert sum(each["share"] for each in request["causes"]) == NEAR(1.0)


def test_a_slow_gap_is_told_since_the_start_and_in_unix_time_with_the_conditions_under_it() -> None:
    gaps = told(explained())["slow_gaps"]
    assert [gap["start_ms"] for gap in gaps] == [980.0, 1400.0, 2280.0]
    assert gaps[2]["start"] == NEAR(OFFSET_S + 1002.28)
    assert gaps[2]["duration_seconds"] == NEAR(0.32)
    assert (gaps[2]["tokens"], gaps[2]["expected_seconds"], gaps[2]["excess_seconds"]) == (1, 0.02, NEAR(0.3))
    assert [share["cause"] for share in gaps[2]["shares"]] == [
        "prefill_interference",
        "thermal_throttle",
        "unexplained",
    ]
    assert gaps[2]["cause"] == "prefill_interference"


def test_the_token_timeline_is_in_milliseconds_since_the_start_with_the_gap_before_each_step() -> None:
    tokens = told(explained())["tokens"]
    assert (tokens["steps"], tokens["note"]) == (100, "")
    assert tokens["ms"][:2] == [400.0, 420.0]
    assert tokens["gap_ms"][0] is None
    assert (tokens["ms"][30], tokens["gap_ms"][30]) == (1400.0, 420.0)


def test_a_long_timeline_is_thinned_to_real_steps_and_keeps_every_long_gap() -> None:
    late = tuple((number, 0.5) for number in range(1000, 99_000, 9_731))
    times = token_times(100_000, late=late)
    tokens = told(explained(token_s=times))["tokens"]
    assert tokens["steps"] == 100_000
    assert POINTS_MAX / 2 < len(tokens["ms"]) == len(tokens["gap_ms"]) <= POINTS_MAX
    assert "of every 25 steps" in tokens["note"]
    kept = dict(zip(tokens["ms"], tokens["gap_ms"], strict=True))
    for number, _ in late:
        assert kept[round(1e3 * (times[number] - START_S), 3)] == NEAR(520.0)
    assert sum(gap > 100.0 for gap in tokens["gap_ms"][1:]) == len(late)


@given(st.integers(0, 3 * POINTS_MAX))
def test_a_timeline_of_any_length_has_as_many_points_as_fit_in_order_from_the_first_step_on(steps: int) -> None:
    times = np.arange(steps, dtype=np.float64) * 0.02 + START_S
    request = trace(TRACE, [explained(token_s=times)], to_unix).requests[0]
    assert request.tokens is not None
    assert request.tokens.steps == steps
    assert len(request.tokens.ms) == len(request.tokens.gap_ms) == min(steps, len(request.tokens.ms))
    assert len(request.tokens.ms) <= POINTS_MAX
    assert request.tokens.ms == sorted(request.tokens.ms)
    assert request.tokens.ms[:1] == [0.0][:steps]
    assert bool(request.tokens.note) == (len(request.tokens.ms) < steps) == (steps > POINTS_MAX)


def test_without_token_times_there_is_no_timeline_and_the_rest_is_told() -> None:
    request = told(explained(timed=False))
    assert request["tokens"] is None
    assert len(request["slow_gaps"]) == 3


def test_token_times_that_are_not_numbers_are_left_out() -> None:
    tokens = told(explained(token_s=np.array([1000.1, np.nan, 1000.2, np.inf])))["tokens"]
    assert (tokens["steps"], tokens["ms"], tokens["gap_ms"]) == (2, [100.0, 200.0], [None, 100.0])


def test_signals_that_are_known_are_told_by_their_dimension_and_the_others_left_out() -> None:
    means = np.full(len(DIMENSIONS), np.nan, dtype=np.float32)
    means[1] = 0.5
    (signal,) = told(explained(signals=means))["signals"]
    dimension = DIMENSIONS[1]
    assert signal == {
        "name": dimension.name,
        "title": dimension.title,
        "value": 0.5,
        "unit": dimension.unit,
        "healthy": dimension.healthy,
    }


def test_what_is_not_known_is_null_and_not_nan() -> None:
    cold = Account(None, 0.4, 0.0, ())
    share = UNKNOWN._replace(seconds=0.8, lift=math.nan)
    request = told(
        explained(
            first_token=cold,
            decode=Account(math.nan, 2.0, 0.8, (share,)),
            time_to_first_token_s=math.inf,
            queue_s=None,
            completion_tokens=None,
        )
    )
    assert request["first_token"]["expected_seconds"] is None
    assert request["decode"]["expected_seconds"] is None
    assert request["decode"]["shares"][0]["lift"] is None
    assert (request["time_to_first_token_seconds"], request["queue_seconds"]) == (None, None)
    assert (request["completion_tokens"], request["tokens_per_second"]) == (None, None)


def test_a_request_that_was_not_late_has_no_causes() -> None:
    request = told(explained(first_token=ON_TIME, decode=Account(2.0, 1.9, 0.0, ()), slow_gaps=()))
    assert (request["excess_seconds"], request["causes"], request["slow_gaps"]) == (0.0, [], [])
    assert (request["first_token"]["cause"], request["decode"]["cause"]) == ("", "")


def test_an_unbound_request_says_why() -> None:
    request = told(explained(binding=Binding(unbound="no_identity")))
    assert (request["gpus"], request["unbound"]) == ([], "no_identity")


def test_the_requests_of_a_trace_come_by_their_start() -> None:
    api = Api(explained(start_s=1010.0, request_id="b"), explained(request_id="a"))
    answer = api.get("explain", f"trace_id={TRACE}").json
    assert [each["request_id"] for each in answer["requests"]] == ["a", "b"]
    assert answer["left_out"] == 0


def test_of_a_trace_with_many_requests_those_that_were_latest_are_told() -> None:
    decode = [Account(1.0, 1.0 + n, float(n), (THERMAL._replace(seconds=float(n)),)) for n in range(40)]
    api = Api(*(explained(request_id=f"{n:02}", decode=account) for n, account in enumerate(decode)))
    answer = api.get("explain", f"trace_id={TRACE}").json
    assert [each["request_id"] for each in answer["requests"]] == [f"{n:02}" for n in range(40 - REQUESTS_MAX, 40)]
    assert answer["left_out"] == 40 - REQUESTS_MAX


def test_the_trace_id_may_be_in_capitals() -> None:
    assert Api(explained()).get("explain", f"trace_id={TRACE.upper()}").json["trace_id"] == TRACE


def test_an_unknown_trace_is_not_found_and_says_when_it_would_be() -> None:
    reply = Api().get("explain", f"trace_id={TRACE}")
    assert reply.status == 404
    assert "some seconds after it ended" in reply.json["detail"]
    assert "The view Latency of the page shows which" in reply.json["detail"]


@pytest.mark.parametrize("beginning", [TRACE[:8], TRACE[:16].upper(), TRACE[:31]])
def test_the_beginning_of_a_trace_id_is_enough_where_no_other_begins_like_it(beginning: str) -> None:
    other = explained(trace_id=bytes(16))
    reply = Api(explained(), other).get("explain", f"trace_id={beginning}")
    assert (reply.status, reply.json["trace_id"]) == (200, TRACE)


def test_a_beginning_of_several_trace_ids_is_refused_with_some_of_them() -> None:
    many = [explained(trace_id=b"\xab" * 4 + number.to_bytes(12)) for number in range(20)]
    reply = Api(*many).get("explain", "trace_id=abababab")
    assert reply.status == 422
    assert reply.json["errors"][0]["where"] == "trace_id"
    told = reply.json["errors"][0]["message"]
    assert told.startswith(
        "20 traces begin with it: abababab000000000000000000000000, abababab000000000000000000000001,"
    )
    assert told.endswith(" and 12 more")
    assert Api(*many[:2]).get("explain", "trace_id=abababab").json["errors"][0]["message"].endswith("000001")
    assert Api(*many).get("explain", "trace_id=cdcdcdcd").status == 404


@pytest.mark.parametrize("text", ["", "0af7", TRACE[:-1] + "g", TRACE + "0", TRACE + "%0a", "..%2f" * 8, "%00" * 32])
def test_a_trace_id_that_cannot_be_one_is_refused(text: str) -> None:
    reply = Api(explained()).get("explain", f"trace_id={text}")
    assert reply.status == 422
    assert "32 hexadecimal digits" in reply.json["detail"]


def test_a_question_without_a_trace_id_is_refused() -> None:
    assert Api(explained()).get("explain").status == 422


def test_names_from_outside_come_back_as_they_were() -> None:
    assert told(explained(tenant=diagnoses.HOSTILE, model=diagnoses.HOSTILE))["tenant"] == diagnoses.HOSTILE


def test_what_is_answered_can_be_read_back() -> None:
    body = Api(explained()).get("explain", f"trace_id={TRACE}").body
    assert Trace.model_validate_json(body) == trace(TRACE, [explained()], to_unix)


@pytest.mark.parametrize(
    ("place", "value"), [("ms", "[NaN]"), ("gap_ms", "[Infinity]"), ("ms", "null"), ("steps", "1.5"), ("note", "3")]
)
def test_what_cannot_be_an_answer_is_not_read_as_one(place: str, value: str) -> None:
    body = trace(TRACE, [explained(token_s=np.array([1000.5]))], to_unix).model_dump_json()
    told = {"ms": "[500.0]", "gap_ms": "[null]", "steps": "1", "note": '""'}[place]
    changed = body.replace(f'"{place}":{told}', f'"{place}":{value}')
    assert changed != body
    with pytest.raises(ValidationError, match=place):
        Trace.model_validate_json(changed)


# --- explained --------------------------------------------------------------------------------------------------------


def few() -> Api:
    """Oldest first: thermal 0.5 s, prefill 0.2 s of another model, one that was not late, thermal 0.05 s."""

    def late(seconds: float, cause: Any) -> Account:
        return Account(1.0, 1.0 + seconds, seconds, (cause._replace(seconds=seconds),))

    return Api(
        explained(request_id="hot", first_token=ON_TIME, decode=late(0.5, THERMAL)),
        explained(request_id="prefill", first_token=ON_TIME, decode=late(0.2, PREFILL), model="qwen"),
        explained(request_id="well", first_token=ON_TIME, decode=ON_TIME),
        explained(request_id="warm", first_token=ON_TIME, decode=late(0.05, THERMAL)),
    )


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["warm", "prefill", "hot"]),
        ("model=llama-70b", ["warm", "hot"]),
        ("model=nothing", []),
        ("cause=thermal_throttle", ["warm", "hot"]),
        ("cause=prefill_interference", ["prefill"]),
        ("cause=nvlink", []),
        ("min_excess=0.1", ["prefill", "hot"]),
        ("min_excess=0.1&limit=1", ["prefill"]),
        ("cause=thermal_throttle&limit=1&min_excess=0.5", ["hot"]),
    ],
)
def test_slow_requests_are_listed_the_newest_first(query: str, ids: Sequence[str]) -> None:
    reply = few().get("explained", query)
    assert reply.status == 200, reply.body
    assert [each["request_id"] for each in reply.json] == ids


def test_a_line_of_the_list_says_how_late_and_why() -> None:
    (line,) = few().get("explained", "min_excess=0.5").json
    assert line == {
        "trace_id": TRACE,
        "request_id": "hot",
        "server": "vllm",
        "model": "llama-70b",
        "tenant": "acme",
        "start": OFFSET_S + START_S,
        "duration_seconds": NEAR(3.18),
        "time_to_first_token_seconds": 0.4,
        "completion_tokens": 100,
        "tokens_per_second": NEAR(99 / 1.5),
        "excess_seconds": 0.5,
        "causes": [
            {"cause": "thermal_throttle", "title": "GPU too hot", "fault": True, "seconds": 0.5, "share": 1.0},
        ],
    }


def test_a_hundred_are_listed_where_nobody_says_how_many() -> None:
    api = Api(*(explained(request_id=str(n)) for n in range(150)))
    assert len(api.get("explained").json) == 100


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("cause=heat", "no cause; they are thermal_throttle"),
        ("min_excess=-1", "greater than or equal to 0"),
        ("min_excess=nan", "finite"),
        ("limit=0", "greater than or equal to 1"),
        ("limit=501", "less than or equal to 500"),
        ("model=" + "x" * 257, "at most 256 characters"),
    ],
)
def test_a_filter_that_cannot_be_taken_says_what_was_expected(query: str, said: str) -> None:
    reply = few().get("explained", query)
    assert reply.status == 422
    assert said in reply.json["detail"]


# --- diagnose and surface ---------------------------------------------------------------------------------------------


def test_a_diagnosis_is_told_as_it_was_made() -> None:
    api = Api()
    reply = api.get("diagnose")
    assert reply.status == 200
    assert Diagnosis.model_validate_json(reply.body) == api.said
    assert api.queries == [DiagnoseQuery(1800.0, "", "", "", "", 0.95)]


def test_the_question_is_handed_over() -> None:
    api = Api()
    api.get("diagnose", "since=60&server=vllm&model=a%2Fb&x=tenant&y=temperature&quantile=0.5")
    assert api.queries == [DiagnoseQuery(60.0, "vllm", "a/b", "tenant", "temperature", 0.5)]


@pytest.mark.parametrize("path", ["diagnose", "surface"])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("from=1800000000&to=1800000060", DiagnoseQuery(from_unix_s=1.8e9, to_unix_s=1.8e9 + 60)),
        ("from=1800000000.5", DiagnoseQuery(from_unix_s=1.8e9 + 0.5)),
        ("to=1800000060&since=30", DiagnoseQuery(30.0, to_unix_s=1.8e9 + 60)),
        ("to=1800000060", DiagnoseQuery(to_unix_s=1.8e9 + 60)),
    ],
)
def test_any_stretch_of_time_can_be_asked_for(path: str, query: str, expected: DiagnoseQuery) -> None:
    api = Api()
    api.get(path, query)
    assert api.queries == [expected]


@pytest.mark.parametrize("path", ["diagnose", "surface"])
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("from=1800000000&to=1800000000", "begins before it ends"),
        ("from=1800000060&to=1800000000", "begins before it ends"),
        ("from=1800000000&to=1800007201", "up to 7200 s long"),
        ("from=1800000000&since=60", "either since or from"),
        ("from=-1", "greater than or equal to 0"),
        ("to=1e300", "less than or equal to"),
        ("to=inf", "finite"),
        ("from=yesterday", "valid number"),
        ("since=0", "greater than 0"),
        ("since=7201", "less than or equal to 7200"),
        ("since=nan", "finite"),
        ("since=30m", "valid number"),
        ("quantile=1", "less than or equal to 0.999"),
        ("quantile=inf", "finite"),
        ("x=" + "x" * 257, "at most 256 characters"),
    ],
)
def test_a_diagnosis_that_cannot_be_made_says_what_was_expected(path: str, query: str, said: str) -> None:
    api = Api()
    reply = api.get(path, query)
    assert reply.status == 422
    assert any(said in problem["message"] for problem in reply.json["errors"])
    assert api.queries == []


@pytest.mark.parametrize("path", ["diagnose", "surface"])
def test_a_model_may_be_told_as_it_is_printed_and_a_name_that_is_not_there_is_refused(path: str) -> None:
    api = Api()
    api.of_model = "llama-70b"
    assert api.get(path, "model=vllm/llama-70b").status == 200
    assert [(query.server, query.model) for query in api.queries] == [
        *(("", "vllm/llama-70b"), ("", ""), ("vllm", "llama-70b")),
    ]
    reply = api.get(path, "model=llama")
    assert reply.status == 404
    assert reply.json["detail"] == ("no request of model 'llama' ended in this time; requests ended of vllm/llama-70b")


@pytest.mark.parametrize("path", ["diagnose", "surface"])
@pytest.mark.parametrize(
    ("query", "wrong"), [("x=colour", "x"), ("y=colour", "y"), ("x=tenant&y=colour", "y"), ("x=colour&y=tenant", "x")]
)
def test_an_attribute_that_there_is_not_is_refused_with_those_there_are(path: str, query: str, wrong: str) -> None:
    api = Api()
    api.error = ValueError("no attribute 'colour' of requests; there are prompt_tokens, tenant")
    reply = api.get(path, query)
    assert (reply.status, reply.json["detail"]) == (422, f"{wrong}: {api.error}")
    assert reply.json["errors"] == [{"where": wrong, "message": str(api.error)}]


@pytest.mark.parametrize("query", ["", "x=tenant"])
def test_what_cannot_be_said_is_not_blamed_on_the_question(query: str) -> None:
    api = Api()
    try:
        diagnoses.nothing(excess_seconds=math.nan)
    except ValueError as error:
        api.error = error
    with pytest.raises(ValueError, match="excess_seconds"):
        api.get("diagnose", query)


def test_a_surface_is_told_alone() -> None:
    api = Api()
    reply = api.get("surface", "x=prompt_tokens&y=tenant")
    assert reply.status == 200
    assert reply.json["values"] == [[1.0, 1.4, None], [1.1, 1.3, 2.9]]
    assert api.queries[0].x == "prompt_tokens"


def test_where_there_is_no_surface_it_is_not_found() -> None:
    api = Api()
    api.said = diagnoses.nothing()
    reply = api.get("surface")
    assert reply.status == 404
    assert "too few requests" in reply.json["detail"]


def test_the_answers_are_described_for_those_who_read_the_docs() -> None:
    paths = ask(Api().app, "/openapi.json").json["paths"]
    for path in ("explain", "explained", "diagnose", "surface"):
        assert paths[f"/api/v1/{path}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
