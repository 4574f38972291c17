"""The folder of flight recordings: ``<incident id>.flight``, mode 0600, in a folder of mode 0700, bounded in size.

Knows which files are recordings (the name, a regular file, the container's first bytes) and removes the oldest of
those alone; whatever else lies there is neither counted nor touched. Made when it is needed, and made anew when it
has vanished.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from gpumon.record.format import MAGIC

SUBFOLDER = "flights"
"""Below ``state.folder``."""
SUFFIX = ".flight"
MOST_RUNNING = 4
_NAME = re.compile(r"[A-Za-z0-9_-]{1,120}(~[2-9])?\.flight")
_SAME_ID = 9
"""Most recordings of one incident: the second one's name has a ``~2``."""
_PROBE = ".probe"
_PROBE_BYTES = 4096


class _Entry(NamedTuple):
    changed_ns: int
    name: str
    size: int


class FlightFolder:
    """Methods raise OSError, and are for one thread."""

    def __init__(self, path: Path, *, folder_bytes: int, file_bytes: int) -> None:
        """folder_bytes: of all recordings; file_bytes: what is set apart for one that runs."""
        self.path = path
        self._folder_bytes = folder_bytes
        self._file_bytes = file_bytes
        self.most_running = max(1, min(MOST_RUNNING, folder_bytes // file_bytes))
        """Recordings that there is room for at once."""

    def make(self) -> None:
        """Have the folder, and the one it is in."""
        if not self.path.parent.exists():
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)

    def free_path(self, incident_id: str) -> Path:
        """Where the recording of an incident may be made. FileExistsError when it has too many already."""
        for number in range(1, _SAME_ID + 1):
            path = self.path / f"{incident_id}{f'~{number}' if number > 1 else ''}{SUFFIX}"
            if not os.path.lexists(path):
                return path
        raise FileExistsError(f"{incident_id} has {_SAME_ID} recordings")

    def find(self, incident_id: str) -> str:
        """File name of an earlier recording of the incident; empty where there is none."""
        name = incident_id + SUFFIX
        return name if os.path.lexists(self.path / name) else ""

    def size_bytes(self) -> int:
        """Of all recordings."""
        return sum(entry.size for entry in _entries(self.path))

    def make_room(self, running: Collection[str], new: int = 1) -> int:
        """Remove the oldest, so that those that run and ``new`` more may become as large as they may; how many.

        running: by name.
        """
        left = self._folder_bytes - (len(running) + new) * self._file_bytes
        ended = [entry for entry in _entries(self.path) if entry.name not in running]
        size = sum(entry.size for entry in ended)
        removed = 0
        for entry in ended:
            if size <= left:
                break
            if _is_recording(self.path / entry.name):
                (self.path / entry.name).unlink(missing_ok=True)
                removed += 1
            size -= entry.size  # what is no recording of ours takes no room of ours
        return removed

    def probe(self) -> None:
        """Find out whether a recording could be written."""
        self.make()
        path = self.path / _PROBE
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, bytes(_PROBE_BYTES))
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)


def recordings(folder: Path) -> list[Path]:
    """What looks like a recording, by its name, the oldest first. Raises OSError."""
    return [folder / entry.name for entry in _entries(folder)]


def named_after(path: Path) -> str:
    """Id of the incident that a recording was begun for."""
    return path.name.removesuffix(SUFFIX).partition("~")[0]


def _entries(folder: Path) -> list[_Entry]:
    """Regular files with the name of a recording, the oldest change first."""
    found: list[_Entry] = []
    try:
        with os.scandir(folder) as scan:
            names = [entry.name for entry in scan if _NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return []
    for name in names:
        try:
            status = os.lstat(folder / name)
        except FileNotFoundError:
            continue  # removed by somebody meanwhile
        if stat.S_ISREG(status.st_mode):
            found.append(_Entry(status.st_mtime_ns, name, status.st_size))
    return sorted(found)


def _is_recording(path: Path) -> bool:
    """By its first bytes; a file of no length is one that could not be begun."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # of somebody else, or gone
    try:
        return MAGIC.startswith(os.read(fd, len(MAGIC)))
    finally:
        os.close(fd)
