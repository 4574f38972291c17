"""Seconds by cause, engine and request: conserved, ordered, with what to do."""

from __future__ import annotations

import pytest

from gpumon.explain.causes import TABLE
from gpumon.explain.diagnosis import losses
from gpumon.explain.diagnosis.gains import Gained, Reason
from gpumon.explain.explained import Account
from gpumon.explain.signs import Fact
from gpumon.model import Unit
from tests.explain.diagnosis.requests import inputs, request, seen


def test_causes_are_told_by_phase_with_their_share_and_figure() -> None:
    clock = Fact("sm_clock", 1.0e9, Unit.HERTZ, 1.4e9)
    requests = [
        request(1.0, 4.0, slow_first={"queueing": 0.25}, slow={"thermal_throttle": 1.5}, fact=clock, number=1),
        request(2.0, 4.0, slow={"thermal_throttle": 1.0, "queueing": 0.25}, number=2),
        request(3.0, 2.0, number=3),
    ]
    first, second = losses.causes(seen(requests))
    assert (first.cause, first.title, first.kind) == ("thermal_throttle", "GPU too hot", "fault")
    assert (first.seconds, first.first_token_seconds, first.decode_seconds) == (2.5, 0.0, 2.5)
    assert (first.share, first.requests) == pytest.approx((2.5 / 3.0, 2))
    assert (first.fact, first.action) == ("SM clock 1,000 MHz, usually 1,400 MHz", TABLE["thermal_throttle"].action)
    assert (second.cause, second.kind, second.first_token_seconds, second.decode_seconds) == (
        *("queueing", "load"),
        *(0.25, 0.25),
    )


def test_excess_that_came_without_shares_is_unexplained() -> None:
    one = request(1.0, 4.0, slow={"pcie": 1.0})._replace(first_token=Account(0.1, 1.1, 1.0, ()))
    told = {each.cause: each.share for each in losses.causes(seen([one]))}
    assert told == pytest.approx({"pcie": 0.5, "unexplained": 0.5})


def test_where_nothing_was_lost_there_are_no_causes_and_nothing_to_do() -> None:
    assert losses.causes(seen([request()])) == losses.causes(seen([])) == ()
    assert losses.actions(()) == ()


def test_what_to_do_leaves_out_trifles_and_puts_what_is_unexplained_last() -> None:
    slow = {"unexplained": 3.0, "pcie": 1.0, "nvlink": 2.0, "numa_remote": 0.01}
    told = losses.actions(losses.causes(seen([request(1.0, 9.0, slow=slow)])))
    assert [(each.cause, each.seconds) for each in told] == [("nvlink", 2.0), ("pcie", 1.0), ("unexplained", 3.0)]


def test_engines_are_told_apart_by_their_gpus_and_the_one_that_lost_most_comes_first() -> None:
    requests = [
        *(request(float(i), 2.0, gpus=("GPU-0",)) for i in range(3)),
        request(5.0, 4.0, gpus=("GPU-1",), slow={"nvlink": 2.0}),
        request(6.0, 2.0, gpus=(), model="n"),
    ]
    told = inputs(requests, gpu_names={"GPU-1": "7"})
    first, second, third = losses.engines(told, seen(requests))
    assert (first.gpus, first.requests, first.slow_requests, first.cause) == (("GPU-1",), 1, 1, "nvlink")
    assert (first.token_seconds, first.excess_seconds) == (4.0, 2.0)
    assert (second.gpus, second.requests, second.cause) == (("GPU-0",), 3, "")
    assert (third.model, third.gpus) == ("n", ())
    assert (first.place, second.place, third.place) == ("GPU 7", "GPU-0", "")


