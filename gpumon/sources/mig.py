"""MIG instances of one GPU and what they do, every second.

NVML only: the MIG mode of the parent, every slot of it with its holes, then per instance
memory, BAR1 and GPM of its GPU instance (Hopper and newer). GI and CI ids are given out again after a
reconfiguration, so an instance is its uuid: it is compared at every pass, and a slot that holds another starts anew,
GPM sample included. Without access to the MIG capabilities of the driver NVML answers NO_PERMISSION: a Miss, asked
again each minute. A GPU without MIG costs one call per generation, one with MIG off one per pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpumon import catalogue
from gpumon.host.nvml import MAX_MIG, MIG_MODE, NAME, UUID, Code, Device, GpmReader, GpmReading, Nvml, NvmlError
from gpumon.model import GpuUuid, Item, Metric, Reason, Rejection, Sample
from gpumon.sources.capabilities import GONE, Capabilities
from gpumon.sources.gpu_state import BYTES_MAX, GpuState, possible

RESCAN_S = 5.0
"""How often empty slots are looked at; an instance that vanishes or changes is noticed at every pass."""
SLOTS_MAX = 64
GAP_S = 10.0
"""A GPM window longer than this spans a stall: a mean over it says nothing of now."""
GPM_PATIENCE = 10
"""Failed comparisons in a row after which the older sample is forgotten (a GPU reset makes it useless)."""

_ACTIVE_MAX = 1.05  # the same tolerance as for whole GPUs: timing noise of the hardware's window
_PROFILE = re.compile(r" MIG (\d[\w.+-]*)$")

_GPM: tuple[tuple[int, str, Metric, Metric | None], ...] = (  # NVML_GPM_METRIC_*, percent
    (1, "graphics_active", catalogue.MIG_GRAPHICS_ACTIVE, None),
    (2, "sm_active", catalogue.MIG_SM_ACTIVE, catalogue.MIG_SM_ACTIVE_SECONDS),
    (3, "sm_occupancy", catalogue.MIG_SM_OCCUPANCY, None),
    (5, "tensor_active", catalogue.MIG_TENSOR_ACTIVE, None),
    (10, "dram_active", catalogue.MIG_DRAM_ACTIVE, catalogue.MIG_DRAM_ACTIVE_SECONDS),
)


@dataclass(slots=True, eq=False)
class MigInstance:
    """One instance, from the pass that found it to the one that misses it."""

    device: Device
    uuid: GpuUuid
    capabilities: Capabilities
    name: str = ""
    labels: tuple[str, ...] = ()
    """uuid, parent_uuid, gpu_instance, compute_instance, profile."""
    gpm: GpmReader | None = None
    gpm_failures: int = 0
    """Failed comparisons in a row."""
    gpm_metrics: tuple[tuple[int, str, Metric, Metric | None], ...] = field(default=_GPM)


def profile_of(name: str) -> str:
    """Profile in the name NVML gives a MIG device: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb`` → ``1g.5gb``; else empty."""
    found = _PROFILE.search(name)
    return found.group(1) if found else ""


class Mig:
    """Source of one GPU's instances in one generation. ``close`` before the generation ends."""

    name = "mig"

    def __init__(
        self, nvml: Nvml, device: Device, labels: tuple[str, str], capabilities: Capabilities, state: GpuState
    ) -> None:
        """``labels``, ``capabilities``, ``state``: of the parent. ``labels``: gpu, uuid."""
        self._nvml = nvml
        self._parent = device
        self._labels = labels
        self._capabilities = capabilities
        self._state = state
        self._slots: dict[int, MigInstance] = {}
        self._scan_at_s = 0.0
        self._enabled: bool | None = None

    def instances(self) -> tuple[MigInstance, ...]:
        """What the newest read found."""
        return tuple(self._slots.values())

    def read(self, at_s: float) -> list[Item]:
        """All instances' values. Raises NvmlError when the GPU or the driver is gone."""
        items: list[Item] = []
        mode = self._capabilities.ask(at_s, "mig_mode", self._nvml.numbers, self._parent, MIG_MODE)
        if mode is not None:
            self._follow_mode(mode[0] == 1)
        # A mode that could not be read this time does not end the instances.
        if self._enabled:
            if at_s >= self._scan_at_s or not all(map(self._same, self._slots.values())):
                self._scan(at_s)
            for instance in self._slots.values():
                items += self._read_instance(at_s, instance)
                items += instance.capabilities.take()
        items += self._capabilities.take()
        return items

    def close(self) -> None:
        """Free every GPM buffer; before ``Nvml.close``."""
        for slot in list(self._slots):
            self._drop(slot)

    def _follow_mode(self, enabled: bool) -> None:
        if self._enabled is not None and enabled != self._enabled:
            self._capabilities.forget()  # what the parent answers for changes with the mode
        if not enabled:
            self.close()
            self._state.mig_active_s.clear()
            self._scan_at_s = 0.0
        self._enabled = enabled

    def _same(self, instance: MigInstance) -> bool:
        try:
            return self._nvml.text(instance.device, UUID) == instance.uuid
        except NvmlError as error:
            if error.code in GONE:
                raise
            return False  # the scan that follows finds out, and reports what still fails

    def _scan(self, at_s: float) -> None:
        self._scan_at_s = at_s + RESCAN_S
        most = self._capabilities.ask(at_s, "mig_devices:max", self._nvml.number, self._parent, MAX_MIG)
        if most is None:
            most = max(self._slots, default=6) + 1  # no GPU so far has more than 7
        before = {instance.uuid for instance in self._slots.values()}
        complete = True
        for slot in range(min(most, SLOTS_MAX)):
            key = f"mig_devices:{slot}"
            found = self._capabilities.ask(at_s, key, self._look, slot)
            if found is None and self._capabilities.supported(key) is not False:
                complete = False  # not read this time, which says nothing of what is in it
            else:
                self._settle(at_s, slot, *(found or (None, "")))
        for slot in [slot for slot in self._slots if slot >= most]:
            self._drop(slot)
        # Integrals go with their instance, and not with one that only moved to another slot.
        present = {instance.uuid for instance in self._slots.values()}
        past = before if not complete else self._state.mig_active_s.keys()
        for uuid in past - present:
            self._state.mig_active_s.pop(uuid, None)

    def _look(self, slot: int) -> tuple[Device | None, str]:
        """Device in the slot and its uuid; None for a hole."""
        try:
            device = self._nvml.mig_device(self._parent, slot)
            return device, self._nvml.text(device, UUID)
        except NvmlError as error:
            if error.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                return None, ""
            raise

    def _settle(self, at_s: float, slot: int, device: Device | None, uuid: str) -> None:
        known = self._slots.get(slot)
        if known is not None and (device is None or known.uuid != uuid):
            self._drop(slot)
            known = None
        if device is None:
            return
        if known is None:
            capabilities = Capabilities(f"gpu {self._labels[0]} mig slot {slot}")
            known = self._slots[slot] = MigInstance(device, GpuUuid(uuid), capabilities)
        known.device = device
        known.name = known.name or (known.capabilities.ask(at_s, "name", self._nvml.text, device, NAME) or "").strip()
        known.labels = (
            uuid,
            self._labels[1],
            _text(device.gpu_instance),
            _text(device.compute_instance),
            profile_of(known.name),
        )

    def _drop(self, slot: int) -> None:
        instance = self._slots.pop(slot, None)
        if instance is not None:
            _close_gpm(instance)

    def _read_instance(self, at_s: float, instance: MigInstance) -> Iterator[Item]:
        yield Sample(catalogue.MIG_INFO, (*instance.labels, self._labels[0], instance.name), 1.0)
        ask = instance.capabilities.ask
        memory = ask(at_s, "memory", self._nvml.memory, instance.device)
        if memory is not None:
            yield from _bytes(
                catalogue.MIG_MEMORY,
                "mig_memory",
                instance.labels,
                memory.total,
                {"used": memory.used, "free": memory.free, "reserved": memory.reserved},
            )
        bar1 = ask(at_s, "bar1", self._nvml.bar1, instance.device)
        if bar1 is not None:
            yield from _bytes(
                catalogue.MIG_BAR1, "mig_bar1", instance.labels, bar1.total, {"used": bar1.used, "free": bar1.free}
            )
        yield from self._read_gpm(at_s, instance)

    def _read_gpm(self, at_s: float, instance: MigInstance) -> Iterator[Item]:
        capabilities = instance.capabilities
        if instance.gpm is None:
            supported = capabilities.ask(at_s, "gpm", self._nvml.gpm_supported, instance.device)
            if supported is False:
                capabilities.note(at_s, "gpm", Code.NOT_SUPPORTED)
            if not supported:
                return
            instance.gpm_metrics = tuple(row for row in _GPM if capabilities.wanted(at_s, row[1]))
            metrics = tuple(row[0] for row in instance.gpm_metrics)
            instance.gpm = capabilities.ask(at_s, "gpm", self._nvml.gpm, instance.device, metrics)
            if instance.gpm is None:
                return
        instance.gpm_failures += 1
        reading = capabilities.ask(at_s, "gpm", instance.gpm.read)
        if reading is None:
            if not capabilities.wanted(at_s, "gpm"):
                _close_gpm(instance)
            elif instance.gpm_failures >= GPM_PATIENCE:
                instance.gpm_failures = 0
                instance.gpm.reset()
            return
        instance.gpm_failures = 0
        if reading.interval_s <= GAP_S:
            yield from self._gpm_samples(instance, reading)
        for row, code in zip(instance.gpm_metrics, reading.codes, strict=True):
            capabilities.note(at_s, row[1], code)
        if not all(capabilities.wanted(at_s, row[1]) for row in instance.gpm_metrics):
            _close_gpm(instance)  # begun again without the metrics it does not have

    def _gpm_samples(self, instance: MigInstance, reading: GpmReading) -> Iterator[Item]:
        sums = self._state.mig_active_s.setdefault(instance.uuid, {})
        for (_, key, ratio_metric, seconds_metric), percent, code in zip(
            instance.gpm_metrics, reading.values, reading.codes, strict=True
        ):
            if code != Code.SUCCESS:
                continue
            ratio = percent / 100 if percent is not None else -1.0
            if not possible(ratio, 0, _ACTIVE_MAX):
                yield Rejection(f"mig_{key}", Reason.OUT_OF_RANGE)
                continue
            ratio = min(ratio, 1.0)
            yield Sample(ratio_metric, instance.labels, ratio)
            if seconds_metric is not None:
                sums[key] = sums.get(key, 0.0) + ratio * reading.interval_s
                yield Sample(seconds_metric, instance.labels, sums[key])


def _bytes(
    metric: Metric, name: str, labels: tuple[str, ...], total: int, states: Mapping[str, int | None]
) -> Iterator[Item]:
    if not possible(total, 0, BYTES_MAX):
        yield Rejection(name, Reason.OUT_OF_RANGE)
        return
    for state, value in states.items():
        if value is None:
            continue
        if possible(value, 0, total):
            yield Sample(metric, (*labels, state), float(value))
        else:
            yield Rejection(name, Reason.OUT_OF_RANGE)


def _close_gpm(instance: MigInstance) -> None:
    reader, instance.gpm = instance.gpm, None
    if reader is not None:
        try:
            reader.close()
        except NvmlError:
            # Buffers that NVML will not take back: nothing is left to try, and they end with the generation.
            return


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
