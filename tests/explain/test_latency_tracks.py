"""Latencies by group, one value a second, of complete seconds only."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.group import Group, group_of
from gpumon.explain.group_room import GROUPS
from gpumon.explain.latency_tracks import FAST_CELLS, SECONDS, LatencyTracks, _quantile
from gpumon.model import RequestRecord
from gpumon.requests.logbuckets import log_buckets
from gpumon.requests.windows import Signal
from tests.detect.requests import request
from tests.detect.scenes import BEGIN_S, Stage

GROUP = Group("vllm", "m", (), "", "")
FIRST, GAP, RATE = range(3)


class Node:
    """A stage whose requests are taken at once."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.tracks = LatencyTracks()

    def take(self, *records: RequestRecord, step_s: float = 1.0, group: Group = GROUP) -> None:
        self.tracks.add(group, records, self.stage.step(step_s, records))

    def steady(self, seconds: int, gap_s: float = 0.05, first_s: float = 0.2) -> None:
        """A request each second that ends at its step and lasted two seconds."""
        for _ in range(seconds):
            begin_s = self.stage.at_s - 1.0
            self.take(request(begin_s, first_s=first_s, gap_s=gap_s, tokens=round((2.0 - first_s) / gap_s)))

    def known(self, row: int, group: Group = GROUP) -> dict[int, float]:
        """By second since the stage began."""
        seconds, values = self.tracks.series(group)
        return {int(s - BEGIN_S): float(v) for s, v in zip(seconds, values[row], strict=True) if v == v}


def assert_near(known: dict[int, float], expected: float) -> None:
    """All of them, within a bucket."""
    assert known
    assert list(known.values()) == pytest.approx([expected] * len(known), rel=0.19)


