"""Clocks held down for heat, power and by the hardware, and what looks like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gpumon import catalogue as c
from gpumon.detect.detector import Detector, Finding, Severity
from gpumon.detect.throttling import HwSlowdown, PowerThrottle, ThermalThrottle
from gpumon.model import Binding, GpuUuid, RequestRecord, Unit
from tests.detect.scenes import Stage, check_described, evidence, gpu, kinds

MHZ = 1e6
DETECTORS: tuple[Callable[[], Detector], ...] = (ThermalThrottle, PowerThrottle, HwSlowdown)


def gauges(stage: Stage, index: int = 0, **told: float | None) -> None:
    """Gauges of a GPU; None ends one."""
    of = gpu(index)
    series: dict[str, Any] = {
        "clock": (c.GPU_CLOCK, (*of, "sm")),
        "clock_max": (c.GPU_CLOCK_MAX, (*of, "sm")),
        "temperature": (c.GPU_TEMPERATURE, (*of, "gpu")),
        "power": (c.GPU_POWER, (*of, "instant")),
        "busy": (c.GPU_UTILIZATION, of),
        "margin": (c.GPU_TEMPERATURE_MARGIN, of),
        "limit": (c.GPU_POWER_LIMIT, (*of, "enforced")),
        "default": (c.GPU_POWER_LIMIT, (*of, "default")),
    }
    for name, value in told.items():
        metric, labels = series[name]
        if value is None:
            stage.drop(metric, labels=labels)
        else:
            stage.put({(metric, labels): value})


def hold_by(stage: Stage, of: tuple[str, str], shares: Mapping[str, float]) -> Callable[[], None]:
    """To do before each step: the GPU's clocks were held down for so many seconds, by reason; for all others none."""
    reasons = dict.fromkeys(c.THROTTLE_REASONS, 0.0) | dict(shares)

    def grow() -> None:
        stage.grow({(c.GPU_THROTTLED_SECONDS, (*of, reason)): share for reason, share in reasons.items()})

    return grow


def hold(stage: Stage, **shares: float) -> Callable[[], None]:
    """The same of GPU 0."""
    return hold_by(stage, gpu(), shares)


def healthy(detector: Detector, stage: Stage, seconds: int = 30, **told: float | None) -> list[Finding]:
    """Some time of load without throttling, at 1410 MHz unless told otherwise."""
    gauges(stage, 0, **({"clock": 1410 * MHZ, "temperature": 71.0, "power": 390.0, "busy": 1.0} | told))
    return stage.run(detector, seconds, each=hold(stage))


def test_thermal_throttling_is_found_with_the_measured_figures() -> None:
    stage, detector = Stage(), ThermalThrottle()
    assert healthy(detector, stage, clock_max=1410 * MHZ) == []
    began_s = stage.at_s
    temperatures = iter([89.0, 90.0, 91.0, 90.0, 90.0, 89.0])
    gauges(stage, clock=1005 * MHZ, power=300.0)

    def hot() -> None:
        hold(stage, sw_thermal=1.0)()
        gauges(stage, temperature=next(temperatures))

    found = stage.run(detector, 6, each=hot)
    assert kinds(found) == ["thermal_throttle"]
    assert len(found) == 5  # not at the first interval
    last = found[-1]
    assert last.entity.name == "gpu 0"
    assert (last.entity.gpu, last.entity.uuid) == gpu()
    assert last.severity is Severity.WARNING
    assert last.since_s == pytest.approx(began_s)
    assert evidence(last, "sm_clock")[1:] == (1005 * MHZ, Unit.HERTZ, 1410 * MHZ)
    assert evidence(last, "temperature").observed == 90.0
    assert evidence(last, "temperature").baseline == 71.0
    assert last.weight == 0.3, "clock lost, in tenths"
    assert evidence(last, "temperature_peak").observed == 91.0
    assert evidence(last, "power").observed == 300.0
    assert evidence(last, "power").baseline == 390.0
    assert evidence(last, "throttled").observed == 1.0
    assert last.summary.startswith("SM clock 1410 → 1005 MHz at 89 to 91 °C, clocks held down for heat 100 % of")


