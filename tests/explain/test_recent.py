"""The newest explained requests: which are kept, which have the times of their tokens, and that this stays bounded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain import recent
from gpumon.explain.explained import Account, Explained, key_of
from gpumon.explain.recent import IDLE_S, ON_TIME_MAX, ON_TIME_TOKENS, SLOW_MAX, SLOW_TOKENS, Recent
from tests.explained import ON_TIME, THERMAL, explained

TYPICAL = 250
"""Tokens of an answer."""
TIMES = np.arange(50_000, dtype=np.float64) * 0.02
LATE = Account(1.0, 1.5, 0.5, (THERMAL,))


def request(
    number: int, *, model: str = "m", tokens: int | None = TYPICAL, ended_s: float | None = None, is_slow: bool = False
) -> Explained:
    """tokens: None: it does not tell when they came. ended_s: by its number, if not told."""
    return explained(
        trace_id=number.to_bytes(16),
        span_id=number.to_bytes(8),
        model=model,
        first_token=ON_TIME,
        decode=LATE if is_slow else ON_TIME,
        start_s=float(number) if ended_s is None else ended_s - 3.18,
        token_s=None if tokens is None else TIMES[:tokens],
        timed=tokens is not None,
    )


def kept(requests: Recent, numbers: Iterable[int]) -> dict[int, int | None]:
    """Of those of these numbers that are known, how many tokens they have the times of; None: of none."""
    found: dict[int, int | None] = {}
    for number in numbers:
        each = requests.get((number.to_bytes(16).hex(), number.to_bytes(8).hex() if number else ""))
        if each is not None:
            found[number] = None if each.token_s is None else len(each.token_s)
    return found


def tokens_in(found: dict[int, int | None]) -> int:
    return sum(count or 0 for count in found.values())


def test_the_newest_typical_requests_that_were_on_time_all_have_their_token_times() -> None:
    requests = Recent()
    for number in range(2 * ON_TIME_MAX):
        requests.keep([request(number)])
    newest = range(ON_TIME_MAX, 2 * ON_TIME_MAX)
    assert kept(requests, range(2 * ON_TIME_MAX)) == dict.fromkeys(newest, TYPICAL)
    assert requests.slow() == []


def test_a_request_is_found_by_its_trace_and_its_span_whether_it_was_slow_or_not() -> None:
    requests = Recent()
    slow, on_time = request(2, is_slow=True), request(1)
    requests.keep([slow, on_time, request(3)])
    assert requests.find(key_of(on_time)[0]) == {key_of(on_time): on_time}
    assert requests.get(key_of(on_time)) is on_time
    assert requests.find(key_of(slow)[0]) == {key_of(slow): slow}
    assert requests.get(key_of(slow)) is slow
    assert key_of(slow) in requests
    assert sorted(requests.all_keys()) == sorted([key_of(slow), key_of(on_time), key_of(request(3))])
    foreign = (key_of(on_time)[0], key_of(slow)[1])
    assert requests.get(foreign) is None
    assert foreign not in requests
    assert requests.find("0" * 32) == {}


@pytest.mark.parametrize("of", [[4000], [31_250], [1, 31_250, 7, 250], [2_000, 25_000]])
def test_of_long_answers_without_end_the_newest_have_their_times_and_no_more_than_there_is_room_for(
    of: list[int],
) -> None:
    requests = Recent()
    last = 5 * ON_TIME_MAX
    for number in range(last):
        requests.keep([request(number, tokens=of[number % len(of)])])
    found = kept(requests, range(last))
    assert [*found] == [*range(last - ON_TIME_MAX, last)], "their other details are kept without the times"
    room = ON_TIME_TOKENS - max(of)
    assert room < tokens_in(found) <= ON_TIME_TOKENS
    without = [number for number, count in found.items() if count is None]
    assert without == [*range(last - ON_TIME_MAX, last - ON_TIME_MAX + len(without))], "the oldest lost theirs"


def test_an_answer_that_would_take_too_much_of_the_room_keeps_no_times_and_takes_nobody_elses() -> None:
    requests = Recent()
    requests.keep([request(number) for number in range(10)])
    requests.keep([request(10, tokens=ON_TIME_TOKENS // 16 + 1), request(11, tokens=SLOW_TOKENS // 16 + 1)])
    requests.keep([request(12, tokens=SLOW_TOKENS // 16 + 1, is_slow=True)])
    assert kept(requests, range(13)) == dict.fromkeys(range(10), TYPICAL) | {10: None, 11: 25_001, 12: None}


def test_requests_that_tell_no_token_times_are_known_without() -> None:
    requests = Recent()
    requests.keep([request(1, tokens=None), request(2, tokens=0), request(3)])
    assert kept(requests, range(5)) == {1: None, 2: 0, 3: TYPICAL}


def test_a_model_that_is_asked_a_lot_does_not_push_out_the_others() -> None:
    requests = Recent()
    requests.keep([request(number, model="rare") for number in range(100)])
    requests.keep([request(number, model="other") for number in range(100, 200)])
    for first in range(1000, 1000 + 20 * ON_TIME_MAX, 64):
        requests.keep([request(number, model="busy", ended_s=200.0) for number in range(first, first + 64)])
    last = 1000 + 20 * ON_TIME_MAX
    assert kept(requests, range(200)) == dict.fromkeys(range(200), TYPICAL)
    assert [*kept(requests, range(1000, last))] == [*range(last - ON_TIME_MAX + 200, last)]


def test_long_answers_of_one_model_do_not_take_the_token_times_of_another() -> None:
    requests = Recent()
    requests.keep([request(number, model="rare") for number in range(100)])
    for number in range(100, 400):
        requests.keep([request(number, model="long", tokens=8000)])
    assert kept(requests, range(100)) == dict.fromkeys(range(100), TYPICAL)
    found = kept(requests, range(100, 400))
    assert len(found) == 300
    assert [number for number, count in found.items() if count] == [*range(400 - 59, 400)]


def test_models_that_are_asked_alike_share_the_room() -> None:
    requests = Recent()
    for number in range(5000):
        requests.keep([request(number, model=f"m{number % 4}")])
    found = kept(requests, range(5000))
    assert [*found] == [*range(5000 - ON_TIME_MAX, 5000)]


def test_a_model_that_is_gone_gives_up_its_room_first() -> None:
    requests = Recent()
    requests.keep([request(number, model="gone", ended_s=100.0) for number in range(300)])
    now_s = 100.0 + IDLE_S
    requests.keep([request(number, ended_s=now_s) for number in range(1000, 1000 + ON_TIME_MAX)])
    assert len(kept(requests, range(300))) == 300
    requests.keep([request(number, ended_s=now_s + 1.0) for number in range(3000, 3100)])
    assert [*kept(requests, range(300))] == [*range(100, 300)], "the oldest first"
    requests.keep([request(number, ended_s=now_s + 2.0) for number in range(4000, 4000 + ON_TIME_MAX)])
    assert kept(requests, range(300)) == {}


def test_as_many_models_as_there_are_names_take_no_more_room_than_one() -> None:
    requests = Recent()
    for number in range(3 * ON_TIME_MAX):
        requests.keep([request(number, model=f"m{number}", ended_s=100.0)])
    assert len(kept(requests, range(3 * ON_TIME_MAX))) == ON_TIME_MAX
    assert len(requests._models) == ON_TIME_MAX
    assert len(requests._model_of) == ON_TIME_MAX


def test_slow_requests_and_their_times_are_not_moved_by_any_number_of_others() -> None:
    requests = Recent()
    requests.keep([request(number, is_slow=True) for number in range(SLOW_MAX + 100)])
    for number in range(5000, 5000 + 2 * ON_TIME_MAX):
        requests.keep([request(number, tokens=2000)])
    found = kept(requests, range(SLOW_MAX + 100))
    assert found == dict.fromkeys(range(100, SLOW_MAX + 100), TYPICAL)
    assert [int.from_bytes(each.record.trace_id) for each in requests.slow()] == [*reversed(found)]


def test_of_long_answers_that_were_slow_as_many_are_kept_as_there_is_room_for_their_times() -> None:
    requests = Recent()
    for number in range(300):
        requests.keep([request(number, tokens=5000, is_slow=True)])
    assert kept(requests, range(300)) == dict.fromkeys(range(300 - SLOW_TOKENS // 5000, 300), 5000)


def test_a_request_that_is_told_again_is_known_once_and_as_it_was_told_last() -> None:
    requests = Recent()
    for is_slow, model, tokens in ((False, "m", 10), (True, "m", 20), (False, "m", 30), (False, "other", 40)):
        again = request(1, model=model, tokens=tokens, is_slow=is_slow)
        requests.keep([again])
        assert kept(requests, [1]) == {1: tokens}
        assert requests.slow() == [again] * is_slow
    for _ in range(3 * ON_TIME_TOKENS // TYPICAL):
        requests.keep([request(1)])
    requests.keep([request(2)])
    assert kept(requests, [1, 2]) == {1: TYPICAL, 2: TYPICAL}


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.integers(0, 6), st.booleans()))))
def test_what_is_kept_is_what_is_counted(
    told: list[list[tuple[int, int, int, bool]]],
) -> None:
    """Told at once are number, model, tokens (0: none are told) and whether it was slow; in little room."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SLOW_MAX", 5), ("SLOW_TOKENS", 80), ("ON_TIME_MAX", 6), ("ON_TIME_TOKENS", 96)):
            patch.setattr(recent, name, value)
        requests, newest = Recent(), {}
        for batch in told:
            every = [
                request(number, model=f"m{model}", tokens=4 * tokens or None, ended_s=100.0, is_slow=is_slow)
                for number, model, tokens, is_slow in batch
            ]
            requests.keep(every)
            newest.update({each.record.trace_id: each for each in every})
            known = [each for number in range(31) for each in requests.find(f"{number:032x}").values()]
            slow = [each for each in known if each.excess_s > 0]
            on_time = [each for each in known if not each.excess_s > 0]
            for some, most, tokens_most in ((slow, 5, 80), (on_time, 6, 96)):
                assert len(some) <= most
                assert sum(len(each.token_s) for each in some if each.token_s is not None) <= tokens_most
            assert requests._slow_tokens == sum(len(each.token_s) for each in slow if each.token_s is not None)
            assert len(requests._model_of) == len(on_time) == sum(len(of.requests) for of in requests._models.values())
            timed = sum(len(each.token_s) for each in on_time if each.token_s is not None)
            assert timed == sum(of.tokens for of in requests._models.values())
            assert all(of.requests for of in requests._models.values())
            for each in known:
                assert each._replace(token_s=None) == newest[each.record.trace_id]._replace(token_s=None)
