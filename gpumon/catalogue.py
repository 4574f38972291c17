"""Every metric gpumon exports, as data: the one place where a name, unit, type, label or help text exists.

Exposition, ``docs/METRICS.md``, dashboards, alert lint and OTLP names all read this table. Names are derived
(``gpumon_`` + stem + unit + ``_total``/``_info``), so a wrong suffix cannot be written. Node and cluster are
target labels, never ours; facts about a GPU are on ``gpumon_gpu_info`` and joined by ``uuid``.

Budgets are series per node, sized for 16 GPUs, 7 MIG instances each, and the default process caps.
"""

from __future__ import annotations

from typing import Final

from gpumon.model import Kind, Metric, Unit

GPU = ("gpu", "uuid")
MIG = ("uuid", "parent_uuid", "gpu_instance", "compute_instance", "profile")
WORKLOAD = ("pid", "process", "namespace", "pod", "container")
GPU_WORKLOAD = (*GPU, *WORKLOAD)

GPUS = 16
MIGS = GPUS * 7
PROCESSES = 256
NODES = 16  # NUMA nodes

THROTTLE_REASONS = (
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "board_limit",
    "low_utilization",
    "reliability",
    "base_clocks",
)
BOUND_STATES = ("compute", "memory", "balanced", "starved", "idle")
CLOCK_DOMAINS = ("graphics", "sm", "memory", "video")
XID_PRECREATED = (13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 140, 143, 149, 154)
"""XIDs that exist at 0 before their first event, so that ``increase()`` sees it."""

RATIO_BOUNDS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
POWER_BOUNDS = (
    25.0,
    50.0,
    75.0,
    100.0,
    150.0,
    200.0,
    250.0,
    300.0,
    350.0,
    400.0,
    500.0,
    600.0,
    700.0,
    850.0,
    1000.0,
    1200.0,
)
CALL_BOUNDS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)

CONCURRENCY_BUCKETS = ("1", "2-3", "4-7", "8-15", "16-31", "32-63", "64+")
"""Requests open on the server, the one counted among them."""
CONTEXT_BUCKETS = ("<1k", "1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k", "256k+")
"""Prompt tokens plus tokens made before; each value but the first is the bucket's least, k being 1,024."""
INTER_TOKEN_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0),
)
FIRST_TOKEN_BOUNDS = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5),
    *(0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0),
)
PHASE_BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0),
)
REQUEST_BOUNDS = (
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0),
    *(15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)
REQUEST_OUTCOMES = ("ok", "error", "aborted", "incomplete")
SERVED = 41
"""Most (server, model) pairs: 32 by name, and an ``other`` for each of eight servers and for the rest."""
TENANTS = 258
"""Most tenants: 256 by name, ``unknown`` and ``other``."""


def _metric(
    kind: Kind,
    stem: str,
    unit: Unit,
    labels: tuple[str, ...],
    help_: str,
    origin: str,
    budget: int,
    values: tuple[str, ...],
    bounds: tuple[float, ...] = (),
) -> Metric:
    return Metric(
        stem=stem,
        kind=kind,
        unit=unit,
        labels=labels,
        help=help_,
        origin=origin,
        budget=budget,
        bounds=bounds,
        values=values,
    )


def _gauge(
    stem: str,
    unit: Unit,
    labels: tuple[str, ...],
    help_: str,
    *,
    origin: str,
    budget: int = GPUS,
    values: tuple[str, ...] = (),
) -> Metric:
    return _metric(Kind.GAUGE, stem, unit, labels, help_, origin, budget * max(1, len(values)), values)


def _counter(
    stem: str,
    unit: Unit,
    labels: tuple[str, ...],
    help_: str,
    *,
    origin: str,
    budget: int = GPUS,
    values: tuple[str, ...] = (),
) -> Metric:
    return _metric(Kind.COUNTER, stem, unit, labels, help_, origin, budget * max(1, len(values)), values)


def _histogram(
    stem: str,
    unit: Unit,
    labels: tuple[str, ...],
    help_: str,
    *,
    origin: str,
    bounds: tuple[float, ...],
    budget: int = GPUS,
    values: tuple[str, ...] = (),
) -> Metric:
    return _metric(Kind.HISTOGRAM, stem, unit, labels, help_, origin, budget * max(1, len(values)), values, bounds)


def _info(stem: str, labels: tuple[str, ...], help_: str, *, origin: str, budget: int = 1) -> Metric:
    return _metric(Kind.INFO, stem, Unit.NONE, labels, help_, origin, budget, ())


# --- identity ---------------------------------------------------------------------------------------------------
BUILD_INFO = _info("build", ("version", "python"), "Version of gpumon and of its Python.", origin="gpumon")
DRIVER_INFO = _info(
    "driver",
    ("driver_version", "nvml_version", "cuda_version"),
    "Versions of the NVIDIA driver in use.",
    origin="nvmlSystemGetDriverVersion, nvmlSystemGetNVMLVersion, nvmlSystemGetCudaDriverVersion_v2",
)
GPU_INFO = _info(
    "gpu",
    (
        *GPU,
        "name",
        "pci_bus_id",
        "driver_version",
        "vbios_version",
        "architecture",
        "compute_capability",
        "numa_node",
        "minor",
        "mig_mode",
        "memory_model",
        "activity_source",
    ),
    "What the GPU is. activity_source is gpm where SM and DRAM activity are measured, utilization where only NVML's "
    "busy time exists; memory_model is unified where the GPU has no memory of its own.",
    origin="nvmlDeviceGet{Name,PciInfo_v3,VbiosVersion,Architecture,CudaComputeCapability,MinorNumber,MigMode}, sysfs",
    budget=GPUS,
)
GPU_COUNT = _gauge(
    "gpus",
    Unit.NONE,
    ("state",),
    "GPUs of the node: expected from the PCI bus, present to NVML, lost.",
    origin="/sys/bus/pci/devices, nvmlDeviceGetCount_v2",
    budget=1,
    values=("expected", "present", "lost"),
)
GPU_PRESENT = _gauge(
    "gpu_present",
    Unit.NONE,
    GPU,
    "1 while the GPU answers, 0 once it is lost or a call to it hangs. What is read from it is absent then.",
    origin="gpumon's sampler",
)
GPU_FIELD_SUPPORTED = _gauge(
    "gpu_field_supported",
    Unit.NONE,
    (*GPU, "field"),
    "1 where this GPU and driver answer for the field, 0 where they said that they never will: why a graph is empty.",
    origin="return code of the first read of each generation",
    budget=GPUS * 96,
)

