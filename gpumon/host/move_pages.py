"""Page placement by move_pages(2) in query mode, through libc's syscall(2): glibc itself has no wrapper.

With no target nodes the call moves nothing and only tells the node of each page; the kernel takes the mmap lock of
the process for 16 pages at a time. Needs ptrace-read access to the process (same user or CAP_SYS_PTRACE) and the
pid namespace that the pids are from. x86_64 and aarch64; elsewhere UNSUPPORTED.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Sequence

from gpumon.host.errnos import reason_of
from gpumon.host.files import ReadError
from gpumon.model import Reason

_NUMBERS = {"x86_64": 279, "aarch64": 239}  # arch/x86/entry/syscalls/syscall_64.tbl, asm-generic/unistd.h
MAX_ADDRESSES = 65_536


class MovePages:
    """``host.pages.Pages`` over the kernel. Keeps nothing between calls but the way to the system call.

    procfs: the folder that pids come from. When it shows another pid namespace than our own, its pids would name
    other processes to the kernel, so every query is refused as DENIED.
    """

    def __init__(self, procfs: str = "/proc") -> None:
        self._procfs = procfs
        self._libc: ctypes.CDLL | None = None

    def nodes(self, pid: int, addresses: Sequence[int]) -> list[int | None]:
        what = f"move_pages {pid}"
        if pid <= 0 or len(addresses) > MAX_ADDRESSES:  # pid 0 would be gpumon itself
            raise ReadError(what, Reason.MALFORMED, "impossible pid or too many addresses")
        number = _NUMBERS.get(platform.machine()) if sys.maxsize > 2**32 else None
        if number is None:
            raise ReadError(what, Reason.UNSUPPORTED, f"no system call number for {platform.machine()}")
        if self._libc is None:
            self._libc = self._load(what)
        count = len(addresses)
        pages = (ctypes.c_void_p * count)(*addresses)
        status = (ctypes.c_int * count)()
        failed = self._libc.syscall(
            ctypes.c_long(number), ctypes.c_int(pid), ctypes.c_ulong(count), pages, None, status, ctypes.c_int(0)
        )
        if failed:
            code = ctypes.get_errno()
            # A process without an address space (zombie, kernel thread) answers EINVAL: nothing there to ask about.
            reason = Reason.UNAVAILABLE if code == errno.EINVAL else reason_of(OSError(code, ""))
            raise ReadError(what, reason, os.strerror(code))
        # Negative: -ENOENT no page there, -EFAULT no mapping or the shared zero page.
        return [node if node >= 0 else None for node in status]

    def _load(self, what: str) -> ctypes.CDLL:
        try:
            shown = os.readlink(f"{self._procfs}/self")
        except OSError as err:
            raise ReadError(what, reason_of(err), f"{self._procfs}/self: {os.strerror(err.errno or 0)}") from err
        if shown != str(os.getpid()):
            raise ReadError(what, Reason.DENIED, f"{self._procfs} shows another pid namespace; hostPID needed")
        return ctypes.CDLL(None, use_errno=True)
