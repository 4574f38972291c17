"""What users of the fleet got: where they lost time and by what, tokens and latencies against the objectives."""

from __future__ import annotations

from grafana_foundation_sdk.builders import table, timeseries
from grafana_foundation_sdk.models import dashboard as model

from gpumon import catalogue as c
from gpumon.explain.causes import UNEXPLAINED
from grafana import columns
from grafana import panels as p
from grafana import queries as q
from grafana.boards.explain_words import MEANINGS
from grafana.boards.fleet_rules import EVER, MADE, NO_RULES, by_cluster, by_model, of_cluster, total
from grafana.kit import Board
from grafana.queries import Query

FIRST_TOKEN_S, INTER_TOKEN_S = 2.5, 0.1
"""The objectives of deploy/prometheus/rules/gpumon-slo.yaml."""
_LOST = "cluster_model:gpumon_slow_token_seconds:rate5m"
_EXCESS = "cluster_model:gpumon_token_excess_seconds:rate5m"
_UNKNOWN = f'cause="{UNEXPLAINED}"'
_NOTHING_LATE = "nothing was late, or nothing was explained"


def rows(made: Board) -> None:
    """The rows."""
    _causes(made)
    _latency(made)


def _over_time() -> timeseries.Panel:
    lost = by_model(_LOST)
    panel = p.graph(
        "Slow-token seconds by cause",
        "Seconds lost each second over all requests of the clusters. Grey is what nothing explains: where it is wide, the "
        "rest is worth less. Causes that never occurred are left out.",
        Query(f"sum by (cause) ({lost}) and sum by (cause) (max_over_time({lost}{EVER})) > 0", "{{cause}}"),
        unit="short",
        stacked=True,
        empty=_NOTHING_LATE,
    )
    grey = {"mode": "fixed", "fixedColor": "#8e8e8e"}
    panel.axis_label("s lost per s")
    return panel.override_by_name(UNEXPLAINED, [model.DynamicConfigValue(id_val="color", value=grey)])


def _ranking() -> table.Panel:
    lost = f"sum by (cause) ({total(by_model(_LOST))})"
    panel = p.rows(
        "Causes, the dearest first",
        "Over the time shown. Begin with the first fault: load grows behind one, and the queue of many users outweighs what "
        "caused it. Explain has the same for one node or model, with what to do.",
        Query(q.copied(f"{lost} > 0", "cause", "meaning")),
        Query(q.copied(f"{lost} / scalar(sum({total(by_model(_LOST))})) > 0", "cause", "meaning")),
        order=("cause", "Value #A", "Value #B", "meaning"),
        rename={"cause": "Cause", "Value #A": "Lost", "Value #B": "Of all lost", "meaning": "What it is"},
        units={"Lost": "s", "Of all lost": "percentunit"},
        ranked_by="Value #A",
        empty=_NOTHING_LATE,
    )
    columns.telling(panel, "What it is", MEANINGS)
    for heading, pixels in (("Cause", 160), ("Lost", 90), ("Of all lost", 90)):
        columns.wide(panel, heading, pixels)
    return panel


def _by_model() -> table.Panel:
    excess = f"sum by (cluster, model) ({by_model(_EXCESS)})"
    requests = f"sum by (cluster, model) ({by_model('cluster_model:gpumon_requests:rate5m')})"
    late, spent = (
        f"sum by (cluster, model) (increase({selector}[5m]))"
        for selector in (of_cluster(c.TOKEN_EXCESS), of_cluster(c.REQUEST_DURATION, suffix="_sum"))
    )
    unknown = f"sum by (cluster, model) ({by_model(_LOST, _UNKNOWN)})"
    return p.rows(
        "Late by model, in the last five minutes",
        "Share of request time: of all the time that requests took, how much came on top of what is usual. It compares "
        "models of different traffic, which seconds do not. Unexplained: of what was lost.",
        Query(f"{late} / ({spent} > 0)"),
        Query(f"{excess} / ({requests} > 0)"),
        Query(f"{unknown} / ({excess} > 0)"),
        Query(excess),
        order=("cluster", "model", "Value #A", "Value #B", "Value #D", "Value #C"),
        rename={
            "cluster": "Cluster",
            "model": "Model",
            "Value #A": "Of request time",
            "Value #B": "For each request",
            "Value #D": "Lost per second",
            "Value #C": "Unexplained",
        },
        units={"Of request time": "percentunit", "For each request": "s", "Unexplained": "percentunit"},
        ranked_by="Value #A",
        empty=_NOTHING_LATE,
    )


