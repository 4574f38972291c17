"""The board against a plain list of signs: what held of a thing at a time, and what there is no room for."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.board import CELL_S, CELLS, KEPT_S, ROWS_MAX, Board, Conditions
from gpumon.explain.causes import INDEX
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign
from gpumon.model import Unit

GPU: Key = ("gpu", "GPU-a")
OTHER: Key = ("gpu", "GPU-b")
HOT = "thermal_throttle"
BEGIN_S = 1000.0


def sign(
    start_s: float,
    end_s: float,
    evidence: float = 0.9,
    cap: float = 0.5,
    *,
    cause: str = HOT,
    key: Key = GPU,
    fact: Fact | None = None,
) -> Sign:
    return Sign(cause, key, start_s, end_s, evidence, cap, fact)


def board_of(*signs: Sign, at_s: float | None = None) -> Board:
    board = Board()
    board.put(signs, max(each.end_s for each in signs) if at_s is None else at_s)
    return board


def held(board: Board, start_s: float, end_s: float, *keys: Key, cause: str = HOT) -> list[float]:
    """Evidence by cell, from that of ``start_s`` to that of ``end_s``."""
    return [round(value, 6) for value in seen(board.conditions(keys or (GPU,), start_s, end_s), cause)[0]]


def caps(board: Board, start_s: float, end_s: float, *keys: Key) -> list[float]:
    return [round(value, 6) for value in seen(board.conditions(keys or (GPU,), start_s, end_s), HOT)[1]]


def seen(conditions: Conditions, cause: str) -> tuple[list[float], list[float]]:
    if INDEX[cause] not in conditions.causes:
        nothing = [0.0] * conditions.evidence.shape[1]
        return nothing, nothing
    row = conditions.causes.index(INDEX[cause])
    return conditions.evidence[row].tolist(), conditions.caps[row].tolist()


# --- what is said, and where it is written ----------------------------------------------------------------------------


def test_a_sign_holds_in_the_cells_it_touches_and_nowhere_else() -> None:
    board = board_of(sign(BEGIN_S + 0.6, BEGIN_S + 1.7), at_s=BEGIN_S + 5.0)
    assert held(board, BEGIN_S, BEGIN_S + 2.9) == [0.0, 0.9, 0.9, 0.9, 0.0, 0.0]
    assert caps(board, BEGIN_S, BEGIN_S + 2.9) == [0.0, 0.5, 0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [
        (0.5, 1.0, [0.0, 0.9, 0.0, 0.0]),
        (0.5, 1.5, [0.0, 0.9, 0.9, 0.0]),
        (0.5, 1.001, [0.0, 0.9, 0.9, 0.0]),
        (0.499, 1.0, [0.9, 0.9, 0.0, 0.0]),
        (0.7, 0.8, [0.0, 0.9, 0.0, 0.0]),
        (0.7, 0.7, [0.0, 0.9, 0.0, 0.0]),
    ],
)
def test_a_stretch_that_ends_at_an_edge_is_not_of_the_next_cell(
    start_s: float, end_s: float, expected: list[float]
) -> None:
    board = board_of(sign(BEGIN_S + start_s, BEGIN_S + end_s))
    assert held(board, BEGIN_S, BEGIN_S + 1.9) == expected


def test_a_moment_at_an_edge_is_in_one_cell() -> None:
    board = board_of(sign(BEGIN_S + 1.0, BEGIN_S + 1.0))
    assert sum(value > 0 for value in held(board, BEGIN_S, BEGIN_S + 1.9)) == 1


def test_readings_one_after_the_other_leave_no_hole() -> None:
    board = Board()
    for second in range(20):
        board.put([sign(BEGIN_S + second, BEGIN_S + second + 1)], BEGIN_S + second + 1)
    assert held(board, BEGIN_S, BEGIN_S + 19.9) == [0.9] * 40


def test_the_greatest_evidence_counts_with_its_own_cap_whichever_came_first() -> None:
    weak, strong = sign(BEGIN_S, BEGIN_S + 2.0, 0.4, 0.9), sign(BEGIN_S + 0.5, BEGIN_S + 1.0, 0.8, 0.2)
    for signs in ((weak, strong), (strong, weak)):
        board = board_of(*signs)
        assert held(board, BEGIN_S, BEGIN_S + 1.9) == [0.4, 0.8, 0.4, 0.4]
        assert caps(board, BEGIN_S, BEGIN_S + 1.9) == [0.9, 0.2, 0.9, 0.9]


def test_of_several_things_the_one_with_most_evidence_counts() -> None:
    signs = (sign(BEGIN_S, BEGIN_S + 1.0, 0.4, 0.9), sign(BEGIN_S + 0.5, BEGIN_S + 1.5, 0.8, 0.2, key=OTHER))
    board = board_of(*signs)
    assert held(board, BEGIN_S, BEGIN_S + 1.9, GPU, OTHER) == [0.4, 0.8, 0.8, 0.0]
    assert caps(board, BEGIN_S, BEGIN_S + 1.9, OTHER, GPU) == [0.9, 0.2, 0.2, 0.0]
    assert held(board, BEGIN_S, BEGIN_S + 1.9, OTHER) == [0.0, 0.8, 0.8, 0.0]
    assert board.conditions([("gpu", "GPU-c")], BEGIN_S, BEGIN_S + 1.9).causes == ()


@pytest.mark.parametrize("first", [0.1, 0.6])
def test_of_two_things_with_the_same_evidence_the_one_that_can_have_cost_more_counts(first: float) -> None:
    # Two GPUs of one server are surely too hot, one of them much more so: it is the one that is waited for.
    signs = (sign(BEGIN_S, BEGIN_S + 1.0, 1.0, first), sign(BEGIN_S, BEGIN_S + 1.0, 1.0, 0.7 - first, key=OTHER))
    assert caps(board_of(*signs), BEGIN_S, BEGIN_S + 0.9, GPU, OTHER) == [0.6, 0.6]


@pytest.mark.parametrize("first", [0.1, 0.6])
def test_of_two_signs_of_one_thing_with_the_same_evidence_the_higher_cap_counts(first: float) -> None:
    signs = (sign(BEGIN_S, BEGIN_S + 1.0, 1.0, first), sign(BEGIN_S, BEGIN_S + 1.0, 1.0, 0.7 - first))
    assert caps(board_of(*signs), BEGIN_S, BEGIN_S + 0.9) == [0.6, 0.6]


def test_causes_are_kept_apart_and_told_in_one_order() -> None:
    signs = [sign(BEGIN_S, BEGIN_S + 1.0, cause=cause) for cause in ("pcie", HOT, "nvlink")]
    names = [CAUSES[row] for row in board_of(*signs).conditions([GPU], BEGIN_S, BEGIN_S + 1.0).causes]
    assert names == [HOT, "pcie", "nvlink"]
    assert held(board_of(signs[0]), BEGIN_S, BEGIN_S + 0.9, cause="nvlink") == [0.0, 0.0]


# --- against a plain list ---------------------------------------------------------------------------------------------


class Told(NamedTuple):
    sign: Sign
    at_s: float


THINGS = [GPU, OTHER, ("host", "")]
NAMES = [HOT, "pcie", "cpu_starvation"]
TENTHS = st.integers(1, 20)


@st.composite
def stories(draw: st.DrawFn) -> list[Told]:
    """Signs as they come: time goes on, by little or by minutes; each is of the last half minute."""
    at, told = 10_000, []
    for _ in range(draw(st.integers(0, 25))):
        at += draw(st.sampled_from([0, 1, 5, 10, 10, 10, 37, 1000, 3590, 3600, 4000]))
        end = at - draw(st.sampled_from([0, 0, 0, 3, 10, 250]))
        start = end - draw(st.sampled_from([0, 1, 5, 10, 10, 20, 200, 5000]))
        key, cause = draw(st.sampled_from(THINGS)), draw(st.sampled_from(NAMES))
        told.append(
            Told(sign(start / 10, end / 10, draw(TENTHS) / 20, draw(TENTHS) / 20, cause=cause, key=key), at / 10)
        )
    return told


def touches(each: Sign, cell: int) -> bool:
    """Whether a stretch and a cell have time in common; a moment at an edge is of the cell before."""
    start, end = each.start_s / CELL_S, each.end_s / CELL_S
    return (start < cell + 1 and end > cell) or start == end == cell + 1


@settings(max_examples=40)
@given(stories())
def test_a_board_is_a_list_of_signs_of_the_last_minutes(told: list[Told]) -> None:
    board = Board()
    for each, at_s in told:
        board.put([each], at_s)
    now_s = told[-1].at_s if told else BEGIN_S
    for keys in ([GPU], [OTHER, GPU], THINGS):
        start_s, end_s = now_s - 300.0, now_s + 2.0
        conditions = board.conditions(keys, start_s, end_s)
        assert conditions.first == int(start_s / CELL_S)
        assert conditions.evidence.shape == (len(conditions.causes), int(end_s / CELL_S) - conditions.first + 1)
        for cause in NAMES:
            evidence, lost = seen(conditions, cause)
            of = [each for each, _ in told if each.key in keys and each.cause == cause]
            for place, (value, cap) in enumerate(zip(evidence, lost, strict=True)):
                there = [each for each in of if touches(each, conditions.first + place)]
                most = max((each.evidence for each in there), default=0.0)
                assert value == pytest.approx(most, abs=1e-6)
                assert (
                    cap in [pytest.approx(each.cap, abs=1e-6) for each in there if each.evidence == most] or not there
                )
    assert board.left_out == 0


def test_after_the_ring_has_gone_round_only_the_last_minutes_are_known() -> None:
    board = Board()
    seconds = round(2.5 * KEPT_S)
    for second in range(seconds):
        board.put([sign(BEGIN_S + second, BEGIN_S + second + 1, (second % 10 + 1) / 10)], BEGIN_S + second + 1)
    end_s = BEGIN_S + seconds
    values = held(board, BEGIN_S, end_s - CELL_S)
    expected = [(second % 10 + 1) / 10 for second in range(seconds) for _ in range(2)]
    assert values[-CELLS:] == expected[-CELLS:]
    assert values[:-CELLS] == [0.0] * (len(values) - CELLS)


def test_a_pause_longer_than_what_is_kept_leaves_nothing_of_before() -> None:
    board = board_of(sign(BEGIN_S, BEGIN_S + 300.0))
    later_s = BEGIN_S + 3 * KEPT_S
    board.put([sign(later_s - 1.0, later_s)], later_s)
    assert held(board, later_s - 300.0, later_s - CELL_S) == [0.0] * 598 + [0.9, 0.9]
    assert sum(held(board, BEGIN_S, BEGIN_S + 300.0)) == 0.0


def test_what_was_said_of_long_ago_does_not_come_up_now() -> None:
    board = board_of(sign(BEGIN_S + 400.0, BEGIN_S + 401.0))
    board.put([sign(BEGIN_S, BEGIN_S + 1.0, 1.0)], BEGIN_S + 401.0)
    assert sum(held(board, BEGIN_S, BEGIN_S + 399.0)) == 0.0
    assert held(board, BEGIN_S + 400.0, BEGIN_S + 400.9) == [0.9, 0.9]


def test_right_after_the_machine_began_all_is_as_later() -> None:
    board = board_of(sign(0.0, 1.0), at_s=1.0)
    assert held(board, 0.0, 1.9) == [0.9, 0.9, 0.0, 0.0]


# --- stretches --------------------------------------------------------------------------------------------------------


def by_hand(
    conditions: Conditions, starts_s: NDArray[np.float64], ends_s: NDArray[np.float64]
) -> tuple[list[list[float]], list[list[float]]]:
    evidence, lost = [], []
    for start_s, end_s in zip(starts_s.tolist(), ends_s.tolist(), strict=True):
        cells = range(
            math.floor(start_s / CELL_S) - conditions.first, math.floor(end_s / CELL_S) - conditions.first + 1
        )
        rows = range(len(conditions.causes))
        evidence.append([max(conditions.evidence[row, cell] for cell in cells) for row in rows])
        products = conditions.evidence * conditions.caps
        lost.append([sum(products[row, cell] for cell in cells) / len(cells) for row in rows])
    return evidence, lost


UNIT = st.floats(0, 1)


@given(st.integers(0, 3), st.integers(1, 12), st.lists(st.tuples(UNIT, UNIT), max_size=12), st.data())
def test_stretches_have_the_greatest_evidence_and_the_mean_loss(
    causes: int, cells: int, drawn: list[tuple[float, float]], data: st.DataObject
) -> None:
    values = st.lists(UNIT, min_size=causes * cells, max_size=causes * cells)
    evidence, cap = (np.array(data.draw(values), dtype=np.float64).reshape(causes, cells) for _ in range(2))
    conditions = Conditions(2000, tuple(range(causes)), evidence, cap)
    moments = np.sort(1000.0 + np.array(drawn).reshape(-1, 2) * (cells * CELL_S - 1e-6), axis=1)
    starts_s, ends_s = moments[:, 0], moments[:, 1]
    found = conditions.within(starts_s, ends_s)
    for table, expected in zip(found, by_hand(conditions, starts_s, ends_s), strict=True):
        assert table.shape == (len(drawn), causes)
        np.testing.assert_allclose(table, np.array(expected).reshape(len(drawn), causes), atol=1e-12)


def test_a_stretch_shorter_than_a_cell_has_what_the_cell_has() -> None:
    board = board_of(sign(BEGIN_S, BEGIN_S + CELL_S, 0.8, 0.5))
    evidence, lost = board.conditions([GPU], BEGIN_S, BEGIN_S + 1.0).within(
        np.array([BEGIN_S + 0.1, BEGIN_S + 0.6]), np.array([BEGIN_S + 0.12, BEGIN_S + 0.62])
    )
    assert evidence[:, 0].tolist() == pytest.approx([0.8, 0.0])
    assert lost[:, 0].tolist() == pytest.approx([0.4, 0.0])


@pytest.mark.parametrize(
    ("start_s", "end_s"), [(0.0, 1.0), (BEGIN_S - 2 * KEPT_S, BEGIN_S), (BEGIN_S + 60, BEGIN_S + 70)]
)
def test_of_a_time_that_nothing_is_known_of_nothing_is_told(start_s: float, end_s: float) -> None:
    board = board_of(sign(BEGIN_S, BEGIN_S + 1.0))
    conditions = board.conditions([GPU], start_s, min(end_s, BEGIN_S - 1) if end_s == BEGIN_S else end_s)
    assert conditions.causes == ()
    evidence, lost = conditions.within(np.array([start_s]), np.array([end_s]))
    assert evidence.shape == lost.shape == (1, 0)


def test_a_time_before_the_machine_began_harms_nothing() -> None:
    # A server's clock may be behind, and the machine just up.
    board = board_of(sign(0.0, 1.0), at_s=1.0)
    evidence, lost = board.conditions([GPU], 0.0, -200.0).within(np.array([-210.0]), np.array([-200.0]))
    assert evidence.shape == lost.shape


# --- facts ------------------------------------------------------------------------------------------------------------


def fact(observed: float) -> Fact:
    return Fact("sm_clock", observed, Unit.HERTZ)


def test_the_figure_is_that_of_most_evidence_in_the_stretch_and_of_such_the_newest() -> None:
    told = [(0.0, 0.5), (1.0, 0.9), (2.0, 0.9), (3.0, 0.6), (10.0, 1.0)]
    board = board_of(*(sign(BEGIN_S + s, BEGIN_S + s + 0.9, e, fact=fact(s)) for s, e in told))
    assert board.fact([GPU], HOT, BEGIN_S, BEGIN_S + 5.0) == fact(2.0)
    assert board.fact([GPU], HOT, BEGIN_S + 3.0, BEGIN_S + 3.1) == fact(3.0)
    assert board.fact([GPU], HOT, BEGIN_S, BEGIN_S + 60.0) == fact(10.0)
    assert board.fact([GPU], HOT, BEGIN_S + 20.0, BEGIN_S + 60.0) is None


def test_a_figure_is_of_the_things_and_the_cause_asked_for() -> None:
    board = board_of(
        sign(BEGIN_S, BEGIN_S + 1.0, 0.5, fact=fact(1.0)),
        sign(BEGIN_S, BEGIN_S + 1.0, 0.9, key=OTHER, fact=fact(2.0)),
        sign(BEGIN_S, BEGIN_S + 1.0, 0.9, cause="pcie", fact=fact(3.0)),
        sign(BEGIN_S, BEGIN_S + 1.0, 0.9, cause="nvlink"),
    )
    when = BEGIN_S, BEGIN_S + 1.0
    assert board.fact([GPU], HOT, *when) == fact(1.0)
    assert board.fact([GPU, OTHER], HOT, *when) == fact(2.0)
    assert board.fact([GPU], "pcie", *when) == fact(3.0)
    assert board.fact([GPU], "nvlink", *when) is None
    assert board.fact([GPU], "numa_remote", *when) is None


def test_only_so_many_figures_of_a_thing_are_remembered() -> None:
    board = Board()
    for second in range(300):
        board.put([sign(BEGIN_S + second, BEGIN_S + second + 0.9, fact=fact(second))], BEGIN_S + second + 1)
    assert board.fact([GPU], HOT, BEGIN_S, BEGIN_S + 1.0) is None
    assert board.fact([GPU], HOT, BEGIN_S, BEGIN_S + 300.0) == fact(299.0)


@pytest.mark.parametrize("broken", [fact(math.nan), fact(math.inf), fact(1.0)._replace(usual=math.nan)])
def test_a_figure_that_is_no_number_is_not_told(broken: Fact) -> None:
    board = board_of(sign(BEGIN_S, BEGIN_S + 1.0, fact=broken))
    told = board.fact([GPU], HOT, BEGIN_S, BEGIN_S + 1.0)
    assert told is None or all(math.isfinite(value) for value in (told.observed, told.usual or 0.0))


# --- what cannot be, and what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        sign(math.nan, BEGIN_S),
        sign(BEGIN_S, math.nan),
        sign(-math.inf, BEGIN_S),
        sign(BEGIN_S, math.inf),
        sign(BEGIN_S + 1.0, BEGIN_S),
        sign(BEGIN_S, BEGIN_S + 60.0),
        sign(BEGIN_S + 50.0, BEGIN_S + 60.0),
        sign(BEGIN_S, BEGIN_S + 1.0, math.nan),
        sign(BEGIN_S, BEGIN_S + 1.0, math.inf),
        sign(BEGIN_S, BEGIN_S + 1.0, -math.inf),
        sign(BEGIN_S, BEGIN_S + 1.0, 0.9, math.nan),
        sign(BEGIN_S, BEGIN_S + 1.0, 0.9, math.inf),
        sign(BEGIN_S, BEGIN_S + 1.0, cause="bad_luck"),
        sign(BEGIN_S, BEGIN_S + 1.0, cause=""),
    ],
)
def test_a_sign_that_cannot_be_true_is_counted_and_left_out_and_its_neighbours_are_not(broken: Sign) -> None:
    board = Board()
    good = sign(BEGIN_S, BEGIN_S + 1.0, cause="pcie")
    board.put([broken, good], BEGIN_S + 2.0)
    assert board.left_out == 1
    assert len(board) == 1
    assert board.conditions([GPU], BEGIN_S - 100.0, BEGIN_S + 100.0).causes == (INDEX["pcie"],)


def test_evidence_and_caps_beyond_their_range_are_taken_for_its_ends() -> None:
    board = board_of(sign(BEGIN_S, BEGIN_S + 0.5, 1e30, 7.0), sign(BEGIN_S + 0.5, BEGIN_S + 1.0, 0.5, -3.0))
    assert held(board, BEGIN_S, BEGIN_S + 0.9) == [1.0, 0.5]
    assert caps(board, BEGIN_S, BEGIN_S + 0.9) == [1.0, 0.0]
    assert board.left_out == 0


@pytest.mark.parametrize("evidence", [0.0, -1.0])
def test_a_sign_without_evidence_takes_no_room(evidence: float) -> None:
    board = board_of(sign(BEGIN_S, BEGIN_S + 1.0, evidence))
    assert (len(board), board.left_out) == (0, 0)


def test_a_sign_of_all_time_fills_what_is_kept() -> None:
    board = board_of(sign(-1e18, BEGIN_S))
    assert min(held(board, BEGIN_S - KEPT_S, BEGIN_S - CELL_S)) == 0.9


def test_things_beyond_the_room_are_counted_and_those_known_go_on() -> None:
    board = Board()
    things: list[Key] = [("process", str(pid)) for pid in range(ROWS_MAX + 5)]
    board.put((sign(BEGIN_S, BEGIN_S + 1.0, key=thing) for thing in things), BEGIN_S + 1.0)
    assert (len(board), board.left_out) == (ROWS_MAX, 5)
    board.put([sign(BEGIN_S + 1.0, BEGIN_S + 2.0, key=things[0])], BEGIN_S + 2.0)
    assert board.left_out == 5
    assert held(board, BEGIN_S, BEGIN_S + 1.9, things[0]) == [0.9] * 4
    assert held(board, BEGIN_S, BEGIN_S + 1.9, things[-1]) == [0.0] * 4


def test_things_of_which_nothing_was_said_for_long_make_room() -> None:
    board = Board()
    board.put((sign(BEGIN_S, BEGIN_S + 1.0, key=("process", str(pid))) for pid in range(ROWS_MAX)), BEGIN_S + 1.0)
    for second in range(1, round(KEPT_S) + 30):
        board.put([sign(BEGIN_S + second, BEGIN_S + second + 1, key=("process", "7"))], BEGIN_S + second + 1)
    assert len(board) == 1
    board.put([sign(BEGIN_S, BEGIN_S + 1.0, key=OTHER)], BEGIN_S + 400.0)
    assert board.left_out == 0


def test_rows_are_given_up_when_nothing_at_all_is_said_any_more() -> None:
    board = board_of(sign(BEGIN_S, BEGIN_S + 1.0))
    board.put([], BEGIN_S + KEPT_S + 20.0)
    assert len(board) == 0
