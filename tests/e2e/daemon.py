"""gpumon as its users run it: a process of its own, on a port that the system picks, asked over HTTP."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from tests.e2e.page import Page
from tests.e2e.waiting import eventually
from tests.fixtures.hosts import fixture_folder

_URL = re.compile(r"url=http://127\.0\.0\.1:(\d+)/metrics")
ROOT = Path(__file__).parents[2]
ALONE = {
    "GPUMON_HOST__KERNEL_LOG": "null",
    "GPUMON_OTLP__ENABLED": "false",
    "GPUMON_STATE__FOLDER": "null",
    "GPUMON_KUBERNETES__POD_RESOURCES": "null",
    "GPUMON_KUBERNETES__LOG_FOLDER": "null",
}
"""Environment of every gpumon here, unless a test says otherwise: nothing that two of them would share."""
FAST = {"GPUMON_CADENCE__PUBLISH_S": "0.2", "GPUMON_CADENCE__SLOW_S": "0.5", "GPUMON_CADENCE__INVENTORY_S": "1"}
"""Environment for tests that would wait for the slower passes otherwise."""


class Reply(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Daemon:
    """One run of gpumon, on a fixture host, alone (``ALONE``), its state beside its log. Ends with ``with``."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        command: str = "run",
        host: str = "h200",
        env: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        own_state: bool = True,
        await_start: bool = True,
        prefix: Sequence[str] = (),
    ) -> None:
        """folder: for its log. env: instead of this process's. options: more variables, such as FAST. own_state: else
        its state is where gpumon itself puts it. prefix: a command that becomes the one after it."""
        self.log_path = folder / "gpumon.log"
        roots = fixture_folder(host)
        flags = [f"--{name}={roots / below}" for name, below in _ROOTS] if command != "demo" else []
        base = {name: value for name, value in (env or os.environ).items() if not name.startswith("GPUMON_")}
        base |= {"PYTHONPATH": str(ROOT), **ALONE, "GPUMON_STATE__FOLDER": str(folder / "state"), **(options or {})}
        if not own_state:
            del base["GPUMON_STATE__FOLDER"]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-P", "-m", "gpumon", command, "--listen", "127.0.0.1:0", *flags, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=base,
                cwd=folder,
            )
        self.port = 0
        if await_start:
            self.await_start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        """All it has logged so far."""
        return self.log_path.read_text(errors="replace")

    def await_start(self) -> None:
        """Until its log names the port."""

        def port() -> int:
            assert self.process.poll() is None, f"gpumon ended with {self.process.returncode}:\n{self.log}"
            found = _URL.search(self.log)
            return int(found.group(1)) if found else 0

        self.port = eventually(port, "a line with the URL", every_s=0.01)

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 10.0,
        most_bytes: int | None = None,
    ) -> Reply:
        """One request on a connection of its own. most_bytes: of an answer that has no end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read(most_bytes))
        finally:
            connection.close()

    def page(self, query: str = "") -> Page:
        """The page as it is now."""
        reply = self.ask(f"/metrics{query}")
        assert reply.status == 200, reply
        return Page(reply.body)

    def await_ready(self, within_s: float = 90.0) -> Self:
        """Until /-/ready says so."""
        eventually(lambda: self.ask("/-/ready").status == 200, "ready", within_s=within_s)
        return self

    def await_series(self, name: str, count: int = 1, *, within_s: float = 90.0, **labels: str) -> Page:
        """Until a page has exactly so many series of the name with these labels; that page."""

        def look() -> Page | None:
            page = self.page()
            return page if len(page.select(name, **labels)) == count else None

        return eventually(look, f"{count} series of {name}{labels}", within_s=within_s)

    def end(self, *signals: signal.Signals, within_s: float = 10.0) -> int:
        """Send the signals; the exit status."""
        for number in signals or (signal.SIGTERM,):
            self.process.send_signal(number)
        return self.process.wait(within_s)


def run_to_end(
    arguments: Sequence[str], env: Mapping[str, str] | None = None, options: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command of gpumon that ends by itself."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "gpumon", *arguments],
        env={**(env or os.environ), "PYTHONPATH": str(ROOT), **ALONE, **(options or {})},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


_ROOTS = (("procfs", "proc"), ("sysfs", "sys"), ("cgroupfs", "cgroup"))
