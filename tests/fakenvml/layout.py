"""The scenario state as Python sees it: a ctypes mirror of ``state.h`` and the signal list.

Every struct here must equal its C namesake byte for byte; ``test_fakenvml.py`` compares sizes and
offsets with what the built library reports. ``SIGNALS`` is the one list of scalar values of a GPU:
the C enum is generated from it at build time.
"""

from __future__ import annotations

import ctypes as c

MAGIC = 0x31304C4D564E4B46
GPUS = 16
FUNCS = 512
MIGS = 8
NO_GPU = GPUS
COLUMNS = GPUS + 1 + GPUS * MIGS
RULES = 4
FIELDS = 384
GPM = 480
LINKS = 18
PROCS = 1024
PAGES = 64
SAMPLE_TYPES = 10
SAMPLES = 120
EVENTS = 1024
LOG = 65536
SIGNAL_SLOTS = 256

LINE_RAW = 1
RULE_NONE, RULE_CODE, RULE_DELAY, RULE_HANG = range(4)
FIELD_LINE, FIELD_LINK, FIELD_LINK_FIXED, FIELD_LINK_SUM = range(4)
TS_NOW, TS_FIXED = range(2)
GPM_OVERRIDE = 1

ECC_LOCATIONS = ("l1", "l2", "dram", "register", "texture", "texture_shm", "cbu", "sram")
ECC_KINDS = ("corrected", "uncorrected")
ECC_SCOPES = ("volatile", "aggregate")

# Order is the enum's order. Names say the NVML unit: the fake speaks NVML's units, not gpumon's.
SIGNALS: tuple[str, ...] = (
    "power_mw", "power_instant_mw", "power_module_mw", "power_memory_mw", "energy_mj",
    "power_limit_mw", "power_limit_min_mw", "power_limit_max_mw", "power_limit_default_mw",
    "power_limit_enforced_mw", "power_limit_requested_mw",
    "temp_gpu_c", "temp_memory_c", "temp_margin_c",
    "temp_shutdown_c", "temp_slowdown_c", "temp_memory_max_c", "temp_gpu_max_c",
    "temp_acoustic_min_c", "temp_acoustic_curr_c", "temp_acoustic_max_c", "temp_gps_curr_c",
    "clock_graphics_mhz", "clock_sm_mhz", "clock_memory_mhz", "clock_video_mhz",
    "clock_max_graphics_mhz", "clock_max_sm_mhz", "clock_max_memory_mhz", "clock_max_video_mhz",
    "event_reasons", "event_reasons_supported",
    "throttle_power_ns", "throttle_thermal_ns", "throttle_sync_boost_ns",
    "throttle_board_limit_ns", "throttle_low_utilization_ns", "throttle_reliability_ns",
    "throttle_app_clocks_ns", "throttle_base_clocks_ns", "throttle_sw_thermal_ns",
    "throttle_hw_thermal_ns", "throttle_hw_power_brake_ns",
    "util_gpu", "util_memory", "util_encoder", "util_decoder", "util_jpg", "util_ofa",
    "util_period_us",
    "pcie_tx_bytes", "pcie_rx_bytes", "pcie_tx_kbps", "pcie_rx_kbps", "pcie_replays",
    "pcie_gen", "pcie_gen_max", "pcie_gen_gpu_max", "pcie_width", "pcie_width_max",
    "ecc_mode", "ecc_mode_pending",
    "remap_corrected", "remap_uncorrected", "remap_pending", "remap_failure",
    "remap_hist_max", "remap_hist_high", "remap_hist_partial", "remap_hist_low", "remap_hist_none",
    "retired_pending",
    "pstate", "fan_percent", "fans",
    "memory_total", "memory_reserved", "memory_used", "bar1_total", "bar1_used",
    "persistence", "compute_mode", "display_active", "display_mode", "gpu_cores", "numa_node",
    "brand", "architecture", "cc_major", "cc_minor", "minor_number", "board_id", "link_count",
    "recovery_action", "event_types", "gpm_supported", "gpm_streaming", "multi_gpu_board",
    "memory_bus_width", "auto_boost", "power_management", "pcie_speed_mbps", "module_id", "irq",
    *(f"ecc_{kind}_{scope}" for kind in ECC_KINDS for scope in ECC_SCOPES),
    *(f"ecc_{kind}_{scope}_{where}" for kind in ECC_KINDS for scope in ECC_SCOPES
      for where in ECC_LOCATIONS),
)  # fmt: skip
SIGNAL_INDEX = {name: i for i, name in enumerate(SIGNALS)}

