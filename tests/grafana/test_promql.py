"""Checks of PromQL: for each of them queries that are wrong and queries that look like them and are right."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.catalogue import METRICS
from gpumon.export.text import number
from gpumon.model import Kind, Metric
from grafana.promql import check, problems
from grafana.promql_checks import CHECKS
from grafana.promql_names import Recording, recorded_of
from grafana.promql_tree import names_in, substitute
from tests.grafana.recorded_rules import RECORDED, TTFT

BAD = (
    ("target-promql", "sum(", "parenthesis"),
    ("target-promql", "", "no expression"),
    ("target-promql", "(" * 5000 + "1" + ")" * 5000, "nested"),
    ("target-promql", "1+" * 5000 + "1", "nested"),
    ("metric-in-catalogue", "gpumon_gpu_powr_watts", "there is no gpumon_gpu_powr_watts"),
    ("metric-in-catalogue", "DCGM_FI_DEV_XID_ERRORS > 0", "there is no DCGM"),
    ("metric-in-catalogue", f"rate({TTFT}[5m])", "name its _bucket"),
    ("metric-in-catalogue", "gpumon_gpu_power_watts_sum", "there is no"),
    ("metric-in-catalogue", "node:watts:max", "neither in the catalogue nor recorded"),
    ("metric-in-catalogue", '{__name__=~"gpumon_.*"}', "must name one metric"),
    ("target-counter-agg", "gpumon_gpu_energy_joules_total", "is a counter"),
    ("target-counter-agg", 'gpumon_gpu_energy_joules_total{gpu="0"} > 5', "is a counter"),
    ("target-counter-agg", "sum(gpumon_requests_total)", "is a counter"),
    ("target-counter-agg", f"{TTFT}_bucket", "is a counter"),
    ("target-counter-agg", "gpumon_gpu_energy_joules_total / gpumon_gpu_power_watts", "is a counter"),
    ("target-counter-agg", "gpumon_requests_total unless gpumon_requests_total", "is a counter"),
    ("target-counter-agg", "gpumon_requests_total unless gpumon_tokens_total offset 5m", "is a counter"),
    ("promql-function", "rate(gpumon_gpu_power_watts[5m])", "no counter"),
    ("promql-function", "increase(gpumon_gpu_xid_last_timestamp_seconds[5m])", "no counter"),
    ("promql-function", "rate(node:watts:sum[5m])", "recorded and no counter"),
    ("promql-function", "rate(sum(gpumon_requests_total)[5m:])", "of an expression"),
    ("promql-function", "max_over_time(gpumon_requests_total[5m])", "is a counter"),
    ("promql-function", "delta(gpumon_requests_total[5m])", "is a counter"),
    ("promql-function", f"avg_over_time({TTFT}_sum[5m])", "is a counter"),
    ("promql-function", "quantile_over_time(0.9, gpumon_requests_total[5m])", "is a counter"),
    ("promql-function", "deriv(gpumon_gpu_info[5m])", "no slope"),
    ("promql-function", "deriv(gpumon_gpu_last_sample_timestamp_seconds[5m])", "no slope"),
    ("promql-labels", 'gpumon_gpu_power_watts{server="a"}', "has no label server"),
    ("promql-labels", 'node:watts:sum{gpu="0"}', "has no label gpu"),
    ("promql-labels", "sum by (model) (gpumon_gpu_power_watts)", "what sum is of has no label model"),
    ("promql-labels", "sum without (reason) (gpumon_gpu_power_watts)", "what sum is of has no label reason"),
    ("promql-labels", "sum by (uuid) (sum by (node) (gpumon_gpu_power_watts))", "no label uuid"),
    ("promql-labels", "max by (gpu) (node:watts:sum)", "no label gpu"),
    ("promql-labels", "up * on (uuid) group_left gpumon_gpu_present", "the left side of * has no label uuid"),
    (
        "promql-labels",
        "gpumon_gpu_sm_active_ratio * on (uuid) group_left (nam) gpumon_gpu_info",
        "the one side of * has no label nam",
    ),
    ("promql-labels", 'label_replace(up, "a", "$1", "gpu", "(.*)")', "what label_replace is of has no label gpu"),
    ("promql-labels", 'label_join(up, "a", "-", "node", "gpu")', "what label_join is of has no label gpu"),
    ("promql-labels", "up and ignoring (reson) up", "either side of and has no label reson"),
    ("promql-values", 'gpumon_gpus{state="los"}', "has no state='los': expected, present, lost"),
    ("promql-values", 'gpumon_gpus{state!="los"}', "has no state='los'"),
    ("promql-values", 'gpumon_gpu_throttle_active{reason=~"hw_thermal|sw_termal"}', "'sw_termal'"),
    ("promql-values", 'gpumon_incident_active{kind="page_faults"}', "has no kind='page_faults'"),
    ("promql-values", f'rate({TTFT}_bucket{{le="1"}}[5m])', "has no le='1'"),
    ("promql-values", f'rate({TTFT}_bucket{{le="3.0"}}[5m])', "has no le='3.0'"),
    ("promql-values", 'cluster:events:rate5m{slo="error"}', "has no slo='error': errors, tokens"),
    ("promql-values", 'cluster:tokens:rate5m{kind="made"}', "has no kind='made'"),
    ("promql-values", 'cluster:ttft_bucket:rate5m{le="3"}', "has no le='3'"),
    ("promql-histogram", f"histogram_quantile(0.9, sum by (model) (rate({TTFT}_bucket[5m])))", "no label le"),
    ("promql-histogram", "histogram_quantile(0.9, node:watts:sum)", "are no buckets"),
    ("promql-histogram", f"sum by (model) (rate({TTFT}_bucket[5m]))", "sum over le"),
    ("promql-match", "gpumon_gpu_power_watts / gpumon_gpu_present", "the right has no kind"),
    ("promql-match", "up and gpumon_gpu_present", "the left has no gpu, uuid"),
    ("promql-match", "gpumon_gpu_clock_hertz - ignoring (gpu) gpumon_gpu_present", "the right has no domain"),
    ("promql-match", 'gpumon_gpus{state="lost"} / gpumon_gpus{state="present"}', "never matches: state"),
    ("promql-match", "gpumon_gpu_power_watts / on (uuid) gpumon_gpu_present", "several series of the left"),
    ("promql-match", "up * on (node) group_left gpumon_state_folder_ok", "several series of the right"),
    ("promql-match", "sum by (kind) (gpumon_incident_active) or vector(0)", "without labels"),
    ("promql-units", "gpumon_gpu_power_watts + on () vector(1) > gpumon_gpu_temperature_celsius", "different units"),
    ("promql-units", "max(gpumon_gpu_power_watts) - max(gpumon_gpu_temperature_celsius)", "s^-1 J - degrees C"),
    ("promql-units", "time() - max(gpumon_gpu_power_watts)", "different units"),
)

GOOD = (
    "rate(gpumon_gpu_energy_joules_total[$__rate_interval])",
    'sum by (le) (increase(gpumon_decode_step_seconds_bucket{node=~"$node"}[$__rate_interval]))',
    "histogram_quantile(0.99, sum by (le, context) (rate(gpumon_inter_token_latency_by_context_seconds_bucket[5m])))",
    'histogram_quantile(0.99, sum by (le) (rate(gpumon_kv_sync_seconds_bucket{node=~"${node:regex}"}[$__interval])))',
    "histogram_quantile(0.99, cluster:ttft_bucket:rate5m)",
    f'sum by (model) (rate({TTFT}_bucket{{le="2.5"}}[5m])) / sum by (model) (rate({TTFT}_count[5m]))',
    "max_over_time(rate(gpumon_requests_total[5m])[1h:1m])",
    "rate(gpumon_requests_total[5m:15s])",
    "count(gpumon_requests_total) + group(gpumon_requests_total)",
    "absent(gpumon_requests_total)",
    "absent_over_time(gpumon_requests_total[5m])",
    "up and on (node) gpumon_requests_total",
    "gpumon_gpu_xid_errors_total unless gpumon_gpu_xid_errors_total offset 10m",
    "changes(gpumon_requests_total[5m]) + resets(gpumon_requests_total[5m])",
    "deriv(gpumon_gpu_temperature_celsius[5m])",
    "max_over_time(gpumon_gpu_last_sample_timestamp_seconds[5m])",
    "time() - gpumon_gpu_last_sample_timestamp_seconds > 60",
    'gpumon_gpus{state="expected"} - ignoring (state) gpumon_gpus{state="present"}',
    'gpumon_gpus{state=""}',
    'gpumon_gpus{state="$state"}',
    'cluster:tokens:rate5m{kind="completion"}',
    'cluster:kinds:sum{kind="x"}',
    'gpumon_gpus{state=~"l.*"}',
    "(gpumon_gpu_sm_active_ratio) * on (uuid) group_left (name) gpumon_gpu_info",
    "gpumon_gpu_sm_active_ratio * on (cluster, node, gpu) group_left (name) gpumon_gpu_info",
    "gpumon_gpu_present and on (node, cluster) (up == 1)",
    "sum without (gpu, uuid, pod, endpoint) (gpumon_gpu_present)",
    "sum without (kind) (gpumon_gpu_power_watts) * 0 + on (uuid) sum without (sensor) (gpumon_gpu_temperature_celsius)",
    "topk(3, sum by (node) (gpumon_requests_open))",
    "sum(gpumon_requests_open) or vector(0)",
    'count(ALERTS{alertstate="firing", severity="critical"})',
    "1 - avg(rate(gpumon_gpu_busy_seconds_total[5m]))",
    "scrape_duration_seconds > 1",
    "gpumon_gpu_power_watts offset $__range",
)


@pytest.mark.parametrize(("rule", "expr", "words"), BAD, ids=[f"{rule}: {expr:.60}" for rule, expr, _ in BAD])
def test_wrong_query_is_told_by_its_rule(rule: str, expr: str, words: str) -> None:
    assert [problem for problem in problems(expr, RECORDED) if problem.rule == rule and words in problem.text]


@pytest.mark.parametrize("expr", GOOD)
def test_right_query_has_no_problem(expr: str) -> None:
    assert check(expr, RECORDED) == []


def test_every_check_has_a_wrong_query() -> None:
    assert {rule for rule, _, _ in BAD} == {"target-promql", *(name for name, _ in CHECKS)}


def test_each_problem_is_told_once() -> None:
    assert check("gpumon_nothing + gpumon_nothing", {}) == [
        "there is no gpumon_nothing: neither in the catalogue nor recorded"
    ]


_PIECES = st.sampled_from(
    [
        *(
            "sum",
            "rate",
            "(",
            ")",
            "[5m]",
            "[5m:1m]",
            "{",
            "}",
            " by (le) ",
            " on (uuid) ",
            "group_left (name)",
            "+",
            "/",
        ),
        *("gpumon_gpu_info", "gpumon_requests_total", f"{TTFT}_bucket", '{kind="x"}', " offset 5m", "$node", "${a:b}"),
        *(" and ", " unless ", "a:ring:one", "a:wrong:one", "histogram_quantile(0.9, ", "0", "1e400", '"', "@ end()"),
        *('label_replace(up, "a", "", "", "")', "absent(up)", "topk(1,", ",", "-", " == bool ", "vector(1)", "ALERTS"),
    ]
)


@settings(deadline=None)
@given(st.text() | st.lists(_PIECES, max_size=30).map("".join))
def test_check_never_raises(expr: str) -> None:
    assert all(isinstance(text, str) for text in check(expr, RECORDED))


@settings(max_examples=20, deadline=None)
@given(st.integers(min_value=0, max_value=5000), st.sampled_from(["-", "x or ", "1+", "(", "sum(", "x{"]))
def test_check_never_raises_however_long_the_query(times: int, piece: str) -> None:
    assert isinstance(check(piece * times + "x", RECORDED), list)


def test_variables_are_filled_in_and_named() -> None:
    expr = 'rate(a{b=~"$b",c="${c:regex}"}[$__rate_interval]) * $__range_s or x[$__interval] # $1 $2'
    assert substitute(expr) == 'rate(a{b=~"any_value",c="any_value"}[253s]) * 3659 or x[17s] # $1 $2'
    assert names_in(expr) == ["b", "c", "__rate_interval", "__range_s", "__interval"]


def test_rules_of_one_name_are_put_together() -> None:
    rules: list[dict[str, object]] = [
        {"record": "a:b:c", "expr": "up", "labels": {"slo": "x"}},
        {"alert": "Any", "expr": "up == 0"},
        {"record": "a:b:c", "expr": "up", "labels": {"slo": "y"}},
    ]
    assert recorded_of(rules) == {"a:b:c": Recording(("up", "up"), {"slo": ("x", "y")})}


def _plain(name: str, kind: Kind) -> str:
    if kind is Kind.COUNTER:
        return f"rate({name}[5m])"
    return f"rate({name}_count[5m])" if kind is Kind.HISTOGRAM else name


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_family_can_be_asked_by_every_label_and_value(metric: Metric) -> None:
    assert check(_plain(f"{metric.name}", metric.kind), {}) == []
    for value in metric.values:
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        if metric.kind is Kind.GAUGE:
            assert check(f'{metric.name}{{{metric.labels[-1]}="{quoted}"}}', {}) == []
    for bound in metric.bounds:
        assert check(f'rate({metric.name}_bucket{{le="{number(bound)}"}}[5m])', {}) == []
