"""The rules that Prometheus loads: promtool takes them, their unit tests pass, and those leave nothing out."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

_FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = sorted((_FOLDER / "rules").glob("*.yaml"))
TESTS = sorted((_FOLDER / "tests").glob("*.yaml"))


def _rules() -> Iterator[dict[str, Any]]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def _checks(kind: str) -> Iterator[dict[str, Any]]:
    """Of all unit tests: ``alert_rule_test`` or ``promql_expr_test``."""
    for path in TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            yield from test.get(kind, [])


RECORDED = sorted({rule["record"] for rule in _rules() if "record" in rule})
ALERTS = sorted({rule["alert"] for rule in _rules() if "alert" in rule})


def _promtool(*arguments: str | Path, cwd: Path = _FOLDER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_promtool_takes_all_rules() -> None:
    checked = _promtool("check", "rules", *RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_unit_tests_of_rules_pass(path: Path) -> None:
    tested = _promtool("test", "rules", path.name, cwd=path.parent)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_no_unit_test_checks_nothing(path: Path) -> None:
    for test in yaml.safe_load(path.read_text())["tests"]:
        assert test.get("alert_rule_test") or test.get("promql_expr_test"), test.get("name")


@pytest.mark.parametrize("name", RECORDED)
def test_the_value_of_every_recording_rule_is_checked(name: str) -> None:
    with_values = [check["expr"] for check in _checks("promql_expr_test") if check.get("exp_samples")]
    assert any(re.search(rf"(?<![\w:]){name}(?![\w:])", expr) for expr in with_values)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_is_seen_to_fire_and_to_stay_silent(name: str) -> None:
    expected = [check.get("exp_alerts") or [] for check in _checks("alert_rule_test") if check["alertname"] == name]
    assert any(expected), "no unit test in which it fires"
    assert not all(expected), "no unit test in which it stays silent"


def test_unit_tests_are_of_alerts_that_there_are() -> None:
    """Promtool expects no alert of a name that no rule has, and gets none."""
    assert {check["alertname"] for check in _checks("alert_rule_test")} <= set(ALERTS)
