"""Why the probe's requests were slow, of a gpumon that knows them, does not yet, or never will."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gpumon.api_client import Api
from gpumon.probe.climbing import Climbed
from gpumon.probe.late import LIMIT, Explained, explained
from tests.probe.answers import answered, climbed
from tests.probe.gpumon import Gpumon, late

FIRST, LAST = "1" * 32, "2" * 32


@pytest.fixture
def gpumon() -> Iterator[Gpumon]:
    with Gpumon() as made:
        yield made


def ladder() -> list[Climbed]:
    return [climbed(1024, [answered(0.1, trace=FIRST)]), climbed(2048, [answered(0.1, trace=LAST)])]


def ask(gpumon: Gpumon, made: list[Climbed] | None = None) -> Explained:
    api = Api(gpumon.url, {}, timeout_s=10.0)
    return asyncio.run(explained(api, ladder() if made is None else made, wait_s=0.05, every_s=0.01))


def test_causes_are_joined_by_trace_ids_and_others_are_left_out(gpumon: Gpumon) -> None:
    gpumon.late = [late(FIRST, page_faults=1.5, queueing=0.5), late("9" * 32, queueing=7.0)]
    said = ask(gpumon)
    assert said.note == ""
    assert {each.cause: each.seconds for each in said.causes[FIRST].values()} == {"page_faults": 1.5, "queueing": 0.5}
    assert set(said.causes) == {FIRST}


def test_it_waits_until_the_last_request_is_explained(gpumon: Gpumon) -> None:
    gpumon.known = lambda trace_id: len(gpumon.asked) > 4
    gpumon.late = [late(LAST, queueing=1.0)]
    assert set(ask(gpumon).causes) == {LAST}
    assert gpumon.asked[1].endswith(LAST)


def test_where_no_spans_come_that_is_said_and_soon(gpumon: Gpumon) -> None:
    gpumon.known = lambda trace_id: False
    said = ask(gpumon)
    assert said.causes == {}
    assert said.note.startswith("gpumon has no spans of these requests")
    gpumon.asked.clear()
    made = ladder()
    made[1].ended_ns = made[0].ended_ns + 10**9  # the first one has ended long ago
    ask(gpumon, made)
    assert len(gpumon.asked) == 2


def test_where_the_last_one_never_comes_the_first_one_counts(gpumon: Gpumon) -> None:
    gpumon.known = lambda trace_id: trace_id == FIRST
    gpumon.late = [late(FIRST, queueing=1.0)]
    assert set(ask(gpumon).causes) == {FIRST}


def test_more_slow_requests_than_are_told_are_said(gpumon: Gpumon) -> None:
    gpumon.late = [late(f"{number:032x}", queueing=1.0) for number in range(LIMIT)]
    assert f"newest {LIMIT}" in ask(gpumon).note


def test_without_success_nobody_is_asked(gpumon: Gpumon) -> None:
    assert ask(gpumon, [climbed(1024, [])]) == ({}, "")
    assert gpumon.asked == []


def test_an_answer_that_is_none_is_a_note(gpumon: Gpumon) -> None:
    gpumon.late = [{"trace_id": FIRST}]
    assert ask(gpumon).note.startswith("why requests were slow is not known: ")


def test_where_nothing_is_explained_nobody_waits(gpumon: Gpumon) -> None:
    gpumon.off = "nothing is explained here: explain.enabled"
    said = ask(gpumon)
    assert said == (
        {},
        f"why requests were slow is not known: {gpumon.url}: nothing is explained here: explain.enabled",
    )
    assert len(gpumon.asked) == 1
