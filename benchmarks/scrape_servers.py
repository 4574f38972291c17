"""The claim about servers' pages: ten of vLLM, each read every 5 s, take no more than 0.5 % of a core.

Ten real HTTP servers in another process serve vLLM's page as it is of one engine that has worked: the one of the tests'
fixtures, and all of its histograms with all their buckets. What counts is gpumon's CPU time for whole passes, requests
and answers included; the servers' own is not in it. Parsing alone is compared with prometheus_client's parser, page by
page in turn. What it costs to look for servers is measured on this machine's own sockets, by its rarest and its most
frequent cadence. One JSON line; CPU times in ms. Usage: python -m benchmarks.scrape_servers [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.common import percentiles, report
from gpumon.config import Config
from gpumon.host.host_files import HostFiles
from gpumon.host.http_client import HttpClient
from gpumon.model import GpuProcess, GpuUuid, apart
from gpumon.requests.listening import ListeningServers
from gpumon.sources.server_discovery import LOOK_MAX_S, LOOK_S
from gpumon.sources.server_names import FAMILIES
from gpumon.sources.server_page import Parser
from gpumon.sources.servers import ServerSource

SERVERS, EVERY_S, BAR = 10, 5.0, 0.005
FIXTURE = Path(__file__).parent.parent / "tests" / "fixtures" / "servers" / "vllm.prom"
_LABELS = 'engine="0",model_name="meta-llama/Llama-3.3-70B-Instruct"'
_FIRST = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0"
_BETWEEN = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0"
_WHOLE = "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0"
_TOKENS = "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 10000.0 20000.0 50000.0 100000.0"
_STEP = "1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0 2048.0 4096.0 8192.0 16384.0"
_PHASES = ("e2e_request_latency", "request_queue_time", "request_inference_time", "request_prefill_time")
_COUNTED = ("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens")
HISTOGRAMS = {
    "time_to_first_token_seconds": _FIRST,
    "inter_token_latency_seconds": _BETWEEN,
    "request_time_per_output_token_seconds": _BETWEEN,
    **{f"{name}_seconds": _WHOLE for name in (*_PHASES, "request_decode_time")},
    **dict.fromkeys((*_COUNTED, "request_params_max_tokens", "request_prefill_kv_computed_tokens"), _TOKENS),
    "iteration_tokens_total": _STEP,
    "request_params_n": "1.0 2.0 5.0 10.0 20.0",
}
"""vLLM's, by their bounds."""

_SERVE = """
import socketserver, sys, threading
body = sys.stdin.buffer.read(int(sys.argv[1]))
answer = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline():
            while self.rfile.readline() not in (b"\\r\\n", b""):
                pass
            self.wfile.write(answer)
servers = [socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) for _ in range(int(sys.argv[2]))]
for server in servers:
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(*(server.server_address[1] for server in servers), flush=True)
sys.stdin.read()
"""


def vllm_page() -> bytes:
    """Of one engine, all histograms included."""
    present = FIXTURE.read_text()
    lines = []
    for name, bounds in HISTOGRAMS.items():
        if f"# TYPE vllm:{name} histogram" in present:
            continue
        lines += [f"# HELP vllm:{name} Histogram of {name}.", f"# TYPE vllm:{name} histogram"]
        for at, bound in enumerate([*bounds.split(), "+Inf"]):
            lines.append(f'vllm:{name}_bucket{{{_LABELS},le="{bound}"}} {1000.0 * at}')
        lines += [f"vllm:{name}_count{{{_LABELS}}} 22000.0", f"vllm:{name}_sum{{{_LABELS}}} 73211.25"]
    return (present + "\n".join(lines) + "\n").encode()


@contextlib.contextmanager
def servers(page: bytes) -> Iterator[list[str]]:
    """Addresses of pages served by a process of its own."""
    command = [sys.executable, "-c", _SERVE, str(len(page)), str(SERVERS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(page)
        process.stdin.flush()
        yield [f"http://127.0.0.1:{port}/metrics" for port in process.stdout.readline().decode().split()]
        process.stdin.close()


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU time of this process for it."""
    began_ns = time.process_time_ns()
    work()
    return (time.process_time_ns() - began_ns) / 1e6


def looking(rounds: int) -> list[float]:
    """CPU time of a look for sockets, with this process in the place of one on a GPU."""
    asked = Config().servers.asked
    looker = ListeningServers(HostFiles(), lambda: [GpuProcess(os.getpid(), "0", GpuUuid("GPU-0"), None, None)], asked)
    looker.look()
    return [cpu_ms(looker.look) for _ in range(rounds)]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    page = vllm_page()
    text = page.decode()
    ours = Parser(FAMILIES)
    passes, parsing, reference = [], [], []
    with servers(page) as urls, contextlib.closing(HttpClient()) as http:
        source = ServerSource(http, urls, timeout_s=1.0)
        samples, misses, _ = apart(source.read(0.0))
        assert not misses, misses
        for turn in range(rounds):
            passes.append(cpu_ms(lambda at_s=5.0 * turn: apart(source.read(at_s))))  # type: ignore[misc]
            parsing.append(cpu_ms(lambda: ours.parse(page)))
            reference.append(cpu_ms(lambda: list(text_string_to_metric_families(text))))
    looks = looking(20)
    share = statistics.mean(passes) / 1e3 / EVERY_S
    report(
        "scrape_servers",
        servers=SERVERS,
        every_s=EVERY_S,
        page_bytes=len(page),
        page_lines=page.count(b"\n"),
        series=len(samples),
        pass_cpu_ms=percentiles(passes),
        share_of_a_core=round(share, 5),
        bar=BAR,
        holds=share <= BAR,
        parse_cpu_ms=percentiles(parsing),
        prometheus_client_cpu_ms=percentiles(reference),
        times_faster=round(statistics.mean(reference) / statistics.mean(parsing), 1),
        look_cpu_ms=percentiles(looks),
        look_share_of_a_core={
            "seldom": round(statistics.mean(looks) / 1e3 / LOOK_MAX_S, 5),
            "often": round(statistics.mean(looks) / 1e3 / LOOK_S, 5),
        },
    )


if __name__ == "__main__":
    main()
