"""The names of dcgm-exporter's default fields, old (up to 4.8) and renamed (from 4.9), as data.

For each field: its name, type and help there, and which of our series it is made of. Types are those that
dcgm-exporter emits, also where they are wrong (an NVLink rate called counter), since rules were written against them.

Left out of both sets: DCGM_FI_DEV_VGPU_LICENSE_STATUS (nothing here reads it), labels of pods. Left out of the renamed
set, because the new name or unit is not published: memory copy, encoder and decoder utilization, and frame buffer
used, free and reserved.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpumon import catalogue
from gpumon.model import Metric

MEBI = 2.0**20


class Take(StrEnum):
    """How a field's number comes from our series."""

    SUM = "sum"  # of the selected series of the GPU
    RATE = "rate"  # per second, of the selected counters of the GPU together
    LAST_XID = "last_xid"  # code of the newest XID, 0 when there was none


@dataclass(frozen=True, slots=True)
class Field:
    """One field of dcgm-exporter."""

    name: str
    kind: str
    help: str
    metric: Metric
    where: tuple[tuple[str, str], ...] = ()
    """Label values that select the series."""
    factor: float = 1.0
    """From our unit to theirs."""
    whole: bool = False
    """True where DCGM has an integer."""
    take: Take = Take.SUM
    mig: Metric | None = None
    """The family with the same of a MIG instance; its labels hold those of ``where``."""


@dataclass(frozen=True, slots=True)
class NameSet:
    """Everything in which the two sets differ."""

    name: str
    """Value of ``/metrics?names=``."""
    host_label: str
    driver_label: str
    fields: tuple[Field, ...]


_PERCENT = 100.0
_GAUGE, _COUNTER = "gauge", "counter"

