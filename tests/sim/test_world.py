from __future__ import annotations

import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.sim.scenario import load_scenario
from gpumon.sim.state import LOOK_BACK_S, Rate
from gpumon.sim.world import World
from tests.sim.runs import STARTED_S, run, world

DEMO = Path(__file__).resolve().parent.parent.parent / "gpumon" / "sim" / "demo.yaml"
FAULTS = (
    "kind: page_faults, at_s: 5, for_s: 30, server: a, strength: 20000",
    "kind: thermal_throttle, at_s: 5, for_s: 25, gpu: 1",
    "kind: xid, at_s: 32, gpu: 2",
    "kind: short_job, at_s: 20, for_s: 10, gpu: 0",
)

_DIGEST = f"""
import hashlib
from pathlib import Path
from gpumon.sim.scenario import load_scenario
from gpumon.sim.state import Rate
from gpumon.sim.world import World
world = World(load_scenario(Path({str(DEMO)!r})), started_at_s={STARTED_S})
digest = hashlib.sha256(repr((world.boards, world.pods)).encode())
for step in range(30):
    at_s = {STARTED_S} + step * 3.37
    for board in world.boards:
        moment = world.gpu(board.index, at_s)
        digest.update(repr([(moment.rate(r), moment.total(r)) for r in Rate]).encode())
        digest.update(repr((moment.temperature_c, moment.clock_mhz, moment.reasons)).encode())
    digest.update(repr((world.tasks(at_s), world.host(at_s), world.server_state(0, at_s))).encode())
    digest.update(repr((world.take_requests(at_s), world.take_collectives(at_s))).encode())
print(digest.hexdigest())
"""


def demo() -> World:
    return World(load_scenario(DEMO), started_at_s=STARTED_S)


def _digest(hash_seed: str) -> str:
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", _DIGEST], env=environment, capture_output=True, check=True, text=True
    ).stdout


def test_another_process_sees_the_same_node() -> None:
    first, second = _digest("1"), _digest("2")
    assert len(first.strip()) == 64
    assert first == second


def _snapshot(node: World, at_s: float) -> list[object]:
    """Everything that may be asked at a moment, but for what is told once."""
    tasks = node.tasks(at_s)
    moments = [node.gpu(board.index, at_s) for board in node.boards]
    return [
        [[(moment.rate(rate), moment.total(rate)) for rate in Rate] for moment in moments],
        [(moment.temperature_c, moment.clock_mhz, moment.reasons) for moment in moments],
        [node.hardware(board.index, at_s) for board in node.boards],
        tasks,
        [(node.task_times(task, at_s), node.remote_share(task, at_s)) for task in tasks],
        [node.cgroup(pod, at_s) for pod in node.pods],
        node.host(at_s),
        [node.server_state(index, at_s) for index in range(len(node.servers))],
        node.driver(at_s),
    ]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(-1.0, 60.0), min_size=1, max_size=12))
def test_who_asks_and_when_changes_nothing(asked: list[float]) -> None:
    patient, nosy = world(*FAULTS), world(*FAULTS)
    for story_s in sorted(asked):
        _snapshot(nosy, STARTED_S + story_s)
        nosy.take_requests(STARTED_S + story_s - 0.5)
    assert _snapshot(nosy, STARTED_S + 60.0) == _snapshot(patient, STARTED_S + 60.0)


def test_the_present_may_be_asked_for_again_for_half_a_minute() -> None:
    node = world(*FAULTS)
    then = [_snapshot(node, STARTED_S + 10.0 + tenth / 10) for tenth in range(20)]
    node.gpu(0, STARTED_S + 10.0 + LOOK_BACK_S)
    assert [_snapshot(node, STARTED_S + 10.0 + tenth / 10) for tenth in range(20)] == then