def test_the_requests_to_look_at_are_the_slowest_of_each_cause_then_the_next() -> None:
    """A long queue would leave no room for the others."""
    slow = [*(("queueing", 20.0 + i) for i in range(12)), ("page_faults", 3.0), ("page_faults", 2.0), ("pcie", 1.0)]
    requests = [request(float(i), 60.0, slow={cause: lost}, number=i) for i, (cause, lost) in enumerate(slow)]
    requests = [each._replace(decode=each.decode._replace(expected_s=1.0)) for each in requests]
    found = losses.slowest(inputs(requests), seen(requests))
    assert [(each.cause, each.excess_seconds) for each in found[:5]] == [
        *(("queueing", 31.0), ("page_faults", 3.0), ("pcie", 1.0)),
        *(("queueing", 30.0), ("page_faults", 2.0)),
    ]
    assert [each.cause for each in found[5:]] == ["queueing"] * 5
    assert found[1].title == "major page faults"


def test_the_requests_to_look_at_lost_most() -> None:
    requests = [
        request(float(i), 2.0 + i, slow={"pcie": 0.75 * i, "nvlink": 0.25 * i}, number=i, gaps_s=[0.1, 0.3])
        for i in range(1, 15)
    ]
    told = inputs(requests)
    found = losses.slowest(told, seen(requests))
    assert [int(each.trace_id, 16) for each in found] == list(range(14, 4, -1))
    first = found[0]
    assert (first.started, first.duration_seconds) == (1_800_000_014.0, 16.0)
    assert (first.first_token_seconds, first.worst_gap_seconds) == pytest.approx((0.5, 0.3))
    assert (first.excess_seconds, first.cause, first.cause_share) == (14.0, "pcie", 0.75)
    assert (first.prompt_tokens, first.completion_tokens, first.gpus) == (1000, 101, ("GPU-0",))


def test_while_nothing_is_expected_the_slowest_twentieth_per_token_is_looked_at() -> None:
    requests = [request(float(i), 1.0 + i, is_expected=False, number=i) for i in range(40)]
    told = seen(requests)
    assert told.is_cold
    assert [int(each.trace_id, 16) for each in losses.slowest(inputs(requests), told)] == [39, 38]


@pytest.mark.parametrize(
    ("excess_s", "duration_s", "slow"),
    [(0.09, 0.2, False), (0.1, 0.2, True), (2.0, 10.0, False), (3.0, 10.0, True), (0.25, 1.25, False)],
)
def test_slow_is_at_least_thirty_percent_and_a_tenth_of_a_second(
    excess_s: float, duration_s: float, slow: bool
) -> None:
    told = seen([request(1.0, duration_s, first_s=0.0, slow={"pcie": excess_s})])
    assert bool(told.slow[0]) is slow


def test_what_to_do_first_is_about_what_gained_most_in_the_worst_stretch() -> None:
    lost = losses.causes(seen([request(1.0, 9.0, slow={"prefill_interference": 3.0, "pcie": 1.0, "nvlink": 0.1})]))
    gained = Gained((Reason("nvlink", 0.1, 0.2, "", 0), Reason("pcie", 0.4, 0.8, "", 0)), 0.0, None)
    told = losses.actions(lost, gained)
    assert [each.cause for each in told] == ["nvlink", "pcie", "prefill_interference"]
    assert [each.worst_seconds for each in told] == [0.1, 0.4, 0.0]


def test_what_to_do_says_what_for_so_that_its_order_is_seen() -> None:
    lost = losses.causes(seen([request(1.0, 9.0, slow={"prefill_interference": 3.0, "pcie": 1.0, "nvlink": 0.1})]))
    gained = Gained((Reason("nvlink", 0.1, 0.2, "", 0), Reason("pcie", 0.4, 0.8, "", 0)), 0.0, None)
    assert [each.reason for each in losses.actions(lost, gained)] == [
        "NVLink slow: 100 ms of the worst stretch",
        "PCIe slow: 400 ms of the worst stretch, 1 s in all",
        "prefill of others: 3 s in all",
    ]


def test_causes_say_what_they_cost_a_minute_of_calm_time() -> None:
    gained = Gained((), 0.0, dict.fromkeys(TABLE, 0.0) | {"pcie": 1.5})
    (told,) = losses.causes(seen([request(1.0, 9.0, slow={"pcie": 3.0})]), gained)
    assert told.calm_seconds_per_minute == 1.5
    (alone,) = losses.causes(seen([request(1.0, 9.0, slow={"pcie": 3.0})]))
    assert alone.calm_seconds_per_minute is None
