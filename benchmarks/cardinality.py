"""What the largest node costs the Prometheus that scrapes it: series, memory, CPU, and the time of the rules.

One page of ``tests.e2e.largest`` (8 GPUs of 7 MIG instances, 200 processes, 4 servers of 8 models) is scraped by a real
Prometheus as so many nodes, with the recording rules loaded. What a node costs is the difference between two numbers of
nodes; what 200 would cost is computed from it, because they need more memory than most machines have. The bound of a
family's series is its budget in the catalogue (tests/e2e/test_cardinality.py).
"""

from __future__ import annotations

import http.server
import tempfile
import threading
from pathlib import Path

from benchmarks.common import cpu_s, memory_bytes, report, wait
from tests.e2e import largest
from tests.e2e.prometheus import Prometheus
from tests.e2e.waiting import eventually

RULES = Path(__file__).parent.parent / "deploy/prometheus/rules"
NODES = (4, 12)
WANTED = 200
INTERVAL_S = 15
ROUNDS = 4
"""Scrapes of every node in which CPU is measured, after two that make its series."""


def _measure(folder: Path, port: int, nodes: int) -> dict[str, float]:
    config = {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": [str(RULES / "gpumon-recording.yaml")],
        "scrape_configs": [
            {
                "job_name": "gpumon",
                "honor_labels": True,
                "static_configs": [
                    {"targets": [f"127.0.0.1:{port}"], "labels": {"cluster": "c", "node": f"node-{number}"}}
                    for number in range(nodes)
                ],
            }
        ],
    }
    with Prometheus(folder, config=config) as prometheus:
        eventually(lambda: len(prometheus.query("up == 1")) == nodes, f"{nodes} nodes are up", within_s=120)
        wait(2 * INTERVAL_S)
        before = cpu_s(prometheus.pid)
        wait(ROUNDS * INTERVAL_S)
        used = cpu_s(prometheus.pid) - before
        [(_, samples)] = prometheus.query("sum(scrape_samples_scraped)")
        [(_, scrape)] = prometheus.query("avg(scrape_duration_seconds)")
        return {
            "samples": samples,
            "memory_mb": memory_bytes(prometheus.pid)[1] / 1e6,
            "cpu_percent": 100 * used / (ROUNDS * INTERVAL_S),
            "scrape_ms": 1000 * scrape,
        }


def main() -> None:
    """Prints the line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with largest.running(folder / "node") as daemon:
            page = daemon.ask("/metrics").body
        server = _serve(page)
        few, many = (_measure(folder / str(nodes), server.server_address[1], nodes) for nodes in NODES)
        server.shutdown()
    each = {key: (many[key] - few[key]) / (NODES[1] - NODES[0]) for key in ("samples", "memory_mb", "cpu_percent")}
    report(
        "cardinality",
        page_mb=round(len(page) / 1e6, 2),
        series_per_node=round(each["samples"]),
        scrape_ms=round(many["scrape_ms"]),
        memory_mb_per_node=round(each["memory_mb"], 1),
        bytes_per_series=round(each["memory_mb"] * 1e6 / each["samples"]),
        cpu_percent_per_node=round(each["cpu_percent"], 2),
        nodes_measured=list(NODES),
        memory_gb_of_200=round((few["memory_mb"] + (WANTED - NODES[0]) * each["memory_mb"]) / 1000, 1),
        cores_of_200=round((few["cpu_percent"] + (WANTED - NODES[0]) * each["cpu_percent"]) / 100, 2),
    )


def _serve(page: bytes) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    main()
