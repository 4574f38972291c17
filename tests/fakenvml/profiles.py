"""What each kind of node answers, as data: values at idle, supported fields, unsupported calls.

Values are in NVML's units. Sources: public captures of such nodes; whatever no
capture shows (return codes of single fields per chip) is a guess that errs on the side of "not
supported", since a monitor must cope with that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tests.fakenvml import layout

NOT_SUPPORTED = 3
INVALID_ARGUMENT = 2

DOUBLE, UINT, ULONG, ULL, SLL, INT, USHORT = range(7)

MIB = 2**20
GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    line: str  # a signal, or a line of an NVLink when source is not FIELD_LINE
    value_type: int
    source: int = layout.FIELD_LINE
    link: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class MigProfile:
    multiprocessors: int
    slices: int
    memory_mb: int
    decoders: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class MigSpec:
    """One MIG device. ``None`` in a list of these is a hole in the index range."""

    profile: str
    gpu_instance: int
    compute_instance: int = 0
    uuid: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    name: str
    driver: str
    cuda: int
    signals: Mapping[str, float]
    fields: frozenset[int]
    missing_field_code: int = NOT_SUPPORTED
    unsupported: tuple[str, ...] = ()
    device_id: int = 0
    part: str = ""
    links: int = 0
    link_mbps: int = 0
    link_version: int = 0
    mig_profiles: Mapping[str, MigProfile] = dataclasses.field(default_factory=dict)
    mig: tuple[MigSpec | None, ...] = ()
    temperature_limit_c: int = 87


# ---- field ids ----

_LOCATION_IDS = {
    # volatile, aggregate: first id of the (corrected, uncorrected) pair
    "l1": (7, 18), "l2": (9, 20), "dram": (11, 22), "register": (13, 24), "texture": (15, 26),
}  # fmt: skip


def _field_table() -> dict[int, FieldSpec]:
    table: dict[int, FieldSpec] = {
        1: FieldSpec("ecc_mode", UINT),
        2: FieldSpec("ecc_mode_pending", UINT),
        3: FieldSpec("ecc_corrected_volatile", ULL),
        4: FieldSpec("ecc_uncorrected_volatile", ULL),
        5: FieldSpec("ecc_corrected_aggregate", ULL),
        6: FieldSpec("ecc_uncorrected_aggregate", ULL),
        17: FieldSpec("ecc_uncorrected_volatile_cbu", ULL),
        28: FieldSpec("ecc_uncorrected_aggregate_cbu", ULL),
        31: FieldSpec("retired_pending", UINT),
        74: FieldSpec("throttle_power_ns", ULL),
        75: FieldSpec("throttle_thermal_ns", ULL),
        76: FieldSpec("throttle_sync_boost_ns", ULL),
        77: FieldSpec("throttle_board_limit_ns", ULL),
        78: FieldSpec("throttle_low_utilization_ns", ULL),
        79: FieldSpec("throttle_reliability_ns", ULL),
        80: FieldSpec("throttle_app_clocks_ns", ULL),
        81: FieldSpec("throttle_base_clocks_ns", ULL),
        82: FieldSpec("temp_memory_c", UINT),
        83: FieldSpec("energy_mj", ULL),
        91: FieldSpec("link_count", UINT),
        94: FieldSpec("pcie_replays", UINT),
        142: FieldSpec("remap_corrected", UINT),
        143: FieldSpec("remap_uncorrected", UINT),
        144: FieldSpec("remap_pending", UINT),
        145: FieldSpec("remap_failure", UINT),
        185: FieldSpec("power_mw", UINT),
        186: FieldSpec("power_instant_mw", UINT),
        187: FieldSpec("power_limit_min_mw", UINT),
        188: FieldSpec("power_limit_max_mw", UINT),
        189: FieldSpec("power_limit_default_mw", UINT),
        190: FieldSpec("power_limit_mw", UINT),
        191: FieldSpec("energy_mj", ULL),
        192: FieldSpec("power_limit_requested_mw", UINT),
        197: FieldSpec("pcie_tx_bytes", ULL),
        198: FieldSpec("pcie_rx_bytes", ULL),
        230: FieldSpec("recovery_action", UINT),
        269: FieldSpec("throttle_sw_thermal_ns", ULL),
        270: FieldSpec("throttle_hw_thermal_ns", ULL),
        271: FieldSpec("throttle_hw_power_brake_ns", ULL),
        308: FieldSpec("temp_gpu_c", DOUBLE),
    }
    for where, (volatile, aggregate) in _LOCATION_IDS.items():
        for offset, kind in enumerate(layout.ECC_KINDS):
            table[volatile + offset] = FieldSpec(f"ecc_{kind}_volatile_{where}", ULL)
            table[aggregate + offset] = FieldSpec(f"ecc_{kind}_aggregate_{where}", ULL)
    link, fixed, total = layout.FIELD_LINK, layout.FIELD_LINK_FIXED, layout.FIELD_LINK_SUM
    for base, upper, sum_id, line in (
        (32, 96, 38, "crc_flit"),
        (39, 102, 45, "crc_data"),
        (46, 108, 52, "replay"),
        (53, 114, 59, "recovery"),
    ):
        for n in range(6):
            table[base + n] = FieldSpec(line, ULL, fixed, n)
            table[upper + n] = FieldSpec(line, ULL, fixed, n + 6)
        table[sum_id] = FieldSpec(line, ULL, total)
    for n in range(6):
        table[84 + n] = FieldSpec("speed_mbps", UINT, fixed, n)
        table[132 + n] = FieldSpec("speed_mbps", UINT, fixed, n + 6)
    table[90] = FieldSpec("speed_mbps", UINT, fixed, 0)
    for n in range(12):
        table[148 + n] = FieldSpec("ecc_data", ULL, fixed, n)
    table[160] = FieldSpec("ecc_data", ULL, total)
    for number, line, value_type in (
        (138, "tx_kib", ULL),
        (139, "rx_kib", ULL),
        (140, "raw_tx_kib", ULL),
        (141, "raw_rx_kib", ULL),
        (146, "remote_link", UINT),
        (161, "replay", ULL),
        (162, "recovery", ULL),
        (163, "crc_flit", ULL),
        (164, "speed_mbps", UINT),
        (165, "state", UINT),
        (166, "version", UINT),
        (167, "power_state", UINT),
    ):
        table[number] = FieldSpec(line, value_type, link)
    return table


FIELD_TABLE = _field_table()

# Fields with no signal of their own: a private line per field, zero until a test sets it.
PRIVATE_FIELDS: dict[int, tuple[int, float]] = {
    29: (UINT, 0), 30: (UINT, 0), 92: (UINT, 0), 93: (UINT, 0), 95: (UINT, 0), 169: (UINT, 0),
    **dict.fromkeys(range(173, 184), (UINT, 0.0)),
    193: (INT, -8), 194: (INT, -2), 195: (INT, 0), 196: (INT, 0),
    226: (UINT, 0), 227: (UINT, 0), 301: (UINT, 0), 302: (UINT, 0),
}  # fmt: skip

_ECC = frozenset({1, 2, 3, 4, 5, 6, 11, 12, 22, 23})
_THROTTLE = frozenset({74, 75, 76, 77, 78, 79, 81})
_NVLINK = frozenset(
    {32, 33, 34, 35, 36, 37, 38, 45, 52, 59, 90, 91, *range(84, 90), *range(138, 142), 146, 160,
     *range(161, 168)}
)  # fmt: skip
_REMAP = frozenset(range(142, 146))
_PCIE = frozenset({94, 95, 169, *range(173, 184)})
_POWER = frozenset(range(186, 193))
_ADA_LIMITS = frozenset(range(193, 197))

_HOPPER_FIELDS = (
    _ECC | _THROTTLE | _NVLINK | _REMAP | _PCIE | _POWER | _ADA_LIMITS
    | {82, 83, 185, 197, 198, 226, 227, 230, 269, 270, 271, 301, 302}
)  # fmt: skip
_AMPERE_FIELDS = _ECC | _THROTTLE | _NVLINK | _REMAP | {82, 83, 94, 95, 169, *range(186, 193)}
_ADA_FIELDS = (
    _ECC | _THROTTLE | _REMAP | _PCIE | _POWER | _ADA_LIMITS | {83, 185, 197, 198, 269, 270, 271}
)
_TURING_FIELDS = _ECC | _THROTTLE | {29, 30, 31, 83, 92, 93, 94, 95}
_GB10_FIELDS = frozenset({74, 76, 81, 83, 185, 186, 269, 270, 271})

# ---- functions a part has not ----

_FANLESS = (
    "nvmlDeviceGetFanSpeed", "nvmlDeviceGetFanSpeed_v2", "nvmlDeviceGetTargetFanSpeed",
)  # fmt: skip
_NO_NVLINK = (
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkErrorCounter",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkCapability",
)  # fmt: skip
_NO_PAGES = (
    "nvmlDeviceGetRetiredPages", "nvmlDeviceGetRetiredPages_v2",
    "nvmlDeviceGetRetiredPagesPendingStatus",
)  # fmt: skip
_NO_REMAP = ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram")
_NO_GPM = (
    "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmQueryIfStreamingEnabled",
    "nvmlGpmSetStreamingEnabled",
)  # fmt: skip
_X86 = ("nvmlDeviceGetNumaNodeId",)  # the node of GPU memory: only on coherent systems

_COMMON: dict[str, float] = {
    "event_reasons": 0x1, "event_reasons_supported": 0x1FF, "util_period_us": 166_667,
    "pstate": 0, "persistence": 1, "compute_mode": 0, "brand": 14, "ecc_mode": 1,
    "ecc_mode_pending": 1, "power_management": 1, "event_types": 0x1F1F,
    "pcie_width": 16, "pcie_width_max": 16,
}  # fmt: skip


def _limits(watts: float, low: float) -> dict[str, float]:
    names = ("power_limit_mw", "power_limit_max_mw", "power_limit_default_mw",
             "power_limit_enforced_mw", "power_limit_requested_mw")  # fmt: skip
    return dict.fromkeys(names, watts * 1000) | {"power_limit_min_mw": low * 1000}


def _clocks(sm: float, memory: float, video: float, idle: float) -> dict[str, float]:
    return {
        "clock_graphics_mhz": idle, "clock_sm_mhz": idle, "clock_memory_mhz": memory,
        "clock_video_mhz": video, "clock_max_graphics_mhz": sm, "clock_max_sm_mhz": sm,
        "clock_max_memory_mhz": memory, "clock_max_video_mhz": video,
    }  # fmt: skip


def _pcie(generation: int) -> dict[str, float]:
    speed = {3: 8000, 4: 16000, 5: 32000}[generation]
    return {
        "pcie_gen": generation, "pcie_gen_max": generation, "pcie_gen_gpu_max": generation,
        "pcie_speed_mbps": speed,
    }  # fmt: skip


def _heat(gpu: float, memory: float, limit: float) -> dict[str, float]:
    return {"temp_gpu_c": gpu, "temp_memory_c": memory, "temp_margin_c": limit - gpu,
            "temp_shutdown_c": limit + 8, "temp_slowdown_c": limit + 2,
            "temp_gpu_max_c": limit, "temp_memory_max_c": 95 if memory else 0}  # fmt: skip


_HOPPER_MIG = {
    "1g.10gb": MigProfile(16, 1, 9984, 1), "1g.12gb": MigProfile(16, 1, 11392, 1),
    "1g.18gb": MigProfile(16, 1, 16384, 1), "2g.20gb": MigProfile(32, 2, 20096, 2),
    "2g.35gb": MigProfile(32, 2, 33280, 2), "3g.40gb": MigProfile(60, 3, 40448, 3),
    "3g.71gb": MigProfile(60, 3, 71424, 3), "7g.80gb": MigProfile(132, 7, 81559, 7),
    "7g.141gb": MigProfile(132, 7, 143771, 7),
}  # fmt: skip
_AMPERE_MIG = {
    "1g.5gb": MigProfile(14, 1, 4864), "2g.10gb": MigProfile(28, 2, 9856, 1),
    "3g.20gb": MigProfile(42, 3, 19968, 2), "4g.20gb": MigProfile(56, 4, 19968, 2),
    "7g.40gb": MigProfile(98, 7, 40192, 5),
}  # fmt: skip

_HOPPER_SIGNALS = {
    **_COMMON, **_limits(700, 200), **_pcie(5), "architecture": 9, "cc_major": 9, "cc_minor": 0,
    "gpm_supported": 1, "gpm_streaming": 0, "gpu_cores": 16896, "power_memory_mw": 47_000,
    "remap_hist_max": 3072, "event_types": 0xFF1F,
}  # fmt: skip

PROFILES: dict[str, Profile] = {
    "h100": Profile(
        name="NVIDIA H100 80GB HBM3", driver="590.48.01", cuda=13010, device_id=0x233010DE,
        part="692-2G520-0200-000", links=18, link_mbps=26562, link_version=4,
        signals={
            **_HOPPER_SIGNALS, **_clocks(1980, 2619, 1545, 1980), **_heat(34, 42, 87),
            "power_mw": 71_500, "memory_total": 81559 * MIB, "memory_reserved": 596 * MIB,
            "bar1_total": 128 * GIB, "bar1_used": 1 * MIB, "memory_bus_width": 5120,
        },
        fields=_HOPPER_FIELDS, unsupported=(*_FANLESS, *_NO_PAGES, *_X86),
        mig_profiles=_HOPPER_MIG,
    ),
    "h200": Profile(
        name="NVIDIA H200", driver="590.48.01", cuda=13010, device_id=0x233510DE,
        part="692-2G520-0280-001", links=18, link_mbps=26562, link_version=4,
        signals={
            **_HOPPER_SIGNALS, **_clocks(1980, 3201, 1545, 1980), **_heat(33, 39, 87),
            "power_mw": 76_400, "memory_total": 143771 * MIB, "memory_reserved": 614 * MIB,
            "bar1_total": 256 * GIB, "bar1_used": 1 * MIB, "memory_bus_width": 6144,
        },
        fields=_HOPPER_FIELDS, unsupported=(*_FANLESS, *_NO_PAGES, *_X86),
        mig_profiles=_HOPPER_MIG,
    ),
    "a100-mig": Profile(
        name="NVIDIA A100-SXM4-40GB", driver="580.95.05", cuda=13000, device_id=0x20B010DE,
        part="692-2G506-0200-002", links=12, link_mbps=25781, link_version=3,
        signals={
            **_COMMON, **_limits(400, 100), **_pcie(4), **_clocks(1410, 1215, 1275, 1095),
            **_heat(31, 33, 85), "architecture": 7, "cc_major": 8, "cc_minor": 0,
            "power_mw": 51_200, "memory_total": 40960 * MIB, "memory_reserved": 593 * MIB,
            "bar1_total": 64 * GIB, "bar1_used": 1 * MIB, "gpu_cores": 6912,
            "memory_bus_width": 5120, "temp_margin_c": 0, "remap_hist_max": 640,
        },
        fields=_AMPERE_FIELDS,
        unsupported=(
            *_FANLESS, *_NO_PAGES, *_NO_GPM, *_X86, "nvmlDeviceGetMarginTemperature",
        ),
        mig_profiles=_AMPERE_MIG,
        # Instance 1 was destroyed: its index is a hole.
        mig=(
            MigSpec("3g.20gb", gpu_instance=2), None, MigSpec("2g.10gb", gpu_instance=3),
            MigSpec("1g.5gb", gpu_instance=9), MigSpec("1g.5gb", gpu_instance=10),
        ),
        temperature_limit_c=85,
    ),
    "l40s": Profile(
        name="NVIDIA L40S", driver="595.80", cuda=13020, device_id=0x26B910DE,
        part="900-2G133-0080-000",
        signals={
            **_COMMON, **_limits(350, 100), **_pcie(4), **_clocks(2520, 9001, 1965, 210),
            **_heat(30, 0, 88), "architecture": 8, "cc_major": 8, "cc_minor": 9,
            "power_mw": 34_000, "memory_total": 46068 * MIB, "memory_reserved": 610 * MIB,
            "bar1_total": 64 * GIB, "bar1_used": 1 * MIB, "gpu_cores": 18176,
            "memory_bus_width": 384, "pstate": 8, "remap_hist_max": 192,
        },
        fields=_ADA_FIELDS,
        unsupported=(*_FANLESS, *_NO_NVLINK, *_NO_GPM, *_NO_PAGES, *_X86),
        temperature_limit_c=88,
    ),
    "t4": Profile(
        name="Tesla T4", driver="535.261.03", cuda=12020, device_id=0x1EB810DE,
        part="900-2G183-0000-001", missing_field_code=INVALID_ARGUMENT,
        signals={
            **_COMMON, **_limits(70, 60), **_pcie(3), **_clocks(1590, 5001, 1470, 300),
            **_heat(38, 0, 85), "architecture": 6, "cc_major": 7, "cc_minor": 5, "brand": 2,
            "power_mw": 10_300, "memory_total": 15360 * MIB, "memory_reserved": 446 * MIB,
            "bar1_total": 256 * MIB, "bar1_used": 2 * MIB, "gpu_cores": 2560,
            "memory_bus_width": 256, "pstate": 8, "temp_margin_c": 0,
        },
        fields=_TURING_FIELDS,
        unsupported=(
            *_FANLESS, *_NO_NVLINK, *_NO_GPM, *_NO_REMAP, *_X86,
            "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetOfaUtilization",
        ),
        temperature_limit_c=85,
    ),
    "gb10": Profile(
        name="NVIDIA GB10", driver="590.48.01", cuda=13010, device_id=0x2E1210DE,
        signals={
            **_COMMON, **_pcie(5), **_clocks(3003, 0, 2379, 208), **_heat(41, 0, 90),
            "architecture": 10, "cc_major": 12, "cc_minor": 1, "power_mw": 4_600,
            "gpu_cores": 6144, "pstate": 8, "ecc_mode": 0, "ecc_mode_pending": 0,
            "pcie_width": 1, "pcie_width_max": 1, "event_reasons_supported": 0x1FF,
        },
        fields=_GB10_FIELDS,
        unsupported=(
            *_FANLESS, *_NO_NVLINK, *_NO_GPM, *_NO_PAGES, *_NO_REMAP,
            "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors",
            "nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetPowerManagementLimit",
            "nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetSerial",
            "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetNumaNodeId",
        ),
        temperature_limit_c=90,
    ),
}  # fmt: skip

# Which GPU of the "sick8" node has which illness; 0 and 7 are healthy.
SICK_LOST = 1
SICK_RESET_REQUIRED = 2
SICK_ROW_REMAP = 3
SICK_UNSUPPORTED = 4
SICK_HANGING = 5
SICK_GARBAGE = 6
SICK_HEALTHY = (0, 7)
SICK_HANGING_CALL = "nvmlDeviceGetUtilizationRates"

# HGX boards: PCI buses of the eight GPUs, four per socket.
PCI_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF, *range(0xE1, 0xE9))
# Two sockets of 48 cores, two threads each: 64-bit words of CPUs 0-47,96-143 and 48-95,144-191.
CPU_MASKS = (
    (0x0000FFFFFFFFFFFF, 0xFFFFFFFF00000000, 0x000000000000FFFF),
    (0xFFFF000000000000, 0x00000000FFFFFFFF, 0xFFFFFFFFFFFF0000),
)
