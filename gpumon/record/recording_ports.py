"""Ports of the main process that record what they answer, and the passes of its sources.

Each wraps another implementation of its port, answers exactly what that one answers, and raises what it raises.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpumon.host.files import Files, ReadError
from gpumon.host.http import Http, HttpError
from gpumon.host.kmsg import KernelLine, KernelLog
from gpumon.host.pages import Pages
from gpumon.model import Item
from gpumon.record.chunks import clean
from gpumon.record.entries import (
    GET,
    KERNEL_LINES,
    KERNEL_LOG,
    LINK,
    LIST,
    NODES,
    READ,
    Failed,
    Key,
    pack,
    to_bytes,
)
from gpumon.record.recorder import Recorder
from gpumon.sources.kernel_log import parse_xid

if TYPE_CHECKING:  # the sampler process records files too, and has no use for these
    from gpumon.runner import Source


class RecordingFiles:
    """``host.files.Files``. Safe to use from several threads if the other one is."""

    def __init__(self, files: Files, recorder: Recorder) -> None:
        self._files = files
        self._recorder = recorder

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:
        began_ns = time.monotonic_ns()
        try:
            data = self._files.read(path, keep=keep, limit=limit)
        except ReadError as error:
            self._recorder.keep((READ, path, ""), _failed(error), began_ns)
            raise
        self._recorder.keep((READ, path, ""), data, began_ns)
        return data

    def list(self, path: str) -> list[str]:
        began_ns = time.monotonic_ns()
        try:
            names = self._files.list(path)
        except ReadError as error:
            self._recorder.keep((LIST, path, ""), _failed(error), began_ns)
            raise
        self._recorder.keep((LIST, path, ""), to_bytes("".join([f"{name}\0" for name in names])), began_ns)
        return names

    def link(self, path: str) -> str:
        began_ns = time.monotonic_ns()
        try:
            target = self._files.link(path)
        except ReadError as error:
            self._recorder.keep((LINK, path, ""), _failed(error), began_ns)
            raise
        self._recorder.keep((LINK, path, ""), to_bytes(target), began_ns)
        return target


class RecordingPages:
    """``host.pages.Pages``. Every answer is kept: no two questions are alike."""

    def __init__(self, pages: Pages, recorder: Recorder) -> None:
        self._pages = pages
        self._recorder = recorder

    def nodes(self, pid: int, addresses: Sequence[int]) -> list[int | None]:
        began_ns = time.monotonic_ns()
        key = (NODES, str(pid), "")
        try:
            nodes = self._pages.nodes(pid, addresses)
        except ReadError as error:
            self._recorder.add(key, _failed(error), began_ns)
            raise
        self._recorder.add(key, pack(nodes), began_ns)
        return nodes


class RecordingKernelLog:
    """``host.kmsg.KernelLog``. Of its lines only those that tell an XID are kept, which are all that gpumon reads.

    Others hold what is nobody's business: hardware addresses, serial numbers, names of other machines.
    """

    def __init__(self, log: KernelLog, recorder: Recorder) -> None:
        self._log = log
        self._recorder = recorder

    @property
    def overruns(self) -> int:
        return self._log.overruns

    @overruns.setter
    def overruns(self, value: int) -> None:
        self._log.overruns = value

    def read(self) -> list[KernelLine]:
        began_ns = time.monotonic_ns()
        try:
            lines = self._log.read()
        except ReadError as error:
            self._recorder.keep((KERNEL_LOG, "", ""), _failed(error), began_ns)
            raise
        told = [(line.at_s, clean(line.text)) for line in lines if parse_xid(line.text) is not None]
        if told:
            self._recorder.add((KERNEL_LINES, "", ""), pack(told), began_ns)
        self._recorder.keep((KERNEL_LOG, "", ""), pack(self._log.overruns), began_ns)
        return lines


class RecordingHttp:
    """``host.http.Http``. Of an address neither credentials nor the query are kept."""

    def __init__(self, http: Http, recorder: Recorder) -> None:
        self._http = http
        self._recorder = recorder

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        began_ns = time.monotonic_ns()
        key: Key = (GET, safe_url(url), "")
        try:
            page = self._http.get(url, timeout_s=timeout_s, limit=limit)
        except HttpError as error:
            self._recorder.keep(key, Failed(str(error.reason), error.detail), began_ns)
            raise
        self._recorder.keep(key, page, began_ns)
        return page


class RecordedSource:
    """A source whose passes are marked. Everything but ``read`` and ``name`` is the other one's."""

    def __init__(self, source: Source, mark: Callable[[str, float], None]) -> None:
        self.name = source.name
        self._source = source
        self._mark = mark

    def read(self, at_s: float) -> Iterable[Item]:
        self._mark(self.name, at_s)
        return self._source.read(at_s)


def safe_url(url: str) -> str:
    """The address by which a page is kept: without credentials, and with a checksum in the place of the query."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # no address: the port answers so, and the text may be anything
        return f"invalid:{zlib.crc32(os.fsencode(clean(url))):08x}"
    where = f"[{host}]" if ":" in host else host
    query = f"{zlib.crc32(to_bytes(parts.query)):08x}" if parts.query else ""
    return parts._replace(netloc=where if port is None else f"{where}:{port}", query=query, fragment="").geturl()


def _failed(error: ReadError) -> Failed:
    return Failed(str(error.reason), error.detail)
