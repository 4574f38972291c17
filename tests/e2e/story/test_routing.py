"""The examples of deploy/prometheus: who is told of which alert, which alerts hide others, how targets are named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.prometheus import Prometheus
from tests.e2e.story.alertmanager import Alertmanager, Webhook
from tests.e2e.story.story import DEPLOY, alertmanager_config, prometheus_config
from tests.e2e.waiting import eventually

HERE = {"cluster": "c", "node": "a"}


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as made:
        yield made


@pytest.fixture
def alertmanager(tmp_path: Path, webhook: Webhook) -> Iterator[Alertmanager]:
    with Alertmanager(tmp_path, alertmanager_config(webhook.url)) as made:
        yield made


def alert(name: str, severity: str = "warning", **labels: str) -> dict[str, str]:
    return {"alertname": name, "severity": severity, **HERE, **labels}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("amtool", ("check-config", "alertmanager.yml")),
        ("promtool", ("check", "config", "prometheus.yml")),
    ],
)
def test_an_example_is_valid(tool: str, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([tool, *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_targets_are_named_after_their_host_or_as_they_were_told(tmp_path: Path) -> None:
    config = prometheus_config(tmp_path, 1, "127.0.0.1:1")
    example = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (job["static_configs"],) = (each["static_configs"] for each in example["scrape_configs"])
    with Prometheus(tmp_path / "prometheus", config=config) as prometheus:
        targets = eventually(lambda: prometheus.ask("targets")["activeTargets"], "targets")
    named = {each["discoveredLabels"]["__address__"]: each["labels"] for each in targets}
    assert {address: labels["node"] for address, labels in named.items()} == {
        "gpu-01:9450": "gpu-01",
        "gpu-02:9450": "gpu-02",
        "127.0.0.1:9450": "gpu-03",
    }
    assert {(labels["job"], labels["cluster"]) for labels in named.values()} == {("gpumon", "example")}


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "pager"), ("warning", "chat"), ("info", "digest")])
def test_who_is_told_follows_the_severity(alertmanager: Alertmanager, severity: str, receiver: str) -> None:
    config = f"--config.file={alertmanager.config_path}"
    assert alertmanager.amtool("config", "routes", "test", config, f"severity={severity}").split()[0] == receiver


def test_what_happens_to_a_node_is_one_message_and_its_end_is_told(
    alertmanager: Alertmanager, webhook: Webhook
) -> None:
    first, second = alert("ServingThermalThrottle", gpu="3"), alert("ServingNumaRemote")
    alertmanager.fire([first, second])
    eventually(lambda: len(webhook.notices()) >= 2, "a message")
    assert [(each.receiver, each.status) for each in webhook.notices()] == [("chat", "firing")] * 2
    assert [each.labels for each in webhook.notices()] == [second, first]
    alertmanager.resolve([first, second])
    eventually(lambda: webhook.notices()[2:], "another message")
    assert {each.status for each in webhook.notices()[2:]} == {"resolved"}
    assert alertmanager.alerts() == []


def test_an_outage_of_many_models_is_one_message(alertmanager: Alertmanager) -> None:
    of_models = [
        {"alertname": "ServingErrorBudgetBurn", "severity": "critical", "cluster": "c", "model": f"m{number}"}
        for number in range(20)
    ]
    alertmanager.fire([*of_models, alert("GpuLost", "critical", gpu="3")])
    groups = eventually(lambda: found if len(found := alertmanager.groups()) == 2 else None, "both groups")
    assert groups == [{"cluster": "c"}, {"cluster": "c", "node": "a"}]


HIDES = [
    # What is open of a node whose gpumon is down is of before, its end as well.
    (alert("GpumonDown"), alert("ServingThermalThrottle", gpu="3")),
    (alert("GpumonDown"), alert("ServingPowerThrottle", "info", gpu="3")),
    (alert("GpumonTracesStopped"), alert("GpumonNodeWithoutTraces", "info")),
    (
        alert("ServingErrorBudgetBurn", "critical", model="m", slo="errors"),
        alert("ServingErrorBudgetBurn", model="m", slo="errors"),
    ),
    (alert("ServingPowerThrottle", gpu="1"), alert("ServingPowerThrottle", "info", gpu="1")),
    (alert("GpuLost", "critical", gpu="3"), alert("GpuPcieDegraded", gpu="3")),
    (alert("GpuDriverMismatch", "critical"), alert("GpumonNvmlUnavailable", "critical")),
    (alert("GpuDriverMismatch", "critical"), alert("GpuMissing")),
    (alert("GpumonNvmlUnavailable"), alert("GpumonSourceFailing", source="gpu")),
    (alert("ServingThermalThrottle", gpu="3"), alert("ServingLatencyShift")),
    (alert("ServingThermalThrottle", gpu="3"), alert("ServingStraggler", gpu="3")),
    (alert("ServingCpuStarvation"), alert("ServingStarvedGpu", gpu="1")),
    (alert("ServingPageFaultBurst"), alert("ServingLatencyShift")),
    (alert("ServingQueueBuildup"), alert("ServingLatencyShift")),
    (alert("ServingStraggler", gpu="6"), alert("ServingLatencyShift")),
]
SHOWS = [
    (alert("GpumonDown"), alert("ServingThermalThrottle", node="b")),
    # A warning hides nothing that pages.
    (alert("GpumonDown"), alert("GpuXidCritical", "critical", gpu="3")),
    (alert("GpumonDown"), alert("ServingProcessStopped", "critical")),
    # One that is of no node says nothing of alerts that are of none either.
    (
        {"alertname": "GpumonDown", "severity": "critical"},
        {"alertname": "ServingErrorBudgetBurn", "severity": "warning", "model": "m"},
    ),
    (alert("ServingErrorBudgetBurn", "critical", model="m"), alert("ServingErrorBudgetBurn", model="other")),
    (alert("ServingErrorBudgetBurn", "critical", slo="a"), alert("ServingInterTokenBudgetBurn", slo="b")),
    (alert("GpuLost", "critical", gpu="3"), alert("GpuPcieDegraded", gpu="4")),
    (alert("GpuLost", "critical", gpu="3"), alert("ServingLatencyShift")),
    (alert("ServingServerDown", "critical"), alert("ServingNumaRemote")),
    # Another GPU's trouble, and what is of the node and tells of no rank.
    (alert("ServingThermalThrottle", gpu="3"), alert("ServingStraggler", gpu="6")),
    (alert("ServingThermalThrottle", gpu="3"), alert("ServingStarvedGpu", gpu="6")),
    (alert("ServingPageFaultBurst"), alert("ServingStraggler", gpu="1")),
    (alert("ServingThermalThrottle", gpu="3"), alert("ServingQueueBuildup")),
    (alert("ServingThermalThrottle", gpu="3"), alert("ServingInterTokenBudgetBurn", model="m")),
    (alert("ServingThermalThrottle", gpu="3"), alert("ServingLatencyShift", node="b")),
]


@pytest.mark.parametrize(
    ("source", "target", "is_hidden"), [*((*pair, True) for pair in HIDES), *((*pair, False) for pair in SHOWS)]
)
def test_an_alert_hides_what_says_nothing_new_beside_it(
    alertmanager: Alertmanager, source: dict[str, str], target: dict[str, str], is_hidden: bool
) -> None:
    alertmanager.fire([source, target])
    found = eventually(lambda: two if len(two := alertmanager.alerts()) == 2 else None, "both")
    assert {json.dumps(each.labels, sort_keys=True): each.active for each in found} == {
        json.dumps(source, sort_keys=True): True,
        json.dumps(target, sort_keys=True): not is_hidden,
    }
