"""/api/v1/timeline: lanes of GPUs and engines under a request, on its clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.explain.dimensions import DIMENSIONS
from gpumon.explain.fast_signals import NAMES
from gpumon.explain.group import Group
from gpumon.web.timeline import POINTS_MAX, REQUESTS_MAX, Lane, Ran, Timeline, timeline
from tests.web.known import OFFSET_S, START_S, Known, present
from tests.web.test_requests import request

NEAR = pytest.approx
GROUP = Group("vllm", "llama-70b", ("GPU-3", "GPU-2"), "", "")
TRACE = f"{1:032x}"


def to_unix(at_s: float) -> float:
    return at_s + OFFSET_S


class Remembered:
    """Fast rows that count up by tenths from steady 1,000 on, and one dimension that is the second."""

    now_s = 1060.0

    def __init__(self, *, fast: Sequence[str] = ("sm_active",), dimension: str = "major_faults") -> None:
        self._fast = [NAMES.index(name) for name in fast]
        self._dimension = [each.name for each in DIMENSIONS].index(dimension)
        self.asked: list[tuple[str, int, int]] = []

    def fast(self, uuid: str, first: int, last: int) -> NDArray[np.float64]:
        self.asked.append((uuid, first, last))
        rows = np.full((len(NAMES), last - first + 1), np.nan)
        numbers = np.arange(first, last + 1)
        for row in self._fast:
            rows[row] = np.where(numbers >= 10_000, numbers - 10_000, np.nan)
        return rows

    def dimensions(self, group: Group) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        seconds = np.arange(1000, 1060)
        rows = np.full((len(DIMENSIONS), 60), np.nan, dtype=np.float32)
        rows[self._dimension] = seconds - 1000
        return seconds, rows


def ran(start_s: float = 1010.0, end_s: float = 1020.0, request_id: str = "a", group: Group = GROUP) -> Ran:
    return Ran(request_id, "", group, start_s, start_s + 0.5, end_s)


def told(*of: Ran, margin_s: float = 0.0, incidents: Sequence[Incident] = (), **more: Any) -> Timeline:
    signals = Remembered(**more)
    return timeline(TRACE, of or [ran()], margin_s, signals, incidents, {"GPU-2": "2", "GPU-3": "3"}, to_unix)


def lane(said: Timeline, name: str, scope: str = "gpu") -> Lane:
    return next(each for each in said.lanes if (each.name, each.scope) == (name, scope))


def test_the_request_and_the_time_around_it_are_told() -> None:
    said = told(margin_s=2.0)
    assert (said.start, said.end) == (1008.0 + OFFSET_S, 1022.0 + OFFSET_S)
    (request,) = said.requests
    assert (request.start, request.first_token, request.end) == (1010 + OFFSET_S, 1010.5 + OFFSET_S, 1020 + OFFSET_S)
    assert (request.request_id, request.span_id, request.model) == ("a", None, "llama-70b")


def test_gpu_lanes_come_by_index_in_tenths_of_a_second_on_the_requests_clock() -> None:
    said = told()
    assert [(each.gpu, each.uuid) for each in said.lanes if each.scope == "gpu"] == [("2", "GPU-2"), ("3", "GPU-3")]
    of = lane(said, "sm_active")
    assert (of.start, of.step_seconds, len(of.values)) == (1010.0 + OFFSET_S, 0.1, 100)
    assert of.values[:3] == [100.0, 101.0, 102.0]


def test_engine_lanes_come_in_seconds_with_their_bounds() -> None:
    of = lane(told(), "major_faults", "engine")
    assert (of.start, of.step_seconds, of.values) == (1010.0 + OFFSET_S, 1.0, [float(n) for n in range(10, 20)])
    assert (of.gpu, of.unit, of.bound, of.high_is_bad) == (None, "faults/s", 50.0, True)


def test_what_is_not_known_is_left_out_and_what_is_known_in_part_is_null() -> None:
    said = told(ran(999.0, 1001.0))
    assert {each.name for each in said.lanes} == {"sm_active", "major_faults"}
    assert lane(said, "sm_active").values[:11] == [None] * 10 + [0.0]
    assert told(ran(900.0, 950.0)).lanes == []


def test_of_a_request_that_lasted_for_days_only_what_can_be_known_is_asked_for() -> None:
    signals = Remembered()
    said = timeline(TRACE, [ran(-1e9, 1e12)], 30.0, signals, [], {}, to_unix)
    assert signals.asked == [("GPU-2", 8200, 10_599), ("GPU-3", 8200, 10_599)]
    assert max(len(each.values) for each in said.lanes) <= POINTS_MAX


def test_a_long_lane_is_joined_by_the_mean_and_throttling_and_faults_by_the_worst() -> None:
    said = told(ran(900.0, 1060.0), fast=("sm_active", "throttled"))
    mean, worst = lane(said, "sm_active"), lane(said, "throttled")
    assert (mean.step_seconds, len(mean.values)) == (0.2, 800)
    assert (mean.values[499], mean.values[500], worst.values[500]) == (None, 0.5, 1.0)


def test_requests_of_several_engines_have_the_lanes_of_each() -> None:
    other = Group("vllm", "qwen", ("GPU-9",), "", "")
    said = told(ran(), ran(1000.0, 1005.0, "b", other))
    assert [each.request_id for each in said.requests] == ["b", "a"]
    assert [each.gpu for each in said.lanes if each.scope == "gpu"] == ["2", "3", None]
    assert len([each for each in said.lanes if each.scope == "engine"]) == 2


def test_of_a_trace_with_many_requests_the_first_are_told() -> None:
    said = told(*(ran(1000.0 + number, 1030.0, str(number)) for number in range(40)))
    assert len(said.requests) == REQUESTS_MAX


@pytest.mark.parametrize(
    ("entity", "since_s", "closed_s", "is_told"),
    [
        (Entity("gpu", "gpu 3", "3", "GPU-3"), 1000.0, None, True),
        (Entity("gpu", "gpu 4", "4", "GPU-4"), 1000.0, None, False),
        (Entity("host", ""), 1000.0, 1012.0, True),
        (Entity("host", ""), 1000.0, 1009.0, False),
        (Entity("host", ""), 1021.0, None, False),
        (Entity("server", "vllm/llama-70b at 127.0.0.1:8000"), 1000.0, None, True),
        (Entity("server", "vllm/qwen"), 1000.0, None, False),
    ],
)
def test_incidents_that_held_meanwhile_where_it_ran_are_told(
    entity: Entity, since_s: float, closed_s: float | None, *, is_told: bool
) -> None:
    seen_s = closed_s if closed_s is not None else 1050.0
    incident = Incident("i", "ecc", entity, Severity.INFO, since_s, since_s, seen_s, "s", (), "a", closed_s)
    said = told(incidents=[incident]).incidents
    assert bool(said) == is_told
    if said:
        assert said[0].until == (to_unix(seen_s) if closed_s is not None else None)


def test_a_request_whose_details_are_gone_is_found_by_its_row() -> None:
    known = Known()
    assert known.explanation is not None
    known.put("gpus", *present())
    known.explanation.log.extend([request(1), request(2)])
    said = known.get("timeline", f"trace_id={TRACE}")
    (only,) = said["requests"]
    assert (only["request_id"], only["end"]) == ("1", START_S + 1 + OFFSET_S)
    assert only["first_token"] == NEAR(START_S + 1 - 3.18 + 0.4 + OFFSET_S)
    assert (said["lanes"], said["incidents"]) == ([], [])


@pytest.mark.parametrize("query", ["trace_id=" + "0" * 31 + "9", f"trace_id={TRACE}&request_id=other"])
def test_a_request_that_is_not_known_is_not_found(query: str) -> None:
    known = Known()
    assert known.explanation is not None
    known.explanation.log.extend([request(1)])
    reply = known.ask("timeline", query)
    assert reply.status == 404
    assert "/api/v1/requests" in reply.json["detail"]


@pytest.mark.parametrize(
    "query",
    ["", "trace_id=", "trace_id=xyz", f"trace_id={TRACE}0", f"trace_id={TRACE}%0a", f"trace_id={TRACE}&margin=31",
     f"trace_id={TRACE}&margin=nan", f"trace_id={TRACE}&request_id=" + "x" * 257],
)  # fmt: skip
def test_a_question_that_cannot_be_answered_is_refused(query: str) -> None:
    assert Known().ask("timeline", query).status == 422