# --- activity ---------------------------------------------------------------------------------------------------
GPU_UTILIZATION = _gauge(
    "gpu_utilization",
    Unit.RATIO,
    GPU,
    "Share of NVML's sample period in which at least one kernel ran. Not how much of the GPU it used.",
    origin="nvmlDeviceGetUtilizationRates.gpu",
)
GPU_MEMORY_BUSY = _gauge(
    "gpu_memory_controller_busy",
    Unit.RATIO,
    GPU,
    "Share of NVML's sample period in which device memory was read or written.",
    origin="nvmlDeviceGetUtilizationRates.memory",
)
_GPM = "NVML GPM metric {}, mean over one fast sample (100 ms by default)"
GPU_SM_ACTIVE = _gauge(
    "gpu_sm_active",
    Unit.RATIO,
    GPU,
    "Share of time with at least one warp on an SM, mean over SMs.",
    origin=_GPM.format(2),
)
GPU_SM_OCCUPANCY = _gauge(
    "gpu_sm_occupancy", Unit.RATIO, GPU, "Resident warps over the most an SM can hold.", origin=_GPM.format(3)
)
GPU_TENSOR_ACTIVE = _gauge(
    "gpu_tensor_active", Unit.RATIO, GPU, "Share of time the tensor pipes were active.", origin=_GPM.format(5)
)
GPU_DRAM_ACTIVE = _gauge(
    "gpu_dram_active", Unit.RATIO, GPU, "DRAM bandwidth used over the most possible.", origin=_GPM.format(10)
)
GPU_GRAPHICS_ACTIVE = _gauge(
    "gpu_graphics_active", Unit.RATIO, GPU, "Share of time the graphics/compute engine was busy.", origin=_GPM.format(1)
)
GPU_FP64_ACTIVE = _gauge(
    "gpu_fp64_active", Unit.RATIO, GPU, "Share of time the FP64 pipe was active.", origin=_GPM.format(11)
)
GPU_FP32_ACTIVE = _gauge(
    "gpu_fp32_active", Unit.RATIO, GPU, "Share of time the FP32 pipe was active.", origin=_GPM.format(12)
)
GPU_FP16_ACTIVE = _gauge(
    "gpu_fp16_active", Unit.RATIO, GPU, "Share of time the FP16 pipe was active.", origin=_GPM.format(13)
)
GPU_INTEGER_ACTIVE = _gauge(
    "gpu_integer_active", Unit.RATIO, GPU, "Share of time the integer pipe was active.", origin=_GPM.format(4)
)
GPU_SM_ACTIVE_SECONDS = _counter(
    "gpu_sm_active",
    Unit.SECONDS,
    GPU,
    "Integral of SM activity: its rate() is the mean over any window.",
    origin="sum of gpumon_gpu_sm_active_ratio x sample length",
)
GPU_DRAM_ACTIVE_SECONDS = _counter(
    "gpu_dram_active",
    Unit.SECONDS,
    GPU,
    "Integral of DRAM activity: its rate() is the mean over any window.",
    origin="sum of gpumon_gpu_dram_active_ratio x sample length",
)
GPU_TENSOR_ACTIVE_SECONDS = _counter(
    "gpu_tensor_active",
    Unit.SECONDS,
    GPU,
    "Integral of tensor activity: its rate() is the mean over any window.",
    origin="sum of gpumon_gpu_tensor_active_ratio x sample length",
)
GPU_BUSY_SECONDS = _counter(
    "gpu_busy",
    Unit.SECONDS,
    GPU,
    "Integral of NVML utilization: its rate() is the mean over any window, on every GPU.",
    origin="nvmlDeviceGetSamples(GPU_UTIL) where it exists, else gpumon_gpu_utilization_ratio x sample length",
)
GPU_SM_ACTIVE_SAMPLES = _histogram(
    "gpu_sm_active_sample",
    Unit.RATIO,
    GPU,
    "SM activity of every fast sample, so that a scrape interval cannot hide a burst.",
    origin="one observation per fast sample",
    bounds=RATIO_BOUNDS,
)
GPU_DRAM_ACTIVE_SAMPLES = _histogram(
    "gpu_dram_active_sample",
    Unit.RATIO,
    GPU,
    "DRAM activity of every fast sample, so that a scrape interval cannot hide a burst.",
    origin="one observation per fast sample",
    bounds=RATIO_BOUNDS,
)
GPU_POWER_SAMPLES = _histogram(
    "gpu_power_sample",
    Unit.WATTS,
    GPU,
    "Power of every fast sample: the instantaneous reading where the GPU has one.",
    origin="one observation per fast sample",
    bounds=POWER_BOUNDS,
)
GPU_UTILIZATION_SAMPLES = _histogram(
    "gpu_utilization_sample",
    Unit.RATIO,
    GPU,
    "The driver's own utilization samples (about 7 a second), also on GPUs without GPM.",
    origin="nvmlDeviceGetSamples(GPU_UTIL)",
    bounds=RATIO_BOUNDS,
)
GPU_CODEC_UTILIZATION = _gauge(
    "gpu_codec_utilization",
    Unit.RATIO,
    (*GPU, "engine"),
    "Busy share of the video and JPEG engines.",
    origin="nvmlDeviceGet{Encoder,Decoder,Jpg,Ofa}Utilization",
    values=("encoder", "decoder", "jpeg", "ofa"),
)
GPU_BOUND_SECONDS = _counter(
    "gpu_bound",
    Unit.SECONDS,
    (*GPU, "state"),
    "Time by what limited the GPU, from SM and DRAM activity of every fast sample. The states add up "
    "to the time sampled. starved needs open requests to be known.",
    origin="docs/ARCHITECTURE.md, bound states",
    values=BOUND_STATES,
)
GPU_SAMPLES = _counter(
    "gpu_samples",
    Unit.NONE,
    GPU,
    "Fast samples taken: its rate() is the sampling rate reached.",
    origin="gpumon's sampler",
)
GPU_LAST_SAMPLE = _gauge(
    "gpu_last_sample", Unit.TIMESTAMP, GPU, "When the newest fast sample was taken.", origin="gpumon's sampler"
)

# --- clocks, throttling -------------------------------------------------------------------------------------------
GPU_CLOCK = _gauge(
    "gpu_clock", Unit.HERTZ, (*GPU, "domain"), "Clock now.", origin="nvmlDeviceGetClockInfo", values=CLOCK_DOMAINS
)
GPU_CLOCK_MAX = _gauge(
    "gpu_clock_max",
    Unit.HERTZ,
    (*GPU, "domain"),
    "Highest clock of this board.",
    origin="nvmlDeviceGetMaxClockInfo",
    values=CLOCK_DOMAINS,
)
GPU_PERFORMANCE_STATE = _gauge(
    "gpu_performance_state",
    Unit.NONE,
    GPU,
    "P-state: 0 is fastest, 15 slowest.",
    origin="nvmlDeviceGetPerformanceState",
)
GPU_THROTTLE_ACTIVE = _gauge(
    "gpu_throttle_active",
    Unit.NONE,
    (*GPU, "reason"),
    "1 while the reason held clocks down at the last fast sample. For durations use "
    "gpumon_gpu_throttled_seconds_total.",
    origin="nvmlDeviceGetCurrentClocksEventReasons",
    values=THROTTLE_REASONS,
)
GPU_THROTTLED_SECONDS = _counter(
    "gpu_throttled",
    Unit.SECONDS,
    (*GPU, "reason"),
    "Time the reason held clocks down, counted by the GPU where it counts, else summed from the "
    "reasons seen at every fast sample.",
    origin="NVML fields 74, 76-79, 81, 269-271; nvmlDeviceGetCurrentClocksEventReasons",
    values=THROTTLE_REASONS,
)

# --- power, heat --------------------------------------------------------------------------------------------------
GPU_POWER = _gauge(
    "gpu_power",
    Unit.WATTS,
    (*GPU, "kind"),
    "Board power: average over the driver's window (1 s on Ampere and newer), instant now.",
    origin="NVML fields 185, 186; nvmlDeviceGetPowerUsage",
    values=("average", "instant"),
)
GPU_POWER_LIMIT = _gauge(
    "gpu_power_limit",
    Unit.WATTS,
    (*GPU, "kind"),
    "Power limits. enforced is the least of all limiters and the one that acts.",
    origin="nvmlDeviceGet{EnforcedPowerLimit,PowerManagementLimit,PowerManagementDefaultLimit,"
    "PowerManagementLimitConstraints}",
    values=("enforced", "requested", "default", "min", "max"),
)
GPU_ENERGY = _counter(
    "gpu_energy",
    Unit.JOULES,
    GPU,
    "Energy used, carried on over driver reloads while gpumon runs.",
    origin="NVML field 83, nvmlDeviceGetTotalEnergyConsumption",
)
GPU_TEMPERATURE = _gauge(
    "gpu_temperature",
    Unit.CELSIUS,
    (*GPU, "sensor"),
    "Temperature of the die and of the memory.",
    origin="nvmlDeviceGetTemperatureV, NVML field 82",
    values=("gpu", "memory"),
)
GPU_TEMPERATURE_LIMIT = _gauge(
    "gpu_temperature_limit",
    Unit.CELSIUS,
    (*GPU, "limit"),
    "Temperatures at which the GPU slows down or shuts off.",
    origin="nvmlDeviceGetTemperatureThreshold",
    values=("shutdown", "slowdown", "memory_max", "gpu_max"),
)
GPU_TEMPERATURE_MARGIN = _gauge(
    "gpu_temperature_margin",
    Unit.CELSIUS,
    GPU,
    "Degrees left until the GPU begins to slow down for heat.",
    origin="nvmlDeviceGetMarginTemperature",
)
GPU_TEMPERATURE_MARGIN_LIMIT = _gauge(
    "gpu_temperature_margin_limit",
    Unit.CELSIUS,
    (*GPU, "limit"),
    "Margin at which the limit acts, on GPUs that state limits relative to the margin.",
    origin="NVML fields 193-196",
    values=("shutdown", "slowdown", "memory_max", "gpu_max"),
)
GPU_FAN = _gauge(
    "gpu_fan",
    Unit.RATIO,
    (*GPU, "fan"),
    "Fan speed asked for, over the fan's maximum; may pass 1.",
    origin="nvmlDeviceGetFanSpeed_v2",
    budget=GPUS * 4,
)

