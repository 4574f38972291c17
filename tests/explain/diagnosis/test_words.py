"""The verdict in sentences, and the notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpumon.detect.detector import Entity
from gpumon.explain.diagnosis.build import diagnose
from gpumon.explain.diagnosis.words import named
from gpumon.explain.explained import Explained
from gpumon.explain.group import Group
from gpumon.explain.signs import Fact
from gpumon.model import Unit
from tests.explain.diagnosis.requests import UNIX_S, Signal, inputs, request
from tests.explain.diagnosis.test_incidents import incident

MINE = Entity("gpu", "gpu 3", "3", "GPU-0")
"""Of the one engine of a story."""
OTHER = Entity("gpu", "gpu 6", "6", "GPU-6")
CLOCK = Fact("sm_clock", 1.005e9, Unit.HERTZ, 1.41e9)


def story(slow: Mapping[str, float], *, start_s: int = 300, end_s: int = 400, **told: Any) -> list[Explained]:
    """Ten minutes, one request of a second every five; slow from 300 to 400 s by as much."""
    return [
        request(float(at), 1.0, slow=slow if start_s <= at < end_s else {}, tenant="t", **told)
        for at in range(0, 600, 5)
    ]


def test_the_verdict_says_what_when_why_and_where() -> None:
    told = diagnose(
        inputs(
            story({"thermal_throttle": 0.3, "power_throttle": 0.1}, fact=CLOCK),
            incidents=[incident("a", entity=MINE, since_s=305.0, seen_s=400.0)],
            gpu_names={"GPU-0": "3"},
        )
    )
    assert told.verdict == (
        "20 of 120 requests were slow; all 120 together lost 8 s beyond what is usual, 7 % of the 2 min that they "
        "took; 0 % of what was lost is unexplained.",
        "The worst was from 08:05:00 to 08:06:40 UTC, most of it on vllm/m on GPU 3: 8 s lost (100 % of all).",
        "Why: GPU too hot (a fault), 75 %: SM clock 1,005 MHz, usually 1,410 MHz; then power cap (a fault), 25 %: "
        "SM clock 1,005 MHz, usually 1,410 MHz.",
        "Found on gpu 3: SM clock 1410 → 1005 MHz at 90 °C.",
    )


def test_why_is_why_in_the_worst_time_although_something_else_cost_more_in_all() -> None:
    always = [request(float(at), 1.0, slow={"prefill_interference": 0.1}, gpus=("GPU-8",)) for at in range(600)]
    told = diagnose(inputs([*always, *story({"pcie": 0.9})]))
    assert told.causes[0].cause == "prefill_interference"
    assert told.verdict[2] == "Why: PCIe slow (a fault), 100 % of the other 18 s."
    assert told.verdict[1].endswith(": 28 s lost (36 % of all), 10 s of it as in calm minutes.")
    assert [each.cause for each in told.actions] == ["pcie", "prefill_interference"]
    assert told.before_during is not None
    assert told.before_during.usual_seconds == pytest.approx(10.0, rel=0.01)


def test_what_goes_on_is_said_to_go_on() -> None:
    lasting = diagnose(inputs(story({"pcie": 0.3}, end_s=600)))
    assert "It began about 08:05:00 UTC and held until the end" in lasting.verdict[1]
    assert "It was so all the time" in diagnose(inputs(story({"pcie": 0.3}, start_s=0, end_s=600))).verdict[1]


def test_what_was_so_until_the_newest_request_goes_on_although_later_ones_are_not_explained_yet() -> None:
    slow = story({"pcie": 0.3}, end_s=600)
    assert "and held until the end" in diagnose(inputs(slow, to_s=620.0)).verdict[1]
    assert "and still held at 08:09:56 UTC" in diagnose(inputs(slow, to_s=620.0, is_live=True)).verdict[1]
    idle = diagnose(inputs(slow, to_s=900.0)).verdict[1]
    assert "It began about 08:05:00 UTC and was so until the last request ended, at 08:09:56 UTC" in idle
    always = story({"pcie": 0.3}, start_s=0, end_s=600)
    assert "It was so all the time" in diagnose(inputs(always, to_s=620.0)).verdict[1]


def test_load_is_not_called_a_fault_and_the_tenant_that_brought_it_is_named() -> None:
    flood = [request(300.0 + i, 1.0, slow={"queueing": 0.3}, tenant="batch") for i in range(100)]
    told = diagnose(inputs([*story({"queueing": 0.3}), *flood])).verdict
    assert "waiting in the queue (load, no fault), 100 %" in told[2]
    assert told[3] == "Tenant batch made 83 % of the requests meanwhile, 0 % before."


def test_a_fault_that_held_while_load_grew_is_named_and_its_signs_are_not() -> None:
    found = [
        incident("a", entity=MINE, since_s=305.0, seen_s=400.0),
        incident("b", kind="latency_shift", entity=MINE, since_s=305.0, seen_s=400.0, causes=(("queueing", 9.0),)),
    ]
    told = diagnose(inputs(story({"queueing": 0.3}), incidents=found)).verdict[3]
    assert told == "Meanwhile GPU too hot on gpu 3, which may be behind it: SM clock 1410 → 1005 MHz at 90 °C."


def test_the_queue_of_the_engine_is_named_and_no_fault_of_another_one_that_began_in_its_midst() -> None:
    """As a newcomer saw it: a rank of qwen that was slow 44 s into a queue of llama."""
    llama = [
        request(float(at), 2.0, slow={"queueing": 1.0} if 300 <= at < 400 else {}, model="llama") for at in range(600)
    ]
    qwen = [request(float(at), 2.0, gpus=("GPU-6",), model="qwen") for at in range(0, 600, 5)]
    found = [
        incident("rank", kind="straggler", entity=Entity("collective", "tp1 rank 2", "6", "GPU-6"), since_s=344.0),
        incident("hot", entity=Entity("gpu", "gpu 0", "0", "GPU-0"), since_s=344.0, seen_s=390.0, summary="later"),
        incident(
            "queue",
            kind="queue_buildup",
            entity=Entity("server", "vllm/llama at 127.0.0.1:8000"),
            since_s=302.0,
            seen_s=400.0,
            summary="waiting requests 0 → 100 while 23 run",
        ),
    ]
    told = diagnose(inputs([*llama, *qwen], incidents=found)).verdict
    assert told[3] == "Found on vllm/llama at 127.0.0.1:8000: waiting requests 0 → 100 while 23 run."
    before = incident("b", entity=Entity("gpu", "gpu 0", "0", "GPU-0"), since_s=298.0, seen_s=390.0, summary="88 °C")
    told = diagnose(inputs([*llama, *qwen], incidents=[*found, before])).verdict
    assert told[3] == (
        "Found on vllm/llama at 127.0.0.1:8000: waiting requests 0 → 100 while 23 run; meanwhile GPU too hot on gpu 0, "
        "which may be behind it: 88 °C."
    )


def test_a_fault_is_found_on_the_engine_that_lost_most_to_it() -> None:
    hot = [request(float(at), 2.0, slow={"thermal_throttle": 1.0} if 300 <= at < 400 else {}) for at in range(600)]
    held: dict[str, Any] = {"since_s": 301.0, "seen_s": 390.0, "summary": "mine"}
    other = incident("a", entity=OTHER, causes=(("thermal_throttle", 99.0),), **held)
    mine = incident("b", entity=MINE, causes=(("thermal_throttle", 9.0),), **held)
    assert diagnose(inputs(hot, incidents=[other, mine])).verdict[3] == "Found on gpu 3: mine."
    assert not any("Found" in each for each in diagnose(inputs(hot, incidents=[other])).verdict)


def test_one_request_is_spoken_of_as_one() -> None:
    told = diagnose(inputs([request(300.0, 2.0, slow={"pcie": 1.0})])).verdict
    assert told[0] == (
        "1 of 1 request was slow; it lost 1 s beyond what is usual, 50 % of the 2 s that it took; 0 % of what was lost "
        "is unexplained."
    )


def test_what_nothing_explains_is_said_first() -> None:
    told = diagnose(inputs(story({"unexplained": 0.3, "pcie": 0.1}))).verdict[2]
    assert told == "Nothing that was watched explains 75 % of it; PCIe slow (a fault), 25 %."
    assert diagnose(inputs(story({"unexplained": 0.3}))).verdict[2] == "Nothing that was watched explains 100 % of it."


def test_a_tenant_that_bears_most_of_it_is_named() -> None:
    requests = [*story({}), *(request(300.0 + i, 1.0, slow={"pcie": 0.5}, tenant="victim") for i in range(20))]
    told = diagnose(inputs(requests)).verdict
    assert told[-1] == "Tenant victim bears 100 % of it, with 14 % of the request time."


def test_where_nothing_is_slow_that_is_all_there_is_to_say() -> None:
    assert diagnose(inputs(story({}))).verdict == (
        "None of 120 requests was slow: all took about as long as is usual under their load.",
    )
    assert diagnose(inputs(story({"pcie": 0.001}))).verdict[0].startswith("None of 120")
    assert diagnose(inputs([])).verdict == ("No request ended in this period.",)
    cold = diagnose(inputs(story({}, is_expected=False)))
    assert "nothing is known yet of how long they usually take" in cold.verdict[0]
    assert any("the slowest 5 % by time per token" in note for note in cold.notes)


def test_where_all_lose_a_little_it_is_told_why_although_none_was_slow() -> None:
    told = diagnose(inputs(story({"pcie": 0.2}, start_s=300, end_s=600)))
    assert told.slow_requests == 0
    assert told.verdict[0] == (
        "None of 120 requests was slow by itself; all 120 together lost 12 s beyond what is usual, 10 % of the 2 min "
        "that they took; 0 % of what was lost is unexplained."
    )
    assert told.verdict[2] == "Why: PCIe slow (a fault), 100 %."
    little = diagnose(inputs(story({"pcie": 0.05}))).verdict
    assert little[0].endswith("usual under their load. Together they lost 1 s, little each.")


def test_incidents_of_engines_that_were_not_asked_for_are_left_out() -> None:
    found = [incident("a", since_s=305.0, seen_s=400.0)]
    told = diagnose(inputs(story({"thermal_throttle": 0.5}), incidents=found, of_others=frozenset({"a"})))
    assert told.incidents == ()
    assert not any("gpu 3" in sentence for sentence in told.verdict)


def test_what_was_wrong_is_named_although_no_request_was_slow() -> None:
    told = diagnose(inputs(story({}), incidents=[incident("a"), incident("b", kind="latency_shift")])).verdict
    assert told[1:] == ("Yet GPU too hot on gpu 3: SM clock 1410 → 1005 MHz at 90 °C.",)


@pytest.mark.parametrize(
    ("requests", "part"),
    [
        ([], "see whether traces arrive"),
        (story({}, gpus=()), "120 of 120 requests are not bound"),
        (story({}), "120 of 120 requests came without times of their tokens"),
        (story({}, tokens=None), "do not say how many tokens"),
        (story({})[:5], "Fewer than 20 requests"),
        (story({"pcie": 0.4}, start_s=0, end_s=600), "Every request of vllm/m was slow"),
        (story({"pcie": 0.2}), "No request of vllm/m was slow by 30 % of what was expected and 100 ms"),
        (story({"pcie": 0.3}, start_s=0), "what is usual is taken from the time after"),
        (story({"pcie": 0.3}, start_s=0), "There is no quiet time before the worst"),
        (story({}), "the matrix has nothing to say"),
        ([*story({}), *story({}, is_expected=False)], "Of 120 of 240 requests nothing was expected"),
    ],
)
def test_what_cannot_be_told_is_noted(requests: list[Explained], part: str) -> None:
    assert any(part in note for note in diagnose(inputs(requests)).notes)


def test_a_period_that_begins_before_what_is_kept_is_noted() -> None:
    told = diagnose(inputs(story({}), kept_from_s=60.0)).notes
    assert any("before 08:01:00 UTC are not kept" in note for note in told)
    assert not any("not kept" in note for note in diagnose(inputs(story({}), kept_from_s=-60.0)).notes)


def test_the_part_of_the_verdict_that_nothing_explains_is_told() -> None:
    told = diagnose(inputs(story({"unexplained": 0.3, "pcie": 0.1}))).verdict[0]
    assert told.endswith("; 75 % of what was lost is unexplained.")


def test_a_period_that_begins_before_gpumon_did_is_known_from_there_on() -> None:
    said = diagnose(inputs(story({}), began_s=120.0))
    assert (said.since, said.known_since) == (UNIX_S, UNIX_S + 120.0)
    assert any(note.startswith("gpumon began at 08:02:00 UTC: the period begins there") for note in said.notes)
    kept = diagnose(inputs(story({}), began_s=120.0, kept_from_s=240.0))
    assert kept.known_since == UNIX_S + 240.0
    assert any("before 08:04:00 UTC are not kept" in note for note in kept.notes)
    assert not any("gpumon began" in note for note in kept.notes)


@pytest.mark.parametrize("began_s", [None, -3600.0, 0.0, 2.0])
def test_a_period_of_which_all_is_known_is_not_called_shorter(began_s: float | None) -> None:
    said = diagnose(inputs(story({}), began_s=began_s))
    assert said.known_since is None
    assert not any("gpumon began" in note for note in said.notes)


def test_a_gpumon_that_begins_now_knows_of_no_period_at_all() -> None:
    said = diagnose(inputs([], began_s=5000.0))
    assert said.known_since == said.until


def test_of_a_running_gpumon_the_newest_request_is_told_for_later_ones_are_still_to_come() -> None:
    told = diagnose(inputs(story({}), is_live=True)).notes
    assert "The newest request here ended at 08:09:56 UTC: they are explained some seconds after their end." in told
    assert any("explain.delay_s" in note for note in diagnose(inputs([], is_live=True)).notes)
    assert not any("explain.delay_s" in note for note in diagnose(inputs([])).notes)


def test_where_all_is_known_there_are_no_notes() -> None:
    requests = story({"pcie": 0.3}, gaps_s=[0.01] * 50, signals=[0.5])
    assert diagnose(inputs(requests, dimensions=(Signal("sm_active"),))).notes == ()


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (Group("vllm", "m", ("GPU-b", "GPU-a"), "", ""), "vllm/m on GPUs 2, 10"),
        (Group("vllm", "m", ("GPU-x",), "", ""), "vllm/m on GPU-x"),
        (Group("vllm", "m", ("GPU-x", "GPU-a"), "", ""), "vllm/m on GPU-x and 1 more GPU"),
        (Group("vllm", "m", (), "4711", ""), "vllm/m, pid 4711"),
        (Group("vllm", "m", (), "", "0123456789abcdef"), "vllm/m, container 0123456789ab"),
        (Group("vllm", "m", (), "", ""), "vllm/m"),
    ],
)
def test_an_engine_is_called_by_where_it_runs(group: Group, text: str) -> None:
    assert named(group, {"GPU-a": "10", "GPU-b": "2"}) == text


def test_requests_that_were_not_looked_at_are_no_all_clear() -> None:
    said = diagnose(inputs(story({}), dropped=320))
    assert "320 others were not looked at" in said.verdict[0]
    assert "all took about as long" not in said.verdict[0]
    assert any("320 requests were not explained for want of room" in note for note in said.notes)
    assert not any("want of room" in note for note in diagnose(inputs(story({}))).notes)


def test_a_period_of_which_nothing_was_looked_at_says_so() -> None:
    said = diagnose(inputs([], dropped=7))
    assert said.verdict == ("No request ended in this period that was explained. 7 were not looked at.",)
