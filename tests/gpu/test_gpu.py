"""On a real GPU: gpumon exposes what it should, and its numbers agree with what the load must cause.

Skipped, by name of what is missing, where there is no device or nothing to load it with. tests/gpu/check.sh runs
these and measures what cannot be asserted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.gpu.common import missing_modules
from tests.gpu.gpumon_process import Gpumon, Series, rate, value
from tests.gpu.load import Load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA device: /dev/nvidiactl is missing"),
    pytest.mark.skipif(bool(missing_modules(["torch"])), reason="torch is missing: nothing to load the GPU with"),
]

LOAD_S = 6.0
GPU = 'gpu="0"'


class Window(NamedTuple):
    """Two pages and the seconds between the samples they count."""

    before: Series
    after: Series

    @property
    def seconds(self) -> float:
        """By the GPU's own samples: pages are made up to a second before they are read."""
        passed = rate(self.before, self.after, "gpumon_gpu_last_sample_timestamp_seconds", GPU)
        assert passed
        return passed

    def share(self, counter: str, labels: str = GPU) -> float:
        grown = rate(self.before, self.after, counter, labels)
        assert grown is not None, f"{counter} is not exposed"
        return grown / self.seconds


@pytest.fixture(scope="module")
def windows() -> dict[str, Window]:
    """One run of gpumon beside each load."""
    os.environ.setdefault("LOAD", "cuda")
    load = Load()
    found = {}
    with Gpumon() as gpumon:
        for kind in ("matmul", "copy"):
            load.run(kind, 0.5)
            load.start(kind, LOAD_S)
            time.sleep(2.0)  # real time: a page from within the load
            before = gpumon.page()
            time.sleep(LOAD_S - 3.5)
            found[kind] = Window(before, gpumon.page())
            load.result()
    load.close()
    return found


def test_every_signal_of_a_hopper_is_exposed(windows: dict[str, Window]) -> None:
    page = windows["matmul"].after
    for name in (
        *("gpumon_gpu_utilization_ratio", "gpumon_gpu_sm_active_ratio", "gpumon_gpu_dram_active_ratio"),
        *("gpumon_gpu_tensor_active_ratio", "gpumon_gpu_power_watts", "gpumon_gpu_energy_joules_total"),
        *("gpumon_gpu_clock_hertz", "gpumon_gpu_temperature_celsius", "gpumon_gpu_memory_bytes"),
        *("gpumon_gpu_throttled_seconds_total", "gpumon_gpu_pcie_bytes_total", "gpumon_gpu_ecc_errors_total"),
        *("gpumon_gpu_remapped_rows", "gpumon_gpu_power_limit_watts", "gpumon_gpu_bar1_bytes"),
        *("gpumon_gpu_info", "gpumon_driver_info"),
    ):
        assert value(page, name) is not None, name
    assert value(page, "gpumon_gpu_info", 'activity_source="gpm"') == 1
    supported = [labels for (name, labels), v in page.items() if name == "gpumon_gpu_field_supported" and v == 1]
    assert len(supported) >= 40


def test_nothing_is_refused_as_impossible(windows: dict[str, Window]) -> None:
    page = windows["copy"].after
    refused = {labels: v for (name, labels), v in page.items() if name == "gpumon_samples_rejected_total" and v}
    assert refused == {}


def test_matrix_products_keep_the_sms_busy(windows: dict[str, Window]) -> None:
    assert windows["matmul"].share("gpumon_gpu_sm_active_seconds_total") >= 0.9


def test_a_copy_keeps_the_memory_busy(windows: dict[str, Window]) -> None:
    assert windows["copy"].share("gpumon_gpu_dram_active_seconds_total") >= 0.6


def test_the_energy_counter_agrees_with_the_power(windows: dict[str, Window]) -> None:
    watts = value(windows["matmul"].after, "gpumon_gpu_power_watts", 'kind="average"')
    assert watts is not None
    assert windows["matmul"].share("gpumon_gpu_energy_joules_total") == pytest.approx(watts, rel=0.1)


@pytest.mark.parametrize("kind", ["matmul", "copy"])
def test_samples_come_ten_times_a_second_under_load(windows: dict[str, Window], kind: str) -> None:
    assert windows[kind].share("gpumon_gpu_samples_total") >= 9.5


def test_the_load_is_among_the_processes_of_the_gpu(windows: dict[str, Window]) -> None:
    held = [v for (name, _), v in windows["copy"].after.items() if name == "gpumon_process_gpu_memory_bytes"]
    assert max(held, default=0) > 4 << 30
