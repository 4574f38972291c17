"""`gpumon demo` for its whole story, under the eyes of a real Prometheus and a real Alertmanager with our rules.

The configurations are the examples of deploy/prometheus, with other addresses, and the rules' times divided: five
minutes of the story stand for most of an hour. It is told once: all is asked while it runs and at its end, and kept as
``Outcome``, which tests judge.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from gpumon.sim import builtin
from scripts.scale_rules import scale_file
from tests.e2e.daemon import ROOT, Daemon
from tests.e2e.prometheus import Prometheus
from tests.e2e.story.alertmanager import Alertmanager, Notice, Webhook
from tests.e2e.story.queries import Answer, Span, ask, load
from tests.e2e.traces.gateway import OTLP
from tests.e2e.traces.recorder import Recorder
from tests.e2e.waiting import eventually, settle

BY: Final = 10.0
"""How much faster than life."""
SCRAPE_S: Final = 2
TARGET: Final = {"cluster": "demo", "node": "node-a"}
BUDGETS: Final = "BudgetBurn"
"""End of the names of alerts on error budgets. Those of days outlast the story, even divided."""
BOARDS: Final = ROOT / "grafana/dashboards"
DEPLOY: Final = ROOT / "deploy/prometheus"
LATE_S: Final = 60.0
"""How long after a fault alerts may still begin: queues drain, requests that it slowed end, and then rules wait."""
_WAIT_S = 240.0
"""For the last alerts to be resolved: an XID is open for a minute, and keep_firing_for comes on top."""
_LOOK_S = 1.0
_MESSAGE_S = 10.0
"""Until the last message has arrived; Alertmanager sends one in two seconds."""


class Seen(NamedTuple):
    """An alert, from firing to resolved, as ``amtool alert query`` showed it."""

    labels: dict[str, str]
    annotations: dict[str, str]
    began_s: float
    """Of the story."""
    last_s: float
    """When it was seen last."""
    active: bool
    """Whether it was ever there without another one that inhibits it."""

    @property
    def name(self) -> str:
        return self.labels["alertname"]


class Outcome(NamedTuple):
    """All that is known of the story when it is over."""

    unsure_s: float
    """By how much moments of the story may be late: gpumon took so long to start."""
    length_s: float
    alerts: list[Seen]
    left: list[Seen]
    """Those of them that were still there when waiting for their end was given up."""
    notices: list[Notice]
    incidents: list[dict[str, Any]]
    """By gpumon's API."""
    answers: list[Answer]
    traces: list[str]
    """Ids of those that reached the tracing back end."""


def tell(folder: Path) -> Outcome:
    """The story; it takes six minutes."""
    folder.mkdir(parents=True, exist_ok=True)
    length_s = float(builtin.find_scenario("demo").duration_s)
    with Webhook() as webhook, Recorder("http") as back_end:
        options = OTLP | {"GPUMON_FORWARD__ENDPOINT": back_end.url, "GPUMON_FORWARD__PROTOCOL": "http"}
        began_s = time.time()
        with (
            Daemon(folder, "--scenario", str(_once(folder)), command="demo", options=options) as gpumon,
            Alertmanager(folder / "alertmanager", alertmanager_config(webhook.url)) as alertmanager,
        ):
            unsure_s = time.time() - began_s
            config = prometheus_config(folder, gpumon.port, alertmanager.address)
            with Prometheus(
                folder / "prometheus", config=config, flags=["--enable-feature=exemplar-storage"]
            ) as prometheus:
                eventually(lambda: prometheus.query("up == 1"), "the first scrape")
                scraped_s = time.time()
                watch = _Watch(alertmanager, began_s)
                over_s = began_s + length_s
                while time.time() < over_s + LATE_S or (watch.is_open() and time.time() < over_s + _WAIT_S):
                    settle(_LOOK_S)
                    watch.look()
                left = watch.left()
                settle(_MESSAGE_S)
                span = Span(scraped_s, time.time(), SCRAPE_S)
                answers = [
                    answer for path in sorted(BOARDS.glob("*.json")) for answer in ask(prometheus, load(path), span)
                ]
            incidents = json.loads(gpumon.ask("/api/v1/incidents").body)
            log = gpumon.log
            assert gpumon.end() == 0, log
        assert "Traceback" not in log, log
        traces = sorted({one.span.trace_id.hex() for one in back_end.seen()})
        return Outcome(unsure_s, length_s, watch.seen(), left, webhook.notices(), incidents, answers, traces)


def prometheus_config(folder: Path, port: int, alertmanager: str) -> dict[str, Any]:
    """The example, for one target, and rules that are divided."""
    config = _example("prometheus.yml")
    rules = folder / "rules"
    rules.mkdir()
    files = sorted(path for pattern in config["rule_files"] for path in DEPLOY.glob(pattern))
    assert files
    config["rule_files"] = [str(scale_file(path, rules, BY, SCRAPE_S)) for path in files]
    config["global"] = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"}
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"], "labels": dict(TARGET)}]
    return config


def alertmanager_config(webhook: str) -> dict[str, Any]:
    """The example, with its messages sent to the webhook, and sooner."""
    config = _example("alertmanager.yml")
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "2s"}
    for receiver in config["receivers"]:
        for target in receiver["webhook_configs"]:
            target["url"] = webhook
    return config


class _Watch:
    """Looks at Alertmanager again and again."""

    def __init__(self, alertmanager: Alertmanager, began_s: float) -> None:
        self._alertmanager = alertmanager
        self._began_s = began_s
        self._seen: dict[object, Seen] = {}
        self._now: list[object] = []

    def look(self) -> None:
        """See what is there now."""
        at_s = time.time() - self._began_s
        self._now = []
        for alert in self._alertmanager.alerts():
            key = frozenset(alert.labels.items()), alert.began_s
            before = self._seen.get(key)
            active = alert.active or (before is not None and before.active)
            self._seen[key] = Seen(alert.labels, alert.annotations, alert.began_s - self._began_s, at_s, active)
            self._now.append(key)

    def is_open(self) -> bool:
        """Whether there is an alert that must not outlast the story."""
        return any(not one.name.endswith(BUDGETS) for one in self.left())

    def left(self) -> list[Seen]:
        """Those that were there at the last look."""
        return [self._seen[key] for key in self._now]

    def seen(self) -> list[Seen]:
        """All, by their beginning."""
        return sorted(self._seen.values(), key=lambda one: (one.began_s, one.name))


def _once(folder: Path) -> Path:
    """The demo's scenario, told once: after it there is peace, in which alerts are resolved."""
    text = (Path(builtin.__file__).parent / "demo.yaml").read_text(encoding="utf-8")
    once, count = re.subn(r"^repeat: true$", "repeat: false", text, flags=re.MULTILINE)
    assert count == 1
    path = folder / "once.yaml"
    path.write_text(once, encoding="utf-8")
    return path


def _example(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return config