DCGM = NameSet(
    name="dcgm",
    host_label="Hostname",
    driver_label="DCGM_FI_DRIVER_VERSION",
    fields=(
        Field(
            "DCGM_FI_DEV_SM_CLOCK", _GAUGE, "SM clock in MHz.",
            catalogue.GPU_CLOCK, (("domain", "sm"),), 1e-6, whole=True,
        ),
        Field(
            "DCGM_FI_DEV_MEM_CLOCK", _GAUGE, "Memory clock in MHz.",
            catalogue.GPU_CLOCK, (("domain", "memory"),), 1e-6, whole=True,
        ),
        Field(
            "DCGM_FI_DEV_MEMORY_TEMP", _GAUGE, "Memory temperature in degrees Celsius.",
            catalogue.GPU_TEMPERATURE, (("sensor", "memory"),), whole=True,
        ),
        Field(
            "DCGM_FI_DEV_GPU_TEMP", _GAUGE, "GPU temperature in degrees Celsius.",
            catalogue.GPU_TEMPERATURE, (("sensor", "gpu"),), whole=True,
        ),
        Field("DCGM_FI_DEV_POWER_USAGE", _GAUGE, "Power draw in W.", catalogue.GPU_POWER, (("kind", "average"),)),
        Field(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _COUNTER, "Energy used, in mJ.",
            catalogue.GPU_ENERGY, factor=1e3, whole=True,
        ),
        Field(
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", _COUNTER, "PCIe retries.",
            catalogue.GPU_PCIE_REPLAYS, whole=True,
        ),
        Field(
            "DCGM_FI_DEV_GPU_UTIL", _GAUGE, "GPU utilization in percent.",
            catalogue.GPU_UTILIZATION, factor=_PERCENT, whole=True,
        ),
        Field(
            "DCGM_FI_DEV_MEM_COPY_UTIL", _GAUGE, "Memory utilization in percent.",
            catalogue.GPU_MEMORY_BUSY, factor=_PERCENT, whole=True,
        ),
        Field(
            "DCGM_FI_DEV_ENC_UTIL", _GAUGE, "Encoder utilization in percent.",
            catalogue.GPU_CODEC_UTILIZATION, (("engine", "encoder"),), _PERCENT, whole=True,
        ),
        Field(
            "DCGM_FI_DEV_DEC_UTIL", _GAUGE, "Decoder utilization in percent.",
            catalogue.GPU_CODEC_UTILIZATION, (("engine", "decoder"),), _PERCENT, whole=True,
        ),
        Field(
            "DCGM_FI_DEV_XID_ERRORS", _GAUGE, "Code of the last XID error, 0 when there was none.",
            catalogue.GPU_XID_ERRORS, whole=True, take=Take.LAST_XID,
        ),
        Field(
            "DCGM_FI_DEV_FB_FREE", _GAUGE, "Free frame buffer in MiB.",
            catalogue.GPU_MEMORY, (("state", "free"),), 1 / MEBI, whole=True, mig=catalogue.MIG_MEMORY,
        ),
        Field(
            "DCGM_FI_DEV_FB_USED", _GAUGE, "Used frame buffer in MiB.",
            catalogue.GPU_MEMORY, (("state", "used"),), 1 / MEBI, whole=True, mig=catalogue.MIG_MEMORY,
        ),
        Field(
            "DCGM_FI_DEV_FB_RESERVED", _GAUGE, "Reserved frame buffer in MiB.",
            catalogue.GPU_MEMORY, (("state", "reserved"),), 1 / MEBI, whole=True, mig=catalogue.MIG_MEMORY,
        ),
        Field(
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", _COUNTER, "NVLink bandwidth of all links, both ways, in MB/s.",
            catalogue.GPU_NVLINK_BYTES, factor=1e-6, whole=True, take=Take.RATE,
        ),
        Field(
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", _COUNTER, "Rows remapped for uncorrectable errors.",
            catalogue.GPU_REMAPPED_ROWS, (("cause", "uncorrectable"),), whole=True,
        ),
        Field(
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", _COUNTER, "Rows remapped for correctable errors.",
            catalogue.GPU_REMAPPED_ROWS, (("cause", "correctable"),), whole=True,
        ),
        Field(
            "DCGM_FI_DEV_ROW_REMAP_FAILURE", _GAUGE, "1 if a row could not be remapped.",
            catalogue.GPU_ROW_REMAP_FAILED, whole=True,
        ),
        Field(
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE", _GAUGE, "Ratio of time the graphics engine is active.",
            catalogue.GPU_GRAPHICS_ACTIVE, mig=catalogue.MIG_GRAPHICS_ACTIVE,
        ),
        Field(
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _GAUGE, "Ratio of cycles the tensor pipe is active.",
            catalogue.GPU_TENSOR_ACTIVE, mig=catalogue.MIG_TENSOR_ACTIVE,
        ),
        Field(
            "DCGM_FI_PROF_DRAM_ACTIVE", _GAUGE, "Ratio of cycles the memory interface is active.",
            catalogue.GPU_DRAM_ACTIVE, mig=catalogue.MIG_DRAM_ACTIVE,
        ),
        Field(
            "DCGM_FI_PROF_PCIE_TX_BYTES", _GAUGE, "Bytes sent over PCIe per second.",
            catalogue.GPU_PCIE_BYTES, (("direction", "tx"),), whole=True, take=Take.RATE,
        ),
        Field(
            "DCGM_FI_PROF_PCIE_RX_BYTES", _GAUGE, "Bytes received over PCIe per second.",
            catalogue.GPU_PCIE_BYTES, (("direction", "rx"),), whole=True, take=Take.RATE,
        ),
    ),
)  # fmt: skip
"""dcgm-exporter up to 4.8, as its default-counters.csv had it."""

