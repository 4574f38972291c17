"""Fleet finds who needs somebody, keeps to the recording rules, and knows the objectives that alerts go by."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpumon.detect.detector import Severity
from gpumon.detect.xid import RECOVERY, XIDS
from grafana.asking import Span, fill
from grafana.boards import fleet, fleet_needs, fleet_rules, fleet_serving

SLO = Path(__file__).parents[2] / "deploy/prometheus/rules/gpumon-slo.yaml"
NEEDS = "Who needs somebody"
DAY_MIN = 24 * 60


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    """Titles of panels, and their queries."""
    for panel in json.loads(fleet.board().text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target


def needs() -> str:
    (expr,) = [target["expr"] for title, target in targets() if title == NEEDS]
    return fill(expr, Span(0, 3600, 15))


def ask(tmp_path: Path, series: dict[str, str], expr: str, at_min: int, expected: dict[str, float]) -> None:
    """Has promtool evaluate the expression over the series, one value a minute; ``expected`` is by labels."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{at_min}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


NODE = 'cluster="c",node="n"'
AT = f'{NODE},gpu="0",uuid="u"'


def problem(name: str, more: str = "", at: str = AT) -> str:
    return f'{{{at},problem="{name}",action="{name}"{more}}}'


@pytest.mark.parametrize(
    ("series", "row", "value"),
    [
        (f'gpumon_nvml_state{{{NODE},state="stuck"}} 1x3', problem("NVML stuck", ',state="stuck"', NODE), 1),
        (f'gpumon_gpu_xid_last_timestamp_seconds{{{AT},xid="79"}} 60x3', problem("XID 79", ',xid="79"'), 60),
        (f'gpumon_gpu_xid_last_timestamp_seconds{{{AT},xid="999"}} 60x3', problem("XID 999", ',xid="999"'), 60),
        (f"gpumon_gpu_recovery_action{{{AT}}} 2x3", problem("recovery action 2", ',number="2"'), 1),
        (
            f'gpumon_gpu_ecc_errors_total{{{AT},kind="uncorrected",scope="volatile"}} 0+3x2',
            problem("uncorrected memory errors"),
            6,
        ),
        (f"gpumon_gpu_row_remap_failed{{{AT}}} 1x3", problem("row remap failed"), 1),
        (f"gpumon_gpu_row_remap_pending{{{AT}}} 1x3", problem("row remap pending"), 1),
        (f"gpumon_gpu_retired_pages_pending{{{AT}}} 1x3", problem("page retirement pending"), 1),
        (f'up{{job="gpumon",{NODE}}} 0x3', problem("gpumon down", at=NODE), 0),
    ],
)
def test_each_fault_is_a_row(tmp_path: Path, series: str, row: str, value: float) -> None:
    name, values = series.rsplit(" ", 1)
    ask(tmp_path, {name: values}, needs(), 2, {row: value})


def test_a_memory_error_is_a_row_for_a_day(tmp_path: Path) -> None:
    series = {f'gpumon_gpu_ecc_errors_total{{{AT},kind="uncorrected",scope="volatile"}}': f"0x60 1x{2 * DAY_MIN}"}
    count = f"{needs()} > bool 0"
    row = problem("uncorrected memory errors")
    ask(tmp_path, series, count, 60 + 20, {row: 1})
    ask(tmp_path, series, count, 60 + DAY_MIN - 20, {row: 1})
    ask(tmp_path, series, count, 60 + DAY_MIN + 20, {})


def test_a_gpu_that_nvml_misses_is_a_row_of_its_node(tmp_path: Path) -> None:
    counts = {f'gpumon_gpus{{{NODE},state="expected"}}': "8x3", f'gpumon_gpus{{{NODE},state="present"}}': "7x3"}
    ask(tmp_path, counts, needs(), 2, {problem("GPUs missing", at=NODE): 8})


