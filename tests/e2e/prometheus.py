"""A real Prometheus (Debian's package), with a database of its own that ends with the test."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.e2e.peer import begin, end
from tests.e2e.waiting import eventually

_ADDRESS = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')


class Job(NamedTuple):
    """A scrape job of one target."""

    name: str
    port: int
    interval_s: int
    names: str = ""
    """Value of the page's parameter ``names``."""


class RefusedError(AssertionError):
    """What Prometheus says of a request that it does not answer."""


class Prometheus:
    """Scrapes the jobs from now on and answers PromQL. Ends with ``with``."""

    def __init__(
        self,
        folder: Path,
        jobs: Sequence[Job] = (),
        *,
        config: Mapping[str, object] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """config: the whole configuration, instead of one with these jobs. flags: more of them."""
        binary = shutil.which("prometheus")
        assert binary is not None, "prometheus is missing: install Debian's package prometheus, or any 2.40 or newer"
        folder.mkdir(parents=True, exist_ok=True)
        self._log_path = folder / "prometheus.log"
        config_path = folder / "prometheus.yml"
        config_path.write_text(
            json.dumps(config or {"scrape_configs": [_scrape_config(job) for job in jobs]})
        )  # is YAML
        self._process = begin(
            [
                binary,
                f"--config.file={config_path}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                "--web.listen-address=127.0.0.1:0",
                *flags,
            ],
            self._log_path,
        )
        self._port = 0

    def __enter__(self) -> Self:
        try:
            self._port = eventually(self._find_port, "Prometheus names its port")
            eventually(lambda: "Server is ready" in self._log, "Prometheus is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer of the API; ``path`` is what follows /api/v1/. A refusal is a failure."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                body: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise RefusedError(f"{path} {parameters}: {error.read().decode(errors='replace')}") from error
        assert body["status"] == "success", body
        assert not body.get("warnings"), body["warnings"]
        return body["data"]

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """The instant vector now: labels (without the name) and values."""
        return [
            ({name: value for name, value in row["metric"].items() if name != "__name__"}, float(row["value"][1]))
            for row in self.ask("query", query=promql)["result"]
        ]

    def by(self, label: str, promql: str) -> dict[str, float]:
        """The vector by one label, which must tell its series apart."""
        rows = self.query(promql)
        values = {labels.get(label, ""): value for labels, value in rows}
        assert len(values) == len(rows), (promql, rows)
        return values

    def number(self, promql: str) -> float:
        """The only value of the vector."""
        rows = self.query(promql)
        assert len(rows) == 1, (promql, rows)
        return rows[0][1]

    @property
    def _log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def _find_port(self) -> int:
        assert self._process.poll() is None, f"prometheus ended with {self._process.returncode}:\n{self._log}"
        found = _ADDRESS.search(self._log)
        return int(found.group(1)) if found else 0


def _scrape_config(job: Job) -> dict[str, object]:
    interval = f"{job.interval_s}s"
    return {
        "job_name": job.name,
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "params": {"names": [job.names]} if job.names else {},
        "static_configs": [{"targets": [f"127.0.0.1:{job.port}"]}],
    }
