"""What gpumon has of a request behind the proxy is what its client saw: counts exactly, times less the way between.

The client's clock starts before the proxy's and stops after it (``agreement``), which makes some tenths of a
millisecond, and either of the two processes may have to wait for a CPU, which makes any. The first can be told from the
second: it is the same every time. So no single one may be the wrong way round, and of all the quarter that is closest
must be near; sums may be apart by what the kernel counted as waits for a CPU.
"""

from __future__ import annotations

import pytest

from tests.live.agreement import first_tokens_s, gaps_s, longest_gaps_s, tokens_s
from tests.live.client import TOKENS
from tests.live.server import MODEL
from tests.live.story import Story

pytestmark = pytest.mark.slow
NEAR_S = 0.001
ROUNDED_S = 2e-6
"""What rounding in the API makes of two times."""


def test_gpumon_has_every_request_once(story: Story) -> None:
    assert story.rows.keys() == {answer.trace_id for answer in story.answers}
    assert {row["outcome"] for row in story.rows.values()} == {"ok"}


def test_gpumon_counts_the_tokens_that_the_client_saw(story: Story) -> None:
    for answer in story.answers:
        row = story.rows[answer.trace_id]
        assert row["completion_tokens"] == answer.completion_tokens == len(answer.token_ns)
        assert row["prompt_tokens"] == answer.prompt_tokens
    assert story.end is not None
    totals = {kind: _total(story, "gpumon_tokens_total", kind=kind) for kind in ("prompt", "completion")}
    assert totals == {
        "prompt": sum(answer.prompt_tokens for answer in story.answers),
        "completion": sum(len(answer.token_ns) for answer in story.answers),
    }
    assert _total(story, "gpumon_inter_token_latency_seconds_count") == (TOKENS - 1) * len(story.answers)


def test_requests_are_bound_to_the_server_behind_the_proxy(story: Story) -> None:
    slow = [answer for fault in story.episodes for answer in story.during(fault) if answer.trace_id in story.details]
    assert slow
    # It has no GPU; of what is not found, or is the proxy itself, gpumon says something else.
    assert {story.details[answer.trace_id]["unbound"] for answer in slow} == {"no_gpu"}


def test_a_first_token_comes_to_the_client_when_gpumon_says(story: Story) -> None:
    later_s = first_tokens_s(story, story.answers)
    assert min(later_s) > -ROUNDED_S
    assert _closest_quarter_s(later_s) < NEAR_S


def test_the_longest_gap_is_as_long_as_the_client_saw_it(story: Story) -> None:
    assert _closest_quarter_s(longest_gaps_s(story, story.answers)) < NEAR_S


def test_tokens_of_slow_requests_come_when_gpumon_says_one_by_one(story: Story) -> None:
    slow = [answer for answer in story.answers if answer.trace_id in story.details]
    assert slow
    for answer in slow:
        assert min(tokens_s(story, answer)) > -ROUNDED_S
    assert _closest_quarter_s([late_s for answer in slow for late_s in tokens_s(story, answer)]) < NEAR_S
    assert _closest_quarter_s([late_s for answer in slow for late_s in gaps_s(story, answer)]) < NEAR_S


def test_the_time_between_all_tokens_is_the_clients(story: Story) -> None:
    seen_s = sum(answer.token_ns[-1] - answer.token_ns[0] for answer in story.answers) / 1e9
    told_s = _total(story, "gpumon_inter_token_latency_seconds_sum")
    may_s = sum(NEAR_S + answer.way_waited_s for answer in story.answers)
    assert abs(seen_s - told_s) < may_s


def _closest_quarter_s(differences_s: list[float]) -> float:
    """The largest difference of the smallest quarter of them."""
    return sorted(abs(difference_s) for difference_s in differences_s)[len(differences_s) // 4]


def _total(story: Story, family: str, **labels: str) -> float:
    assert story.end is not None
    return sum(value for _, value in story.end.select(family, model=MODEL, **labels))
