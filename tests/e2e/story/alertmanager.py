"""A real Alertmanager (Debian's package), asked by ``amtool``, and the webhook that it tells."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.e2e.peer import begin, end
from tests.e2e.waiting import eventually

_ADDRESS = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')
_MISSING = "{} is missing: install Debian's package prometheus-alertmanager"


class Alert(NamedTuple):
    """An alert that Alertmanager holds: one that was fired and is not resolved."""

    labels: dict[str, str]
    annotations: dict[str, str]
    began_s: float
    """Unix time from which it fires, by Prometheus."""
    active: bool
    """False while another alert inhibits it."""


class Notice(NamedTuple):
    """One alert of one message to the webhook."""

    receiver: str
    status: str
    """firing or resolved."""
    labels: dict[str, str]


class Alertmanager:
    """Alone, without a cluster. Ends with ``with``."""

    def __init__(self, folder: Path, config: Mapping[str, object]) -> None:
        # Debian's name, then the project's own.
        binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
        assert binary is not None, _MISSING.format("alertmanager")
        folder.mkdir(parents=True, exist_ok=True)
        self._log_path = folder / "alertmanager.log"
        self.config_path = folder / "alertmanager.yml"
        self.config_path.write_text(json.dumps(config))  # JSON is YAML
        self._process = begin(
            [
                binary,
                f"--config.file={self.config_path}",
                f"--storage.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
                "--cluster.listen-address=",
            ],
            self._log_path,
        )
        self._port = 0

    def __enter__(self) -> Self:
        try:
            self._port = eventually(self._find_port, "Alertmanager names its port")
            eventually(self._is_ready, "Alertmanager is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._port}"

    def alerts(self) -> list[Alert]:
        """What ``amtool alert query`` shows now, inhibited ones too."""
        found = json.loads(self.amtool("alert", "query", "--active", "--inhibited", "--output=json"))
        return [
            Alert(
                each["labels"],
                each["annotations"],
                datetime.fromisoformat(each["startsAt"]).astimezone(UTC).timestamp(),
                each["status"]["state"] == "active",
            )
            for each in found
        ]

    def groups(self) -> list[dict[str, str]]:
        """The labels of each group, which is one message."""
        with urllib.request.urlopen(f"http://{self.address}/api/v2/alerts/groups", timeout=30) as answer:
            return [group["labels"] for group in json.load(answer)]

    def fire(self, alerts: Sequence[Mapping[str, str]]) -> None:
        """As Prometheus would: alerts with these labels, open until they are resolved."""
        self._post([{"labels": dict(labels)} for labels in alerts])

    def resolve(self, alerts: Sequence[Mapping[str, str]]) -> None:
        """Their end is now."""
        now = datetime.now(UTC).isoformat()
        self._post([{"labels": dict(labels), "endsAt": now} for labels in alerts])

    def amtool(self, *arguments: str) -> str:
        """What amtool prints when it asks this Alertmanager."""
        amtool = shutil.which("amtool")
        assert amtool is not None, _MISSING.format("amtool")
        done = subprocess.run(
            [amtool, *arguments, f"--alertmanager.url=http://{self.address}", "--no-version-check"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _post(self, alerts: Sequence[Mapping[str, object]]) -> None:
        body, headers = json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}/api/v2/alerts", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def _find_port(self) -> int:
        log = self._log_path.read_text(errors="replace")
        assert self._process.poll() is None, f"alertmanager ended with {self._process.returncode}:\n{log}"
        found = _ADDRESS.search(log)
        return int(found.group(1)) if found else 0

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Webhook:
    """Takes Alertmanager's messages. Ends with ``with``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notices: list[Notice] = []
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                webhook.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def notices(self) -> list[Notice]:
        """All that has arrived, in order; what stays open is told again whenever its group changes."""
        with self._lock:
            return list(self._notices)

    def take(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._notices += [Notice(message["receiver"], each["status"], each["labels"]) for each in message["alerts"]]
