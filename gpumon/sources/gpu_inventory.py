"""What each GPU is, every minute, and how many there should be.

Identity from NVML (name, bus id, VBIOS, architecture, compute capability, minor number: read once per generation;
MIG mode: at every pass) and sysfs (NUMA node of the PCI slot). What cannot be read is an empty label, and is asked
for again. The number of GPUs to expect is what the PCI bus shows (vendor 0x10de, class 3D controller or VGA),
without virtual functions and without what is handed to a virtual machine; it needs no driver, so it can be
compared with what NVML presents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from gpumon.catalogue import DRIVER_INFO, GPU_COUNT, GPU_INFO
from gpumon.host.files import Files, ReadError
from gpumon.host.nvml import (
    ARCHITECTURE,
    COMPUTE_CAPABILITY,
    MIG_MODE,
    MINOR,
    NAME,
    VBIOS,
    Code,
    Device,
    Nvml,
)
from gpumon.model import GpuUuid, Item, Miss, Reason, Rejection, Sample
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu_state import possible

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GPM = "gpm"
"""Capability key under which GPM is read."""
MEMORY = "memory"
"""Capability key under which device memory is read."""

ARCHITECTURES = {  # NVML_DEVICE_ARCH_*
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
_MIG_MODES = {(0, 0): "disabled", (1, 1): "enabled", (0, 1): "enabling", (1, 0): "disabling"}

_BUS = "sys/bus/pci/devices"
_NVIDIA = b"0x10de"
_CLASSES = (b"0x0300", b"0x0302")


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What joins a GPU to the rest of the node."""

    uuid: GpuUuid
    index: str
    """NVML's index, for display."""
    name: str
    pci_bus_id: str
    """As the kernel spells it, ``0000:3b:00.0``; empty while unknown."""
    minor: int | None
    """The N of /dev/nvidiaN."""
    numa_node: int | None
    """NUMA node of the PCI slot; None where the kernel does not say, as in most virtual machines."""


class GpuInventory:
    """Source of one GPU in one generation."""

    name = "gpu_inventory"

    def __init__(
        self, nvml: Nvml, device: Device, labels: tuple[str, str], capabilities: Capabilities, files: Files
    ) -> None:
        """``labels``: gpu, uuid."""
        self._nvml = nvml
        self._device = device
        self._labels = labels
        self._capabilities = capabilities
        self._files = files
        self._known: dict[str, object] = {}
        self.identity = GpuIdentity(GpuUuid(labels[1]), labels[0], "", "", None, None)
        """As of the newest read."""

    def read(self, at_s: float) -> list[Item]:
        """``gpumon_gpu_info``. Raises NvmlError when the GPU or the driver is gone."""
        items: list[Item] = []
        nvml, device = self._nvml, self._device
        name = (self._once(at_s, "name", nvml.text, device, NAME) or "").strip()
        bus_id = self._once(at_s, "pci_bus_id", nvml.pci_bus_id, device) or ""
        vbios = (self._once(at_s, "vbios", nvml.text, device, VBIOS) or "").strip()
        minor = self._once(at_s, "minor", nvml.number, device, MINOR)
        if minor is not None and not possible(minor, 0, 4095):
            items.append(Rejection("minor", Reason.OUT_OF_RANGE))
            minor = None
        driver = self._once(at_s, "driver_version", nvml.driver)
        node = self._numa_node(bus_id, items)
        self.identity = GpuIdentity(GpuUuid(self._labels[1]), self._labels[0], name, bus_id, minor, node)
        labels = (
            *self._labels,
            name,
            bus_id,
            (driver.driver_version if driver else None) or "",
            vbios,
            self._architecture(at_s),
            self._compute_capability(at_s, items),
            _text(node),
            _text(minor),
            self._mig_mode(at_s, items),
            self._memory_model(at_s),
            self._activity_source(at_s),
        )
        items.append(Sample(GPU_INFO, labels, 1.0))
        items += self._capabilities.take()
        return items

    def _once(self, at_s: float, key: str, function: Callable[[*Ts], T], *args: *Ts) -> T | None:
        if key in self._known:
            return self._known[key]  # type: ignore[return-value]  # put there below, by the same question
        answer = self._capabilities.ask(at_s, key, function, *args)
        if answer is not None:
            self._known[key] = answer
        return answer

    def _numa_node(self, bus_id: str, items: list[Item]) -> int | None:
        if not bus_id:
            return None
        path = f"{_BUS}/{bus_id}/numa_node"
        try:
            node = int(self._files.read(path))
        except ReadError as error:
            items.append(Miss(f"gpu {self._labels[0]} numa_node", error.reason, error.detail))
            return None
        except ValueError:
            items.append(Miss(f"gpu {self._labels[0]} numa_node", Reason.MALFORMED, path))
            return None
        return node if 0 <= node < 1024 else None  # -1: the firmware did not say

    def _architecture(self, at_s: float) -> str:
        number = self._once(at_s, "architecture", self._nvml.number, self._device, ARCHITECTURE)
        return ARCHITECTURES.get(number, "") if number is not None else ""

    def _compute_capability(self, at_s: float, items: list[Item]) -> str:
        version = self._once(at_s, "compute_capability", self._nvml.numbers, self._device, COMPUTE_CAPABILITY)
        if version is None:
            return ""
        major, minor = version[:2]
        if not (1 <= major < 100 and 0 <= minor < 100):
            items.append(Rejection("compute_capability", Reason.OUT_OF_RANGE))
            return ""
        return f"{major}.{minor}"

    def _mig_mode(self, at_s: float, items: list[Item]) -> str:
        mode = self._capabilities.ask(at_s, "mig_mode", self._nvml.numbers, self._device, MIG_MODE)
        if mode is None:
            return "unsupported" if self._capabilities.supported("mig_mode") is False else ""
        name = _MIG_MODES.get((mode[0], mode[1]))
        if name is None:
            items.append(Rejection("mig_mode", Reason.OUT_OF_RANGE))
        return name or ""

    def _memory_model(self, at_s: float) -> str:
        if self._capabilities.supported(MEMORY) is None:
            self._capabilities.ask(at_s, MEMORY, self._nvml.memory, self._device)
        return {True: "dedicated", False: "unified", None: ""}[self._capabilities.supported(MEMORY)]

    def _activity_source(self, at_s: float) -> str:
        has_gpm = self._once(at_s, GPM, self._nvml.gpm_supported, self._device)
        if has_gpm is False:
            self._capabilities.note(at_s, GPM, Code.NOT_SUPPORTED)
        # GPM that exists and is denied measures nothing.
        if not self._capabilities.wanted(at_s, GPM):
            return "utilization"
        return "gpm" if has_gpm else ""


