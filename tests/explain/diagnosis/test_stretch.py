"""The timeline, the worst stretch, and what changed in it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpumon.explain.diagnosis.inputs import Track
from gpumon.explain.diagnosis.model import BeforeDuring, Change
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.diagnosis.stretch import before_during, timeline, worst
from gpumon.explain.explained import Explained
from tests.explain.diagnosis.requests import UNIX_S, Signal, inputs, request, seen

CLOCK = Signal("sm_clock", "SM clock", "ratio", "> 0.7", 0.7, high_is_bad=False)


def load(first: int, last: int, *, every_s: float = 5.0, **told: object) -> list[Explained]:
    """Requests of one second each, one every five, that begin from a second to another."""
    count = int((last - first) / every_s)
    return [request(first + i * every_s, 1.0, **told) for i in range(count)]  # type: ignore[arg-type]


def burst(*, quiet: bool = True, signals: bool = False) -> list[Explained]:
    """Ten minutes of which the time from 300 to 400 s is slow."""
    well, slow = ([1.4], [1.0]) if signals else ([], [])
    before = load(0, 300, signals=well, number=1) if quiet else []
    during = load(300, 400, slow={"thermal_throttle": 0.3, "pcie": 0.1}, signals=slow, number=2, tokens=51)
    return [*before, *during, *load(400, 600, signals=well, number=3)]


def told(requests: list[Explained], **fields: object) -> BeforeDuring:
    given = inputs(requests, **fields)  # type: ignore[arg-type]
    of = Seen(given)
    stretch = worst(of)
    assert stretch is not None
    return before_during(given, of, stretch)


def test_the_worst_stretch_is_found_with_the_quiet_time_before_it() -> None:
    found = worst(seen(burst()))
    assert found is not None
    assert (found.first, found.last, found.before) == (30, 39, (0, 29))
    assert found.excess_s == pytest.approx(20 * 0.4)


def test_where_it_is_slow_all_the_time_the_stretch_is_the_period_and_nothing_is_before() -> None:
    found = worst(seen(load(0, 600, slow={"pcie": 0.3})))
    assert found is not None
    assert (found.first, found.last, found.before) == (0, 59, None)


def test_of_a_peak_and_a_long_stretch_the_one_with_more_excess_counts() -> None:
    requests = [
        *load(0, 200),
        request(100.0, 3.0, slow={"process_stopped": 2.5}),
        *load(200, 400, slow={"thermal_throttle": 0.3}),
        *load(400, 600),
    ]
    found = worst(seen(requests))
    assert found is not None
    assert (found.first, found.last) == (20, 39)


def test_a_stretch_begins_where_a_queue_began_to_grow() -> None:
    growing = [
        request(float(at), 1.0 + lost, slow={"queueing": lost})
        for at in range(200, 400, 5)
        for lost in ((at - 190) / 25,)
    ]
    found = worst(seen([*load(0, 200), *growing, *load(420, 600)]))
    assert found is not None
    assert (found.first, found.before) == (20, (0, 19))


def test_an_even_background_is_the_usual() -> None:
    background = [each for at in range(0, 600, 100) for each in load(at, at + 100, slow={"unexplained": 0.05})]
    found = worst(seen([*background, *load(300, 400, slow={"pcie": 0.5})]))
    assert found is not None
    assert (found.first, found.last, found.before) == (30, 39, (0, 29))


def test_slow_for_most_of_the_period_still_has_a_time_before() -> None:
    slow = [request(float(at), 1.0, slow={"pcie": 0.4 + 0.2 * (at % 3)}) for at in range(60, 600, 5)]
    found = worst(seen([*load(0, 60), *slow]))
    assert found is not None
    assert (found.first, found.last, found.before) == (6, 59, (0, 5))


def test_an_idle_engine_is_no_comparison() -> None:
    requests = [*load(0, 100), *load(200, 300, slow={"pcie": 0.5}), *load(300, 600)]
    found = worst(seen(requests))
    assert found is not None
    assert (found.first, found.last, found.before) == (20, 29, (0, 9))
    alone = worst(seen([*load(0, 100, gpus=("GPU-9",)), *load(200, 300, slow={"pcie": 0.5}), *load(300, 600)]))
    assert alone is not None
    assert alone.before is None


def test_without_excess_there_is_no_stretch() -> None:
    assert worst(seen(load(0, 100))) is None
    assert worst(seen([])) is None


def test_signals_before_and_during_are_means_over_the_track_of_the_engine_that_lost_most() -> None:
    seconds = np.arange(600)
    values = np.where((seconds >= 300) & (seconds < 400), 1.0, 1.4)[None].astype(np.float32)
    values[0, 310] = math.nan
    other = Track(seconds, np.full((1, 600), 9.0))
    requests = [*burst(), request(10.0, 1.0, gpus=("GPU-7",))]
    groups = {each.group: other for each in requests} | {requests[0].group: Track(seconds, values)}
    found = told(
        [each._replace(signals=np.zeros(1, np.float32)) for each in requests], dimensions=(CLOCK,), tracks=groups
    )
    assert (found.during.start, found.during.end) == (UNIX_S + 300.0, UNIX_S + 400.0)
    assert found.before is not None
    assert (found.before.start, found.before.end) == (UNIX_S + 0.0, UNIX_S + 300.0)
    change = next(each for each in found.changes if each.signal == "sm_clock")
    assert (change.before, change.during, change.change) == pytest.approx((1.4, 1.0, 1.0 / 1.4 - 1.0))


@pytest.mark.parametrize("seconds", [np.arange(500, 600), np.arange(330, 600), np.empty(0, dtype=np.int64)])
def test_where_the_track_does_not_reach_the_requests_own_means_stand_for_it(seconds: np.ndarray) -> None:
    requests = burst(signals=True)
    track = Track(seconds, np.full((1, len(seconds)), 7.0))
    found = told(requests, dimensions=(CLOCK,), tracks={requests[0].group: track})
    change = next(each for each in found.changes if each.signal == "sm_clock")
    assert (change.before, change.during) == pytest.approx((1.4, 1.0))


def test_without_a_time_before_only_what_was_during_is_told() -> None:
    found = told(burst(quiet=False, signals=True), dimensions=(CLOCK,))
    assert found.before is None
    change = next(each for each in found.changes if each.signal == "sm_clock")
    assert change == Change(signal="sm_clock", title="SM clock", unit="ratio", before=None, during=1.0, change=None)


def test_latencies_are_told_beside_the_signals_and_what_changed_most_comes_first() -> None:
    found = told(burst())
    by_name = {each.signal: each for each in found.changes}
    per_token = by_name["response_time_per_token"]
    assert (per_token.before, per_token.during) == pytest.approx((1.0 / 101.0, 1.0 / 51.0))
    assert found.changes[0].signal in ("response_time_per_token", "completion_tokens", "tokens_per_second")
    assert "prompt_tokens" not in by_name
    assert "queue_time" not in by_name


def test_changes_of_less_than_a_tenth_are_left_out() -> None:
    requests = [*load(0, 300, signals=[1.0, 1.0]), *load(300, 400, signals=[1.09, 1.11], slow={"pcie": 0.5})]
    found = told(requests, dimensions=(Signal("little"), Signal("enough")), to_s=400.0)
    assert {"little", "enough"} & {each.signal for each in found.changes} == {"enough"}


def test_the_worst_is_where_most_is_lost_beyond_the_usual() -> None:
    """Load that is always there, and loses more in sum, is no stretch."""
    always = load(0, 600, slow={"prefill_interference": 0.4}, gpus=("GPU-8",), every_s=1.0)
    found = worst(seen([*always, *load(0, 300), *load(300, 400, slow={"pcie": 0.3}), *load(400, 600)]))
    assert found is not None
    assert (found.first, found.last, found.engine) == (30, 39, 1)
    assert found.excess_s == pytest.approx(100 * 0.4 + 20 * 0.3, rel=0.01)


def test_without_a_time_before_the_time_after_is_calm() -> None:
    found = worst(seen(burst(quiet=False)))
    assert found is not None
    assert (found.first, found.last, found.before, found.calm) == (0, 9, None, (10, 29))


def test_from_nothing_to_something_has_no_ratio() -> None:
    requests = [*load(0, 300, signals=[0.0]), *load(300, 400, signals=[500.0], slow={"page_faults": 0.5})]
    found = told(requests, dimensions=(Signal("major_faults"),), to_s=400.0)
    change = next(each for each in found.changes if each.signal == "major_faults")
    assert (change.before, change.during, change.change) == (0.0, 500.0, None)
    assert change in found.changes[:3]


def test_the_timeline_conserves_excess_and_counts_every_request() -> None:
    found = timeline(inputs(burst()), seen(burst()))
    assert found is not None
    assert (found.start, found.step_seconds, len(found.requests)) == (UNIX_S, 10.0, 60)
    assert sum(found.requests) == 120
    assert sum(found.excess) == pytest.approx(8.0, abs=1e-3)
    assert {cause: round(sum(values), 3) for cause, values in found.by_cause.items()} == {
        "thermal_throttle": 6.0,
        "pcie": 2.0,
    }
    assert found.response_p95[35] == 1.0
    assert timeline(inputs([]), seen([])) is None


def test_cells_without_requests_have_counts_of_nought_and_no_latency() -> None:
    found = timeline(
        inputs([request(100.0, 1.0), request(150.0, 1.0)]), seen([request(100.0, 1.0), request(150.0, 1.0)])
    )
    assert found is not None
    assert (found.start, found.requests[:6]) == (UNIX_S + 100.0, (1, 0, 0, 0, 0, 1))
    assert found.response_p95[:3] == (1.0, None, None)
