"""What the cgroup of a process counts: CPU time denied by its quota, and pressure stalls.

From ``cpu.stat`` and ``{cpu,memory,io}.pressure`` of the folders that ``sources.cgroup`` found. A controller that is
off counts nothing, and a kernel without PSI has no pressure files: no value, an UNSUPPORTED miss for the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpumon import catalogue
from gpumon.host.files import Files, ReadError
from gpumon.model import Metric, Miss, Reason, SourceError
from gpumon.sources.cgroup import PRESSURES, CgroupFolders, parse_cpu_throttled
from gpumon.sources.procfs import parse_pressure


class Value(NamedTuple):
    """A reading before it is known whose: the labels follow those of the process."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class CgroupStats:
    """Readings of one pass: the processes of one container share its cgroup, which is read once."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._read: dict[CgroupFolders, list[Value]] = {}

    def read(self, what: str, folders: CgroupFolders) -> Iterator[Value | Miss]:
        """Values of these folders; misses, named after ``what``, only when it is the first to ask."""
        if folders in self._read:
            yield from self._read[folders]
            return
        values: list[Value] = []
        for item in (*self._throttled(what, folders.cpu), *self._pressures(what, folders.pressure)):
            if isinstance(item, Value):
                values.append(item)
            yield item
        self._read[folders] = values

    def _throttled(self, what: str, folders: tuple[str, ...]) -> Iterator[Value | Miss]:
        missing: Miss | None = None
        for folder in folders:
            try:
                throttled_s = parse_cpu_throttled(self._files.read(f"{folder}/cpu.stat", keep=True))
            except (ReadError, SourceError) as err:
                missing = missing or Miss(f"{what} cpu.stat", err.reason, err.detail)
                continue
            if throttled_s is not None:
                yield Value(catalogue.PROCESS_CPU_THROTTLED, (), throttled_s)
            return
        if missing is not None:
            yield missing

    def _pressures(self, what: str, folders: tuple[str, ...]) -> Iterator[Value | Miss]:
        for folder in folders:
            for resource in PRESSURES:
                try:
                    pressure = parse_pressure(self._files.read(f"{folder}/{resource}.pressure", keep=True))
                except ReadError as err:
                    reason = Reason.UNSUPPORTED if err.reason is Reason.UNAVAILABLE else err.reason
                    yield Miss(f"{what} {resource}.pressure", reason, err.detail)
                    continue
                except SourceError as err:
                    yield Miss(f"{what} {resource}.pressure", err.reason, err.detail)
                    continue
                for kind, stalled_s in (("some", pressure.some_s), ("full", pressure.full_s)):
                    if stalled_s is not None:
                        yield Value(catalogue.PROCESS_PRESSURE, (resource, kind), stalled_s)