class NodeInventory:
    """Source of the node: driver versions and the number of GPUs. Uses no device, so any thread may read it."""

    name = "inventory"

    def __init__(self, nvml: Nvml, files: Files, lost: Callable[[], int]) -> None:
        """``lost``: how many GPUs were there since the start and are not now."""
        self._nvml = nvml
        self._files = files
        self._lost = lost
        self._capabilities = Capabilities("nvml")

    def read(self, at_s: float) -> list[Item]:
        """``gpumon_driver_info`` and ``gpumon_gpus``. Raises NvmlError when the driver is gone."""
        items: list[Item] = []
        driver = self._capabilities.ask(at_s, "driver", self._nvml.driver)
        if driver is not None:
            versions = (driver.driver_version or "", driver.nvml_version or "", driver.cuda_version or "")
            items.append(Sample(DRIVER_INFO, versions, 1.0))
        try:
            items.append(Sample(GPU_COUNT, ("expected",), float(expected_gpus(self._files))))
        except ReadError as error:
            items.append(Miss("pci devices", error.reason, error.detail))
        present = self._capabilities.ask(at_s, "device_count", self._nvml.device_count)
        if present is not None:
            if possible(present, 0, 1024):
                items.append(Sample(GPU_COUNT, ("present",), float(present)))
            else:
                items.append(Rejection("device_count", Reason.OUT_OF_RANGE))
        items.append(Sample(GPU_COUNT, ("lost",), float(self._lost())))
        items += self._capabilities.take()
        return items


def expected_gpus(files: Files) -> int:
    """GPUs on the PCI bus that NVML should present. Raises ReadError when the bus cannot be listed."""
    return sum(_is_gpu(files, f"{_BUS}/{name}") for name in files.list(_BUS))


def _is_gpu(files: Files, path: str) -> bool:
    try:
        # A device may be unplugged in the middle: then it is not there.
        if files.read(f"{path}/vendor").strip() != _NVIDIA or not files.read(f"{path}/class").startswith(_CLASSES):
            return False
    except ReadError:
        return False
    return _link(files, f"{path}/physfn") is None and not (_link(files, f"{path}/driver") or "").endswith("/vfio-pci")


def _link(files: Files, path: str) -> str | None:
    try:
        return files.link(path)
    except ReadError:
        return None


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
