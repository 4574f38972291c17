"""A real server wants this machine for itself: what is measured here comes one after the other, in all workers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.daemon import ROOT
from tests.live.server import on_disk


@contextmanager
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Waits until no other worker is inside; gives a folder that all workers of this run share."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "live.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield shared


@contextmanager
def disk_folder() -> Iterator[Path]:
    """A new folder with a disk behind it."""
    disk = on_disk(Path("/tmp"), Path("/var/tmp"), ROOT)
    with TemporaryDirectory(dir=disk, prefix="gpumon-live-") as folder:
        yield Path(folder)
