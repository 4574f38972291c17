"""The proof: a real Prometheus watches a node on which three things happen, and PromQL finds exactly those.

GPU 3 is throttled for heat 40 % of the time, GPU 5 falls off the bus, GPU 0 works for 300 ms. The last would be
invisible in any gauge that is scraped every 15 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.prometheus import Job, Prometheus
from tests.e2e.waiting import eventually, settle
from tests.fakenvml.controller import FakeNode, Step

THROTTLED, LOST, BURST = 3, 5, 0
ALL = {str(gpu) for gpu in range(8)}
OTHERS = ALL - {str(LOST)}
FRACTION = 0.4
WITHIN = 0.08
"""How far rate() over 20 s may be off: what a scrape gets is up to publish_s, 1 s, older than its timestamp."""
BURST_LEVEL, BURST_S = 0.97, 0.3
SM_SAMPLES = "gpumon_gpu_sm_active_sample_ratio_bucket"
OLD_NAMES = {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS"}


class Story:
    """What happens to the node, and when it did."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.burst_began_s = self.burst_ended_s = 0.0
        for slot, gpu in enumerate(node.gpus):
            gpu.set_power(200.0 + 10 * slot)
            gpu.set_utilization(0.5)

    def steps(self) -> Iterator[Step]:
        gpu = self._node.gpu
        yield 0.5, lambda: gpu(THROTTLED).throttle("hw_thermal", FRACTION)
        yield 3.0, self._begin_burst
        yield 3.0 + BURST_S, self._end_burst
        yield 5.0, lambda: gpu(LOST).push_xid(79)
        yield 6.0, gpu(LOST).lose

    @property
    def burst_s(self) -> float:
        """How long it was: a busy machine may be late."""
        return self.burst_ended_s - self.burst_began_s

    def _begin_burst(self) -> None:
        self._node.gpu(BURST).set_gpm("sm", BURST_LEVEL)
        self.burst_began_s = time.monotonic()

    def _end_burst(self) -> None:
        self._node.gpu(BURST).set_gpm("sm", 0.0)
        self.burst_ended_s = time.monotonic()


@pytest.mark.slow
def test_prometheus_finds_what_happened_and_nothing_else(tmp_path: Path, node: FakeNode) -> None:
    story = Story(node)
    with Daemon(tmp_path, env=node.env(), options={"GPUMON_CADENCE__INVENTORY_S": "5"}) as gpumon:
        gpumon.await_ready()
        jobs = [Job("each1s", gpumon.port, 1), Job("each15s", gpumon.port, 15), Job("dcgm", gpumon.port, 1, "dcgm")]
        with Prometheus(tmp_path / "prometheus", jobs) as prometheus:
            scrapes = 'count_over_time(up{job="each15s"}[2m])'
            eventually(lambda: prometheus.query(scrapes), "the first scrape of the slow job", within_s=20)
            before = prometheus.number(scrapes)
            node.play(story.steps()).join()
            settle(21.0)  # for rate() over 20 s of nothing but throttling
            eventually(lambda: prometheus.number(scrapes) >= before + 2, "two scrapes since", within_s=35)

            _throttling(prometheus)
            _loss(prometheus, node)
            _burst(prometheus, story)
            _energy(prometheus)
            _old_names(prometheus)
            assert prometheus.query("up == 0") == []
            assert prometheus.query("gpumon_source_up == 0") == []
            for counter in ("gpumon_series_dropped_total", "gpumon_samples_rejected_total"):
                assert prometheus.query(f"increase({counter}[2m]) > 0") == []


def _throttling(prometheus: Prometheus) -> None:
    rate = 'rate(gpumon_gpu_throttled_seconds_total{job="each1s",reason="hw_thermal"}[20s])'
    throttled = prometheus.by("gpu", f"{rate} > 0")
    assert throttled == {str(THROTTLED): pytest.approx(FRACTION, rel=WITHIN)}
    # Over all reasons too: a share of time that another reason is blamed for would show here.
    every_reason = 'sum by (gpu) (increase(gpumon_gpu_throttled_seconds_total{job="each1s"}[2m])) > 0'
    assert set(prometheus.by("gpu", every_reason)) == {str(THROTTLED)}
    assert set(prometheus.by("gpu", 'gpumon_gpu_throttle_active{job="each1s"} == 1')) == {str(THROTTLED)}
    seen_rarely = 'increase(gpumon_gpu_throttled_seconds_total{job="each15s",reason="hw_thermal"}[2m]) > 0'
    assert set(prometheus.by("gpu", seen_rarely)) == {str(THROTTLED)}


