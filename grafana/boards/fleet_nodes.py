"""Nodes, ranked: who loses most time, who is slower than its peers, who takes most energy."""

from __future__ import annotations

from grafana_foundation_sdk.builders import table

from grafana import columns
from grafana import panels as p
from grafana.boards.fleet_rules import HANDED_ON, MADE, NO_RULES, by_node, total
from grafana.kit import Board
from grafana.queries import Query

_BY = "by (cluster, node)"


def _lost() -> table.Panel:
    lost = f"sum {_BY} ({total(by_node('node:gpumon_token_excess_seconds:rate5m'))})"
    tokens = f"sum {_BY} ({total(by_node('node_model:gpumon_tokens:rate5m', MADE))})"
    first = f"topk(20, {lost} > 0)"
    incidents = by_node("node:gpumon_incident_active:sum")
    return p.rows(
        "By slow-token seconds",
        "The twenty nodes that lost most over the time shown. For each token: the same over the tokens that the node made, "
        "which tells a slow node from a busy one.",
        Query(first),
        Query(f"({lost} > 0) / ({tokens} > 0) and on (cluster, node) {first}"),
        Query(f"max {_BY} ({incidents}) and on (cluster, node) {first}"),
        order=("cluster", "node", "Value #A", "Value #B", "Value #C"),
        rename={
            "cluster": "Cluster",
            "node": "Node",
            "Value #A": "Lost",
            "Value #B": "For each token",
            "Value #C": "Incidents open",
        },
        units={"Lost": "s", "For each token": "s"},
        ranked_by="Value #A",
        empty="nothing was late, or nothing was explained",
    )


def _stragglers() -> table.Panel:
    tokens = by_node("node_model:gpumon_inter_token_latency_seconds:peer_ratio5m")
    clock = by_node("node_gpu:gpumon_gpu_clock_hertz:peer_ratio5m")
    waited = by_node("node_comm_rank:gpumon_collective_seconds:peers_wait5m")
    panel = p.rows(
        "By how much slower than their peers",
        "Token time: over what as many tokens take on the other nodes of the model at the same concurrency; from 130 % on, "
        "look. Clock: of the slowest busy GPU, over the median of its board. Waited for: seconds each second that the other "
        "ranks of a communicator wait for one of this node. Token time and clock together point to the board. Three peers "
        "at least; a node without a figure has fewer.",
        Query(f"topk(20, max {_BY} ({tokens}))"),
        Query(f"bottomk(20, min {_BY} ({clock}))"),
        Query(f"topk(20, max {_BY} ({waited}) > 0)"),
        order=("cluster", "node", "Value #A", "Value #B", "Value #C"),
        rename={
            "cluster": "Cluster",
            "node": "Node",
            "Value #A": "Token time",
            "Value #B": "Clock",
            "Value #C": "Waited for",
        },
        units={"Token time": "percentunit", "Clock": "percentunit"},
        ranked_by="Value #A",
        empty="no node has three peers",
    )
    columns.inked(panel, "Token time", ((None, "text"), (1.15, "orange"), (1.3, "red")))
    columns.inked(panel, "Clock", ((None, "red"), (0.85, "orange"), (0.95, "text")))
    columns.inked(panel, "Waited for", ((None, "text"), (0.05, "orange"), (0.2, "red")))
    return panel


def _energy() -> table.Panel:
    watts = by_node("node:gpumon_gpu_energy_joules:rate5m")
    tokens = f"sum {_BY} ({by_node('node_model:gpumon_tokens:rate5m', MADE)})"
    each = f"topk(20, 1000 * {watts} / on (cluster, node) ({tokens} > 1))"
    return p.rows(
        "By energy for 1,000 tokens",
        "The twenty nodes that take most, of those that make more than a token a second. High with few tokens: the node is "
        "nearly idle. High with many: compare its model, its clocks and its batch with the others'.",
        Query(f"max {_BY} ({each})"),
        Query(f"{tokens} and on (cluster, node) {each}"),
        Query(f"max {_BY} ({watts}) and on (cluster, node) {each}"),
        order=("cluster", "node", "Value #A", "Value #B", "Value #C"),
        rename={
            "cluster": "Cluster",
            "node": "Node",
            "Value #A": "For 1,000 tokens",
            "Value #B": "Tokens per second",
            "Value #C": "Power",
        },
        units={"For 1,000 tokens": "joule", "Power": "watt"},
        ranked_by="Value #A",
        empty=NO_RULES,
    )


def rows(made: Board) -> None:
    """The row."""
    panels = (_lost(), _stragglers(), _energy())
    made.row(
        "Nodes, ranked",
        *((8, columns.linked(panel, "Node", "gpumon-node", "node", HANDED_ON)) for panel in panels),
        height=11,
    )
