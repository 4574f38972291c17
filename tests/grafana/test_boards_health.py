"""Health names each node on which something of gpumon is wrong, and nothing on one that is well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpumon.catalogue import FORWARD_DROPPED, NVML_STATE, OTLP_REQUESTS
from grafana.boards import health
from tests.grafana.evaluation import check, expr_of, growing, steady

NODE = 'cluster="c", node="n"'
UP = f'up{{{NODE}, job="gpumon"}}'
WRONG = "What is wrong"
WELL = {
    UP: steady(1),
    f'gpumon_source_up{{{NODE}, source="host"}}': steady(1),
    f'gpumon_gpus{{{NODE}, state="lost"}}': steady(0),
    f'gpumon_nvml_state{{{NODE}, state="running"}}': steady(1),
    f'gpumon_nvml_state{{{NODE}, state="stuck"}}': steady(0),
    f"gpumon_config_last_reload_successful{{{NODE}}}": steady(1),
    f"gpumon_state_folder_ok{{{NODE}}}": steady(1),
    f"gpumon_forward_up{{{NODE}}}": steady(1),
    f'gpumon_series_dropped_total{{{NODE}, reason="budget"}}': steady(7),
    f'gpumon_otlp_requests_total{{{NODE}, transport="http", signal="traces", outcome="ok"}}': growing(3),
    f'gpumon_forward_dropped_total{{{NODE}, signal="traces", reason="tail_policy"}}': growing(3),
}


def rows(*told: tuple[str, str, float]) -> dict[str, float]:
    """Rows of the table: what, its label if it has one, and how many; whatever the words are."""
    expr = expr_of(health.board(), WRONG)
    found = {}
    for what, label, count in told:
        value = re.fullmatch(r'\w+="(.*)"', label)
        shown = what.replace(value[1], "$1") if value else what
        (why,) = re.findall(rf'"what", "{re.escape(shown)}", "\w*", "[^"]*"\), "why", "([^"]+)"', expr)
        labels = ", ".join(part for part in (NODE, f'what="{what}"', f'why="{why}"', label) if part)
        found[f"{{{labels}}}"] = count
    return found


def test_nothing_is_wrong_with_a_node_that_is_well(tmp_path: Path) -> None:
    check(tmp_path, expr_of(health.board(), WRONG), WELL, {})


@pytest.mark.parametrize(
    ("series", "values", "what", "label", "count"),
    [
        (UP, steady(0), "gpumon", "", 1),
        (f'gpumon_source_up{{{NODE}, source="host"}}', steady(0), "source host", 'source="host"', 1),
        (f'gpumon_nvml_state{{{NODE}, state="stuck"}}', steady(1), "NVML stuck", 'state="stuck"', 1),
        (f'gpumon_nvml_error_info{{{NODE}, code="DRIVER"}}', steady(1), "NVML says DRIVER", 'code="DRIVER"', 1),
        (f'gpumon_gpus{{{NODE}, state="lost"}}', steady(2), "GPUs lost", "", 2),
        (f"gpumon_config_last_reload_successful{{{NODE}}}", steady(0), "configuration", "", 1),
        (f"gpumon_state_folder_ok{{{NODE}}}", steady(0), "state folder", "", 1),
        (f"gpumon_flight_recorder_ok{{{NODE}}}", steady(0), "flight recorder", "", 1),
        (f"gpumon_forward_up{{{NODE}}}", steady(0), "forwarding", "", 1),
        (f"gpumon_forward_spool_ok{{{NODE}}}", steady(0), "spool", "", 1),
    ],
)
def test_what_is_down_is_named(tmp_path: Path, series: str, values: str, what: str, label: str, count: float) -> None:
    check(tmp_path, expr_of(health.board(), WRONG), WELL | {series: values}, rows((what, label, count)))


@pytest.mark.parametrize(
    ("name", "label", "what"),
    [
        ("sampler_restarts_total", 'reason="stuck"', "sampler restarted: stuck"),
        ("series_dropped_total", 'reason="budget"', "series left out: budget"),
        ("detector_failures_total", 'detector="xid"', "detector xid"),
        ("otlp_requests_total", 'outcome="overload"', "traces refused: overload"),
        ("forward_dropped_total", 'reason="queue_full"', "not forwarded: queue_full"),
    ],
)
def test_what_failed_in_this_time_is_counted(tmp_path: Path, name: str, label: str, what: str) -> None:
    series = {f"gpumon_{name}{{{NODE}, {label}}}": growing(0.1)}
    check(tmp_path, expr_of(health.board(), WRONG), series | {UP: steady(1)}, rows((what, label, 60)))


def test_where_there_is_no_target_at_all_that_is_what_is_wrong(tmp_path: Path) -> None:
    expr = expr_of(health.board(), WRONG)
    (why,) = re.findall(r'"no target", "", ""\), "why", "([^"]+)"', expr)
    check(tmp_path, expr, {}, {f'{{node="none", what="no target", why="{why}"}}': 1})


def test_outcomes_that_lose_something_are_all_looked_at() -> None:
    """A new state, outcome or reason of the catalogue is one that somebody has to think of here."""
    assert set(NVML_STATE.values) == {"starting", "running", "unavailable", "released", "stuck"}
    assert {"ok", "partial"} < set(OTLP_REQUESTS.values)
    assert set(health.NOT_LOST) < set(FORWARD_DROPPED.values)


def test_nodes_that_do_not_answer_are_counted_and_not_added_to_those_that_do(tmp_path: Path) -> None:
    nodes = {"a": 1, "b": 0, "c": 1}
    series = {f'up{{cluster="c", node="{name}", job="gpumon"}}': steady(value) for name, value in nodes.items()}
    check(tmp_path, expr_of(health.board(), "Nodes whose gpumon answers"), series, {"{}": 2})
    check(tmp_path, expr_of(health.board(), "Nodes that do not answer"), series, {"{}": 1})


def test_the_age_of_nvml_is_no_age_of_a_source(tmp_path: Path) -> None:
    name = "gpumon_source_last_success_timestamp_seconds"
    series = {f'{name}{{{NODE}, source="{source}"}}': steady(at) for source, at in {"nvml": 0, "host": 599}.items()}
    check(tmp_path, expr_of(health.board(), "Since the last success"), series, {'{source="host"}': 1})


def test_coverage_counts_the_time_of_all_bound_states_of_the_worst_gpus(tmp_path: Path) -> None:
    series = {
        f'gpumon_gpu_bound_seconds_total{{{NODE}, gpu="{index}", uuid="u{index}", state="{state}"}}': growing(
            0.5 if index else 0.3
        )
        for index in range(12)
        for state in ("memory", "idle")
    }
    worst = f"sum({expr_of(health.board(), 'Time covered by samples')})"
    check(tmp_path, worst, series, {"{}": 0.6 + 9})


def test_a_functions_mean_time_is_of_its_own_calls(tmp_path: Path) -> None:
    series = {}
    for call, (calls, seconds) in {"fast": (10, 0.1), "slow": (2, 3.0), "unused": (0, 0)}.items():
        labels = f'{{{NODE}, call="{call}"}}'
        series[f"gpumon_nvml_call_seconds_count{labels}"] = growing(calls)
        series[f"gpumon_nvml_call_seconds_sum{labels}"] = growing(seconds)
    means = {'{call="fast"}': 0.01, '{call="slow"}': 1.5}
    check(tmp_path, expr_of(health.board(), "NVML calls in this time", "B"), series, means)
