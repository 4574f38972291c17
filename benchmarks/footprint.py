"""The claim about size and start: memory of both processes, and the time from exec to the first page with GPUs.

Metrics only (http.ui off), and with the JSON API loaded by a first request for it. PSS shares what both processes have
in common between them; RSS counts it twice. A first start is not counted: it writes the compiled modules.
Usage: python -m benchmarks.footprint [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import (
    REAL,
    SIZED,
    children,
    environment,
    idle_processes,
    memory_bytes,
    put_to_work,
    report,
    wait,
)
from tests.e2e.daemon import Daemon
from tests.fakenvml.controller import FakeNode

GPUS, PIDS = 8, 50
SETTLE_S = 12.0
MEGA = 1e6


def first_page_s(node: FakeNode, folder: Path) -> dict[str, float]:
    """Seconds from exec to the line with the port, and to the first page on which every GPU has a reading."""
    began_s = time.perf_counter()
    with Daemon(folder, *REAL, env=environment(node), options=SIZED | {"GPUMON_HTTP__UI": "false"}) as gpumon:
        listening_s = time.perf_counter() - began_s
        scrapes = 0
        while True:
            scrapes += 1
            if gpumon.ask("/metrics").body.count(b"\ngpumon_gpu_utilization_ratio{") == GPUS:
                return {"listening": listening_s, "first_page": time.perf_counter() - began_s}
            wait(0.01)


def memory_mb(node: FakeNode, folder: Path, *, ui: bool) -> dict[str, float]:
    """Megabytes of main process, sampler and both, scraped as Prometheus does."""
    options = SIZED | {"GPUMON_HTTP__UI": "true" if ui else "false"}
    with Daemon(folder, *REAL, env=environment(node), options=options) as gpumon:
        gpumon.await_ready()
        gpumon.await_series("gpumon_process_gpu_memory_bytes", PIDS)
        if ui:
            assert gpumon.ask("/api/v1/gpus").status == 200
        gpumon.ask("/metrics", headers={"Accept-Encoding": "gzip"})
        wait(SETTLE_S)
        main, sampler = memory_bytes(gpumon.process.pid), memory_bytes(children(gpumon.process.pid)[0])
    return {
        "pss": (main[0] + sampler[0]) / MEGA,
        "pss_main": main[0] / MEGA,
        "pss_sampler": sampler[0] / MEGA,
        "rss": (main[1] + sampler[1]) / MEGA,
    }


def medians(rounds: list[dict[str, float]], digits: int) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rounds), digits) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="gpumon-benchmark-"))
    with FakeNode.create(folder / "node", profile="h200", count=GPUS) as node, idle_processes(PIDS) as pids:
        put_to_work(node, pids)
        first_page_s(node, folder)
        report(
            "footprint",
            gpus=GPUS,
            processes=PIDS,
            start_s=medians([first_page_s(node, folder) for _ in range(rounds)], 3),
            metrics_only_mb=medians([memory_mb(node, folder, ui=False) for _ in range(3)], 1),
            with_api_mb=medians([memory_mb(node, folder, ui=True) for _ in range(3)], 1),
        )


if __name__ == "__main__":
    main()
