"""docs/KUBERNETES.md: what it names is in the chart, and what it says to type is a command."""

from __future__ import annotations

import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from gpumon import cli
from gpumon.config_keys import keys
from tests.deploy.helm.charts import objects, of_kind, one
from tests.deploy.privileges import Pod

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/KUBERNETES.md").read_text()
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "deploy/helm/gpumon/values.yaml").read_text())
CONFIG = {key.path for key in keys()}
# Of Kubernetes and of other charts, not of ours.
OTHERS = {
    *("allowPrivilegeEscalation", "capabilities.add", "dcgmExporter.enabled", "honorLabels", "internalTrafficPolicy"),
    *("dnsPolicy", "k8s.pod.uid", "kubelet.sock", "status.hostIP", "volumeMounts"),
    *("kubernetes.azure.com", "karpenter.k8s.aws", "eks.amazonaws.com", "nvidia.com"),
}
FREE = {"config", "monitor.labels", "prometheusRule.labels", "seLinuxOptions"}
"""Values with keys of the user's own."""
COMMANDS = {
    "helm": {"install", "upgrade", "rollback", "uninstall", "test", "template"},
    "kubectl": {"create", "label", "rollout", "exec"},
    "oc": {"adm", "apply"},
    "docker": {"run"},
    "sed": {"1,/gpumon.yaml:/d; s/^    //"},
}
FLAGS = {
    *("--namespace", "--set", "--reset-then-reuse-values", "--values", "--show-only"),
    *("-z", "-n", "-f", "--rm", "--volume", "--config"),
}


def commands() -> list[list[str]]:
    """Every line that is to be typed, as words."""
    blocks = re.findall(r"```console\n(.*?)```", TEXT, re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]


def named() -> list[str]:
    """Paths of values, as in `a.b` and `a.b=c` or --set a.b=c."""
    quoted = re.findall(r"`([a-z]+[A-Z]?[A-Za-z]*(?:\.[A-Za-z_]+)*)(?:=[^`\s]+|: [^`\s]+)?`", TEXT)
    dotted = [name for name in quoted if "." in name or re.search("[A-Z]", name) or name in VALUES]
    return sorted({*dotted, *sets()})


def sets() -> dict[str, str]:
    """What the commands set."""
    words = [word for line in commands() for flag, word in pairwise(line) if flag == "--set"]
    return dict(word.split("=", 1) for word in words)


def is_known(path: str) -> bool:
    """Whether the chart, the configuration or somebody else has this."""
    if path in OTHERS or path in CONFIG or path.removeprefix("config.") in CONFIG:
        return True
    node: Any = VALUES
    walked: list[str] = []
    for part in path.split("."):
        if ".".join(walked) in FREE - {"config"}:
            return True
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
        walked.append(part)
    return True


def test_every_value_that_is_named_is_one() -> None:
    assert len(named()) > 25
    assert [path for path in named() if not is_known(path)] == []


@pytest.mark.parametrize(
    "path", ["profiles", "kubernetes.podResource", "config.forward.endpoints", "monitor.label.release"]
)
def test_a_value_that_is_none_is_noticed(path: str) -> None:
    assert not is_known(path)


def test_the_values_that_commands_set_are_rendered() -> None:
    values: dict[str, Any] = {}
    for path, text in sets().items():
        *above, last = path.split(".")
        node = values
        for part in above:
            node = node.setdefault(part, {})
        node[last] = yaml.safe_load(text)
    rendered = objects(values)
    assert {"DaemonSet", "PodMonitor", "PrometheusRule", "ConfigMap"} <= {each["kind"] for each in rendered}