def test_what_began_in_the_middle_of_an_interval_is_dated_so() -> None:
    stage, detector = Stage(), ThermalThrottle()
    healthy(detector, stage)
    began_s = stage.at_s
    stage.run(detector, 1, each=hold(stage, sw_thermal=0.3))
    (found,) = stage.run(detector, 1, each=hold(stage, sw_thermal=1.0))
    assert found.since_s == pytest.approx(began_s + 0.7)


def test_one_short_interval_of_heat_is_nothing() -> None:
    stage, detector = Stage(), ThermalThrottle()
    healthy(detector, stage)
    assert stage.run(detector, 1, each=hold(stage, sw_thermal=0.9)) == []
    assert stage.run(detector, 5, each=hold(stage)) == []
    assert stage.run(detector, 20, each=hold(stage, sw_thermal=0.04)) == []


def test_throttling_that_flickers_goes_on_and_one_that_ends_is_over() -> None:
    stage, detector = Stage(), ThermalThrottle()
    healthy(detector, stage)
    began_s = stage.at_s
    stage.run(detector, 3, each=hold(stage, sw_thermal=0.5))
    assert stage.run(detector, 2, each=hold(stage)) == []  # a break
    flicker = stage.run(detector, 3, each=hold(stage, sw_thermal=0.03))  # above half of the threshold
    assert [each.since_s for each in flicker] == [pytest.approx(began_s + 0.5)] * 3
    assert stage.run(detector, 10, each=hold(stage)) == []
    again_s = stage.at_s
    (found,) = stage.run(detector, 2, each=hold(stage, sw_thermal=1.0))
    assert found.since_s == pytest.approx(again_s)
    assert evidence(found, "temperature_peak").observed == 71.0  # of this time, not of the one before


@pytest.mark.parametrize(
    ("reasons", "margin", "slowdown", "expected"),
    [
        ({"sw_thermal": 1.0}, None, None, Severity.WARNING),
        ({"sw_thermal": 1.0}, 3.0, None, Severity.WARNING),
        ({"sw_thermal": 1.0}, 0.0, None, Severity.CRITICAL),
        ({"sw_thermal": 1.0}, 0.0, -2.0, Severity.WARNING),
        ({"sw_thermal": 1.0}, -2.0, -2.0, Severity.CRITICAL),
        ({"sw_thermal": 1.0, "hw_thermal": 0.4}, None, None, Severity.CRITICAL),
        ({"hw_thermal": 0.4, "hw_slowdown": 0.4}, None, None, Severity.CRITICAL),
    ],
)
def test_heat_is_critical_when_the_hardware_slows_down_or_is_about_to(
    reasons: dict[str, float], margin: float | None, slowdown: float | None, expected: Severity
) -> None:
    stage, detector = Stage(), ThermalThrottle()
    healthy(detector, stage, margin=margin)
    if slowdown is not None:
        stage.put({(c.GPU_TEMPERATURE_MARGIN_LIMIT, (*gpu(), "slowdown")): slowdown})
    (found,) = stage.run(detector, 2, each=hold_by(stage, gpu(), reasons))
    assert found.severity is expected


def test_without_a_time_before_the_boost_clock_is_what_to_compare_with() -> None:
    stage, detector = Stage(), ThermalThrottle()
    gauges(stage, clock=1005 * MHZ, clock_max=1980 * MHZ, busy=1.0)
    (found,) = stage.run(detector, 3, each=hold(stage, sw_thermal=1.0))
    assert evidence(found, "sm_clock").baseline == 1980 * MHZ
    assert [each.name for each in found.evidence] == ["sm_clock", "throttled"]
    assert found.summary == "SM clock 1980 → 1005 MHz, clocks held down for heat 100 % of the time"


