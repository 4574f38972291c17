"""``gpumon run`` as a process beside a load, and what its page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from types import TracebackType
from typing import Self

from tests.gpu.common import LIBRARY

_URL = re.compile(r"url=(http://\S+/metrics)")
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
START_S = 30.0

Series = dict[tuple[str, str], float]


class Gpumon:
    """Running within the ``with``."""

    def __init__(self, *flags: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at the end of the with
        self._state = tempfile.TemporaryDirectory(prefix="gpumon-state-")
        command = [sys.executable, "-m", "gpumon", "run", "--listen", "127.0.0.1:0", "--nvml-lib", LIBRARY, *flags]
        env = os.environ | {"GPUMON_STATE__FOLDER": self._state.name}
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._log, env=env)
        self._url = ""

    def __enter__(self) -> Self:
        try:
            self._url = self._wait_for_url()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def page(self) -> Series:
        """Series of /metrics: by name and the text of its labels."""
        with urllib.request.urlopen(self._url, timeout=10) as response:
            text = response.read().decode()
        found = (_SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#"))
        return {(m.group(1), m.group(2) or ""): float(m.group(3)) for m in found if m}

    def log(self) -> str:
        """What it has logged so far."""
        self._log.seek(0)
        return self._log.read()

    def _wait_for_url(self) -> str:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            found = _URL.search(self.log())
            if found:
                return found.group(1)
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"gpumon does not listen; its log: {self.log()[-2000:]}")

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._state.cleanup()


def value(page: Series, name: str, labels: str = "") -> float | None:
    """First series of that name whose labels hold the text."""
    return next((v for (n, text), v in page.items() if n == name and labels in text), None)


def rate(before: Series, after: Series, name: str, labels: str = "") -> float | None:
    """Difference of a counter between two pages."""
    first, last = value(before, name, labels), value(after, name, labels)
    return None if first is None or last is None else last - first