def test_every_command_is_one_with_flags_that_it_has() -> None:
    assert len(commands()) >= 9
    for words in commands():
        program, *rest = words
        tail = rest[rest.index("--") + 1 :] if "--" in rest else []
        own = rest[: len(rest) - len(tail) - bool(tail)]
        assert (
            next(word for i, word in enumerate(own) if not word.startswith("-") and own[i - 1] != "--namespace")
            in (COMMANDS[program])
        ), words
        assert {word for word in own if word.startswith("-")} <= FLAGS, words
        if tail:
            binary, name, *options = tail
            assert binary == "/opt/gpumon/bin/gpumon"
            known = {option for item in cli.commands.commands[name].params for option in item.opts}
            assert {word for word in options if word.startswith("--")} <= known


def test_objects_are_called_as_the_chart_calls_them() -> None:
    rendered = objects({"otlpService": {"enabled": True}})
    assert f"daemonset/{one(rendered, 'DaemonSet')['metadata']['name']}" in TEXT
    services = {each["metadata"]["name"] for each in of_kind(rendered, "Service")}
    assert set(re.findall(r"\b(gpumon-\w+)\.gpumon:4317", TEXT)) <= services
    assert (ROOT / "deploy/helm/gpumon/Chart.yaml").exists()


def test_the_profiles_are_described_as_they_are() -> None:
    rows = dict(
        re.findall(
            r"^\| ([a-zA-Z ,]+?) \| ([^|]+\|[^|]+) \|$", TEXT.partition("## Two profiles")[2].partition("###")[0], re.M
        )
    )
    for number, name in enumerate(("metrics", "full")):
        pod = Pod.of_chart({"profile": name}).profile
        cells = {row: cell.split("|")[number].strip() for row, cell in rows.items()}
        assert (pod.user or "").startswith(f"{cells['user']}:")
        assert cells["hostPID"] == ("yes" if pod.host_pid else "no")
        told = cells["capabilities, of which all others are dropped"].replace("none", "")
        assert set(re.findall(r"[A-Z_]+", told)) == {item.upper() for item in pod.capabilities}


def test_the_configuration_can_be_checked_as_it_says(tmp_path: Path) -> None:
    (words,) = [words for words in commands() if words[0] == "sed"]
    script, target = words[1], words[-1]
    for config, code in (({"log": {"format": "json"}}, 0), ({"log": {"fromat": "json"}}, 2)):
        (rendered,) = of_kind(objects({"profile": "full", "config": config}), "ConfigMap")
        assert rendered["data"].keys() == {"gpumon.yaml"}
        with Chart.load(ROOT / "deploy/helm/gpumon") as chart:
            text = chart.render({"profile": "full", "config": config})["gpumon/templates/configmap.yaml"]
        done = subprocess.run(["sed", script], input=text, capture_output=True, text=True, check=True)
        (tmp_path / target).write_text(done.stdout)
        assert yaml.safe_load(done.stdout) == yaml.safe_load(rendered["data"]["gpumon.yaml"])
        assert cli.main(["config", "--config", str(tmp_path / target)]) == code


def test_what_profile_full_amounts_to_is_said_in_the_same_words_in_both_places() -> None:
    found = re.search(r"^\*\*Profile `full` is root on the node.*?(?=\n\n)", TEXT, re.M | re.S)
    assert found is not None
    assert found[0] in (ROOT / "SECURITY.md").read_text()


def test_files_that_it_links_to_are_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-")
        for line in TEXT.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= {heading.strip("-") for heading in headings}


def test_examples_of_platforms_keep_to_what_the_page_says() -> None:
    folder = ROOT / "deploy/helm/gpumon/ci"
    bottlerocket = yaml.safe_load((folder / "bottlerocket-values.yaml").read_text())
    assert bottlerocket["gpuAccess"] == "volumeMounts"
    assert bottlerocket["seLinuxOptions"]["type"] == "control_t"
    for name in ("bottlerocket", "nri"):
        assert yaml.safe_load((folder / f"{name}-values.yaml").read_text())["runtimeClassName"] == ""
    assert "cloud.google.com" not in "".join(path.read_text() for path in folder.iterdir())
