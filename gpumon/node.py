"""What the main process knows of the node: the store, the health account, and who holds which GPU.

The meeting point of the sampler's messages and the sources' passes; everything that needs both asks here. Safe to
use from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpumon import catalogue
from gpumon.health import Health
from gpumon.host.clock import Clock
from gpumon.model import GpuProcess, GpuUuid, Metric, Reason, Rejection, Sample
from gpumon.sampler.wire import Batch
from gpumon.sources.pod_devices import GpuDevice
from gpumon.sources.xid import KnownGpu, XidLedger
from gpumon.store import Store, View

PROCESSES_BELIEVED_S = 20.0
"""A list of a GPU's processes counts for this long at least: it is read anew every 5 s by default."""


@dataclass(slots=True)
class _Held:
    at_s: float
    processes: list[GpuProcess] = field(default_factory=list)


class Node:
    """Hears the sampler (``sampler.link.Listener``) and answers the sources of the main process."""

    def __init__(self, store: Store, health: Health, clock: Clock) -> None:
        self._store = store
        self._health = health
        self._clock = clock
        self._processes_believed_s = PROCESSES_BELIEVED_S
        self._lock = threading.Lock()
        self._gpus: dict[GpuUuid, KnownGpu] = {}
        self._held: dict[GpuUuid, _Held] = {}
        self._backlog = 0
        self.xids = XidLedger(self.known_gpus, clock.to_unix)

    # --- what the sampler says --------------------------------------------------------------------------------------

    def put(self, owner: str, at_s: float, samples: Iterable[Sample], ttl_s: float) -> None:
        self._store.put(owner, at_s, samples, ttl_s)

    def drop(self, owner: str) -> None:
        self._store.drop(owner)

    def count_rejections(self, rejections: Iterable[Rejection]) -> None:
        self._store.count_rejections(rejections)

    def passed(self, batch: Batch) -> None:
        self._health.succeeded(batch.source, batch.at_s, batch.duration_s, batch.misses, batch.owner)
        if batch.rejections:
            self._store.count_rejections(batch.rejections)

    def gpu_identity(self, uuid: GpuUuid, gpu: str, pci_bus_id: str) -> None:
        with self._lock:
            self._gpus[uuid] = KnownGpu(gpu, uuid, pci_bus_id)

    def gpu_processes(self, uuid: GpuUuid, processes: list[GpuProcess]) -> None:
        with self._lock:
            self._held[uuid] = _Held(self._clock.now_s(), processes)

    def xid(self, uuid: GpuUuid | None, xid: int, at_s: float) -> None:
        self.xids.nvml_event(uuid, xid, at_s)

    def dropped_messages(self, count: int) -> None:
        with self._lock:
            self._backlog += count

    def nvml_state(self, state: str, at_s: float, reason: Reason, detail: str) -> None:
        if state == "running":
            self._health.succeeded("nvml", at_s, None, ())
        elif state == "released":
            self._health.paused("nvml")
        else:
            self._health.failed("nvml", None, reason, detail)

    # --- what the sources ask ---------------------------------------------------------------------------------------

    def known_gpus(self) -> list[KnownGpu]:
        """GPUs whose identity has been read."""
        with self._lock:
            return list(self._gpus.values())

    def gpu_devices(self) -> list[GpuDevice]:
        """GPUs whose identity has been read, also those that are lost, and the MIG instances that are there now."""
        view = self._store.view(self._clock.now_s())
        told = [
            dict(zip(catalogue.GPU_INFO.labels, each.labels, strict=True)) for each in view.family(catalogue.GPU_INFO)
        ]
        minors = {labels["uuid"]: int(labels["minor"]) for labels in told if labels["minor"].isdecimal()}
        gpus = [GpuDevice(gpu.gpu, gpu.uuid, minors.get(gpu.uuid)) for gpu in self.known_gpus()]
        for each in view.family(catalogue.MIG_INFO):
            labels = dict(zip(catalogue.MIG_INFO.labels, each.labels, strict=True))
            uuid, parent = GpuUuid(labels["uuid"]), GpuUuid(labels["parent_uuid"])
            gpus.append(GpuDevice(labels["gpu"], uuid, None, parent, labels["gpu_instance"]))
        return gpus

    def to_unix(self, at_s: float) -> float:
        """Unix time of a steady second."""
        return self._clock.to_unix(at_s)

    def gpu_pci(self) -> Mapping[GpuUuid, str]:
        """PCI address by GPU, and by MIG instance that of its GPU."""
        with self._lock:
            addresses = {gpu.uuid: gpu.pci_bus_id for gpu in self._gpus.values() if gpu.pci_bus_id}
            for uuid, held in self._held.items():
                for process in held.processes:
                    if process.uuid not in addresses and uuid in addresses:
                        addresses[process.uuid] = addresses[uuid]
            return addresses

    def holders(self) -> list[GpuProcess]:
        """Processes that hold a GPU, as NVML last told for each GPU."""
        now_s = self._clock.now_s()
        with self._lock:
            return [
                process
                for held in self._held.values()
                if now_s - held.at_s <= self._processes_believed_s
                for process in held.processes
            ]

    def believe_processes_for(self, seconds: float) -> None:
        """How long a list of processes counts: longer than the time between two of them."""
        self._processes_believed_s = max(seconds, PROCESSES_BELIEVED_S)

    def own_samples(self) -> Iterator[Sample]:
        """Rows and messages that the sampler could not hand over."""
        with self._lock:
            yield Sample(catalogue.SERIES_DROPPED, ("sampler_backlog",), float(self._backlog))


def _labels(view: View, metric: Metric) -> Iterator[dict[str, str]]:
    for sample in view.family(metric):
        yield dict(zip(metric.labels, sample.labels, strict=True))
