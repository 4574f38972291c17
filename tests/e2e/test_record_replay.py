"""`gpumon record` and `gpumon replay` as programs: the same findings on any day, and nothing that must not be there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon.ingest.attributes import DROPPED_PREFIXES
from gpumon.ingest.records import DROPPED_ATTRIBUTES
from gpumon.record.format import Reader
from gpumon.sim.world import World
from tests.e2e import nodes
from tests.e2e.daemon import FAST, ROOT, Daemon
from tests.e2e.page import Page, promtool_complaints
from tests.e2e.traces.gateway import OTLP, PROTOBUF, Gateway
from tests.e2e.waiting import eventually, settle
from tests.export.otlp_requests import as_json
from tests.stories import FOUND, story, write_story

pytestmark = pytest.mark.slow
LENGTH_S = 22
NODE = "gpu-box-17.example.org"
SECRET = "the correct horse battery staple"
KINDS = set(FOUND)


class Made(NamedTuple):
    """A recording by a process of its own, and what that process said."""

    path: Path
    log: str
    kinds: set[str]
    """Of incidents that it found itself."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Made]]:
    """One plain and one masked recording, made at the same time: of the same node, though not of the same moments."""
    with ExitStack() as stack:
        daemons = {}
        for name, flags in (("plain", ()), ("masked", ("--mask",))):
            folder = tmp_path_factory.mktemp(name)
            arguments = ("node.rec", "--demo", "--scenario", str(write_story(folder)), "--for", str(LENGTH_S), *flags)
            options = FAST | OTLP | {"NODE_NAME": NODE, "GPUMON_LOG__LEVEL": "debug"}
            daemon = Daemon(folder, *arguments, command="record", options=options)
            daemons[name] = folder, stack.enter_context(daemon)
        for _, daemon in daemons.values():
            _plant(Gateway(daemon))
        found = {}
        for name, (folder, daemon) in daemons.items():
            assert daemon.process.wait(LENGTH_S + 20) == 0
            kinds = {kind for kind in FOUND if f" kind={kind} " in daemon.log}
            found[name] = Made(folder / "node.rec", daemon.log, kinds)
        yield found