LINK_LINES: tuple[str, ...] = (
    "tx_kib", "rx_kib", "raw_tx_kib", "raw_rx_kib", "replay", "recovery", "crc_flit", "crc_data",
    "ecc_data", "speed_mbps", "state", "version", "power_state", "remote_link",
)  # fmt: skip
LINK_INDEX = {name: i for i, name in enumerate(LINK_LINES)}
LINK_LINE_SLOTS = 16

MIG_LINES: tuple[str, ...] = (
    "memory_total", "memory_reserved", "memory_used", "bar1_total", "bar1_used",
    "sram_uncorrected",
)  # fmt: skip
MIG_INDEX = {name: i for i, name in enumerate(MIG_LINES)}
MIG_LINE_SLOTS = 8


class Line(c.Structure):
    base: float
    rate: float
    t_ref_ns: int
    raw: int
    wrap: int
    flags: int
    _fields_ = [
        ("base", c.c_double),
        ("rate", c.c_double),
        ("t_ref_ns", c.c_int64),
        ("raw", c.c_uint64),
        ("wrap", c.c_uint64),
        ("flags", c.c_uint32),
        ("pad", c.c_uint32),
    ]


class Rule(c.Structure):
    from_call: int
    to_call: int
    kind: int
    arg: int
    _fields_ = [
        ("from_call", c.c_uint64),
        ("to_call", c.c_uint64),
        ("kind", c.c_uint32),
        ("arg", c.c_uint32),
    ]


class Cell(c.Structure):
    calls: int
    base_code: int
    base_delay_us: int
    armed: int
    waiting: int
    rules: c.Array[Rule]
    _fields_ = [
        ("calls", c.c_uint64),
        ("base_code", c.c_int32),
        ("base_delay_us", c.c_uint32),
        ("armed", c.c_uint32),
        ("waiting", c.c_uint32),
        ("rules", Rule * RULES),
        ("pad", c.c_uint64),
    ]


class Field(c.Structure):
    ret: int
    value_type: int
    source: int
    line: int
    arg: int
    ts_mode: int
    ts_us: int
    _fields_ = [
        ("ret", c.c_int32),
        ("value_type", c.c_uint32),
        ("source", c.c_uint32),
        ("line", c.c_uint32),
        ("arg", c.c_uint32),
        ("ts_mode", c.c_uint32),
        ("ts_us", c.c_int64),
    ]


class Gpm(c.Structure):
    integral: Line
    override_value: float
    ret: int
    flags: int
    _fields_ = [
        ("integral", Line),
        ("override_value", c.c_double),
        ("ret", c.c_int32),
        ("flags", c.c_uint32),
    ]


class Mig(c.Structure):
    present: int
    gpu_instance: int
    compute_instance: int
    name: bytes
    uuid: bytes
    attributes: c.Array[c.c_uint32]
    memory_mb: int
    lines: c.Array[Line]
    gpm: c.Array[Gpm]
    _fields_ = [
        ("present", c.c_uint32),
        ("gpu_instance", c.c_uint32),
        ("compute_instance", c.c_uint32),
        ("pad", c.c_uint32),
        ("name", c.c_char * 96),
        ("uuid", c.c_char * 80),
        ("attributes", c.c_uint32 * 8),
        ("memory_mb", c.c_uint64),
        ("lines", Line * MIG_LINE_SLOTS),
        ("gpm", Gpm * GPM),
    ]


class Link(c.Structure):
    remote_domain: int
    remote_bus: int
    remote_device: int
    remote_type: int
    lines: c.Array[Line]
    _fields_ = [
        ("remote_domain", c.c_uint32),
        ("remote_bus", c.c_uint32),
        ("remote_device", c.c_uint32),
        ("remote_type", c.c_uint32),
        ("lines", Line * LINK_LINE_SLOTS),
    ]


class Process(c.Structure):
    pid: int
    gpu_instance: int
    compute_instance: int
    memory: int
    _fields_ = [
        ("pid", c.c_uint32),
        ("gpu_instance", c.c_uint32),
        ("compute_instance", c.c_uint32),
        ("pad", c.c_uint32),
        ("memory", c.c_uint64),
    ]


class ProcessUtil(c.Structure):
    ts_us: int
    auto_ts: int
    pid: int
    sm: int
    mem: int
    enc: int
    dec: int
    jpg: int
    ofa: int
    _fields_ = [
        ("ts_us", c.c_uint64),
        ("auto_ts", c.c_uint32),
        ("pid", c.c_uint32),
        ("sm", c.c_uint32),
        ("mem", c.c_uint32),
        ("enc", c.c_uint32),
        ("dec", c.c_uint32),
        ("jpg", c.c_uint32),
        ("ofa", c.c_uint32),
    ]


