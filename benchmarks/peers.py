"""gpumon and nvitop-exporter on the same fake node, one after the other in each round: CPU, scrape times, bytes.

Both at a tick of 1 s, and gpumon at its own 10 Hz too. The fake library answers in about 0.1 us, apart from the 20 ms
that the real driver's PCIe throughput call takes, which only nvitop makes and which is waiting, not work. That both
say the same values is checked here as it is in tests/e2e/test_peers.py.
Usage: python -m benchmarks.peers [--seconds N] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import (
    REAL,
    SIZED,
    children,
    cpu_s,
    environment,
    idle_processes,
    percentiles,
    put_to_work,
    report,
)
from benchmarks.common import wait as let_run
from tests.e2e.daemon import Daemon
from tests.e2e.page import Page
from tests.e2e.peers import SAME, Nvitop
from tests.fakenvml.controller import FakeNode

GPUS, PIDS, SCRAPES = 8, 8, 200
ONE_HZ = SIZED | {
    "GPUMON_CADENCE__FAST_S": "1",
    "GPUMON_CADENCE__MEDIUM_S": "1",
    "GPUMON_CADENCE__SLOW_S": "1",
    "GPUMON_NUMA__ENABLED": "false",
}
"""gpumon reading everything that nvitop reads as often as nvitop does."""


def measure(pids: list[int], port: int, seconds: float) -> dict[str, float]:
    """CPU over a while without scrapes, then scrapes one after another."""
    let_run(6.0)
    before, began_s = sum(map(cpu_s, pids)), time.monotonic()
    let_run(seconds)
    percent = 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began_s)
    times_ms, size = [], 0
    for _ in range(SCRAPES):
        start = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            size = len(answer.read())
        times_ms.append((time.perf_counter() - start) * 1e3)
        let_run(0.01)
    return {"cpu_percent": percent, **{f"scrape_ms_{k}": v for k, v in percentiles(times_ms).items()}, "bytes": size}


def gpumon(node: FakeNode, folder: Path, options: dict[str, str], seconds: float) -> tuple[dict[str, float], Page]:
    with Daemon(folder, *REAL, env=environment(node), options=options) as daemon:
        daemon.await_ready()
        daemon.await_series("gpumon_process_gpu_memory_bytes", PIDS)
        pids = [daemon.process.pid, *children(daemon.process.pid)]
        return measure(pids, daemon.port, seconds), daemon.page()


def nvitop(node: FakeNode, folder: Path, seconds: float) -> tuple[dict[str, float], Page]:
    with Nvitop(folder, environment(node)) as exporter:
        return measure([exporter.process.pid], exporter.port, seconds), exporter.page()


def gpu_values(page: Page, label: str) -> int:
    """Series about GPUs on a page: what its tick reads. Histograms count once, what is always 0 or absent not."""
    names = [n for n in page.samples if not n.endswith(("_bucket", "_sum")) and n != "gpumon_gpu_field_supported"]
    return sum(1 for n in names for labels, v in page.samples[n].items() if label in dict(labels) and v == v)


def equal_values(ours: Page, theirs: Page) -> int:
    """How many values both export; all of them are equal, or this raises."""
    count = 0
    for row in SAME:
        expected = {uuid: value * row.factor for uuid, value in theirs.by("uuid", row.theirs).items()}
        found = ours.by("uuid", row.ours, **dict(row.labels))
        assert found.keys() == expected.keys(), row
        assert all(abs(found[uuid] - value) <= 1e-9 * max(1.0, value) for uuid, value in expected.items()), row
        count += len(found)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpumon-benchmark-"))
    with FakeNode.create(folder / "node", profile="h200", count=GPUS) as node, idle_processes(PIDS) as pids:
        put_to_work(node, pids)
        runs: dict[str, Callable[[], tuple[dict[str, float], Page]]] = {
            "nvitop_1hz": lambda: nvitop(node, folder, options.seconds),
            "gpumon_1hz": lambda: gpumon(node, folder, ONE_HZ, options.seconds),
            "gpumon_10hz": lambda: gpumon(node, folder, SIZED, options.seconds),
        }
        results: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
        pages: dict[str, Page] = {}
        for _ in range(options.rounds):
            for name, run in runs.items():
                figures, pages[name] = run()
                results[name].append(figures)
    median = {
        name: {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
        for name, rows in results.items()
    }
    for name, figures in median.items():
        values = gpu_values(pages[name], "uuid")
        ticks = 10 if name == "gpumon_10hz" else 1
        figures["gpu_values"] = values
        figures["cpu_us_per_value"] = round(figures["cpu_percent"] * 1e4 / (values * ticks), 2)
    theirs, ours = median["nvitop_1hz"], median["gpumon_1hz"]
    report(
        "peers",
        gpus=GPUS,
        processes=PIDS,
        equal_values=equal_values(pages["gpumon_1hz"], pages["nvitop_1hz"]),
        **median,
        cpu_per_value_times_less=round(theirs["cpu_us_per_value"] / ours["cpu_us_per_value"], 1),
        scrape_p50_times_faster=round(theirs["scrape_ms_p50"] / ours["scrape_ms_p50"], 1),
    )


if __name__ == "__main__":
    main()
