"""Which labels and which unit an expression has."""

from __future__ import annotations

import pytest

from grafana.promql import labels_of, unit_of
from grafana.promql_names import load_recorded
from grafana.promql_tree import PromqlError
from grafana.promql_units import COUNT, MOMENT, MOMENT_MS, PER_SECOND, SECONDS, SHARE, Unit
from tests.grafana.recorded_rules import RECORDED, TTFT


@pytest.mark.parametrize(
    ("expr", "labels"),
    [
        ("gpumon_requests_open", {"server", "model", "node", "cluster", "job", "instance"}),
        (f"{TTFT}_bucket", {"le", "server", "model", "node", "cluster", "job", "instance"}),
        ("sum(gpumon_requests_open)", set()),
        ("sum by (node, model) (gpumon_requests_open)", {"node", "model"}),
        ("sum without (server, job, instance) (gpumon_requests_open)", {"node", "model", "cluster"}),
        ("topk(3, sum by (node) (gpumon_requests_open))", {"node"}),
        ('count_values("version", sum by (node) (gpumon_requests_open))', {"version"}),
        ('count_values by (node) ("v", gpumon_requests_open)', {"node", "v"}),
        ("histogram_quantile(0.9, sum by (le, model) (rate(gpumon_kv_sync_seconds_bucket[5m])))", {"model"}),
        ("gpumon_gpu_present * on (uuid) gpumon_gpu_row_remap_pending", {"uuid"}),
        (
            "sum by (uuid, node) (gpumon_gpu_present) * on (uuid) group_left (name) gpumon_gpu_info",
            {"uuid", "node", "name"},
        ),
        (
            "gpumon_gpu_info * on (uuid) group_right (name) sum by (uuid, node) (gpumon_gpu_present)",
            {"uuid", "node", "name"},
        ),
        ("sum by (a1) (gpumon_requests_open) and on () up", {"a1"}),
        ("sum by (node) (up) or sum by (cluster) (up)", {"node", "cluster"}),
        ("sum by (node) (up) > bool 1", {"node"}),
        ("2 * sum by (node) (up)", {"node"}),
        ("sum by (node, job) (up) / ignoring (job) sum by (node) (up)", {"node"}),
        ('absent(up{job="gpumon", node=~"a.*"})', {"job"}),
        ("vector(1)", set()),
        ("scalar(up) + time()", set()),
        ("hour()", set()),
        ('label_replace(sum by (node) (up), "host", "$1", "node", "(.*)")', {"node", "host"}),
        ('label_replace(sum by (node) (up), "node", "", "", "")', set()),
        ('label_join(sum by (node) (up), "host", "-", "node")', {"node", "host"}),
        ("max_over_time(sum by (node) (up)[5m:])", {"node"}),
        ("round(sum by (node) (up), 0.1)", {"node"}),
        ("node:watts:sum", {"node", "cluster"}),
        ("cluster:events:rate5m", {"cluster", "slo"}),
        ("(-sum by (node) (up))", {"node"}),
    ],
)
def test_labels_of_an_expression(expr: str, labels: set[str]) -> None:
    assert labels_of(expr, RECORDED) == frozenset(labels)


@pytest.mark.parametrize("expr", ["ALERTS", "nothing", "a:ring:one", "a:wrong:one", "up or ALERTS", "ALERTS + up"])
def test_labels_that_cannot_be_known(expr: str) -> None:
    assert labels_of(expr, RECORDED) is None


WATTS, JOULES = Unit(joules=1, seconds=-1), Unit(joules=1)


