"""The largest node that gpumon is made for: what a page of it weighs.

Eight GPUs of seven MIG instances each, 200 processes that hold them, and four inference servers of eight models each,
which send traces of tenants and have metrics pages.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from benchmarks.common import idle_processes, put_to_work
from tests.e2e import nodes
from tests.e2e.daemon import FAST, Daemon
from tests.e2e.page import Page
from tests.e2e.traces.gateway import OTLP, Gateway
from tests.e2e.waiting import eventually
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc
from tests.fakenvml.profiles import MigSpec

GPUS, MIGS, PROCESSES, MODELS, TENANTS = 8, 7, 200, 8, 16
SERVERS = (
    ("gpumon.tokens", "gen_ai.request", "gpumon"),
    ("vllm.llm_engine", "llm_request", "vllm"),
    ("trt.llm", "llm_request", "trtllm"),
    ("dynamo", "http-request", "dynamo"),
)
"""Instrumentation scope, span and server. All send an event for each token."""
_TOKENS = 64
_FIRST_INSTANCE = 7


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Daemon]:
    """gpumon on that node, everything told and every source passed."""
    folder.mkdir(parents=True, exist_ok=True)
    with nodes.make(folder, "h200", GPUS) as node, idle_processes(PROCESSES) as pids, _pages() as targets:
        put_to_work(node, pids)
        _partition(node, pids)
        options = FAST | OTLP
        options |= {
            "GPUMON_PROCESSES__LIMIT": str(PROCESSES),
            "GPUMON_REQUESTS__MAX_MODELS": str(len(SERVERS) * MODELS),
            "GPUMON_REQUESTS__MAX_TENANTS": str(TENANTS),
            "GPUMON_SERVERS__TARGETS": json.dumps(targets),
        }
        real = ("--procfs", "/proc", "--sysfs", "/sys", "--cgroupfs", "/sys/fs/cgroup")
        with Daemon(folder, *real, env=node.env(), options=options) as daemon:
            daemon.await_ready()
            gateway = Gateway(daemon)
            for request in _requests():
                gateway.send(request, "http")
            for *_, server in SERVERS:
                gateway.await_requests(MODELS, server=server)
            daemon.await_series("gpumon_mig_memory_bytes", GPUS * MIGS * 3)
            eventually(lambda: _held(daemon.page()) == PROCESSES, f"{PROCESSES} processes that hold a GPU")
            daemon.await_series("gpumon_server_requests_running", len(SERVERS) * MODELS)
            yield daemon


def _held(page: Page) -> int:
    return len(set(page.by("pid", "gpumon_process_gpu_memory_bytes")) - {""})


def _partition(node: FakeNode, pids: Sequence[int]) -> None:
    for slot, gpu in enumerate(node.gpus):
        gpu.set_mig([MigSpec("1g.18gb", _FIRST_INSTANCE + index) for index in range(MIGS)])
        mine = enumerate(pids[slot::GPUS])
        gpu.set_processes(
            [Proc(pid, 2**28, gpu_instance=_FIRST_INSTANCE + index % MIGS, compute_instance=0) for index, pid in mine]
        )


def _requests() -> Iterator[ExportTraceServiceRequest]:
    """One request of every server, model and, in turn, tenant."""
    number = 0
    for scope_name, span_name, _ in SERVERS:
        request = ExportTraceServiceRequest()
        for model in range(MODELS):
            resource = request.resource_spans.add()
            _text(resource.resource, "service.name", scope_name)
            _text(resource.resource, "gen_ai.request.model", f"model-{model}")
            scope = resource.scope_spans.add()
            scope.scope.name = scope_name
            number += 1
            _describe(scope.spans.add(name=span_name, kind=Span.SPAN_KIND_SERVER), number, model)
        yield request


def _describe(span: Span, number: int, model: int) -> None:
    end_ns = time.time_ns() - 10**9
    span.trace_id = number.to_bytes(16, "big")
    span.span_id = number.to_bytes(8, "big")
    span.start_time_unix_nano, span.end_time_unix_nano = end_ns - 2 * 10**9, end_ns
    _text(span, "gen_ai.request.model", f"model-{model}")
    _text(span, "tenant.id", f"tenant-{number % TENANTS}")
    for token in range(_TOKENS):
        at_ns = span.start_time_unix_nano + 100_000_000 + token * 25_000_000
        span.events.add(name="gen_ai.token.generated", time_unix_nano=at_ns)
    for key, count in (("gen_ai.usage.input_tokens", 1000), ("gen_ai.usage.output_tokens", _TOKENS)):
        span.attributes.add(key=key).value.int_value = count


def _text(holder: object, key: str, value: str) -> None:
    holder.attributes.add(key=key).value.string_value = value  # type: ignore[attr-defined]


@contextlib.contextmanager
def _pages() -> Iterator[list[str]]:
    """Metrics pages of servers, eight models on each."""
    page = "".join(_page(f"model-{model}") for model in range(MODELS)).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in SERVERS]
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield [f"http://127.0.0.1:{server.server_address[1]}/metrics" for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _page(model: str) -> str:
    values: Sequence[tuple[str, float]] = (
        ("vllm:num_requests_running", 4),
        ("vllm:num_requests_waiting", 1),
        ("vllm:kv_cache_usage_perc", 0.5),
        ("vllm:num_preemptions_total", 1),
        ("vllm:prefix_cache_hits_total", 10),
        ("vllm:prefix_cache_queries_total", 20),
        ("vllm:prompt_tokens_total", 1000),
        ("vllm:generation_tokens_total", 100),
    )
    return "".join(f'{name}{{model_name="{model}"}} {value}\n' for name, value in values)
