"""Which sources there are for which configuration and machine, how often they are read, and what is looked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpumon import catalogue
from gpumon.config import Config
from gpumon.detect.detectors import DetectConfigError
from gpumon.health import Health
from gpumon.host.clock import ManualClock
from gpumon.host.kube_api import Change, KubePod
from gpumon.host.podresources import Answer, HeldDevices
from gpumon.machine import Ports
from gpumon.model import GpuProcess, GpuUuid, Sample
from gpumon.node import Node
from gpumon.sampler.handover import Plan
from gpumon.sources.servers import ServerSource
from gpumon.store import Store
from gpumon.wiring import build_detection, host_sources, sampler_plan
from tests.fakes import AskedHttp, FakeFiles, FakeKernelLog, FakePages


class Bench:
    """A machine, and its sources for a configuration."""

    def __init__(self, *, kernel_log: bool = True, server_urls: tuple[str, ...] = (), **sections: Any) -> None:
        self.clock = ManualClock()
        self.http = AskedHttp(self.clock)
        log = FakeKernelLog() if kernel_log else None
        self.ports = ports = Ports(FakeFiles({}), FakePages(lambda _: 0), log, self.http, server_urls)
        self.store = Store()
        self.node = Node(self.store, Health(self.clock.to_unix), self.clock)
        self.config = Config.model_validate(sections)
        self.sources = host_sources(self.config, ports, self.node)

    @property
    def cadences(self) -> dict[str, float]:
        return {scheduled.source.name: scheduled.every_s for scheduled in self.sources}


def test_every_source_has_the_cadence_that_is_configured_for_it() -> None:
    cadence = {"medium_s": 0.25, "slow_s": 9.0, "numa_s": 33.0, "servers_s": 7.0, "publish_s": 2.0}
    bench = Bench(cadence=cadence, server_urls=("http://127.0.0.1:8000/metrics",))
    assert bench.cadences == {
        "host": 0.25,
        "gpu_holders": 2.0,
        "processes": 0.25,
        "numa": 33.0,
        "kernel_log": 1.0,
        "xid": 2.0,
        "servers": 7.0,
    }


def test_processes_are_found_as_often_as_they_are_read_where_that_is_more_often() -> None:
    assert Bench(cadence={"slow_s": 0.5}).cadences["gpu_holders"] == 0.5


def test_what_is_off_or_not_there_has_no_source() -> None:
    names = set(Bench(kernel_log=False, numa={"enabled": False}, servers={"discover": False}).cadences)
    assert names == {"host", "gpu_holders", "processes", "xid"}


def test_servers_are_looked_for_unless_that_is_off_and_read_where_they_are_named() -> None:
    assert "servers" in Bench().cadences
    named = {"discover": False, "targets": ["http://127.0.0.1:8000/metrics"]}
    assert "servers" in Bench(servers=named).cadences


def test_pods_are_told_by_what_there_is_to_tell_of_them() -> None:
    class Kubelet:
        def list(self) -> Answer:
            return Answer((), 0, "v1")

        def get(self, namespace: str, pod: str) -> None:
            return None

        def allocatable(self) -> tuple[HeldDevices, ...]:
            return ()

    class Logs:
        def names(self, folder: str) -> list[str]:
            return []

    class Api:
        def pods(self, *, newest: bool) -> tuple[list[KubePod], str]:
            return [], ""

        def watch(self, version: str) -> None: ...

        def changes(self) -> list[Change]:
            return []

    def names(**ports: Any) -> dict[str, float]:
        bench = Bench()
        made = replace(bench.ports, **ports)
        sources = host_sources(bench.config, made, bench.node)
        return {each.source.name: each.every_s for each in sources if each.source.name not in bench.cadences}

    assert names() == {}
    assert names(log_names=Logs()) == {"pod_names": 2.0}
    assert names(pod_resources=Kubelet()) == {"kubelet": 2.0, "pods": 2.0}
    assert set(names(pod_resources=Kubelet(), kube_api=Api(), log_names=Logs())) == {
        *("kubelet", "pods", "pod_labels", "pod_names")
    }


def test_servers_of_the_machine_and_of_the_configuration_are_read() -> None:
    simulated, configured = "http://127.0.0.1:8000/metrics", "http://10.0.0.1:8000/metrics"
    bench = Bench(server_urls=(simulated,), servers={"targets": [configured]}, cadence={"servers_s": 0.5})
    (servers,) = [each.source for each in bench.sources if isinstance(each.source, ServerSource)]
    list(servers.read(bench.clock.now_s()))
    assert {url for _, url in bench.http.asked} == {simulated, configured}


def test_a_list_of_processes_is_believed_for_longer_than_the_time_between_two() -> None:
    process = GpuProcess(1, "0", GpuUuid("GPU-0"), 1.0, None)
    for slow_s, believed in ((5.0, False), (30.0, True)):
        bench = Bench(cadence={"slow_s": slow_s})
        bench.node.gpu_processes(GpuUuid("GPU-0"), [process])
        bench.clock.step(60.0)
        assert bool(bench.node.holders()) is believed


def test_the_samplers_plan_is_what_is_configured() -> None:
    config = Config.model_validate(
        {
            "cadence": {"fast_s": 0.05, "publish_s": 0.5, "slow_s": 3.0, "inventory_s": 20.0},
            "nvml": {"stuck_after_s": 2.0, "retry_min_s": 0.5, "retry_max_s": 9.0},
        }
    )
    assert sampler_plan(config) == Plan(
        fast_s=0.05, mig_s=0.5, slow_s=3.0, inventory_s=20.0, stuck_after_s=2.0, retry_min_s=0.5, retry_max_s=9.0
    )


def test_kinds_that_are_off_have_no_series() -> None:
    bench = Bench(detect={"off": ["xid", "ecc"]})
    detection = build_detection(bench.config, bench.clock.to_unix, bench.store.view)
    items = detection.read(bench.clock.now_s())
    kinds = {item.labels[0] for item in items if isinstance(item, Sample) and item.metric is catalogue.INCIDENTS}
    assert kinds == set(catalogue.INCIDENT_KINDS) - {"xid", "ecc"}


@pytest.mark.parametrize(
    ("detect", "said"),
    [
        ({"off": ["xidd"]}, 'detect.off[0] = "xidd": expected a kind of incident; did you mean xid?'),
        ({"thresholds": {"xid": {"x": 1}}}, 'detect.thresholds[xid]["x"]: expected the name of a threshold'),
        ({"thresholds": {"thermal_throttle": {"share": -1}}}, "detect.thresholds[thermal_throttle][share] = -1"),
    ],
)
def test_what_cannot_be_taken_is_named_with_its_key(detect: dict[str, Any], said: str) -> None:
    bench = Bench(detect=detect)
    with pytest.raises(DetectConfigError) as caught:
        build_detection(bench.config, bench.clock.to_unix, bench.store.view)
    assert str(caught.value).startswith(said)
