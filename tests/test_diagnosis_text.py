"""``gpumon diagnose`` on a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len

from gpumon.diagnosis_text import render
from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.terminal import console_for
from tests.diagnoses import HOSTILE, TRACE, full, nothing
from tests.test_terminal import Screen

ALWAYS = ("Causes", "Time lost", "What was different", "The worst stretch", "Requests to look at", "Incidents")
TITLES = (
    "What to do",
    *ALWAYS,
    "Servers",
    "What goes together",
    "Tenants of vllm/llama-70b",
    "Batch of vllm/llama-70b",
    "Context lengths of vllm/llama-70b",
    "Response surface",
    "Quality and token rate",
    "Not told",
)


def lines(said: Diagnosis, *, command: str = "gpumon explain", everything: bool = False) -> list[str]:
    """In a pipe."""
    stream = io.StringIO()
    render(console_for(stream), said, command, everything)
    text = stream.getvalue()
    assert "\x1b" not in text
    return [line.rstrip() for line in text.splitlines()]


def part(told: list[str], title: str) -> list[str]:
    """Lines of a part, without its title."""
    start = next(number for number, line in enumerate(told) if line.startswith(title))
    rest = told[start + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


def titles(told: list[str]) -> list[str]:
    """Of the parts, in their order."""
    begins = [told[number + 1] for number, line in enumerate(told) if line == ""]
    return [title for begin in begins for title in TITLES if begin.startswith(title)]


def changed(**fields: Any) -> Diagnosis:
    return full().model_copy(update=fields)


def test_the_verdict_comes_first_with_what_it_cost() -> None:
    assert lines(full())[:6] == [
        "gpu-box-17: 30 min 0 s from 2027-01-15 08:00:00 UTC on",
        "vllm/llama-70b lost 310 s of token time, 93 % of it because a GPU was too hot.",
        "It began at 08:10:00 and lasts.",
        "1,234 requests, 120 of them slow; 5 min 10 s lost of 68 min 40 s (8 %); 3 % of",
        "it unexplained.",
        "",
    ]


def test_all_parts_are_told_in_one_order_within_80_columns() -> None:
    told = lines(full(), everything=True)
    assert titles(told) == [*TITLES]
    assert titles(lines(full())) == [title for title in TITLES if title != "What goes together"]
    assert all(cell_len(line) <= 80 for line in told)


def test_where_nothing_was_asked_there_is_the_verdict_alone() -> None:
    assert lines(nothing(), everything=True) == [
        "gpu-box-17: 30 min 0 s from 2027-01-15 08:00:00 UTC on",
        "No requests ended in this time.",
    ]


def test_causes_have_bars_seconds_shares_and_what_they_rest_on() -> None:
    assert part(lines(full()), "Causes") == [
        "GPU too hot               ██████████████▉   4 min 48 s   93 %    110 requests",
        "  fault; sm_clock 1.005 GHz, usually 1.41 GHz",
        "waiting in the queue      ▋                       12 s    4 %    110 requests",
        "  load; until first tokens; in calm minutes 500 ms a minute",
        "unexplained               ▌                       10 s    3 %    110 requests",
    ]


def test_the_time_lost_is_drawn_over_the_period() -> None:
    told = lines(full())
    assert "Time lost (each 60 s; █ 80 s lost)" in told
    assert part(told, "Time lost") == [" " * 20 + "▆▆██▇▇▇▇▄▄▄▄", "08:00:00" + " " * 44 + "08:30:00"]


def test_a_period_with_more_cells_than_columns_shows_the_worst_of_each() -> None:
    timeline = full().timeline
    assert timeline is not None
    excess = tuple(float(number == 77) for number in range(300))
    told = lines(changed(timeline=timeline.model_copy(update={"excess": excess, "by_cause": {"nvlink": excess}})))
    drawn = part(told, "Time lost")[0]
    assert drawn == " " * (77 // 4) + "█"


def test_the_matrix_has_what_is_healthy_both_means_r_and_the_verdict() -> None:
    assert part(lines(full()), "What was different") == [
        "Dimension                  healthy   slow  others      r  verdict",
        "SM clock over its maximum  > 0.7    0.508       1  -0.83      bad",
        "GPU temperature            < 85 °C  91 °C   74 °C  +0.79  suspect",
        "2 of 4; --all shows the rest.",
    ]
    assert "What was different (means over slow requests and the others of vllm/llama-70b)" in lines(full())


def test_where_nothing_was_different_that_is_said() -> None:
    same = tuple(row for row in full().matrix if row.verdict in ("ok", "unknown"))
    assert part(lines(changed(matrix=same)), "What was different") == [
        "Nothing that was watched; 1 dimension as on the other requests. --all shows all."
    ]
    assert not any(line.startswith("What was different") for line in lines(changed(matrix=same[1:])))


def test_seconds_of_cpus_have_their_unit() -> None:
    (row, *_) = full().matrix
    cpu = row.model_copy(update={"dimension": "runqueue_wait", "title": "waiting for a CPU", "unit": "s/s"})
    assert "0.508 CPU s/s  1 CPU s/s" in part(lines(changed(matrix=(cpu,))), "What was different")[1]


def test_dimensions_that_are_not_known_are_told_where_all_is_asked_for() -> None:
    told = part(lines(full(), everything=True), "What was different")
    assert told[-1].split() == ["NVLink,", "both", "ways", "-", "-", "-", "unknown"]


def test_the_worst_stretch_is_compared_with_the_quiet_time_before() -> None:
    told = lines(full())
    assert "The worst stretch (3 min 20 s from 08:10:00 on, against 08:05:00 to 08:09:50)" in told
    assert part(told, "The worst stretch") == [
        "4 min 10 s lost, 20 s of it as in calm minutes; signals of vllm/llama-70b",
        "Signal           before     during  change",
        "SM clock      1,980 MHz  1,005 MHz   -49 %",
        "P95 gap           45 ms     255 ms  +467 %",
        "major faults          0          3       -",
    ]
    during = full().before_during
    assert during is not None
    alone = lines(changed(before_during=during.model_copy(update={"before": None})))
    assert "The worst stretch (3 min 20 s from 08:10:00 on)" in alone


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("gpumon explain", f"  gpumon explain {TRACE}"),
        ("gpumon explain --url " + "http://x" * 12, "  gpumon explain --url " + "http://x" * 12 + f" {TRACE}"),
        ("", f"  trace {TRACE}"),
    ],
)
def test_requests_to_look_at_come_with_the_command_whole(command: str, told: str) -> None:
    assert part(lines(full(), command=command), "Requests to look at") == [
        "08:10:40  late by 4.2 s of 12.3 s, GPU too hot 93 %",
        told,
        "  vllm/llama-70b, tenant acme",
    ]


def test_a_trace_id_that_is_none_becomes_no_command() -> None:
    (slow,) = full().slowest
    told = lines(changed(slowest=(slow.model_copy(update={"trace_id": "$(reboot)"}),)))
    assert part(told, "Requests to look at")[1] == "  trace $(reboot)"


def test_of_long_lists_the_first_are_told_unless_all_are_asked_for() -> None:
    (slow,) = full().slowest
    said = changed(slowest=(slow,) * 9, causes=full().causes * 5)
    few, everything = lines(said), lines(said, everything=True)
    assert "5 of 9; --all shows the rest." in few
    assert "12 of 15; --all shows the rest." in few
    assert not any("--all" in line for line in everything)
    assert sum(TRACE in line for line in everything) == 9


def test_incidents_are_told_with_how_long_and_what_they_cost() -> None:
    assert part(lines(full()), "Incidents") == [
        "08:10:01  warning  thermal_throttle of gpu 3, still open after 19 min 59 s",
        "          SM clock 1980 → 1005 MHz while llama-70b ran (GPU too hot)",
    ]


def test_what_is_healthy_is_left_out_unless_all_is_asked_for() -> None:
    said = full()
    healthy = changed(
        engines=said.engines[:1],
        tenants=tuple(
            found.model_copy(update={"tenants": tuple(t.model_copy(update={"verdict": "ok"}) for t in found.tenants)})
            for found in said.tenants
        ),
        batches=tuple(batch.model_copy(update={"verdict": "ok"}) for batch in said.batches),
        contexts=tuple(profile.model_copy(update={"cliff": ""}) for profile in said.contexts),
        quality=tuple(link.model_copy(update={"verdict": "unknown"}) for link in said.quality),
    )
    assert titles(lines(healthy)) == ["What to do", *ALWAYS, "Response surface", "Not told"]
    assert titles(lines(healthy, everything=True)) == [*TITLES]


def test_tenants_batches_contexts_and_quality_have_their_tables() -> None:
    told = lines(full())
    assert part(told, "Tenants")[1].split() == ["acme", "400", "41", "-6.5", "-0.80", "bad"]
    assert part(told, "Batch")[0] == "Queries told apart by tenant; arrivals vary by 1.9; suspect: rare ones have 4.5"
    assert part(told, "Batch")[-1].split() == ["rare", "34", "350", "ms", "900", "ms", "-"]
    assert part(told, "Context")[-1].split() == ["128k", "100", "7", "s", "14", "s", "x", "3.2", "40", "20"]
    assert part(told, "Quality")[-1].split() == ["5f3a", "relevance", "40", "0.71", "38", "+0.66", "suspect"]
    assert part(told, "Servers")[1].split()[:3] == ["vllm/llama-70b", "GPU-0003,", "GPU-0004"]
    together = part(lines(full(), everything=True), "What goes together")
    assert together[1].split()[-6:] == ["-0.91", "+1", "s", "120", "1", "s"]
    assert together[2].split()[-2:] == ["100", "ms"]


def test_cells_of_the_surface_with_too_few_requests_are_empty() -> None:
    told = part(lines(full()), "Response surface")
    assert told[-2].split() == ["acme", "1", "s", "1.4", "s"]
    assert told[-1].split() == ["others", "1.1", "s", "1.3", "s", "2.9", "s"]


def test_a_wide_surface_says_what_is_left_out() -> None:
    surface = full().surface
    assert surface is not None
    labels = tuple(map(str, range(15)))
    wide = surface.model_copy(
        update={
            "x": surface.x.model_copy(update={"labels": labels}),
            "values": ((1.0,) * 15,) * 2,
            "counts": ((9,) * 15,) * 2,
        }
    )
    assert "3 further columns are left out" in " ".join(lines(changed(surface=wide)))


def test_actions_are_numbered_right_after_the_verdict_and_notes_come_last() -> None:
    told = lines(full())
    assert told[6:8] == ["What to do", "1. Look at fans and air flow. (GPU too hot)"]
    assert part(told, "What to do") == ["1. Look at fans and air flow. (GPU too hot)"]
    assert told[-1] == "  NVLink is not watched: no NVLink on this node."


def test_names_from_outside_are_neither_markup_nor_control_sequences() -> None:
    told = lines(full(HOSTILE, HOSTILE), everything=True)
    assert any("[red]\ufffd[31m" in line for line in told)


def test_times_out_of_the_calendar_are_told_as_numbers() -> None:
    (slow,) = full().slowest
    told = lines(changed(since=1e300, until=1e300, slowest=(slow.model_copy(update={"started": 1e300}),)))
    assert told[0].startswith("gpu-box-17: 0 s from")
    assert part(told, "Requests to look at")[0].startswith("1e+300  late by")


def test_a_terminal_gets_colours() -> None:
    screen = Screen()
    render(console_for(screen), full(), "gpumon explain")
    assert "\x1b[1;31m" in screen.getvalue()


def test_of_one_server_its_name_is_not_told_again_and_again() -> None:
    told = lines(changed(engines=full().engines[:1]))
    assert part(told, "Requests to look at")[2] == "  tenant acme"
    one = lines(changed(engines=full().engines[:1]), everything=True)
    assert "What goes together (of vllm/llama-70b, over time, at the best lag)" in one
    first, second = full().correlations
    two = lines(changed(correlations=(first, second.model_copy(update={"model": "qwen"}))), everything=True)
    assert "What goes together (over time, at the best lag)" in two
    assert part(two, "What goes together")[1].startswith("sm clock     inter token p95 of")


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (-1.0, "-100 %"),
        (-0.29, "-29 %"),
        (4.67, "+467 %"),
        (9.0, "x 10"),
        (0.001, " 0 %"),
        (-0.004, " 0 %"),
        (1e9, "x 1 G"),
    ],
)
def test_changes_beyond_ten_times_are_told_as_times(ratio: float, told: str) -> None:
    during = full().before_during
    assert during is not None
    changes = tuple(each.model_copy(update={"change": ratio}) for each in during.changes)
    shown = part(lines(changed(before_during=during.model_copy(update={"changes": changes}))), "The worst stretch")
    assert shown[-1].endswith(told)