# --- memory -------------------------------------------------------------------------------------------------------
GPU_MEMORY = _gauge(
    "gpu_memory",
    Unit.BYTES,
    (*GPU, "state"),
    "Device memory. The states add up to the board's memory.",
    origin="nvmlDeviceGetMemoryInfo_v2",
    values=("used", "free", "reserved"),
)
GPU_BAR1 = _gauge(
    "gpu_bar1",
    Unit.BYTES,
    (*GPU, "state"),
    "BAR1 aperture, through which host and peers reach device memory.",
    origin="nvmlDeviceGetBAR1MemoryInfo",
    values=("used", "free"),
)
GPU_ECC_ERRORS = _counter(
    "gpu_ecc_errors",
    Unit.NONE,
    (*GPU, "kind", "scope"),
    "ECC errors. scope volatile counts since the driver loaded, aggregate over the board's life.",
    origin="NVML fields 3-6",
    budget=GPUS * 2,
    values=("volatile", "aggregate"),
)
GPU_REMAPPED_ROWS = _gauge(
    "gpu_remapped_rows",
    Unit.NONE,
    (*GPU, "cause"),
    "Memory rows replaced by spare ones.",
    origin="nvmlDeviceGetRemappedRows, NVML fields 142, 143",
    values=("correctable", "uncorrectable"),
)
GPU_ROW_REMAP_PENDING = _gauge(
    "gpu_row_remap_pending", Unit.NONE, GPU, "1 if a row is replaced at the next GPU reset.", origin="NVML field 144"
)
GPU_ROW_REMAP_FAILED = _gauge(
    "gpu_row_remap_failed",
    Unit.NONE,
    GPU,
    "1 if a row could not be replaced: the board's end of life.",
    origin="NVML field 145",
)
GPU_RETIRED_PAGES = _gauge(
    "gpu_retired_pages",
    Unit.NONE,
    (*GPU, "cause"),
    "Memory pages taken out of use (before Ampere).",
    origin="NVML fields 29, 30",
    values=("single_bit", "double_bit"),
)
GPU_RETIRED_PAGES_PENDING = _gauge(
    "gpu_retired_pages_pending",
    Unit.NONE,
    GPU,
    "1 if a page is taken out of use at the next reset.",
    origin="NVML field 31",
)

# --- links --------------------------------------------------------------------------------------------------------
_DIRECTIONS = ("tx", "rx")
GPU_PCIE_BYTES = _counter(
    "gpu_pcie",
    Unit.BYTES,
    (*GPU, "direction"),
    "Bytes over PCIe, seen from the GPU.",
    origin="NVML fields 197, 198; else GPM metrics 20, 21 summed",
    values=_DIRECTIONS,
)
GPU_PCIE_REPLAYS = _counter("gpu_pcie_replays", Unit.NONE, GPU, "PCIe packets sent again.", origin="NVML field 94")
GPU_PCIE_GENERATION = _gauge(
    "gpu_pcie_link_generation",
    Unit.NONE,
    (*GPU, "kind"),
    "PCIe generation; an idle GPU may lower it.",
    origin="nvmlDeviceGet{Curr,Max}PcieLinkGeneration",
    values=("current", "max"),
)
GPU_PCIE_WIDTH = _gauge(
    "gpu_pcie_link_width",
    Unit.NONE,
    (*GPU, "kind"),
    "PCIe lanes.",
    origin="nvmlDeviceGet{Curr,Max}PcieLinkWidth",
    values=("current", "max"),
)
GPU_NVLINK_BYTES = _counter(
    "gpu_nvlink",
    Unit.BYTES,
    (*GPU, "direction"),
    "Payload bytes over all NVLinks, seen from the GPU.",
    origin="NVML fields 138, 139; else GPM metrics 61, 60 summed",
    values=_DIRECTIONS,
)
GPU_NVLINK_ERRORS = _counter(
    "gpu_nvlink_errors",
    Unit.NONE,
    (*GPU, "kind"),
    "NVLink errors over all links.",
    origin="NVML fields 38, 45, 52, 59, 160",
    values=("crc_flit", "crc_data", "replay", "recovery", "ecc_data"),
)
GPU_NVLINKS = _gauge(
    "gpu_nvlink_links",
    Unit.NONE,
    (*GPU, "state"),
    "NVLinks by state.",
    origin="nvmlDeviceGetNvLinkState",
    values=("active", "inactive"),
)

# --- faults -------------------------------------------------------------------------------------------------------
GPU_XID_ERRORS = _counter(
    "gpu_xid_errors",
    Unit.NONE,
    (*GPU, "xid"),
    "XID errors since gpumon started, from NVML events and the kernel log, each counted once.",
    origin="nvmlEventSetWait_v2, kernel log",
    budget=GPUS * 48,
)
GPU_XID_LAST = _gauge(
    "gpu_xid_last",
    Unit.TIMESTAMP,
    (*GPU, "xid"),
    "When the XID was last seen.",
    origin="nvmlEventSetWait_v2, kernel log",
    budget=GPUS * 48,
)
GPU_RECOVERY_ACTION = _gauge(
    "gpu_recovery_action",
    Unit.NONE,
    GPU,
    "What the driver asks for: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, "
    "5 recover IMEX, 6 bus reset, 7 system reboot.",
    origin="NVML field 230",
)

# --- MIG ----------------------------------------------------------------------------------------------------------
MIG_INFO = _info(
    "mig",
    (*MIG, "gpu", "name"),
    "What the MIG instance is.",
    origin="nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetAttributes_v2",
    budget=MIGS,
)
MIG_MEMORY = _gauge(
    "mig_memory",
    Unit.BYTES,
    (*MIG, "state"),
    "Device memory of the instance.",
    origin="nvmlDeviceGetMemoryInfo_v2",
    budget=MIGS,
    values=("used", "free", "reserved"),
)
MIG_BAR1 = _gauge(
    "mig_bar1",
    Unit.BYTES,
    (*MIG, "state"),
    "BAR1 aperture of the instance.",
    origin="nvmlDeviceGetBAR1MemoryInfo",
    budget=MIGS,
    values=("used", "free"),
)
_MIG_GPM = "NVML GPM metric {} of the GPU instance, mean since the sample before"
MIG_SM_ACTIVE = _gauge(
    "mig_sm_active", Unit.RATIO, MIG, "SM activity of the GPU instance.", origin=_MIG_GPM.format(2), budget=MIGS
)
MIG_SM_OCCUPANCY = _gauge(
    "mig_sm_occupancy", Unit.RATIO, MIG, "SM occupancy of the GPU instance.", origin=_MIG_GPM.format(3), budget=MIGS
)
MIG_TENSOR_ACTIVE = _gauge(
    "mig_tensor_active", Unit.RATIO, MIG, "Tensor activity of the GPU instance.", origin=_MIG_GPM.format(5), budget=MIGS
)
MIG_DRAM_ACTIVE = _gauge(
    "mig_dram_active", Unit.RATIO, MIG, "DRAM activity of the GPU instance.", origin=_MIG_GPM.format(10), budget=MIGS
)
MIG_GRAPHICS_ACTIVE = _gauge(
    "mig_graphics_active",
    Unit.RATIO,
    MIG,
    "Graphics engine activity of the GPU instance.",
    origin=_MIG_GPM.format(1),
    budget=MIGS,
)
MIG_SM_ACTIVE_SECONDS = _counter(
    "mig_sm_active",
    Unit.SECONDS,
    MIG,
    "Integral of SM activity of the GPU instance.",
    origin="sum of gpumon_mig_sm_active_ratio x interval",
    budget=MIGS,
)
MIG_DRAM_ACTIVE_SECONDS = _counter(
    "mig_dram_active",
    Unit.SECONDS,
    MIG,
    "Integral of DRAM activity of the GPU instance.",
    origin="sum of gpumon_mig_dram_active_ratio x interval",
    budget=MIGS,
)

