"""The probe's process: whatever becomes of it, the doctor has an answer in time."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from gpumon.doctor.facts import NvmlFacts, ProbeRequest, run_probe
from gpumon.host.nvml import Code
from tests.doctor.machines import call_error, healthy_gpu, healthy_nvml

REQUEST = ProbeRequest(-1, "", 0.2, 0.1, "/proc", "/sys", "/sys/fs/cgroup")


@pytest.fixture
def environ() -> dict[str, str]:
    return {"PATH": os.environ["PATH"]}


def interpreter(folder: Path, script: str) -> str:
    """Something that is started in the interpreter's place."""
    path = folder / "interpreter"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_facts_travel_as_json() -> None:
    gpu = healthy_gpu(1)
    gpu.error = call_error(Code.GPU_IS_LOST)
    facts = healthy_nvml(healthy_gpu(), gpu)
    assert NvmlFacts.from_json(facts.to_json()) == facts
    facts.error = call_error(Code.UNKNOWN)
    assert NvmlFacts.from_json(facts.to_json()) == facts


def test_a_request_travels_as_json() -> None:
    assert ProbeRequest.from_argument(REQUEST.to_argument()) == REQUEST


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -SEGV $$", "SIGSEGV"),
        ("exit 3", "status 3"),
        ("exit 0", "no answer"),
    ],
)
def test_a_probe_that_ends_without_an_answer_says_how(
    tmp_path: Path, environ: dict[str, str], script: str, words: str
) -> None:
    assert words in run_probe(REQUEST, environ, interpreter(tmp_path, script)).died


def test_a_probe_that_cannot_be_started(environ: dict[str, str]) -> None:
    assert "cannot start /nowhere/python" in run_probe(REQUEST, environ, "/nowhere/python").died


def test_an_answer_that_is_cut_off(tmp_path: Path, environ: dict[str, str]) -> None:
    # The descriptor's number stands in the last argument; /dev/fd, because plain sh has no descriptors past 9.
    script = r"""fd=$(echo "$4" | sed 's/.*"answer_fd": \([0-9]*\).*/\1/'); printf '{"libr' >/dev/fd/$fd"""
    assert run_probe(REQUEST, environ, interpreter(tmp_path, script)).died == "its answer was cut off"


def test_a_probe_that_says_nothing_is_killed_at_the_deadline(tmp_path: Path, environ: dict[str, str]) -> None:
    began_s = time.monotonic()
    facts = run_probe(REQUEST, environ, interpreter(tmp_path, "exec sleep 60"))
    assert facts.died == "it gave no answer in time"
    assert time.monotonic() - began_s < REQUEST.deadline_s + 30
