"""Which requests are held for later: the slowest of each cell, those that incidents name, and no more than fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain import held
from gpumon.explain.explained import Account, Explained, Key, key_of
from gpumon.explain.held import INCIDENTS_MAX, LONG_MINUTES, Held
from tests.explained import ON_TIME, explained

MINUTE_S = 60.0


def request(
    number: int,
    *,
    ended_s: float = 1000.0,
    first_s: float | None = 0.4,
    gap_s: float = 0.02,
    lasts_s: float = 3.0,
    model: str = "m",
    prompt: int | None = 2048,
    tokens: int | None = 100,
    concurrency: int = 1,
    timed: bool = True,
) -> Explained:
    start_s = ended_s - lasts_s
    made = explained(
        trace_id=number.to_bytes(16),
        span_id=(number ^ number >> 96).to_bytes(16)[8:],
        model=model,
        first_token=ON_TIME,
        decode=ON_TIME,
        start_s=start_s,
        token_s=start_s + np.array([0.4, 0.42, 0.42 + gap_s]) if timed else None,
        timed=timed,
    )
    record = replace(
        made.record,
        time_to_first_token_s=first_s,
        prompt_tokens=prompt,
        completion_tokens=tokens,
        concurrency=concurrency,
    )
    return made._replace(record=record, end_s=ended_s)


def key(number: int) -> Key:
    return key_of(request(number))


def numbers(kept: Held) -> list[int]:
    return sorted(int(trace_id, 16) for trace_id, _ in kept.all_keys())


def test_of_a_minute_the_slowest_of_either_signal_are_held_whenever_they_came() -> None:
    kept = Held()
    for number in range(1, 201):
        kept.offer([request(number, gap_s=0.02 + (number in (7, 99)) * 1.0, first_s=0.1 + (number == 120) * 5.0)])
    assert {7, 99, 120} <= {*numbers(kept)}
    assert len(numbers(kept)) <= 2 * 20 + 3
    found = kept.get(key(99))
    assert found is not None
    assert found.token_s == pytest.approx(request(99, gap_s=1.02).token_s, abs=6e-7)
    assert found.record.trace_id == (99).to_bytes(16)


@pytest.mark.parametrize("token_s", [None, [], [1000.4], [1000.4, float("nan")], [1000.4, 1e9], [999.0, 1000.4]])
def test_any_token_times_are_held_as_they_were(token_s: list[float] | None) -> None:
    kept = Held()
    kept.offer([request(1, ended_s=1003.0)._replace(token_s=None if token_s is None else np.array(token_s))])
    found = kept.get(key(1))
    assert found is not None
    if token_s is None:
        assert found.token_s is None
    else:
        assert found.token_s == pytest.approx(np.array(token_s), abs=6e-7, nan_ok=True)


def test_a_calm_cell_has_its_own_beside_one_that_is_slow() -> None:
    kept = Held()
    kept.offer([request(number, gap_s=1.0, concurrency=40) for number in range(1, 101)])
    kept.offer([request(number, gap_s=0.01, concurrency=1) for number in range(200, 230)])
    kept.offer([request(number, gap_s=0.01, concurrency=40, model="other") for number in range(300, 330)])
    found = numbers(kept)
    assert sum(200 <= number < 230 for number in found) >= 20
    assert sum(number >= 300 for number in found) >= 20


def test_what_is_older_than_the_hour_of_the_heatmap_is_let_go() -> None:
    kept = Held()
    kept.offer([request(1, ended_s=6_003.0), request(2, ended_s=6_063.0)])
    kept.offer([request(3, ended_s=6_003.0 + 59 * MINUTE_S)])
    assert numbers(kept) == [1, 2, 3]
    kept.offer([request(4, ended_s=6_003.0 + 60 * MINUTE_S)])
    assert numbers(kept) == [2, 3, 4]
    kept.offer([request(5, ended_s=6_003.0)])
    assert numbers(kept) == [2, 3, 4], "told of too late"
    kept.offer([request(6, ended_s=1e6)])
    assert numbers(kept) == [6]


def test_a_long_request_is_of_all_its_minutes_but_of_no_more_than_some() -> None:
    kept = Held()
    kept.offer([request(1, ended_s=6_030.0, lasts_s=150.0, first_s=None)])
    assert len(kept._minutes) == 3
    kept.offer([request(2, ended_s=9_000.0, lasts_s=86_400.0, first_s=None)])
    assert len(kept._minutes) == 3 + LONG_MINUTES


@pytest.mark.parametrize(
    "unlike",
    [
        {"first_s": None, "timed": False},
        {"first_s": float("nan"), "timed": False},
        {"first_s": None, "tokens": 1},
    ],
)
def test_a_request_that_is_in_no_cell_is_not_held(unlike: dict[str, float | None]) -> None:
    kept = Held()
    kept.offer([request(1, **unlike), request(2)])  # type: ignore[arg-type]
    assert numbers(kept) == [2]
    kept.offer([])


@pytest.mark.parametrize("prompt", [None, -1, 2**70])
def test_a_prompt_of_no_or_an_impossible_length_is_of_no_bucket_of_context(prompt: int | None) -> None:
    kept = Held()
    kept.offer([request(1, prompt=prompt)])
    (shelf,) = kept._minutes.values()
    assert len(shelf.cells) == 2


def test_all_get_fewer_where_there_is_little_room_and_the_very_slowest_of_every_minute_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held, "BYTES", 100_000)
    kept = Held()
    for minute in range(30):
        for number in range(40):
            slow = 1.0 + number / 100
            kept.offer(
                [request(1 + minute * 40 + number, ended_s=6_003.0 + minute * MINUTE_S, gap_s=slow, first_s=slow)]
            )
            assert kept.used_bytes <= 100_000
    found = {*numbers(kept)}
    assert {(minute + 1) * 40 for minute in range(30)} <= found
    assert max(shelf.depth for shelf in kept._minutes.values()) <= 5


def test_an_incident_holds_the_first_that_it_names_as_they_become_known() -> None:
    kept = Held()
    keys = [key(number) for number in range(1, 41)]
    kept.name("i", keys, [(keys[9], request(10, timed=False, first_s=None))])
    kept.name("i", keys, [(keys[0], request(1, timed=False)), (keys[39], request(40, timed=False))])
    assert numbers(kept) == [1, 10], "of the 32 first"
    assert kept.named("i") == {keys[0], keys[9]}
    assert kept.named("other") == set()


def test_where_there_is_no_room_at_all_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "BYTES", 0)
    kept = Held()
    kept.offer([request(1)])
    kept.name("i", [key(2)], [(key(2), request(2))])
    kept.name("i", [key(2)], [(key(2), request(2))])
    assert numbers(kept) == []
    assert kept.used_bytes == 0


def test_incidents_without_end_are_bounded() -> None:
    kept = Held()
    for number in range(1, INCIDENTS_MAX + 11):
        kept.name(f"i{number}", [key(number)], [(key(number), request(number))])
    assert numbers(kept) == [*range(11, INCIDENTS_MAX + 11)]


def test_a_request_that_is_told_again_is_known_as_it_was_told_last() -> None:
    kept = Held()
    kept.offer([request(1)])
    late = request(1)._replace(decode=Account(1.0, 2.0, 1.0, ()))
    kept.offer([late])
    found = kept.get(key(1))
    assert found is not None
    assert found.decode == late.decode


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 70), st.integers(0, 5), st.booleans(), st.integers(0, 2)),
        max_size=40,
    )
)
def test_what_is_held_is_what_is_counted(told: list[tuple[int, int, int, bool, int]]) -> None:
    """Told are number, minute, how slow, whether an incident names it, and the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "BYTES", 15_000)
        patch.setattr(held, "INCIDENTS_MAX", 2)
        kept = Held()
        for number, minute, slow, is_named, model in told:
            each = request(number, ended_s=6_003.0 + minute * MINUTE_S, gap_s=float(slow), model=f"m{model}")
            if is_named:
                kept.name(f"i{slow}", [key_of(each)], [(key_of(each), each)])
            else:
                kept.offer([each])
            shelves = [*kept._minutes.values(), *kept._incidents.values()]
            places = [place[1] for shelf in shelves for heap in shelf.cells.values() for place in heap]
            assert {*places} == {*kept.all_keys()}
            assert all(packed.places == places.count(held_key) for held_key, packed in kept._packed.items())
            size = sum(len(packed.data) for packed in kept._packed.values())
            assert (
                kept.used_bytes
                == size + held._ITEM_BYTES * len(kept._packed) + held._PLACE_BYTES * len(places)
                <= 15_000
            )
            assert all(len(heap) <= shelf.depth for shelf in shelves for heap in shelf.cells.values())
            assert len(kept._incidents) <= 2
