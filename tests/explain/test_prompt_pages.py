"""Prompt tokens that only the server's page knows of."""

from __future__ import annotations

import numpy as np
import pytest

from gpumon.explain.load import GroupLoad, Others, Ran
from gpumon.explain.prompt_pages import KEPT, PromptPages

NOBODY = Others(np.empty(0), np.empty(0), np.empty(0))


def unknown(pages: PromptPages, moment_s: float, others: Others = NOBODY, share: float = 1.0) -> float:
    tokens, _ = pages.unknown(np.array([moment_s]), others, share)
    return float(tokens[0])


def test_what_no_request_tells_of_is_left_over() -> None:
    pages = PromptPages()
    pages.add(100.0, 105.0, 6000.0)
    pages.add(105.0, 110.0, 0.0)
    load = GroupLoad()
    load.add([Ran(100.0, 101.0, 102.0, 108.0, prompt=2000, computed=1500, made=100)], 110.0)
    others = load.others(90.0, 120.0)
    assert unknown(pages, 103.0) == 6000.0
    assert unknown(pages, 103.0, others) == pytest.approx(4500.0)
    assert unknown(pages, 103.0, others, share=0.5) == pytest.approx(1500.0)
    assert unknown(pages, 103.0, others, share=0.1) == 0.0
    assert unknown(pages, 107.0, others) == 0.0


def test_a_moment_that_no_reading_covers_has_nothing_left_over() -> None:
    pages = PromptPages()
    assert unknown(pages, 100.0) == 0.0
    pages.add(100.0, 105.0, 6000.0)
    assert unknown(pages, 99.0) == 0.0
    assert unknown(pages, 106.0) == 0.0


def test_moments_of_one_reading_are_told_by_its_number() -> None:
    pages = PromptPages()
    for number in range(4):
        pages.add(5.0 * number, 5.0 * number + 5.0, 100.0)
    _, numbers = pages.unknown(np.array([1.0, 4.0, 6.0, 19.0]), NOBODY, 1.0)
    assert numbers[0] == numbers[1] != numbers[2] != numbers[3]


def test_the_oldest_readings_go() -> None:
    pages = PromptPages()
    for number in range(10 * KEPT):
        pages.add(5.0 * number, 5.0 * number + 5.0, 100.0)
    assert unknown(pages, 1.0) == 0.0
    assert unknown(pages, 5.0 * (10 * KEPT - 1) + 1.0) == 100.0
