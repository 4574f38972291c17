"""A rehearsal of check.sh without a GPU: over the fake driver with a stand-in load, everything but the verdicts."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpumon.host.nvml import MINOR, UUID, Code, Field, NvmlError
from tests.fake_port import FakeNvml, device
from tests.fakenvml.controller import FakeNode
from tests.gpu import summary
from tests.gpu.recorder import Recorder, Recording

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = (
    *("activity.json", "calls.json", "environment.json", "fields.json", "gpm.json", "overhead.json"),
    *("permissions.json", "samples.json", "wrap.json", "recording.jsonl.gz", "summary.txt"),
)


def check(out: Path, node: FakeNode, *steps: str, load: str = "cpu") -> tuple[int, list[str]]:
    """Exit status and the lines of the summary."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUMON_")}
    env |= {"OUT": str(out), "CHECK_SCALE": "0.02", "LOAD": load, "PYTHON": sys.executable}
    env["CUDA_VISIBLE_DEVICES"] = ""  # no real GPU either, should this machine have one
    done = subprocess.run(
        [str(HERE / "check.sh"), *steps], env=node.env(env), cwd="/", capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    summary = (out / "summary.txt").read_text()
    assert done.stdout.endswith(summary)
    return done.returncode, summary.splitlines()


@pytest.mark.slow
def test_the_whole_check_runs_and_leaves_every_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        status, lines = check(out, node)
        misuse = node.misuse()
    assert [line for line in lines if line.startswith(("ERROR", "NO"))] == []
    assert status == 0
    assert [name for name in FILES if not (out / name).exists()] == []
    assert misuse.gpm_leaked_at_shutdown == misuse.stale_handle == misuse.call_after_shutdown == 0
    if not Path("/dev/nvidiactl").exists():
        assert any(line.startswith("SKIP  gpu tests") and "/dev/nvidiactl is missing" in line for line in lines)
    overhead = json.loads((out / "overhead.json").read_text())
    assert overhead["what"] == "gpumon run"
    assert len(overhead["rounds"]) == 12


def test_fields_tells_what_the_driver_answered_and_what_it_did_not(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "node", "t4", 1) as node:
        node.gpu(0).set("energy_mj", 123_456)
        status, _ = check(tmp_path / "out", node, "fields")
    assert status == 0
    document = json.loads((tmp_path / "out/fields.json").read_text())
    by_id = {(field["id"], field["scope"]): field for field in document["fields"]}
    assert by_id[83, 0]["code"] == Code.SUCCESS
    assert by_id[83, 0]["type"] == "ulonglong"
    assert by_id[83, 0]["value"] >= 123_456
    assert by_id[142, 0]["code"] == Code.INVALID_ARGUMENT
    assert by_id[142, 0]["value"] is None


def test_gpm_that_is_not_there_is_a_skip(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "node", "t4", 1) as node:
        status, lines = check(tmp_path / "out", node, "gpm")
    assert status == 0
    assert lines[1].startswith("SKIP  GPM")


def test_permissions_are_told_by_user(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        node.fail("nvmlGpmSampleGet", Code.NO_PERMISSION)
        status, lines = check(tmp_path / "out", node, "permissions")
    assert status == 0
    if os.geteuid() != 0:
        assert lines[1].startswith("SKIP  permissions")
        return
    assert "NO_PERMISSION: gpm_sample_1, gpm_sample_2" in next(line for line in lines if "as root" in line)
    results = json.loads((tmp_path / "out/permissions.json").read_text())
    assert results["nobody"]["uid"] == 65534


def test_a_step_that_fails_is_an_error_and_the_others_go_on(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        node.fail("nvmlDeviceGetHandleByIndex_v2", Code.GPU_IS_LOST)
        status, lines = check(tmp_path / "out", node, "fields", "samples", "environment")
    assert status == 1
    assert any(line.startswith("ERROR fields") for line in lines)
    assert any(line.startswith("ERROR samples") for line in lines)
    assert any(line.startswith("INFO  NVML functions") for line in lines)


def test_without_anything_to_load_the_gpu_with_the_step_says_so(tmp_path: Path) -> None:
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        status, lines = check(tmp_path / "out", node, "wrap", load="cuda")
    assert status == 1
    assert any(line.startswith("ERROR wrap") and "no CUDA load" in line for line in lines)


def test_a_recording_has_results_failures_and_parts_and_no_uuid(tmp_path: Path) -> None:
    uuid = "GPU-5a1c9d1e-1111-2222-3333-444455556666"
    masked = "GPU-00000000-0000-0000-0000-000000000000"
    port = FakeNvml({"uuid": uuid}, {94: 7})
    port.errors["minor"] = Code.UNKNOWN
    recording = Recording(tmp_path / "recording.gz")
    recorder = Recorder(port, recording)
    assert recorder.text(device(), UUID) == uuid
    with pytest.raises(NvmlError):
        recorder.number(device(), MINOR)
    batch = recorder.fields(device(), [Field(94), Field(95)])
    assert batch.read() == [7, None]
    assert batch.codes() == [Code.SUCCESS, Code.NOT_SUPPORTED]
    recording.close()
    with gzip.open(tmp_path / "recording.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    assert all(line.pop("t") >= 0 and line.pop("us") >= 0 for line in lines)
    assert lines == [
        {"on": "nvml", "call": "text", "device": "0", "args": ["uuid"], "result": masked},
        {"on": "nvml", "call": "number", "device": "0", "args": ["minor"], "code": 999, "function": "minor"},
        {"on": "nvml", "call": "fields", "device": "0", "args": [[[94, 0], [95, 0]]], "result": "fields#1"},
        {"on": "fields#1", "call": "read", "result": [7, None]},
        {"on": "fields#1", "call": "codes", "result": [0, 3]},
    ]


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        ({"rows/a.json": '{"seconds": 1, "rows": [["x", "1", "OK"]]}'}, 0, "OK    x"),
        ({"rows/a.json": '{"seconds": 1, "rows": [["x", "1", "NO"]]}'}, 1, "NO    x"),
        ({"rows/a.json": '{"seconds": 1, "rows": [["x", "1", "SKIP"]]}'}, 0, "SKIP  x"),
        ({"rows/a.json": "{", "logs/a.txt": "first\nSegmentation fault\n"}, 1, "ended with status 139: Segmentation"),
        ({}, 1, "ended with status 139: without a word"),
    ],
)
def test_the_summary_tells_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], status: int, words: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(summary, "OUT", tmp_path)
    assert summary.main(["a=139"]) == status
    assert words in (tmp_path / "summary.txt").read_text()


def test_a_step_that_took_too_long_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "OUT", tmp_path)
    assert summary.main(["a=124"]) == 1
    assert "took too long" in (tmp_path / "summary.txt").read_text()