def test_without_any_gauge_the_time_throttled_is_told() -> None:
    stage, detector = Stage(), ThermalThrottle()
    (found,) = stage.run(detector, 3, each=hold(stage, sw_thermal=1.0))
    assert found.summary == "clocks held down for heat 100 % of the time"
    assert [each.name for each in found.evidence] == ["throttled"]


def test_clocks_of_an_idle_gpu_are_no_clocks_to_compare_with() -> None:
    stage, detector = Stage(), ThermalThrottle()
    healthy(detector, stage, 20, clock=345 * MHZ, busy=0.0)
    healthy(detector, stage, 20, clock=1980 * MHZ, busy=0.9)
    gauges(stage, clock=1500 * MHZ)
    found = stage.run(detector, 3, each=hold(stage, sw_thermal=1.0))
    assert evidence(found[-1], "sm_clock").baseline == 1980 * MHZ


@pytest.mark.parametrize("make", DETECTORS)
def test_an_idle_gpu_is_never_throttled(make: Callable[[], Detector]) -> None:
    stage, detector = Stage(), make()
    healthy(detector, stage)
    gauges(stage, busy=0.0, clock=345 * MHZ)
    stage.run(detector, 6, each=hold(stage))
    every = dict.fromkeys(c.THROTTLE_REASONS, 1.0)
    assert stage.run(detector, 30, each=hold_by(stage, gpu(), every)) == []


@pytest.mark.parametrize("make", DETECTORS)
def test_a_gpu_without_counters_and_counters_that_begin_anew_are_silent(make: Callable[[], Detector]) -> None:
    stage, detector = Stage(), make()
    gauges(stage, clock=345 * MHZ, clock_max=1980 * MHZ, busy=1.0)
    assert stage.run(detector, 5) == []
    stage.put({(c.GPU_THROTTLED_SECONDS, (*gpu(), reason)): 9000.0 for reason in c.THROTTLE_REASONS})
    assert stage.run(detector, 3) == []
    stage.put({(c.GPU_THROTTLED_SECONDS, (*gpu(), reason)): 10.0 for reason in c.THROTTLE_REASONS})
    assert stage.run(detector, 3) == []


@pytest.mark.parametrize("make", DETECTORS)
def test_a_gpu_that_vanished_is_forgotten_while_another_goes_on(make: Callable[[], Detector]) -> None:
    stage, detector = Stage(), make()
    both = dict.fromkeys(("sw_thermal", "sw_power_cap", "hw_power_brake"), 1.0)

    def each(**shares: float) -> Callable[[], None]:
        def grow() -> None:
            for index in (0, 1):
                hold_by(stage, gpu(index), shares)()

        return grow

    for index in (0, 1):
        gauges(stage, index, clock=1980 * MHZ, busy=1.0)
    stage.run(detector, 20, each=each())
    for index in (0, 1):
        gauges(stage, index, clock=900 * MHZ)
    assert {found.entity.gpu for found in stage.run(detector, 6, each=each(**both))} == {"0", "1"}
    stage.drop(c.GPU_THROTTLED_SECONDS, labels=gpu(1))
    assert {found.entity.gpu for found in stage.run(detector, 6, each=hold_by(stage, gpu(), both))} == {"0"}
    stage.drop(c.GPU_THROTTLED_SECONDS)
    assert stage.run(detector, 3) == []
    gauges(stage, 1, clock_max=None)
    again = stage.run(detector, 2, each=hold_by(stage, gpu(1), both))
    assert again == []  # nothing is remembered of it: neither that it was throttled, nor its clock


