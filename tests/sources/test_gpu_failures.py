"""Every question failing in turn with every code: its neighbours stay, and only what is gone is raised."""

from __future__ import annotations

import pytest

from gpumon.catalogue import GPU_FIELD_SUPPORTED
from gpumon.host.nvml import Code, NvmlError
from gpumon.model import Item, Miss, Sample
from gpumon.sources.capabilities import GONE, Capabilities
from gpumon.sources.gpu import GpuSlow
from gpumon.sources.gpu_state import GpuState
from tests.fake_port import FIELDS, FakeNvml, device

GPU = ("0", "GPU-a")
CODES = [*(code for code in Code if code is not Code.SUCCESS), 31]

OWN = {  # question: series it alone stands for
    "power_enforced": {"gpumon_gpu_power_limit_watts{enforced}"},
    "power_requested": {"gpumon_gpu_power_limit_watts{requested}"},
    "power_default": {"gpumon_gpu_power_limit_watts{default}"},
    "power_constraints": {"gpumon_gpu_power_limit_watts{min}", "gpumon_gpu_power_limit_watts{max}"},
    "pcie_generation": {"gpumon_gpu_pcie_link_generation{current}"},
    "pcie_max_generation": {"gpumon_gpu_pcie_link_generation{max}"},
    "pcie_width": {"gpumon_gpu_pcie_link_width{current}"},
    "pcie_max_width": {"gpumon_gpu_pcie_link_width{max}"},
    "performance_state": {"gpumon_gpu_performance_state{}"},
    "temperature_margin": {"gpumon_gpu_temperature_margin_celsius{}"},
    "bar1": {"gpumon_gpu_bar1_bytes{used}", "gpumon_gpu_bar1_bytes{free}"},
    "fans": {"gpumon_gpu_fan_ratio{0}", "gpumon_gpu_fan_ratio{1}"},
    "fan_0": {"gpumon_gpu_fan_ratio{0}"},
    "fan_1": {"gpumon_gpu_fan_ratio{1}"},
    "utilization_samples": {"gpumon_gpu_busy_seconds_total{}", "gpumon_gpu_utilization_sample_ratio{}"},
    "ecc_mode": set(),
    "fields.read": set(),  # filled in below
}
OWN |= {
    f"max_clock_{domain}": {f"gpumon_gpu_clock_max_hertz{{{domain}}}"}
    for domain in ("graphics", "sm", "memory", "video")
}
OWN |= {
    f"threshold_{limit}": {f"gpumon_gpu_temperature_limit_celsius{{{limit}}}"}
    for limit in ("shutdown", "slowdown", "memory_max", "gpu_max")
}
OWN |= {engine: {f"gpumon_gpu_codec_utilization_ratio{{{engine}}}"} for engine in ("encoder", "decoder", "jpeg", "ofa")}
OWN |= {
    f"nvlink_state_{link}": {"gpumon_gpu_nvlink_links{active}", "gpumon_gpu_nvlink_links{inactive}"}
    for link in range(18)
}

OWN_FIELDS = {
    3: "gpumon_gpu_ecc_errors_total{corrected,volatile}",
    4: "gpumon_gpu_ecc_errors_total{uncorrected,volatile}",
    5: "gpumon_gpu_ecc_errors_total{corrected,aggregate}",
    6: "gpumon_gpu_ecc_errors_total{uncorrected,aggregate}",
    29: "gpumon_gpu_retired_pages{single_bit}",
    30: "gpumon_gpu_retired_pages{double_bit}",
    31: "gpumon_gpu_retired_pages_pending{}",
    38: "gpumon_gpu_nvlink_errors_total{crc_flit}",
    45: "gpumon_gpu_nvlink_errors_total{crc_data}",
    52: "gpumon_gpu_nvlink_errors_total{replay}",
    59: "gpumon_gpu_nvlink_errors_total{recovery}",
    160: "gpumon_gpu_nvlink_errors_total{ecc_data}",
    94: "gpumon_gpu_pcie_replays_total{}",
    142: "gpumon_gpu_remapped_rows{correctable}",
    143: "gpumon_gpu_remapped_rows{uncorrectable}",
    144: "gpumon_gpu_row_remap_pending{}",
    145: "gpumon_gpu_row_remap_failed{}",
    193: "gpumon_gpu_temperature_margin_limit_celsius{shutdown}",
    194: "gpumon_gpu_temperature_margin_limit_celsius{slowdown}",
    195: "gpumon_gpu_temperature_margin_limit_celsius{memory_max}",
    196: "gpumon_gpu_temperature_margin_limit_celsius{gpu_max}",
    230: "gpumon_gpu_recovery_action{}",
}
OWN["fields.read"] = set(OWN_FIELDS.values())


def rig() -> tuple[FakeNvml, GpuSlow]:
    nvml = FakeNvml()
    return nvml, GpuSlow(nvml, device(), GPU, Capabilities("gpu 0"), GpuState())


def series(items: list[Item]) -> set[str]:
    return {
        f"{item.metric.name}{{{','.join(item.labels[2:])}}}"
        for item in items
        if isinstance(item, Sample) and item.metric is not GPU_FIELD_SUPPORTED
    }


ALL = series(rig()[1].read(1000.0))


def test_every_question_asked_and_every_series_is_in_the_tables() -> None:
    nvml, source = rig()
    source.read(1000.0)
    assert {name for name in nvml.log if not name.startswith("field:")} == OWN.keys()
    assert {int(name[6:]) for name in nvml.log if name.startswith("field:")} == OWN_FIELDS.keys() | {91}
    assert set().union(*OWN.values()) == ALL


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("question", OWN)
def test_a_question_that_fails_at_first_takes_only_its_own(question: str, code: int) -> None:
    nvml, source = rig()
    nvml.errors[question] = code
    if code in GONE:
        with pytest.raises(NvmlError) as raised:
            source.read(1000.0)
        assert raised.value.code == code
        return
    items = source.read(1000.0)
    lost = ALL - series(items)
    assert lost <= OWN[question]
    assert sum(isinstance(item, Miss) for item in items) >= 1
    # It recovers, unless it said never.
    del nvml.errors[question]
    assert ALL - series(source.read(1100.0)) <= lost


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("question", OWN)
def test_a_question_that_fails_later_takes_only_its_own_and_nothing_stale_stays(question: str, code: int) -> None:
    nvml, source = rig()
    assert series(source.read(1000.0)) == ALL
    nvml.errors[question] = code
    if code in GONE:
        with pytest.raises(NvmlError):
            source.read(1061.0)
        return
    lost = ALL - series(source.read(1061.0))
    assert lost <= OWN[question]
    never_lost = {"fields.read"} | {f"nvlink_state_{link}" for link in range(18)}
    if question not in never_lost:  # fields have single calls to fall back to, links their neighbours
        assert lost == OWN[question]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("id_", FIELDS)
def test_a_field_that_fails_takes_only_its_own(id_: int, code: int) -> None:
    nvml, source = rig()
    nvml.field_codes[id_] = code
    if code in GONE:
        with pytest.raises(NvmlError):
            source.read(1000.0)
        return
    lost = ALL - series(source.read(1000.0))
    assert lost <= ({OWN_FIELDS[id_]} if id_ in OWN_FIELDS else set())


@pytest.mark.parametrize("code", [code for code in CODES if code not in GONE])
def test_everything_failing_at_once_gives_no_sample_and_raises_nothing(code: int) -> None:
    nvml, source = rig()
    nvml.errors |= dict.fromkeys([*OWN, "remapped_rows"], code)
    for at_s in (1000.0, 1005.0):
        assert series(source.read(at_s)) == set()
