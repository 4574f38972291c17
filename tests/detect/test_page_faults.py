"""``page_fault_burst``: the measured case with its figures, bursts alone, and what only looks like one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.detect.detector import Finding
from gpumon.detect.page_faults import PageFaultBurst
from gpumon.model import RequestRecord
from tests.detect.requests import request
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence, gpu

SAMPLE_S = 0.5
FINE_S = 0.002

Rate = Callable[[float], float]
"""Faults per second at a moment, seconds since the stage began."""


def workload(pid: int, name: str = "VLLM::Worker_TP") -> tuple[str, ...]:
    return (str(pid), name, "llm", "vllm-0", "server")


class Faults:
    """Processes that fault at random at rates given, sampled each half second, and a detector that looks at them."""

    def __init__(
        self, rates: dict[int, Rate], *, seed: int = 3, host: Rate | None = None, is_random: bool = True
    ) -> None:
        """is_random: else the counters hold just what the rates add up to, in whole faults."""
        self.stage = Stage()
        self._is_random = is_random
        self._rests: dict[int, float] = {}
        self.detector = PageFaultBurst()
        self.rates = rates
        self.host = host
        self._random = np.random.default_rng(seed)
        for index, pid in enumerate(rates):
            self.add(pid, index)

    def add(self, pid: int, index: int) -> None:
        """A process that holds a GPU."""
        labels = workload(pid)
        self.stage.put(
            {
                (catalogue.PROCESS_GPU_MEMORY, (*gpu(index), *labels)): 1e11,
                (catalogue.PROCESS_CPU_SECONDS, labels): 1000.0,
                (catalogue.PROCESS_PAGE_FAULTS, (*labels, "major")): 4.0,
                (catalogue.PROCESS_PAGE_FAULTS, (*labels, "minor")): 1e6,
            }
        )

    def run(
        self, seconds: float, *, step_s: float = 1.0, requests: Callable[[float], Sequence[RequestRecord]] | None = None
    ) -> list[Finding]:
        """Let it run; findings in order."""
        found: list[Finding] = []
        for sample in range(1, round(seconds / SAMPLE_S) + 1):
            moments = self.stage.at_s - BEGIN_S + np.arange(0, SAMPLE_S, FINE_S)
            every = 0.0
            for pid, rate in self.rates.items():
                amount = self._faults(pid, sum(rate(at) for at in moments) * FINE_S)
                self.stage.grow({(catalogue.PROCESS_PAGE_FAULTS, (*workload(pid), "major")): amount})
                every += amount
            if self.host is not None:
                every += self._faults(0, sum(self.host(at) for at in moments) * FINE_S)
                self.stage.grow({(catalogue.HOST_PAGE_FAULTS, ("major",)): every})
            if sample % round(step_s / SAMPLE_S):
                self.stage.step(SAMPLE_S)
                continue
            ended = requests(self.stage.at_s + SAMPLE_S) if requests is not None else ()
            found += self.detector.step(self.stage.step(SAMPLE_S, ended))
        return found

    def _faults(self, pid: int, expected: float) -> float:
        if self._is_random:
            return float(self._random.poisson(expected))
        whole, self._rests[pid] = divmod(self._rests.get(pid, 0.0) + expected, 1.0)
        return whole


def steady(per_s: float) -> Rate:
    return lambda at_s: per_s


def recurring(
    plateau_s: float, fall_s: float, per_s: float, *, every_s: float, since_s: float = 0.0, until_s: float = 1e9
) -> Rate:
    """Bursts: a plateau and a straight fall, again and again."""

    def rate(at_s: float) -> float:
        if not since_s <= at_s < until_s:
            return 0.0
        into_s = (at_s - since_s) % every_s
        return per_s * min(1.0, max(0.0, 1 - (into_s - plateau_s) / fall_s))

    return rate


def both(*rates: Rate) -> Rate:
    return lambda at_s: sum(rate(at_s) for rate in rates)


def of_kind(findings: Sequence[Finding]) -> set[str]:
    return {finding.entity.name for finding in findings}


def test_described() -> None:
    check_described(PageFaultBurst)


def test_the_measured_case_of_a_context_that_grew_fourfold() -> None:
    """12.3 → 97.6 faults/s, bursts of 0.8 → 3.2 s, recovery 0.14 → 0.89 s, context 4k → 16k."""
    every_s, jump_s = 9.73, 97.3
    before = recurring(0.8, 0.14, 12.3, every_s=every_s, until_s=jump_s)
    after = recurring(3.2, 0.89, 97.6, every_s=every_s, since_s=jump_s, until_s=jump_s + 8 * every_s)
    node = Faults({41403: both(before, after), 41404: steady(0.15)}, is_random=False)

    def requests(at_s: float) -> list[RequestRecord]:
        prompt = 4096 if at_s - 2.0 < BEGIN_S + jump_s else 16_384
        return [request(at_s - 2.0, prompt_tokens=prompt, gpus=[gpu(0)[1]], tokens=50, gap_s=0.03)]

    assert node.run(97.0, requests=requests) == []
    found = node.run(3.0, requests=requests)
    assert found  # within three seconds
    found = node.run(9 * every_s + 20.0, requests=requests)
    assert of_kind(found) == {"pid 41403 VLLM::Worker_TP"}
    last = found[-1]
    assert last.entity.gpu == "0"
    assert last.since_s == pytest.approx(BEGIN_S + jump_s, abs=0.2)
    assert last.over
    assert [finding.over for finding in found].count(True) == 1
    faults = evidence(last, "major_faults_per_second")
    assert faults.baseline == pytest.approx(12.3, rel=0.08)
    assert faults.observed == pytest.approx(97.6, rel=0.03)
    burst = evidence(last, "burst_duration")
    assert burst.baseline == pytest.approx(0.8, rel=0.1)
    assert burst.observed == pytest.approx(3.2, rel=0.05)
    recovery = evidence(last, "burst_recovery")
    assert recovery.baseline == pytest.approx(0.14, abs=0.05)
    assert recovery.observed == pytest.approx(0.89, abs=0.15)
    context = evidence(last, "context_tokens")
    assert (context.baseline, context.observed) == (4096, 16_384)
    assert last.summary.startswith("major faults 12")
    assert last.summary.endswith("context 4k → 16k")


def test_a_single_burst_on_a_quiet_process() -> None:
    node = Faults({7: both(steady(0.15), recurring(2.0, 0.01, 300.0, every_s=1e6, since_s=80.0))})
    found = node.run(81.0)
    assert len(found) == 1  # after one second of it
    found = node.run(40.0)
    (last,) = [finding for finding in found if finding.over]
    assert evidence(last, "major_faults_per_second").observed == pytest.approx(300, rel=0.15)
    assert evidence(last, "burst_duration").observed == pytest.approx(2.0, abs=0.2)
    assert evidence(last, "burst_duration").baseline is None
    assert evidence(last, "burst_recovery").observed <= 0.4
    assert last.since_s == pytest.approx(BEGIN_S + 80.0, abs=0.2)
    assert not node.run(60.0)


def test_a_burst_of_half_a_second_varies_more_than_two_and_a_half_times_the_mean() -> None:
    node = Faults({7: recurring(0.4, 0.01, 400.0, every_s=1e6, since_s=80.1)})
    found = node.run(83.0)
    assert found
    assert evidence(found[-1], "variation").observed > 2.5


def test_bursts_that_go_on_are_one_incident_until_they_pause() -> None:
    node = Faults({7: recurring(0.8, 0.1, 3000.0, every_s=10.0, since_s=80.0, until_s=160.0)})
    found = node.run(200.0)
    assert [finding.over for finding in found].count(True) == 1
    assert found[-1].over
    assert evidence(found[-1], "major_faults_per_second").observed == pytest.approx(3000, rel=0.05)
    told_s = sorted({finding.since_s for finding in found})
    assert told_s == [pytest.approx(BEGIN_S + 80.0, abs=0.1)]


def test_bursts_that_grow_within_an_incident_are_compared_with_those_before() -> None:
    small = recurring(0.8, 0.1, 500.0, every_s=10.0, since_s=80.0, until_s=140.0)
    large = recurring(3.2, 0.9, 1000.0, every_s=10.0, since_s=140.0, until_s=200.0)
    found = Faults({7: both(small, large)}).run(230.0)
    faults = evidence(found[-1], "major_faults_per_second")
    assert faults.baseline == pytest.approx(500, rel=0.08)
    assert faults.observed == pytest.approx(1000, rel=0.08)
    assert evidence(found[-1], "burst_duration").baseline == pytest.approx(0.8, abs=0.1)


def test_a_new_steady_level_is_a_burst_that_goes_on() -> None:
    node = Faults({7: lambda at_s: 10.0 if at_s < 90 else 400.0})
    found = node.run(300.0)
    assert len(found) > 150
    assert not any(finding.over for finding in found)
    assert found[-1].since_s == pytest.approx(BEGIN_S + 90, abs=0.5)
    assert evidence(found[-1], "major_faults_per_second").observed == pytest.approx(400, rel=0.05)


@pytest.mark.parametrize("step_s", [2.0, 5.0, 10.0])
def test_slower_steps_find_the_same(step_s: float) -> None:
    node = Faults({7: both(steady(2.0), recurring(3.2, 0.9, 2000.0, every_s=9.73, since_s=100.0, until_s=160.0))})
    found = node.run(200.0, step_s=step_s)
    assert found[-1].over
    assert evidence(found[-1], "burst_duration").observed == pytest.approx(3.2, rel=0.1)


@pytest.mark.parametrize(
    "rate",
    [
        steady(0.15),
        steady(12.0),
        steady(100.0),
        recurring(0.8, 0.1, 40.0, every_s=7.0),
        recurring(0.8, 0.1, 200.0, every_s=9.0),
        recurring(0.4, 0.05, 600.0, every_s=25.0),
        lambda at_s: 30.0 + 0.2 * at_s,
    ],
    ids=["nearly none", "noise", "many", "small bursts", "bursts as ever", "rare bursts as ever", "slow growth"],
)
@pytest.mark.parametrize("seed", range(2))
def test_healthy_processes_are_silent(rate: Rate, seed: int) -> None:
    assert Faults({7: rate}, seed=seed).run(400.0) == []


def test_a_server_that_loads_its_weights_is_left_alone_until_it_serves() -> None:
    node = Faults({1: steady(1.0)})
    assert node.run(100.0) == []
    node.rates[2] = lambda at_s: 3000.0 if at_s < 230.0 and (at_s % 20.0) < 4.0 else 0.0
    node.add(2, 1)
    node.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(1)): 0.0})
    assert node.run(130.0) == []  # a minute has long passed, and its GPU does nothing yet
    node.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(1)): 0.8})
    node.rates[2] = recurring(3.0, 0.1, 3000.0, every_s=1e6, since_s=400.0)
    assert of_kind(node.run(200.0)) == {"pid 2 VLLM::Worker_TP"}


def test_a_young_process_serves_once_its_requests_end() -> None:
    node = Faults({1: steady(1.0)})
    node.run(10.0)
    node.add(2, 1)
    node.rates[2] = recurring(3.0, 0.1, 3000.0, every_s=1e6, since_s=100.0)

    def requests(at_s: float) -> list[RequestRecord]:
        return [request(at_s - 1.0, gpus=[gpu(1)[1]])]

    assert node.run(60.0, requests=requests) == []
    assert node.run(60.0, requests=requests)


def test_the_host_speaks_only_where_no_process_does() -> None:
    burst = recurring(3.0, 0.1, 2000.0, every_s=1e6, since_s=80.0)
    assert of_kind(Faults({7: burst}, host=steady(3.0)).run(130.0)) == {"pid 7 VLLM::Worker_TP"}
    found = Faults({7: steady(0.15)}, host=burst).run(130.0)
    assert of_kind(found) == {"host"}
    assert found[-1].over


def test_the_host_stays_silent_where_the_counters_of_the_process_are_read_seconds_later() -> None:
    node = Faults({7: steady(0.0)}, is_random=False)
    of_process = (catalogue.PROCESS_PAGE_FAULTS, (*workload(7), "major"))
    of_host = (catalogue.HOST_PAGE_FAULTS, ("major",))
    node.stage.drop(catalogue.PROCESS_PAGE_FAULTS)
    node.stage.put({of_process: 0.0}, owner="late")
    node.stage.put({of_host: 0.0})
    found: list[Finding] = []
    for sample in range(1, 280):
        bursts = sample >= 240 and sample % 8 < 3
        node.stage.grow({of_host: 2000.0 if bursts else 0.0})
        node.stage.grow({of_process: 2000.0 if bursts else 0.0}, owner="late")
        node.stage.silent = {"late"} if sample > 230 and sample % 8 != 6 else set()  # every four seconds
        scene = node.stage.step(SAMPLE_S)
        if sample % 2 == 0:
            found += node.detector.step(scene)
    assert scene.view.value(*of_host) == scene.view.value(*of_process) == 30_000.0
    assert of_kind(found) == {"pid 7 VLLM::Worker_TP"}


def test_the_host_ends_when_a_process_turns_out_to_have_its_faults() -> None:
    burst = recurring(3.0, 0.1, 2000.0, every_s=10.0, since_s=80.0)

    def late(at_s: float) -> float:
        return burst(at_s) if at_s > 105.0 else 0.0

    def early(at_s: float) -> float:
        return burst(at_s) if at_s < 105.0 else 0.0

    found = Faults({7: late}, host=early).run(145.0)
    host = [finding for finding in found if finding.entity.scope == "host"]
    assert [finding.over for finding in host][-1:] == [True]
    assert "pid 7 VLLM::Worker_TP" in of_kind(found)
    assert evidence(found[-1], "burst_duration").observed == pytest.approx(3.0, rel=0.1)


def test_a_process_that_ends_takes_its_burst_with_it() -> None:
    node = Faults({7: recurring(5.0, 0.1, 2000.0, every_s=1e6, since_s=80.0)})
    assert node.run(83.0)
    node.rates.clear()
    for metric in (catalogue.PROCESS_PAGE_FAULTS, catalogue.PROCESS_CPU_SECONDS, catalogue.PROCESS_GPU_MEMORY):
        node.stage.drop(metric)
    assert node.run(60.0) == []
    assert node.detector._episodes == {}
    assert node.detector._past == {}


def test_a_counter_that_begins_anew_is_no_burst() -> None:
    node = Faults({7: steady(100.0)})
    node.run(80.0)
    node.stage.put({(catalogue.PROCESS_PAGE_FAULTS, (*workload(7), "major")): 1e6})
    assert node.run(1.0) != []  # a million faults at once
    node = Faults({7: steady(100.0)})
    node.run(80.0)
    node.stage.put({(catalogue.PROCESS_PAGE_FAULTS, (*workload(7), "major")): 0.0})
    assert node.run(60.0) == []


def test_nothing_is_known() -> None:
    assert Stage().run(PageFaultBurst(), 30.0) == []


def test_thirty_processes_cost_little() -> None:
    node = Faults({pid: steady(8.0) for pid in range(100, 130)})
    node.run(100.0)
    scenes = []
    for _ in range(30):
        for pid in node.rates:
            node.stage.grow({(catalogue.PROCESS_PAGE_FAULTS, (*workload(pid), "major")): 8.0})
        scenes.append(node.stage.step(1.0))
    for scene in scenes:
        scene.grown(catalogue.PROCESS_PAGE_FAULTS)
        scene.values(catalogue.PROCESS_CPU_SECONDS)
    calls = Counter[str]()  # not time: that would be the machine's
    sys.setprofile(lambda _frame, event, _arg: calls.update([event]))
    try:
        for scene in scenes:
            list(node.detector.step(scene))
    finally:
        sys.setprofile(None)
    assert calls["call"] < 8 * len(node.rates) * len(scenes)
