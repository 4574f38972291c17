"""Explanation as a whole: each request once and counted once, of which group, and what incidents are told."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.catalogue import EXPLAINED_REQUESTS, PHASES, SLOW_TOKEN_SECONDS, TOKEN_EXCESS
from gpumon.detect.concerned import TENANTS_MAX
from gpumon.detect.detector import Entity, Severity
from gpumon.detect.engine import Detection
from gpumon.detect.incident import Incident
from gpumon.detect.ledger import Ledger
from gpumon.detect.scene import Scene, SceneMaker
from gpumon.explain.engine import ANEW_S, GROUPS_MAX, IDLE_S, UNBOUND_MAX, Explanation
from gpumon.model import Binding, GpuUuid, Metric, RequestRecord, Sample
from gpumon.store import Store
from tests.detect.findings import GPU3, Scripted, finding, to_unix
from tests.detect.scenes import Stage
from tests.explain.traffic import GPU, HOT, HOT_TIME, Saying, World, hot_world, quick, traffic

NS = 1_000_000_000


@functools.cache
def hot() -> World:
    """A minute of a server that was hot for ten seconds. Only looked at."""
    return hot_world()


# --- once -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_s", [2.0, 8.0])
def test_a_request_is_explained_some_seconds_after_its_end_and_once(delay_s: float) -> None:
    world = World(delay_s=delay_s)
    record = quick(1, 1001.0)
    world.step([record])
    for second in range(round(delay_s)):
        assert world.all == [], second
        assert world.explanation.find(record.trace_id.hex()) == []
        world.step()
    assert len(world.all) == 1
    for _ in range(20):
        world.step()
    assert len(world.all) == 1
    assert sum(world.outcomes().values()) == 1


def test_every_request_is_counted_once_under_what_became_of_it() -> None:
    world = hot_world()
    untimed = [quick(n, world.stage.at_s, first_s=None) for n in range(3)]
    world.step(untimed)
    for _ in range(12):
        world.step()
    outcomes = world.outcomes()
    assert sum(outcomes.values()) == 4 * 60 + 3
    assert outcomes["untimed"] == 3
    assert outcomes["cold"] > 0
    slow = [each for each in world.all if each.excess_s > 0]
    assert outcomes["slow"] == len(slow) > 20
    assert outcomes["on_time"] == len(world.all) - len(slow) - outcomes["cold"]


def test_counters_add_up_and_never_fall() -> None:
    world = World(Saying(HOT))
    before: dict[tuple[Metric, tuple[str, ...]], float] = {}
    records = traffic(1000.0, 60.0, slower=HOT_TIME)
    for second in range(75):
        at_ns = (1000 + second) * NS
        world.step([record for record in records if at_ns < record.end_ns <= at_ns + NS])
        now = {
            (metric, labels): value
            for metric in (EXPLAINED_REQUESTS, SLOW_TOKEN_SECONDS, TOKEN_EXCESS)
            for labels, value in world.values(metric).items()
        }
        assert all(now[key] >= value for key, value in before.items())
        before = now
    world.check_conserved()
    assert world.seconds()["thermal_throttle"] > 10


def test_every_series_of_a_model_is_there_from_its_first_request_on() -> None:
    world = World()
    world.step([quick(1, 1001.0, first_s=None)])
    labels = [sample.labels for sample in world.samples if sample.metric is SLOW_TOKEN_SECONDS]
    assert labels == [("vllm", "m", phase, cause) for phase in PHASES for cause in catalogue.CAUSES]
    assert len([sample for sample in world.samples if sample.metric is TOKEN_EXCESS]) == len(PHASES)
    counted = {each.labels[2]: each.value for each in world.samples if each.metric is EXPLAINED_REQUESTS}
    assert counted == dict.fromkeys(EXPLAINED_REQUESTS.values, 0.0) | {"untimed": 1.0}


def test_nothing_is_expected_of_a_server_that_nothing_is_known_of() -> None:
    world = World(Saying(HOT._replace(start_s=1000.0)))
    world.run(traffic(1000.0, 0.5), 12)
    assert set(world.outcomes()) == {"cold"}
    assert all(each.decode.expected_s is None and each.excess_s == 0 and not each.slow_gaps for each in world.all)


def test_a_request_can_be_found_by_its_trace_and_its_span() -> None:
    world = hot()
    slow = world.explanation.newest()[0]
    trace, span = slow.record.trace_id, slow.record.span_id
    assert world.explanation.find(trace.hex()) == [slow]
    assert world.explanation.of_span(trace, span) is slow
    assert world.explanation.of_span(trace, bytes(8)) is None
    assert world.explanation.find("00" * 16) == []
    on_time = next(each for each in world.all if not each.excess_s)
    assert world.explanation.find(on_time.record.trace_id.hex())[0].excess_s == 0


def test_requests_of_one_trace_are_found_together_the_earliest_first() -> None:
    world = World()
    trace = b"\7" * 16
    world.step([quick(n, 1001.0 - n / 10, trace_id=trace) for n in range(3)])
    for _ in range(10):
        world.step()
    found = world.explanation.find(trace.hex())
    assert [each.record.span_id[-1] for each in found] == [3, 2, 1]


def test_the_newest_slow_requests_come_first_and_the_log_has_all() -> None:
    world = hot()
    newest = world.explanation.newest()
    assert [each.record.request_id for each in newest] == [
        each.record.request_id for each in reversed(world.all) if each.excess_s > 0
    ]
    assert len(world.explanation.log) == len(world.all)


def test_what_is_kept_of_a_record_are_no_token_times_twice() -> None:
    for each in hot().explanation.newest():
        assert each.record.token_ns is None
        assert each.record.rank_steps == {}
        assert each.token_s is not None


def test_two_runs_say_the_same_to_the_last_bit() -> None:
    def told(world: World) -> tuple[list[Sample], list[str]]:
        return world.samples, [repr(each._replace(token_s=None)) for each in world.all]

    assert told(hot_world()) == told(hot())


# --- groups and models ------------------------------------------------------------------------------------------------


def test_two_replicas_of_a_model_are_explained_apart_and_counted_together() -> None:
    world = World(Saying(HOT))
    here = traffic(1000.0, 60.0, slower=HOT_TIME)
    there = traffic(1000.0, 60.0, gpus=["GPU-0001"], gap_s=0.03, seed=2)
    world.run([*here, *there], 75)
    world.check_conserved()
    assert {each.group.gpus for each in world.all if each.excess_s > 0.1} == {(GPU[1],)}
    last = [each for each in world.all if each.group.gpus == ("GPU-0001",)][-30]
    assert last.decode.expected_s == pytest.approx(3.0, rel=0.05)
    assert {labels[:2] for labels in world.values(EXPLAINED_REQUESTS)} == {("vllm", "m")}


def test_a_process_whose_gpus_cannot_be_told_any_more_is_still_the_server_it_was() -> None:
    # The driver is gone, or the GPU fell off the bus.
    world = World(Saying(HOT))
    bound, lost = Binding("resource", pid=42, gpus=(GpuUuid(GPU[1]),)), Binding("resource", pid=42)
    records = traffic(1000.0, 60.0, slower=HOT_TIME, binding=bound)
    records[180:] = traffic(1000.0, 60.0, slower=HOT_TIME, binding=lost)[180:]
    world.run(records, 75)
    assert len({each.group for each in world.all}) == 1
    assert world.seconds()["thermal_throttle"] > 10


HOLDS = (catalogue.PROCESS_GPU_MEMORY, ("0", GPU[1], "42", "VLLM::Worker", "", "", ""))


def started_anew(*, engines: int = 1, pid: str = "", away_s: int = 10, found_s: int = 0, **told: Any) -> World:
    """Engines of a model, whose processes are gone for a while; maybe another for a while; and then a request that is
    bound to no GPU."""

    def holds(pid: str) -> None:
        world.stage.put({(HOLDS[0], (*gpu, pid, *HOLDS[1][3:])): 7e10 for gpu in (("0", GPU[1]), ("1", "GPU-0001"))})

    world = World()
    holds("42")
    world.step([quick(number, 1001.0, gpus=[f"GPU-000{number}"]) for number in range(engines)])
    world.step()
    if pid != "42":
        world.stage.drop(catalogue.PROCESS_GPU_MEMORY)
    for _ in range(away_s):
        world.step()
    if pid:
        holds(pid)
    for _ in range(found_s):
        world.step()
    world.step([quick(9, world.stage.at_s, **({"gpus": []} | told))])
    for _ in range(12):
        world.step()
    return world


@pytest.mark.parametrize(
    "told",
    [{}, {"pid": "43", "found_s": 5}, {"binding": Binding("resource", pid=43), "gpus": None}],
    ids=["not found", "found, not bound", "bound, not found"],
)
def test_a_request_without_gpus_is_of_the_engine_that_has_just_been_started_anew(told: dict[str, Any]) -> None:
    world = started_anew(**told)
    assert [each.group.gpus for each in world.all] == [(GPU[1],), (GPU[1],)]


@pytest.mark.parametrize(
    "told",
    [{"pid": "42"}, {"engines": 2}, {"away_s": round(IDLE_S) + 5}, {"pid": "43", "found_s": round(ANEW_S) + 5}],
    ids=["no other process", "two engines", "long gone", "long there"],
)
def test_a_request_that_may_be_of_anybody_is_of_nobody(told: dict[str, Any]) -> None:
    world = started_anew(**told)
    assert world.all[-1].group.gpus == ()


def test_a_batch_is_as_large_as_the_servers_page_says() -> None:
    world = World()
    world.stage.put({(catalogue.SERVER_RUNNING, ("vllm", "m", "http://s")): 50.0})
    world.run(traffic(1000.0, 20.0), 30)
    (state,) = world.explanation._groups.values()
    running, _ = state.load.at(np.array([1010.0]))
    assert running[0] == pytest.approx(50.0, abs=2.0)


def test_a_process_that_never_was_on_a_gpu_is_a_server_of_its_own() -> None:
    world = World()
    world.step([quick(n, 1001.0, gpus=[], binding=Binding("resource", pid=n)) for n in (1, 2)])
    for _ in range(10):
        world.step()
    assert [each.group.pid for each in world.all] == ["1", "2"]


def test_models_beyond_the_limit_count_as_other_and_nothing_is_lost() -> None:
    world = World(models=2)
    for number in range(5):
        world.step([quick(number, world.stage.at_s, model=f"m{number}")])
    for _ in range(10):
        world.step()
    counted = world.values(EXPLAINED_REQUESTS)
    assert {labels[1] for labels in counted} == {"m0", "m1", "other"}
    assert sum(counted.values()) == 5
    world.step([quick(9, world.stage.at_s, model="m1"), quick(10, world.stage.at_s, model="m9", server="sglang")])
    assert {labels[:2] for labels in world.values(EXPLAINED_REQUESTS)} <= {
        *(("vllm", name) for name in ("m0", "m1", "other")),
        ("sglang", "other"),
    }


def test_a_model_with_an_endless_name_counts_as_other() -> None:
    world = World()
    world.step([quick(1, 1001.0, first_s=None, model="x" * 5000)])
    assert {labels[1] for labels in world.values(EXPLAINED_REQUESTS)} == {"other"}


def test_series_stay_within_their_budget_whatever_models_there_are() -> None:
    world = World(models=8)
    for number in range(60):
        world.step([quick(number, world.stage.at_s, model=f"m{number}", server=("vllm", "sglang", "tgi")[number % 3])])
    series = [sample for sample in world.samples if sample.metric is SLOW_TOKEN_SECONDS]
    assert len(series) <= catalogue.SLOW_TOKEN_SECONDS.budget * len(catalogue.CAUSES)


def test_groups_beyond_the_room_are_dropped_and_counted_until_one_is_idle() -> None:
    world = World()
    gpus = [f"GPU-{number:04d}" for number in range(GROUPS_MAX + 1)]
    world.step([quick(number, 1001.0, gpus=[uuid]) for number, uuid in enumerate(gpus)])
    for _ in range(12):
        world.step()
    assert world.outcomes() == {"cold": GROUPS_MAX, "dropped": 1.0}
    world.step([quick(99, world.stage.at_s, gpus=[gpus[-1]])])
    assert world.outcomes()["dropped"] == 2
    world.step(seconds=IDLE_S)
    world.step([quick(100, world.stage.at_s, gpus=[gpus[-1]])])
    for _ in range(12):
        world.step()
    assert world.outcomes() == {"cold": GROUPS_MAX + 1, "dropped": 2.0}


def test_a_group_that_makes_room_takes_no_request_with_it_uncounted() -> None:
    world = World(delay_s=60.0)
    world.step([quick(number, 1001.0, gpus=[f"GPU-{number:04d}"]) for number in range(GROUPS_MAX)])
    # The machine was suspended, or looks took long.
    world.stage.at_s += IDLE_S
    world.step([quick(99, world.stage.at_s, gpus=["GPU-new"])])
    for _ in range(70):
        world.step()
    assert sum(world.outcomes().values()) == GROUPS_MAX + 1


def unplaced(number: int, at_s: float) -> RequestRecord:
    """A request of a model of its own that says nothing of where it ran."""
    return quick(number, at_s, gpus=[], model=f"name-{number}")


def test_names_that_nobody_can_place_do_not_crowd_out_engines() -> None:
    world = World()
    for number in range(10):
        world.step([unplaced(10 * number + each, world.stage.at_s) for each in range(10)])
    world.step([quick(999, world.stage.at_s, gpus=[f"GPU-{number:04d}"]) for number in range(GROUPS_MAX)])
    for _ in range(12):
        world.step()
    bound = [each for each in world.all if each.group.gpus]
    assert len(bound) == GROUPS_MAX
    assert {each.group.model for each in world.all if not each.group.gpus} == {
        f"name-{number}" for number in range(UNBOUND_MAX)
    }
    assert sum(world.outcomes().values()) == 100 + GROUPS_MAX


def test_what_had_no_room_is_told_by_the_time_it_came() -> None:
    world = World()
    for number in range(UNBOUND_MAX + 5):
        world.step([unplaced(number, world.stage.at_s)])
    first_s = 1000.0 + UNBOUND_MAX - 1.0  # each of them lasted a second
    assert [world.explanation.dropped(first_s + after_s) for after_s in (-10.0, 0.5, 3.5, 100.0)] == [5, 4, 1, 0]


# --- incidents --------------------------------------------------------------------------------------------------------


def incident(entity: Entity, since_s: float = 1040.0, kind: str = "thermal_throttle") -> Incident:
    return Incident(kind, kind, entity, Severity.WARNING, since_s, since_s, since_s, "hot", (), "Cool it.")


GPU_ENTITY = Entity("gpu", "gpu 0", "0", GPU[1])


@pytest.mark.parametrize(
    "entity", [GPU_ENTITY, Entity("server", "vllm/m"), Entity("server", "vllm/m at 127.0.0.1:8000"), Entity("host", "")]
)
def test_an_incident_is_told_what_its_requests_lost_to_what(entity: Entity) -> None:
    world = World(Saying(HOT))
    told = incident(entity)
    world.incidents.append(told)
    world.run(traffic(1000.0, 60.0, slower=HOT_TIME), 75)
    assert told.causes[0][0] == "thermal_throttle"
    assert [seconds for _, seconds in told.causes] == sorted((seconds for _, seconds in told.causes), reverse=True)
    assert sum(seconds for _, seconds in told.causes) == pytest.approx(
        sum(each.excess_s for each in world.all), rel=0.05
    )


def test_an_incident_is_told_which_tenants_lost_how_much_and_of_how_many_requests_that_is_known() -> None:
    world = World(Saying(HOT))
    told = incident(GPU_ENTITY)
    world.incidents.append(told)
    records = traffic(1000.0, 60.0, slower=HOT_TIME)
    for number, record in enumerate(records):
        record.tenant = ("acme", "zoo", "")[number % 3]
    world.run(records, 75)
    touched = [each for each in world.all if each.end_s >= told.since_s]
    assert told.explained == len(touched)
    late_s = dict.fromkeys(("acme", "zoo", ""), 0.0)
    for each in touched:
        late_s[each.record.tenant] += each.excess_s
    assert dict(told.late_by_tenant) == pytest.approx({"acme": late_s["acme"], "zoo": late_s["zoo"]})
    assert [*told.late_by_tenant] == sorted(told.late_by_tenant, key=lambda each: -each[1])


def test_any_number_of_tenants_of_an_incident_is_bounded() -> None:
    world = World(Saying(HOT))
    told = incident(GPU_ENTITY)
    world.incidents.append(told)
    records = traffic(1000.0, 60.0, slower=HOT_TIME)
    for number, record in enumerate(records):
        record.tenant = f"t{number}"
    world.run(records, 75)
    assert len(told.late_by_tenant) == TENANTS_MAX + 1
    assert told.late_by_tenant[0][0] == "other"
    assert sum(seconds for _, seconds in told.late_by_tenant) == pytest.approx(sum(s for _, s in told.causes))


def test_what_an_incident_names_is_held() -> None:
    world = World(Saying(HOT))
    told = incident(GPU_ENTITY)
    records = traffic(1000.0, 60.0, slower=HOT_TIME)
    told.traces, told.spans = (records[3].trace_id.hex(),), (records[3].span_id.hex(),)
    world.incidents.append(told)
    world.run(records, 75)
    assert world.explanation.details.holds(told.traces[0], told.spans[0])


def test_an_incident_of_something_else_or_of_another_time_is_told_nothing() -> None:
    world = World(Saying(HOT))
    elsewhere = incident(Entity("gpu", "gpu 1", "1", "GPU-0001"), kind="power_throttle")
    before = incident(GPU_ENTITY, 1000.0, "xid_error")
    before.closed_s, before.seen_s = 1020.0, 1010.0
    world.incidents += [elsewhere, before]
    world.run(traffic(1000.0, 60.0, slower=HOT_TIME), 75)
    assert elsewhere.causes == ()
    assert sum(seconds for _, seconds in before.causes) < 0.5


def test_an_incident_that_is_forgotten_is_forgotten_here_too() -> None:
    world = World(Saying(HOT))
    first = incident(GPU_ENTITY)
    world.incidents.append(first)
    world.run(traffic(1000.0, 60.0, slower=HOT_TIME), 75)
    assert first.causes
    world.incidents.clear()
    world.step()
    again = incident(GPU_ENTITY, 1080.0)
    world.incidents.append(again)
    world.run(traffic(1080.0, 20.0, seed=9), 40)
    assert sum(seconds for _, seconds in again.causes) < 1.0


# --- with detection ---------------------------------------------------------------------------------------------------


class Looker:
    """What looks after the detectors; remembers the incidents that it was told of."""

    def __init__(self) -> None:
        self.seen: list[list[tuple[str, bool]]] = []

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> list[Sample]:
        self.seen.append([(each.entity.name, each.is_open) for each in incidents])
        return [Sample(catalogue.DETECTOR_FAILURES, ("explain_pcie",), float(len(self.seen)))]


def test_what_looks_after_the_detectors_sees_their_incidents_at_once_and_its_samples_are_published() -> None:
    looker, detector, store = Looker(), Scripted(), Store()
    ledger = Ledger(Scripted.kinds, to_unix)
    detection = Detection((detector,), ledger, SceneMaker(lambda ns: ns / 1e9), store.view, looker.look)
    assert Sample(catalogue.DETECTOR_FAILURES, ("explain_pcie",), 1.0) in detection.read(1001.0)
    detector.script = [finding(since_s=1001.0)]
    detection.read(1002.0)
    detector.script = []
    detection.read(1003.0)
    detection.read(1030.0)
    detection.read(1300.0)
    detection.read(1500.0)
    opened, closed = [("gpu 3", True)], [("gpu 3", False)]
    assert looker.seen == [[], opened, opened, closed, closed, []]


def test_causes_that_explanation_finds_are_on_the_incidents_that_others_ask_for() -> None:
    explanation = Explanation([Saying(HOT)])
    detector, store = Scripted(), Store()
    ledger = Ledger(Scripted.kinds, to_unix)
    detection = Detection((detector,), ledger, SceneMaker(lambda ns: ns / 1e9), store.view, explanation.look)
    records = traffic(1000.0, 60.0, slower=HOT_TIME)
    for second in range(75):
        at_s = 1001.0 + second
        detection.offer_requests([each for each in records if (at_s - 1) * NS < each.end_ns <= at_s * NS])
        entity = Entity("gpu", "gpu 0", "0", GPU[1])
        detector.script = [finding(entity=entity, since_s=1040.0)] if 1042 <= at_s <= 1050 else []
        samples = detection.read(at_s)
    (told,) = detection.incidents()
    assert told.causes[0][0] == "thermal_throttle"
    assert SLOW_TOKEN_SECONDS in {each.metric for each in samples if isinstance(each, Sample)}


def test_recent_incidents_are_those_open_or_closed_since_and_no_copies() -> None:
    stage = Stage()
    ledger = Ledger(Scripted.kinds, to_unix)
    for number in range(5):
        entity = Entity("gpu", f"gpu {number}", str(number), f"GPU-{number:04d}")
        ledger.step([finding(entity=entity, since_s=stage.at_s)], stage.step())
        stage.at_s += 99.0
        ledger.step([], stage.step())
    stage.at_s += 5.0
    ledger.step([finding(entity=GPU3, since_s=stage.at_s)], stage.step())
    recent = ledger.recent(stage.at_s - 250.0)
    assert [(each.entity.name, each.is_open) for each in recent] == [
        *(("gpu 2", False), ("gpu 3", False), ("gpu 4", False)),
        ("gpu 3", True),
    ]
    recent[-1].causes = (("pcie", 1.0),)
    assert ledger.incidents()[0].causes == (("pcie", 1.0),)