class Sample(c.Structure):
    ts_us: int
    bits: int
    _fields_ = [("ts_us", c.c_uint64), ("bits", c.c_uint64)]


class Ring(c.Structure):
    count: int
    value_type: int
    auto_period_us: int
    auto_signal: int
    samples: c.Array[Sample]
    _fields_ = [
        ("count", c.c_uint32),
        ("value_type", c.c_uint32),
        ("auto_period_us", c.c_uint32),
        ("auto_signal", c.c_uint32),
        ("samples", Sample * SAMPLES),
    ]


class Gpu(c.Structure):
    seq: int
    present: int
    dead_code: int
    process_entry_bytes: int
    name: bytes
    uuid: bytes
    serial: bytes
    vbios: bytes
    part: bytes
    pci_domain: int
    pci_bus: int
    pci_device: int
    pci_device_id: int
    pci_subsystem_id: int
    link_count: int
    mig_current: int
    mig_pending: int
    mig_max: int
    mig_capable: int
    cpu_affinity: c.Array[c.c_uint64]
    memory_affinity: c.Array[c.c_uint64]
    frozen_ns: int
    ts_offset_us: int
    gpm_frozen_ns: int
    gpm_equal_code: int
    util_success_zero: int
    util_race: int
    util_count: int
    process_count: c.Array[c.c_uint32]
    page_count: c.Array[c.c_uint32]
    lines: c.Array[Line]
    fields: c.Array[Field]
    gpm: c.Array[Gpm]
    migs: c.Array[Mig]
    links: c.Array[Link]
    processes: c.Array[c.Array[Process]]
    utils: c.Array[ProcessUtil]
    rings: c.Array[Ring]
    pages: c.Array[c.Array[c.c_uint64]]
    page_times: c.Array[c.Array[c.c_uint64]]
    _fields_ = [
        ("seq", c.c_uint32),
        ("present", c.c_uint32),
        ("dead_code", c.c_int32),
        ("process_entry_bytes", c.c_uint32),
        ("name", c.c_char * 96),
        ("uuid", c.c_char * 80),
        ("serial", c.c_char * 32),
        ("vbios", c.c_char * 32),
        ("part", c.c_char * 32),
        ("pci_domain", c.c_uint32),
        ("pci_bus", c.c_uint32),
        ("pci_device", c.c_uint32),
        ("pci_device_id", c.c_uint32),
        ("pci_subsystem_id", c.c_uint32),
        ("link_count", c.c_uint32),
        ("mig_current", c.c_uint32),
        ("mig_pending", c.c_uint32),
        ("mig_max", c.c_uint32),
        ("mig_capable", c.c_uint32),
        ("cpu_affinity", c.c_uint64 * 8),
        ("memory_affinity", c.c_uint64 * 8),
        ("frozen_ns", c.c_int64),
        ("ts_offset_us", c.c_int64),
        ("gpm_frozen_ns", c.c_int64),
        ("gpm_equal_code", c.c_int32),
        ("util_success_zero", c.c_uint32),
        ("util_race", c.c_uint32),
        ("util_count", c.c_uint32),
        ("process_count", c.c_uint32 * 3),
        ("page_count", c.c_uint32 * 2),
        ("pad", c.c_uint32),
        ("lines", Line * (SIGNAL_SLOTS + FIELDS)),
        ("fields", Field * FIELDS),
        ("gpm", Gpm * GPM),
        ("migs", Mig * MIGS),
        ("links", Link * LINKS),
        ("processes", (Process * PROCS) * 3),
        ("utils", ProcessUtil * PROCS),
        ("rings", Ring * SAMPLE_TYPES),
        ("pages", (c.c_uint64 * PAGES) * 2),
        ("page_times", (c.c_uint64 * PAGES) * 2),
    ]


class Event(c.Structure):
    gpu: int
    gpu_instance: int
    compute_instance: int
    type: int
    data: int
    _fields_ = [
        ("gpu", c.c_uint32),
        ("gpu_instance", c.c_uint32),
        ("compute_instance", c.c_uint32),
        ("pad", c.c_uint32),
        ("type", c.c_uint64),
        ("data", c.c_uint64),
    ]