# --- processes ----------------------------------------------------------------------------------------------------
_P = PROCESSES
PROCESS_GPU_MEMORY = _gauge(
    "process_gpu_memory",
    Unit.BYTES,
    GPU_WORKLOAD,
    "Device memory the process holds; what is past the cap is summed as process other.",
    origin="nvmlDeviceGet{Compute,Graphics}RunningProcesses_v3",
    budget=_P + MIGS,  # an other for each GPU or, with MIG, each instance
)
PROCESS_GPU_SM = _gauge(
    "process_gpu_sm",
    Unit.RATIO,
    GPU_WORKLOAD,
    "SM share of the process over the last samples.",
    origin="nvmlDeviceGetProcessUtilization",
    budget=_P + MIGS,
)
PROCESS_PAGE_FAULTS = _counter(
    "process_page_faults",
    Unit.NONE,
    (*WORKLOAD, "kind"),
    "Page faults of the process and its threads: major ones waited for storage or a migration.",
    origin="/proc/<pid>/stat minflt, majflt",
    budget=_P,
    values=("major", "minor"),
)
PROCESS_CPU_SECONDS = _counter(
    "process_cpu",
    Unit.SECONDS,
    WORKLOAD,
    "CPU time, user and system, all threads.",
    origin="/proc/<pid>/stat utime, stime",
    budget=_P,
)
PROCESS_STOPPED_SECONDS = _counter(
    "process_stopped",
    Unit.SECONDS,
    WORKLOAD,
    "Time the process was stopped by a signal or a tracer, by looks at its state: half the time between a look that "
    "found it stopped and its neighbour counts for each of the two.",
    origin="/proc/<pid>/stat state T, t",
    budget=_P,
)
PROCESS_RUNQUEUE_SECONDS = _counter(
    "process_runqueue_wait",
    Unit.SECONDS,
    WORKLOAD,
    "Time threads of the process were ready to run and had no CPU.",
    origin="/proc/<pid>/task/<tid>/schedstat",
    budget=_P,
)
PROCESS_THREADS = _gauge(
    "process_threads", Unit.NONE, WORKLOAD, "Threads.", origin="/proc/<pid>/stat num_threads", budget=_P
)
PROCESS_RESIDENT = _gauge(
    "process_resident", Unit.BYTES, WORKLOAD, "Resident host memory.", origin="/proc/<pid>/statm resident", budget=_P
)
PROCESS_NUMA_RESIDENT = _gauge(
    "process_numa_resident",
    Unit.BYTES,
    (*WORKLOAD, "numa_node"),
    "Resident host memory per NUMA node, estimated from about 1,024 sampled pages.",
    origin="move_pages(2) in query mode, /proc/<pid>/maps",
    budget=_P * 8,
)
PROCESS_NUMA_LOCAL = _gauge(
    "process_numa_local",
    Unit.RATIO,
    (*GPU, *WORKLOAD),
    "Share of the process's resident pages on the NUMA node of its GPU.",
    origin="move_pages(2), /sys/bus/pci/devices/<bdf>/numa_node",
    budget=_P,
)
PROCESS_CPUS_LOCAL = _gauge(
    "process_cpus_local",
    Unit.RATIO,
    (*GPU, *WORKLOAD),
    "Share of the CPUs the process may use that are on the NUMA node of its GPU.",
    origin="/proc/<pid>/status Cpus_allowed_list, /sys/bus/pci/devices/<bdf>/local_cpulist",
    budget=_P,
)
PROCESS_CPU_THROTTLED = _counter(
    "process_cgroup_cpu_throttled",
    Unit.SECONDS,
    WORKLOAD,
    "Time the cgroup of the process was denied CPU by its quota.",
    origin="cpu.stat throttled_usec (v2), throttled_time (v1)",
    budget=_P,
)
PROCESS_PRESSURE = _counter(
    "process_cgroup_pressure_stalled",
    Unit.SECONDS,
    (*WORKLOAD, "resource", "kind"),
    "Time tasks of the cgroup of the process were stalled: some, or all of them (full).",
    origin="<cgroup>/{cpu,memory,io}.pressure",
    budget=_P * 3,
    values=("some", "full"),
)

# --- pods ---------------------------------------------------------------------------------------------------------
POD_MAPPING_STATES = ("ok", "waiting", "denied", "unavailable", "timeout", "malformed", "unsupported")
"""How the kubelet answered; all but the first two are reasons."""
GPU_POD = _info(
    "gpu_pod",
    (*GPU, "namespace", "pod", "container"),
    "The pod that holds the GPU or MIG instance alone: one series at most, so that any series of it can be joined. None "
    "for one that several pods hold. container is empty where several of the pod's containers hold it.",
    origin="kubelet pod-resources List",
    budget=GPUS + MIGS,
)
GPU_PODS = _gauge(
    "gpu_pods",
    Unit.NONE,
    GPU,
    "Pods that hold the GPU or MIG instance, or a part of it. More than 1: it is shared.",
    origin="kubelet pod-resources List",
    budget=GPUS + MIGS,
)
GPU_ALLOCATIONS = _gauge(
    "gpu_allocations",
    Unit.NONE,
    (*GPU, "namespace", "pod", "container"),
    "Device ids of the GPU or MIG instance that the container holds: 1, or its replicas where time-slicing or MPS "
    "shares it.",
    origin="kubelet pod-resources List",
    budget=1024,
)
GPU_ALLOCATABLE = _gauge(
    "gpu_allocatable",
    Unit.NONE,
    GPU,
    "Device ids of the GPU or MIG instance that may be handed out. More than 1: replicas, which share it.",
    origin="kubelet pod-resources GetAllocatableResources",
    budget=GPUS + MIGS,
)
GPU_CLAIM = _info(
    "gpu_claim",
    (*GPU, "namespace", "claim", "driver", "pool", "device"),
    "A DRA claim of the GPU or MIG instance, and the device's name there.",
    origin="kubelet pod-resources List, dynamic_resources",
    budget=512,
)
POD_DEVICES_UNKNOWN = _gauge(
    "pod_devices_unknown",
    Unit.NONE,
    (),
    "GPU device ids that pods hold and that are of no GPU which NVML shows. They are left out.",
    origin="kubelet pod-resources List",
    budget=1,
)
POD_MAPPING = _gauge(
    "pod_mapping",
    Unit.TIMESTAMP,
    (),
    "When the kubelet was asked for the listing in use. After 60 s without a newer one nothing is told of pods.",
    origin="gpumon",
    budget=1,
)
POD_MAPPING_STATE = _gauge(
    "pod_mapping_state",
    Unit.NONE,
    ("state",),
    "1 for how the kubelet answered the last time.",
    origin="gpumon",
    budget=1,
    values=POD_MAPPING_STATES,
)
POD_LABEL = _info(
    "pod_label",
    ("namespace", "pod", "key", "value"),
    "A label of a pod that holds a GPU, of those that kubernetes.labels lists.",
    origin="Kubernetes API, pods of this node",
    budget=1024,
)

# --- host ---------------------------------------------------------------------------------------------------------
HOST_PAGE_FAULTS = _counter(
    "host_page_faults",
    Unit.NONE,
    ("kind",),
    "Page faults of the whole host.",
    origin="/proc/vmstat pgfault, pgmajfault",
    budget=1,
    values=("major", "minor"),
)
HOST_SWAP_PAGES = _counter(
    "host_swap_pages",
    Unit.NONE,
    ("direction",),
    "Pages swapped in and out.",
    origin="/proc/vmstat pswpin, pswpout",
    budget=1,
    values=("in", "out"),
)
HOST_OOM_KILLS = _counter(
    "host_oom_kills", Unit.NONE, (), "Processes killed for lack of memory.", origin="/proc/vmstat oom_kill", budget=1
)
HOST_PRESSURE = _counter(
    "host_pressure_stalled",
    Unit.SECONDS,
    ("resource", "kind"),
    "Time tasks of the host were stalled: some, or all of them (full).",
    origin="/proc/pressure/{cpu,memory,io}",
    budget=3,
    values=("some", "full"),
)
HOST_NUMA_PAGES = _counter(
    "host_numa_pages",
    Unit.NONE,
    ("numa_node", "event"),
    "Page allocations by NUMA outcome.",
    origin="/sys/devices/system/node/node<N>/numastat",
    budget=NODES,
    values=("hit", "miss", "foreign", "interleave_hit", "local", "other"),
)
HOST_MEMORY = _gauge(
    "host_memory",
    Unit.BYTES,
    ("numa_node", "state"),
    "Memory per NUMA node. The states add up to the node's memory.",
    origin="/sys/devices/system/node/node<N>/meminfo",
    budget=NODES,
    values=("used", "file", "free"),
)

