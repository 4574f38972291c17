"""What gpumon says just after its start: what it sees here, and what it does not."""

from __future__ import annotations

import json
import os
import pty
import re
import threading
from pathlib import Path

from tests.e2e.conftest import Start
from tests.e2e.daemon import Daemon
from tests.e2e.waiting import eventually
from tests.fakenvml.controller import FakeNode

NOWHERE = ("--nvml-lib", "/nowhere/libnvidia-ml.so.1")


def parts(daemon: Daemon) -> dict[str, str]:
    """State by part, once the last one is told."""

    def told() -> dict[str, str] | None:
        found = dict(re.findall(r"sees=(\S+) state=(\S+) ", daemon.log))
        return found if "state" in found else None

    return eventually(told, "it is told")


def test_without_a_driver_it_says_so_and_what_would_help(tmp_path: Path) -> None:
    with Daemon(tmp_path, *NOWHERE) as daemon:
        told = parts(daemon)
        (gpus,) = [line for line in daemon.log.splitlines() if "sees=GPUs" in line]
    assert told["GPUs"] == "no"
    assert told["traces"] == "off"
    assert "install the NVIDIA driver" in gpus


def test_every_gpu_is_there_when_it_is_told(node: FakeNode, start: Start) -> None:
    node.delay("nvmlInitWithFlags", 2_000_000)
    daemon = start(node)
    assert parts(daemon)["GPUs"] == "yes"
    assert "8 x NVIDIA H200; SM and DRAM activity by GPM on GPUs 0-7" in daemon.log


def test_a_driver_that_takes_longer_is_awaited_and_not_missed(node: FakeNode, start: Start) -> None:
    node.hang("nvmlInitWithFlags")
    daemon = start(node)
    assert parts(daemon)["GPUs"] == "waits"
    assert daemon.ask("/metrics").status == 200
    node.release("nvmlInitWithFlags")
    daemon.await_series("gpumon_gpu_present", 8)
    assert "nvml=running gpus=8" in daemon.log


def test_a_log_of_json_has_all_of_it_as_one_record(tmp_path: Path) -> None:
    def record() -> dict[str, dict[str, str]] | None:
        told = [line for line in daemon.log.splitlines() if '"sees"' in line]
        return json.loads(told[0])["sees"] if told else None

    with Daemon(tmp_path, *NOWHERE, "--log-format", "json") as daemon:
        told = eventually(record, "it is told")
    assert told["GPUs"]["state"] == "no"
    assert {"host", "processes", "traces", "servers", "state"} <= set(told)


def test_a_terminal_is_shown_one_screen(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    shown = bytearray()

    def watch() -> None:
        while True:
            try:
                shown.extend(os.read(ours, 1 << 12))
            except OSError:  # nobody has the other end any more
                return

    prefix = ("bash", "-c", f'exec "$@" 2>{os.ttyname(theirs)}', "bash")
    watching = threading.Thread(target=watch)
    watching.start()
    with Daemon(tmp_path, *NOWHERE, prefix=prefix, await_start=False) as daemon:
        eventually(lambda: b"gpumon doctor" in shown, "it is shown")
        assert daemon.process.poll() is None
    os.close(theirs)
    watching.join()
    os.close(ours)
    text = shown.decode().replace("\r\n", "\n")
    screen = text[text.index(", sees:\n") :].split("\n")
    assert "sees=" not in text
    assert any(re.match(r"GPUs +no +NVML: LIBRARY_NOT_FOUND$", line) for line in screen)
    assert len(screen[: next(n for n, line in enumerate(screen) if line.startswith("Page: "))]) <= 24