@pytest.mark.parametrize(
    ("expr", "unit"),
    [
        ("gpumon_gpu_power_watts", WATTS),
        ("rate(gpumon_gpu_energy_joules_total[5m])", WATTS),
        ("increase(gpumon_gpu_energy_joules_total[5m])", JOULES),
        ("rate(gpumon_gpu_pcie_bytes_total[5m])", Unit(bytes=1, seconds=-1)),
        ("rate(gpumon_gpu_busy_seconds_total[5m])", SHARE),
        ("1 - avg(rate(gpumon_gpu_busy_seconds_total[5m]))", SHARE),
        ("sum(rate(gpumon_slow_token_seconds_total[5m]))", COUNT),
        ("rate(gpumon_tokens_total[5m])", PER_SECOND),
        ("sum(rate(gpumon_gpu_energy_joules_total[5m])) / sum(rate(gpumon_tokens_total[5m]))", JOULES),
        ("sum(rate(gpumon_requests_total[5m])) / sum(rate(gpumon_tokens_total[5m]))", COUNT),
        ("sum(rate(gpumon_kv_sync_seconds_sum[5m])) / sum(rate(gpumon_kv_sync_seconds_count[5m]))", SECONDS),
        ("rate(gpumon_token_excess_seconds_total[5m]) / rate(gpumon_requests_total[5m])", SECONDS),
        ("histogram_quantile(0.9, sum by (le) (rate(gpumon_kv_sync_seconds_bucket[5m])))", SECONDS),
        ("histogram_quantile(0.9, sum by (le) (rate(gpumon_gpu_power_sample_watts_bucket[5m])))", WATTS),
        ("histogram_quantile(0.9, cluster:ttft_bucket:rate5m)", SECONDS),
        ("rate(gpumon_kv_sync_seconds_bucket[5m])", PER_SECOND),
        ("gpumon_gpu_clock_hertz / on (uuid, domain) gpumon_gpu_clock_max_hertz", SHARE),
        ("gpumon_gpu_clock_hertz", Unit(hertz=1)),
        ("gpumon_gpu_temperature_celsius", Unit(celsius=1)),
        ("gpumon_gpu_sm_active_ratio * on (uuid) group_left (name) gpumon_gpu_info", SHARE),
        ("time() - gpumon_gpu_last_sample_timestamp_seconds", SECONDS),
        ("gpumon_gpu_last_sample_timestamp_seconds", MOMENT),
        ("gpumon_gpu_last_sample_timestamp_seconds + 60 * 1", MOMENT),
        ("1000 * gpumon_gpu_last_sample_timestamp_seconds", MOMENT_MS),
        ("gpumon_gpu_power_watts > bool 5", COUNT),
        ("gpumon_gpu_power_watts > 5", WATTS),
        ("5 < gpumon_gpu_power_watts", WATTS),
        ("count(gpumon_gpu_power_watts)", COUNT),
        ("sum_over_time(gpumon_gpu_power_watts[5m])", WATTS),
        ("quantile_over_time(0.5, gpumon_gpu_power_watts[5m])", WATTS),
        ("gpumon_gpu_power_watts and on (uuid) gpumon_gpu_present", WATTS),
        ("vector(0) or gpumon_gpu_power_watts", WATTS),
        ("max by (uuid) (gpumon_gpu_present) * 0 + on (uuid) max by (uuid) (gpumon_gpu_power_watts)", WATTS),
        ("-1 * gpumon_gpu_power_watts", WATTS),
        ("node:watts:sum", WATTS),
        ("cluster:events:rate5m", PER_SECOND),
        ("scrape_duration_seconds", SECONDS),
        ("gpumon_gpu_info", COUNT),
        ("1", COUNT),
    ],
)
def test_unit_of_an_expression(expr: str, unit: Unit) -> None:
    assert unit_of(expr, RECORDED) == unit


@pytest.mark.parametrize(
    "expr",
    [
        "1000 * gpumon_kv_sync_seconds_sum",
        "gpumon_gpu_clock_hertz / 1e6",
        "100 * gpumon_gpu_sm_active_ratio",
        "sqrt(gpumon_gpu_power_watts)",
        "gpumon_gpu_power_watts ^ 2",
        "stdvar(gpumon_gpu_power_watts)",
        "max(gpumon_gpu_power_watts) + max(gpumon_gpu_temperature_celsius)",
        "sum_over_time(gpumon_gpu_sm_active_ratio[5m])",
        "1 / gpumon_gpu_power_watts",
        "ALERTS",
        "a:ring:one",
        "a:wrong:one",
    ],
)
def test_unit_that_is_not_known(expr: str) -> None:
    assert unit_of(expr, RECORDED) is None


def test_labels_and_units_of_what_is_no_promql_are_an_error() -> None:
    with pytest.raises(PromqlError, match="parenthesis"):
        labels_of("sum(", {})
    with pytest.raises(PromqlError, match="parenthesis"):
        unit_of("sum(", {})


def test_recording_rules_of_the_repository_are_known() -> None:
    recorded = load_recorded()
    assert labels_of("cluster_model:gpumon_tokens:rate5m", recorded) == frozenset({"cluster", "model", "kind"})
    assert unit_of("node:gpumon_gpu_energy_joules:rate5m", recorded) == WATTS
