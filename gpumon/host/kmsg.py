"""The port to the kernel log and its real implementation, /dev/kmsg (Documentation/ABI/testing/dev-kmsg).

Only records the kernel itself wrote (facility 0): what a program writes into /dev/kmsg cannot pass for a driver's
message. Starts at the end of the log: nothing older than the first read is told. Needs CAP_SYSLOG where
kernel.dmesg_restrict is 1 (else DENIED), and the device node in a container (else UNAVAILABLE).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from gpumon.host.errnos import reason_of
from gpumon.host.files import ReadError

MAX_RECORDS = 4096
_RECORD_BYTES = 16_384  # the kernel formats a record into at most 8 KiB and fails a shorter read


class KernelLine(NamedTuple):
    """First line of one kernel log record."""

    at_s: float
    """The kernel's stamp: seconds since boot by a clock that nothing disciplines. It drifts from at_s elsewhere."""
    text: str


class KernelLog(Protocol):
    """New records of the kernel log."""

    overruns: int
    """Times that records were overwritten before they were read."""

    def read(self) -> list[KernelLine]:
        """Records since the last call, oldest first, at most MAX_RECORDS. Never waits. Raises ReadError."""
        ...


class DevKmsg:
    """``KernelLog`` over /dev/kmsg. Used by one thread."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._path = path
        self._fd: int | None = None
        self.overruns = 0

    def read(self) -> list[KernelLine]:
        try:
            if self._fd is None:
                self._fd = _open_at_end(self._path)
            fd = self._fd
            lines, overruns = drain(lambda: os.read(fd, _RECORD_BYTES))
        except OSError as err:
            self.close()
            raise ReadError(self._path, reason_of(err), os.strerror(err.errno or 0)) from err
        self.overruns += overruns
        return lines

    def close(self) -> None:
        """Give the device back; a later read starts at the end of the log as it then is."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def drain(read_record: Callable[[], bytes]) -> tuple[list[KernelLine], int]:
    """Read until nothing is left: the kernel's lines, and how often records had been overwritten.

    ``read_record`` answers one record, raises BlockingIOError when there is none and BrokenPipeError (EPIPE) when
    the next one was overwritten, after which it goes on with the oldest that is left.
    """
    lines: list[KernelLine] = []
    overruns = 0
    for _ in range(MAX_RECORDS):
        try:
            record = read_record()
        except BlockingIOError:
            break
        except BrokenPipeError:
            overruns += 1
            continue
        if not record:
            break
        line = parse_record(record)
        if line is not None:
            lines.append(line)
    return lines, overruns


def parse_record(record: bytes) -> KernelLine | None:
    """One record ``priority,sequence,microseconds,flags[,…];text``; None if a program wrote it or it is garbled."""
    header, found, rest = record.partition(b";")
    fields = header.split(b",")
    if not found or len(fields) < 4:
        return None
    priority, stamp = fields[0], fields[2]
    if not priority.isdigit() or not stamp.isdigit() or max(len(priority), len(stamp)) > 18:
        return None
    if int(priority) >> 3 != 0:  # facility: 0 is the kernel, writes from user space are at least 1
        return None
    return KernelLine(int(stamp) / 1e6, rest.split(b"\n", 1)[0].decode("utf-8", "replace"))


def _open_at_end(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        os.close(fd)
        raise
    return fd