def coarse(seconds: list[float]) -> np.ndarray:
    return np.bincount(log_buckets(np.array(seconds)) // 4, minlength=91)[None].astype(np.float32)


def test_latencies_and_rate_of_a_steady_server() -> None:
    node = Node()
    node.steady(60)
    known = {row: node.known(row) for row in (FIRST, GAP, RATE)}
    assert_near(known[FIRST], 0.2)
    assert_near(known[GAP], 0.05)
    middle = [known[RATE][second] for second in range(10, 50)]
    assert middle == [pytest.approx(37, abs=1)] * 40, "36 gaps of two requests and a first token"


def test_seconds_are_told_when_they_are_complete_and_no_sooner() -> None:
    node = Node()
    node.steady(120)
    lag_s = node.stage.step(0.0, ()).latencies.models()[0].lag_s(Signal.INTER_TOKEN, 0.8)
    assert 1.0 < lag_s < 2.5
    newest = max(node.known(GAP))
    assert newest + 1 <= node.stage.at_s - BEGIN_S - 1.5 * lag_s < newest + 2
    late = [value for second, value in node.known(RATE).items() if second > newest - 10]
    assert min(late) > 35, "none is half full"


def test_a_slow_stretch_is_told_in_its_own_seconds() -> None:
    node = Node()
    node.steady(60)
    slow_from = node.stage.at_s - BEGIN_S
    node.steady(30, gap_s=0.3, first_s=0.5)
    node.steady(60)
    gaps = node.known(GAP)
    assert gaps[round(slow_from) - 3] == pytest.approx(0.05, rel=0.19)
    assert gaps[round(slow_from) + 10] == pytest.approx(0.3, rel=0.19)
    assert gaps[round(slow_from) + 35] == pytest.approx(0.05, rel=0.19)


def test_seconds_without_observations_have_a_rate_of_nothing_and_no_latency() -> None:
    node = Node()
    node.steady(30)
    node.stage.step(30.0)
    node.steady(30)
    assert node.known(RATE)[45] == 0.0
    assert 45 not in node.known(GAP)
    assert 45 not in node.known(FIRST)


def test_steps_of_several_tokens_count_as_so_many() -> None:
    node = Node()
    for _ in range(30):
        record = request(node.stage.at_s - 1.0, first_s=0.2, gap_s=0.2, tokens=9)
        record.token_counts = np.full(10, 4, dtype=np.int32)
        node.take(record)
    assert_near(node.known(GAP), 0.05)
    assert node.known(RATE)[10] == 40.0


def test_tokens_of_requests_that_do_not_tell_when_are_spread_evenly() -> None:
    node = Node()
    for _ in range(40):
        end_s = node.stage.at_s + 1.0
        node.take(request(end_s - 5.0, first_s=1.0, end_s=end_s, completion_tokens=41))
    assert_near(node.known(GAP), 0.1)
    assert node.known(RATE)[20] == pytest.approx(41.0)
    seconds, values = node.tracks.fast(GROUP)
    assert (len(seconds), values.shape) == (0, (2, 0)), "nothing is known of tenths"


def test_of_steps_of_unknown_size_only_the_number_of_tokens_is_used() -> None:
    node = Node()
    for _ in range(30):
        node.take(request(node.stage.at_s - 1.0, first_s=0.2, gap_s=0.2, tokens=9, per_token=False))
    assert node.known(RATE)[10] == pytest.approx(10.0, abs=1.0)


def test_requests_that_tell_of_no_tokens_have_only_a_first_one() -> None:
    node = Node()
    for _ in range(30):
        node.take(request(node.stage.at_s - 1.0, first_s=0.4, end_s=node.stage.at_s))
    assert_near(node.known(FIRST), 0.4)
    assert (node.known(GAP), node.known(RATE)) == ({}, {})


def test_tenths_of_a_second_tell_mean_gaps_and_rates() -> None:
    node = Node()
    node.steady(60)
    numbers, values = node.tracks.fast(GROUP)
    assert (np.diff(numbers) == 1).all()
    middle = (numbers > (BEGIN_S + 10) * 10) & (numbers < (BEGIN_S + 40) * 10)
    assert np.nanmax(np.abs(values[0, middle] - 0.05)) < 1e-9
    assert values[1, middle].mean() == pytest.approx(37, abs=0.5)
    assert numbers[-1] / 10 < node.stage.at_s - 1.0


def test_a_clock_ahead_of_ours_puts_nothing_into_the_future() -> None:
    node = Node()
    for _ in range(30):
        node.take(request(node.stage.at_s + 3600.0, first_s=0.2, gap_s=0.1, tokens=10))
    assert max(node.known(RATE)) < node.stage.at_s - BEGIN_S
    assert node.known(RATE)[10] == pytest.approx(11.0)


def test_ten_minutes_are_kept_and_four_of_tenths() -> None:
    node = Node()
    node.steady(700)
    seconds, _ = node.tracks.series(GROUP)
    assert SECONDS - 10 < len(seconds) <= SECONDS
    numbers, _ = node.tracks.fast(GROUP)
    assert FAST_CELLS - 50 < len(numbers) <= FAST_CELLS


def test_groups_are_kept_apart_and_bounded() -> None:
    node = Node()
    names = [f"m{number}" for number in range(GROUPS + 1)]
    for _ in range(2):
        node.stage.step(10.0)
        for name in names:
            record = request(node.stage.at_s - 1.0, gap_s=0.1, tokens=5, model=name)
            node.take(record, step_s=0.01, group=group_of(record))
    assert len(node.tracks.series(group_of(request(0.0, model=names[0])))[0])
    assert not len(node.tracks.series(group_of(request(0.0, model=names[-1])))[0])


def test_an_unknown_group_has_the_shape_of_nothing() -> None:
    tracks = LatencyTracks()
    assert tracks.series(GROUP)[1].shape == (3, 0)
    assert tracks.fast(GROUP)[1].shape == (2, 0)
    tracks.add(GROUP, [], Stage().step())
    assert tracks.series(GROUP)[1].shape == (3, 0)


@given(
    st.lists(
        st.builds(
            dict,
            start_ns=st.sampled_from([0, -1, 1, 10**18, 1 << 62, -(1 << 70), 1 << 80]),
            end_ns=st.sampled_from([0, 1, 10**18 + 10**9, 1 << 62, 1 << 80]),
            time_to_first_token_s=st.sampled_from([None, -1.0, 0.0, 1e9, math.nan, math.inf, 0.5]),
            completion_tokens=st.sampled_from([None, -5, 0, 1, 1 << 40, 7]),
            token_ns=st.sampled_from(
                [None, np.array([], np.int64), np.array([5, 3, 9]), np.array([-(1 << 62), 1 << 62, 1 << 62])]
            ),
            token_counts=st.sampled_from([None, np.array([1, 0, -3], np.int32), np.array([1 << 30] * 3, np.int32)]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_impossible_requests_say_nothing_that_is_no_number(told: list[dict[str, object]]) -> None:
    node = Node()
    node.steady(3)
    for each in told:
        record = request(node.stage.at_s, first_s=None)
        record.per_token = True
        for name, value in each.items():
            setattr(record, name, value)
        node.tracks.add(GROUP, [record], node.stage.step(1.0))
    node.stage.step(100.0)
    node.steady(3)
    for seconds, values in (node.tracks.series(GROUP), node.tracks.fast(GROUP)):
        assert len(seconds) == values.shape[1]
        assert not np.isinf(values).any()
        assert (values[~np.isnan(values)] >= 0).all()


@given(st.lists(st.floats(2e-4, 500.0), min_size=1, max_size=60))
def test_quantiles_are_at_most_a_bucket_off(values: list[float]) -> None:
    exact = sorted(values)[math.ceil(0.95 * len(values)) - 1]
    assert abs(math.log2(_quantile(coarse(values))[0] / exact)) <= 0.25 + 1e-9


def test_a_quantile_of_nothing_is_not_known() -> None:
    assert np.isnan(_quantile(np.zeros((2, 91), dtype=np.float32))).all()
