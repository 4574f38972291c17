"""What /proc says of one process, read by the tests themselves: where a file is mapped, faults, state, waits."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """Of /proc/<pid>/stat."""

    state: str
    minor_faults: int
    major_faults: int


def mappings(pid: int, file: Path) -> list[tuple[int, int]]:
    """Start and end of every mapping of the file in the process."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == str(file):
            start, _, end = fields[0].partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def stat(pid: int) -> Stat:
    """As it is now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Stat(fields[0], int(fields[7]), int(fields[9]))


def threads(pid: int) -> list[int]:
    """Thread ids."""
    return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]


def runqueue_wait_s(pid: int) -> float:
    """Seconds that the threads there are now have waited for a CPU."""
    return sum(thread_wait_s(pid, tid) for tid in threads(pid))


def thread_wait_s(pid: int, tid: int) -> float:
    """The same of one thread; 0 where it has ended, as a thread may at any time."""
    try:
        return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
