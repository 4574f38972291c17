"""The whole of gpumon on a stepped clock: what runs when, and that it reaches nothing but its ports."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from gpumon import catalogue
from gpumon.config import CadenceConfig, Config, DetectConfig, ForwardConfig, RequestsConfig, ServersConfig
from gpumon.host.clock import ManualClock
from gpumon.host.files import ReadError
from gpumon.ingest.request import Signal
from gpumon.machine import Ports
from gpumon.model import GpuUuid, Reason, RequestRecord
from gpumon.stepped import SteppedNode
from tests.e2e.traces.gateway import move
from tests.fakes import AskedHttp, FakeFiles, FakeKernelLog, FakePages
from tests.fixtures.hosts import fixture_files
from tests.ingest.senders import T0
from tests.ingest.servers import vllm_request, vllm_sender

BEGAN_S = 10_000.03
URL = "http://127.0.0.1:8000/metrics"
SLOW = CadenceConfig(publish_s=60, medium_s=60, slow_s=300, inventory_s=3600, servers_s=0.7, numa_s=3600)


UUID = GpuUuid("GPU-0a1b2c3d-1234-5678-9abc-def012345678")


class Bench:
    """A node without GPUs, on a clock that does not begin on anything's grid."""

    def __init__(self, config: Config | None = None, by_hand: frozenset[str] = frozenset()) -> None:
        config = Config(cadence=SLOW, detect=DetectConfig(every_s=60)) if config is None else config
        self.clock = ManualClock(BEGAN_S)
        self.http = AskedHttp(self.clock)
        self.log = FakeKernelLog()
        self.records: list[RequestRecord] = []
        ports = Ports(FakeFiles(fixture_files("h200")), FakePages(lambda _: 0), self.log, self.http, (URL,))
        self.node = SteppedNode(config, ports, None, self.clock, by_hand=by_hand, on_requests=self.records.extend)


def test_the_grid_does_not_drift_over_hours_nor_depend_on_the_strides() -> None:
    others = frozenset(Bench().node.by_name) - {"servers"}
    bench, other = Bench(by_hand=others), Bench(by_hand=others)
    until_s = BEGAN_S + 3 * 3600
    bench.node.advance(until_s)
    while other.clock.now_s() < until_s:
        other.node.advance(min(until_s, other.clock.now_s() + 613.17))
    first = int(BEGAN_S // 0.7) + 1
    # Exactly: a sum of fractions would be off by then.
    assert bench.http.times == [tick * 0.7 for tick in range(first, int(until_s // 0.7) + 1)]
    assert other.http.times == bench.http.times


def test_the_clock_stands_at_the_moment_asked_for_and_never_goes_back() -> None:
    bench = Bench()
    bench.node.advance(BEGAN_S + 1.234)
    assert bench.clock.now_s() == BEGAN_S + 1.234
    bench.node.advance(BEGAN_S)
    assert bench.clock.now_s() == BEGAN_S + 1.234


def test_what_is_run_by_hand_runs_at_no_other_time() -> None:
    bench = Bench(by_hand=frozenset({"servers"}))
    bench.node.advance(BEGAN_S + 30)
    assert bench.http.asked == []
    assert bench.node.run("servers", BEGAN_S + 31.5)
    assert bench.http.times == [BEGAN_S + 31.5]


def test_what_is_due_before_a_task_run_by_hand_is_done_first() -> None:
    bench = Bench(by_hand=frozenset({"kernel_log"}))
    bench.node.run("kernel_log", BEGAN_S + 2)
    assert len(bench.http.asked) == 3


def test_a_task_that_is_not_there_is_not_run() -> None:
    bench = Bench()
    assert not bench.node.run("gpu_fast", BEGAN_S + 1)
    assert "gpu_fast" not in bench.node.by_name  # without NVML
    assert bench.node.sampler is None


def test_what_is_read_at_a_moment_is_detected_at_that_moment() -> None:
    bench = Bench(Config())
    bench.node.node.gpu_identity(UUID, "0", "0000:3b:00.0")
    bench.node.advance(10_003.5)
    bench.log.write("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus.")
    bench.node.advance(10_005.0)
    (incident,) = bench.node.detection.incidents()
    assert (incident.kind, incident.entity.gpu, incident.opened_s) == ("xid", "0", 10_004.0)


def test_one_source_that_fails_does_not_end_the_others() -> None:
    bench = Bench(Config())
    bench.log.error = ReadError("kernel log", Reason.DENIED, "refused by the test")
    bench.node.advance(BEGAN_S + 5)
    up = {
        sample.labels[0]: sample.value
        for sample in bench.node.health.samples(bench.clock.now_s())
        if sample.metric is catalogue.SOURCE_UP
    }
    assert up.pop("kernel_log") == 0.0
    assert up["host"] == up["detect"] == 1.0
    assert bench.http.asked


def test_requests_are_read_assembled_and_told_and_what_cannot_be_read_is_counted() -> None:
    bench = Bench(Config())
    sender = vllm_sender(**{"gen_ai.request.model": "llama"})
    vllm_request(sender)
    request = encode_spans(sender.spans)
    bench.node.advance(BEGAN_S + 5)
    move(request, round(bench.clock.to_unix(bench.clock.now_s()) * 1e9) - T0 - 3 * 10**9)
    for body, is_json in ((b"\xff\xff", False), (b"{", True), (b"[]", True)):
        bench.node.offer(body, is_json=is_json)
    bench.node.offer(request.SerializeToString(), peer="127.0.0.1")
    bench.node.offer(b"\xff", signal=Signal.METRICS)  # of which nothing is read
    bench.node.advance(BEGAN_S + 10)
    assert [record.model for record in bench.records] == ["llama"]
    assert bench.node.undecodable == 3


def test_nothing_but_the_ports_is_asked_or_told(tmp_path: Path) -> None:
    spool, logs = tmp_path / "spool", tmp_path / "nccl"
    config = Config(
        servers=ServersConfig(targets=("http://10.0.0.1:9/metrics",)),
        forward=ForwardConfig(endpoint="http://127.0.0.1:9", spool=spool),
        requests=RequestsConfig(nccl_inspector=logs),
    )
    bench = Bench(config)
    bench.node.advance(BEGAN_S + 10)
    assert {url for _, url in bench.http.asked} == {URL}
    assert bench.node.tracing.forwarder is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("every_s", [0.5, 7.0])
def test_detection_runs_as_often_as_it_is_configured(every_s: float) -> None:
    bench = Bench(Config(cadence=SLOW, detect=DetectConfig(every_s=every_s)))
    bench.node.advance(BEGAN_S + 60)
    success = {
        sample.labels[0]: sample.value
        for sample in bench.node.health.samples(bench.clock.now_s())
        if sample.metric is catalogue.SOURCE_LAST_SUCCESS
    }
    assert success["detect"] == bench.clock.to_unix((BEGAN_S + 60) // every_s * every_s)