class LogRecord(c.Structure):
    sequence: int
    start_ns: int
    latency_ns: int
    function: int
    column: int
    pid: int
    tid: int
    rc: int
    _fields_ = [
        ("sequence", c.c_uint64),
        ("start_ns", c.c_uint64),
        ("latency_ns", c.c_uint64),
        ("function", c.c_uint32),
        ("column", c.c_uint32),
        ("pid", c.c_uint32),
        ("tid", c.c_uint32),
        ("rc", c.c_int32),
        ("pad", c.c_uint32),
    ]


class Misuse(c.Structure):
    call_before_init: int
    call_after_shutdown: int
    stale_handle: int
    set_freed_while_waiting: int
    shutdown_while_waiting: int
    gpm_use_after_free: int
    gpm_leaked_at_shutdown: int
    sets_leaked_at_shutdown: int
    _fields_ = [
        ("call_before_init", c.c_uint64),
        ("call_after_shutdown", c.c_uint64),
        ("stale_handle", c.c_uint64),
        ("set_freed_while_waiting", c.c_uint64),
        ("shutdown_while_waiting", c.c_uint64),
        ("gpm_use_after_free", c.c_uint64),
        ("gpm_leaked_at_shutdown", c.c_uint64),
        ("sets_leaked_at_shutdown", c.c_uint64),
    ]


class State(c.Structure):
    magic: int
    layout_hash: int
    closing: int
    clock_stepped: int
    clock_ns: int
    gpu_count: int
    driver_generation: int
    order: c.Array[c.c_uint32]
    init_sequence: int
    init_failures_left: int
    init_code: int
    global_code: int
    global_spares_init: int
    serialise: int
    global_from_call: int
    total_calls: int
    driver_version: bytes
    nvml_version: bytes
    cuda_version: int
    fields_all_failed_code: int
    wake_sequence: int
    spurious_sequence: int
    canary: int
    log_on: int
    log_head: int
    event_head: int
    live_inits: int
    live_sets: int
    live_gpm_samples: int
    live_waiters: int
    misuse: Misuse
    events: c.Array[Event]
    log: c.Array[LogRecord]
    gpus: c.Array[Gpu]
    cells: c.Array[c.Array[Cell]]
    _fields_ = [
        ("magic", c.c_uint64),
        ("layout_hash", c.c_uint64),
        ("closing", c.c_uint32),
        ("clock_stepped", c.c_uint32),
        ("clock_ns", c.c_int64),
        ("gpu_count", c.c_uint32),
        ("driver_generation", c.c_uint32),
        ("order", c.c_uint32 * GPUS),
        ("init_sequence", c.c_uint32),
        ("init_failures_left", c.c_uint32),
        ("init_code", c.c_int32),
        ("global_code", c.c_int32),
        ("global_spares_init", c.c_uint32),
        ("serialise", c.c_uint32),
        ("global_from_call", c.c_uint64),
        ("total_calls", c.c_uint64),
        ("driver_version", c.c_char * 80),
        ("nvml_version", c.c_char * 80),
        ("cuda_version", c.c_int32),
        ("fields_all_failed_code", c.c_int32),
        ("wake_sequence", c.c_uint32),
        ("spurious_sequence", c.c_uint32),
        ("canary", c.c_uint32),
        ("log_on", c.c_uint32),
        ("log_head", c.c_uint64),
        ("event_head", c.c_uint64),
        ("live_inits", c.c_int32),
        ("live_sets", c.c_int32),
        ("live_gpm_samples", c.c_int32),
        ("live_waiters", c.c_int32),
        ("misuse", Misuse),
        ("events", Event * EVENTS),
        ("log", LogRecord * LOG),
        ("gpus", Gpu * GPUS),
        ("cells", (Cell * COLUMNS) * FUNCS),
    ]


STRUCTS: dict[str, type[c.Structure]] = {
    "line": Line,
    "rule": Rule,
    "cell": Cell,
    "field": Field,
    "gpm": Gpm,
    "mig": Mig,
    "link": Link,
    "process": Process,
    "process_util": ProcessUtil,
    "sample": Sample,
    "ring": Ring,
    "gpu": Gpu,
    "event": Event,
    "log_entry": LogRecord,
    "misuse": Misuse,
    "state": State,
}


def offset(struct: type[c.Structure], member: str) -> int:
    """Where a member lies; the class attribute is a descriptor that annotations hide."""
    where: int = getattr(struct, member).offset
    return where


def column(gpu: int | None, mig: int | None = None) -> int:
    """The rule column of a GPU slot, of one of its MIG slots, or of calls without a device."""
    if gpu is None:
        return NO_GPU
    return gpu if mig is None else GPUS + 1 + gpu * MIGS + mig
