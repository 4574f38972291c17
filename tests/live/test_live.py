"""Real faults done to a real server behind the proxy: the tokens show them, gpumon's readings too, and it blames them.

Everything is compared with what was really done, by the kernel's own counters and the client's own clock; how fast the
machine is, and what else runs on it, must not matter. Where others take the CPU from the server meanwhile, that is CPU
starvation as true as ours: so much of it as the kernel counted is nobody's mistake.
"""

from __future__ import annotations

import pytest

from gpumon.catalogue import CAUSES as ALL_CAUSES
from gpumon.explain.causes import UNEXPLAINED, is_fault
from tests.e2e.page import Page
from tests.live.client import TOKENS, Answer
from tests.live.server import MODEL
from tests.live.story import CAUSES, Story

pytestmark = pytest.mark.slow
MAJORITY = 0.5
CALM_SHARE = 0.03
"""Of the token time without a fault that may be blamed on one."""
SEEN = 0.6
"""Least part of a fault's delay that gpumon calls excess: what lies within its tolerance is none."""
LOOK_S = 0.5
"""Between two looks of gpumon at the state of a process."""


def test_every_answer_has_the_time_of_every_token(story: Story) -> None:
    for answer in story.answers:
        assert len(answer.token_ns) == answer.completion_tokens == TOKENS, answer
        assert all(wait_s > 0 for wait_s in answer.waits_s), answer


def test_the_tokens_show_the_fault(story: Story, fault: str) -> None:
    slow = story.during(fault)
    assert story.late_s(slow) > 0.2 * sum(episode.duration_s for episode in story.episodes[fault])
    if fault == "stopped":
        for episode in story.episodes[fault]:
            met = [answer for answer in slow if answer.overlaps(episode.start_ns, episode.end_ns)]
            # A token that is itself handed on late shortens the wait for the next one, by what proxy and client waited.
            longest_s = max((max(answer.waits_s) + answer.way_waited_s for answer in met), default=0.0)
            assert longest_s > 0.95 * episode.stopped_s


def test_a_stop_is_read(story: Story) -> None:
    grown_s = _grown(story, "stopped", "gpumon_process_stopped_seconds_total")
    done_s = [episode.stopped_s for episode in story.episodes["stopped"]]
    assert sum(done_s) - LOOK_S * len(done_s) <= grown_s <= sum(done_s) + LOOK_S * len(done_s)


def test_major_faults_are_read(story: Story) -> None:
    done = story.episodes["paged_out"][0].major_faults
    assert done > 1000
    assert _grown(story, "paged_out", "gpumon_process_page_faults_total", kind="major") >= done


def test_waits_for_a_cpu_are_read(story: Story) -> None:
    done = story.episodes["starved_cpu"][0]
    assert done.waited_s > 0.3 * done.duration_s
    assert _grown(story, "starved_cpu", "gpumon_process_runqueue_wait_seconds_total") > 0.9 * done.waited_s


def test_throttling_is_read(story: Story) -> None:
    if "throttled_cpu" in story.forbidden:
        pytest.skip(f"this user may not set a quota: {story.forbidden['throttled_cpu']}")
    done_s = story.episodes["throttled_cpu"][0].throttled_s
    assert done_s > 1.0
    assert _grown(story, "throttled_cpu", "gpumon_process_cgroup_cpu_throttled_seconds_total") > 0.9 * done_s


def test_the_delay_is_seen(story: Story, fault: str) -> None:
    slow = story.during(fault)
    assert sum(story.blamed(slow).values()) > SEEN * story.late_s(slow)


def test_the_cause_is_named(story: Story, fault: str) -> None:
    cause = CAUSES[fault]
    slow = story.during(fault)
    blamed = story.blamed(slow)
    noise_s = 0.0 if cause == "cpu_starvation" else min(blamed.get("cpu_starvation", 0.0), _waited_s(slow))
    counted_s = sum(blamed.values()) - noise_s
    assert blamed.get(cause, 0.0) > MAJORITY * counted_s, blamed
    assert blamed.get(UNEXPLAINED, 0.0) < MAJORITY * counted_s, blamed


def test_no_fault_is_blamed_while_there_is_none(story: Story) -> None:
    calm = story.calm()
    blamed = {cause: seconds for cause, seconds in story.blamed(calm).items() if is_fault(cause)}
    starved_s = blamed.pop("cpu_starvation", 0.0)
    may_s = CALM_SHARE * sum(answer.duration_s for answer in calm)
    assert sum(blamed.values()) < may_s, blamed
    assert starved_s < may_s + _waited_s(calm)


def test_the_page_adds_up_and_agrees_with_the_requests(story: Story) -> None:
    assert story.end is not None
    by_cause = {cause: _blamed_on_page(story.end, cause) for cause in ALL_CAUSES}
    excess_s = sum(value for _, value in story.end.select("gpumon_token_excess_seconds_total", model=MODEL))
    assert sum(by_cause.values()) == pytest.approx(excess_s)
    told = story.blamed(story.answers)
    assert {cause: seconds for cause, seconds in by_cause.items() if seconds} == pytest.approx(told)


def _waited_s(answers: list[Answer]) -> float:
    return sum(answer.server_waited_s for answer in answers)


def _grown(story: Story, fault: str, family: str, **labels: str) -> float:
    before, after = story.pages[fault]
    pid = str(story.pid)
    return after.value(family, pid=pid, **labels) - before.value(family, pid=pid, **labels)


def _blamed_on_page(page: Page, cause: str) -> float:
    return sum(value for _, value in page.select("gpumon_slow_token_seconds_total", model=MODEL, cause=cause))
