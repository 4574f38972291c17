"""Processes of others that tests run beside gpumon: their beginning and their end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path


def begin(command: Sequence[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Starts it in the folder of its log, which takes all that it says."""
    with log_path.open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=log_path.parent)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends it in order, or else by force."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
