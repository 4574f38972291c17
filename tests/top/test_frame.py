"""The whole screen from recorded answers, at the widths that people have; and what stands there without an answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import __version__
from gpumon.top.answers import Gpus, Incidents, Lost, Node, Servers
from gpumon.top.frame import Looks, help_screen, lines_of, screen, scrolled, silent_screen, whole
from gpumon.top.gpus import ORDERS
from tests.golden_file import golden
from tests.top.answered import HOSTILE, URL, answers, plain, snapshot

EMPTY = {
    "gpus": Gpus(at=1.0, gpus=[]),
    "servers": Servers(at=1.0, servers=[]),
    "incidents": Incidents([]),
    "lost": Lost(since=1.0, until=301.0, requests=0, slow_requests=0, excess_seconds=0.0, causes=[]),
}
NOTHING = dict.fromkeys(EMPTY)


def node(**other: Any) -> Node:
    return Node.model_validate(answers()["node"] | other)


def text(**other: Any) -> str:
    """In a pipe."""
    return "\n".join(plain(whole(snapshot(**other), 80), 80))


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (140, 40)])
def test_a_screen_from_recorded_answers(width: int, height: int) -> None:
    lines = screen(snapshot(), Looks(every_s=2.0), width, height)
    plain(lines, width)
    assert len(lines) == height
    golden(f"top/screen-{width}.txt", lines_of(lines).encode())


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_pipe_gets_all_of_it(width: int) -> None:
    lines = whole(snapshot(), width)
    plain(lines, width)
    golden(f"top/whole-{width}.txt", lines_of(lines).encode())


def test_at_80_by_24_every_part_is_seen() -> None:
    seen = lines_of(screen(snapshot(), Looks(), 80, 24))
    for part in ("SM  DRAM", "TTFT P99", "severity", " lost in the last ", "q quit"):
        assert part in seen


@given(st.integers(1, 200), st.integers(1, 80), st.integers(0, 100))
def test_a_screen_of_any_size_is_filled_and_not_more(width: int, height: int, offset: int) -> None:
    lines = screen(snapshot(), Looks(offset=offset), width, height)
    plain(lines, width)
    assert len(lines) == height


def test_scrolling_ends_at_both_ends() -> None:
    seen = snapshot()
    assert scrolled(seen, Looks(), -1, 80, 12) == 0
    end = scrolled(seen, Looks(), 1000, 80, 12)
    assert 0 < end < 40
    assert scrolled(seen, Looks(offset=end), 1, 80, 12) == end
    assert lines_of(screen(seen, Looks(offset=end), 80, 12)).splitlines()[-2].strip()
    assert f"↑↓ lines {end + 1}-{end + 10} of {end + 10}" in lines_of(screen(seen, Looks(offset=end), 80, 12))


def test_pausing_and_sorting_are_said() -> None:
    lines = plain(screen(snapshot(), Looks(order=ORDERS[3], is_paused=True), 80, 24), 80)
    assert "paused at " in lines[0]
    assert lines[-1].startswith("q quit  ? keys  p go on  s sort: power")


def test_a_node_where_nothing_is_says_of_every_part_what_to_do() -> None:
    said = text(**EMPTY)
    assert "No GPU is seen; `gpumon doctor` on that node says why." in said
    assert "No server has told anything yet; docs/SERVERS.md says how." in said
    assert "No incident is open." in said
    assert "0 requests ended in the last 5 min, and none was late." in said


@pytest.mark.parametrize("missing", sorted(NOTHING))
def test_a_part_without_an_answer_says_why_and_loses_no_other(missing: str) -> None:
    said = text(**{missing: None, "problems": {missing: f"{URL}: nothing is explained here: explain.enabled is off"}})
    assert ": nothing is explained here: explain.enabled is off" in said
    parts = {"gpus": "SM  DRAM", "servers": "TTFT P99", "incidents": "Incidents", "lost": " lost in the last "}
    assert [part for name, part in parts.items() if part not in said] == [parts[missing]]


def test_all_parts_without_an_answer_are_still_a_screen() -> None:
    assert len(screen(snapshot(**NOTHING), Looks(), 80, 24)) == 24


def test_what_the_daemon_cannot_see_is_said() -> None:
    unhealthy = {"nvml": {"state": "unavailable", "error": "driver_not_loaded"}, "gpus": {"present": 7, "lost": 1}}
    said = text(node=node(**unhealthy, sources=[{"source": "kubelet", "up": False}, {"source": "host", "up": True}]))
    assert "NVML is unavailable (driver_not_loaded): `gpumon doctor` on that node" in said
    assert "nothing comes from: kubelet\n" in said
    assert "  1 lost  " in said


def test_another_version_there_is_said() -> None:
    assert f"gpumon 99.1, top {__version__}" in text(node=node(version="99.1"))


def test_a_gpumon_that_answers_no_more_leaves_no_old_figures() -> None:
    lines = plain(silent_screen("connection refused", URL, 1_800_000_000.0, Looks(every_s=2.0), 80, 24), 80)
    assert len(lines) == 24
    assert [line for line in lines if line] == [
        f"gpumon top  {URL}",
        "connection refused",
        "The last answer was of 08:00:00 UTC.",
        "Asked again every 2 s.",
        "q quit  ? keys  p pause  s sort: index",
    ]


def test_help_has_all_keys_and_words_on_80_by_24() -> None:
    lines = plain(help_screen(Looks(is_help=True), 80, 24), 80)
    assert len(lines) == 24
    named = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert named[:7] == ["Keys", "q, Ctrl-C", "p, space", "s", "↑ ↓, k j", "?, h", "Words"]
    assert "late s/s" in "".join(lines)
    assert lines[-1] == "q quit  ? back  p pause  s sort: index"


@given(st.integers(1, 200), st.integers(1, 80))
def test_help_fills_a_screen_of_any_size_and_not_more(width: int, height: int) -> None:
    assert len(plain(help_screen(Looks(is_help=True), width, height), width)) == height


@given(st.integers(1, 200), st.integers(1, 50))
def test_hostile_names_fill_no_more_than_the_screen(width: int, height: int) -> None:
    evil = node(
        name=HOSTILE, version=HOSTILE, at=1e300, uptime_seconds=1e308, nvml={"state": HOSTILE, "error": HOSTILE}
    )
    seen = snapshot(node=evil, gpus=None, problems={"gpus": HOSTILE})
    assert len(plain(screen(seen, Looks(), width, height), width)) == height
    assert len(plain(silent_screen(HOSTILE, URL, 1e300, Looks(), width, height), width)) == height
    plain(whole(seen, width), width)
