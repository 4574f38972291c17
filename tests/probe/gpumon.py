"""A gpumon to ask: a page of metrics that a test writes, and what it says of traces."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit


class Gpumon:
    """Serves from ``with`` on."""

    def __init__(self) -> None:
        self.page: Callable[[], str] = lambda: ""
        self.known: Callable[[str], bool] = lambda trace_id: True
        """Whether it has explained the request with this trace id."""
        self.late: list[dict[str, object]] = []
        self.off = ""
        """Why it explains nothing."""
        self.asked: list[str] = []
        gpumon = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = gpumon._answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, target: str) -> tuple[int, bytes]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        self.asked.append(target)
        if path == "/metrics":
            return 200, self.page().encode()
        if self.off:
            return 404, json.dumps({"detail": self.off}).encode()
        if path == "/api/v1/explain":
            (trace_id,) = query["trace_id"]
            if not self.known(trace_id):
                return 404, b'{"detail": "no request with this trace id"}'
            return 200, json.dumps({"trace_id": trace_id, "requests": [], "left_out": 0}).encode()
        return 200, json.dumps(self.late).encode()


def late(trace_id: str, **seconds: float) -> dict[str, object]:
    """A slow request, as ``/api/v1/explained`` tells it, with seconds by cause."""
    causes = [
        {"cause": cause, "title": cause.replace("_", " "), "fault": True, "seconds": each, "share": 1.0}
        for cause, each in seconds.items()
    ]
    return {
        "trace_id": trace_id,
        "request_id": "",
        "server": "vllm",
        "model": "small",
        "tenant": "",
        "start": 0.0,
        "duration_seconds": 1.0,
        "time_to_first_token_seconds": None,
        "completion_tokens": None,
        "tokens_per_second": None,
        "excess_seconds": sum(seconds.values()),
        "causes": causes,
    }
