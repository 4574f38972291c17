"""Ports of the main process that answer out of a recording, as of the clock that they are given.

What was never asked is UNAVAILABLE. All of them, and ``ReplayNvml``, share one ``Recording`` and one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumon.host.clock import Clock
from gpumon.host.files import ReadError
from gpumon.host.http import HttpError
from gpumon.host.kmsg import MAX_RECORDS, KernelLine
from gpumon.model import Reason
from gpumon.record.entries import GET, KERNEL_LINES, KERNEL_LOG, LINK, LIST, READ, Failed, to_text
from gpumon.record.recording_ports import safe_url
from gpumon.record.timeline import NOTHING, Recording

_ABSENT = "not in the recording"
_REASONS = {str(reason): reason for reason in Reason}


class ReplayFiles:
    """``host.files.Files``."""

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self._find = recording.find
        self._now_s = clock.now_s

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:  # noqa: ARG002 (nothing to keep)
        data = self._find((READ, path, ""), self._now_s())
        if not isinstance(data, bytes):
            raise _read_error(path, data)
        if len(data) > limit:
            raise ReadError(path, Reason.MALFORMED, f"larger than {limit} bytes")
        return data

    def list(self, path: str) -> list[str]:
        names = self._find((LIST, path, ""), self._now_s())
        if not isinstance(names, bytes):
            raise _read_error(path, names)
        return _text(path, names).split("\0")[:-1]

    def link(self, path: str) -> str:
        target = self._find((LINK, path, ""), self._now_s())
        if not isinstance(target, bytes):
            raise _read_error(path, target)
        return _text(path, target)


class ReplayPages:
    """``host.pages.Pages``. The answers of a pass in their order, whatever the addresses."""

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self._recording = recording
        self._clock = clock

    def nodes(self, pid: int, addresses: Sequence[int]) -> list[int | None]:
        nodes = self._recording.take_nodes(str(pid), self._clock.now_s())
        what = f"move_pages {pid}"
        if not isinstance(nodes, list):
            raise _read_error(what, nodes)
        if len(nodes) != len(addresses):
            raise ReadError(what, Reason.UNAVAILABLE, f"{len(addresses)} pages asked for, {len(nodes)} recorded")
        return nodes


class ReplayKernelLog:
    """``host.kmsg.KernelLog``."""

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self.overruns = 0
        self._recording = recording
        self._clock = clock
        self._lines: list[KernelLine] = []

    def read(self) -> list[KernelLine]:
        now_s = self._clock.now_s()
        state = self._recording.find((KERNEL_LOG, "", ""), now_s)
        if not isinstance(state, int):
            raise _read_error("kernel log", state)
        self.overruns = state
        lines = self._lines
        while len(lines) < MAX_RECORDS and isinstance(told := self._recording.take(KERNEL_LINES, now_s), list):
            lines += [KernelLine(at_s, text) for at_s, text in told]
        self._lines = lines[MAX_RECORDS:]
        return lines[:MAX_RECORDS]


class ReplayHttp:
    """``host.http.Http``."""

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self._recording = recording
        self._clock = clock

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:  # noqa: ARG002 (answered at once)
        now_s = self._clock.now_s()
        page = self._recording.find((GET, safe_url(url), ""), now_s)
        if page is NOTHING:  # the header tells the addresses as they are kept
            page = self._recording.find((GET, url, ""), now_s)
        if not isinstance(page, bytes):
            raise HttpError(*_why(page))
        if len(page) > limit:
            raise HttpError(Reason.MALFORMED, f"larger than {limit} bytes")
        return page


def _read_error(path: str, answer: object) -> ReadError:
    return ReadError(path, *_why(answer))


def _why(answer: object) -> tuple[Reason, str]:
    if isinstance(answer, Failed):
        return _REASONS.get(str(answer.code), Reason.UNAVAILABLE), answer.text
    return Reason.UNAVAILABLE, _ABSENT if answer is NOTHING else "not what it should be in the recording"


def _text(path: str, data: bytes) -> str:
    try:
        return to_text(data)
    except UnicodeDecodeError as err:
        raise ReadError(path, Reason.MALFORMED, "no text in the recording") from err
