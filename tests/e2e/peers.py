"""nvitop-exporter beside gpumon on one fake node: how to run it, and which of its numbers should be ours.

It is run as a program of its own, as its users run it.
"""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tests.e2e.page import Page
from tests.e2e.waiting import eventually

MIB = 2.0**20


class Same(NamedTuple):
    """A value that both export: ``theirs * factor == ours``."""

    theirs: str
    factor: float
    ours: str
    labels: tuple[tuple[str, str], ...] = ()


SAME = (
    Same("gpu_utilization_Percentage", 0.01, "gpumon_gpu_utilization_ratio"),
    Same("gpu_memory_utilization_Percentage", 0.01, "gpumon_gpu_memory_controller_busy_ratio"),
    Same("gpu_encoder_utilization_Percentage", 0.01, "gpumon_gpu_codec_utilization_ratio", (("engine", "encoder"),)),
    Same("gpu_decoder_utilization_Percentage", 0.01, "gpumon_gpu_codec_utilization_ratio", (("engine", "decoder"),)),
    Same("gpu_memory_used_MiB", MIB, "gpumon_gpu_memory_bytes", (("state", "used"),)),
    Same("gpu_memory_free_MiB", MIB, "gpumon_gpu_memory_bytes", (("state", "free"),)),
    Same("gpu_clock_graphics_MHz", 1e6, "gpumon_gpu_clock_hertz", (("domain", "graphics"),)),
    Same("gpu_clock_sm_MHz", 1e6, "gpumon_gpu_clock_hertz", (("domain", "sm"),)),
    Same("gpu_clock_memory_MHz", 1e6, "gpumon_gpu_clock_hertz", (("domain", "memory"),)),
    Same("gpu_clock_video_MHz", 1e6, "gpumon_gpu_clock_hertz", (("domain", "video"),)),
    Same("gpu_power_usage_W", 1.0, "gpumon_gpu_power_watts", (("kind", "average"),)),
    Same("gpu_power_limit_W", 1.0, "gpumon_gpu_power_limit_watts", (("kind", "requested"),)),
    Same("gpu_temperature_C", 1.0, "gpumon_gpu_temperature_celsius", (("sensor", "gpu"),)),
)
"""Values of every GPU that are equal when nothing moves. Its total memory is the sum of our states."""
SAME_OF_PROCESSES = (
    Same("process_gpu_memory_MiB", MIB, "gpumon_process_gpu_memory_bytes"),
    Same("process_gpu_sm_utilization_Percentage", 0.01, "gpumon_process_gpu_sm_ratio"),
)
RATES = (
    Same("gpu_pcie_tx_throughput_MiBps", MIB, "gpumon_gpu_pcie_bytes_total", (("direction", "tx"),)),
    Same("gpu_pcie_rx_throughput_MiBps", MIB, "gpumon_gpu_pcie_bytes_total", (("direction", "rx"),)),
    Same("gpu_nvlink_total_tx_throughput_MiBps", MIB, "gpumon_gpu_nvlink_bytes_total", (("direction", "tx"),)),
    Same("gpu_nvlink_total_rx_throughput_MiBps", MIB, "gpumon_gpu_nvlink_bytes_total", (("direction", "rx"),)),
)
"""Its gauges of a rate, and our counters. It takes NVML's PCIe KB for KiB, which is 2.4 % off."""


class Nvitop:
    """nvitop-exporter on a fake node. Ends with ``with``."""

    def __init__(self, folder: Path, env: Mapping[str, str], *, interval_s: float = 1.0) -> None:
        assert importlib.util.find_spec("nvitop_exporter"), "nvitop-exporter is missing: pip install '.[dev]' brings it"
        self._log_path = folder / "nvitop.log"
        with socket.create_server(("127.0.0.1", 0)) as taken:  # it cannot tell which port 0 became
            self.port: int = taken.getsockname()[1]
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "nvitop_exporter", "--hostname", "node"),
                    *("--bind-address", "127.0.0.1", "--port", str(self.port), "--interval", f"{interval_s:g}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**env, "PYTHONUNBUFFERED": "1"},
                cwd=folder,
            )

    def __enter__(self) -> Self:
        try:
            eventually(lambda: b"gpu_temperature_C{" in self.body(), "nvitop-exporter has read the GPUs", every_s=0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def body(self) -> bytes:
        """Its page as it is now; nothing while it does not listen yet."""
        ended = self.process.poll()
        assert ended is None, f"nvitop-exporter ended with {ended}:\n{self._log_path.read_text(errors='replace')}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.URLError:
            return b""

    def page(self) -> Page:
        return Page(self.body())
