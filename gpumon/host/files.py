"""The port to the host's files: /proc, /sys and the cgroup tree, as bytes, below roots that can be moved.

Paths start with the root's short name: ``proc/vmstat``, ``sys/devices/…``, ``cgroup/…``. Read whole and at once;
nothing is followed outside the roots, nothing is ever written.
"""

from __future__ import annotations

from typing import Protocol

from gpumon.model import Reason


class ReadError(Exception):
    """A file or folder could not be read.

    reason: UNAVAILABLE (not there, or gone in the middle: normal for a process), DENIED, UNSUPPORTED (the kernel
    has the file and not the function, EOPNOTSUPP), MALFORMED (larger than the limit, or an I/O error).
    """

    def __init__(self, path: str, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{path}: {reason}{': ' if detail else ''}{detail}")
        self.path = path
        self.reason = reason
        self.detail = detail


class Files(Protocol):
    """What sources may ask of the host's files."""

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:
        """Content of a file of at most ``limit`` bytes.

        ``keep``: the descriptor stays open for the next pass (``pread``, a third of the cost), in a bounded cache.
        A kept descriptor of a process that ended answers UNAVAILABLE even if its number lives again.
        Raises ReadError.
        """
        ...

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; at most 65,536. Raises ReadError."""
        ...

    def link(self, path: str) -> str:
        """Target of a symbolic link, as text. Raises ReadError."""
        ...
