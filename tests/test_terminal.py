"""What the reports on a terminal share."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from gpumon.catalogue import CAUSES
from gpumon.explain.causes import is_fault
from gpumon.terminal import bar, colour_of, console_for, figure, printable, title_of


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@given(st.text())
def test_any_text_becomes_one_printable_line_of_bounded_length(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= 60


@pytest.mark.parametrize(("text", "shown"), [("llama", "llama"), ("a\x1b[31mb\n", "a\ufffd[31mb\ufffd"), ("", "")])
def test_control_characters_are_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_pipe_gets_80_plain_columns_and_a_terminal_colours() -> None:
    pipe, screen = io.StringIO(), Screen()
    for stream in (pipe, screen):
        console_for(stream).print(Text("x" * 200, style="red"))
    assert pipe.getvalue() == "x" * 80 + "\n" + "x" * 80 + "\n" + "x" * 40 + "\n"
    assert "\x1b[" not in pipe.getvalue()


def test_faults_are_warm_load_is_cold_and_the_rest_is_grey() -> None:
    warm = {colour_of(cause) for cause in CAUSES if is_fault(cause)}
    grey = {colour_of("unexplained"), colour_of("of a later version")}
    cold = {colour_of(cause) for cause in CAUSES} - warm - grey
    assert grey == {"bright_black"}
    assert "red" in warm
    assert "cyan" in cold
    assert not warm & cold


def test_a_cause_of_a_later_version_has_its_own_name() -> None:
    assert title_of("thermal_throttle") == "GPU too hot"
    assert title_of("queue_buildup") == "growing queue"
    assert title_of("gremlins\x1b") == "gremlins\ufffd"


@pytest.mark.parametrize(
    ("share", "drawn"), [(0.0, ""), (1e-9, "▏"), (0.5, "█████"), (0.51, "█████▏"), (1.0, "█" * 10), (7.0, "█" * 10)]
)
def test_a_bar_is_as_long_as_its_share_and_never_nothing_for_something(share: float, drawn: str) -> None:
    assert bar(share, 10) == drawn


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (None, "ratio", "-"),
        (None, "faults/s", "-"),
        (0.974, "ratio", "97.4 %"),
        (0.12, "s/s", "12 %"),
        (91.0, "celsius", "91 °C"),
        (3.2e9, "bytes/s", "3.2 GB/s"),
        (40.0, "faults/s", "40/s"),
        (0.5, "preemptions/s", "0.5/s"),
        (0.045, "seconds", "45 ms"),
        (12.0, "", "12"),
        (12.0, "of a later version", "12"),
    ],
)
def test_figures_are_told_in_their_unit(value: float | None, unit: str, told: str) -> None:
    assert figure(value, unit) == told