# --- requests -------------------------------------------------------------------------------------------------------
_SERVED = ("server", "model")
_DERIVED = "docs/TOKENS.md, definitions; from spans"
REQUEST_DURATION = _histogram(
    "request_duration",
    Unit.SECONDS,
    _SERVED,
    "From the request's arrival at the server to its end; requests whose end nobody told are not in it.",
    origin=_DERIVED,
    bounds=REQUEST_BOUNDS,
    budget=SERVED,
)
REQUEST_FIRST_TOKEN = _histogram(
    "request_time_to_first_token",
    Unit.SECONDS,
    _SERVED,
    "From the request's arrival at the server to its first token, time in the queue included.",
    origin=_DERIVED,
    bounds=FIRST_TOKEN_BOUNDS,
    budget=SERVED,
)
REQUEST_FIRST_TOKEN_BY_CONCURRENCY = _histogram(
    "request_time_to_first_token_by_concurrency",
    Unit.SECONDS,
    (*_SERVED, "concurrency"),
    "Time to first token, by the requests open on the server when this one arrived, itself included.",
    origin=_DERIVED,
    bounds=FIRST_TOKEN_BOUNDS,
    budget=SERVED,
    values=CONCURRENCY_BUCKETS,
)
REQUEST_FIRST_TOKEN_BY_CONTEXT = _histogram(
    "request_time_to_first_token_by_context",
    Unit.SECONDS,
    (*_SERVED, "context"),
    "Time to first token, by the tokens of the prompt. Requests whose prompt nobody counted are not in it.",
    origin=_DERIVED,
    bounds=FIRST_TOKEN_BOUNDS,
    budget=SERVED,
    values=CONTEXT_BUCKETS,
)
REQUEST_QUEUE = _histogram(
    "request_queue",
    Unit.SECONDS,
    _SERVED,
    "Time the request waited until the server first scheduled it, as the server tells.",
    origin=_DERIVED,
    bounds=PHASE_BOUNDS,
    budget=SERVED,
)
REQUEST_PREFILL = _histogram(
    "request_prefill",
    Unit.SECONDS,
    _SERVED,
    "From first scheduled to first token: the prompt's own work, as the server tells.",
    origin=_DERIVED,
    bounds=PHASE_BOUNDS,
    budget=SERVED,
)
REQUEST_DECODE = _histogram(
    "request_decode",
    Unit.SECONDS,
    _SERVED,
    "From first token to last, as the server tells.",
    origin=_DERIVED,
    bounds=REQUEST_BOUNDS,
    budget=SERVED,
)
KV_SYNC = _histogram(
    "kv_sync",
    Unit.SECONDS,
    _SERVED,
    "Time to bring the KV cache of a request from where its prompt was worked on to where it is decoded.",
    origin=_DERIVED,
    bounds=PHASE_BOUNDS,
    budget=SERVED,
)
INTER_TOKEN = _histogram(
    "inter_token_latency",
    Unit.SECONDS,
    _SERVED,
    "Time between successive tokens of a request, one observation per token after the first step. A step known to "
    "make k tokens counts as k times a k-th of its time; steps of unknown size are only in "
    "gpumon_decode_step_seconds.",
    origin=_DERIVED,
    bounds=INTER_TOKEN_BOUNDS,
    budget=SERVED,
)
INTER_TOKEN_BY_CONCURRENCY = _histogram(
    "inter_token_latency_by_concurrency",
    Unit.SECONDS,
    (*_SERVED, "concurrency"),
    "Inter-token latency, by the requests open on the server when the token was made, its own included.",
    origin=_DERIVED,
    bounds=INTER_TOKEN_BOUNDS,
    budget=SERVED,
    values=CONCURRENCY_BUCKETS,
)
INTER_TOKEN_BY_CONTEXT = _histogram(
    "inter_token_latency_by_context",
    Unit.SECONDS,
    (*_SERVED, "context"),
    "Inter-token latency, by the prompt's tokens plus the tokens made before this one. Requests whose prompt nobody "
    "counted are not in it.",
    origin=_DERIVED,
    bounds=INTER_TOKEN_BOUNDS,
    budget=SERVED,
    values=CONTEXT_BUCKETS,
)
DECODE_STEP = _histogram(
    "decode_step",
    Unit.SECONDS,
    _SERVED,
    "Time between successive decode steps of a request, one observation per step, undivided, however many tokens "
    "it made.",
    origin=_DERIVED,
    bounds=INTER_TOKEN_BOUNDS,
    budget=SERVED,
)
TOKENS = _counter(
    "tokens",
    Unit.NONE,
    (*_SERVED, "kind"),
    "Tokens of finished requests: of prompts, of completions, and cached, which is the part of the prompts that was "
    "found in the KV cache.",
    origin=_DERIVED,
    budget=SERVED,
    values=("prompt", "completion", "cached"),
)
REQUESTS = _counter(
    "requests",
    Unit.NONE,
    (*_SERVED, "outcome"),
    "Requests by how they ended; incomplete where their end was never told.",
    origin=_DERIVED,
    budget=SERVED,
    values=REQUEST_OUTCOMES,
)
REQUESTS_OPEN = _gauge(
    "requests_open",
    Unit.NONE,
    _SERVED,
    "Requests known to be open now. Servers that tell of a request only at its end have no such series.",
    origin="spans received",
    budget=SERVED,
)
TENANT_REQUESTS = _counter(
    "tenant_requests",
    Unit.NONE,
    ("tenant",),
    "Requests by tenant, where tenants are configured.",
    origin="span attribute named in the configuration",
    budget=TENANTS,
)
TENANT_TOKENS = _counter(
    "tenant_tokens",
    Unit.NONE,
    ("tenant", "kind"),
    "Tokens by tenant, where tenants are configured.",
    origin="span attribute named in the configuration",
    budget=TENANTS,
    values=("prompt", "completion", "cached"),
)
LABELS_FOLDED = _counter(
    "request_labels_folded",
    Unit.NONE,
    ("label",),
    "Requests counted under other because more different values came than are told apart, or one too long.",
    origin="gpumon",
    budget=1,
    values=("server", "model", "tenant"),
)
WINDOW_DROPPED = _counter(
    "request_window_dropped",
    Unit.NONE,
    ("reason",),
    "Observations left out of the latency windows of the last hour, not out of the histograms: too old, or evicted "
    "for lack of room, then once by concurrency and once by context.",
    origin="gpumon",
    budget=1,
    values=("late", "evicted"),
)
REQUESTS_UNBOUND = _counter(
    "requests_unbound",
    Unit.NONE,
    ("reason",),
    "Requests that could not be bound to GPUs of this node, by reason: pending was not looked for yet, no_identity told "
    "nothing to look for, other_node ran elsewhere, no_process was not found here, no_gpu holds no GPU, denied needs a "
    "privilege.",
    origin="resource attributes, connections, /proc, configuration",
    budget=1,
    values=("pending", "no_identity", "other_node", "no_process", "no_gpu", "denied"),
)

# --- token traces in ------------------------------------------------------------------------------------------------
OTLP_REQUESTS = _counter(
    "otlp_requests",
    Unit.NONE,
    ("transport", "signal", "outcome"),
    "OTLP export requests answered. ok and partial were taken; overload and unavailable were not and are sent again by "
    "their sender; the others were refused for good.",
    origin="gpumon's OTLP receivers",
    budget=2 * 3,
    values=("ok", "partial", "bad", "unauthorized", "too_large", "too_slow", "overload", "unavailable", "failed"),
)
OTLP_ITEMS = _counter(
    "otlp_items",
    Unit.NONE,
    ("transport", "signal"),
    "Spans, log records and metric data points taken and acknowledged.",
    origin="gpumon's OTLP receivers",
    budget=2,
    values=("traces", "metrics", "logs"),
)
OTLP_RECEIVED_BYTES = _counter(
    "otlp_received",
    Unit.BYTES,
    ("transport",),
    "Bodies of OTLP export requests: for http as sent, for grpc after decompression.",
    origin="gpumon's OTLP receivers",
    budget=1,
    values=("grpc", "http"),
)
OTLP_WAITING = _gauge(
    "otlp_requests_waiting",
    Unit.NONE,
    (),
    "OTLP export requests that wait for their answer.",
    origin="gpumon's OTLP receivers",
    budget=1,
)
OTLP_WAITING_BYTES = _gauge(
    "otlp_requests_waiting",
    Unit.BYTES,
    (),
    "Bodies of OTLP export requests that are being read or wait for their answer.",
    origin="gpumon's OTLP receivers",
    budget=1,
)
OTLP_CONNECTIONS = _gauge(
    "otlp_http_connections", Unit.NONE, (), "Open connections to the OTLP/HTTP port.", origin="gpumon", budget=1
)
OTLP_CONNECTIONS_CLOSED = _counter(
    "otlp_http_connections_closed",
    Unit.NONE,
    ("reason",),
    "Connections to the OTLP/HTTP port that gpumon closed: too many open, headers too slow or too large, not HTTP.",
    origin="gpumon",
    budget=1,
    values=("limit", "slow", "large", "malformed"),
)
SPANS_REJECTED = _counter(
    "spans_rejected",
    Unit.NONE,
    ("reason",),
    "Spans and log records left out of requests that were otherwise taken. Their sender was told.",
    origin="gpumon's OTLP decoders",
    budget=33,
)
SPANS_TRUNCATED = _counter(
    "spans_truncated",
    Unit.NONE,
    ("kind",),
    "Attributes, events, links, tokens, texts and arrays beyond gpumon's limits, cut off spans that were kept.",
    origin="gpumon's OTLP decoders",
    budget=1,
    values=("attributes", "events", "links", "tokens", "strings", "arrays"),
)

