"""The command line as tests use it: called in this process (fixture ``invoke``), or run as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gpumon.config import Config
from gpumon.recording import Wish

ROOT = Path(__file__).resolve().parent.parent
Invoke = Callable[..., tuple[int, str, str]]


def program(*arguments: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpumon", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environ},
        cwd=cwd,
    )


class App:
    """Stands where gpumon.app stands: notes what it was asked to run."""

    def __init__(self) -> None:
        self.calls: list[tuple[Config, str | None, Wish | None]] = []
        self.reloaded: Config | None = None

    def run(
        self, config: Config, *, scenario: str | None, reload: Callable[[], Config], record: Wish | None = None
    ) -> int:
        self.calls.append((config, scenario, record))
        self.reloaded = reload()
        return 7
