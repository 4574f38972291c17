"""How ``benchmarks.attribution`` judges: every figure from requests made by hand, whose truth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.attribution import CONSERVED_S, Task, paths, run
from benchmarks.attribution_figures import RunFigures, confusion, summary
from benchmarks.attribution_judge import Phase, Request, Said, Struck, joined, judge_run, said_of, struck
from benchmarks.attribution_picture import as_json, draw
from benchmarks.attribution_text import lines, table
from gpumon.catalogue import CAUSES
from gpumon.explain.explained import Account, Explained, Share, SlowGap
from gpumon.explain.group import group_of
from gpumon.model import RequestRecord
from gpumon.sim.state import FinishedRequest
from tests.stories import story, write_story

HOT, PREFILL, QUEUE, NUMA, UNKNOWN = (
    *("thermal_throttle", "prefill_interference", "queueing", "numa_remote"),
    "unexplained",
)
MODEL = "dense"


def phase(true: Mapping[str, float], said: Mapping[str, float], actual_s: float = 1.0, name: str = "decode") -> Phase:
    return Phase(name, actual_s, dict(true), dict(said))


def request(
    true: Mapping[str, float],
    said: Mapping[str, float],
    start_s: float = 60.0,
    end_s: float = 61.0,
    *,
    model: str = MODEL,
    actual_s: float = 1.0,
) -> Request:
    return Request(model, start_s, end_s, (phase(true, said, actual_s),))


def fault(
    cause: str | None = HOT, begins_s: float = 120.0, ends_s: float = 180.0, *, model: str = MODEL, kind: str = "heat"
) -> Struck:
    return Struck(kind, cause, frozenset({model}), begins_s, ends_s)


def judged(*requests: Request, faults: tuple[Struck, ...] = (), name: str = "one", **other: Any) -> RunFigures:
    return judge_run(name, 1, requests, faults, **other)


BEFORE = request({PREFILL: 0.1}, {PREFILL: 0.1})
DURING = request({PREFILL: 0.1, HOT: 0.3}, {PREFILL: 0.1, HOT: 0.3}, 130.0, 131.0)


# --- a phase ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("true", "actual_s", "cause"),
    [
        ({HOT: 0.020}, 0.1, HOT),
        ({HOT: 0.019}, 0.1, None),  # below 20 ms
        ({HOT: 0.05}, 1.0, HOT),
        ({HOT: 0.049}, 1.0, None),  # below 5 % of the time
        ({HOT: 0.04, PREFILL: 0.02}, 1.0, HOT),  # together
        ({HOT: 0.1, PREFILL: 0.1}, 1.0, HOT),  # half is enough, the first counts
        ({HOT: 0.4, PREFILL: 0.35, QUEUE: 0.3}, 1.0, None),  # none dominates
        ({}, 0.0, None),
    ],
)
def test_a_phase_is_truly_slow_by_enough_of_it_and_has_a_cause_that_dominates(
    true: dict[str, float], actual_s: float, cause: str | None
) -> None:
    assert phase(true, {}, actual_s).true_cause == cause


@pytest.mark.parametrize(
    ("said", "cause"),
    [({PREFILL: 0.1, HOT: 0.2}, HOT), ({UNKNOWN: 0.1}, UNKNOWN), ({}, "none"), ({HOT: 0.0}, "none")],
)
def test_the_answer_is_the_largest_cause(said: dict[str, float], cause: str) -> None:
    assert phase({}, said).said_cause == cause


# --- top-1 ------------------------------------------------------------------------------------------------------------


def test_phases_are_judged_apart_and_by_their_own_cause() -> None:
    both = Request(
        MODEL, 60, 62, (phase({QUEUE: 0.5}, {QUEUE: 0.1}, name="first_token"), phase({HOT: 0.5}, {UNKNOWN: 0.5}))
    )
    found = judged(both, request({HOT: 0.2}, {HOT: 0.1}), request({HOT: 0.2}, {}), request({}, {HOT: 1.0}))
    assert found.confusion == {
        ("first_token", QUEUE, QUEUE): 1,
        ("decode", HOT, UNKNOWN): 1,
        ("decode", HOT, HOT): 1,
        ("decode", HOT, "none"): 1,
    }
    assert found.top1 == 0.5
    figures = summary([found])
    assert figures["top1_by_cause"] == {HOT: 0.3333, QUEUE: 1.0}
    assert figures["slow_by_cause"] == {HOT: 3, QUEUE: 1}
    assert figures["top1_by_phase"] == {"first_token": 1.0, "decode": 0.3333}


def test_every_run_weighs_the_same_however_many_requests_it_has() -> None:
    many = judged(*[request({HOT: 0.2}, {HOT: 0.2})] * 9)
    one = judged(request({HOT: 0.2}, {}))
    nothing = judged(request({}, {}))
    figures = summary([many, one, nothing])
    assert figures["top1"] == 0.5
    assert figures["top1_pooled"] == 0.9


def test_what_began_before_the_warm_up_was_over_is_left_out() -> None:
    found = judged(request({HOT: 0.2}, {}, 39.9, 70.0), request({HOT: 0.2}, {HOT: 0.2}, 40.0, 41.0), warm_s=40.0)
    assert (found.requests, found.top1) == (1, 1.0)


def test_a_request_of_which_nothing_was_said_is_a_miss_and_counted() -> None:
    found = judged(request({HOT: 0.2}, {})._replace(explained=False), request({HOT: 0.2}, {HOT: 0.2}))
    assert (found.missing, found.top1) == (1, 0.5)


def test_nothing_judged_gives_no_figures_and_no_error() -> None:
    figures = summary([judged()])
    assert {figures[key] for key in ("top1", "share_error", "scenario_top1", "pairs_top2", "fault_on_clean")} == {None}
    assert summary([])["top1_by_cause"] == {}
    json.dumps(figures, allow_nan=False)


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_fault_is_judged_by_what_its_cause_gained_against_before() -> None:
    # Prefill of others is the largest as before, and gained nothing.
    during = [request({PREFILL: 0.5, HOT: 0.2}, {PREFILL: 0.5, HOT: 0.1}, 130, 131)] * 2
    before = [request({PREFILL: 0.5}, {PREFILL: 0.5})]
    (one,) = judged(*before, *during, faults=(fault(),)).faults
    assert (one.true_gained, one.said_gained, one.asked, one.requests) == (HOT, HOT, True, 2)
    assert one.true == pytest.approx({PREFILL: 1.0, HOT: 0.4})
    assert one.said == pytest.approx({PREFILL: 1.0, HOT: 0.2})


def test_the_unknown_is_no_cause_that_a_fault_is_mistaken_for_but_another_is() -> None:
    unknown = judged(BEFORE, request({HOT: 0.3}, {UNKNOWN: 0.2, HOT: 0.1}, 130, 131), faults=(fault(),))
    load = judged(BEFORE, request({HOT: 0.3}, {QUEUE: 0.2, HOT: 0.1}, 130, 131), faults=(fault(),))
    nothing = judged(BEFORE, request({HOT: 0.3}, {}, 130, 131), faults=(fault(),))
    assert [run.faults[0].said_gained for run in (unknown, load, nothing)] == [HOT, QUEUE, "none"]
    assert summary([unknown, load, nothing])["scenario_top1"] == 0.3333


def test_only_requests_that_overlap_it_on_its_servers_tell_of_a_fault() -> None:
    elsewhere = request({QUEUE: 9.0}, {QUEUE: 9.0}, 130, 131, model="other")
    after = request({QUEUE: 9.0}, {QUEUE: 9.0}, 180.0, 190)
    ends_at_its_begin = request({QUEUE: 9.0}, {QUEUE: 9.0}, 110, 120.0)
    (one,) = judged(BEFORE, DURING, elsewhere, after, ends_at_its_begin, faults=(fault(),)).faults
    assert (one.requests, one.said_gained) == (1, HOT)


def test_a_fault_that_costs_nobody_anything_or_hides_behind_another_is_not_asked_for() -> None:
    slight = request({HOT: 0.009}, {QUEUE: 0.5}, 130, 131)
    behind = request({HOT: 0.1, QUEUE: 0.2}, {QUEUE: 0.2}, 130, 131)
    assert not judged(BEFORE, slight, faults=(fault(),)).faults[0].asked
    assert not judged(BEFORE, behind, faults=(fault(),)).faults[0].asked
    assert judged(BEFORE, request({HOT: 0.011}, {}, 130, 131), faults=(fault(),)).faults[0].asked


@pytest.mark.parametrize(
    ("other", "asked"),
    [
        (fault(NUMA, 170, 200), False),
        (fault(None, 130, 140), False),
        (fault(NUMA, 180, 200), True),  # not at the same time
        (fault(NUMA, 130, 140, model="other"), True),  # on another server
    ],
)
def test_a_fault_that_shares_its_server_with_another_is_not_asked_for(other: Struck, asked: bool) -> None:
    found = judged(BEFORE, DURING, faults=(fault(), other))
    assert found.faults[0].asked == asked
    assert not found.faults[0].alone


def test_what_has_no_cause_is_no_fault_to_judge() -> None:
    assert judged(BEFORE, DURING, faults=(fault(None),)).faults == []


def test_share_errors_are_of_the_true_excess_of_all_causes() -> None:
    during = request({HOT: 0.3, PREFILL: 0.1}, {HOT: 0.2, QUEUE: 0.1}, 130, 131)
    run = judged(BEFORE, during, faults=(fault(),))
    (one,) = run.faults
    assert one.error == pytest.approx(0.25)
    assert one.total_error == pytest.approx((0.1 + 0.1 + 0.1) / 2 / 0.4)
    exact = judged(BEFORE, DURING, faults=(fault(),))
    figures = summary([run, exact])
    assert figures["share_error"] == 0.125
    assert figures["share_error_max"] == 0.25
    assert figures["share_error_by_cause"] == {HOT: 0.125}
    assert figures["share_error_total"] == 0.1875


def test_scenarios_with_two_faults_do_not_count_for_the_share_error() -> None:
    run = judged(BEFORE, DURING, faults=(fault(), fault(NUMA, model="other")))
    assert summary([run])["share_error"] is None


def test_without_any_true_excess_there_is_no_share_error() -> None:
    (one,) = judged(request({}, {}, 130, 131), faults=(fault(),)).faults
    assert (one.error, one.total_error, one.true_gained) == (None, None, "none")


# --- pairs ------------------------------------------------------------------------------------------------------------

PAIR = (fault(HOT, 120, 180), fault(NUMA, 150, 200))


def pair(said: Mapping[str, float], *others: Request, faults: tuple[Struck, ...] = PAIR) -> RunFigures:
    both = request({HOT: 0.3, NUMA: 0.2, PREFILL: 0.1}, said, 160, 161)
    return judged(BEFORE, both, *others, faults=faults, name="pair_of")


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ({HOT: 0.3, NUMA: 0.2, QUEUE: 0.1}, True),
        ({HOT: 0.3, NUMA: 0.1, UNKNOWN: 0.2}, False),  # the unknown takes a place
        ({HOT: 0.3}, False),
        ({HOT: 0.3, NUMA: 0.2, PREFILL: 0.1}, True),
        ({HOT: 0.3, NUMA: 0.05, PREFILL: 0.1}, True),  # as much prefill as before: gained nothing
    ],
)
def test_both_causes_of_a_pair_are_to_be_among_the_two_that_gained_most(said: dict[str, float], right: bool) -> None:
    run = pair(said)
    assert run.pair is not None
    assert (run.pair.asked, run.pair.right) == (True, right)
    assert summary([run])["pairs_top2"] == float(right)


def test_only_what_overlaps_both_faults_counts_for_a_pair() -> None:
    one_only = request({QUEUE: 9.0}, {QUEUE: 9.0}, 125, 150)
    run = pair({HOT: 0.3, NUMA: 0.2}, one_only)
    assert run.pair is not None
    assert run.pair.right


def test_faults_one_after_the_other_are_a_pair_over_all_of_their_time() -> None:
    faults = (fault(HOT, 120, 130), fault(NUMA, 150, 160))
    first = request({HOT: 0.3}, {HOT: 0.3}, 125, 126)
    second = request({NUMA: 0.3}, {NUMA: 0.3}, 155, 156)
    run = judged(BEFORE, first, second, faults=faults, name="pair_of")
    assert run.pair is not None
    assert (run.pair.asked, run.pair.right) == (True, True)


def test_each_fault_of_a_pair_is_looked_for_where_it_strikes() -> None:
    faults = (fault(HOT), fault(QUEUE, model="other"))
    hot = request({HOT: 0.2}, {HOT: 0.2}, 130, 131)
    crowded = request({QUEUE: 90.0, NUMA: 30.0}, {QUEUE: 90.0, NUMA: 30.0}, 130, 230, model="other")
    run = judged(BEFORE, hot, crowded, faults=faults, name="pair_of")
    assert run.pair is not None
    assert run.pair.right
    assert [said[0][0] for said in run.pair.said] == [HOT, QUEUE]


def test_a_pair_that_truly_is_not_what_costs_most_is_not_asked_for() -> None:
    both = request({HOT: 0.3, NUMA: 0.01, QUEUE: 0.2}, {HOT: 0.3, QUEUE: 0.2}, 160, 161)
    figures = summary([judged(BEFORE, both, faults=PAIR, name="pair_of")])
    assert (figures["pairs_top2"], figures["pairs"]) == (None, 0)


def test_only_scenarios_of_pairs_are_pairs() -> None:
    assert judged(BEFORE, DURING, faults=PAIR).pair is None
    assert judged(BEFORE, DURING, faults=(fault(), fault(None)), name="pair_of").pair is None


# --- clean, conserved -------------------------------------------------------------------------------------------------


def test_clean_is_what_ended_before_the_first_fault_anywhere() -> None:
    before = request({}, {HOT: 0.1, UNKNOWN: 0.2, QUEUE: 0.3}, 60, 62, actual_s=2.0)
    elsewhere = request({}, {NUMA: 0.1}, 60, 62, model="other", actual_s=2.0)
    across = request({}, {HOT: 5.0}, 100, 121)
    run = judged(before, elsewhere, across, faults=(fault(),))
    figures = summary([run])
    assert figures["fault_on_clean"] == 0.05
    assert figures["fault_on_clean_by_cause"] == {HOT: 0.025, NUMA: 0.025}
    assert figures["unexplained_clean"] == 0.05
    assert figures["unexplained_clean_of_excess"] == pytest.approx(0.2 / 0.7, abs=1e-5)


def test_without_a_fault_all_is_clean_and_runs_add_up() -> None:
    runs = [judged(request({}, {UNKNOWN: 0.1}, 500, 501)), judged(request({}, {}, 500, 501))]
    assert summary(runs)["unexplained_clean"] == 0.05


def account(excess_s: float, *shares: tuple[str, float]) -> Account:
    return Account(0.1, 1.0, excess_s, tuple(Share(cause, seconds, 1.0, None) for cause, seconds in shares))


def explained(first: Account, decode: Account, *gaps: SlowGap) -> Explained:
    record = RequestRecord(b"\1" * 16, "r", "vllm", MODEL, 0.0, 0, 10)
    return Explained(record, group_of(record), 0.0, 1.0, first, decode, gaps, None, np.zeros(0, np.float32))


def test_what_was_said_is_summed_by_cause_and_phase() -> None:
    said = said_of(explained(account(0.0), account(0.6, (HOT, 0.3), (PREFILL, 0.2), (HOT, 0.1))))
    assert said.first_token == {}
    assert said.decode == pytest.approx({HOT: 0.4, PREFILL: 0.2})
    assert said.off_s == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("bad", "off_s"),
    [
        (account(0.5, (HOT, 0.4)), 0.1),
        (account(0.1), 0.1),
        (account(0.2, (HOT, 0.5), (PREFILL, -0.3)), 0.3),  # adds up, by a share that cannot be
        (account(math.nan, (HOT, 0.1)), math.inf),
        (account(0.1, (HOT, math.inf)), math.inf),
    ],
)
def test_shares_that_do_not_add_up_are_noticed_wherever_they_are(bad: Account, off_s: float) -> None:
    good = account(0.1, (HOT, 0.1))
    gap = SlowGap(0.0, 1.0, 1, 0.1, bad.excess_s, bad.shares)
    for one in (explained(bad, good), explained(good, bad), explained(good, good, gap)):
        assert said_of(one).off_s == pytest.approx(off_s)


# --- joining ----------------------------------------------------------------------------------------------------------


def finished(number: int, **fields: Any) -> FinishedRequest:
    told: dict[str, Any] = {
        "start_s": 1010.0,
        "queue_s": 0.1,
        "prefill_s": 0.2,
        "token_s": (1010.5, 1011.0, 1012.5),
        "end_s": 1012.5,
        "prompt_tokens": 9,
        "cached_tokens": 0,
        "outcome": "ok",
        "tenant": "",
        "parameters": (),
        "score": None,
        "prompt_group": "",
        "truth": ((HOT, 0.7),),
        "first_truth": ((QUEUE, 0.1), (PREFILL, 0.2)),
    }
    return FinishedRequest(server=0, number=number, **(told | fields))


def test_truth_and_explanations_are_joined_by_the_trace() -> None:
    told = [(b"a", finished(1)), (b"b", finished(2)), (b"c", finished(3, token_s=(), truth=(), first_truth=()))]
    found = joined(told, {b"a": Said({QUEUE: 0.1}, {HOT: 0.6}, 0.0)}, story(), 1000.0)
    first = Phase("first_token", 0.5, {QUEUE: 0.1, PREFILL: 0.2}, {QUEUE: 0.1})
    assert found[0] == Request("llama-3.1-8b", 10.0, 12.5, (first, phase({HOT: 0.7}, {HOT: 0.6}, 2.0)))
    assert [len(each.phases) for each in found] == [2, 2, 0]
    assert [each.explained for each in found] == [True, False, False]
    assert found[1].phases[1].said_cause == "none"


def test_faults_strike_their_servers_and_one_that_ends_a_process_lasts_until_it_is_back() -> None:
    faults = struck(
        story(
            "kind: xid, at_s: 9, gpu: 0, strength: 13",
            "kind: power_brake, at_s: 6, for_s: 6, gpu: 1, strength: 0.5",
            "kind: driver_restart, at_s: 20, for_s: 2",
        )
    )
    everybody = frozenset({"llama-3.1-8b"})
    assert faults == [
        Struck("power_brake", "hw_slowdown", everybody, 6.0, 12.0),
        Struck("xid", "gpu_error", everybody, 9.0, 21.0),
        Struck("driver_restart", "gpu_error", everybody, 20.0, 34.0),
    ]


# --- properties, surfaces ---------------------------------------------------------------------------------------------

_SECONDS = st.dictionaries(st.sampled_from(CAUSES), st.floats(0.001, 100), max_size=5)


@given(st.lists(st.tuples(_SECONDS, st.floats(1, 230), st.sampled_from([MODEL, "other"])), max_size=20))
def test_who_says_the_truth_is_right_throughout(told: list[tuple[dict[str, float], float, str]]) -> None:
    requests = [request(true, true, at_s, at_s + 1, model=model) for true, at_s, model in told]
    run = judged(*requests, faults=(fault(), fault(NUMA, 130, 190, model="other")), name="pair_of")
    figures = summary([run])
    for figure in ("top1", "top1_pooled", "scenario_top1", "pairs_top2"):
        assert figures[figure] in (None, 1.0)
    assert all(one.total_error in (None, 0.0) for one in run.faults)


@given(st.lists(st.tuples(_SECONDS, _SECONDS, st.floats(1, 230)), max_size=20))
def test_figures_are_shares_and_are_told_in_json(told: list[tuple[dict[str, float], dict[str, float], float]]) -> None:
    run = judged(*[request(true, said, at_s, at_s + 1) for true, said, at_s in told], faults=PAIR, name="pair_of")
    figures = summary([run])
    json.dumps(figures, allow_nan=False)
    for figure in ("top1", "top1_pooled", "scenario_top1", "pairs_top2"):
        value = figures[figure]
        assert value is None or (isinstance(value, float) and 0 <= value <= 1)
    assert list(lines(run))
    assert list(table([run]))


def test_the_matrix_has_the_causes_that_occur_in_the_order_of_the_catalogue() -> None:
    runs = [judged(*[request({HOT: 0.2}, {HOT: 0.2})] * 3, request({QUEUE: 0.2}, {}), request({QUEUE: 0.2}, {NUMA: 1}))]
    assert json.loads(as_json(confusion(runs))) == {
        "true": [HOT, QUEUE],
        "said": [HOT, NUMA, QUEUE, "none"],
        "counts": [[3, 0, 0, 0], [0, 1, 0, 1]],
    }


def test_the_picture_is_a_png_and_the_same_each_time_even_of_nothing(tmp_path: Path) -> None:
    matrix = {(HOT, HOT): 3, (QUEUE, "none"): 1}
    for name, counts in (("a", matrix), ("b", matrix), ("c", {})):
        draw(counts, tmp_path / name)
    first, second, empty = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second != empty
    assert first[:8] == empty[:8] == b"\x89PNG\r\n\x1a\n"


def test_scenarios_are_chosen_by_patterns_and_one_strength_of_each_on_demand() -> None:
    assert {path.stem for path in paths(["xid_*", "clean_wave"], mid=False)} == {
        *("xid_weak", "xid_mid", "xid_strong", "clean_wave")
    }
    assert [path.stem for path in paths(["xid_*", "process_stopped_*"], mid=True)] == ["process_stopped_mid", "xid_mid"]
    assert paths(["no_such"], mid=False) == []
    assert len(paths([], mid=True)) < len(paths([], mid=False))


def test_a_run_joins_every_request_with_what_was_said_of_it(tmp_path: Path) -> None:
    stop = "kind: process_stopped, at_s: 14, for_s: 4, server: llama-8b-0"
    figures = run(Task(write_story(tmp_path, stop), seed=7, fast_s=0.5, warm_s=0.0, duration_s=None))
    assert (figures.name, figures.seed, figures.missing) == ("quick", 7, 0)
    assert figures.requests > 30
    assert figures.off_s < CONSERVED_S
    (one,) = figures.faults
    assert one.true["process_stopped"] > 1.0
    assert figures.confusion.total() > 0
    assert figures.clean.token_s > 1.0
