"""What a group did at a moment, against the same worked out request by request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.load import KEPT_S, STEP_S, GroupLoad, Ran

AT_S = 2000.0


def ran(
    start_s: float,
    *,
    wait_s: float = 0.0,
    prompt_s: float = 0.25,
    decode_s: float = 1.0,
    prompt: int = 100,
    computed: int | None = None,
    made: int = 10,
) -> Ran:
    first_s = start_s + wait_s + prompt_s
    tokens = prompt if computed is None else computed
    return Ran(start_s, start_s + wait_s, first_s, first_s + decode_s, prompt, tokens, made)


def load_of(*requests: Ran, at_s: float = AT_S) -> GroupLoad:
    load = GroupLoad()
    load.add(requests, at_s)
    return load


class Moment(NamedTuple):
    running: float
    context: float


def at(load: GroupLoad, moment_s: float) -> Moment:
    running, context = load.at(np.array([moment_s]))
    return Moment(float(running[0]), float(context[0]))


def overlap(start_s: float, end_s: float, low_s: float, high_s: float) -> float:
    return max(0.0, min(end_s, high_s) - max(start_s, low_s))


def by_hand(requests: Sequence[Ran], moment_s: float) -> Moment:
    """The mean over the quarter second: how many decoded, and the context of all of those together."""
    low_s = np.floor(moment_s / STEP_S) * STEP_S
    decoding = context = 0.0
    for each in requests:
        share = overlap(each.first_s, each.end_s, low_s, low_s + STEP_S) / STEP_S
        if share > 0:
            middle_s = (max(each.first_s, low_s) + min(each.end_s, low_s + STEP_S)) / 2
            done = (middle_s - each.first_s) / (each.end_s - each.first_s)
            decoding += share
            context += share * (each.prompt + each.made * done)
    running = max(1.0, decoding)
    return Moment(running, running * context / decoding if decoding > 0 else 0.0)


QUARTERS = st.integers(0, 160)


@st.composite
def requests(draw: st.DrawFn, unit_s: float = STEP_S) -> Ran:
    """Of the last 40 s; some did not wait, made nothing, or were told of in an instant."""
    start, wait, prompt_s = draw(QUARTERS), draw(st.integers(0, 20)), draw(st.integers(0, 20))
    prompt = draw(st.sampled_from([0, 1, 100, 4096, 100_000]))
    return ran(
        AT_S - 90.0 + start * unit_s,
        wait_s=wait * unit_s,
        prompt_s=prompt_s * unit_s,
        decode_s=draw(st.integers(0, 120)) * unit_s,
        prompt=prompt,
        computed=draw(st.integers(0, prompt)),
        made=draw(st.sampled_from([0, 1, 10, 1000])),
    )


MANY = st.lists(requests(), max_size=12)
MOMENTS = np.arange(AT_S - 95.0, AT_S, STEP_S) + 0.1


@given(MANY)
def test_requests_decoding_and_their_context_are_those_of_every_request(told: list[Ran]) -> None:
    running, context = load_of(*told).at(MOMENTS)
    expected = [by_hand(told, moment_s) for moment_s in MOMENTS.tolist()]
    np.testing.assert_allclose(running, [moment.running for moment in expected])
    np.testing.assert_allclose(context, [moment.context for moment in expected], atol=1e-6)


@given(st.lists(requests(0.017), min_size=1, max_size=6))
def test_requests_that_begin_and_end_at_any_time_count_for_the_part_they_were_there(told: list[Ran]) -> None:
    running, _ = load_of(*told).at(MOMENTS)
    expected = [by_hand(told, moment_s) for moment_s in MOMENTS.tolist()]
    np.testing.assert_allclose(running, [moment.running for moment in expected], atol=1e-6)


@given(st.lists(requests(0.017), min_size=1, max_size=6))
def test_the_context_of_requests_is_no_less_than_nothing_and_no_more_than_all_that_they_have(told: list[Ran]) -> None:
    running, context = load_of(*told).at(MOMENTS)
    most = max(each.prompt + each.made for each in told)
    assert (context >= 0).all()
    assert (context <= running * most * (1 + 1e-9)).all()


@given(MANY, st.lists(st.tuples(QUARTERS, st.integers(1, 80)), min_size=1, max_size=8))
def test_prompts_computed_by_others_are_those_of_every_request(told: list[Ran], drawn: list[tuple[int, int]]) -> None:
    starts_s = AT_S - 91.0 + np.array([start for start, _ in drawn]) * 0.3
    ends_s = starts_s + np.array([length for _, length in drawn]) * 0.1
    others = load_of(*told).others(float(starts_s.min()) - 1.0, float(ends_s.max()) + 1.0)
    found = others.between(starts_s, ends_s)
    for start_s, end_s, tokens, length in zip(starts_s, ends_s, *found, strict=True):
        expected = weighed = 0.0
        for each in told:
            if each.first_s > each.admitted_s:
                part = overlap(each.admitted_s, each.first_s, start_s, end_s) / (each.first_s - each.admitted_s)
                expected += part * each.computed
                weighed += part * each.computed * each.prompt
        if expected > 1.0:
            assert tokens == pytest.approx(expected, rel=1e-6, abs=1e-3)
            assert length == pytest.approx(weighed / expected, rel=1e-5)
        elif expected < 0.1:
            assert (tokens, length) == (0.0, 0.0)


@given(MANY, QUARTERS, st.integers(1, 160))
def test_arrivals_are_those_that_began_in_a_stretch(told: list[Ran], start: int, length: int) -> None:
    start_s = AT_S - 92.0 + start * STEP_S
    end_s = start_s + length * STEP_S
    came = [each for each in told if start_s <= each.start_s < end_s]
    found = load_of(*told).arrived(start_s, end_s)
    assert found == pytest.approx(
        (len(came) / (end_s - start_s), sum(each.computed for each in came) / (end_s - start_s))
    )


@given(MANY, st.integers(0, 12))
def test_it_does_not_matter_in_how_many_steps_requests_become_known(told: list[Ran], cut: int) -> None:
    whole, parts = load_of(*told), GroupLoad()
    parts.add(told[:cut], AT_S)
    parts.add([], AT_S)
    parts.add(told[cut:], AT_S)
    np.testing.assert_allclose(parts.at(MOMENTS), whole.at(MOMENTS), atol=1e-6)
    assert parts.arrived(AT_S - 60.0, AT_S) == whole.arrived(AT_S - 60.0, AT_S)


def test_nobody_there_is_one_alone_without_context() -> None:
    load = GroupLoad()
    load.add([], AT_S)
    assert at(load, AT_S - 10.0) == (1.0, 0.0)
    assert load.arrived(AT_S - 30.0, AT_S) == (0.0, 0.0)
    tokens, lengths = load.others(0.0, AT_S).between(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    assert tokens.tolist() == lengths.tolist() == [0.0, 0.0]


def test_nothing_is_asked_of_no_stretches() -> None:
    load = load_of(ran(AT_S - 5.0))
    none = np.zeros(0)
    assert [len(column) for column in load.at(none)] == [0, 0]
    assert [len(column) for column in load.others(0.0, AT_S).between(none, none)] == [0, 0]


def test_context_grows_with_the_tokens_made() -> None:
    load = load_of(ran(AT_S - 20.0, prompt_s=0.0, decode_s=10.0, prompt=1000, made=400))
    early, late = at(load, AT_S - 19.9), at(load, AT_S - 10.1)
    assert 1000 <= early.context < 1020
    assert 1380 < late.context <= 1400


@pytest.mark.parametrize("offset_s", [0.0, 0.1, 0.2, 0.24])
def test_a_short_answer_has_its_prompt_as_context_wherever_it_falls(offset_s: float) -> None:
    start_s = AT_S - 20.0 + offset_s
    load = load_of(ran(start_s, prompt_s=0.0, decode_s=0.02, prompt=0, made=500))
    for moment_s in (start_s + 0.005, start_s + 0.015):
        moment = at(load, moment_s)
        assert 0 <= moment.context <= 500


@pytest.mark.parametrize("told", [ran(AT_S - 5.0, prompt_s=0.0, decode_s=0.0), ran(AT_S, prompt_s=0.0, decode_s=0.0)])
def test_a_request_that_took_no_time_came_and_did_nothing(told: Ran) -> None:
    load = load_of(told)
    assert at(load, told.start_s) == (1.0, 0.0)
    assert load.arrived(told.start_s - 1.0, told.start_s + 1.0)[0] == 0.5
    assert load.others(AT_S - 10.0, AT_S + 1.0).between(np.array([AT_S - 10]), np.array([AT_S]))[0][0] == 0.0


def test_a_cached_prompt_is_context_and_no_work() -> None:
    load = load_of(ran(AT_S - 5.0, prompt_s=1.0, prompt=5000, computed=0))
    assert at(load, AT_S - 3.5).context > 4900
    assert load.others(AT_S - 10.0, AT_S).between(np.array([AT_S - 10]), np.array([AT_S]))[0][0] == 0.0


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_made_are_those_of_the_whole_cells_in_a_stretch() -> None:
    load = GroupLoad()
    load.add([], AT_S)
    load.add_tokens(AT_S - 10.0 + np.arange(500) / 50 + 0.001)
    load.add_tokens(np.zeros(0))
    assert load.made(AT_S - 8.0, AT_S - 2.0) == pytest.approx(50.0)
    assert load.made(AT_S - 7.9, AT_S - 2.1) == pytest.approx(50.0)
    assert load.made(AT_S - 20.0, AT_S - 10.0) == 0.0
    assert load.made(AT_S - 12.0, AT_S - 8.0) == pytest.approx(25.0)
    assert np.isnan(load.made(AT_S - 8.1, AT_S - 7.9))


def test_tokens_of_long_ago_and_of_the_future_are_left_out() -> None:
    load = GroupLoad()
    load.add([], AT_S)
    load.add_tokens(np.array([-1e9, 0.0, AT_S - 3000.0, AT_S - 5.0, AT_S + 1e9]))
    assert load.made(AT_S - 6.0, AT_S - 4.0) == 0.5
    load.add([], AT_S + 3 * KEPT_S)
    assert load.made(AT_S + 2.1 * KEPT_S, AT_S + 3 * KEPT_S) == 0.0


# --- time that goes on ------------------------------------------------------------------------------------------------


def test_over_a_long_time_the_last_minutes_are_known_as_well_as_at_first() -> None:
    load = GroupLoad()
    told: list[Ran] = []
    for second in range(3000):
        at_s = AT_S + second
        each = ran(at_s - 4.0, wait_s=0.25, decode_s=3.0 + second % 3 / 4, prompt=second, made=20)
        told.append(each)
        load.add([each], at_s)
        if second % 601 == 600:
            last = told[-round(KEPT_S) :]
            moments = np.arange(at_s - KEPT_S + 10.0, at_s - 5.0, 7.3)
            running, context = load.at(moments)
            expected = [by_hand(last, moment_s) for moment_s in moments.tolist()]
            np.testing.assert_allclose(running, [moment.running for moment in expected])
            np.testing.assert_allclose(context, [moment.context for moment in expected])
            assert load.arrived(at_s - 100.0, at_s - 4.0)[0] == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("pause_s", [KEPT_S, 2 * KEPT_S, 2 * KEPT_S + 0.25, 3600.0, 1e6])
def test_after_a_long_pause_nothing_of_before_is_left(pause_s: float) -> None:
    load = load_of(*(ran(AT_S - 10.0) for _ in range(5)))
    load.add([ran(AT_S + 2 * pause_s - 5.0)], AT_S + 2 * pause_s)
    assert at(load, AT_S + 2 * pause_s - 4.0).running == 1.0
    moments = np.arange(AT_S + 2 * pause_s - KEPT_S, AT_S + 2 * pause_s, 0.25)
    assert load.at(moments)[0].max() == 1.0
    assert load.arrived(AT_S + 2 * pause_s - KEPT_S, AT_S + 2 * pause_s)[0] == pytest.approx(1 / KEPT_S, rel=0.01)


def test_what_became_known_too_late_changes_nothing() -> None:
    load = load_of(ran(AT_S - 5.0))
    before = load.at(MOMENTS)
    load.add([ran(AT_S - 3 * KEPT_S), ran(-50.0), ran(0.0)], AT_S)
    np.testing.assert_array_equal(load.at(MOMENTS), before)
    assert load.arrived(AT_S - 30.0, AT_S)[0] == pytest.approx(1 / 30)


def test_a_request_longer_than_what_is_kept_is_there_for_all_of_it() -> None:
    long = ran(AT_S - 3000.0, decode_s=2990.0, prompt=1000, made=30_000)
    load = load_of(long)
    moments = np.arange(AT_S - KEPT_S + 1.0, AT_S - 11.0, 1.0)
    running, _ = load.at(moments)
    assert (running == 1.0).all()
    both = load_of(long, ran(AT_S - 100.0, decode_s=50.0))
    assert at(both, AT_S - 80.0).running == 2.0


def test_the_context_of_a_request_longer_than_what_is_kept_is_what_it_had_then() -> None:
    load = load_of(ran(AT_S - 3000.0, prompt_s=0.0, decode_s=2990.0, prompt=1000, made=29_900))
    for ago_s in (300.0, 200.0, 20.0):
        assert at(load, AT_S - ago_s).context == pytest.approx(1000 + 10 * (3000.0 - ago_s), rel=0.01)


def test_many_more_prompts_than_are_kept_are_known_by_the_newest() -> None:
    load = GroupLoad()
    for second in range(100):
        at_s = AT_S + second
        load.add([ran(at_s - 1.0, prompt_s=0.5, prompt=10) for _ in range(200)], at_s)
    at_s = AT_S + 99
    starts, ends = np.array([at_s - 10.0, AT_S - 1.0]), np.array([at_s, AT_S])
    tokens, lengths = load.others(AT_S - 2.0, at_s).between(starts, ends)
    assert tokens[0] == pytest.approx(200 * 10 * 10)
    assert lengths[0] == pytest.approx(10.0)
    assert tokens[1] == 0.0


def test_moments_of_which_nothing_is_kept_are_answered() -> None:
    load = load_of(ran(AT_S - 5.0))
    running, context = load.at(np.array([-1e12, -1.0, 0.0, 1e12]))
    assert (running >= 1).all()
    assert np.isfinite(context).all()
    assert load.arrived(-100.0, -50.0) == (0.0, 0.0)
    assert load.arrived(1e9, 2e9) == (0.0, 0.0)


def test_right_after_the_machine_began_all_is_as_later() -> None:
    load = load_of(ran(1.0), at_s=3.0)
    assert at(load, 2.0) == by_hand([ran(1.0)], 2.0)
    assert load.arrived(0.0, 2.0) == (0.5, 50.0)
