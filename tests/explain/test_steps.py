"""From requests to steps and to slow stretches, for everything that servers tell or do not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon.explain import steps as module
from gpumon.explain.load import Ran
from gpumon.explain.steps import CAP_S, LEAST_S, SUSTAINED, Slow, Steps, ran_of, slow_of, steps_of
from gpumon.model import RequestRecord

START_S = 5000.0
START_NS = 1_800_000_000_000_000_000
SECOND = 1_000_000_000


def record(lasted_s: float = 4.0, **told: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "trace_id": bytes(16),
        "request_id": "",
        "server": "vllm",
        "model": "m",
        "arrived_s": START_S,
        "start_ns": START_NS,
        "end_ns": START_NS + round(lasted_s * SECOND),
    }
    return RequestRecord(**(fields | told))


def token_ns(*after_s: float) -> NDArray[np.int64]:
    return np.array([START_NS + round(moment_s * SECOND) for moment_s in after_s], dtype=np.int64)


def ran(told: RequestRecord) -> Ran:
    found = ran_of(told, START_S)
    assert found is not None
    return found


# --- when a request did what ------------------------------------------------------------------------------------------


def test_of_a_server_that_tells_its_length_and_first_token_only_all_before_that_is_computing() -> None:
    # As vLLM's released versions do.
    found = ran(record(time_to_first_token_s=0.5, prompt_tokens=100, completion_tokens=50))
    assert found == Ran(START_S, START_S, START_S + 0.5, START_S + 4.0, 100, 100, 50)


def test_of_a_server_that_tells_its_phases_the_queue_is_apart() -> None:
    found = ran(record(time_to_first_token_s=0.5, queue_s=0.2, prefill_s=0.3, decode_s=3.5))
    assert (found.admitted_s, found.first_s, found.end_s) == pytest.approx((5000.2, 5000.5, 5004.0))


def test_phases_alone_tell_when_the_first_token_came() -> None:
    found = ran(record(queue_s=0.2, prefill_s=0.3))
    assert (found.admitted_s, found.first_s) == pytest.approx((5000.2, 5000.5))


def test_without_a_queue_what_is_before_computing_is_waiting() -> None:
    found = ran(record(time_to_first_token_s=0.5, prefill_s=0.1))
    assert (found.admitted_s, found.first_s) == pytest.approx((5000.4, 5000.5))


def test_the_first_token_is_that_of_the_token_times_where_nothing_else_tells() -> None:
    found = ran(record(token_ns=token_ns(0.7, 0.8, 0.9), per_token=True))
    assert found.first_s == pytest.approx(5000.7)
    assert found.made == 3


def test_a_time_of_the_first_token_counts_more_than_durations() -> None:
    told = record(first_token_ns=int(token_ns(0.4)[0]), time_to_first_token_s=0.9, queue_s=0.1, prefill_s=0.1)
    assert ran(told).first_s == pytest.approx(5000.4)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"queue_s": 0.2},
        {"prefill_s": 0.2},
        {"decode_s": 2.0},
        {"completion_tokens": 100},
        {"token_ns": np.zeros(0, dtype=np.int64)},
        {"lasted_s": -1.0, "time_to_first_token_s": 0.1},
        {"lasted_s": CAP_S + 1.0, "time_to_first_token_s": 0.1},
        {"time_to_first_token_s": 5.0},
        {"time_to_first_token_s": -0.1},
        {"time_to_first_token_s": math.nan},
        {"time_to_first_token_s": math.inf},
        {"first_token_ns": 0},
        {"first_token_ns": 2**63 - 1},
        {"queue_s": 3.0, "prefill_s": 3.0},
    ],
)
def test_of_a_request_that_does_not_tell_or_tells_what_cannot_be_nothing_is_known(told: dict[str, Any]) -> None:
    assert ran_of(record(**told), START_S) is None


def test_a_first_token_a_hair_after_the_end_is_at_the_end() -> None:
    found = ran(record(time_to_first_token_s=4.0005))
    assert found.first_s == found.end_s == pytest.approx(5004.0)


def test_a_request_of_no_duration_is_one() -> None:
    found = ran(record(0.0, time_to_first_token_s=0.0))
    assert found.start_s == found.admitted_s == found.first_s == found.end_s == START_S


@pytest.mark.parametrize("queue_s", [-1.0, 0.0, 0.9, 100.0, math.inf, -math.inf, math.nan])
def test_a_wait_that_cannot_be_leaves_the_order_of_events(queue_s: float) -> None:
    found = ran(record(time_to_first_token_s=0.5, queue_s=queue_s))
    assert START_S <= found.admitted_s <= found.first_s == pytest.approx(5000.5)


@pytest.mark.parametrize("prefill_s", [-1.0, 0.0, 100.0, math.inf, math.nan])
def test_a_prefill_that_cannot_be_leaves_the_order_of_events(prefill_s: float) -> None:
    found = ran(record(time_to_first_token_s=0.5, prefill_s=prefill_s))
    assert START_S <= found.admitted_s <= found.first_s


def test_cached_tokens_are_not_computed() -> None:
    assert ran(record(time_to_first_token_s=0.5, prompt_tokens=1000, cached_tokens=900)).computed == 100
    assert ran(record(time_to_first_token_s=0.5, prompt_tokens=100, cached_tokens=900)).computed == 0
    assert ran(record(time_to_first_token_s=0.5, prompt_tokens=100, cached_tokens=-5)).computed == 100
    assert ran(record(time_to_first_token_s=0.5, cached_tokens=900)).prompt == 0


def test_negative_numbers_of_tokens_are_none() -> None:
    found = ran(record(time_to_first_token_s=0.5, prompt_tokens=-7, completion_tokens=-7))
    assert (found.prompt, found.computed, found.made) == (0, 0, 0)


FIGURE = st.none() | st.floats(allow_nan=False) | st.floats(0, 5)
COUNT = st.none() | st.integers(-5, 2**63 - 1)


@given(
    st.fixed_dictionaries(
        {
            "lasted_s": st.floats(-2, 4000),
            "time_to_first_token_s": FIGURE,
            "queue_s": FIGURE,
            "prefill_s": FIGURE,
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "cached_tokens": COUNT,
            "first_token_ns": st.none() | st.integers(0, 2**63 - 1) | st.integers(START_NS, START_NS + 5 * SECOND),
        }
    )
)
def test_whatever_is_told_events_are_in_order_and_nothing_is_negative(told: dict[str, Any]) -> None:
    found = ran_of(record(**told), START_S)
    if found is not None:
        times = [found.start_s, found.admitted_s, found.first_s, found.end_s]
        assert times == sorted(times)
        assert all(math.isfinite(moment) for moment in times)
        assert min(found.prompt, found.computed, found.made) >= 0
        assert found.computed <= found.prompt


# --- steps ------------------------------------------------------------------------------------------------------------


def steps(*told: RequestRecord) -> Steps:
    return steps_of(told, [ran(each) for each in told])


def rows(found: Steps) -> list[tuple[int, float, float, float, float]]:
    columns = (found.owners, found.starts_s - START_S, found.ends_s - START_S, found.counts, found.tokens)
    return [tuple(round(value, 6) for value in row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def test_every_gap_between_tokens_is_a_step() -> None:
    found = steps(record(token_ns=token_ns(0.5, 0.6, 0.8, 0.9), per_token=True))
    assert rows(found) == [(0, 0.5, 0.6, 1, 1), (0, 0.6, 0.8, 1, 1), (0, 0.8, 0.9, 1, 1)]
    assert found.lengths_s.tolist() == pytest.approx([0.1, 0.2, 0.1])


def test_a_step_of_several_tokens_is_one_step_and_those_without_are_of_the_next() -> None:
    counts = np.array([1, 3, 0, 2], dtype=np.int32)
    found = steps(record(token_ns=token_ns(0.5, 0.6, 0.8, 0.9), token_counts=counts, per_token=True))
    assert rows(found) == [(0, 0.5, 0.6, 1, 3), (0, 0.6, 0.9, 1, 2)]


def test_steps_of_unknown_size_are_steps() -> None:
    found = steps(record(token_ns=token_ns(0.5, 0.6, 0.8), per_token=False, completion_tokens=10))
    assert rows(found) == [(0, 0.5, 0.6, 1, 1), (0, 0.6, 0.8, 1, 1)]


def test_a_request_that_tells_only_how_long_it_decoded_is_one_stretch_of_many_steps() -> None:
    found = steps(record(time_to_first_token_s=0.5, completion_tokens=11))
    assert rows(found) == [(0, 0.5, 4.0, 10, 10)]


@pytest.mark.parametrize(
    "told",
    [
        {"time_to_first_token_s": 0.5},
        {"time_to_first_token_s": 0.5, "completion_tokens": 0},
        {"time_to_first_token_s": 0.5, "completion_tokens": 1},
        {"time_to_first_token_s": 4.0, "completion_tokens": 50},
        {"token_ns": token_ns(0.5), "per_token": True},
        {"token_ns": token_ns(0.5, 0.5, 0.5), "per_token": True},
        {"token_ns": token_ns(0.5, 0.6), "token_counts": np.array([1, 0], dtype=np.int32), "per_token": True},
    ],
)
def test_a_request_that_decoded_nothing_has_no_steps_or_none_that_cannot_be(told: dict[str, Any]) -> None:
    found = steps(record(**told))
    assert (found.lengths_s > 0).all()
    assert len(found.owners) <= 1


def test_steps_of_several_requests_are_their_own_whatever_each_tells() -> None:
    found = steps(
        record(time_to_first_token_s=0.5, completion_tokens=11),
        record(token_ns=token_ns(0.5, 0.6), per_token=True),
        record(time_to_first_token_s=0.1),
        record(token_ns=token_ns(0.7, 0.8, 0.9), per_token=False),
    )
    assert sorted(rows(found)) == [
        (0, 0.5, 4.0, 10, 10),
        (1, 0.5, 0.6, 1, 1),
        (3, 0.7, 0.8, 1, 1),
        (3, 0.8, 0.9, 1, 1),
    ]


def test_no_requests_have_no_steps() -> None:
    assert rows(steps_of([], [])) == []
    assert rows(steps(record(time_to_first_token_s=0.5))) == []


def test_each_request_has_its_own_clock() -> None:
    late_ns = 7 * SECOND
    other = record(token_ns=token_ns(0.5, 0.6) + late_ns, per_token=True)
    other.start_ns += late_ns
    other.end_ns += late_ns
    found = steps_of([record(token_ns=token_ns(0.5, 0.6), per_token=True), other], [ran(other)._replace(), ran(other)])
    assert [row[1:3] for row in rows(found)] == [(0.5, 0.6), (0.5, 0.6)]


@pytest.mark.parametrize("off_s", [-3 * 86400.0, 3 * 86400.0])
def test_token_times_far_outside_the_request_are_not_its_steps(off_s: float) -> None:
    # Steps may come from another host, by another clock; and anybody may send anything.
    good = record(token_ns=token_ns(0.5, 0.6, 0.7), per_token=True)
    told = record(
        token_ns=token_ns(*sorted([0.5, 0.6, 0.7, off_s, off_s + 0.1])), per_token=True, time_to_first_token_s=0.5
    )
    found = steps(good, told)
    assert (found.starts_s > START_S - 60.0).all()
    assert (found.ends_s < START_S + 64.0).all()
    assert len(found.owners) >= 2


def test_times_that_go_back_make_no_steps() -> None:
    found = steps(record(token_ns=token_ns(0.5, 0.7, 0.6, 0.8), per_token=True))
    assert (found.lengths_s > 0).all()


def test_a_start_at_the_end_of_time_harms_no_neighbour() -> None:
    end_ns = 2**63 - 1
    odd = record(time_to_first_token_s=0.5, completion_tokens=11, start_ns=end_ns - 4 * SECOND, end_ns=end_ns)
    found = steps(odd, record(token_ns=token_ns(0.5, 0.6), per_token=True))
    assert (1, 0.5, 0.6, 1, 1) in rows(found)


# --- slow stretches ---------------------------------------------------------------------------------------------------


def row_of(lengths_s: NDArray[np.float64], start_s: float = START_S, owner: int = 0, counts: float = 1.0) -> Steps:
    """Steps of one request, one after the other."""
    ends = start_s + np.cumsum(lengths_s)
    each = np.full(len(lengths_s), counts)
    return Steps(np.full(len(lengths_s), owner), ends - lengths_s, ends, each, each)


def joined(*told: Steps) -> Steps:
    return Steps(*(np.concatenate(columns) for columns in zip(*told, strict=True)))


def slow(told: Steps, expected_s: float | NDArray[np.float64] = 0.02) -> Slow:
    found = slow_of(told, np.broadcast_to(np.asarray(expected_s, dtype=np.float64), told.starts_s.shape) * told.counts)
    check_consistent(told, found, np.broadcast_to(expected_s, told.starts_s.shape) * told.counts)
    return found


def check_consistent(told: Steps, found: Slow, expected_s: NDArray[np.float64]) -> None:
    """What must hold of any answer."""
    count = len(found.owners)
    assert found.members.shape == told.owners.shape
    assert set(found.members.tolist()) - {-1} == set(range(count))
    assert list(zip(found.owners, found.starts_s, strict=True)) == sorted(
        zip(found.owners, found.starts_s, strict=True)
    )
    for number in range(count):
        mine = found.members == number
        assert set(told.owners[mine].tolist()) == {int(found.owners[number])}
        assert found.starts_s[number] == told.starts_s[mine].min()
        assert found.ends_s[number] == told.ends_s[mine].max()
        assert found.actual_s[number] == pytest.approx(told.lengths_s[mine].sum())
        assert found.expected_s[number] == pytest.approx(expected_s[mine].sum())
        assert found.tokens[number] == pytest.approx(told.tokens[mine].sum())
    assert (found.excess_s >= 0).all()
    inside = found.members >= 0
    net = np.bincount(found.members[inside], (told.lengths_s - expected_s)[inside], count)[:count]
    np.testing.assert_allclose(found.excess_s, np.maximum(net, 0.0), atol=1e-6)


def test_steps_on_time_are_not_slow() -> None:
    assert len(slow(row_of(np.full(200, 0.02))).owners) == 0


def test_one_step_that_stands_out_is_slow_alone() -> None:
    lengths = np.full(200, 0.02)
    lengths[77] = 0.5
    found = slow(row_of(lengths))
    assert found.excess_s.tolist() == pytest.approx([0.48])
    assert np.flatnonzero(found.members >= 0).tolist() == [77]


def test_a_step_late_by_less_than_clocks_can_tell_is_not_slow() -> None:
    lengths = np.full(200, 0.0005)
    lengths[100] = 0.0005 + 0.9 * LEAST_S
    assert len(slow(row_of(lengths), 0.0005).owners) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_is_a_tenth_slower_is_slow_though_no_step_stands_out(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = 0.02 * (1 + 0.025 * random.standard_normal(1000))
    lengths[400:700] *= 1.1
    found = slow(row_of(lengths))
    assert found.excess_s.sum() == pytest.approx(0.1 * 0.02 * 300, rel=0.25)
    inside = np.flatnonzero(found.members >= 0)
    assert (inside >= 330).all()
    assert (inside < 770).all()


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_slow(seed: int) -> None:
    random = np.random.default_rng(seed)
    several = [
        row_of(0.02 * (1 + 0.025 * random.standard_normal(500)), START_S + 0.3 * owner, owner) for owner in range(8)
    ]
    assert slow(joined(*several)).excess_s.sum() == 0.0


def test_a_few_steps_that_are_a_little_late_are_no_stretch() -> None:
    lengths = np.full(200, 0.02)
    lengths[50:53] = 0.025
    assert slow(row_of(lengths)).excess_s.sum() < 0.02


@pytest.mark.parametrize("every", [3, 5, 10])
def test_single_steps_do_not_make_the_others_slow(every: int) -> None:
    # A prompt of another request in each so many steps; those between them are on time.
    lengths = np.full(600, 0.02)
    lengths[::every] = 0.08
    found = slow(row_of(lengths))
    assert np.flatnonzero(found.members >= 0).tolist() == list(range(0, 600, every))
    assert found.excess_s.tolist() == pytest.approx([0.06] * (600 // every))


def test_a_single_step_in_a_slow_stretch_is_apart_from_it() -> None:
    lengths = np.full(500, 0.024)
    lengths[250] = 0.5
    found = slow(row_of(lengths))
    alone = found.members[250]
    assert (found.members == alone).sum() == 1
    assert found.excess_s.sum() == pytest.approx(0.48 + 499 * 0.004, rel=0.02)


def test_a_stretch_is_of_one_request() -> None:
    several = [row_of(np.full(100, 0.02 if owner % 2 else 0.025), owner=owner) for owner in range(4)]
    found = slow(joined(*several))
    assert set(found.owners.tolist()) == {0, 2}
    assert found.excess_s.sum() == pytest.approx(1.0, rel=0.05)


def test_a_request_that_tells_only_how_long_it_decoded_is_slow_as_a_whole() -> None:
    several = joined(
        row_of(np.array([4.0]), counts=100.0),
        row_of(np.array([2.0]), owner=1, counts=100.0),
        row_of(np.full(50, 0.02), owner=2),
    )
    found = slow(several)
    assert found.owners.tolist() == [0]
    assert found.excess_s.tolist() == pytest.approx([2.0])
    assert found.tokens.tolist() == [100.0]


def test_what_is_late_by_its_context_is_slow_only_beyond_it() -> None:
    expected = np.linspace(0.02, 0.04, 400)
    assert len(slow(row_of(expected.copy()), expected).owners) == 0
    found = slow(row_of(1.2 * expected), expected)
    assert found.excess_s.sum() == pytest.approx(0.2 * expected.sum(), rel=0.05)


def test_steps_of_seconds_are_looked_at_over_longer() -> None:
    found = slow(row_of(np.full(60, 1.3)), 1.0)
    assert found.excess_s.sum() == pytest.approx(60 * 0.3, rel=0.3)


def test_without_steps_nothing_is_slow() -> None:
    none = row_of(np.zeros(0))
    found = slow(none)
    assert len(found.owners) == len(found.members) == len(found.excess_s) == 0


def test_a_step_that_was_expected_to_take_no_time_harms_nothing() -> None:
    found = slow_of(row_of(np.full(50, 0.02)), np.zeros(50))
    assert np.isfinite(found.excess_s).all()


# --- against the definition -------------------------------------------------------------------------------------------


def by_hand(told: Steps, expected_s: NDArray[np.float64]) -> list[set[int]]:
    """The slow stretches as sets of steps, where no step stands out: seconds of a request, and requests as a whole."""
    ratios = told.lengths_s / expected_s
    found: list[set[int]] = []
    width_s = min(20.0, max(1.0, 12 * float(np.median(expected_s / told.counts))))
    seconds: dict[tuple[int, int], list[int]] = {}
    for step, ratio in enumerate(ratios.tolist()):
        if told.counts[step] == 1:
            seconds.setdefault((int(told.owners[step]), int(told.starts_s[step] / width_s)), []).append(step)
        elif ratio > module._WHOLE:
            found.append({step})
    for together in seconds.values():
        limit = max(SUSTAINED, 1 + 3 * module._NOISE / math.sqrt(len(together)))
        if float(ratios[together].mean()) > limit and len(together) >= module._FEWEST:
            found.append(set(together))
    return found


FACTORS = st.sampled_from([0.8, 1.0, 1.02, 1.08, 1.2, 1.4])


@st.composite
def several_requests(draw: st.DrawFn) -> tuple[Steps, NDArray[np.float64]]:
    told, expected = [], []
    for owner in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            count = draw(st.integers(1, 120))
            factors = draw(st.lists(FACTORS, min_size=count, max_size=count))
            base = draw(st.sampled_from([0.001, 0.02, 0.05]))
            told.append(row_of(base * np.array(factors), START_S + owner / 7, owner))
            expected.append(np.full(count, base))
        else:
            lasted_s = draw(st.sampled_from([1.0, 2.0, 2.2, 5.0]))
            told.append(row_of(np.array([lasted_s]), owner=owner, counts=100.0))
            expected.append(np.array([2.0]))
    return joined(*told), np.concatenate(expected)


@given(several_requests())
def test_slow_stretches_are_those_of_the_definition(drawn: tuple[Steps, NDArray[np.float64]]) -> None:
    told, expected_s = drawn
    found = slow_of(told, expected_s)
    check_consistent(told, found, expected_s)
    stretches = [set(np.flatnonzero(found.members == number).tolist()) for number in range(len(found.owners))]
    assert sorted(map(sorted, stretches)) == sorted(map(sorted, by_hand(told, expected_s)))
