"""The arithmetic of a rung, by answers whose times are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.probe.climbing import Climbed, State
from gpumon.probe.ladder import Cell
from gpumon.probe.measured import causes_of, gaps_s, latency, quantiles, rung, slowest
from gpumon.probe.model import CauseSeconds
from tests.probe.answers import answered, climbed, failed, rungs


def test_latencies_rates_and_lengths_of_a_rung() -> None:
    answers = [answered(0.1 * n, [0.02, 0.03, 0.05], prompt=1000 + n) for n in (1, 2, 3)]
    told = rung(climbed(1024, answers, concurrency=3), None, ())
    assert told.time_to_first_token is not None
    assert told.time_to_first_token.model_dump() == pytest.approx(
        {"observations": 3, "mean": 0.2, "p50": 0.2, "p95": 0.3, "p99": 0.3, "most": 0.3}
    )
    assert told.inter_token is not None
    assert told.inter_token.observations == 9
    assert told.inter_token.p50 == pytest.approx(0.03)
    assert told.inter_token.p95 == pytest.approx(0.05)
    assert told.response_time is not None
    assert told.response_time.most == pytest.approx(0.4)
    assert told.completion_tokens == 12
    assert told.tokens_per_second == pytest.approx(1.2)  # of ten seconds
    assert told.decode_tokens_per_second == pytest.approx(30.0)
    assert told.prefill_tokens_per_second == pytest.approx(1002 / 0.2)
    assert (told.prompt_tokens, told.tokens) == (1002.0, 1002.0)
    assert told.tokens_per_chunk == 1.0


def test_several_tokens_to_an_event_are_told() -> None:
    answer = answered(0.1, [0.03, 0.03], prompt=10)
    answer.completion_tokens = 12
    told = rung(climbed(10, [answer]), None, ())
    assert told.tokens_per_chunk == 4.0
    assert told.decode_tokens_per_second == pytest.approx(8 / 0.06)
    assert told.inter_token is not None
    assert told.inter_token.p50 == pytest.approx(0.03)


def test_without_usage_lengths_are_the_aim_and_tokens_are_events() -> None:
    told = rung(climbed(500, [answered(0.1, [0.01])]), None, ())
    assert (told.prompt_tokens, told.tokens, told.completion_tokens) == (None, 500.0, 2)
    assert told.prefill_tokens_per_second == pytest.approx(5000)


def test_errors_are_counted_by_reason_and_are_in_no_latency() -> None:
    answers = [answered(0.1), failed("timeout"), failed("http_500", "first"), failed("http_500", "second")]
    told = rung(climbed(10, answers), None, ())
    assert told.errors == {"http_500": 2, "timeout": 1}
    assert told.said == {"http_500": "first"}
    assert told.requests == 1
    assert told.time_to_first_token is not None
    assert told.time_to_first_token.observations == 1


def test_a_context_that_is_too_long_is_no_error() -> None:
    told = rung(climbed(10, [failed("context_too_long", "no")], state=State.TOO_LONG), None, ())
    assert (told.errors, told.said, told.state, told.requests) == ({}, {}, "context_too_long", 0)


def test_nothing_measured_is_null_and_not_zero() -> None:
    told = rung(Climbed(Cell(1, 10, 5)), None, ())
    assert told.state == "not_tried"
    figures = told.time_to_first_token, told.inter_token, told.response_time, told.tokens_per_second
    assert figures == (None,) * 4
    assert (told.decode_tokens_per_second, told.prefill_tokens_per_second, told.cached_share) == (None, None, None)


def test_one_token_has_no_gap() -> None:
    (told,) = rungs(climbed(10, [answered(0.1, prompt=10)]))
    assert (told.inter_token, told.decode_tokens_per_second) == (None, None)


def test_what_the_prefix_cache_held_is_a_share_of_the_prompts_it_was_told_of() -> None:
    hit, missed, silent = (answered(0.1, prompt=100) for _ in range(3))
    hit.cached_tokens, missed.cached_tokens = 90, 0
    (told,) = rungs(climbed(100, [hit, missed, silent]))
    assert told.cached_share == pytest.approx(0.45)


def test_causes_are_those_of_the_rungs_own_requests_summed() -> None:
    late = {
        "1" * 32: {"page_faults": CauseSeconds(cause="page_faults", title="t", seconds=1.0)},
        "2" * 32: {
            "page_faults": CauseSeconds(cause="page_faults", title="t", seconds=2.0),
            "queueing": CauseSeconds(cause="queueing", title="q", seconds=9.0),
        },
        "3" * 32: {"queueing": CauseSeconds(cause="queueing", title="q", seconds=100.0)},
    }
    mine = climbed(10, [answered(0.1, trace="1" * 32), answered(0.1, trace="2" * 32)])
    assert [(each.cause, each.seconds) for each in causes_of(mine, late)] == [("queueing", 9.0), ("page_faults", 3.0)]
    assert late["1" * 32]["page_faults"].seconds == 1.0


def test_the_slowest_requests_come_with_their_trace_ids() -> None:
    answers = [answered(0.01 * n, [0.1, 0.2], trace=f"{n:032x}") for n in range(1, 9)]
    found = slowest([climbed(10, answers[:4]), climbed(20, [*answers[4:], failed("timeout")])])
    assert [int(each.trace_id, 16) for each in found] == [8, 7, 6, 5, 4]
    assert (found[0].aim_tokens, found[-1].aim_tokens) == (20, 10)
    assert found[0].longest_gap == pytest.approx(0.2)


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_the_value_of_its_rank(values: list[float], share: float) -> None:
    (found,) = quantiles(np.array(values), (share,))
    assert found == sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def test_no_values_have_no_latency() -> None:
    assert latency(np.empty(0)) is None
    assert gaps_s([]).tolist() == []
