"""From the device ids of device plugins and DRA drivers to GPUs and MIG instances.

An id is a UUID (NVIDIA's device plugin), a UUID and ``::<replica>`` (time-slicing and MPS), ``nvidia<minor>`` with or
without ``/gi<GPU instance>`` and ``/vgpu<replica>`` (GKE's plugin, of ``nvidia.com/gpu`` alone). A device of a claim
is known by a UUID in one of its CDI names, or by the name that NVIDIA's DRA driver gives a whole GPU, ``gpu-<minor>``.
Whatever fits no GPU of this node, or more than one, is none: plugins that hand out other devices than those whose ids
they told the kubelet are not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gpumon.host.podresources import ClaimedDevice
from gpumon.model import GpuUuid

DRA_DRIVER: Final = "gpu.nvidia.com"
_GKE = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu[0-9]{1,4})?", re.ASCII)
_DRA_GPU = re.compile(r"gpu-([0-9]{1,4})", re.ASCII)
_UUID = re.compile(r"(?<![0-9A-Za-z-])(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.ASCII)
_OURS = re.compile(r"(?:GPU|MIG)-.*|nvidia[0-9].*", re.ASCII | re.DOTALL)
_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")


class GpuDevice(NamedTuple):
    """A GPU or a MIG instance, as far as device ids name it."""

    gpu: str
    """Index of the GPU, for display."""
    uuid: GpuUuid
    minor: int | None = None
    """The N of /dev/nvidiaN; None for a MIG instance, and where it is not known."""
    parent: GpuUuid | None = None
    """The GPU of a MIG instance."""
    gpu_instance: str = ""
    """Of a MIG instance: its number on its GPU."""


class DeviceIds:
    """The GPUs of the node by every way to name one."""

    def __init__(self, devices: Iterable[GpuDevice]) -> None:
        self._by_uuid: dict[str, GpuDevice] = {}
        self._by_minor: dict[int, list[GpuDevice]] = {}
        self._by_instance: dict[tuple[GpuUuid, str], list[GpuDevice]] = {}
        for device in devices:
            self._by_uuid[device.uuid] = device
            if device.minor is not None:
                self._by_minor.setdefault(device.minor, []).append(device)
            if device.parent is not None and device.gpu_instance:
                self._by_instance.setdefault((device.parent, device.gpu_instance), []).append(device)

    def find(self, resource: str, device_id: str) -> GpuDevice | None:
        """The device of a device plugin's id of this resource."""
        known = self._by_uuid.get(device_id.partition("::")[0])
        if known is not None:
            return known
        # A UUID is one GPU's, whoever says it; another plugin's ``nvidia0`` may be anything.
        gke = _GKE.fullmatch(device_id)
        if gke is None or not resource.startswith(_RESOURCES):
            return None
        gpu = _only(self._by_minor.get(int(gke.group(1)), ()))
        if gpu is None or gke.group(2) is None:
            return gpu
        return _only(self._by_instance.get((gpu.uuid, gke.group(2)), ()))

    def find_claimed(self, claimed: ClaimedDevice) -> GpuDevice | None:
        """The device of a claim; None also where its names contradict each other."""
        told = [self._by_uuid.get(uuid) for name in claimed.cdi for uuid in _UUID.findall(name.partition("=")[2])]
        dra = _DRA_GPU.fullmatch(claimed.device) if claimed.driver == DRA_DRIVER else None
        if dra is not None:
            told.append(_only(self._by_minor.get(int(dra.group(1)), ())))
        return told[0] if told and all(each == told[0] for each in told) else None


def is_gpu_id(resource: str, device_id: str) -> bool:
    """Whether a device id is meant for a GPU, known or not."""
    return resource.startswith(_RESOURCES) or _OURS.fullmatch(device_id) is not None


def is_gpu_claim(claimed: ClaimedDevice) -> bool:
    """Whether a claim is one of GPUs, known or not."""
    return claimed.driver == DRA_DRIVER or any(_UUID.search(name) for name in claimed.cdi)


def _only(devices: Sequence[GpuDevice]) -> GpuDevice | None:
    return devices[0] if len(devices) == 1 else None
