"""``gpumon metrics`` and ``config``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gpumon.catalogue import METRICS
from tests.command_line import Invoke


def test_metrics_lists_the_whole_catalogue(invoke: Invoke) -> None:
    code, out, err = invoke("metrics")
    assert (code, err) == (0, "")
    assert all(metric.name in out for metric in METRICS)
    assert out.startswith("IDENTITY\n")


def test_metrics_as_json_and_markdown(invoke: Invoke) -> None:
    assert len(json.loads(invoke("metrics", "--json")[1])) == len(METRICS)
    assert invoke("metrics", "--markdown")[1].startswith("# Metrics\n")


def test_config_prints_what_is_in_effect_and_it_can_be_loaded_again(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text("cadence: {fast_s: 0.2}\n")
    code, out, _ = invoke(
        "config", "--config", str(tmp_path / "in.yaml"), "--listen", "[::1]:0", "--log-level", "debug"
    )
    assert code == 0
    assert yaml.safe_load(out)["cadence"]["fast_s"] == 0.2
    (tmp_path / "out.yaml").write_text(out)
    assert invoke("config", "--config", str(tmp_path / "out.yaml")) == (0, out, "")


def test_config_as_markdown(invoke: Invoke) -> None:
    assert invoke("config", "--markdown")[1].startswith("# Configuration\n")


def test_the_environment_is_taken(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUMON_CADENCE__FAST_S", "0.25")
    assert yaml.safe_load(invoke("config")[1])["cadence"]["fast_s"] == 0.25