SPANS_RECEIVED = _counter(
    "spans_received",
    Unit.NONE,
    ("server",),
    "Spans and step spans by the kind of server that sent them, copies included; unknown: no kind that gpumon reads.",
    origin="spans received",
    budget=1,
    values=("vllm", "sglang", "tgi", "triton", "trtllm", "dynamo", "gpumon", "genai", "unknown"),
)
SPANS_DROPPED = _counter(
    "spans_dropped",
    Unit.NONE,
    ("reason",),
    "Spans and step spans that were received and are part of no request's record. Forwarding is not affected.",
    origin="spans received",
    budget=1,
    values=(
        "unknown_scope",
        "startup",
        "unused",
        "duplicate",
        "late",
        "future",
        "unfinished",
        "negative_duration",
        "orphan",
        "after_request",
        "gap",
        "overflow",
    ),
)
SPAN_VALUES_REJECTED = _counter(
    "span_values_rejected",
    Unit.NONE,
    ("attribute", "reason"),
    "Latencies and token times told by spans that cannot be true and were left out; the span was kept.",
    origin="spans received",
    budget=64,
)
SPANS_WAITING = _gauge(
    "spans_waiting",
    Unit.NONE,
    ("kind",),
    "What waits for the rest of its request: traces, and in them spans and steps.",
    origin="gpumon",
    budget=1,
    values=("traces", "spans", "steps"),
)
REQUESTS_SKEWED = _counter(
    "requests_skewed",
    Unit.NONE,
    ("server",),
    "Requests with a child span that began before or ended after them by more than a tenth of a second: two clocks.",
    origin="spans received",
    budget=8,
)
REQUEST_CLOCK_SKEW = _gauge(
    "request_clock_skew",
    Unit.SECONDS,
    ("server",),
    "How far outside of its request the last such child span was.",
    origin="spans received",
    budget=8,
)
EVALUATIONS = _counter(
    "evaluations",
    Unit.NONE,
    ("state",),
    "Evaluation scores received: attached to a request, not matched by any, without a name or a finite score.",
    origin="gen_ai.evaluation.result as span event, span attributes or log record",
    budget=1,
    values=("attached", "unmatched", "invalid"),
)

# --- collectives ----------------------------------------------------------------------------------------------------
_COLLECTIVE = ("comm", "collective", "rank")
COLLECTIVES = _counter(
    "collectives",
    Unit.NONE,
    _COLLECTIVE,
    "Collective operations, as each local rank ran them.",
    origin="NCCL Inspector's log, or spans",
    budget=2048,
)
COLLECTIVE_SECONDS = _counter(
    "collective",
    Unit.SECONDS,
    _COLLECTIVE,
    "Time in collective operations by rank, waiting for the others included: the rank that comes last has the least.",
    origin="NCCL Inspector's log, or spans",
    budget=2048,
)
COLLECTIVE_BYTES = _counter(
    "collective_message",
    Unit.BYTES,
    _COLLECTIVE,
    "Message sizes of collective operations by rank.",
    origin="NCCL Inspector's log, or spans",
    budget=2048,
)
COLLECTIVE_RECORDS_DROPPED = _counter(
    "collective_records_dropped",
    Unit.NONE,
    ("reason",),
    "Lines and spans of collective operations that could not be used.",
    origin="NCCL Inspector's log, or spans",
    budget=1,
    values=("malformed", "oversize", "out_of_range", "skipped"),
)

# --- servers, by their own metrics pages ----------------------------------------------------------------------------
_SERVER = ("server", "model", "endpoint")
SERVERS = 16
SERVER_MODELS = 8
"""Models of one page."""
SERVER_UP = _gauge(
    "server_up",
    Unit.NONE,
    ("server", "endpoint"),
    "Whether the server's metrics page could be read the last time: 1 or 0.",
    origin="GET of the page",
    budget=SERVERS,
)
SERVER_RUNNING = _gauge(
    "server_requests_running",
    Unit.NONE,
    _SERVER,
    "Requests in the running batch.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_WAITING = _gauge(
    "server_requests_waiting",
    Unit.NONE,
    _SERVER,
    "Requests that wait to be scheduled.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_KV_USAGE = _gauge(
    "server_kv_cache_usage",
    Unit.RATIO,
    _SERVER,
    "Share of the KV cache's blocks in use.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_KV_CAPACITY = _gauge(
    "server_kv_cache_capacity_tokens",
    Unit.NONE,
    _SERVER,
    "Tokens that the KV cache can hold.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_KV_LIVE = _gauge(
    "server_kv_cache_live_tokens",
    Unit.NONE,
    _SERVER,
    "Tokens of running requests that the KV cache holds, where the server tells.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_PREEMPTIONS = _counter(
    "server_preemptions",
    Unit.NONE,
    _SERVER,
    "Requests thrown out of the running batch for lack of KV cache, to be computed again.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_PREFIX_HITS = _counter(
    "server_prefix_cache_hit_tokens",
    Unit.NONE,
    _SERVER,
    "Prompt tokens found in the prefix cache.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_PREFIX_QUERIES = _counter(
    "server_prefix_cache_query_tokens",
    Unit.NONE,
    _SERVER,
    "Prompt tokens looked up in the prefix cache.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_TOKENS = _counter(
    "server_tokens",
    Unit.NONE,
    (*_SERVER, "kind"),
    "Tokens processed, by the server's own count.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS * 2,
    values=("prompt", "generation"),
)
SERVER_GRAPH_PASSES = _counter(
    "server_decode_passes",
    Unit.NONE,
    (*_SERVER, "mode"),
    "Decode passes inside a CUDA graph, and those that fell back to eager execution.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS * 2,
    values=("graph", "eager"),
)
SERVER_EXPERT_BALANCE = _gauge(
    "server_expert_balance",
    Unit.RATIO,
    _SERVER,
    "Mean over maximum of the tokens per expert-parallel rank: 1 is even, 0.5 means the hottest has twice the mean.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS,
)
SERVER_ALLOCATOR = _gauge(
    "server_allocator",
    Unit.BYTES,
    (*_SERVER, "state"),
    "Device memory that the framework's allocator reserved, and what of it is allocated to tensors.",
    origin="the server's metrics page",
    budget=SERVERS * SERVER_MODELS * 2,
    values=("reserved", "allocated"),
)

# --- incidents ------------------------------------------------------------------------------------------------------
INCIDENT_KINDS = (
    *("page_fault_burst", "thermal_throttle", "power_throttle", "hw_slowdown", "latency_shift", "context_cliff"),
    *("memory_bound", "starved_gpu", "numa_remote", "kv_pressure", "kv_mismatch", "queue_buildup", "batch_jitter"),
    *("pcie_degraded", "pcie_saturated", "nvlink_degraded", "straggler", "moe_imbalance", "gpu_contention"),
    *("cpu_starvation", "process_stopped", "memory_pressure", "tenant_interference", "gpu_lost", "xid", "ecc"),
    *("row_remap", "driver_mismatch", "graph_fallback", "allocator_gap", "quality_drop"),
)
SEVERITIES = ("info", "warning", "critical")
INCIDENT_ACTIVE = _gauge(
    "incident_active",
    Unit.NONE,
    ("kind", *GPU),
    "Incidents open now. gpu and uuid are empty for those that are not of one GPU. Every kind has a series at 0.",
    origin="docs/DETECTORS.md",
    budget=len(INCIDENT_KINDS) * (GPUS + 1),
)
INCIDENTS = _counter(
    "incidents",
    Unit.NONE,
    ("kind", "severity"),
    "Incidents by the severity they opened with; one that grows worse is counted again under the higher severity when "
    "it does. Goes on over restarts where state.folder is set.",
    origin="docs/DETECTORS.md",
    budget=len(INCIDENT_KINDS) * len(SEVERITIES),
    values=SEVERITIES,
)
DETECTOR_FAILURES = _counter(
    "detector_failures",
    Unit.NONE,
    ("detector",),
    "Passes in which a detector, or a part of the explanation (explain_…), failed; the others went on.",
    origin="gpumon's own fault",
    budget=2 * len(INCIDENT_KINDS),
)
DETECTION_DROPPED = _counter(
    "detection_dropped",
    Unit.NONE,
    ("what",),
    "What was left out of detection: requests, records of collectives and incidents beyond what it takes; tokens told of "
    "over five minutes late; requests of models beyond the 16 whose latencies it keeps.",
    origin="bounded queues and windows",
    budget=5,
    values=("requests", "collectives", "incidents", "tokens_late", "requests_of_models"),
)
STATE_OK = _gauge(
    "state_folder_ok",
    Unit.NONE,
    (),
    "1 while what must outlive a restart can be written to state.folder, else 0. Missing where no folder is set.",
    origin="writes to the folder",
    budget=1,
)
FLIGHT_OK = _gauge(
    "flight_recorder_ok",
    Unit.NONE,
    (),
    "1 while flight recordings can be written, 0 after one that could not. Missing where there is no recorder.",
    origin="writes to the folder",
    budget=1,
)
FLIGHT_RECORDINGS = _counter(
    "flight_recordings",
    Unit.NONE,
    ("outcome",),
    "Flight recordings: written, failed, left out because too many incidents came at once, or removed for room.",
    origin="writes to the folder",
    budget=4,
    values=("written", "failed", "skipped", "removed"),
)
FLIGHT_BYTES = _gauge(
    "flight_recorder",
    Unit.BYTES,
    ("place",),
    "Size of what the flight recorder holds in memory and in its folder.",
    origin="its own account",
    budget=2,
    values=("memory", "folder"),
)