def test_an_older_moment_is_answered_by_the_oldest_that_is_kept() -> None:
    node = world()
    node.gpu(0, STARTED_S + 100)
    assert node.gpu(0, STARTED_S).total(Rate.POWER) == node.gpu(0, STARTED_S + 50).total(Rate.POWER)
    assert node.gpu(0, STARTED_S + 99).total(Rate.POWER) > node.gpu(0, STARTED_S + 50).total(Rate.POWER)


def test_a_moment_long_before_the_story_is_answered_too() -> None:
    node = world()
    early = _snapshot(node, STARTED_S - 4_000.0)
    assert early[0] == _snapshot(node, STARTED_S - 3_000.0)[0]
    assert node.gpu(0, STARTED_S).total(Rate.POWER) > node.gpu(0, STARTED_S - 300).total(Rate.POWER) > 0


def test_another_seed_is_another_node_and_the_start_moves_all_times() -> None:
    scenario = world(arrivals="{per_s: 1.5}").scenario
    first, again, other = (World(scenario, started_at_s=STARTED_S, seed=seed) for seed in (1, 1, 2))
    later = World(scenario, started_at_s=STARTED_S + 1000.0, seed=1)
    assert first.boards == again.boards != other.boards
    rows = first.take_requests(STARTED_S + 20)
    assert rows == again.take_requests(STARTED_S + 20) != other.take_requests(STARTED_S + 20)
    moved = later.take_requests(STARTED_S + 1020)
    assert [row.start_s - 1000.0 for row in moved] == pytest.approx([row.start_s for row in rows])
    assert [row.prompt_tokens for row in moved] == [row.prompt_tokens for row in rows]


def test_counters_never_fall_while_their_process_lives() -> None:
    node = world(*FAULTS, "kind: memory_pressure, at_s: 40, for_s: 10, server: a, strength: 0.4")
    seen: dict[object, tuple[float, ...]] = {}
    for step in range(700):
        at_s = STARTED_S + step * 0.0937
        host = node.host(at_s)
        now: dict[object, tuple[float, ...]] = {
            "host": (host.minor_faults, host.major_faults, host.swap_in_pages, host.swap_out_pages, host.numa_misses,
                     host.numa_hits, *host.cpu, *host.memory, *host.io),
        }  # fmt: skip
        for pod in node.pods:
            row = node.cgroup(pod, at_s)
            now["cgroup", pod] = (row.user_s, row.system_s, row.throttled_s, *row.cpu, *row.memory, *row.io)
        for task in node.tasks(at_s):
            now[task.pid, task.began_s] = tuple(node.task_times(task, at_s))
        for board in node.boards:
            moment = node.gpu(board.index, at_s)
            now["gpu", board.index] = tuple([moment.total(rate) for rate in Rate])
        for key, values in now.items():
            assert all(value >= 0 for value in values), key
            for before, after in zip(seen.get(key, values), values, strict=True):
                assert after >= before, key
        seen.update(now)


def test_the_host_counts_at_least_what_its_processes_do_and_a_cgroup_what_they_use() -> None:
    node = world(*FAULTS)
    at_s = STARTED_S + 30.0
    times = {task.pid: (task, node.task_times(task, at_s)) for task in node.tasks(at_s)}
    assert node.host(at_s).major_faults >= sum(row.major_faults for _, row in times.values())
    mine = [row for task, row in times.values() if task.server == "a"]
    group = node.cgroup("a", at_s)
    assert group.user_s == pytest.approx(sum(row.user_s for row in mine), rel=1e-6)
    assert group.system_s == pytest.approx(sum(row.system_s for row in mine), rel=1e-6)
    assert all(0 <= row.full_s <= row.some_s for row in (group.cpu, group.memory, group.io))


def test_an_unknown_pod_is_an_error() -> None:
    with pytest.raises(KeyError):
        world().cgroup("b", STARTED_S)