def test_steps_of_ten_seconds_need_two_intervals_too() -> None:
    stage, detector = Stage(), ThermalThrottle()
    gauges(stage, clock=1410 * MHZ, busy=1.0)
    stage.run(detector, 60, step_s=10.0, each=hold(stage))
    gauges(stage, clock=1005 * MHZ)
    began_s = stage.at_s
    assert stage.run(detector, 10, step_s=10.0, each=hold(stage, sw_thermal=6.0)) == []
    (found,) = stage.run(detector, 10, step_s=10.0, each=hold(stage, sw_thermal=10.0))
    assert found.since_s == pytest.approx(began_s + 4.0)
    assert evidence(found, "sm_clock")[1:] == (1005 * MHZ, Unit.HERTZ, 1410 * MHZ)


# --- power ----------------------------------------------------------------------------------------------------------


def test_a_lowered_power_limit_is_found() -> None:
    stage, detector = Stage(), PowerThrottle()
    healthy(detector, stage, clock=1980 * MHZ, power=620.0, limit=700.0, default=700.0)
    began_s = stage.at_s
    gauges(stage, clock=1500 * MHZ, power=400.0, limit=400.0)
    found = stage.run(detector, 10, each=hold(stage, sw_power_cap=1.0))
    assert found[0].since_s == pytest.approx(began_s)
    assert stage.at_s - len(found) - began_s <= 3  # found within three seconds, and at every step since
    last = found[-1]
    assert last.severity is Severity.WARNING
    assert evidence(last, "sm_clock")[1:] == (1500 * MHZ, Unit.HERTZ, 1980 * MHZ)
    assert evidence(last, "power_limit")[1:] == (400.0, Unit.WATTS, 700.0)
    assert "1980 → 1500 MHz" in last.summary


def test_a_small_loss_of_clock_at_the_limit_is_information() -> None:
    stage, detector = Stage(), PowerThrottle()
    healthy(detector, stage, clock=1980 * MHZ)
    gauges(stage, clock=1700 * MHZ)
    found = stage.run(detector, 10, each=hold(stage, sw_power_cap=0.8))
    assert {each.severity for each in found} == {Severity.INFO}


def test_prefills_that_touch_the_limit_are_no_throttling() -> None:
    stage, detector = Stage(), PowerThrottle()
    healthy(detector, stage, clock=1980 * MHZ)
    step = 0

    def prefill() -> None:
        nonlocal step
        step += 1
        capped = step % 2 == 0  # every other second 0.45 s at the cap, and the clock read just then
        gauges(stage, clock=(1700 if capped else 1980) * MHZ)
        hold(stage, sw_power_cap=0.45 if capped else 0.0)()

    assert stage.run(detector, 60, each=prefill) == []


def test_a_gpu_always_at_its_limit_with_nearly_its_clock_is_healthy() -> None:
    stage, detector = Stage(), PowerThrottle()
    gauges(stage, clock=1500 * MHZ, clock_max=1980 * MHZ, busy=1.0)
    assert stage.run(detector, 30, each=hold(stage, sw_power_cap=1.0)) == []
    gauges(stage, clock=1300 * MHZ)
    found = stage.run(detector, 10, each=hold(stage, sw_power_cap=1.0))
    assert evidence(found[-1], "sm_clock").baseline == 1980 * MHZ


def test_one_long_prefill_is_no_throttling_and_power_recovers() -> None:
    stage, detector = Stage(), PowerThrottle()
    healthy(detector, stage, clock=1980 * MHZ)
    gauges(stage, clock=1500 * MHZ)
    assert stage.run(detector, 1, each=hold(stage, sw_power_cap=1.0)) == []
    gauges(stage, clock=1980 * MHZ)
    assert stage.run(detector, 10, each=hold(stage)) == []
    gauges(stage, clock=1500 * MHZ)
    assert stage.run(detector, 10, each=hold(stage, sw_power_cap=1.0))
    gauges(stage, clock=1980 * MHZ)
    assert len(stage.run(detector, 30, each=hold(stage))) <= 2  # what the last 5 s still hold


