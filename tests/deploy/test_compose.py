"""The demo in containers, and the same Prometheus without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy/compose"


def read(name: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def services() -> dict[str, dict[str, Any]]:
    found = read("docker-compose.yml")["services"]
    assert isinstance(found, dict)
    return found


def test_prometheus_without_docker_differs_in_addresses_alone() -> None:
    contained, local = read("prometheus.yml"), read("prometheus-local.yml")
    for each in (contained, local):
        (job,) = each["scrape_configs"]
        (static,) = job["static_configs"]
        del static["targets"], each["rule_files"]
        static["labels"].pop("instance", None)
    del contained["alerting"]
    assert local == contained


def test_rules_of_prometheus_without_docker_are_there() -> None:
    (pattern,) = read("prometheus-local.yml")["rule_files"]
    assert len(list(FOLDER.glob(pattern))) == 6


def test_the_page_that_an_alert_links_can_be_opened_on_the_machine_itself() -> None:
    """The rules take the address from the label instance; the name in the containers' network is nobody else's."""
    (job,) = read("prometheus.yml")["scrape_configs"]
    (static,) = job["static_configs"]
    host, _, port = static["labels"]["instance"].partition(":")
    assert host == "localhost"
    assert f"127.0.0.1:{port}:9450" in services()["gpumon"]["ports"]


def test_nobody_outside_the_machine_reaches_the_demo() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_is_kept_in_memory_is_bounded() -> None:
    kept = [each for service in services().values() for each in service.get("tmpfs", [])]
    assert kept
    assert all("size=" in each.partition(":")[2] for each in kept)


def test_recordings_are_where_a_command_in_the_container_looks_for_them() -> None:
    gpumon = services()["gpumon"]
    folder = gpumon["environment"]["GPUMON_STATE__FOLDER"]
    assert any(each.partition(":")[0] == folder for each in gpumon["tmpfs"])
