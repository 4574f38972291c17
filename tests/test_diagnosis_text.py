"""``gpumon diagnose`` on a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len

from gpumon.diagnosis_text import render
from gpumon.explain.causes import TABLE
from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.terminal import console_for
from tests.diagnoses import HOSTILE, SINCE, TRACE, full, nothing
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


def lines(
    said: Diagnosis,
    *,
    command: str = "gpumon explain",
    everything: bool = False,
    with_surface: bool = False,
    width: int = 80,
) -> list[str]:
    """In a pipe."""
    stream = io.StringIO()
    console = console_for(stream)
    console.width = width
    render(console, said, command, everything, with_surface=with_surface)
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
        "gpu-box-17: 30 min from 2027-01-15 08:00:00 UTC on",
        "vllm/llama-70b lost 310 s of token time, 93 % of it because a GPU was too hot.",
        "It began at 08:10:00 and lasts.",
        "",
        "What to do (first about the worst stretch, then about what cost most)",
        "1. Look at fans and air flow. (GPU too hot: 3 min 50 s of the worst stretch, 4",
    ]


def test_a_period_of_which_less_is_known_says_since_when() -> None:
    told = lines(changed(known_since=SINCE + 1560.0))
    assert told[:2] == [
        "gpu-box-17: 4 min from 2027-01-15 08:26:00 UTC on: of the 30 min asked for no",
        "more is known",
    ]


def test_all_parts_are_told_in_one_order() -> None:
    assert titles(lines(full(), everything=True)) == [*TITLES]
    assert titles(lines(full())) == [
        title for title in TITLES if title not in ("What goes together", "Response surface")
    ]
    assert "Response surface" in titles(lines(full(), with_surface=True))


COMMAND = f"gpumon explain {TRACE}"


@pytest.mark.parametrize("width", [1, 7, 20, 40, 60, 77, 78, 80, 110])
def test_no_line_is_wider_than_the_terminal_but_the_command_to_copy(width: int) -> None:
    told = lines(full(), everything=True, width=width)
    assert any(COMMAND in line for line in told)
    assert all(cell_len(line) <= width for line in told if COMMAND not in line)


@pytest.mark.parametrize("width", [40, 60])
def test_on_a_narrow_terminal_no_word_and_no_figure_is_cut(width: int) -> None:
    """All that is told at 110 columns stands there as well, but for titles of what begins a paragraph."""
    narrow, wide = (lines(full(), everything=True, width=columns) for columns in (width, 110))
    words = " ".join(narrow).replace(";", " ").replace(":", " ").split()
    missing = {word for line in wide for word in line.replace(";", " ").replace(":", " ").split()} - {*words}
    titles_of_first_cells = {"Dimension", "From", "Prompts", "Server", "Signal", "Tenant"}
    assert {word for word in missing if not set(word) <= set("█▉▊▋▌▍▎▏▁▂▃▄▅▆▇")} <= titles_of_first_cells
    assert not any("…" in line for line in narrow)


def test_a_cause_on_40_columns_has_its_bar_beside_and_its_figures_below() -> None:
    assert part(lines(full(), width=40), "Causes")[:5] == [
        "GPU too hot                ████████████▏",
        "  4 min 48 s, 93 %; 110 requests; fault;",
        "  sm_clock 1.005 GHz, usually 1.41 GHz",
        "waiting in the queue       ▌",
        "  12 s, 4 %; 110 requests; load; until",
    ]


def test_where_nothing_was_asked_there_is_the_verdict_alone() -> None:
    assert lines(nothing(), everything=True) == [
        "gpu-box-17: 30 min from 2027-01-15 08:00:00 UTC on",
        "No requests ended in this time.",
    ]


def test_causes_have_bars_seconds_shares_and_what_they_rest_on() -> None:
    assert part(lines(full()), "Causes") == [
        "GPU too hot                ██████████████▉   4 min 48 s   93 %    110 requests",
        "  fault; sm_clock 1.005 GHz, usually 1.41 GHz",
        "waiting in the queue       ▋                       12 s    4 %    110 requests",
        "  load; until first tokens; 300 ms a minute in calm ones",
        "unexplained                ▌                       10 s    3 %    110 requests",
    ]


def test_a_cause_of_next_to_nothing_is_left_out_and_one_request_is_one() -> None:
    hot, queue, rest = full().causes
    told = part(lines(changed(causes=(hot, queue.model_copy(update={"share": 0.004}), rest))), "Causes")
    assert not any(line.startswith("waiting") for line in told)
    assert told[-1] == "2 of 3; --all shows the rest."
    one = part(lines(changed(causes=(hot.model_copy(update={"requests": 1}),))), "Causes")
    assert one[0].endswith("      1 request")


@pytest.mark.parametrize(
    ("calm", "told"),
    [
        (None, ""),
        (0.0, "; hardly any in calm minutes"),
        (4.2, "; 4.2 s a minute in calm ones"),
        (8.5, "; as much in calm minutes"),
        (19.0, "; as much in calm minutes"),
        (19.5, ""),
    ],
)
def test_what_calm_minutes_lose_to_a_cause_is_told_unless_they_are_not_calm_for_it(
    calm: float | None, told: str
) -> None:
    """It cost 9.6 s a minute on the mean."""
    (hot, *_) = full().causes
    found = part(lines(changed(causes=(hot.model_copy(update={"calm_seconds_per_minute": calm}),))), "Causes")
    assert " ".join(found[1:]).split("1.41 GHz")[1] == told


@pytest.mark.parametrize(
    ("first_s", "told"),
    [(0.0, ""), (2.0, ""), (3.0, "; 3 s of it until first tokens"), (286.0, "; until first tokens")],
)
def test_in_which_phase_a_cause_struck_is_told_where_it_was_not_in_decoding_alone(first_s: float, told: str) -> None:
    (hot, *_) = full().causes
    found = part(lines(changed(causes=(hot.model_copy(update={"first_token_seconds": first_s}),))), "Causes")
    assert found[1] == f"  fault{told}; sm_clock 1.005 GHz, usually 1.41 GHz"


def test_the_longest_name_of_a_cause_is_whole() -> None:
    (hot, *_) = full().causes
    causes = tuple(hot.model_copy(update={"title": cause.title}) for cause in TABLE.values())
    told = " ".join(lines(changed(causes=causes), everything=True))
    assert all(cause.title in told for cause in TABLE.values())


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
        "Dimension                  healthy    slow  others      r  verdict",
        "SM clock over its maximum  > 70 %   50.8 %   100 %  -0.83      bad",
        "GPU temperature            < 85 °C   91 °C   74 °C  +0.79  suspect",
        "bad: past what is healthy, and worse than on the others; suspect: it goes with",
        "slowness; r: how closely it follows the time per token, -1 to 1.",
        "2 of 4; --all shows the rest.",
    ]
    assert "What was different (means over slow requests and the others of vllm/llama-70b)" in lines(full())


def test_where_nothing_was_different_that_is_said() -> None:
    same = tuple(row for row in full().matrix if row.verdict in ("ok", "unknown"))
    assert part(lines(changed(matrix=same)), "What was different") == [
        "Nothing that was watched; 1 dimension as on the other requests. --all shows all."
    ]
    assert not any(line.startswith("What was different") for line in lines(changed(matrix=same[1:])))


def test_seconds_of_many_threads_in_a_second_are_so_many_at_a_time() -> None:
    (row, *_) = full().matrix
    cpu = row.model_copy(update={"dimension": "runqueue_wait", "title": "waiting for a CPU", "unit": "s/s"})
    assert "0.508 threads  1 threads" in part(lines(changed(matrix=(cpu,))), "What was different")[1]


def test_dimensions_that_are_not_known_are_told_where_all_is_asked_for() -> None:
    told = part(lines(full(), everything=True), "What was different")
    assert told[-3].split() == ["NVLink,", "both", "ways", "-", "-", "-", "unknown"]


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
    assert part(alone, "The worst stretch") == [
        "4 min 10 s lost, 20 s of it as in calm minutes. There is no quiet time before it",
        "to compare with.",
    ]
    all_of_it = lines(changed(before_during=during.model_copy(update={"before": None})), everything=True)
    assert part(all_of_it, "The worst stretch")[1].startswith("Signal")


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
        "08:10:01  warning  GPU too hot on gpu 3, still open after 19 min 59 s",
        "          SM clock 1980 → 1005 MHz while llama-70b ran; late meanwhile by: GPU",
        "          too hot",
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
    assert titles(lines(healthy)) == ["What to do", *ALWAYS, "Not told"]
    assert titles(lines(healthy, everything=True)) == [*TITLES]


def test_tenants_batches_contexts_and_quality_have_their_tables() -> None:
    told = lines(full())
    assert part(told, "Tenants")[1].split() == ["acme", "400", "41", "-6.5", "-0.80", "bad"]
    assert part(told, "Batch")[0] == "Queries told apart by tenant; arrivals vary by 1.9; suspect: rare ones have 4.5"
    assert part(told, "Batch")[-1].split() == ["rare", "34", "350", "ms", "900", "ms", "-"]
    assert part(told, "Context")[-1].split() == ["128k", "100", "7", "s", "14", "s", "x", "3.2", "40", "20"]
    assert part(told, "Quality")[-1].split() == ["5f3a", "relevance", "40", "0.71", "38", "+0.66", "suspect"]
    assert part(told, "Servers")[1].split()[:4] == ["vllm/llama-70b", "GPUs", "3,", "4"]
    together = part(lines(full(), everything=True), "What goes together")
    assert together[1].split()[-6:] == ["-0.91", "+1", "s", "120", "1", "s"]
    assert together[2].split()[-2:] == ["100", "ms"]


def test_cells_of_the_surface_with_too_few_requests_are_empty() -> None:
    told = part(lines(full(), with_surface=True), "Response surface")
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
    assert "3 further columns are left out" in " ".join(lines(changed(surface=wide), with_surface=True))


def test_actions_are_numbered_right_after_the_verdict_and_notes_come_last() -> None:
    told = lines(full())
    assert part(told, "What to do") == [
        "1. Look at fans and air flow. (GPU too hot: 3 min 50 s of the worst stretch, 4",
        "min 48 s in all)",
    ]
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


def test_of_a_temperature_the_difference_is_told() -> None:
    during = full().before_during
    assert during is not None
    hot = during.changes[0].model_copy(
        update={"title": "GPU temperature", "unit": "celsius", "before": 46.1, "during": 82.8, "change": 0.796}
    )
    told = part(lines(changed(before_during=during.model_copy(update={"changes": (hot,)}))), "The worst stretch")
    assert told[-1].split() == ["GPU", "temperature", "46.1", "°C", "82.8", "°C", "+36.7", "°C"]
