"""Fakes of the host's ports for tests: files from a dict, pages from a function, a scripted kernel log, no servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpumon.host.clock import Clock
from gpumon.host.files import ReadError
from gpumon.host.http import HttpError
from gpumon.host.kmsg import KernelLine
from gpumon.model import Reason


class FakeFiles:
    """``host.files.Files`` over a dict from path to content; folders are what paths imply.

    ``on_read`` is called with each path before it is read and may change the files: a process that ends in the middle
    of a pass. ``reads`` lists every path asked for.
    """

    def __init__(self, files: Mapping[str, bytes | str], links: Mapping[str, str] | None = None) -> None:
        self.files = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
        self.links = dict(links or {})
        self.denied: dict[str, Reason] = {}
        self.reads: list[str] = []
        self.on_read: Callable[[str], None] = lambda path: None

    def put(self, path: str, data: bytes | str) -> None:
        """Create or replace a file."""
        self.files[path] = data.encode() if isinstance(data, str) else data

    def deny(self, path: str, reason: Reason = Reason.DENIED) -> None:
        """Make a file, or everything below a folder, answer with this reason."""
        self.denied[path] = reason

    def vanish(self, path: str) -> None:
        """Remove a file, or everything below a folder."""
        self.files = {p: data for p, data in self.files.items() if p != path and not p.startswith(f"{path}/")}

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:
        self.reads.append(path)
        self.on_read(path)
        self._refuse(path)
        data = self.files.get(path)
        if data is None:
            raise ReadError(path, Reason.UNAVAILABLE, "no such file")
        if len(data) > limit:
            raise ReadError(path, Reason.MALFORMED, f"larger than {limit} bytes")
        return data

    def list(self, path: str) -> list[str]:
        self._refuse(path)
        below = f"{path}/"
        names = {p[len(below) :].split("/", 1)[0] for p in (*self.files, *self.links) if p.startswith(below)}
        if not names:
            raise ReadError(path, Reason.UNAVAILABLE, "no such folder")
        return sorted(names)

    def link(self, path: str) -> str:
        self._refuse(path)
        if path not in self.links:
            raise ReadError(path, Reason.UNAVAILABLE, "no such link")
        return self.links[path]

    def _refuse(self, path: str) -> None:
        for denied, reason in self.denied.items():
            if path == denied or path.startswith(f"{denied}/"):
                raise ReadError(path, reason, "refused by the test")


class FakePages:
    """``host.pages.Pages`` from a function of the address; counts what it is asked."""

    def __init__(self, node_of: Callable[[int], int | None]) -> None:
        self.node_of = node_of
        self.asked = 0
        self.error: ReadError | None = None

    def nodes(self, pid: int, addresses: Sequence[int]) -> list[int | None]:
        if self.error is not None:
            raise self.error
        self.asked += len(addresses)
        return [self.node_of(address) for address in addresses]


class FakeKernelLog:
    """``host.kmsg.KernelLog`` that answers with prepared lines, once each."""

    def __init__(self) -> None:
        self.overruns = 0
        self.pending: list[KernelLine] = []
        self.error: ReadError | None = None

    def write(self, text: str, at_s: float = 0.0) -> None:
        """Add a line for the next read."""
        self.pending.append(KernelLine(at_s, text))

    def read(self) -> list[KernelLine]:
        if self.error is not None:
            raise self.error
        lines, self.pending = self.pending, []
        return lines


class AskedHttp:
    """``host.http.Http`` that answers nothing and notes when it was asked for what."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.asked: list[tuple[float, str]] = []

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        self.asked.append((self._clock.now_s(), url))
        raise HttpError(Reason.UNAVAILABLE, "nobody is there")

    @property
    def times(self) -> list[float]:
        return [at_s for at_s, _ in self.asked]
