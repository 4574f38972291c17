"""Recording a daemon: the file, what its header tells and does not tell, and how recording ends."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gpumon.config import CadenceConfig, Config, ForwardConfig, HttpConfig, RequestsConfig, ServersConfig
from gpumon.host.clock import ManualClock
from gpumon.host.http import HttpError
from gpumon.host.log_names import LogFolder
from gpumon.ingest.request import Signal
from gpumon.machine import Machine, Ports, real_machine
from gpumon.model import Item, Reason
from gpumon.record.format import Reader
from gpumon.record.replay_ports import ReplayHttp
from gpumon.record.timeline import Recording, Request
from gpumon.recording import DaemonRecording, Wish
from gpumon.replayed import Replay
from tests.fakes import FakeFiles, FakeKernelLog, FakePages
from tests.recorded import Studio
from tests.stories import FOUND, write_story

NAMES = ("gpu-box-17.example.org",)


class Silence:
    """``host.http.Http`` that answers one page."""

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        if "8000" not in url:
            raise HttpError(Reason.UNAVAILABLE, "nobody is there")
        return b"# nothing\n"


class Reads:
    """A source that reads a file."""

    name = "host"

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def read(self, at_s: float) -> list[Item]:
        self._ports.files.read("proc/stat")
        return []


def machine() -> Machine:
    ports = Ports(FakeFiles({"proc/stat": "cpu 1 2 3\n"}), FakePages(lambda _: 0), FakeKernelLog(), Silence())
    return Machine(ports, ["sampler"], {"library": ""})


def recording(wish: Wish, config: Config | None = None) -> DaemonRecording:
    return DaemonRecording(wish, Config() if config is None else config, machine(), ManualClock(1000.0), NAMES)


def test_the_file_is_its_owners_alone_and_can_be_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.rec"
    recording(Wish(path)).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Recording(path).truncated == ""


def test_the_header_tells_what_a_replay_needs_and_no_secret(tmp_path: Path) -> None:
    secret = "correct-horse"
    config = Config(
        cadence=CadenceConfig(fast_s=0.2),
        http=HttpConfig(web_config=Path(f"/etc/{secret}")),
        forward=ForwardConfig(endpoint=f"https://{secret}.example.org", headers={"authorization": secret}),
        servers=ServersConfig(
            targets=(f"http://user:{secret}@10.0.0.5:8000/metrics", f"http://10.0.0.6:8000/m?token={secret}")
        ),
        requests=RequestsConfig(models={"svc": "llama"}),
    )
    path = tmp_path / "x.rec"
    recording(Wish(path), config).close()
    header = Reader(path).header
    assert secret not in json.dumps(header)
    assert header["node_names"] == [*NAMES]
    assert header["kernel_log"] is True
    assert isinstance(header["config"], dict)
    assert header["config"]["cadence"]["fast_s"] == 0.2
    assert header["config"]["requests"]["models"] == {"svc": "llama"}
    assert set(header["config"]["servers"]) == {"discover", "ports", "exclude_ports"}
    assert isinstance(header["server_urls"], list)
    assert header["server_urls"][0] == "http://10.0.0.5:8000/metrics"


def test_a_masked_header_names_neither_the_node_nor_its_servers(tmp_path: Path) -> None:
    config = Config(servers=ServersConfig(targets=("http://gpu-box-9.example.org:8000/metrics",)))
    path = tmp_path / "x.rec"
    recording(Wish(path, mask=True), config).close()
    header = json.dumps(Reader(path).header)
    assert "gpu-box" not in header
    assert "example.org" not in header


@pytest.mark.parametrize("mask", [False, True])
def test_pages_of_configured_servers_are_found_again_in_the_replay(tmp_path: Path, mask: bool) -> None:
    """Also where what is secret was left out of the address, or the host was given another name."""
    url = "http://gpu-box-9.example.org:8000/metrics?token=correct-horse"
    path = tmp_path / "x.rec"
    made = recording(Wish(path, mask=mask), Config(servers=ServersConfig(targets=(url,))))
    assert made.machine.ports.http.get(url, timeout_s=1.0, limit=1000) == b"# nothing\n"
    made.close()
    assert "servers" in Replay(path, Config()).node.by_name
    held = Recording(path)
    addresses = held.header["server_urls"]
    assert isinstance(addresses, list)
    (address,) = addresses
    assert ReplayHttp(held, ManualClock(2000.0)).get(address, timeout_s=1.0, limit=1000) == b"# nothing\n"


def test_passes_answers_and_bodies_are_written(tmp_path: Path) -> None:
    path = tmp_path / "x.rec"
    made = recording(Wish(path))
    source = made.source(Reads(made.machine.ports))
    assert source.name == "host"
    assert list(source.read(1000.5)) == []
    made.body(Signal.TRACES, b"", False, "10.0.0.7", 1001.0)
    made.close()
    events = list(Recording(path).passes())
    assert [getattr(event, "name", "request") for event in events] == ["host", "request"]
    assert isinstance(events[1], Request)
    assert events[1].peer == "10.0.0.7"


def test_the_sampler_is_told_to_record_its_part_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = recording(Wish(Path("x.rec"), limit_bytes=1 << 20))
    made.close()
    wrapped = made.machine
    assert wrapped.sampler is not None
    assert "gpumon.recorded_sampler" in wrapped.sampler[-1]
    assert wrapped.sampler_options["library"] == ""  # the machine's own
    assert wrapped.sampler_options["record"] == str(tmp_path / "x.rec")
    assert wrapped.sampler_options["record_limit_bytes"] == str(1 << 20)


def test_without_nvml_there_is_no_sampler_to_record(tmp_path: Path) -> None:
    config = Config.model_validate({"nvml": {"enabled": False}})
    made = DaemonRecording(Wish(tmp_path / "x.rec"), config, real_machine(config), ManualClock(), NAMES)
    made.close()
    assert made.machine.sampler is None


def test_a_machine_without_a_kernel_log_is_recorded_as_one(tmp_path: Path) -> None:
    bare = machine()
    without = Machine(Ports(bare.ports.files, bare.ports.pages, None, bare.ports.http), None)
    made = DaemonRecording(Wish(tmp_path / "x.rec"), Config(), without, ManualClock(), NAMES)
    made.close()
    assert made.machine.ports.kernel_log is None
    assert "kernel_log" not in Replay(tmp_path / "x.rec", Config()).node.by_name


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_a_file_that_is_there_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.rec"
    path.write_bytes(b"mine")
    with pytest.raises(OSError, match=r"cannot record to .*x\.rec: File exists; --overwrite replaces it"):
        recording(Wish(path))
    assert path.read_bytes() == b"mine"
    recording(Wish(path, overwrite=True)).close()
    assert Recording(path).truncated == ""


@pytest.mark.parametrize(
    ("below", "said"), [("nowhere/x.rec", "No such file or directory"), ("file/x.rec", "Not a directory")]
)
def test_a_path_that_cannot_be_made_is_said(tmp_path: Path, below: str, said: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"cannot record to {tmp_path / below}: {said}$"):
        recording(Wish(tmp_path / below))


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match=r"cannot record to .*pipe: File exists$"):
        recording(Wish(path, overwrite=True))
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_the_limit_ends_the_recording_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.rec"
    limit = 30_000
    caplog.set_level("INFO")
    studio = Studio(path, write_story(tmp_path), limit_bytes=limit)
    studio.advance(24)
    findings = studio.close()
    assert len(findings) == len(FOUND)  # the daemon went on
    assert path.stat().st_size <= limit
    assert studio.stops == [f"the file would be larger than its limit of {limit} bytes"]
    assert "recording=stopped detail=" in caplog.text
    assert f"recording=ended path={path} bytes={path.stat().st_size}" in caplog.text
    replay = Replay(path, Config())
    assert replay.recording.truncated == ""
    assert len(list(replay.run())) > 3


def test_bodies_that_were_not_recorded_are_counted_in_the_last_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = recording(Wish(tmp_path / "x.rec"))
    for _ in range(3):
        made.body(Signal.TRACES, b"\xff\xff", False, "10.0.0.7", 1001.0)
    made.close()
    assert "requests_not_recorded='unreadable 3'" in caplog.text


def test_a_file_that_was_removed_meanwhile_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    made = recording(Wish(tmp_path / "x.rec"))
    (tmp_path / "x.rec").unlink()
    made.close()
    assert "bytes=0" in caplog.text


def test_what_tells_of_pods_goes_on_and_is_not_recorded(tmp_path: Path) -> None:
    folder = LogFolder(str(tmp_path))
    bare = machine()
    named = replace(bare, ports=replace(bare.ports, log_names=folder))
    made = DaemonRecording(Wish(tmp_path / "x.rec"), Config(), named, ManualClock(), NAMES)
    made.close()
    assert made.machine.ports.log_names is folder
    assert {"pods", "pod_names", "kubelet"}.isdisjoint(Replay(tmp_path / "x.rec", Config()).node.by_name)
