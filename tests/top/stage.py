"""A gpumon on a real socket that answers what a test has put there."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from tests.top.answered import answers

BUILD = 'gpumon_build_info{version="0.0.9",python="3.11.7"} 1.0\n'


class Stage:
    """By path: an object for JSON, a text, or a status with a detail (None: as FastAPI says of an unknown address).

    Every answer of the node is a second later than the one before. Ends with ``with``.
    """

    def __init__(self) -> None:
        said = answers()
        self.answers: dict[str, Any] = {f"/api/v1/{name}": answer for name, answer in said.items()}
        self.asked: list[str] = []
        self.go_on = threading.Event()
        """Answers wait for it."""
        self.go_on.set()
        stage = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stage.answer(self)

            def log_message(self, format: str, *arguments: object) -> None:
                """Not on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def node(self) -> dict[str, Any]:
        """What it says of itself."""
        found = self.answers["/api/v1/node"]
        assert isinstance(found, dict)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def put(self, name: str, answer: object) -> None:
        """Of the API."""
        self.answers[f"/api/v1/{name}"] = answer

    def count(self, name: str) -> int:
        """How often it was asked."""
        return sum(urlsplit(target).path == f"/api/v1/{name}" for target in self.asked)

    def answer(self, asked: BaseHTTPRequestHandler) -> None:
        """One request."""
        self.asked.append(asked.path)
        self.go_on.wait(30)
        answer = self.answers.get(urlsplit(asked.path).path, (404, None))
        status = 200
        if isinstance(answer, tuple):
            status, detail = answer
            answer = {"title": "?", "status": status, "detail": detail or "Not Found", "errors": []}
        body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        if answer is self.answers.get("/api/v1/node") and isinstance(answer, dict):
            answer["at"] += 1.0
        try:
            asked.send_response(status)
            asked.send_header("Content-Length", str(len(body)))
            asked.end_headers()
            asked.wfile.write(body)
        except OSError:
            pass  # whoever asked has gone