def test_a_server_that_starts_anew_has_new_processes_that_count_from_the_start() -> None:
    node = world("kind: xid, at_s: 30, gpu: 1", "kind: xid, at_s: 80, gpu: 1")
    lives = [
        {task.pid: task for task in node.tasks(STARTED_S + second) if task.server == "a"} for second in (29, 70, 120)
    ]
    assert [len(life) for life in lives] == [6, 6, 6]
    assert not lives[0].keys() & lives[1].keys()
    assert not lives[1].keys() & lives[2].keys()
    assert not [task for task in node.tasks(STARTED_S + 31) if task.server == "a"]
    worker = next(task for task in lives[1].values() if task.gpu == 0)
    assert worker.began_s == STARTED_S + 32
    times = node.task_times(worker, STARTED_S + 40.0)
    assert 0 < times.user_s < 15


def test_the_same_tuple_of_processes_is_given_while_nothing_changes() -> None:
    node = world(*FAULTS)
    assert node.tasks(STARTED_S + 1) is node.tasks(STARTED_S + 15)
    assert node.tasks(STARTED_S + 15) is not node.tasks(STARTED_S + 21)


def test_memory_of_every_gpu_suffices_for_its_processes() -> None:
    node = demo()
    for second in range(0, 600, 7):
        tasks = node.tasks(STARTED_S + second)
        assert len({task.pid for task in tasks}) == len(tasks)
        for board in node.boards:
            held = sum(task.gpu_mib for task in node.gpu_tasks(board.index, STARTED_S + second))
            assert held + 512 + node.model.reserved_mib < node.model.memory_mib


def test_boards_and_pods_are_told_apart() -> None:
    node = demo()
    assert len({board.uuid for board in node.boards}) == len({board.bdf for board in node.boards}) == 8
    assert [board.node for board in node.boards] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(node.pods) == {"llama-70b-0", "qwen-235b-0", "job"}
    assert len({pod.cgroup for pod in node.pods.values()}) == 3


def test_requests_and_collectives_are_told_once_each_in_the_order_of_time() -> None:
    dense, sparse = world(), world()
    rows, steps = [], []
    for tenth in range(300):
        rows.append(dense.take_requests(STARTED_S + tenth / 10))
        steps.append(dense.take_collectives(STARTED_S + tenth / 10))
        assert all(row.end_s <= STARTED_S + tenth / 10 for row in rows[-1])
    assert [row for part in rows for row in part] == sparse.take_requests(STARTED_S + 29.9)
    assert [step for part in steps for step in part] == sparse.take_collectives(STARTED_S + 29.9)
    assert sparse.take_requests(STARTED_S + 29.9) == []
    ends = [row.end_s for part in rows for row in part]
    assert ends == sorted(ends)
    assert min(ends) > STARTED_S


def test_what_nobody_takes_is_forgotten_and_counted() -> None:
    node = world(arrivals="{process: constant, per_s: 8}", outputs="{mean: 1000, spread: 0}", server="max_batch: 256")
    node.gpu(0, STARTED_S + 150.0)
    assert node.dropped > 100
    rows = node.take_requests(STARTED_S + 150.0)
    assert 0 < sum(len(row.token_s) for row in rows) <= 400_000
    assert max(row.end_s for row in rows) > STARTED_S + 149
    assert len(node.take_collectives(STARTED_S + 150.0)) <= 20_000
    before = node.dropped
    assert run(node, 151.0).requests
    assert node.dropped == before


def test_a_story_that_repeats_tells_its_faults_again() -> None:
    node = world("kind: xid, at_s: 10, gpu: 1, strength: 63", "kind: power_brake, at_s: 20, for_s: 5, gpu: 0",
                 duration_s="40", repeat="true")  # fmt: skip
    assert [round(event.at_s - STARTED_S, 3) for event in node.xids(STARTED_S - 1, STARTED_S + 120)] == [10, 50, 90]
    reasons = [node.gpu(0, STARTED_S + second).reasons for second in (19, 22, 26, 62, 66, 102)]
    assert [bool(reason) for reason in reasons] == [False, True, False, True, False, True]


