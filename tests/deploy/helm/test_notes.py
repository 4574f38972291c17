"""What is said after an installation: what this profile cannot see, and only that."""

from __future__ import annotations

from tests.deploy.helm.charts import VARIANTS, notes, values_of

NUMA = "on which NUMA node the memory of a process is"


def test_profile_metrics_says_what_full_would_see() -> None:
    text = notes({})
    assert "What it cannot see, and profile=full can:" in text
    for what in ("processes on a GPU", "which pod a GPU was given to", "on which GPUs a request ran", "kernel log"):
        assert what in text
    assert "privileged" not in text


def test_profile_full_says_what_it_cannot_see_and_what_it_needs() -> None:
    text = notes({"profile": "full"})
    assert NUMA in text
    assert "labels of pods: kubernetes.api" in text
    assert "pod-security.kubernetes.io/enforce=privileged" in text
    assert "names of pods that no device plugin" not in text
    assert "is root on their nodes" in text
    assert "is root on their nodes" not in notes({"profile": "full", "capabilities": []})


def test_what_is_switched_off_is_said_and_what_is_on_is_not() -> None:
    off = notes({"profile": "full", "kubernetes": {"podResources": "", "logFolder": False}})
    assert "which container was given which GPU: kubernetes.podResources" in off
    assert "names of pods that no device plugin gave a GPU" in off
    on = notes(
        {
            "profile": "full",
            "seccompProfile": {"type": "Unconfined"},
            "kubernetes": {"logFolder": False, "api": True, "labels": ["team"]},
        }
    )
    assert "names of pods" not in on
    assert "labels of pods" not in on
    assert NUMA not in on
    assert NUMA not in notes({"profile": "full", "config": {"numa": {"exact": True}}})


def test_the_nodes_that_are_needed_are_named() -> None:
    assert "nvidia.com/gpu.present=true" in notes({})
    assert "kubernetes.azure.com/accelerator=nvidia" in notes(values_of("overrides"))


def test_a_policy_that_stops_what_the_configuration_asks_for_is_mentioned() -> None:
    config = {"forward": {"endpoint": "http://collector:4317"}}
    hint = "networkPolicy.egress is empty"
    assert hint in notes({"networkPolicy": {"enabled": True}, "config": config})
    assert hint not in notes({"networkPolicy": {"enabled": True}})
    assert hint not in notes({"config": config})
    assert hint not in notes(values_of("full-locked"))


def test_where_traces_go_is_said_where_there_is_a_service() -> None:
    assert "gpumon-otlp.gpu-observability, port 4317 (gRPC) or 4318 (HTTP)" in notes(values_of("full"))
    assert "4317" not in notes({})


def test_they_are_for_a_terminal() -> None:
    for variant in VARIANTS:
        for line in notes(values_of(variant)).splitlines():
            assert len(line) <= 120
            assert line == line.rstrip()