def _causes(made: Board) -> None:
    made.row("Where slow-token seconds went", (12, _over_time()), (12, _ranking()), height=10)
    made.add((12, _by_model()), (12, _budgets()), height=8)


def _budgets() -> table.Panel:
    def burnt(window: str) -> Query:
        ratio = by_model(f"cluster_model:gpumon_slo_bad_events:ratio{window}")
        return Query(f"sum by (cluster, model, slo) ({ratio} / on (slo) group_left () slo:gpumon_slo_budget:ratio)")

    windows = ("5m", "1h", "6h", "3d")
    values = [f"Value #{letter}" for letter in "ABCD"]
    headings = [f"Last {window}" for window in windows]
    panel = p.rows(
        "Error budgets, how fast they burn",
        "Share of bad requests or tokens over the share that may be bad: at 1 the objective is just met. Pages come at 14.4 "
        "over an hour and 6 over six; above 1 over three days the budget does not last. No row without traffic.",
        *map(burnt, windows),
        order=("cluster", "model", "slo", *values),
        rename={"cluster": "Cluster", "model": "Model", "slo": "Objective", **dict(zip(values, headings, strict=True))},
        ranked_by="Value #B",
        empty="no data: is gpumon-slo.yaml loaded, and was there traffic?",
    )
    for heading in headings:
        columns.inked(panel, heading, ((None, "text"), (1.0, "orange"), (6.0, "red")))
    return panel


def _p99(title: str, description: str, name: str, objective_s: float) -> timeseries.Panel:
    quantile = f"histogram_quantile(0.99, sum by (model, le) ({by_model(f'cluster_model:{name}_bucket:rate5m')}))"
    return p.graph(
        title,
        f"{description} Dashed: the objective. Of five minutes over all nodes, and from every other bucket only: good for "
        "which side of the objective, not for the second digit. One bad node of many does not show here: see Nodes, ranked.",
        Query(quantile, "{{model}}"),
        unit="s",
        steps=((None, "transparent"), (objective_s, "red")),
        empty=NO_RULES,
    )


def _latency(made: Board) -> None:
    made.row(
        "Tokens and latency by model",
        (
            8,
            p.graph(
                "Tokens per second by model",
                "Completion tokens of requests that ended. While it falls and latency rises, servers got slower; while both "
                "fall, less was asked for.",
                Query(f"sum by (model) ({by_model('cluster_model:gpumon_tokens:rate5m', MADE)})", "{{model}}"),
                unit="short",
                empty=NO_RULES,
            ),
        ),
        (
            8,
            _p99(
                "Time to first token, P99",
                "One request in a hundred waits longer.",
                c.REQUEST_FIRST_TOKEN.name,
                FIRST_TOKEN_S,
            ),
        ),
        (
            8,
            _p99("Inter-token latency, P99", "One token in a hundred comes later.", c.INTER_TOKEN.name, INTER_TOKEN_S),
        ),
    )
    made.add(
        (
            12,
            p.graph(
                "Energy for 1,000 tokens by model",
                "Joules of the GPUs of nodes that serve this model alone: nothing says which GPU serves which model of "
                "several. Idle time is in it, so that it rises when traffic falls.",
                Query(by_model("cluster_model:gpumon_gpu_energy_joules:per_1k_tokens5m"), "{{cluster}} {{model}}"),
                unit="joule",
                empty="no data: no node serves one model only, or the rules are not loaded",
            ),
        ),
        (
            12,
            p.graph(
                "Energy for 1,000 tokens by cluster",
                "Joules of all GPUs over the tokens of all models.",
                Query(by_cluster("cluster:gpumon_gpu_energy_joules:per_1k_tokens5m"), "{{cluster}}"),
                unit="joule",
                empty=NO_RULES,
            ),
        ),
        height=7,
    )
