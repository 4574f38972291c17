"""What is said of the requests of one server when something is wrong with it: hand-made requests and signs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.explain.board import Conditions
from gpumon.explain.causes import INDEX
from gpumon.explain.explained import Explained
from gpumon.explain.group_state import SLOW_GAPS, GroupState
from gpumon.explain.signs import Fact
from gpumon.model import Unit
from tests.explain.traffic import GPU, Held, Saying, Slower, World, lost, traffic

HOT = [Slower(1045.0, 1060.0, 1.4)]
HOT_CAP = 1 - 1 / 1.4
CLOCK = Fact("sm_clock", 1.0e9, Unit.HERTZ, 1.4e9)
THERMAL = Held("thermal_throttle", 1045.0, 1060.0, 0.95, HOT_CAP, fact=CLOCK)


def shares(world: World, phase: str = "decode") -> dict[str, float]:
    """Part of all excess by cause."""
    seconds = world.seconds(phase)
    return {cause: part / sum(seconds.values()) for cause, part in seconds.items()}


def explained(world: World, number: int) -> Explained:
    (found,) = [each for each in world.all if each.record.request_id == str(number)]
    return found


def hot_world(*held: Held, **told: Any) -> World:
    """A good minute of one server, of which it was hot for 15 s."""
    world = World(Saying(*held))
    world.run(traffic(1000.0, 70.0, slower=HOT, **told), 84)
    world.check_conserved()
    return world


@functools.cache
def hot() -> World:
    """The same, with a witness that says so. Only looked at."""
    return hot_world(THERMAL)


# --- between tokens ---------------------------------------------------------------------------------------------------


def test_a_server_in_good_health_is_on_time() -> None:
    world = World(Saying())
    world.run(traffic(1000.0, 60.0, noise=0.03), 74)
    outcomes = world.outcomes()
    assert outcomes["on_time"] > 0.95 * sum(outcomes.values())
    assert sum(world.seconds().values()) < 0.1
    world.check_conserved()


def test_a_condition_alone_makes_nothing_slow() -> None:
    world = World(Saying(THERMAL))
    world.run(traffic(1000.0, 70.0), 84)
    assert sum(world.seconds().values()) < 0.1


def test_a_fault_has_what_it_cost() -> None:
    world = hot()
    true_s = lost(traffic(1000.0, 70.0, slower=HOT), traffic(1000.0, 70.0))
    assert world.seconds()["thermal_throttle"] == pytest.approx(true_s, rel=0.15)
    assert shares(world)["thermal_throttle"] > 0.9


def test_a_slow_request_says_why_with_the_figure_and_one_on_time_says_nothing() -> None:
    slow, on_time = explained(hot(), 4 * 52), explained(hot(), 4 * 38)
    assert slow.decode.cause == "thermal_throttle"
    assert slow.decode.shares[0].fact == CLOCK
    assert slow.decode.shares[0].evidence == pytest.approx(0.95)
    assert slow.decode.actual_s == pytest.approx(1.4 * 2.0, rel=0.02)
    assert slow.decode.expected_s == pytest.approx(2.0, rel=0.03)
    assert slow.decode.excess_s == pytest.approx(0.8, rel=0.1)
    assert (on_time.decode.excess_s, on_time.decode.cause, on_time.slow_gaps) == (0.0, "", ())
    assert on_time.decode.expected_s == pytest.approx(2.0, rel=0.03)


def test_slowness_without_any_sign_is_unexplained() -> None:
    assert shares(hot_world())["unexplained"] > 0.95


@pytest.mark.parametrize(
    "held",
    [
        THERMAL._replace(key=("gpu", "GPU-0001")),
        THERMAL._replace(key=("process", "7")),
        THERMAL._replace(start_s=1020.0, end_s=1035.0),
        THERMAL._replace(evidence=0.05),
    ],
)
def test_what_was_true_of_something_else_or_at_another_time_is_not_to_blame(held: Held) -> None:
    assert shares(hot_world(held))["unexplained"] > 0.9


def test_a_condition_that_always_holds_does_not_hide_the_one_that_came() -> None:
    found = shares(hot_world(THERMAL, Held("power_throttle", 0.0, 2000.0, 0.4, 0.1)))
    assert found["thermal_throttle"] > 0.8


def test_a_condition_that_was_there_before_and_cost_nothing_is_blamed_for_less() -> None:
    harmless = [Held("power_throttle", start_s, start_s + 15.0, 0.95, HOT_CAP) for start_s in (1005.0, 1025.0, 1045.0)]
    found = shares(hot_world(THERMAL, *harmless))
    assert found["thermal_throttle"] > found.get("power_throttle", 0.0)


HOLDS = (catalogue.PROCESS_GPU_MEMORY, ("0", GPU[1], "42", "VLLM::Worker", "", "", ""))


@pytest.mark.parametrize("offset_s", [0.0, 0.1, 0.3])
def test_a_process_that_stood_still_has_the_gap_of_every_request_that_it_served(offset_s: float) -> None:
    start_s, end_s = 1040.0 + offset_s, 1040.5 + offset_s
    world = World(Saying(Held("process_stopped", start_s, end_s, 1.0, 1.0, key=("process", "42"))))
    world.stage.put({HOLDS: 1e9})
    world.run(traffic(1000.0, 45.0, slower=[Slower(start_s, end_s, 1e9)]), 58)
    world.check_conserved()
    running = [each for each in world.all if each.decode.excess_s > 0.1]
    assert 6 <= len(running) <= 10
    for each in running:
        assert each.decode.cause == "process_stopped"
        assert each.decode.shares[0].seconds > 0.8 * each.decode.excess_s
        assert each.decode.excess_s == pytest.approx(0.5, abs=0.05)
        (gap,) = [gap for gap in each.slow_gaps if gap.excess_s > 0.1]
        assert gap.start_s <= start_s + 0.05
        assert gap.end_s >= end_s - 0.05
        assert gap.shares[0].cause == "process_stopped"


def test_a_process_that_holds_another_gpu_is_not_the_servers() -> None:
    world = World(Saying(Held("process_stopped", 1040.0, 1040.5, 1.0, 1.0, key=("process", "42"))))
    world.stage.put({(HOLDS[0], ("1", "GPU-0001", *HOLDS[1][2:])): 1e9})
    world.run(traffic(1000.0, 45.0, slower=[Slower(1040.0, 1040.5, 1e9)]), 58)
    assert shares(world)["unexplained"] > 0.95


@functools.cache
def with_long_prompts() -> World:
    """Every four seconds a prompt of 8,000 tokens is computed in 0.3 s, in which steps take five times as long."""
    moments = np.arange(1004.0, 1080.0, 4.0).tolist()
    shared = [Slower(moment_s, moment_s + 0.3, 5.0) for moment_s in moments]
    long = traffic(1004.0, 76.0, every_s=4.0, tokens=5, first_s=0.3, prompt=8000, seed=2)
    world = World(Saying())
    world.run([*traffic(1000.0, 80.0, slower=shared, first_s=0.02, prompt=50), *long], 94)
    return world


def test_prompts_of_others_have_what_they_cost_the_steps_they_shared() -> None:
    world = with_long_prompts()
    world.check_conserved()
    assert shares(world)["prefill_interference"] > 0.7


def test_the_figure_of_a_request_is_its_own_and_not_that_of_all_at_once() -> None:
    # While a request decodes, which takes two seconds, a prompt of 8,000 tokens and eight of 50 are computed.
    told = [
        share.fact.observed
        for each in with_long_prompts().all
        for share in each.decode.shares
        if share.cause == "prefill_interference" and share.fact is not None
    ]
    assert told
    assert max(told) < 10_000


def test_a_request_that_a_full_cache_put_out_of_the_batch_alone_has_that_time() -> None:
    # One request has a gap of a second that no other has.
    records = traffic(1000.0, 50.0)
    one = records[160]
    assert one.token_ns is not None
    one.token_ns = np.where(np.arange(len(one.token_ns)) > 50, one.token_ns + 10**9, one.token_ns)
    one.end_ns += 10**9
    full = Held("kv_pressure", one.start_ns / 1e9, one.end_ns / 1e9, 0.9, 1.0, key=("server", "m"))
    world = World(Saying(full))
    world.run(records, 64)
    found = explained(world, 160)
    assert found.decode.cause == "kv_pressure"
    assert found.decode.excess_s == pytest.approx(1.0, rel=0.05)
    assert sum(each.decode.excess_s for each in world.all) == pytest.approx(1.0, rel=0.1)


# --- what servers tell ------------------------------------------------------------------------------------------------


def test_a_server_that_tells_no_token_times_is_explained_by_the_length_of_decoding() -> None:
    found = shares(hot_world(THERMAL, timed=False))
    assert found["thermal_throttle"] > 0.8


def test_steps_of_several_tokens_are_explained_as_steps() -> None:
    counts = np.full(101, 3, dtype=np.int32)
    world = hot_world(THERMAL, token_counts=counts, completion_tokens=303)
    assert shares(world)["thermal_throttle"] > 0.8
    assert explained(world, 4 * 52).slow_gaps[0].tokens % 3 == 0


def test_steps_of_unknown_size_are_explained_as_steps() -> None:
    assert shares(hot_world(THERMAL, per_token=False))["thermal_throttle"] > 0.8


# --- details ----------------------------------------------------------------------------------------------------------


def test_slow_gaps_are_the_slowest_by_time_and_inside_the_request() -> None:
    # Every third step of one request stands out.
    records, spoiled = traffic(1000.0, 60.0, noise=0.0), traffic(1040.0, 0.25, noise=0.0, tokens=400, seed=2)[0]
    assert spoiled.token_ns is not None
    late_ns = np.cumsum(np.where(np.arange(401) % 3 == 2, 50_000_000 + 100_000 * np.arange(401), 0))
    spoiled.token_ns = spoiled.token_ns + late_ns
    spoiled.end_ns = int(spoiled.token_ns[-1])
    spoiled.request_id = "spoiled"
    world = World(Saying())
    world.run([*records, spoiled], 75)
    world.check_conserved()
    (found,) = [each for each in world.all if each.record.request_id == "spoiled"]
    gaps = found.slow_gaps
    assert len(gaps) == SLOW_GAPS < 133
    assert [gap.start_s for gap in gaps] == sorted(gap.start_s for gap in gaps)
    assert all(found.start_s <= gap.start_s < gap.end_s <= found.end_s + 1e-6 for gap in gaps)
    slowest = np.sort(np.diff(spoiled.token_ns) * 1e-9)[-SLOW_GAPS]
    assert min(gap.end_s - gap.start_s for gap in gaps) >= slowest - 1e-6


def test_token_times_are_steady_times() -> None:
    found = explained(hot(), 4 * 52)
    assert found.token_s is not None
    record = traffic(1000.0, 70.0, slower=HOT)[4 * 52]
    assert record.token_ns is not None
    np.testing.assert_allclose(found.token_s, record.token_ns / 1e9, atol=1e-6)
    assert found.start_s == pytest.approx(record.start_ns / 1e9)
    assert found.end_s == pytest.approx(record.end_ns / 1e9)


# --- first tokens -----------------------------------------------------------------------------------------------------


def test_a_first_token_behind_a_fault_is_the_faults() -> None:
    world = hot_world(THERMAL, first_s=0.3)
    found = explained(world, 4 * 54)
    assert found.first_token.cause == "thermal_throttle"
    assert found.first_token.expected_s == pytest.approx(0.3, rel=0.1)
    assert found.first_token.excess_s == pytest.approx(0.12, rel=0.2)
    assert shares(world, "first_token")["thermal_throttle"] > 0.9


def test_a_first_token_that_waited_in_good_health_is_the_queues() -> None:
    records = traffic(1000.0, 50.0, queue_s=0.0)
    late = traffic(1040.0, 4.0, first_s=1.1, queue_s=1.0, seed=2)
    world = World(Saying())
    world.run([*records, *late], 64)
    world.check_conserved()
    assert shares(world, "first_token")["queueing"] > 0.9
    assert world.seconds("first_token")["queueing"] == pytest.approx(16.0, rel=0.1)


def test_a_long_prompt_is_late_by_its_length() -> None:
    records = traffic(1000.0, 70.0, first_s=0.1, prompt=1000)
    for number in range(8, 70, 6):
        records += traffic(1000.0 + number, 0.25, first_s=1.6, prompt=16_000, seed=number)
    world = World(Saying())
    world.run(records, 84)
    world.check_conserved()
    assert shares(world, "first_token")["long_context"] > 0.8


# --- learning ---------------------------------------------------------------------------------------------------------


def hot_incident(since_s: float, severity: Severity = Severity.WARNING) -> Incident:
    entity = Entity("gpu", "gpu 0", "0", GPU[1])
    return Incident("1", "thermal_throttle", entity, severity, since_s, since_s, since_s, "hot", (), "Cool it.")


def test_what_an_incident_touches_is_not_learned_as_usual() -> None:
    world = World(Saying(Held("thermal_throttle", 1040.0, 1300.0, 0.95, 1 / 3)))
    records = traffic(1000.0, 80.0, slower=[Slower(1040.0, 1300.0, 1.5)])
    world.run([record for record in records if record.end_ns <= 1042e9], 42)
    incident = hot_incident(1040.0)
    world.incidents.append(incident)
    world.run([record for record in records if record.end_ns > 1042e9], 52)
    last = explained(world, 4 * 78)
    assert last.decode.expected_s == pytest.approx(2.0, rel=0.05)
    assert last.decode.cause == "thermal_throttle"
    assert incident.causes[0][0] == "thermal_throttle"


def test_a_change_that_nobody_finds_wrong_becomes_usual() -> None:
    world = World(Saying())
    world.run(traffic(1000.0, 160.0, slower=[Slower(1040.0, 2000.0, 1.5)]), 174)
    last = explained(world, 4 * 158)
    assert last.decode.expected_s == pytest.approx(3.0, rel=0.1)
    assert last.decode.excess_s < 0.1 * last.decode.actual_s


def test_a_server_that_was_never_well_is_not_explained_by_what_it_always_did() -> None:
    world = World(Saying(Held("thermal_throttle", 1000.0, 1100.0, 0.95, 0.3)))
    world.incidents.append(hot_incident(1000.0))
    world.run(traffic(1000.0, 60.0), 74)
    world.check_conserved()
    assert sum(world.seconds().values()) < 5.0


# --- how far back -----------------------------------------------------------------------------------------------------


def waits_since(waits: Sequence[float], *moments_s: float) -> list[float]:
    """Evidence of a queue from second 100 on, each half second."""
    evidence = np.array([waits])
    conditions = Conditions(200, (INDEX["queueing"],), evidence, np.zeros_like(evidence))
    return [float(since_s) for since_s in GroupState._waits_since(np.array(moments_s), conditions)]


def test_a_queue_is_followed_back_to_where_it_began() -> None:
    waits = [0.0] * 4 + [0.9] * 6 + [0.0] * 2 + [0.5] * 4
    assert waits_since(waits, 104.4, 106.0, 107.9) == [102.0, 106.0, 106.0]


def test_without_a_queue_there_is_nothing_to_follow() -> None:
    assert waits_since([0.0, 0.4, 0.0], 100.7) == [100.7]
    other = Conditions(200, (INDEX["thermal_throttle"],), np.ones((1, 4)), np.zeros((1, 4)))
    assert GroupState._waits_since(np.array([101.0]), other).tolist() == [101.0]
    assert waits_since([0.9, 0.9], 100.7) == [100.0]