# --- hardware -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasons", "clock", "expected", "how"),
    [
        ({"hw_power_brake": 1.0, "hw_slowdown": 1.0}, 990, Severity.CRITICAL, "by an external power brake"),
        ({"hw_slowdown": 0.5}, 1500, Severity.WARNING, "slowed by the hardware"),
        ({"reliability": 1.0}, 1500, Severity.WARNING, "by the board's limits"),
        ({"board_limit": 0.2}, 1500, Severity.WARNING, "by the board's limits"),
    ],
)
def test_slowdowns_by_the_hardware(reasons: dict[str, float], clock: int, expected: Severity, how: str) -> None:
    stage, detector = Stage(), HwSlowdown()
    healthy(detector, stage, clock=1980 * MHZ)
    began_s = stage.at_s
    gauges(stage, clock=clock * MHZ)
    found = stage.run(detector, 3, each=hold_by(stage, gpu(), reasons))
    assert [each.severity for each in found] == [expected] * 2
    assert how in found[-1].summary
    assert began_s <= found[-1].since_s < began_s + 1
    assert evidence(found[-1], "sm_clock").baseline == 1980 * MHZ
    gauges(stage, clock=1980 * MHZ)
    assert stage.run(detector, 20, each=hold(stage)) == []


@pytest.mark.parametrize(
    "reasons", [{"reliability": 1.0}, {"board_limit": 1.0}, {"hw_slowdown": 1.0, "hw_thermal": 1.0}]
)
def test_limits_without_loss_of_clock_and_slowdown_for_heat_are_not_the_hardwares(reasons: dict[str, float]) -> None:
    stage, detector = Stage(), HwSlowdown()
    healthy(detector, stage, clock=1980 * MHZ)
    gauges(stage, clock=(990 if "hw_thermal" in reasons else 1950) * MHZ)
    assert stage.run(detector, 20, each=hold_by(stage, gpu(), reasons)) == []


def test_a_board_that_always_touches_its_voltage_limit_is_healthy() -> None:
    stage, detector = Stage(), HwSlowdown()
    gauges(stage, clock=2600 * MHZ, clock_max=3105 * MHZ, busy=1.0)
    assert stage.run(detector, 60, each=hold(stage, reliability=1.0)) == []


# --- what the requests say --------------------------------------------------------------------------------------------


def test_latency_and_tokens_per_second_of_the_models_on_that_gpu_are_told() -> None:
    stage, detector = Stage(), ThermalThrottle()
    gauges(stage, clock=1410 * MHZ, busy=1.0)

    def serve(gap_ms: float, tokens: int) -> Callable[[], list[RequestRecord]]:
        def requests() -> list[RequestRecord]:
            end_ns = stage.at_ns + 900_000_000
            times = end_ns - np.arange(99, -1, -1, dtype=np.int64) * round(gap_ms * 1e6)
            return [
                RequestRecord(
                    bytes(16),
                    "",
                    "vllm",
                    "llama",
                    stage.at_s,
                    int(times[0]),
                    int(times[-1]),
                    token_ns=times,
                    per_token=True,
                    completion_tokens=tokens,
                    binding=Binding("config", gpus=(GpuUuid(uuid),)),
                )
                for uuid in (gpu()[1], "GPU-elsewhere")
            ]

        return requests

    stage.run(detector, 60, each=hold(stage), requests=serve(7.2, 100))
    found = stage.run(detector, 60, each=hold(stage, sw_thermal=1.0), requests=serve(11.8, 74))
    latency, tokens = evidence(found[-1], "inter_token_latency"), evidence(found[-1], "tokens_per_second")
    assert latency.observed == pytest.approx(11.8e-3)
    assert latency.baseline == pytest.approx(7.2e-3)
    assert tokens.observed / (tokens.baseline or 0) == pytest.approx(0.74, rel=0.05)
    assert found[-1].summary.endswith("inter-token latency 7.2 → 11.8 ms")
    assert found[-1].weight == 0.1, "no clock lost, but it is known what it cost"


def test_all_is_described() -> None:
    check_described(ThermalThrottle, PowerThrottle, HwSlowdown)
