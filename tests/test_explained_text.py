"""``gpumon explain`` on a terminal."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.cells import cell_len

from gpumon.explain.dimensions import DIMENSIONS
from gpumon.explain.explained import Account, Explained, Share, SlowGap
from gpumon.explain.signs import Fact
from gpumon.explained_text import render
from gpumon.model import Binding, GpuUuid, Unit
from gpumon.terminal import console_for
from gpumon.web.explanation import Trace, trace
from tests.diagnoses import HOSTILE
from tests.explained import ON_TIME, PREFILL, START_S, THERMAL, TRACE, explained, to_unix
from tests.test_terminal import Screen


def lines(*found: Explained, everything: bool = False, width: int = 80) -> list[str]:
    """In a pipe."""
    return shown(trace(TRACE, found or [explained()], to_unix), everything=everything, width=width)


def shown(told: Trace, *, everything: bool = False, width: int = 80) -> list[str]:
    stream = io.StringIO()
    console = console_for(stream)
    console.width = width
    render(console, told, everything)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert all(cell_len(line) <= width for line in text.splitlines())
    return [line.rstrip() for line in text.splitlines()]


def part(told: list[str], title: str) -> list[str]:
    """Lines of a part, without its title."""
    start = next(number for number, line in enumerate(told) if line.startswith(title))
    rest = told[start + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


def test_the_head_says_whose_request_it_was_and_how_late() -> None:
    assert lines()[:8] == [
        "llama-70b on vllm, tenant acme",
        f"Trace {TRACE}, request cmpl-7",
        "Began 2027-01-15 08:16:40 UTC, took 3.18 s; 11 others open when it came",
        "GPUs GPU-0003, GPU-0004",
        "Prompt 2,048 tokens (512 cached), 100 made, 35.6 tokens/s after the first",
        "First token after 400 ms, usually 300 ms, 50 ms of it queued",
        "The tokens after it took 2.78 s, usually 1.98 s",
        "Late by 900 ms: 100 ms until the first token, 800 ms between tokens",
    ]


def test_causes_are_told_the_largest_first_with_bar_seconds_share_and_what_speaks_for_them() -> None:
    assert part(lines(), "Why") == [
        "A GPU too hot                ███████████▏              500 ms  56 %  fault",
        "  SM clock 1,005 MHz, usually 1,410 MHz; 12 times as much lateness while it",
        "  held; 97 % sure",
        "B prefill of others          ████▌                     200 ms  22 %  load",
        "  prefill tokens of others 8,192",
        "C waiting in the queue       ██▎                       100 ms  11 %  load",
        "D unexplained                ██▎                       100 ms  11 %",
    ]


def test_slow_gaps_are_told_by_time_with_the_conditions_under_them() -> None:
    assert part(lines(), "When it was slow") == [
        "     At    took  usually  tokens  what held meanwhile",
        "0.980 s  420 ms    20 ms       1  GPU too hot 88 %, unexplained 13 % (SM clock",
        "                                  1,005 MHz, usually 1,410 MHz)",
        "1.400 s  120 ms    20 ms       1  GPU too hot 100 %",
        "2.280 s  320 ms    20 ms       1  prefill of others 67 %, GPU too hot 17 %,",
        "                                  unexplained 17 % (prefill tokens of others",
        "                                  8,192)",
    ]


def many() -> Explained:
    gaps = tuple(
        SlowGap(START_S + n / 10, START_S + n / 10 + 0.05, 1, 0.02, 0.03, (THERMAL._replace(seconds=0.03),))
        for n in range(30)
    )
    return explained(slow_gaps=gaps)


def test_of_many_slow_gaps_the_slowest_are_told_unless_all_are_asked_for() -> None:
    few, all_of_them = lines(many()), lines(many(), everything=True)
    assert "The 12 slowest of 30; --all shows the rest." in few
    assert sum("GPU too hot 100 %" in line for line in all_of_them) == 30


def test_means_over_the_request_are_told_where_all_is_asked_for() -> None:
    means = np.full(len(DIMENSIONS), np.nan, dtype=np.float32)
    means[0] = 0.5
    told = lines(explained(signals=means), everything=True)
    assert any(line.startswith(DIMENSIONS[0].title) and line.endswith("50 %") for line in told)
    assert not any(line.startswith(DIMENSIONS[0].title) for line in lines(explained(signals=means)))


def test_what_to_do_is_told_for_the_causes_that_matter() -> None:
    small = THERMAL._replace(seconds=0.75), THERMAL._replace(cause="nvlink", seconds=0.05)
    told = lines(explained(decode=Account(1.98, 2.78, 0.8, small), first_token=ON_TIME))
    assert part(told, "What to do")[0].startswith("GPU too hot: Look at fans")
    assert not any(line.startswith("NVLink slow:") for line in told)


def test_what_is_unexplained_alone_says_where_else_to_look() -> None:
    share = THERMAL._replace(cause="unexplained", seconds=0.8, evidence=0.0, lift=None, fact=None)
    told = lines(explained(decode=Account(1.98, 2.78, 0.8, (share,)), first_token=ON_TIME))
    assert "gpumon doctor" in " ".join(part(told, "What to do"))


def test_one_that_was_not_late_says_so_and_names_no_cause() -> None:
    told = lines(explained(first_token=ON_TIME, decode=Account(2.0, 1.9, 0.0, ()), slow_gaps=()))
    assert "Not late." in told
    assert "Why" not in told
    assert "What to do" not in told


def test_one_of_which_nothing_was_expected_yet_does_not_count_as_on_time() -> None:
    cold = Account(None, 0.4, 0.0, ())
    told = lines(explained(first_token=cold, decode=cold, slow_gaps=()))
    assert "Too little is known yet to say whether it was late." in told
    assert "First token after 400 ms (what is usual is not known yet), 50 ms of it queued" in told


def test_one_that_is_late_in_one_part_says_in_which() -> None:
    decode = lines(explained(first_token=ON_TIME))
    assert "Late by 800 ms between tokens" in decode
    first = lines(explained(decode=ON_TIME, slow_gaps=()))
    assert "Late by 100 ms until the first token" in first


def test_what_is_not_known_is_left_out() -> None:
    told = lines(
        explained(
            timed=False,
            slow_gaps=(),
            decode=Account(None, 0.0, 0.0, ()),
            binding=Binding(unbound="no_identity"),
            prompt_tokens=None,
            completion_tokens=None,
            time_to_first_token_s=None,
            tenant="",
            request_id="",
            model="",
            concurrency=0,
        )
    )
    assert told[:5] == [
        "a model without a name on vllm",
        f"Trace {TRACE}",
        "Began 2027-01-15 08:16:40 UTC, took 3.18 s; no other open when it came",
        "Not bound to GPUs (no identity): what its GPUs did is not known",
        "Late by 100 ms until the first token",
    ]
    assert not any(line.startswith(("Tokens", "When it was slow")) for line in told)


def test_an_outcome_that_is_not_ok_is_told() -> None:
    assert lines(explained(outcome="aborted"))[0] == "llama-70b on vllm, tenant acme, aborted"


def test_all_requests_of_a_trace_are_told_apart() -> None:
    told = lines(explained(request_id="a"), explained(request_id="b", start_s=START_S + 10.0))
    assert [line for line in told if line.startswith("Trace")] == [f"Trace {TRACE}, request {id_}" for id_ in "ab"]
    assert "─" * 80 in told
    more = trace(TRACE, [explained()], to_unix).model_copy(update={"left_out": 7})
    assert "7 further requests of this trace were less late and are left out." in shown(more)


def test_names_from_outside_are_neither_markup_nor_control_sequences() -> None:
    told = lines(explained(model=HOSTILE, tenant=HOSTILE, request_id=HOSTILE))
    assert any("[red]\ufffd[31m" in line for line in told)


def test_what_an_unknown_gpumon_answers_is_as_harmless() -> None:
    told = trace(TRACE, [explained()], to_unix).model_dump()
    request = told["requests"][0]
    request["causes"][0] |= {"cause": HOSTILE, "title": HOSTILE}
    request["decode"]["shares"][0] |= {"cause": HOSTILE}
    request["decode"]["shares"][0]["fact"] |= {"name": HOSTILE, "unit": HOSTILE}
    request["slow_gaps"][0] |= {"cause": HOSTILE}
    request["slow_gaps"][0]["shares"][0] |= {"cause": HOSTILE}
    request |= {"outcome": HOSTILE, "unbound": HOSTILE, "server": HOSTILE, "trace_id": HOSTILE, "start": 1e300}
    request["tokens"] |= {"ms": [-5.0, 1e9], "gap_ms": [1.0, -3.0, None]}
    shown(Trace.model_validate(told), everything=True)


def test_a_terminal_gets_colours() -> None:
    screen = Screen()
    render(console_for(screen), trace(TRACE, [explained()], to_unix))
    assert "\x1b[" in screen.getvalue()


UUIDS = tuple(GpuUuid(f"GPU-{n}00a40ee-8cce-39be-9a8d-a9381299174d") for n in range(4))


def test_of_the_uuids_of_gpus_the_first_digits_are_told_unless_all_is_asked_for() -> None:
    found = explained(binding=Binding("resource", 4711, None, None, UUIDS))
    assert "GPUs GPU-000a40ee, GPU-100a40ee, GPU-200a40ee, GPU-300a40ee" in lines(found)
    assert any(line.startswith(f"GPUs {UUIDS[0]},") for line in lines(found, everything=True))
    one = explained(binding=Binding("resource", 4711, None, None, (GpuUuid("MIG-something-else"),)))
    assert "GPU MIG-something-else" in lines(one)


def gap(start_s: float, *shares: Share) -> SlowGap:
    return SlowGap(start_s, start_s + 0.1, 1, 0.02, sum(share.seconds for share in shares), shares)


def test_the_same_fact_is_told_once_and_of_one_that_moves_the_figure() -> None:
    prompts = [
        PREFILL._replace(seconds=0.2, fact=Fact("prompt_tokens_of_others", tokens, Unit.NONE))
        for tokens in (1092.0, 1166.0)
    ]
    hot = THERMAL._replace(seconds=0.2)
    slow = tuple(gap(START_S + n, share) for n, share in enumerate((*prompts, hot, hot, prompts[0]), start=1))
    assert [line[34:] for line in part(lines(explained(slow_gaps=slow)), "When it was slow")[1:]] == [
        "prefill of others 100 % (prompt tokens of",
        "other requests meanwhile 1,092)",
        "prefill of others 100 % (1,166)",
        "GPU too hot 100 % (SM clock 1,005 MHz, usually",
        "1,410 MHz)",
        "GPU too hot 100 %",
        "prefill of others 100 %",
    ]


def test_what_explains_next_to_nothing_of_a_gap_is_told_in_the_sum_alone() -> None:
    slow = gap(START_S + 1, PREFILL._replace(seconds=0.97, fact=None), THERMAL._replace(seconds=0.03))
    assert part(lines(explained(slow_gaps=(slow,))), "When it was slow")[1].endswith("prefill of others 97 %")


@pytest.mark.parametrize("width", [1, 9, 30, 40, 60, 73, 74, 110])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    means = np.full(len(DIMENSIONS), 0.5, dtype=np.float32)
    lines(explained(signals=means), many(), everything=True, width=width)


@pytest.mark.parametrize("width", [40, 60])
def test_on_a_narrow_terminal_no_word_and_no_figure_is_cut(width: int) -> None:
    means = np.full(len(DIMENSIONS), 0.5, dtype=np.float32)
    narrow, wide = (lines(explained(signals=means), everything=True, width=columns) for columns in (width, 110))
    words = " ".join(narrow).replace(";", " ").replace(":", " ").split()
    missing = {word for line in wide for word in line.replace(";", " ").replace(":", " ").split()} - {*words}
    drawn = set("·█▉▊▋▌▍▎▏▁▂▃▄▅▆▇AB")
    assert {word for word in missing if not set(word) <= drawn} <= {"Mean", "over", "the", "request"}
    assert not any("…" in line for line in narrow)


def test_a_cause_on_40_columns_has_its_bar_beside_and_its_figures_below() -> None:
    assert part(lines(width=40), "Why")[:4] == [
        "A GPU too hot                ██████▏",
        "  500 ms, 56 %; fault; SM clock 1,005",
        "  MHz, usually 1,410 MHz; 12 times as",
        "  much lateness while it held; 97 % sure",
    ]


@pytest.mark.parametrize("seconds", [0.001, 5e5])
def test_requests_of_any_length_fit(seconds: float) -> None:
    times = START_S + np.linspace(0.0, seconds, 50)
    gaps = (SlowGap(START_S, START_S + seconds, 1, seconds / 2, seconds / 2, (THERMAL._replace(seconds=seconds / 2),)),)
    lines(explained(token_s=times, slow_gaps=gaps, decode=Account(seconds / 2, seconds, seconds / 2, (THERMAL,))))


def test_what_is_worked_out_from_load_is_not_called_unsure() -> None:
    share = THERMAL._replace(cause="batch_growth", seconds=0.8, evidence=0.0, lift=None)
    told = part(lines(explained(decode=Account(1.98, 2.78, 0.8, (share,)), first_token=ON_TIME)), "Why")
    assert told[1] == "  SM clock 1,005 MHz, usually 1,410 MHz"
