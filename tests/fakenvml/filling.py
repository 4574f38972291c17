"""Fills a new node from a profile, and makes the node of sick GPUs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tests.fakenvml import layout, profiles
from tests.fakenvml.gpu import AUTO_SAMPLES, GPM_SUPPORTED, FakeGpu
from tests.fakenvml.profiles import Profile
from tests.fakenvml.rules import RuleBook
from tests.fakenvml.scenario import set_line

NO_PERMISSION = 4
RESET_REQUIRED = 16
# The header's own word: the call measures for 20 ms.
_PCIE_THROUGHPUT_US = 20_000


def fill_gpu(gpu: FakeGpu, rules: RuleBook, profile: Profile, now_ns: int) -> None:
    """Everything the profile says, at idle."""
    for signal in layout.SIGNALS:
        gpu.set(signal, profile.signals.get(signal, 0))
    _identify(gpu, profile)
    gpu.set("energy_mj", 1.0e9 * (gpu.slot + 1))
    gpu.set_power(profile.signals["power_mw"] / 1000)
    _fill_fields(gpu, profile)
    for number, entry in enumerate(gpu.data.gpm):
        set_line(entry.integral, now_ns, 0)
        has = bool(profile.signals.get("gpm_supported")) and number in GPM_SUPPORTED
        entry.ret = 0 if has else profiles.NOT_SUPPORTED
    for number in range(profile.links):
        _fill_link(gpu, profile, number)
    for kind in AUTO_SAMPLES:
        gpu.auto_samples(kind)
    for fn in profile.unsupported:
        gpu.unsupported(fn)
    rules.set_base("nvmlDeviceGetPcieThroughput", gpu.slot, delay_us=_PCIE_THROUGHPUT_US)
    if profile.mig:
        gpu.set_mig(profile.mig, dict(profile.mig_profiles))


def make_sick(gpu: Callable[[int], FakeGpu]) -> None:
    """One illness per GPU, so that a monitor must cope with all of them at once."""
    gpu(profiles.SICK_LOST).lose()

    reset = gpu(profiles.SICK_RESET_REQUIRED)
    reset.set("recovery_action", 1)
    for fn in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo",
               "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3",
               "nvmlGpmSampleGet"):  # fmt: skip
        reset.fail(fn, RESET_REQUIRED)

    rows = gpu(profiles.SICK_ROW_REMAP)
    rows.remap(corrected=2, uncorrected=8, pending=True, failure=True)
    rows.ecc("uncorrected", 8)

    bare = gpu(profiles.SICK_UNSUPPORTED)
    for number in range(layout.FIELDS):
        if bare.data.fields[number].ret == 0 and number not in (83, 186):
            bare.field_error(number, profiles.INVALID_ARGUMENT if number > 140 else 3)
    for fn in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperatureV",
               "nvmlDeviceGetMarginTemperature",
               "nvmlDeviceGetCurrentClocksEventReasons"):  # fmt: skip
        bare.unsupported(fn)
    bare.fail("nvmlGpmSampleGet", NO_PERMISSION)

    gpu(profiles.SICK_HANGING).hang(profiles.SICK_HANGING_CALL)

    garbage = gpu(profiles.SICK_GARBAGE)
    garbage.set("util_gpu", 250)
    garbage.set("temp_gpu_c", -300)
    garbage.set("power_mw", 2**32 - 1)
    garbage.raw("energy_mj", 2**64 - 1)
    garbage.raw("memory_used", 2**64 - 1)
    garbage.set_field(186, 0, value_type=profiles.DOUBLE, raw=0x42E0000000000000)  # DCGM's blank
    garbage.set_field(82, 0, value_type=profiles.DOUBLE, raw=0x7FF8000000000000)  # NaN
    garbage.field_timestamp(83, 0)
    garbage.gpm_answer("sm", value=float("nan"))
    garbage.gpm_answer("dram", value=-5.0)
    garbage.gpm_answer("tensor", value=1e300)


def _identify(gpu: FakeGpu, profile: Profile) -> None:
    data, slot = gpu.data, gpu.slot
    digest = hashlib.sha256(f"{profile.name}/{slot}".encode()).hexdigest()
    parts = (digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])
    data.present = 1
    data.name = profile.name.encode()
    data.uuid = "-".join(("GPU", *parts)).encode()
    data.serial = str(1_650_000_000_000 + int(digest[:8], 16) % 10**9).encode()
    data.vbios = f"96.00.{slot:02X}.00.01".encode()
    data.part = profile.part.encode()
    data.pci_device_id, data.pci_subsystem_id = profile.device_id, 0x165810DE
    data.pci_bus = profiles.PCI_BUSES[slot]
    socket = slot // 4 % 2
    for word, mask in enumerate(profiles.CPU_MASKS[socket]):
        data.cpu_affinity[word] = mask
    data.memory_affinity[0] = 1 << socket
    data.mig_capable = bool(profile.mig_profiles)
    data.mig_max = 7
    data.link_count = profile.links
    gpu.set("link_count", profile.links)
    gpu.set("minor_number", slot)
    gpu.set("module_id", slot + 1)
    gpu.set("board_id", data.pci_bus << 8)


def _fill_fields(gpu: FakeGpu, profile: Profile) -> None:
    for number in range(layout.FIELDS):
        entry = gpu.data.fields[number]
        spec = profiles.FIELD_TABLE.get(number)
        if spec is not None:
            own = spec.source == layout.FIELD_LINE
            entry.value_type, entry.source, entry.arg = spec.value_type, spec.source, spec.link
            entry.line = (layout.SIGNAL_INDEX if own else layout.LINK_INDEX)[spec.line]
        elif number in profiles.PRIVATE_FIELDS:
            value_type, value = profiles.PRIVATE_FIELDS[number]
            gpu.set_field(number, value, value_type=value_type)
        else:
            entry.line = layout.SIGNAL_SLOTS + number
        entry.ret = 0 if number in profile.fields else profile.missing_field_code


def _fill_link(gpu: FakeGpu, profile: Profile, number: int) -> None:
    link = gpu.data.links[number]
    link.remote_type = 2  # a switch
    link.remote_bus, link.remote_device = 0x05 + number % 4, 0
    gpu.set_link(number, "speed_mbps", profile.link_mbps)
    gpu.set_link(number, "state", 1)
    gpu.set_link(number, "version", profile.link_version)
    gpu.set_link(number, "remote_link", number)