# --- explanation ----------------------------------------------------------------------------------------------------
CAUSES = (
    *("thermal_throttle", "power_throttle", "hw_slowdown", "memory_bandwidth", "pcie", "nvlink", "page_faults"),
    *("memory_pressure", "numa_remote", "cpu_starvation", "queueing", "kv_pressure", "prefill_interference"),
    *("batch_growth", "long_context", "straggler", "moe_imbalance", "gpu_contention", "graph_fallback"),
    *("process_stopped", "gpu_error", "unexplained"),
)
"""Why a token can be slow: a closed list; docs/EXPLAINING.md says what each is."""
TITLES: Final = {
    "thermal_throttle": "GPU too hot",
    "power_throttle": "power cap",
    "hw_slowdown": "hardware slowdown",
    "memory_bandwidth": "memory bandwidth taken",
    "pcie": "PCIe slow",
    "nvlink": "NVLink slow",
    "page_faults": "major page faults",
    "memory_pressure": "memory pressure",
    "numa_remote": "memory on the wrong socket",
    "cpu_starvation": "waiting for a CPU",
    "queueing": "waiting in the queue",
    "kv_pressure": "KV cache full",
    "prefill_interference": "prefill of others",
    "batch_growth": "larger batch",
    "long_context": "long context",
    "straggler": "one slow rank",
    "moe_imbalance": "uneven experts",
    "gpu_contention": "another process on the GPU",
    "graph_fallback": "no CUDA graphs",
    "process_stopped": "process stopped",
    "gpu_error": "GPU error or restart",
    "unexplained": "unexplained",
    "page_fault_burst": "burst of major page faults",
    "latency_shift": "latency has risen",
    "context_cliff": "long contexts are slow",
    "memory_bound": "GPU bound by memory",
    "starved_gpu": "GPU waits for work",
    "kv_mismatch": "KV cache reserved in vain",
    "queue_buildup": "growing queue",
    "batch_jitter": "unsteady batch",
    "pcie_degraded": "PCIe link degraded",
    "pcie_saturated": "PCIe link full",
    "nvlink_degraded": "NVLink degraded",
    "tenant_interference": "one tenant slows the others",
    "gpu_lost": "GPU lost",
    "xid": "GPU error (XID)",
    "ecc": "GPU memory errors",
    "row_remap": "GPU memory rows remapped",
    "driver_mismatch": "driver and library differ",
    "allocator_gap": "GPU memory in pieces",
    "quality_drop": "quality has fallen",
}
"""What people are told of a cause, or of a kind of incident: what bears one name has one title. Labels keep the names."""
PHASES = ("first_token", "decode")
_EXPLAINED = "requests, and what was true of their GPUs, processes, servers and host meanwhile"
SLOW_TOKEN_SECONDS = _counter(
    "slow_token",
    Unit.SECONDS,
    (*_SERVED, "phase", "cause"),
    "Seconds by which tokens came later than expected, summed over requests, by the phase and by what explains them. "
    "The causes of a phase add up to gpumon_token_excess_seconds_total. docs/EXPLAINING.md says what each one means.",
    origin=_EXPLAINED,
    budget=SERVED * len(PHASES),
    values=CAUSES,
)
TOKEN_EXCESS = _counter(
    "token_excess",
    Unit.SECONDS,
    (*_SERVED, "phase"),
    "Seconds by which tokens that were slow came later than expected, summed over requests: in the time to first token, "
    "and between tokens.",
    origin=_EXPLAINED,
    budget=SERVED,
    values=PHASES,
)
EXPLAINED_REQUESTS = _counter(
    "explained_requests",
    Unit.NONE,
    (*_SERVED, "outcome"),
    "Requests that were looked at: on_time; slow, at least in part; cold, while too little is known to expect anything; "
    "untimed, which tell neither token times nor phases; dropped, beyond what fits the queue.",
    origin=_EXPLAINED,
    budget=SERVED,
    values=("on_time", "slow", "cold", "untimed", "dropped"),
)
CORRELATION_PAIRS = 64
CORRELATION = _gauge(
    "correlation",
    Unit.NONE,
    ("x", "y"),
    "Pearson's r, at its best lag, of a signal (x) with a latency or rate of a model (y), over the last ten minutes: "
    "of the strong and significant pairs only, the strongest ones.",
    origin="docs/EXPLAINING.md",
    budget=CORRELATION_PAIRS,
)
CORRELATION_LAG = _gauge(
    "correlation_lag",
    Unit.SECONDS,
    ("x", "y"),
    "By how long y follows x where their correlation is greatest; negative where y comes first.",
    origin="docs/EXPLAINING.md",
    budget=CORRELATION_PAIRS,
)

# --- forwarding and OTLP out ----------------------------------------------------------------------------------------
_SIGNALS = ("traces", "metrics", "logs")
FORWARD_UP = _gauge(
    "forward_up", Unit.NONE, (), "1 if the OTLP endpoint took what was last sent to it.", origin="gpumon", budget=1
)
FORWARD_QUEUE_BYTES = _gauge(
    "forward_queue",
    Unit.BYTES,
    ("place",),
    "Requests that wait to be forwarded or are being sent: in memory, and on disk where a spool is configured.",
    origin="gpumon",
    budget=1,
    values=("memory", "spool"),
)
FORWARD_QUEUE_ITEMS = _gauge(
    "forward_queue_items",
    Unit.NONE,
    ("place",),
    "Spans, log records and metrics that wait to be forwarded or are being sent.",
    origin="gpumon",
    budget=1,
    values=("memory", "spool"),
)
FORWARD_SENT = _counter(
    "forward_sent",
    Unit.NONE,
    ("signal",),
    "Spans, log records and metrics that the endpoint took.",
    origin="gpumon",
    budget=1,
    values=_SIGNALS,
)
FORWARD_SENT_BYTES = _counter(
    "forward_sent",
    Unit.BYTES,
    ("signal",),
    "Requests that the endpoint took, before compression.",
    origin="gpumon",
    budget=1,
    values=_SIGNALS,
)
FORWARD_DROPPED = _counter(
    "forward_dropped",
    Unit.NONE,
    ("signal", "reason"),
    "Spans, log records and metrics not forwarded. Not a loss: tail_policy and undecided, left out as configured; "
    "invalid_id, of which their sender was told.",
    origin="gpumon",
    budget=3,
    values=(
        "queue_full",
        "spool_full",
        "spool_corrupt",
        "refused",
        "partial",
        "gave_up",
        "malformed",
        "invalid_id",
        "tail_policy",
        "undecided",
        "stopped",
    ),
)
FORWARD_RETRIES = _counter(
    "forward_retries", Unit.NONE, (), "Tries to send that failed and were repeated.", origin="gpumon", budget=1
)
FORWARD_SPOOL_OK = _gauge(
    "forward_spool_ok",
    Unit.NONE,
    (),
    "1 while the spool can be written; 0 while requests wait in memory alone because it cannot.",
    origin="gpumon",
    budget=1,
)
FORWARD_SPOOL_DAMAGED = _counter(
    "forward_spool_damaged",
    Unit.NONE,
    ("kind",),
    "Found in the spool: files that end in the middle of a record, as after a kill; files that cannot be read and "
    "files of others, both moved aside.",
    origin="gpumon",
    budget=1,
    values=("torn", "corrupt", "foreign"),
)
OTLP_EXPORTS = _counter(
    "otlp_exports", Unit.NONE, (), "Exports of gpumon's own metrics that succeeded.", origin="gpumon", budget=1
)
OTLP_EXPORT_FAILURES = _counter(
    "otlp_export_failures", Unit.NONE, (), "Exports of gpumon's own metrics that failed.", origin="gpumon", budget=1
)

