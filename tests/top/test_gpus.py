"""GPUs on the screen: figures, what limits them, who is on them, and their order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpumon.top.answers import Gpu
from gpumon.top.gpus import ORDERS, gpu_lines, ordered
from tests.top.answered import HOSTILE, gpu, plain

BY_NAME = {order.name: order for order in ORDERS}


def lines(*gpus: Gpu, width: int = 80) -> list[str]:
    return plain(gpu_lines(gpus, width, ORDERS[0]), width)


def limits(**other: Any) -> str:
    """Of a GPU, the cell."""
    title, line = lines(gpu(bound=None, processes=[], **other), width=140)
    return line[title.index("limited by") :].strip()


def test_a_gpu_is_a_line_of_figures() -> None:
    figures: dict[str, Any] = {
        "sm_active": 0.44,
        "dram_active": 0.004,
        "power_watts": 375.9,
        "power_limit_watts": 700.0,
    }
    figures |= {"sm_clock_hertz": 1.98e9, "temperature_celsius": 40.0, "bound": {"memory": 0.79, "idle": 0.21}}
    figures |= {"memory_used_bytes": 136.2e9, "memory_total_bytes": 150.75e9}
    assert lines(gpu(**figures)) == [
        "GPU    SM  DRAM  W/limit    MHz  °C  GB used  limited by   on it",
        "0    44 %  <1 %  376/700  1,980  40  136/151  memory 79 %  VLLM::Worker_TP",
    ]


def test_what_is_not_known_is_a_dash_and_no_zero() -> None:
    assert lines(Gpu(gpu="0", uuid="GPU-0"))[1].split() == ["0", "-", "-/-", "-", "-", "-/-", "-"]


def test_a_gpu_that_is_lost_says_so_and_shows_no_figures() -> None:
    assert lines(gpu(present=False), gpu(gpu="1"))[1].split() == ["0", *["-"] * 6, "lost", "or", "hung"]


def test_gpus_without_gpm_have_the_share_of_time_in_which_they_were_busy() -> None:
    old = gpu(sm_active=None, dram_active=None, utilization=0.5, bound=None)
    assert lines(old)[0].split()[:3] == ["GPU", "busy", "W/limit"]
    assert lines(old)[1].split()[:3] == ["0", "50", "%"]
    assert lines(old, gpu(gpu="1"))[0].split()[:3] == ["GPU", "SM", "DRAM"]


def test_an_open_incident_is_marked_at_the_gpu() -> None:
    told = lines(gpu(incidents=[{"id": "x", "severity": "critical"}]))
    assert told[1].startswith("0!")


@pytest.mark.parametrize(
    ("throttled_by", "throttled", "said"),
    [
        ([], {}, ""),
        (None, {}, "-"),
        (["low_utilization"], {"low_utilization": 0.9}, ""),
        (["sw_power_cap"], {"sw_power_cap": 0.5}, "power cap now"),
        ([], {"sw_power_cap": 0.5, "hw_power_brake": 0.004}, "power cap 50 %"),
        (["hw_slowdown", "hw_thermal"], {"hw_slowdown": 0.2, "hw_thermal": 0.2}, "heat now"),
        ([], {"hw_slowdown": 0.2, "hw_power_brake": 0.2}, "power brake 20 %"),
        (["sw_thermal"], {"sw_power_cap": 0.1}, "heat now, power cap 10 %"),
        (["a_new_reason"], {}, "a new reason now"),
    ],
)
def test_reasons_are_told_in_words_now_before_lately(
    throttled_by: list[str] | None, throttled: dict[str, float], said: str
) -> None:
    assert limits(throttled_by=throttled_by, throttled=throttled) == said


def test_pods_are_told_before_processes_and_what_is_left_out_is_counted() -> None:
    pod = {"process": "python3", "namespace": "prod", "pod": "llama-0"}
    processes = [pod, pod, {"process": "python3", "namespace": "", "pod": ""}]
    told = lines(gpu(processes=processes, processes_left_out=3), width=140)[1]
    assert told.endswith("prod/llama-0 x2, python3 +3")


def test_instances_stand_under_their_gpu() -> None:
    mig = {"profile": "3g.71gb", "gpu_instance": "2", "compute_instance": "0", "sm_active": 0.3}
    whole, instance, other = lines(gpu(mig=[mig | {"memory_used_bytes": 5e9}]), gpu(gpu="1"))[1:]
    assert instance.split() == ["0.2", "30", "%", "-", "-", "-", "-", "5/-", "MIG", "3g.71gb"]
    assert (whole[0], other[0]) == ("0", "1")


def test_orders_put_the_most_first_and_the_unknown_last() -> None:
    one, two, three = gpu(gpu="1", power_watts=300.0), gpu(gpu="2", power_watts=500.0), gpu(gpu="3", power_watts=None)
    gpus = [one, two, three]
    assert ordered(gpus, BY_NAME["power"]) == [two, one, three]
    assert ordered(gpus, BY_NAME["index"]) == gpus


def test_by_held_down_comes_first_who_is_now() -> None:
    now, lately, never = (
        gpu(gpu="2", throttled_by=["sw_power_cap"]),
        gpu(gpu="1", throttled={"hw_thermal": 0.9}),
        gpu(gpu="0", throttled_by=["low_utilization"], throttled={"low_utilization": 1.0}),
    )
    shuffled = [never, lately, now]
    random.Random(3).shuffle(shuffled)
    assert ordered(shuffled, BY_NAME["held down"]) == [now, lately, never]


def test_hostile_names_and_figures_stay_on_their_line() -> None:
    names = {"gpu": HOSTILE, "processes": [{"process": HOSTILE}], "throttled_by": [HOSTILE], "bound": {HOSTILE: 1e300}}
    for width in (20, 60, 80, 140):
        told = lines(gpu(**names, power_watts=1e308, sm_active=1e308, sm_clock_hertz=-1e-300), width=width)
        assert len(told) == 2
