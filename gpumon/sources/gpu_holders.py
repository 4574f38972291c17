"""Which processes are watched, found anew at each pass, and what NVML says of those that hold a GPU, with their names.

The choice is that of ``sources.targets``, the samples are those of ``sources.gpu_process_samples``; who holds which GPU
is handed in. A process that /proc does not show is a miss, and keeps its GPU memory without a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from gpumon.host.files import Files
from gpumon.model import GpuProcess, Item
from gpumon.sources.gpu_process_samples import GpuProcessSamples, Names
from gpumon.sources.targets import Selection, Target, WorkloadLookup, no_lookup, select_targets


class GpuHolders:
    """Source ``gpu_holders``; its targets serve the sources that watch processes.

    gpu_processes: who holds a GPU now. servers: patterns of whole command names of further processes to watch.
    limit: processes with series of their own. lookup: their pods.
    """

    name = "gpu_holders"

    def __init__(
        self,
        gpu_processes: Callable[[], Sequence[GpuProcess]],
        files: Files,
        servers: Sequence[re.Pattern[str]],
        limit: int,
        lookup: WorkloadLookup = no_lookup,
    ) -> None:
        self._gpu_processes = gpu_processes
        self._files = files
        self._servers = tuple(servers)
        self._lookup = lookup
        self._samples = GpuProcessSamples(limit)
        self._selection = Selection((), ())
        self._seen: set[int] = set()
        """Pids found, for as long as NVML lists them: its list is seconds old."""

    def targets(self) -> Sequence[Target]:
        """Processes as of the last pass. From any thread."""
        return self._selection.targets

    def read(self, at_s: float) -> Iterator[Item]:  # noqa: ARG002 - what NVML said carries its own age
        holders = self._gpu_processes()
        self._selection = selection = select_targets(holders, self._files, self._servers, self._lookup, self._seen)
        found = {target.pid.number for target in selection.targets}
        self._seen = found | (self._seen & {process.pid for process in holders})
        names: dict[int, Names] = {target.pid.number: target.labels[1:] for target in selection.targets}
        yield from self._samples.samples(holders, names.get)
        yield from selection.misses
