"""Requests that only the server's page knows of, and what they make of a batch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpumon.explain.load import GroupLoad, Ran
from gpumon.explain.running_pages import FAR_S, KEPT, RunningPages


def unknown(pages: RunningPages, *moments_s: float, known: float = 0.0) -> list[float]:
    return [float(count) for count in pages.unknown(np.array(moments_s), lambda moments: np.full(len(moments), known))]


def read(*counts: float, start_s: float = 100.0, every_s: float = 2.0) -> RunningPages:
    pages = RunningPages()
    for number, count in enumerate(counts):
        pages.add(start_s + number * every_s, count)
    return pages


def test_what_the_known_requests_do_not_account_for_is_left() -> None:
    assert unknown(read(9, 9, 9), 101.0, 103.5, known=6.0) == [3.0, 3.0]
    assert unknown(read(5, 5, 5), 101.0, known=6.0) == [0.0]


def test_between_readings_it_changes_evenly() -> None:
    assert unknown(read(2, 4, 6, 8), 103.0, 103.5) == pytest.approx([5.0, 5.5])


def test_one_reading_that_is_unlike_its_neighbours_does_not_count() -> None:
    assert unknown(read(4, 4, 40, 4, 4), 103.0, 104.0, 105.0) == [4.0, 4.0, 4.0]


def test_far_from_any_reading_nothing_is_known() -> None:
    pages = read(4, 4, 4)
    assert unknown(pages, 100.0 - FAR_S - 0.1, 102.0, 104.0 + FAR_S + 0.1) == [0.0, 4.0, 0.0]
    assert unknown(pages, 500.0, 600.0) == [0.0, 0.0]
    assert unknown(RunningPages(), 100.0) == [0.0]
    assert unknown(pages) == []


def test_a_page_that_was_silent_for_a_while_leaves_a_hole() -> None:
    pages = read(4, 4, 4)
    pages.add(160.0, 4.0)
    assert unknown(pages, 104.0, 130.0, 160.0) == [4.0, 0.0, 4.0]


def test_what_cannot_be_true_or_was_told_before_is_left_out() -> None:
    pages = read(4)
    for at_s, running in ((100.0, 9.0), (99.0, 9.0), (102.0, math.nan), (102.0, math.inf), (102.0, -1.0)):
        pages.add(at_s, running)
    assert unknown(pages, 100.0, 102.0) == [4.0, 4.0]


def test_the_oldest_readings_go() -> None:
    pages = read(*[4.0] * (3 * KEPT), start_s=0.0)
    assert unknown(pages, 10.0) == [0.0]
    assert unknown(pages, 2.0 * (3 * KEPT - 1)) == [4.0]


# --- the batch --------------------------------------------------------------------------------------------------------


def ran(start_s: float, end_s: float, *, first_s: float | None = None) -> Ran:
    first = start_s if first_s is None else first_s
    return Ran(start_s, start_s, first, end_s, prompt=1000, computed=1000, made=100)


def loaded(*counts: float) -> GroupLoad:
    """Two requests that ended, and a page that says how many there are from second 2000 on."""
    load = GroupLoad()
    load.add([ran(1990.0, 2010.0), ran(1990.0, 2010.0)], 2012.0)
    for number, count in enumerate(counts):
        load.add_running(2000.0 + 2 * number, count)
    return load


def test_a_batch_has_those_that_still_run_too_and_their_context_is_as_that_of_the_others() -> None:
    running, context = loaded(5, 5, 5).at(np.array([2003.0]))
    alone, each = loaded().at(np.array([2003.0]))
    assert alone[0] == 2.0
    assert running[0] == 5.0
    assert context[0] / running[0] == pytest.approx(each[0] / alone[0])


def test_a_page_that_knows_of_fewer_takes_nobody_away() -> None:
    running, _ = loaded(1, 1, 1).at(np.array([2003.0]))
    assert running[0] == 2.0


def test_a_prompt_that_is_being_computed_is_in_the_pages_batch_and_is_not_unknown() -> None:
    load = loaded(3, 3, 3)
    load.add([ran(1999.0, 2011.0, first_s=2006.0)], 2012.0)
    running, _ = load.at(np.array([2002.0]))
    assert running[0] == 2.0


def test_requests_that_end_are_known_from_then_on() -> None:
    load = loaded(5, 5, 5)
    load.add([ran(1995.0, 2013.0)] * 3, 2014.0)
    running, _ = load.at(np.array([2003.0]))
    assert running[0] == 5.0