def _plant(gateway: Gateway) -> None:
    """A request whose spans hold the prompt wherever servers are known to put one."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shim"
    scope = resource.scope_spans.add()
    scope.scope.name = "gpumon.tokens"
    span = scope.spans.add(trace_id=bytes([7] * 16), span_id=bytes([7] * 8), name="gen_ai.request", kind=2)
    span.end_time_unix_nano = time.time_ns() - 10**8
    span.start_time_unix_nano = span.end_time_unix_nano - 10**9
    span.status.message = SECRET
    event = span.events.add(name="gen_ai.content.prompt", time_unix_nano=span.end_time_unix_nano - 10**6)
    for attributes in (span.attributes, event.attributes):
        attributes.add(key="gen_ai.request.model").value.string_value = "planted-model"
        for key in (*sorted(DROPPED_ATTRIBUTES), *(f"{prefix}0.content" for prefix in DROPPED_PREFIXES)):
            attributes.add(key=key).value.string_value = SECRET
    assert gateway.post(request.SerializeToString(), media=PROTOBUF).status == 200
    span.trace_id = bytes([8] * 16)
    assert gateway.post(as_json(request), media="application/json").status == 200


def _unpacked(path: Path) -> bytes:
    """Everything in the file, decompressed."""
    reader = Reader(path)
    return json.dumps(reader.header).encode() + b"".join(chunk.payload for chunk in reader.chunks())


def _replay(path: Path, *arguments: str, days: int = 0) -> subprocess.CompletedProcess[bytes]:
    """`gpumon replay`, on a day so many days from now."""
    code = (
        "import sys, time\n"
        f"real = time.time\ntime.time = lambda: real() + {days} * 86400\n"
        "from gpumon.cli import main\nraise SystemExit(main(sys.argv[1:]))\n"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", code, "replay", str(path), *arguments],
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(abs(days))},
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_recording_ends_by_itself_and_says_what_there_is(made: dict[str, Made]) -> None:
    for name, one in made.items():
        assert f"recording=ended path=node.rec bytes={one.path.stat().st_size}" in one.log, name
        assert one.log.splitlines()[-1].endswith("gpumon=stopped")
        assert "Traceback" not in one.log
        assert one.kinds == KINDS
        assert one.path.stat().st_size < 2 << 20


def test_a_replay_finds_the_same_on_any_day(made: dict[str, Made]) -> None:
    for name, one in made.items():
        first = _replay(one.path, "--json")
        assert (first.returncode, first.stderr) == (0, b""), name
        for days in (400, -900):
            again = _replay(one.path, "--json", days=days)
            assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, b"")
        assert {json.loads(line)["kind"] for line in first.stdout.splitlines()} == KINDS


def test_figures_of_a_masked_recording_are_of_the_same_things_under_other_names(made: dict[str, Made]) -> None:
    def told(name: str) -> dict[tuple[str, str], str]:
        rows = [json.loads(line) for line in _replay(made[name].path, "--json").stdout.splitlines()]
        return {(row["kind"], row["entity"]): row["uuid"] for row in rows if row["uuid"] is not None}

    plain, masked = told("plain"), told("masked")
    assert plain.keys() == masked.keys()
    uuids = {board.uuid for board in World(story(), started_at_s=0.0).boards}
    assert set(plain.values()) == uuids
    assert not set(masked.values()) & uuids


def test_the_page_at_the_end_is_a_page(made: dict[str, Made], tmp_path: Path) -> None:
    pages = []
    for days in (0, 400):
        path = tmp_path / f"{days}.prom"
        assert _replay(made["plain"].path, "--page", str(path), days=days).returncode == 0
        pages.append(path.read_bytes())
    assert pages[0] == pages[1]
    assert promtool_complaints(pages[0]) == ""
    page = Page(pages[0])
    page.finite()
    assert page.value("gpumon_requests_total", server="gpumon", model="planted-model", outcome="ok") == 2
    samples = page.by("gpu", "gpumon_gpu_samples_total")
    assert set(samples) == {"0", "1"}
    assert min(samples.values()) > 9 * (LENGTH_S - 5)


def test_no_prompt_is_in_a_recording_nor_anywhere_else(made: dict[str, Made]) -> None:
    for one in made.values():
        assert b"planted-model" in _unpacked(one.path)
        for path in [path for path in one.path.parent.rglob("*") if path.is_file()]:
            held = _unpacked(path) if path.suffix in (".rec", ".flight") else path.read_bytes()
            assert SECRET.encode() not in held, path
            assert SECRET[4:20].encode() not in held, path


def test_no_identifier_is_in_a_masked_recording(made: dict[str, Made]) -> None:
    world = World(story(), started_at_s=0.0)
    names = [NODE, NODE.partition(".")[0], *(board.uuid for board in world.boards)]
    for pod in world.pods.values():
        names += [pod.uid, pod.uid.replace("-", "_"), pod.container_id, pod.container_id[:12]]
    plain, masked = _unpacked(made["plain"].path), _unpacked(made["masked"].path)
    assert sum(name.encode() in plain for name in names) >= 7  # there are pods that do not run
    for name in names:
        assert name.encode() not in masked, name


def test_a_recording_that_was_cut_short_is_used_as_far_as_it_goes(made: dict[str, Made], tmp_path: Path) -> None:
    data = made["plain"].path.read_bytes()
    path = tmp_path / "cut.rec"
    path.write_bytes(data[: len(data) * 4 // 5])
    done = _replay(path, "--json")
    assert done.returncode == 0
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gpumon: {path}: the end is left out: the chunk at byte ")
    assert "hw_slowdown" in {json.loads(line)["kind"] for line in done.stdout.splitlines()}


def test_a_real_library_is_recorded_over_restarts_of_the_sampler(tmp_path: Path) -> None:
    with (
        nodes.make(tmp_path, "h200", 2) as node,
        Daemon(tmp_path, "node.rec", command="record", env=node.env(), options=FAST) as daemon,
    ):
        daemon.await_series("gpumon_gpu_samples_total", 2)
        settle(2.5)  # what was there when detection looked first is not new
        node.gpu(1).push_xid(79)
        eventually(lambda: "kind=xid" in daemon.log, "the XID is found")
        settle(2.5)  # and written: what a killed process had not written yet is lost
        os.kill(int(re.findall(r"sampler=started pid=(\d+)", daemon.log)[0]), signal.SIGKILL)
        eventually(lambda: daemon.page().value("gpumon_sampler_restarts_total", reason="exited") == 1, "it is replaced")
        before = daemon.await_series("gpumon_gpu_samples_total", 2).by("gpu", "gpumon_gpu_samples_total")
        eventually(
            lambda: daemon.page().value("gpumon_gpu_samples_total", gpu="0") > before["0"] + 20, "it samples again"
        )
        names = {labels["pid"] for labels, _ in daemon.page().select("gpumon_process_gpu_memory_bytes")}
        assert daemon.end() == 0
    page = tmp_path / "page.prom"
    first = _replay(tmp_path / "node.rec", "--json", "--page", str(page))
    assert (first.returncode, first.stderr) == (0, b"")
    (found,) = [row for line in first.stdout.splitlines() if (row := json.loads(line))["kind"] == "xid"]
    assert (found["gpu"], found["uuid"], found["severity"]) == ("1", node.gpu(1).uuid, "critical")
    assert _replay(tmp_path / "node.rec", "--json", days=30).stdout == first.stdout
    told = Page(page.read_bytes())
    assert told.value("gpumon_gpu_samples_total", gpu="0") > before["0"]
    assert {labels["pid"] for labels, _ in told.select("gpumon_process_gpu_memory_bytes")} == names
