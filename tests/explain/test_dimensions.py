"""Signals by group: read from the families of a real store, one value a second."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Callable

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.explain.dimensions import DIMENSIONS, Dimensions
from gpumon.explain.group import Group
from gpumon.explain.group_room import GROUPS, IDLE_S
from gpumon.model import Metric
from tests.detect.scenes import BEGIN_S, Series, Stage, gpu

CONTAINER = "0123456789ab"
WORKER = ("10", "vllm", "", "", CONTAINER)
FRONT = ("11", "front", "", "", CONTAINER)
JOB = ("20", "python3", "", "", "ba9876543210")
PAIR = Group("vllm", "m", (gpu(0)[1], gpu(1)[1]), "", "")
POSITIONS = {dimension.name: position for position, dimension in enumerate(DIMENSIONS)}


class Node:
    """A stage with dimensions fed at every step."""

    def __init__(self, *groups: Group) -> None:
        self.stage = Stage()
        self.dimensions = Dimensions()
        self.groups = groups or (PAIR,)

    def run(self, seconds: int, each: Callable[[int], object] = lambda second: None, *, step_s: float = 1.0) -> None:
        for number in range(seconds):
            each(number)
            self.dimensions.feed(self.stage.step(step_s), self.groups)

    def own(self, *labels: tuple[str, ...], gib: float = 50.0, index: int = 0) -> None:
        """Processes that hold a GPU and are watched."""
        self.stage.put({(catalogue.PROCESS_GPU_MEMORY, (*gpu(index), *each)): gib * 2**30 for each in labels})
        self.stage.put({(catalogue.PROCESS_CPU_SECONDS, each): 1.0 for each in labels})

    def known(self, name: str, group: Group | None = None) -> dict[int, float]:
        """By second since the stage began."""
        seconds, values = self.dimensions.series(group or self.groups[0])
        row = values[POSITIONS[name]]
        return {int(s - BEGIN_S): round(float(v), 6) for s, v in zip(seconds, row, strict=True) if v == v}

    def values(self, name: str, group: Group | None = None) -> set[float]:
        return set(self.known(name, group).values())


def on_gpu(metric: Metric, index: int, *tail: str) -> Series:
    return (metric, (*gpu(index), *tail))


def test_the_table_is_fit_for_people_and_labels() -> None:
    names = [dimension.name for dimension in DIMENSIONS]
    assert 30 <= len(names) <= 40
    assert len(set(names)) == len(names)
    assert all(name.replace("_", "").isalnum() and name == name.lower() for name in names)
    for dimension in DIMENSIONS:
        assert (dimension.bound is None) == (dimension.healthy == "")
        assert dimension.title
        assert dimension.source.startswith("gpumon_")
        if dimension.bound is not None:
            sign = "" if dimension.healthy == "0" else "< " if dimension.high_is_bad else "> "
            if dimension.unit in ("ratio", "s/s"):
                assert dimension.healthy in (f"{sign}{100 * dimension.bound:g} %", "0")
            else:
                assert re.fullmatch(rf"{sign}{dimension.bound:g}( °C|/s)?", dimension.healthy)


def test_every_dimension_is_known_on_a_node_that_tells_all() -> None:
    node = Node()
    node.own(WORKER)
    page = ("vllm", "m", "http://a:1")
    gauges = {
        on_gpu(catalogue.GPU_UTILIZATION, 0): 0.5,
        on_gpu(catalogue.GPU_CLOCK, 0, "sm"): 1.4e9,
        on_gpu(catalogue.GPU_CLOCK_MAX, 0, "sm"): 2e9,
        on_gpu(catalogue.GPU_TEMPERATURE, 0, "gpu"): 60.0,
        on_gpu(catalogue.GPU_TEMPERATURE, 0, "memory"): 70.0,
        on_gpu(catalogue.GPU_TEMPERATURE_MARGIN, 0): 25.0,
        on_gpu(catalogue.GPU_POWER, 0, "average"): 350.0,
        on_gpu(catalogue.GPU_POWER_LIMIT, 0, "enforced"): 700.0,
        **{on_gpu(catalogue.GPU_MEMORY, 0, state): 4e10 for state in catalogue.GPU_MEMORY.values},
        (catalogue.PROCESS_GPU_SM, (*gpu(0), *WORKER)): 0.4,
        (catalogue.PROCESS_NUMA_LOCAL, (*gpu(0), *WORKER)): 0.9,
        (catalogue.SERVER_RUNNING, page): 8.0,
        (catalogue.SERVER_WAITING, page): 2.0,
        (catalogue.SERVER_KV_USAGE, page): 0.4,
        (catalogue.SERVER_EXPERT_BALANCE, page): 0.8,
    }
    counters = [
        *(on_gpu(metric, 0) for metric in (catalogue.GPU_SM_ACTIVE_SECONDS, catalogue.GPU_DRAM_ACTIVE_SECONDS)),
        on_gpu(catalogue.GPU_TENSOR_ACTIVE_SECONDS, 0),
        *(on_gpu(catalogue.GPU_THROTTLED_SECONDS, 0, reason) for reason in catalogue.THROTTLE_REASONS),
        *(
            on_gpu(metric, 0, way)
            for metric in (catalogue.GPU_PCIE_BYTES, catalogue.GPU_NVLINK_BYTES)
            for way in ["rx", "tx"]
        ),
        *((catalogue.PROCESS_PAGE_FAULTS, (*WORKER, kind)) for kind in ("major", "minor")),
        *((metric, WORKER) for metric in (catalogue.PROCESS_CPU_SECONDS, catalogue.PROCESS_RUNQUEUE_SECONDS)),
        *((metric, WORKER) for metric in (catalogue.PROCESS_CPU_THROTTLED, catalogue.PROCESS_STOPPED_SECONDS)),
        *((catalogue.PROCESS_PRESSURE, (*WORKER, what, "some")) for what in ("cpu", "memory", "io")),
        *((catalogue.HOST_PRESSURE, (what, "some")) for what in ("cpu", "memory", "io")),
        *((catalogue.HOST_PAGE_FAULTS, (kind,)) for kind in ("major", "minor")),
        *((catalogue.HOST_SWAP_PAGES, (way,)) for way in ("in", "out")),
        (catalogue.SERVER_PREEMPTIONS, page),
        (catalogue.SERVER_TOKENS, (*page, "generation")),
        *((catalogue.SERVER_GRAPH_PASSES, (*page, mode)) for mode in ("graph", "eager")),
    ]
    node.stage.put(gauges)
    node.run(20, lambda second: node.stage.grow(dict.fromkeys(counters, 0.25)))
    means = node.dimensions.means(PAIR, BEGIN_S, BEGIN_S + 20)
    told = {dimension.name: round(float(mean), 3) for dimension, mean in zip(DIMENSIONS, means, strict=True)}
    assert not [name for name, mean in told.items() if math.isnan(mean)]
    expected = {
        "sm_active": 0.25,
        "sm_clock": 0.7,
        "power": 0.5,
        "gpu_memory_used": 0.333,
        "thermal_throttled": 0.25,
        "hardware_throttled": 0.25,
        "nvlink": 0.5,
        "host_swap": 0.5,
        "eager_passes": 0.5,
        "other_sm": 0.0,
        "requests_waiting": 2.0,
        "numa_local": 0.9,
    }
    assert {name: told[name] for name in expected} == expected


def test_activity_is_the_mean_over_the_gpus_of_the_group_and_no_others() -> None:
    node = Node()
    busy = {on_gpu(catalogue.GPU_SM_ACTIVE_SECONDS, index): share for index, share in ((0, 0.2), (1, 0.6), (2, 1.0))}
    node.run(5, lambda second: node.stage.grow(busy))
    # The first step has nothing to compare with.
    assert node.known("sm_active") == {2: 0.4, 3: 0.4, 4: 0.4, 1: 0.4}


def test_the_worst_gpu_counts_for_heat_and_clocks() -> None:
    node = Node()
    for index, (celsius, hertz) in enumerate(((60.0, 2e9), (88.0, 1e9))):
        node.stage.put({on_gpu(catalogue.GPU_TEMPERATURE, index, "gpu"): celsius})
        node.stage.put({on_gpu(catalogue.GPU_TEMPERATURE, index, "memory"): 40.0})
        node.stage.put({on_gpu(catalogue.GPU_CLOCK, index, "sm"): hertz})
        node.stage.put({on_gpu(catalogue.GPU_CLOCK_MAX, index, "sm"): 2e9})
    node.run(3)
    assert (node.values("temperature"), node.values("memory_temperature")) == ({88.0}, {40.0})
    assert node.values("sm_clock") == {0.5}


def test_a_lost_gpu_leaves_the_others_and_all_lost_leave_nothing() -> None:
    node = Node()
    for index in (0, 1):
        node.stage.put({on_gpu(catalogue.GPU_TEMPERATURE, index, "gpu"): 50.0 + 10 * index}, owner=f"gpu {index}")
    node.run(5)
    node.stage.drop_owner("gpu 1")
    node.run(5)
    node.stage.drop_owner("gpu 0")
    node.run(10)
    known = node.known("temperature")
    assert [known[second] for second in (3, 8)] == [60.0, 50.0]
    assert max(known) == 11, "believed for two and a half seconds"


def test_a_silent_gpu_does_not_count_with_its_old_value() -> None:
    node = Node()
    for index in (0, 1):
        node.stage.put({on_gpu(catalogue.GPU_TEMPERATURE, index, "gpu"): 50.0 + 10 * index}, owner=f"gpu {index}")
    node.run(3)
    node.stage.silent.add("gpu 1")
    node.run(5)
    assert node.known("temperature")[7] == 50.0


def test_levels_of_five_seconds_hold_and_then_are_forgotten() -> None:
    node = Node()
    node.stage.put({on_gpu(catalogue.GPU_TEMPERATURE_MARGIN, 0): 30.0}, owner="slow")

    def every_five(second: int) -> None:
        (node.stage.silent.discard if second % 5 == 0 else node.stage.silent.add)("slow")

    node.run(21, every_five)
    assert sorted(node.known("temperature_margin")) == list(range(1, 22))
    node.stage.silent.add("slow")
    node.run(40)
    # Last read at 21, every 5 s: whole seconds up to 33.5.
    assert max(node.known("temperature_margin")) == 32


def test_steps_that_come_late_fill_what_counters_tell() -> None:
    node = Node()
    grow = {on_gpu(catalogue.GPU_SM_ACTIVE_SECONDS, 0): 1.2, on_gpu(catalogue.GPU_PCIE_BYTES, 0, "rx"): 4000.0}
    node.run(4, lambda second: node.stage.grow(grow), step_s=4.0)
    assert node.known("sm_active") == dict.fromkeys(range(4, 16), 0.3)
    assert node.values("pcie_received") == {1000.0}


def test_a_counter_that_began_anew_leaves_a_hole_and_nothing_negative() -> None:
    node = Node()
    series = on_gpu(catalogue.GPU_PCIE_BYTES, 0, "tx")
    node.run(4, lambda second: node.stage.grow({series: 100.0}))
    node.stage.put({series: 0.0})
    node.run(4, lambda second: node.stage.grow({series: 100.0}))
    known = node.known("pcie_sent")
    assert set(known.values()) == {100.0}
    assert 4 not in known


def test_repeated_counters_are_told_at_their_next_jump_of_the_time_before() -> None:
    node = Node()
    node.own(WORKER, FRONT)
    waits: dict[Series, float] = {(catalogue.PROCESS_RUNQUEUE_SECONDS, each): 0.0 for each in (WORKER, FRONT)}
    node.stage.put({**waits})
    node.stage.put({(catalogue.PROCESS_PRESSURE, (*each, "cpu", "some")): 0.0 for each in (WORKER, FRONT)})

    def read(second: int) -> None:
        if second % 5 == 4:
            node.stage.grow(dict.fromkeys(waits, 1.0))
            node.stage.grow({(catalogue.PROCESS_PRESSURE, (*WORKER, "cpu", "some")): 2.0})

    node.run(31, read)
    known = node.known("runqueue_wait")
    # Read at 5, 10, …, 30; both processes add up.
    assert {second: known[second] for second in range(10, 30)} == dict.fromkeys(range(10, 30), 0.4)
    assert 30 not in known
    assert node.known("cgroup_cpu_stalled")[20] == 0.4


def test_repeated_counters_that_rest_are_zero_until_they_may_have_been_read() -> None:
    node = Node()
    node.own(WORKER)
    series = (catalogue.PROCESS_CPU_THROTTLED, WORKER)
    node.stage.put({series: 3.0})
    node.run(20)
    assert node.values("cgroup_cpu_throttled") == {0.0}
    assert max(node.known("cgroup_cpu_throttled")) == 14, "five seconds before now"
    node.stage.grow({series: 2.5})
    node.run(1)
    known = node.known("cgroup_cpu_throttled")
    assert (known[13], known[14]) == (0.0, 0.0)
    assert {second: known[second] for second in range(16, 21)} == dict.fromkeys(range(16, 21), 0.5)
    node.run(20)
    known = node.known("cgroup_cpu_throttled")
    assert {known[second] for second in range(22, 34)} == {0.0}


def test_of_processes_of_one_cgroup_the_worst_counts_and_others_do_not() -> None:
    node = Node()
    node.own(WORKER, FRONT)
    node.own(JOB, gib=1.0)
    series = {each: (catalogue.PROCESS_PRESSURE, (*each, "memory", "some")) for each in (WORKER, FRONT, JOB)}
    node.stage.put(dict.fromkeys(series.values(), 0.0))

    def read(second: int) -> None:
        if second % 5 == 0:
            node.stage.grow({series[WORKER]: 1.0, series[FRONT]: 1.0, series[JOB]: 4.0})

    node.run(30, read)
    assert node.known("cgroup_memory_stalled")[20] == 0.2


def test_faults_of_the_servers_processes_add_up_without_those_of_others() -> None:
    node = Node()
    node.own(WORKER)
    node.own(JOB, gib=1.0)
    node.stage.put({(catalogue.PROCESS_CPU_SECONDS, FRONT): 1.0})
    faults: dict[Series, float] = {
        (catalogue.PROCESS_PAGE_FAULTS, (*each, "major")): 30.0 for each in (WORKER, FRONT, JOB)
    }
    node.run(4, lambda second: node.stage.grow(faults))
    assert node.values("major_faults") == {60.0}


def test_other_processes_on_the_gpus_are_the_largest_share_of_any() -> None:
    node = Node()
    for index, share in ((0, 0.1), (1, 0.35)):
        node.own(WORKER, index=index)
        node.own(JOB, gib=2.0, index=index)
        node.stage.put({(catalogue.PROCESS_GPU_SM, (*gpu(index), *WORKER)): 0.9})
        node.stage.put({(catalogue.PROCESS_GPU_SM, (*gpu(index), *JOB)): share})
    node.run(3)
    assert node.values("other_sm") == {0.35}


def test_heat_is_not_the_hardwares_slowdown() -> None:
    node = Node()
    seconds = {"hw_slowdown": 0.5, "hw_thermal": 0.4, "hw_power_brake": 0.05, "sw_power_cap": 0.7}
    grow = {on_gpu(catalogue.GPU_THROTTLED_SECONDS, 0, reason): amount for reason, amount in seconds.items()}
    node.run(3, lambda second: node.stage.grow(grow))
    assert node.values("hardware_throttled") == {0.1}
    assert node.values("thermal_throttled") == {0.4}
    assert node.values("power_throttled") == {0.7}


def test_shares_of_time_are_never_above_one() -> None:
    node = Node()
    grow = {
        on_gpu(catalogue.GPU_THROTTLED_SECONDS, 0, "sw_thermal"): 1.003,
        on_gpu(catalogue.GPU_DRAM_ACTIVE_SECONDS, 0): 1.02,
    }
    node.run(3, lambda second: node.stage.grow(grow))
    assert (node.values("thermal_throttled"), node.values("dram_active")) == ({1.0}, {1.0})


def test_power_is_the_average_where_there_is_one_over_the_limit_that_acts() -> None:
    node = Node()
    limits = {on_gpu(catalogue.GPU_POWER_LIMIT, index, "enforced"): 700.0 for index in (0, 1)}
    node.stage.put({**limits, on_gpu(catalogue.GPU_POWER_LIMIT, 0, "max"): 1000.0})
    node.stage.put({on_gpu(catalogue.GPU_POWER, 0, "average"): 350.0, on_gpu(catalogue.GPU_POWER, 0, "instant"): 690.0})
    node.run(2)
    assert node.values("power") == {0.5}
    node.stage.put({on_gpu(catalogue.GPU_POWER, 1, "instant"): 630.0})
    node.run(2)
    assert node.known("power")[4] == 0.9


def test_pages_of_the_model_are_averaged_and_passes_need_some() -> None:
    node = Node()
    pages = [("vllm", "m", "a:1"), ("vllm", "m", "a:2"), ("vllm", "else", "a:3")]
    for number, page in enumerate(pages):
        node.stage.put({(catalogue.SERVER_RUNNING, page): 10.0 * (number + 1)})
        node.stage.put({(catalogue.SERVER_GRAPH_PASSES, (*page, mode)): 5.0 for mode in ("graph", "eager")})
    node.run(3)
    assert node.values("requests_running") == {15.0}
    assert node.values("eager_passes") == set(), "no passes"
    node.run(3, lambda second: node.stage.grow({(catalogue.SERVER_GRAPH_PASSES, (*pages[0], "eager")): 1.0}))
    assert node.values("eager_passes") == {1.0}


def test_a_page_need_not_tell_of_everything() -> None:
    node = Node()
    node.stage.put({(catalogue.SERVER_WAITING, ("tgi", "m", "a:1")): 3.0})
    node.run(3)
    assert node.values("requests_waiting") == {3.0}
    assert node.values("requests_running") == set()


def test_a_group_that_may_be_elsewhere_has_nothing_of_this_host() -> None:
    bound, unbound = Group("vllm", "m", (), "10", ""), Group("vllm", "m", (), "", "")
    node = Node(bound, unbound)
    stalled: dict[Series, float] = {(catalogue.HOST_PRESSURE, ("cpu", "some")): 0.2}
    node.run(3, lambda second: node.stage.grow(stalled))
    assert node.values("host_cpu_stalled", bound) == {0.2}
    assert node.values("host_cpu_stalled", unbound) == set()


def test_a_mig_instance_has_its_own_activity_and_its_gpus_heat() -> None:
    group = Group("vllm", "m", ("MIG-1",), "", "")
    node = Node(group)
    labels = ("MIG-1", gpu(0)[1], "1", "0", "3g.71gb")
    node.stage.put(
        {(catalogue.MIG_INFO, (*labels, *("0", "x"))): 1.0, on_gpu(catalogue.GPU_TEMPERATURE, 0, "gpu"): 61.0}
    )
    node.stage.put({(catalogue.MIG_MEMORY, (*labels, state)): 10.0 for state in catalogue.MIG_MEMORY.values})
    grow = {(catalogue.MIG_SM_ACTIVE_SECONDS, labels): 0.3, on_gpu(catalogue.GPU_SM_ACTIVE_SECONDS, 0): 0.9}
    node.run(3, lambda second: node.stage.grow(grow))
    assert node.values("sm_active") == {0.3}
    assert node.values("temperature") == {61.0}
    assert node.values("gpu_memory_used") == {0.333333}


def test_impossible_figures_are_not_known() -> None:
    node = Node()
    node.stage.put({(catalogue.SERVER_WAITING, ("vllm", "m", "a:1")): 1e300})
    node.stage.put({on_gpu(catalogue.GPU_POWER, 0, "average"): 300.0})
    node.stage.put({on_gpu(catalogue.GPU_POWER_LIMIT, 0, "enforced"): 0.0})
    node.run(4)
    assert (node.values("requests_waiting"), node.values("power")) == (set(), set())


def test_an_empty_node_knows_nothing_and_keeps_its_shape() -> None:
    node = Node()
    assert np.isnan(node.dimensions.means(PAIR, 0.0, 1e9)).all()
    seconds, values = node.dimensions.series(PAIR)
    assert (len(seconds), values.shape) == (0, (len(DIMENSIONS), 0))
    node.run(3)
    seconds, values = node.dimensions.series(PAIR)
    assert values.shape == (len(DIMENSIONS), len(seconds))
    assert np.isnan(values).all()
    assert node.dimensions.means(PAIR, 0.0, 1e9).dtype == values.dtype == np.float32


def test_groups_are_bounded_and_an_idle_one_makes_room() -> None:
    node = Node()
    groups = [Group("vllm", str(number), (gpu(0)[1],), "", "") for number in range(GROUPS + 1)]
    node.dimensions.feed(node.stage.step(), groups)
    assert node.dimensions.groups() == groups[:GROUPS]
    node.dimensions.feed(node.stage.step(IDLE_S), groups[:-2])
    node.dimensions.feed(node.stage.step(), groups[-1:])
    assert node.dimensions.groups() == [*groups[: GROUPS - 1], groups[-1]]


def test_groups_not_named_go_on_being_filled() -> None:
    node = Node()
    node.stage.put({on_gpu(catalogue.GPU_TEMPERATURE, 0, "gpu"): 60.0})
    node.run(2)
    for _ in range(10):
        node.dimensions.feed(node.stage.step(), ())
    assert sorted(node.known("temperature")) == list(range(1, 13))


def test_the_same_input_gives_the_same_output() -> None:
    def told() -> bytes:
        node = Node()
        random = np.random.default_rng(5)
        for index in (0, 1):
            node.own(WORKER, FRONT, JOB, index=index)
        series = [on_gpu(catalogue.GPU_SM_ACTIVE_SECONDS, 0), (catalogue.PROCESS_RUNQUEUE_SECONDS, WORKER)]
        node.run(50, lambda second: node.stage.grow(dict(zip(series, random.random(2).tolist(), strict=True))))
        return node.dimensions.series(PAIR)[1].tobytes()

    assert told() == told()


def test_others_may_read_while_it_is_fed() -> None:
    node = Node()
    node.stage.put({on_gpu(catalogue.GPU_TEMPERATURE, 0, "gpu"): 60.0})
    node.run(1)
    ended, wrong = threading.Event(), []

    def read() -> None:
        for _ in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
            seconds, values = node.dimensions.series(PAIR)
            if values.shape[1] != len(seconds) or not set(values[POSITIONS["temperature"]][:-1].tolist()) <= {60.0}:
                wrong.append(values)

    reader = threading.Thread(target=read)
    reader.start()
    node.run(100)
    ended.set()
    reader.join()
    assert not wrong


@pytest.mark.parametrize("name", ["sm_active", "host_swap", "requests_waiting"])
def test_sources_are_families_of_the_catalogue(name: str) -> None:
    families = {metric.name for metric in catalogue.METRICS}
    assert DIMENSIONS[POSITIONS[name]].source.partition(";")[0] in families


def test_it_is_known_since_when_there_are_signals() -> None:
    node = Node()
    assert node.dimensions.began_s is None
    node.run(3)
    assert node.dimensions.began_s == BEGIN_S + 1.0