def test_gpus_are_lost_one_by_one_and_not_with_the_whole_of_nvml(tmp_path: Path) -> None:
    gone = {f"gpumon_gpu_present{{{AT}}}": "0x3"}
    there = {f'gpumon_nvml_state{{{NODE},state="running"}}': "1x3"}
    away = {
        f'gpumon_nvml_state{{{NODE},state="running"}}': "0x3",
        f'gpumon_nvml_state{{{NODE},state="unavailable"}}': "1x3",
    }
    ask(tmp_path, gone | there, needs(), 2, {problem("GPU lost"): 0})
    ask(tmp_path, gone | away, needs(), 2, {problem("NVML unavailable", ',state="unavailable"', NODE): 1})


def test_a_healthy_node_is_no_row(tmp_path: Path) -> None:
    xid = "gpumon_gpu_xid_last_timestamp_seconds"
    series = {
        f'up{{job="gpumon",{NODE}}}': f"1x{DAY_MIN + 10}",
        f'up{{job="other",{NODE}}}': f"0x{DAY_MIN + 10}",
        f"gpumon_gpu_present{{{AT}}}": f"1x{DAY_MIN + 10}",
        f'{xid}{{{AT},xid="31"}}': f"{DAY_MIN * 60}x{DAY_MIN + 10}",  # an application's
        f'{xid}{{{AT},xid="79"}}': f"60x{DAY_MIN + 10}",  # of more than a day ago
        f'gpumon_nvml_state{{{NODE},state="running"}}': f"1x{DAY_MIN + 10}",
        f'gpumon_nvml_state{{{NODE},state="stuck"}}': f"0x{DAY_MIN + 10}",
        f"gpumon_gpu_recovery_action{{{AT}}}": f"0x{DAY_MIN + 10}",
        f'gpumon_gpu_ecc_errors_total{{{AT},kind="uncorrected",scope="volatile"}}': f"2x{DAY_MIN + 10}",  # long ago
        f'gpumon_gpu_ecc_errors_total{{{AT},kind="corrected",scope="volatile"}}': f"0+9x{DAY_MIN + 10}",
        f"gpumon_gpu_row_remap_failed{{{AT}}}": f"0x{DAY_MIN + 10}",
        f'gpumon_gpus{{{NODE},state="expected"}}': f"8x{DAY_MIN + 10}",
        f'gpumon_gpus{{{NODE},state="present"}}': f"8x{DAY_MIN + 10}",
    }
    ask(tmp_path, series, needs(), DAY_MIN + 5, {})


def test_what_to_do_is_said_of_every_grave_xid_and_every_recovery_action() -> None:
    grave = {f"XID {number}" for number, xid in XIDS.items() if xid.severity is not Severity.INFO}
    assert {"NVML unavailable", "NVML stuck"} <= set(fleet_needs.REMEDIES)
    assert grave | {f"recovery action {number}" for number in RECOVERY} <= set(fleet_needs.REMEDIES)


def test_what_is_asked_over_time_is_recorded_and_does_not_grow_with_nodes() -> None:
    for title, target in targets():
        if not target.get("instant"):
            raw = re.findall(r"(?<![\w:])(?:gpumon_\w+|node\w*:\S+?)\{[^}]*\}(?! @ end\(\))", target["expr"])
            assert not raw, f"{title} asks every node at every step: {raw}"


def test_a_recorded_rate_comes_to_what_it_grew_by_and_gaps_count_as_nothing(tmp_path: Path) -> None:
    rate = f"node:gpumon_token_excess_seconds:rate5m{{{NODE}}}"
    lost = fill(fleet_rules.total(fleet_rules.by_node("node:gpumon_token_excess_seconds:rate5m")), Span(0, 1800, 15))
    ten_minutes_then_gone = "2x9 stale _x20"
    ask(tmp_path, {rate: ten_minutes_then_gone}, lost, 30, {f"{{{NODE}}}": 2 * 600})


def test_the_objectives_are_those_that_alerts_go_by() -> None:
    rules = [rule for group in yaml.safe_load(SLO.read_text())["groups"] for rule in group["rules"]]
    bounds = {
        rule["labels"]["slo"]: float(bound)
        for rule in rules
        if rule.get("record") == "cluster_model:gpumon_slo_bad_events:rate5m"
        for bound in re.findall(r'le="([^"]+)"', rule["expr"])
    }
    assert bounds == {"first_token": fleet_serving.FIRST_TOKEN_S, "inter_token": fleet_serving.INTER_TOKEN_S}
