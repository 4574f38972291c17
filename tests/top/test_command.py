"""`gpumon top` as it is run, without a terminal: in a pipe, for scripts, and where there is nothing to ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumon.top.answers import Snapshot
from tests.top.stage import Stage

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


def top(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gpumon", "top", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("once", [[], ["--once"]])
def test_a_pipe_gets_one_look_as_plain_text(stage: Stage, once: list[str]) -> None:
    code, out, err = top("--url", stage.url, *once)
    assert (code, err) == (0, "")
    assert out == (ROOT / "tests/golden/top/whole-80.txt").read_text()


def test_scripts_get_all_that_is_shown(stage: Stage) -> None:
    code, out, err = top("--url", stage.url, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["gpus"]["gpus"][3]["throttled_by"] == ["sw_thermal"]
    assert said["problems"] == {}
    assert Snapshot.model_validate(said).node.name == "gpu-1"


def test_no_gpumon_there_is_one_line_and_exit_status_1() -> None:
    with Stage() as stage:
        pass
    code, out, err = top("--url", stage.url)
    assert (code, out) == (1, "")
    assert err.startswith(f"gpumon: no gpumon answers at {stage.url}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "gpu-1"),
        ("--every", "0"),
        ("--every", "nan"),
        ("--once", "--every", "5"),
        ("--json", "--every", "5"),
        ("--once", "--json"),
    ],
)
def test_wrong_arguments_are_exit_status_2(arguments: tuple[str, ...]) -> None:
    code, out, err = top(*arguments)
    assert (code, out) == (2, "")
    assert arguments[0] in err


def test_neither_fastapi_nor_numpy_is_loaded(stage: Stage) -> None:
    code = (
        f"import sys\nfrom gpumon.cli import main\nassert main(['top', '--json', '--url', {stage.url!r}]) == 0\n"
        "print([name for name in ('fastapi', 'numpy', 'grpc', 'pynvml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"
