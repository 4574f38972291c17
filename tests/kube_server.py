"""An API server for tests: HTTPS, a service account, pods to list and to watch; it can end, deny and forget."""

from __future__ import annotations

import json
import queue
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import trustme

TOKEN = "token-1"


def pod(
    name: str,
    *,
    namespace: str = "serving",
    uid: str = "",
    labels: Mapping[str, str] | None = None,
    containers: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod as the API has it, with things that nobody asked for. containers: id by name."""
    statuses = [
        {"name": each, "containerID": f"containerd://{id_}", "ready": True, "restartCount": 0}
        for each, id_ in (containers or {}).items()
    ]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-of-{name}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "server", "image": "x"}]},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


class KubeServer:
    """``with KubeServer(folder) as server``; the account's folder is ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.crt"))
        (folder / "token").write_text(f"{TOKEN}\n")
        self.token = TOKEN
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.status = 200
        """Of every answer."""
        self.forgotten = False
        """Watches are of a version that is no longer kept: told by the status, or (``late``) by an event."""
        self.late = False
        self.body: bytes | None = None
        """Instead of a list."""
        self.asked: list[dict[str, str]] = []
        """Queries."""
        self._watches: list[queue.Queue[bytes | None]] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                outer._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address: tuple[str, int] = ("127.0.0.1", self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_watches()
        self._server.shutdown()
        self._server.server_close()

    @property
    def watches(self) -> int:
        """That are open."""
        return len(self._watches)

    def put(self, one: dict[str, Any]) -> None:
        """Add or change a pod."""
        kind = "MODIFIED" if one["metadata"]["name"] in self.pods else "ADDED"
        self.pods[one["metadata"]["name"]] = one
        self._tell(kind, one)

    def remove(self, name: str) -> None:
        self._tell("DELETED", self.pods.pop(name))

    def bookmark(self) -> None:
        self._tell("BOOKMARK", {"kind": "Pod", "metadata": {}})

    def say(self, line: bytes) -> None:
        """Send anything down the watches."""
        for each in self._watches:
            each.put(line)

    def end_watches(self) -> None:
        with self._lock:
            watches, self._watches = self._watches, []
        for each in watches:
            each.put(None)

    def _tell(self, kind: str, one: dict[str, Any]) -> None:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        self.say(json.dumps({"type": kind, "object": one}).encode() + b"\n")

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        query = {key: value[0] for key, value in parse_qs(urlsplit(handler.path).query).items()}
        self.asked.append(query)
        is_watch = query.get("watch") == "1"
        status = self.status
        if handler.headers["Authorization"] != f"Bearer {self.token}":
            status = 401
        elif is_watch and self.forgotten and not self.late:
            status = 410
        if status != 200:
            handler.send_response(status)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        elif is_watch:
            self._watch(handler)
        else:
            listed = {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.pods.values())}
            body = self.body if self.body is not None else json.dumps(listed).encode()
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

    def _watch(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        lines: queue.Queue[bytes | None] = queue.Queue()
        if self.forgotten:
            lines.put(json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410}}).encode() + b"\n")
        with self._lock:
            self._watches.append(lines)
        while (line := lines.get()) is not None:
            half = len(line) // 2
            for part in filter(None, (line[:half], line[half:])):
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        handler.wfile.write(b"0\r\n\r\n")
