"""Which pods hold which GPU, for joins with everything that is told of a GPU.

From the kubelet's newest listing (``sources.kubelet``) and the GPUs and MIG instances that are known, put together at
every pass: nothing is asked here, so it is never late. ``gpumon_gpu_pod_info`` is there for a GPU that exactly one pod
holds, once, so that whole-GPU series never get a pod that shares it, nor a join two rows. A GPU on which a process
began after the listing, in a pod that may be newer than the listing and is none of the GPU's, is in doubt: nothing is
told of its pods and claims, nor of those of its MIG instances or its GPU, until the kubelet has been asked again. No
listing that counts, no series but the state that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpumon import catalogue
from gpumon.model import GpuUuid, Item, Miss, Reason, Sample
from gpumon.sources.kube_names import PodName
from gpumon.sources.pod_devices import GpuDevice
from gpumon.sources.pod_map import Listing, PodMap, map_pods
from gpumon.sources.targets import Target, started_s

_TEXT_MAX = 253


class PodSource:
    """Source ``pods``.

    listing: the kubelet's newest that counts at a steady second. state: how the kubelet answered the last time.
    devices: of the node. targets: the processes that are watched. to_unix: of steady seconds.
    """

    name = "pods"

    def __init__(
        self,
        listing: Callable[[float], Listing | None],
        state: Callable[[], str],
        devices: Callable[[], Sequence[GpuDevice]],
        targets: Callable[[], Sequence[Target]],
        to_unix: Callable[[float], float],
    ) -> None:
        self._listing = listing
        self._state = state
        self._devices = devices
        self._targets = targets
        self._to_unix = to_unix
        self._map: PodMap | None = None

    def mapped(self) -> PodMap | None:
        """Who holds what, as of the last pass. From any thread."""
        return self._map

    def read(self, at_s: float) -> Iterator[Item]:
        state = self._state()
        for each in catalogue.POD_MAPPING_STATES:
            yield Sample(catalogue.POD_MAPPING_STATE, (each,), float(each == state))
        listing, devices = self._listing(at_s), self._devices()
        # Before NVML has told of any GPU, no id is of a known one.
        self._map = mapped = map_pods(listing, devices) if listing is not None and devices else None
        if mapped is None:
            return
        yield Sample(catalogue.POD_MAPPING, (), self._to_unix(mapped.began_s))
        doubtful = self._doubtful(mapped)
        for device in mapped.devices:
            yield from _of_device(mapped, device, device.uuid in doubtful)
        index = {device.uuid: device.gpu for device in mapped.devices}
        for uuid, claimed in mapped.claims:
            if uuid in doubtful:
                continue
            told = (claimed.namespace, claimed.claim, claimed.driver, claimed.pool, claimed.device)
            yield Sample(catalogue.GPU_CLAIM, (index[uuid], uuid, *(text[:_TEXT_MAX] for text in told)), 1.0)
        yield Sample(catalogue.POD_DEVICES_UNKNOWN, (), float(len(mapped.unknown)))
        if mapped.unknown:
            detail = f"{len(mapped.unknown)} of no GPU of this node, such as {mapped.unknown[0][:60]!r}"
            yield Miss("device ids", Reason.UNAVAILABLE, detail)
        if mapped.strange:
            yield Miss("names of pods", Reason.MALFORMED, f"{mapped.strange} that cannot be names")

    def _doubtful(self, mapped: PodMap) -> set[GpuUuid]:
        """GPUs on which somebody began who may be of a newer pod than the listing's."""
        targets = [(each, started_s(each.pid)) for each in self._targets() if each.identity.pod_uid is not None]
        # A pod gets all that it will hold before its first process begins.
        known = {each.identity.pod_uid for each, began_s in targets if began_s <= mapped.began_s}
        devices = {device.uuid: device for device in mapped.devices}
        doubtful: set[GpuUuid] = set()
        for target, _ in targets:
            if target.identity.pod_uid in known:
                continue
            pod = PodName(target.workload.namespace, target.workload.pod)
            for held in target.held:
                device = devices.get(held.uuid)
                if device is not None and pod not in mapped.pods(device):
                    doubtful |= mapped.related(device)
        return doubtful


def pods_on_gpus(mapped: PodMap | None, targets: Sequence[Target]) -> set[PodName]:
    """Pods that hold a GPU: by the kubelet's word, or by a process of theirs."""
    held = {holder.pod for holders in mapped.held.values() for holder in holders} if mapped is not None else set()
    named = (each.workload for each in targets if each.held and each.workload.pod)
    return held | {PodName(workload.namespace, workload.pod) for workload in named}


def _of_device(mapped: PodMap, device: GpuDevice, is_doubtful: bool) -> Iterator[Sample]:
    labels = (device.gpu, device.uuid)
    if mapped.offered is not None:
        yield Sample(catalogue.GPU_ALLOCATABLE, labels, float(mapped.offered.get(device.uuid, 0)))
    if is_doubtful:
        return
    yield Sample(catalogue.GPU_PODS, labels, float(len(mapped.pods(device))))
    owner = mapped.owner(device.uuid)
    if owner is not None:
        yield Sample(catalogue.GPU_POD, (*labels, *owner.pod, owner.container), 1.0)
    for holder, count in mapped.held.get(device.uuid, {}).items():
        yield Sample(catalogue.GPU_ALLOCATIONS, (*labels, *holder.pod, holder.container), float(count))
