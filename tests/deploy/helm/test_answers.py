"""What ``helm test`` runs: it asks a real gpumon, and is not content with less than an answer from everyone."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import bcrypt
import trustme

from tests.deploy.helm.charts import CHART, objects, of_kind, one, variant_objects
from tests.e2e.daemon import FAST, Daemon

SCRIPT = one(variant_objects("default"), "Pod")["spec"]["containers"][0]["args"][1]
GOOD = {"/-/ready": (200, b"ok\n"), "/metrics": (200, b"# TYPE gpumon_build_info gauge\n")}


def ask(scheme: str, name: str, port: int) -> subprocess.CompletedProcess[str]:
    """The script as the pod runs it, once."""
    arguments = [sys.executable, "-I", "-W", "error", "-c", SCRIPT, scheme, name, str(port), "1"]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def serving(pages: Mapping[str, tuple[int, bytes]], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server with these pages; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = pages.get(self.path, (404, b"not found\n"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_the_pod_runs_the_file() -> None:
    assert SCRIPT.rstrip() == (CHART / "files/answers.py").read_text().rstrip()


def test_it_asks_the_service_of_all_nodes() -> None:
    for variant, scheme in (("default", "http"), ("full-locked", "https")):
        pod = one(variant_objects(variant), "Pod")
        name, namespace = (one(variant_objects(variant), "Service")["metadata"][key] for key in ("name", "namespace"))
        assert pod["spec"]["containers"][0]["args"][2:] == [scheme, f"{name}.{namespace}", "9450"]
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_a_real_gpumon_answers(tmp_path: Path) -> None:
    options = FAST | {"GPUMON_NVML__LIBRARY": str(tmp_path / "libnvidia-ml.so.1")}
    with Daemon(tmp_path, options=options) as daemon:
        daemon.await_ready()
        done = ask("http", "127.0.0.1", daemon.port)
    assert (done.returncode, done.stdout, done.stderr) == (0, "127.0.0.1: ok\n", "")


def test_a_real_gpumon_with_passwords_answers_too(tmp_path: Path) -> None:
    web_config = tmp_path / "web-config.yml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    web_config.write_text(f"basic_auth_users:\n  prometheus: {hashed}\n")
    options = FAST | {
        "GPUMON_NVML__LIBRARY": str(tmp_path / "libnvidia-ml.so.1"),
        "GPUMON_HTTP__WEB_CONFIG": str(web_config),
    }
    with Daemon(tmp_path, options=options) as daemon:
        daemon.await_ready()
        assert daemon.ask("/metrics").status == 401
        assert ask("http", "127.0.0.1", daemon.port).returncode == 0


def test_tls_is_asked_without_the_name_of_the_certificate() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("gpumon.example").configure_cert(context)
    with serving(GOOD, context) as port:
        assert ask("https", "127.0.0.1", port).returncode == 0


def test_what_is_not_ready_fails_with_the_reason() -> None:
    with serving(GOOD | {"/-/ready": (503, b"waiting for the first pass of: nvml\n")}) as port:
        done = ask("http", "127.0.0.1", port)
    assert done.returncode == 1
    assert done.stderr == "127.0.0.1: /-/ready: 503 waiting for the first pass of: nvml\n"


def test_a_page_of_something_else_fails() -> None:
    with serving(GOOD | {"/metrics": (200, b"up 1\n")}) as port:
        done = ask("http", "127.0.0.1", port)
    assert done.returncode == 1
    assert "/metrics: an answer without gpumon_build_info" in done.stderr


def test_nobody_there_fails() -> None:
    with serving(GOOD) as port:
        pass
    done = ask("http", "127.0.0.1", port)
    assert done.returncode == 1
    assert "refused" in done.stderr


def test_no_node_at_all_fails_and_says_where_to_look() -> None:
    done = ask("http", "gpumon.invalid", 9450)
    assert done.returncode == 1
    assert "nodeSelector" in done.stderr


def test_without_the_service_there_is_no_test() -> None:
    assert of_kind(objects({"service": {"enabled": False}}), "Pod") == []
