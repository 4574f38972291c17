"""What an explanation has kept, diagnosed: of which period, and what of it is known."""

from __future__ import annotations

import functools

from gpumon.explain.diagnosing import diagnose_since
from gpumon.explain.diagnosis.model import Diagnosis
from tests.detect.findings import to_unix
from tests.explain.traffic import World, hot_world

BEGAN_S = 1001.0
"""The first step of a world."""


@functools.cache
def hot() -> World:
    """A minute of a server that was hot for ten seconds. Only looked at."""
    return hot_world()


def diagnosis(since_s: float, *, is_over: bool = False) -> Diagnosis:
    world = hot()
    now_s = world.stage.at_s
    view = world.stage.store.view(now_s)
    return diagnose_since(world.explanation, [], view, to_unix, since_s=now_s - since_s, until_s=now_s, is_over=is_over)


def test_of_a_time_that_has_passed_all_that_ran_in_it_is_told_as_it_was() -> None:
    """The stretch in which the server was hot, minutes later."""
    world = hot()
    now_s = world.stage.at_s
    later = world.stage.store.view(now_s + 600.0)
    ends_s = world.explanation.log.since(0.0).end_s
    middle_s = float(ends_s.min() + ends_s.max()) / 2
    said = diagnose_since(world.explanation, [], later, to_unix, since_s=middle_s - 10.0, until_s=middle_s + 10.0)
    assert said.timeline is not None
    assert said.timeline.step_seconds == 1.0
    assert sum(said.timeline.requests) < said.requests  # those that were still running at its end
    assert said.correlations == ()
    assert not any("some seconds after their end" in note for note in said.notes)


def test_of_half_an_hour_only_what_gpumon_has_run_is_known() -> None:
    said = diagnosis(1800.0)
    assert said.requests > 100
    assert said.until - said.since == 1800.0
    assert said.known_since == to_unix(BEGAN_S)
    assert any("gpumon began at" in note for note in said.notes)


def test_of_a_period_since_gpumon_runs_all_is_known() -> None:
    said = diagnosis(hot().stage.at_s - BEGAN_S)
    assert said.known_since is None
    assert not any("gpumon began at" in note for note in said.notes)


def test_requests_of_the_last_seconds_are_still_to_come_unless_all_is_over() -> None:
    late = "they are explained some seconds after their end"
    assert any(late in note for note in diagnosis(60.0).notes)
    assert not any(late in note for note in diagnosis(60.0, is_over=True).notes)