DCGM_NEXT = NameSet(
    name="dcgm-next",
    host_label="hostname",
    driver_label="DCGM_FI_SYSTEM_DRIVER_VERSION",
    fields=(
        Field(
            "DCGM_FI_DEV_SM_CLOCK_HERTZ", _GAUGE, "SM clock in Hz.",
            catalogue.GPU_CLOCK, (("domain", "sm"),), whole=True,
        ),
        Field(
            "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", _GAUGE, "Memory clock in Hz.",
            catalogue.GPU_CLOCK, (("domain", "memory"),), whole=True,
        ),
        Field(
            "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", _GAUGE, "Memory temperature in degrees Celsius.",
            catalogue.GPU_TEMPERATURE, (("sensor", "memory"),), whole=True,
        ),
        Field(
            "DCGM_FI_DEV_GPU_TEMP_CELSIUS", _GAUGE, "GPU temperature in degrees Celsius.",
            catalogue.GPU_TEMPERATURE, (("sensor", "gpu"),), whole=True,
        ),
        Field("DCGM_FI_DEV_BOARD_POWER_WATTS", _GAUGE, "Power draw in W.", catalogue.GPU_POWER, (("kind", "average"),)),
        Field(
            "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", _COUNTER, "Energy used, in J.",
            catalogue.GPU_ENERGY,
        ),
        Field(
            "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", _COUNTER, "PCIe retries.",
            catalogue.GPU_PCIE_REPLAYS, whole=True,
        ),
        # In DCGM 4.6 this name still carried 0-100; dcgm-exporter 4.9, which has it by default, has 0-1.
        Field("DCGM_FI_DEV_GPU_UTIL_RATIO", _GAUGE, "GPU utilization, 0 to 1.", catalogue.GPU_UTILIZATION),
        Field(
            "DCGM_FI_DEV_XID_ERROR", _GAUGE, "Code of the last XID error, 0 when there was none.",
            catalogue.GPU_XID_ERRORS, whole=True, take=Take.LAST_XID,
        ),
        Field(
            "DCGM_FI_DEV_FB_CAPACITY_BYTES", _GAUGE, "Frame buffer in bytes.",
            catalogue.GPU_MEMORY, whole=True, mig=catalogue.MIG_MEMORY,
        ),
        Field(
            "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", _GAUGE, "NVLink throughput of all links, both ways, in B/s.",
            catalogue.GPU_NVLINK_BYTES, whole=True, take=Take.RATE,
        ),
        Field(
            "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", _COUNTER, "Rows remapped for uncorrectable errors.",
            catalogue.GPU_REMAPPED_ROWS, (("cause", "uncorrectable"),), whole=True,
        ),
        Field(
            "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", _COUNTER, "Rows remapped for correctable errors.",
            catalogue.GPU_REMAPPED_ROWS, (("cause", "correctable"),), whole=True,
        ),
        Field(
            "DCGM_FI_DEV_ROW_REMAP_FAILED", _GAUGE, "1 if a row could not be remapped.",
            catalogue.GPU_ROW_REMAP_FAILED, whole=True,
        ),
        Field(
            "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", _GAUGE, "Ratio of time the graphics engine is active.",
            catalogue.GPU_GRAPHICS_ACTIVE, mig=catalogue.MIG_GRAPHICS_ACTIVE,
        ),
        Field(
            "DCGM_FI_PROF_TENSOR_UTIL_RATIO", _GAUGE, "Ratio of cycles the tensor pipe is active.",
            catalogue.GPU_TENSOR_ACTIVE, mig=catalogue.MIG_TENSOR_ACTIVE,
        ),
        Field(
            "DCGM_FI_PROF_DRAM_UTIL_RATIO", _GAUGE, "Ratio of cycles the memory interface is active.",
            catalogue.GPU_DRAM_ACTIVE, mig=catalogue.MIG_DRAM_ACTIVE,
        ),
        Field(
            "DCGM_FI_PROF_PCIE_TX_BYTES", _GAUGE, "Bytes sent over PCIe per second.",
            catalogue.GPU_PCIE_BYTES, (("direction", "tx"),), whole=True, take=Take.RATE,
        ),
        Field(
            "DCGM_FI_PROF_PCIE_RX_BYTES", _GAUGE, "Bytes received over PCIe per second.",
            catalogue.GPU_PCIE_BYTES, (("direction", "rx"),), whole=True, take=Take.RATE,
        ),
    ),
)  # fmt: skip
"""dcgm-exporter from 4.9, as far as its names and units are published."""

NAME_SETS = {names.name: names for names in (DCGM, DCGM_NEXT)}
"""By the value of ``/metrics?names=``."""

XID_MESSAGES = {
    0: "No Error",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors",
    48: "Double Bit ECC Error",
    63: "Row remapping recorded",
    64: "Row remapping failed",
    74: "NVLink Error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    109: "Context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "Unrecovered ECC error",
    143: "GPU initialization error",
    149: "NVLink link error",
    154: "GPU recovery action changed",
}
"""Label err_msg; codes that are not here are an Unknown Error."""