# --- token-timing proxy ---------------------------------------------------------------------------------------------
PROXY_REQUESTS = _counter(
    "proxy_requests",
    Unit.NONE,
    ("kind", "outcome"),
    "Requests that have ended. refused: by the proxy itself; error: no answer, a broken one, or a status from 400 on.",
    origin="gpumon proxy",
    budget=6,
    values=("ok", "error", "aborted", "refused"),
)
PROXY_OPEN_REQUESTS = _gauge(
    "proxy_requests_open", Unit.NONE, (), "Requests under way.", origin="gpumon proxy", budget=1
)
PROXY_OPEN_STREAMS = _gauge(
    "proxy_streams_open", Unit.NONE, (), "Answers under way that are event streams.", origin="gpumon proxy", budget=1
)
PROXY_CONNECTIONS = _gauge("proxy_connections", Unit.NONE, (), "Open connections.", origin="gpumon proxy", budget=1)
PROXY_CONNECTIONS_REFUSED = _counter(
    "proxy_connections_refused",
    Unit.NONE,
    (),
    "Connections refused because there were as many as there may be.",
    origin="gpumon proxy",
    budget=1,
)
PROXY_CHUNKS = _counter(
    "proxy_chunks",
    Unit.NONE,
    (),
    "Chunks with output, in answers that are traced. A token each, with most servers.",
    origin="gpumon proxy",
    budget=1,
)
PROXY_BYTES = _counter(
    "proxy_transferred",
    Unit.BYTES,
    ("direction",),
    "Bytes of bodies passed on.",
    origin="gpumon proxy",
    budget=1,
    values=("request", "response"),
)
PROXY_UPSTREAM_ERRORS = _counter(
    "proxy_upstream_errors",
    Unit.NONE,
    ("reason",),
    "Times the server behind could not be reached, or its answer did not come to its end.",
    origin="gpumon proxy",
    budget=1,
    values=("connect", "connect_timeout", "closed", "malformed", "timeout"),
)
PROXY_MALFORMED_EVENTS = _counter(
    "proxy_malformed_events",
    Unit.NONE,
    (),
    "Events of streams that were passed on but could not be read.",
    origin="gpumon proxy",
    budget=1,
)
PROXY_UNREAD_BODIES = _counter(
    "proxy_unread_bodies",
    Unit.NONE,
    (),
    "Request bodies passed on but too large to be looked at: without parameters and prompt hash.",
    origin="gpumon proxy",
    budget=1,
)
PROXY_ADDED = _histogram(
    "proxy_added",
    Unit.SECONDS,
    (),
    "Time from reading a piece of an answer to handing it on, injected delays apart.",
    origin="gpumon proxy",
    budget=1,
    bounds=(1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2),
)
PROXY_TRACES = _counter("proxy_traces", Unit.NONE, (), "Traces delivered.", origin="gpumon proxy", budget=1)
PROXY_TRACES_WAITING = _gauge(
    "proxy_traces_waiting", Unit.NONE, (), "Traces that wait to be sent.", origin="gpumon proxy", budget=1
)
PROXY_TRACES_DROPPED = _counter(
    "proxy_traces_dropped",
    Unit.NONE,
    ("reason",),
    "Traces that were not delivered.",
    origin="gpumon proxy",
    budget=1,
    values=("queue_full", "refused", "stopped"),
)
PROXY_INJECTION_RULES = _gauge(
    "proxy_injection_rules",
    Unit.NONE,
    (),
    "Rules of latency injection in force: above 0, latencies are not the server's own.",
    origin="gpumon proxy",
    budget=1,
)
PROXY_INJECTED_DELAYS = _counter(
    "proxy_injected_delays",
    Unit.NONE,
    ("where",),
    "Delays put in on purpose.",
    origin="gpumon proxy",
    budget=1,
    values=("request", "first", "token"),
)
PROXY_INJECTED = _counter(
    "proxy_injected",
    Unit.SECONDS,
    ("where",),
    "Time put in on purpose.",
    origin="gpumon proxy",
    budget=1,
    values=("request", "first", "token"),
)

# --- gpumon itself --------------------------------------------------------------------------------------------------
SOURCE_UP = _gauge(
    "source_up", Unit.NONE, ("source",), "1 if the last pass of the source succeeded.", origin="gpumon", budget=32
)
SOURCE_DURATION = _gauge(
    "source_duration", Unit.SECONDS, ("source",), "Length of the last pass of the source.", origin="gpumon", budget=32
)
SOURCE_LAST_SUCCESS = _gauge(
    "source_last_success", Unit.TIMESTAMP, ("source",), "When the source last succeeded.", origin="gpumon", budget=32
)
SOURCE_ERRORS = _counter(
    "source_errors",
    Unit.NONE,
    ("source", "reason"),
    "Failed passes and single failed readings, by reason.",
    origin="gpumon",
    budget=32 * 7,
)
NVML_CALL = _histogram(
    "nvml_call",
    Unit.SECONDS,
    ("call",),
    "Time NVML took to answer, by function.",
    origin="gpumon",
    bounds=CALL_BOUNDS,
    budget=64,
)
NVML_STATE = _gauge(
    "nvml_state",
    Unit.NONE,
    ("state",),
    "1 for the state that gpumon's hold on NVML is in.",
    origin="gpumon",
    budget=1,
    values=("starting", "running", "unavailable", "released", "stuck"),
)
NVML_ERROR = _info(
    "nvml_error",
    ("code",),
    "NVML's name of the return code for which its state is unavailable; there is no series while it is not.",
    origin="nvmlInitWithFlags, or the call that ended NVML's use",
)
SAMPLER_RESTARTS = _counter(
    "sampler_restarts",
    Unit.NONE,
    ("reason",),
    "Times the sampler process was replaced.",
    origin="gpumon",
    budget=1,
    values=("exited", "stuck", "driver"),
)
SERIES = _gauge("series", Unit.NONE, (), "Series exposed now.", origin="gpumon", budget=1)
SERIES_DROPPED = _counter(
    "series_dropped",
    Unit.NONE,
    ("reason",),
    "Series left out, by reason; counted at every pass.",
    origin="gpumon",
    budget=1,
    values=("budget", "duplicate", "sampler_backlog"),
)
SAMPLES_REJECTED = _counter(
    "samples_rejected",
    Unit.NONE,
    ("field", "reason"),
    "Readings that cannot be true and were dropped.",
    origin="gpumon",
    budget=256,
)
HISTORY_SERIES = _gauge(
    "history_series",
    Unit.NONE,
    ("state",),
    "Series whose newest points are kept, for rates and annotations: kept, and refused for lack of room.",
    origin="gpumon",
    budget=1,
    values=("kept", "refused"),
)
CONFIG_RELOAD_OK = _gauge(
    "config_last_reload_successful",
    Unit.NONE,
    (),
    "1 if the last reload of the configuration was taken.",
    origin="gpumon",
    budget=1,
)
CONFIG_RELOAD_TIME = _gauge(
    "config_last_reload_success", Unit.TIMESTAMP, (), "When a configuration was last taken.", origin="gpumon", budget=1
)
SELF_CPU = _counter(
    "self_cpu",
    Unit.SECONDS,
    ("component",),
    "CPU time of gpumon's own processes.",
    origin="/proc/<pid>/stat",
    budget=1,
    values=("main", "sampler"),
)
SELF_RESIDENT = _gauge(
    "self_resident",
    Unit.BYTES,
    ("component",),
    "Resident memory of gpumon's own processes.",
    origin="/proc/<pid>/statm",
    budget=1,
    values=("main", "sampler"),
)

SERVER_PORTS = _gauge(
    "server_ports",
    Unit.NONE,
    ("state",),
    "Ports on which processes on GPUs listen, of those that are looked at: scraped; waiting to be asked; no_server and "
    "no_answer, by what they answered; same_process, of which another port is scraped; unreachable from here; left_out, "
    "past the most.",
    origin="/proc/<pid>/net/tcp, and a GET of the port",
    budget=1,
    values=("scraped", "waiting", "no_server", "no_answer", "same_process", "unreachable", "left_out"),
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All families, in the order of this file, which is the order of exposition and of the docs."""

_FIRST_OF_GROUP = {
    "identity": BUILD_INFO,
    "activity": GPU_UTILIZATION,
    "clocks and throttling": GPU_CLOCK,
    "power and heat": GPU_POWER,
    "memory": GPU_MEMORY,
    "links": GPU_PCIE_BYTES,
    "faults": GPU_XID_ERRORS,
    "MIG": MIG_INFO,
    "processes": PROCESS_GPU_MEMORY,
    "pods": GPU_POD,
    "host": HOST_PAGE_FAULTS,
    "requests": REQUEST_DURATION,
    "token traces in": OTLP_REQUESTS,
    "collectives": COLLECTIVES,
    "servers": SERVER_UP,
    "incidents": INCIDENT_ACTIVE,
    "explanation": SLOW_TOKEN_SECONDS,
    "forwarding and OTLP out": FORWARD_UP,
    "token-timing proxy": PROXY_REQUESTS,
    "gpumon itself": SOURCE_UP,
}
_STARTS = [METRICS.index(first) for first in _FIRST_OF_GROUP.values()]

GROUPS: dict[str, tuple[Metric, ...]] = {
    group: METRICS[start:end] for group, start, end in zip(_FIRST_OF_GROUP, _STARTS, [*_STARTS[1:], None], strict=True)
}
"""The same, by the sections of this file: the chapters of the docs."""

WITHOUT_HISTORY: frozenset[Metric] = frozenset(
    {
        GPU_FIELD_SUPPORTED,
        GPU_CLOCK_MAX,
        GPU_POWER_LIMIT,
        GPU_TEMPERATURE_LIMIT,
        GPU_TEMPERATURE_MARGIN_LIMIT,
        GPU_XID_ERRORS,
        GPU_XID_LAST,
        *GROUPS["pods"],
        *GROUPS["token traces in"],
        *GROUPS["incidents"],
        *GROUPS["explanation"],
        *GROUPS["forwarding and OTLP out"],
        *GROUPS["token-timing proxy"],
        *GROUPS["gpumon itself"],
    }
)
"""Families of whose past the store keeps nothing: what hardly changes, and gpumon's own. Half of all series."""
