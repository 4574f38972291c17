"""What a fault leaves to see on the hardware, in the driver, on the host and in the server's own counters."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpumon.sim.faults import KINDS, Target
from gpumon.sim.state import Rate
from gpumon.sim.world import World
from tests.sim.runs import STARTED_S, Run, grown, run, top, truth, world

# --- hardware ---------------------------------------------------------------------------------------------------------


def fault(kind: str, strength: float) -> str:
    return f"kind: {kind}, at_s: 10, for_s: 20, gpu: 1, strength: {strength}"


@pytest.mark.parametrize(
    ("kind", "strength", "field", "values"),
    [
        ("pcie_degraded", 2, "pcie_generation", (5, 3, 5)),
        ("pcie_degraded", 6, "pcie_width", (16, 4, 16)),
        ("nvlink_degraded", 6, "nvlinks_active", (18, 12, 18)),
        ("nvlink_degraded", 6, "nvlink_errors", (0, 2400, 4800)),
        ("ecc_corrected", 2, "ecc_corrected", (0, 20, 40)),
        ("ecc_uncorrected", 3, "ecc_uncorrected", (0, 3, 3)),
        ("ecc_uncorrected", 3, "recovery_action", (0, 1, 0)),
        ("row_remap_pending", 2, "row_remap_pending", (False, True, False)),
        ("row_remap_pending", 2, "rows_remapped", ((0, 0), (0, 0), (0, 2))),
        ("row_remap_failed", 1, "row_remap_failed", (False, True, False)),
        ("gpu_lost", 1, "present", (True, False, True)),
    ],
)
def test_hardware_before_during_and_after(kind: str, strength: float, field: str, values: tuple[object, ...]) -> None:
    node = world(fault(kind, strength))
    for second, value in zip((5, 20, 40), values, strict=True):
        assert getattr(node.hardware(1, STARTED_S + second), field) == value
        assert getattr(node.hardware(0, STARTED_S + second), field) == values[0]


def test_a_degraded_link_sends_packets_again() -> None:
    node = world(fault("pcie_degraded", 2))
    counts = [node.hardware(1, STARTED_S + second).pcie_replays for second in (5, 20, 40, 60)]
    assert counts[0] < counts[1] < counts[2] == counts[3]


@pytest.mark.parametrize(
    ("kind", "strength", "xids"),
    [
        ("xid", 31, [(10.0, 31)]),
        ("ecc_uncorrected", 1, [(10.0, 48), (10.2, 94)]),
        ("row_remap_pending", 1, [(10.0, 63)]),
        ("row_remap_failed", 1, [(10.0, 64)]),
        ("gpu_lost", 1, [(10.0, 79)]),
        ("thermal_throttle", 0.5, []),
    ],
)
def test_the_driver_reports_xids_once_each(kind: str, strength: float, xids: list[tuple[float, int]]) -> None:
    node = world(fault(kind, strength))
    events = node.xids(STARTED_S - 100, STARTED_S + 100)
    assert [(round(event.at_s - STARTED_S, 3), event.gpu, event.xid) for event in events] == [
        (at_s, 1, xid) for at_s, xid in xids
    ]
    parts = [node.xids(STARTED_S + tenth / 10, STARTED_S + (tenth + 1) / 10) for tenth in range(-10, 300)]
    assert [event for part in parts for event in part] == events


def _outcomes(found: Run) -> dict[str, int]:
    return {outcome: sum(row.outcome == outcome for row in found.requests) for outcome in ("ok", "error", "aborted")}


@pytest.mark.parametrize(
    "words", ["xid, strength: 31, gpu: 1", "ecc_uncorrected, gpu: 1", "gpu_lost, gpu: 1, for_s: 8"]
)
def test_an_error_that_ends_the_process_fails_its_requests_and_starts_it_anew(words: str) -> None:
    node = world(f"kind: {words}, at_s: 40")
    found = run(node, 90.0)
    failed = [row for row in found.requests if row.outcome == "error"]
    assert 2 <= len(failed) <= 10
    assert all(39.8 <= row.end_s - STARTED_S <= 41 for row in failed)
    before = {task.pid for task in node.tasks(STARTED_S + 39) if task.server == "a"}
    after = {task.pid for task in node.tasks(STARTED_S + 80) if task.server == "a"}
    assert len(before) == len(after) == 6
    assert not before & after
    late = [row for row in found.between(45, 89) if row.queue_s > 2]
    assert late
    assert top(truth(late, first=True)) == "gpu_error"
    state = node.server_state(0, STARTED_S + 90)
    assert state.generation_tokens < 400 * 40


def test_an_xid_that_ends_nothing_costs_nothing() -> None:
    found = run(world("kind: xid, at_s: 40, gpu: 1, strength: 63"), 60.0)
    assert _outcomes(found)["error"] == 0


def test_a_restart_of_the_driver_takes_all_servers_with_it() -> None:
    node = world("kind: driver_restart, at_s: 40, for_s: 6")
    assert [node.driver(STARTED_S + second) for second in (39, 41, 47)] == ["loaded", "unloaded", "loaded"]
    assert not [task for task in node.tasks(STARTED_S + 43) if task.gpu is not None]
    assert _outcomes(run(node, 60.0))["error"] > 0


def test_a_mismatch_of_the_driver_harms_no_server() -> None:
    node = world("kind: driver_mismatch, at_s: 40, for_s: 10")
    assert [node.driver(STARTED_S + second) for second in (39, 41, 51)] == ["loaded", "mismatch", "loaded"]
    assert _outcomes(run(node, 60.0))["error"] == 0


def test_a_server_that_warms_up_pages_its_weights_in_first() -> None:
    node = world("kind: warm_up, at_s: 20, for_s: 15, server: a")
    found = run(node, 50.0)
    assert min(row.token_s[0] for row in found.requests if row.start_s > STARTED_S + 20) > STARTED_S + 35
    worker = next(task for task in node.tasks(STARTED_S + 33) if task.gpu == 0)
    faults = node.task_times(worker, STARTED_S + 34).major_faults - node.task_times(worker, STARTED_S + 30).major_faults
    assert faults == pytest.approx(4 * 1500, rel=0.02)
    memory = [next(t.gpu_mib for t in node.tasks(STARTED_S + s) if t.gpu == 0) for s in (21, 27, 33, 40)]
    assert memory == sorted(memory)
    assert memory[0] < 0.3 * memory[-1]
    assert node.gpu(0, STARTED_S + 30).rate(Rate.PCIE_RX) > 1e9


# --- host -------------------------------------------------------------------------------------------------------------


def _host(node: World, second: float) -> dict[str, float]:
    at_s = STARTED_S + second
    host, group = node.host(at_s), node.cgroup("a", at_s)
    worker = next(task for task in node.tasks(at_s) if task.gpu == 0)
    times = node.task_times(worker, at_s)
    return {
        "major": host.major_faults,
        "worker_major": times.major_faults,
        "wait": times.wait_s,
        "swap": host.swap_in_pages + host.swap_out_pages,
        "throttled": group.throttled_s,
        "cpu": group.cpu.some_s,
        "memory": group.memory.some_s,
        "io": group.io.some_s,
        "host_memory": host.memory.some_s,
        "misses": host.numa_misses,
        "oom": host.oom_kills,
    }


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        ("page_faults, strength: 30000", {"major": 100, "worker_major": 100, "memory": 0.005, "host_memory": 0.005}),
        (
            "memory_pressure, strength: 0.5",
            {"memory": 0.4, "host_memory": 0.4, "swap": 1500, "worker_major": 60, "io": 0.1},
        ),
        ("cpu_starvation, strength: 0.7", {"wait": 0.4, "throttled": 0.4, "cpu": 0.6}),
        ("numa_remote, strength: 0.9", {"misses": 4000}),
    ],
)
def test_the_host_shows_what_slows_its_processes(words: str, rates: dict[str, float]) -> None:
    node = world(f"kind: {words}, at_s: 40, for_s: 30, server: a")
    node.gpu(0, STARTED_S + 40)
    marks = [_host(node, second) for second in (20.0, 40.0, 50.0, 60.0)]
    for name, least in rates.items():
        assert (marks[1][name] - marks[0][name]) / 20 < 0.35 * least, name
        assert (marks[3][name] - marks[1][name]) / 20 > least, name


def test_the_kernel_kills_what_takes_too_much_memory() -> None:
    node = world("kind: memory_pressure, at_s: 40, for_s: 20, server: a, strength: 0.95")
    assert [node.host(STARTED_S + second).oom_kills for second in (45, 51)] == [0, 1]
    assert _outcomes(run(node, 60.0))["error"] > 0


def test_pages_on_the_other_node_are_the_struck_servers_only() -> None:
    node = world("kind: numa_remote, at_s: 40, for_s: 20, server: a, strength: 0.9")
    tasks = {task.server: task for task in node.tasks(STARTED_S)}
    assert node.remote_share(tasks["a"], STARTED_S + 50) == 0.9
    assert node.remote_share(tasks["a"], STARTED_S + 39) < 0.1
    assert node.remote_share(tasks[""], STARTED_S + 50) < 0.1


def test_stopped_processes_do_nothing_until_they_go_on() -> None:
    node = world("kind: process_stopped, at_s: 40, for_s: 3, server: a")
    pids = [task.pid for task in node.tasks(STARTED_S) if task.server == "a"]
    assert [node.task_stopped(pids[0], STARTED_S + second) for second in (39.9, 40.1, 42.9, 43.1)] == [
        *(False, True, True, False)
    ]
    assert not node.task_stopped(1, STARTED_S + 41)
    found = run(node, 60.0)
    assert found.tokens(40.2, 43.0) == 0
    longest = max(
        (later - sooner, row)
        for row in found.requests
        for sooner, later in zip(row.token_s, row.token_s[1:], strict=False)
    )
    assert longest[0] == pytest.approx(3.0, abs=0.1)
    assert dict(longest[1].truth)["process_stopped"] == pytest.approx(3.0, abs=0.1)
    assert grown(node, 0, Rate.BUSY, 40.2, 42.9) < 0.01


def test_another_process_holds_the_gpu_while_it_takes_its_time() -> None:
    node = world("kind: gpu_contention, at_s: 40, for_s: 20, gpu: 1", "kind: short_job, at_s: 50, for_s: 2, gpu: 3")
    assert [len(node.gpu_tasks(1, STARTED_S + second)) for second in (39, 41, 61)] == [1, 2, 1]
    assert [len(node.gpu_tasks(3, STARTED_S + second)) for second in (49, 51, 53)] == [1, 2, 1]
    assert [task.server for task in node.gpu_tasks(1, STARTED_S + 50)] == ["a", "job"]


def test_a_leaking_allocator_reserves_more_and_more() -> None:
    node = world("kind: allocator_leak, at_s: 40, for_s: 20, server: a, strength: 100")
    states = [node.server_state(0, STARTED_S + second) for second in (30, 50, 60, 65)]
    spare = [state.allocator_reserved_bytes - state.allocator_allocated_bytes for state in states]
    assert spare[1] - spare[0] == pytest.approx(1000 << 20, rel=0.01)
    assert spare[2] - spare[1] == pytest.approx(1000 << 20, rel=0.01)
    assert spare[3] == spare[2]


def test_passes_without_graphs_are_counted() -> None:
    node = world("kind: graph_fallback, at_s: 40, for_s: 20, server: a, strength: 0.5")
    states = [node.server_state(0, STARTED_S + second) for second in (30, 39.9, 59)]
    eager = [later.eager_passes - sooner.eager_passes for sooner, later in pairwise(states)]
    graph = [later.graph_passes - sooner.graph_passes for sooner, later in pairwise(states)]
    assert eager[0] == 0
    assert eager[1] == pytest.approx(graph[1], rel=0.15)


def test_every_fault_that_strikes_a_server_or_gpu_leaves_a_node_that_runs() -> None:
    for kind, row in KINDS.items():
        target = {
            Target.GPU: ", gpu: 1",
            Target.SERVER: ", server: a",
            Target.TENANT: ", tenant: acme",
            Target.NODE: "",
        }
        for strength in (row.low, row.high):
            node = world(f"kind: {kind}, at_s: 2, for_s: 4{target[row.target]}, strength: {strength}")
            made = [node.server_state(0, STARTED_S + second).generation_tokens for second in (30, 40)]
            assert made[1] > made[0], (kind, strength)