def test_a_story_that_does_not_repeat_goes_on_without_faults() -> None:
    node = world("kind: power_brake, at_s: 20, for_s: 5, gpu: 0", duration_s="40")
    assert [bool(node.gpu(0, STARTED_S + second).reasons) for second in (22, 62, 102)] == [True, False, False]
    assert run(node, 110.0).tokens(95, 105) > 100


def test_a_restart_that_outlasts_the_story_goes_on_in_the_next() -> None:
    node = world("kind: xid, at_s: 35, gpu: 1", duration_s="40", repeat="true")
    mib = [next(task.gpu_mib for task in node.tasks(STARTED_S + s) if task.gpu == 0) for s in (38, 41, 44, 46, 49)]
    assert all(later > sooner for sooner, later in pairwise(mib))
    assert node.tasks(STARTED_S + 49) is node.tasks(STARTED_S + 70)
    before, after = ({task.pid for task in node.tasks(STARTED_S + s) if task.gpu == 0} for s in (70, 90))
    assert before != after


def test_a_node_without_servers_idles() -> None:
    node = World(world().scenario.model_copy(update={"servers": (), "load": (), "faults": ()}), started_at_s=STARTED_S)
    _snapshot(node, STARTED_S + 5)
    assert node.gpu(0, STARTED_S + 5).reasons == 0x1
    assert node.take_requests(STARTED_S + 5) == []
    assert node.gpu_tasks(0, STARTED_S + 5) == []


def test_threads_may_ask_at_the_same_time() -> None:
    node, alone = world(*FAULTS), world(*FAULTS)
    wrong: list[object] = []

    def ask(shift_s: float) -> None:
        for step in range(150):
            at_s = STARTED_S + shift_s + step * 0.2
            moment = node.gpu(1, at_s)
            if not 0 <= moment.rate(Rate.SM) <= 1 or node.host(at_s).major_faults < 0:
                wrong.append(at_s)

    threads = [threading.Thread(target=ask, args=(shift / 10,)) for shift in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert _snapshot(node, STARTED_S + 40) == _snapshot(alone, STARTED_S + 40)


def test_the_demo_tells_its_story_and_is_quiet_in_between() -> None:
    node = demo()
    throttled: set[tuple[int, int]] = set()
    waiting: set[int] = set()
    remote: set[int] = set()
    faulted: set[int] = set()
    errors: set[int] = set()
    late: set[int] = set()
    majors = node.host(STARTED_S).major_faults
    tokens = 0
    for second in range(300):
        at_s = STARTED_S + second
        throttled.update((second, board.index) for board in node.boards if node.gpu(board.index, at_s).reasons & 0x2EC)
        if node.server_state(0, at_s).waiting + node.server_state(1, at_s).waiting > 3:
            waiting.add(second)
        if any(node.remote_share(task, at_s) > 0.3 for task in node.tasks(at_s)):
            remote.add(second)
        if (count := node.host(at_s).major_faults) - majors > 100:
            faulted.add(second)
        majors = count
        for row in node.take_requests(at_s):
            tokens += len(row.token_s)
            if row.outcome != "ok":
                errors.add(second)
        steps = [step for step in node.take_collectives(at_s) if step.server == 1]
        waits = [(max(step.start_s) - min(step.start_s)) / (step.end_s - min(step.start_s)) for step in steps]
        if sum(waits) > 0.6 * len(waits) > 0:
            late.add(second)
    assert {gpu for _, gpu in throttled} == {3}
    assert 42 <= min(second for second, _ in throttled) <= 55
    assert 76 <= max(second for second, _ in throttled) <= 82
    assert faulted <= {*range(102, 124), *range(280, 292)}  # and the weights of the server that starts anew
    assert len(faulted & {*range(102, 124)}) >= 4
    assert remote == set(range(150, 172))
    assert waiting <= {*range(98, 126), *range(192, 236), *range(278, 300)}
    assert len(waiting & {*range(192, 236)}) > 15
    assert min(errors) == max(errors) == 279
    assert {*range(232, 256)} <= late <= {*range(230, 259)}
    assert 500 < tokens / 300 < 800
