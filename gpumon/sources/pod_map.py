"""Who holds which GPU: what the kubelet listed, over the GPUs that are here. Pure.

A pod counts once for a GPU, whatever it holds of it. The pods of a MIG instance count for its GPU as well, and those
that hold the whole GPU for its instances. Only a GPU or instance with exactly one pod has a pod of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpumon.host.podresources import ClaimedDevice, HeldDevices, PodHolds
from gpumon.model import GpuUuid
from gpumon.sources.kube_names import ContainerName, PodName, is_container, is_pod
from gpumon.sources.pod_devices import DeviceIds, GpuDevice, is_gpu_claim, is_gpu_id

UNKNOWN_KEPT: Final = 1024
"""Ids of unknown devices that are told apart."""


class Listing(NamedTuple):
    """What the kubelet told, and when it was asked."""

    began_s: float
    """Steady seconds before the question: what began later may not be in it."""
    pods: tuple[PodHolds, ...]
    offered: tuple[HeldDevices, ...] | None = None
    """What may be handed out; None where the kubelet does not tell."""


class Owner(NamedTuple):
    """The one pod that holds a GPU, and its container, empty where several of its containers do."""

    pod: PodName
    container: str


@dataclass(frozen=True, slots=True)
class PodMap:
    """One listing over the devices of the node."""

    began_s: float
    """Of the listing."""
    devices: tuple[GpuDevice, ...]
    held: Mapping[GpuUuid, Mapping[ContainerName, int]]
    """Device ids by who holds them."""
    claims: tuple[tuple[GpuUuid, ClaimedDevice], ...]
    """Each once."""
    offered: Mapping[GpuUuid, int] | None
    """Device ids that may be handed out."""
    unknown: tuple[str, ...]
    """Ids of no GPU of this node."""
    strange: int
    """Pods and containers whose names cannot be names."""

    def pods(self, device: GpuDevice) -> set[PodName]:
        """All that hold the device or a part of it, or what it is a part of."""
        return {holder.pod for uuid in self.related(device) for holder in self.held.get(uuid, ())}

    def related(self, device: GpuDevice) -> set[GpuUuid]:
        """The device, its parts, and what it is a part of."""
        parts = {each.uuid for each in self.devices if each.parent == device.uuid}
        return parts | {device.uuid} | ({device.parent} if device.parent is not None else set())

    def owner(self, uuid: GpuUuid) -> Owner | None:
        """Who holds it alone; None where nobody does, or several do."""
        device = next((each for each in self.devices if each.uuid == uuid), None)
        holders = self.held.get(uuid)
        if device is None or not holders or len(self.pods(device)) != 1:
            return None
        containers = {holder.container for holder in holders}
        return Owner(next(iter(holders)).pod, containers.pop() if len(containers) == 1 else "")


def map_pods(listing: Listing, devices: Sequence[GpuDevice]) -> PodMap:
    """The listing over these devices."""
    ids = DeviceIds(devices)
    held: dict[GpuUuid, dict[ContainerName, int]] = {}
    claims: dict[tuple[GpuUuid, ClaimedDevice], None] = {}
    unknown: dict[str, None] = {}
    strange = 0
    for pod in listing.pods:
        if not is_pod(pod.namespace, pod.name):
            strange += 1
            continue
        for container in pod.containers:
            if not is_container(container.name):
                strange += 1
                continue
            holder = ContainerName(PodName(pod.namespace, pod.name), container.name)
            found = [
                (device_id, ids.find(each.resource, device_id), is_gpu_id(each.resource, device_id))
                for each in container.devices
                for device_id in each.ids
            ]
            for claimed in container.claimed:
                device = ids.find_claimed(claimed)
                found.append((claimed.device, device, is_gpu_claim(claimed)))
                if device is not None:
                    claims[device.uuid, claimed] = None
            for name, device, is_ours in found:
                if device is not None:
                    holders = held.setdefault(device.uuid, {})
                    holders[holder] = holders.get(holder, 0) + 1
                elif is_ours and len(unknown) < UNKNOWN_KEPT:
                    unknown[name] = None
    return PodMap(
        listing.began_s, tuple(devices), held, tuple(claims), _offered(listing.offered, ids), tuple(unknown), strange
    )


def _offered(offered: Sequence[HeldDevices] | None, ids: DeviceIds) -> Mapping[GpuUuid, int] | None:
    if offered is None:
        return None
    counts: dict[GpuUuid, int] = {}
    for each in offered:
        for device_id in each.ids:
            device = ids.find(each.resource, device_id)
            if device is not None:
                counts[device.uuid] = counts.get(device.uuid, 0) + 1
    return counts
