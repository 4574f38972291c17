from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.sim.story import STORY_S, Kind, events
from gpumon.sim.workload import Rate
from gpumon.sim.world import MEMORY_MIB, RESERVED_MIB, World
from tests.sim.nodes import SEED, STARTED_S, world

_DIGEST = f"""
import hashlib
from gpumon.host.clock import ManualClock
from gpumon.sim.files import SimFiles
from gpumon.sim.workload import Rate
from gpumon.sim.world import World
world = World({SEED}, started_at_s={STARTED_S})
digest = hashlib.sha256(repr((world.boards, world.pods)).encode())
for step in range(60):
    at_s = {STARTED_S} + step * 11.37
    for board in world.boards:
        moment = world.gpu(board.index, at_s)
        digest.update(repr([(moment.rate(r), moment.total(r)) for r in Rate]).encode())
        digest.update(repr((moment.temperature_c, moment.clock_mhz, moment.reasons)).encode())
    digest.update(repr(world.tasks(at_s)).encode())
    files = SimFiles(world, ManualClock(at_s))
    for path in ("proc/vmstat", "proc/41402/stat", "sys/devices/system/node/node0/meminfo"):
        digest.update(files.read(path))
print(digest.hexdigest())
"""


def _digest(hash_seed: str) -> str:
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", _DIGEST], env=environment, capture_output=True, check=True, text=True
    ).stdout


def test_another_process_sees_the_same_node() -> None:
    first, second = _digest("1"), _digest("2")
    assert len(first.strip()) == 64
    assert first == second


@given(st.integers(0, 7), st.floats(-500, 9000))
def test_another_world_of_the_same_seed_and_start_is_the_same(gpu: int, story_s: float) -> None:
    at_s = STARTED_S + story_s
    mine, other = world().gpu(gpu, at_s), _TWIN.gpu(gpu, at_s)
    assert [mine.rate(rate) for rate in Rate] == [other.rate(rate) for rate in Rate]
    assert [mine.total(rate) for rate in Rate] == [other.total(rate) for rate in Rate]
    assert world().tasks(at_s) == _TWIN.tasks(at_s)


_TWIN = World(SEED, started_at_s=STARTED_S)


def test_boards_are_told_apart() -> None:
    boards = world().boards
    assert len({board.uuid for board in boards}) == 8
    assert len({board.bdf for board in boards}) == 8
    assert [board.node for board in boards] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert World(SEED + 1, gpus=1, started_at_s=0.0).boards[0].uuid != boards[0].uuid


def test_a_smaller_node_has_no_trace_of_the_other_gpus() -> None:
    small = World(SEED, gpus=2, started_at_s=STARTED_S)
    assert {task.gpu for task in small.tasks(STARTED_S + 160)} == {None, 0, 1}
    assert small.occurrences(Kind.XID, STARTED_S, STARTED_S + 1000) == []


@pytest.mark.parametrize("gpus", [0, 9])
def test_a_node_of_impossible_size_is_refused(gpus: int) -> None:
    with pytest.raises(ValueError, match="gpus"):
        World(SEED, gpus=gpus, started_at_s=0.0)


@given(st.floats(-500, 9000))
def test_pids_are_unique_and_every_gpu_is_held_within_its_memory(story_s: float) -> None:
    tasks = world().tasks(STARTED_S + story_s)
    assert len({task.pid for task in tasks}) == len(tasks)
    for gpu in range(8):
        held = [task for task in tasks if task.gpu == gpu]
        assert 1 <= len(held) <= 2
        assert sum(task.gpu_mib for task in held) + 512 + RESERVED_MIB < MEMORY_MIB
    assert all(task.began_s <= STARTED_S + story_s for task in tasks if task.server == "job")


def test_the_job_lives_when_the_story_says_as_another_process_each_time() -> None:
    (row,) = events(Kind.JOB)
    assert world().job(STARTED_S + row.start_s - 0.1) is None
    assert world().job(STARTED_S + row.end_s) is None
    first, second = (world().job(STARTED_S + cycle * STORY_S + row.start_s) for cycle in (0, 1))
    assert first is not None
    assert second is not None
    assert first.gpu == row.gpu
    assert first.pid != second.pid
    assert first.began_s == STARTED_S + row.start_s


def test_occurrences_are_told_once_each() -> None:
    (row,) = events(Kind.XID)
    due = [STARTED_S + cycle * STORY_S + row.start_s for cycle in range(3)]
    whole = world().occurrences(Kind.XID, STARTED_S - 50, STARTED_S + 3 * STORY_S)
    assert [at_s for at_s, _ in whole] == due
    parts = [world().occurrences(Kind.XID, STARTED_S + i * 7.0, STARTED_S + (i + 1) * 7.0) for i in range(130)]
    assert [at_s for part in parts for at_s, _ in part] == due
    assert world().occurrences(Kind.XID, due[0] - 1, due[0]) == [(due[0], row)]
    assert world().occurrences(Kind.XID, due[0], due[0] + 1) == []