def _loss(prometheus: Prometheus, node: FakeNode) -> None:
    assert set(prometheus.by("gpu", 'gpumon_gpu_present{job="each1s"} == 0')) == {str(LOST)}
    assert set(prometheus.by("gpu", 'gpumon_gpu_present{job="each1s"} == 1')) == OTHERS
    assert prometheus.number('gpumon_gpus{job="each1s",state="lost"}') == 1
    xids = prometheus.query('increase(gpumon_gpu_xid_errors_total{job="each1s"}[2m]) > 0')
    assert [(labels["gpu"], labels["xid"]) for labels, _ in xids] == [(str(LOST), "79")]
    # Nothing else about it is told, while it was told of before.
    families = f'{{__name__=~"gpumon_gpu_.*",job="each1s",uuid="{node.gpu(LOST).uuid}"}}'
    left = set(prometheus.by("name", f'count by (name) (label_replace({families}, "name", "$1", "__name__", "(.+)"))'))
    assert left == {"gpumon_gpu_present", "gpumon_gpu_xid_errors_total", "gpumon_gpu_xid_last_timestamp_seconds"}
    assert prometheus.number(f"count(last_over_time({families}[2m]))") > 80
    # The other seven are on every single page, and were sampled all the time.
    complete = (
        'count_over_time(gpumon_gpu_power_watts{job="each1s",kind="instant"}[30s]) == on (instance) group_left '
        'count_over_time(up{job="each1s"}[30s])'
    )
    assert set(prometheus.by("gpu", complete)) == OTHERS
    sampled = prometheus.by("gpu", 'rate(gpumon_gpu_samples_total{job="each1s"}[20s])')
    assert sampled == dict.fromkeys(OTHERS, pytest.approx(10, rel=0.1))


def _burst(prometheus: Prometheus, story: Story) -> None:
    others = ALL - {str(BURST)}
    everything, to_90_percent = (f'{SM_SAMPLES}{{job="each15s",le="{bound}"}}' for bound in ("+Inf", "0.9"))
    above = f"increase({everything}[2m]) - ignoring (le) increase({to_90_percent}[2m]) > 0.5"
    assert set(prometheus.by("gpu", above)) == {str(BURST)}
    # increase() extrapolates to the ends of its window; the difference of the extremes is the plain count.
    counts = prometheus.by("gpu", f"{_grown(everything)} - ignoring (le) {_grown(to_90_percent)}")
    whole_ticks = story.burst_s / 0.1
    assert whole_ticks - 2 < counts.pop(str(BURST)) < whole_ticks + 1
    assert counts == dict.fromkeys(others, 0)
    integrals = prometheus.by("gpu", _grown('gpumon_gpu_sm_active_seconds_total{job="each15s"}'))
    assert integrals.pop(str(BURST)) == pytest.approx(story.burst_s * BURST_LEVEL, abs=0.01)
    assert integrals == dict.fromkeys(others, pytest.approx(0, abs=1e-6))


def _grown(counter: str) -> str:
    return f"(max_over_time({counter}[2m]) - min_over_time({counter}[2m]))"


def _energy(prometheus: Prometheus) -> None:
    rates = prometheus.by("gpu", 'rate(gpumon_gpu_energy_joules_total{job="each1s"}[20s])')
    powers = prometheus.by("gpu", 'gpumon_gpu_power_watts{job="each1s",kind="average"}')
    assert powers == {gpu: 200.0 + 10 * int(gpu) for gpu in OTHERS}
    assert rates == {gpu: pytest.approx(watts, rel=WITHIN) for gpu, watts in powers.items()}


def _old_names(prometheus: Prometheus) -> None:
    for name in OLD_NAMES:
        assert set(prometheus.by("gpu", name)) == OTHERS, name
    assert set(prometheus.by("gpu", "DCGM_FI_DEV_GPU_UTIL == 50")) == OTHERS
