"""`gpumon top` on a terminal: what keys, signals and answers do, and that the terminal is left as it was."""

from __future__ import annotations

import os
import signal
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.waiting import eventually
from tests.top.stage import Stage
from tests.top.terminal import LEFT, Terminal


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


@pytest.fixture
def terminal(stage: Stage) -> Iterator[Terminal]:
    with Terminal(stage.url) as made:
        made.await_shown()
        yield made


def clock(seen: list[str]) -> str:
    return seen[0].split("  ")[1]


def test_the_screen_is_full_and_renewed(terminal: Terminal) -> None:
    first = terminal.await_shown()
    assert len(first) == 24
    assert first[1].split()[:3] == ["GPU", "SM", "DRAM"]
    terminal.await_screen(lambda seen: len(seen) == 24 and clock(seen) > clock(first), "a later one")


@pytest.mark.parametrize("key", [b"q", b"Q", b"\x03"])
def test_q_and_ctrl_c_end_it_and_the_terminal_is_as_before(terminal: Terminal, key: bytes) -> None:
    terminal.press(key)
    assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_before(terminal: Terminal, number: signal.Signals) -> None:
    terminal.process.send_signal(number)
    assert terminal.end() == 1


def test_p_stops_the_picture_and_the_asking_and_goes_on(terminal: Terminal, stage: Stage) -> None:
    terminal.press(b"p")
    seen = terminal.await_screen(lambda seen: "paused at" in seen[0] and seen[-1].startswith("q quit"), "it is paused")
    eventually(lambda: len(set(_counted(stage))) == 1, "nobody asks any more")
    assert terminal.screen[0] == seen[0]
    terminal.press(b"p")
    terminal.await_screen(lambda now: "paused" not in now[0] and clock(now) > seen[0].split()[4], "it goes on")


def _counted(stage: Stage) -> list[int]:
    """How often was asked, now and over half a second: more than twice as long as between two looks."""
    pause = threading.Event()
    counts = [len(stage.asked)]
    for _ in range(5):
        pause.wait(0.1)
        counts.append(len(stage.asked))
    return counts


def test_s_sorts_by_the_next_of_what_there_is(terminal: Terminal) -> None:
    for name in ("SM", "DRAM", "power", "heat"):
        terminal.press(b"s")
        terminal.await_foot(f"sort: {name}")
    assert terminal.await_shown()[2].startswith("3!"), "the hottest first"


def test_a_question_mark_shows_the_keys_and_any_key_goes_back(terminal: Terminal) -> None:
    terminal.press(b"?")
    seen = terminal.await_screen(lambda seen: seen[0] == "Keys" and len(seen) == 24, "the keys")
    assert seen[-1].startswith("q quit  ? back")
    terminal.press(b"s")
    seen = terminal.await_screen(lambda seen: len(seen) == 24 and seen[1].startswith("GPU"), "GPUs again")
    assert seen[-1].endswith("sort: index"), "it only went back"
    terminal.press(b"?")
    terminal.await_screen(lambda seen: seen[0] == "Keys", "the keys again")
    terminal.press(b"q")
    assert terminal.end() == 0


def test_arrows_scroll_where_it_does_not_fit(terminal: Terminal) -> None:
    terminal.resize(80, 12)
    terminal.await_screen(lambda seen: len(seen) == 12 and "lines 1-10 of" in seen[-1], "it is cut")
    terminal.press(b"\x1b[B")
    terminal.await_screen(lambda seen: "lines 2-11 of" in seen[-1], "a line down")
    terminal.press(b"\x1b[6~\x1b[A")
    terminal.await_screen(lambda seen: "lines 10-19 of" in seen[-1], "a page down and a line up")


def test_another_size_is_used_at_once_also_while_it_is_paused(terminal: Terminal) -> None:
    terminal.press(b"p")
    terminal.await_screen(lambda seen: "paused at" in seen[0], "it is paused")
    terminal.resize(140, 40)
    seen = terminal.await_screen(lambda seen: len(seen) == 40, "a larger one")
    assert "on GPUs" in "\n".join(seen)
    terminal.resize(60, 24)
    terminal.await_screen(lambda seen: len(seen) == 24 and all(len(line) <= 60 for line in seen), "a narrower one")


def test_q_works_while_an_answer_is_awaited(terminal: Terminal, stage: Stage) -> None:
    stage.go_on.clear()
    asked = len(stage.asked)
    eventually(lambda: len(stage.asked) > asked, "it asks")
    terminal.press(b"q")
    assert terminal.end() == 0


def test_a_gpumon_that_goes_away_is_said_and_seen_again_when_it_is_back(terminal: Terminal, stage: Stage) -> None:
    node = stage.node
    stage.put("node", (503, "gpumon ends"))
    seen = terminal.await_screen(lambda seen: "HTTP 503: gpumon ends" in "\n".join(seen), "it is said")
    assert "GPU" not in "\n".join(seen), "no old figures"
    assert any(line.startswith("The last answer was of ") for line in seen)
    stage.put("node", node)
    terminal.await_screen(lambda seen: "TTFT P99" in "\n".join(seen), "figures again")


def test_ctrl_z_gives_the_terminal_back_and_going_on_takes_it_again(terminal: Terminal) -> None:
    terminal.press(b"\x1a")
    eventually(lambda: terminal.written.endswith(LEFT), "the first screen is back", every_s=0.01)
    eventually(lambda: _state(terminal.process.pid) == "T", "it is stopped")
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    terminal.process.send_signal(signal.SIGCONT)
    eventually(lambda: terminal.written.rfind("\x1b[?1049h") > terminal.written.rfind(LEFT), "the second screen")
    terminal.await_shown()
    terminal.press(b"q")
    assert terminal.end() == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_terminal_that_goes_away_ends_it(stage: Stage) -> None:
    with Terminal(stage.url) as terminal:
        terminal.await_shown()
        ours, terminal.ours = terminal.ours, -1
        eventually(lambda: terminal.is_deaf, "nobody reads")
        os.close(ours)
        assert terminal.process.wait(20) == 1


@pytest.mark.parametrize("arguments", [("--once",), ("--json",)])
def test_one_look_on_a_terminal_takes_no_screen(stage: Stage, arguments: tuple[str, ...]) -> None:
    with Terminal(stage.url, *arguments, every=()) as terminal:
        assert terminal.process.wait(20) == 0
        assert "\x1b[?1049h" not in terminal.written
