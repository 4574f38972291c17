"""From seconds by cause to shares: what is told, in which order, and that it adds up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.catalogue import CAUSES
from gpumon.explain.board import Board
from gpumon.explain.causes import INDEX
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.telling import SlowGaps, Telling, gap_rows
from gpumon.model import Unit

GPU: Key = ("gpu", "GPU-0000")
HOT, PROMPTS = INDEX["thermal_throttle"], INDEX["prefill_interference"]
CLOCK = Fact("sm_clock", 1.2e9, Unit.HERTZ, 1.98e9)
LOAD = {PROMPTS: Fact("prompt_tokens_of_others", 0.0, Unit.NONE)}
WHEN = (10.0, 20.0)


def board_of(*times_s: tuple[float, float]) -> Board:
    board = Board()
    for number, (start_s, end_s) in enumerate(times_s):
        fact = CLOCK._replace(observed=1e9 + number)
        board.put([Sign("thermal_throttle", GPU, start_s, end_s, 0.9, 0.3, fact)], end_s)
    return board


def seconds_of(*rows: dict[int, float]) -> np.ndarray:
    table = np.zeros((len(rows), len(CAUSES)))
    for row, by_cause in zip(table, rows, strict=True):
        for cause, seconds in by_cause.items():
            row[cause] = seconds
    return table


def telling_of(shares_s: np.ndarray, board: Board | None = None, lifts: dict[int, float] | None = None) -> Telling:
    return Telling.of(shares_s, LOAD, lifts or {}, board or Board(), [GPU], WHEN)


def test_shares_are_told_the_largest_first_with_their_evidence_and_lift() -> None:
    telling = telling_of(seconds_of({HOT: 0.2, PROMPTS: 0.5}), lifts={HOT: 3.0})
    assert telling.causes == [HOT, PROMPTS]
    shares = telling.shares([0.2, 0.5], [0.9, 0.0], WHEN, [800.0])
    assert [(share.cause, share.seconds, share.evidence, share.lift) for share in shares] == [
        ("prefill_interference", 0.5, 0.0, None),
        ("thermal_throttle", 0.2, 0.9, 3.0),
    ]


def test_the_figure_of_load_is_the_requests_and_that_of_a_condition_is_of_its_time() -> None:
    telling = telling_of(seconds_of({HOT: 0.2, PROMPTS: 0.5}), board_of((11.0, 12.0), (15.0, 16.0)))
    facts = {share.cause: share.fact for share in telling.shares([0.2, 0.5], [0.9, 0.0], (11.2, 11.4), [800.0])}
    assert facts["prefill_interference"] == Fact("prompt_tokens_of_others", 800.0, Unit.NONE)
    assert facts["thermal_throttle"] == CLOCK._replace(observed=1e9)
    (hot,) = telling.shares([0.2, 0.0], [0.9, 0.0], (18.0, 19.0), [0.0])
    assert hot.fact is None, "nothing was told of then"


def test_nothing_lost_is_nothing_told() -> None:
    assert telling_of(seconds_of({HOT: 0.2})).shares([0.0], [0.9], WHEN, [0.0]) == ()


@given(st.lists(st.floats(0.0, 1e6), min_size=len(CAUSES), max_size=len(CAUSES)))
def test_shares_add_up_to_what_was_lost_and_crumbs_are_not_told(seconds: list[float]) -> None:
    telling = telling_of(np.array([seconds]))
    known = [seconds[cause] for cause in telling.causes]
    shares = telling.shares(known, [0.5] * len(known), WHEN, [1.0])
    assert sum(share.seconds for share in shares) == pytest.approx(sum(seconds), rel=1e-12)
    assert [share.seconds for share in shares] == sorted((share.seconds for share in shares), reverse=True)
    assert all(share.seconds > 1e-7 * sum(seconds) for share in shares)


def gaps_of(count: int = 3) -> SlowGaps:
    starts = 10.0 + np.arange(count, dtype=np.float64)
    columns = [starts, starts + 0.5, np.full(count, 2.0), np.full(count, 0.1), np.full(count, 0.4), 100.0 + starts]
    shares_s = seconds_of(*({HOT: 0.3, PROMPTS: 0.1} for _ in range(count)))
    telling = telling_of(shares_s, board_of((10.0, 10.4), (12.0, 12.4)))
    return SlowGaps(gap_rows(columns, shares_s, np.full(shares_s.shape, 0.7), telling), telling)


def test_a_slow_gap_is_told_when_it_is_asked_for() -> None:
    gaps = gaps_of()
    assert len(gaps) == 3
    gap = gaps[2]
    assert (gap.start_s, gap.end_s, gap.tokens, gap.expected_s, gap.excess_s) == (12.0, 12.5, 2, 0.1, 0.4)
    assert [(share.cause, share.seconds, share.evidence) for share in gap.shares] == [
        ("thermal_throttle", 0.3, 0.7),
        ("prefill_interference", 0.1, 0.7),
    ]
    observed = [[share.fact.observed for share in gap.shares if share.fact is not None] for gap in gaps]
    assert observed == [[1e9, 110.0], [111.0], [1e9 + 1, 112.0]]


def test_slow_gaps_are_a_sequence_like_any_other() -> None:
    gaps = gaps_of()
    assert [*gaps[1:]] == [gaps[1], gaps[2]]
    assert gaps[-1] == gaps[2]
    assert repr(gaps) == repr((gaps[0], gaps[1], gaps[2]))
    with pytest.raises(IndexError):
        gaps[3]


def test_figures_of_conditions_are_those_of_when_it_was_explained() -> None:
    board = board_of((10.0, 10.4))
    shares_s = seconds_of({HOT: 0.3})
    telling = telling_of(shares_s, board)
    rows = gap_rows([np.array([value]) for value in (10.0, 10.5, 1.0, 0.1, 0.3, 0.0)], shares_s, shares_s, telling)
    gaps = SlowGaps(rows, telling)
    board.put([Sign("thermal_throttle", GPU, 10.0, 10.4, 1.0, 0.3, CLOCK)], 10.4)
    fact = gaps[0].shares[0].fact
    assert fact is not None
    assert fact.observed == 1e9
