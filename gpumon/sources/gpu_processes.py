"""Processes that hold one GPU, every 5 s: device memory and SM share, as NVML tells them.

The compute, graphics and MPS lists merged (a process in two of them holds its memory once), per MIG instance where
there are some; and the process-utilization ring for the SM share, which MIG does not have. The lists cost up to
4.5 ms a call, hence the cadence. Pids are in the namespace of the driver's caller. Rows that cannot
be true are dropped and reported. ``gpu_process_samples`` makes the labelled samples, where pids have names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpumon.host.nvml import Device, Nvml, RunningProcess
from gpumon.model import GpuProcess, GpuUuid, Miss, Reason, Rejection
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu_state import BYTES_MAX, Cursor, possible
from gpumon.sources.mig import MigInstance

KINDS = ("compute", "graphics", "mps")
PID_MAX = 1 << 22
"""Linux's PID_MAX_LIMIT: what is past it is a struct read wrongly (nvitop#75)."""
PROCESSES_MAX = 1024
"""The driver lists at most 950 per query."""
QUIET_S = 60.0
"""An idle GPU has no rows, so only after a minute without is the utilization ring read from its start again."""


class GpuProcesses:
    """Reader of one GPU in one generation; used by that GPU's thread."""

    def __init__(
        self,
        nvml: Nvml,
        device: Device,
        labels: tuple[str, str],
        capabilities: Capabilities,
        instances: Callable[[], Sequence[MigInstance]],
    ) -> None:
        """``labels``: gpu, uuid. ``instances``: the GPU's MIG instances as last seen, none where MIG is off."""
        self._nvml = nvml
        self._device = device
        self._labels = labels
        self._capabilities = capabilities
        self._instances = instances
        self._cursor = Cursor(QUIET_S)
        self._ever_moved = False

    def read_processes(self, at_s: float) -> tuple[list[GpuProcess], list[Miss | Rejection]]:
        """All processes, by uuid of GPU or instance and pid, and what could not be read.

        ``used_bytes`` and ``sm_ratio`` (0 to 1) are None where NVML does not tell. Raises NvmlError when the GPU
        or the driver is gone.
        """
        problems: list[Miss | Rejection] = []
        memory: dict[tuple[str, int], float | None] = {}
        instances = self._instances()
        if instances:
            for instance in instances:
                self._list(at_s, instance.device, instance.uuid, instance.capabilities, memory, problems)
                problems += instance.capabilities.take()
        else:
            self._list(at_s, self._device, self._labels[1], self._capabilities, memory, problems)
        ratios, rest = self._sm_ratios(at_s, problems)
        problems += self._capabilities.take()
        processes = [
            GpuProcess(pid, self._labels[0], GpuUuid(uuid), used, ratios.get(pid, rest))
            for (uuid, pid), used in memory.items()
        ]
        return processes, problems

    def _list(
        self,
        at_s: float,
        device: Device,
        uuid: str,
        capabilities: Capabilities,
        memory: dict[tuple[str, int], float | None],
        problems: list[Miss | Rejection],
    ) -> None:
        for kind in KINDS:
            rows = capabilities.ask(at_s, f"processes:{kind}", self._nvml.processes, device, kind)
            for row in (rows or ())[:PROCESSES_MAX]:
                if not possible(row.pid, 1, PID_MAX):
                    problems.append(Rejection("process_pid", Reason.OUT_OF_RANGE))
                    continue
                used = _used_bytes(row, problems)
                before = memory.get((uuid, row.pid))
                memory[uuid, row.pid] = used if before is None else max(before, used or 0.0)

    def _sm_ratios(self, at_s: float, problems: list[Miss | Rejection]) -> tuple[dict[int, float | None], float | None]:
        """SM share by pid, and that of every process not named.

        The ring has rows only for processes that used the GPU, so no row is a true zero, once the ring has ever
        moved. What it gives at its start is an average over its whole length: that only sets the cursor.
        """
        since_us = self._cursor.since(at_s)
        rows = self._capabilities.ask(
            at_s, "process_utilization", self._nvml.process_utilization, self._device, since_us
        )
        if rows is None:
            return {}, None
        sums: dict[int, tuple[int, int]] = {}
        ratios: dict[int, float | None] = {}
        for row in rows:
            if row.timestamp_us <= since_us:  # stale: normal, and no word on what the process does now
                ratios.setdefault(row.pid, None)
                continue
            if not possible(row.pid, 1, PID_MAX) or not 0 <= row.sm <= 100:
                problems.append(Rejection("process_utilization", Reason.OUT_OF_RANGE))
                ratios.setdefault(row.pid, None)
                continue
            self._cursor.advance(at_s, row.timestamp_us)
            self._ever_moved = True
            total, count = sums.get(row.pid, (0, 0))
            sums[row.pid] = (total + row.sm, count + 1)
        for pid, (total, count) in sums.items():
            ratios[pid] = total / count / 100 if since_us else None
        return ratios, 0.0 if self._ever_moved else None


def _used_bytes(row: RunningProcess, problems: list[Miss | Rejection]) -> float | None:
    if row.used_bytes is None:
        return None
    if possible(row.used_bytes, 0, BYTES_MAX):
        return float(row.used_bytes)
    problems.append(Rejection("process_memory", Reason.OUT_OF_RANGE))
    return None
