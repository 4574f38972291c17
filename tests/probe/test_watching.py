"""What GPU and host did during a rung, of pages whose figures are known: grown, absent, gone back, not there."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.api_client import ApiError
from gpumon.probe.ladder import Cell
from gpumon.probe.model import Conditions
from gpumon.probe.watching import PARSER, GpumonWatch, Look, NoWatch, conditions

CELL = Cell(1, 1024, 5)
GPU = 'gpu="0",uuid="GPU-1"'
SERVER = 'server="vllm",endpoint="e",model="m"'


def page(at: float, *, sm: float = 0.0, dram: float = 0.0, **more: float) -> str:
    """After so many seconds of sampling."""
    lines = [
        f"gpumon_gpu_present{{{GPU}}} 1",
        f"gpumon_gpu_last_sample_timestamp_seconds{{{GPU}}} {1.7e9 + at!r}",
        f"gpumon_gpu_sm_active_seconds_total{{{GPU}}} {sm}",
        f"gpumon_gpu_dram_active_seconds_total{{{GPU}}} {dram}",
    ]
    forms = {
        "clock": f'gpumon_gpu_clock_hertz{{{GPU},domain="sm"}}',
        "memory_clock": f'gpumon_gpu_clock_hertz{{{GPU},domain="memory"}}',
        "busy": f"gpumon_gpu_utilization_ratio{{{GPU}}}",
        "power": f'gpumon_gpu_throttled_seconds_total{{{GPU},reason="sw_power"}}',
        "heat": f'gpumon_gpu_throttled_seconds_total{{{GPU},reason="hw_thermal"}}',
        "major": 'gpumon_process_page_faults_total{pid="1",process="vllm",kind="major"}',
        "other_major": 'gpumon_process_page_faults_total{pid="2",process="vllm",kind="major"}',
        "minor": 'gpumon_process_page_faults_total{pid="1",process="vllm",kind="minor"}',
        "host_major": 'gpumon_host_page_faults_total{kind="major"}',
        "kv": f"gpumon_server_kv_cache_usage_ratio{{{SERVER}}}",
        "waiting": f"gpumon_server_requests_waiting{{{SERVER}}}",
        "preempted": f"gpumon_server_preemptions_total{{{SERVER}}}",
    }
    return "\n".join([*lines, *(f"{forms[name]} {value!r}" for name, value in more.items()), ""])


def told(*pages: str) -> Conditions:
    """What is made of looks at these pages, five seconds apart."""
    return conditions([Look(5 * 10**9 * number, PARSER.parse(text.encode())) for number, text in enumerate(pages)])


def test_the_metrics_read_are_those_that_gpumon_has() -> None:
    known = {metric.name for metric in catalogue.METRICS}
    text = page(
        0, **dict.fromkeys(("clock", "busy", "power", "major", "host_major", "kv", "waiting", "preempted"), 1.0)
    )
    assert {line.partition("{")[0] for line in text.splitlines()} <= known


def test_means_are_of_the_integrals_over_the_time_that_was_sampled() -> None:
    (gpu,) = told(page(100.0, sm=50.0, dram=10.0), page(109.9, sm=58.91, dram=11.98)).gpus
    assert gpu.sm_active == pytest.approx(0.9)
    assert gpu.dram_active == pytest.approx(0.2)
    assert (gpu.gpu, gpu.uuid) == ("0", "GPU-1")


def test_clocks_are_those_seen_meanwhile_and_their_lowest() -> None:
    def at(second: float, clock: float) -> str:
        return page(second, clock=clock, memory_clock=9e9, busy=1.0)

    (gpu,) = told(at(0, 3e8), at(1, 2e9), at(2, 1e9), at(3, 3e8)).gpus
    assert (gpu.clock_hertz, gpu.clock_least_hertz, gpu.utilization) == (1.5e9, 1e9, 1.0)
    (short,) = told(at(0, 1e9), at(1, 2e9)).gpus
    assert short.clock_hertz == 1.5e9


def test_throttling_is_by_reason_and_only_what_there_was() -> None:
    (gpu,) = told(page(0, power=10.0, heat=3.0), page(5, power=12.5, heat=3.0)).gpus
    assert gpu.throttled_seconds == {"sw_power": 2.5}


def test_faults_queues_and_caches() -> None:
    said = told(
        page(0, major=10, minor=5, host_major=100, kv=0.1, waiting=0, preempted=7),
        page(1, major=20, minor=50, host_major=150, kv=0.98, waiting=4, preempted=8),
        page(2, major=70, minor=500, host_major=200, kv=0.2, waiting=1, preempted=17),
    )
    assert (said.process_major_faults, said.host_major_faults, said.preemptions) == (60, 100, 10)
    assert (said.kv_usage, said.waiting, said.looks, said.seconds) == (0.98, 4, 3, 10.0)


def test_what_is_not_there_is_null_and_not_zero() -> None:
    said = told("", "")
    assert said.gpus == []
    assert (said.process_major_faults, said.host_major_faults, said.kv_usage) == (None, None, None)
    (gpu,) = told(f"gpumon_gpu_present{{{GPU}}} 1", f"gpumon_gpu_present{{{GPU}}} 1").gpus
    assert (gpu.sm_active, gpu.dram_active, gpu.clock_hertz, gpu.utilization) == (None, None, None, None)


def test_a_counter_that_went_back_or_is_new_counts_for_nothing() -> None:
    assert told(page(0, major=100), page(1, major=3)).process_major_faults is None
    assert told(page(0, major=100), page(1, major=103, other_major=999)).process_major_faults == 3
    (gpu,) = told(page(9, sm=9.0), page(1, sm=1.0)).gpus
    assert gpu.sm_active is None


def test_without_a_new_sample_there_is_no_mean() -> None:
    (gpu,) = told(page(9, sm=9.0), page(9, sm=9.0)).gpus
    assert gpu.sm_active is None


@given(st.lists(st.binary(max_size=200) | st.just(page(3, sm=1.0, kv=0.5).encode()), min_size=2, max_size=4))
def test_any_pages_give_conditions_that_can_be_said(pages: list[bytes]) -> None:
    said = conditions([Look(number, PARSER.parse(text)) for number, text in enumerate(pages)])
    assert Conditions.model_validate_json(said.model_dump_json()) == said


def test_looks_are_made_before_meanwhile_and_after_and_failures_are_counted() -> None:
    numbers, clock = itertools.count(), itertools.count(0, 10**9)
    seen = threading.Event()

    def ask() -> bytes:
        number = next(numbers)
        if number == 2:
            raise ApiError("gone")
        if number == 4:
            seen.set()
        return page(number, major=number).encode()

    async def run() -> GpumonWatch:
        watch = GpumonWatch(ask, lambda: next(clock), every_s=0.0)
        await watch.begin(CELL)
        await asyncio.to_thread(seen.wait, 10)
        await watch.end(CELL)
        return watch

    watch = asyncio.run(run())
    assert watch.failed == 1
    assert watch.conditions[CELL].looks >= 5
    assert (watch.conditions[CELL].process_major_faults or 0) >= 5


def test_where_nothing_answers_nothing_is_known() -> None:
    def ask() -> bytes:
        raise ApiError("gone")

    async def run() -> GpumonWatch:
        watch = GpumonWatch(ask, lambda: 0)
        await watch.begin(CELL)
        await watch.end(CELL)
        await NoWatch().begin(CELL)
        await NoWatch().end(CELL)
        return watch

    watch = asyncio.run(run())
    assert (watch.conditions, watch.failed) == ({}, 2)
