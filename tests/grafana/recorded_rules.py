"""Recording rules for the tests of PromQL, right ones and wrong ones."""

from __future__ import annotations

from grafana.promql_names import Recording

RECORDED = {
    "node:watts:sum": Recording(("sum by (cluster, node) (gpumon_gpu_power_watts)",), {}),
    "cluster:events:rate5m": Recording(
        (
            "sum by (cluster) (rate(gpumon_requests_total[5m]))",
            'sum by (cluster) (rate(gpumon_tokens_total{kind="prompt"}[5m]))',
        ),
        {"slo": ("errors", "tokens")},
    ),
    "cluster:ttft_bucket:rate5m": Recording(
        ("sum by (cluster, le) (rate(gpumon_request_time_to_first_token_seconds_bucket[5m]))",), {}
    ),
    "cluster:tokens:rate5m": Recording(("sum by (cluster, kind) (rate(gpumon_tokens_total[5m]))",), {}),
    "cluster:kinds:sum": Recording(('label_replace(cluster:tokens:rate5m, "kind", "x", "cluster", "a")',), {}),
    "a:ring:one": Recording(("a:ring:two",), {}),
    "a:ring:two": Recording(("a:ring:one",), {}),
    "a:wrong:one": Recording(("sum(",), {}),
}
TTFT = "gpumon_request_time_to_first_token_seconds"
