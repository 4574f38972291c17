"""The dashboard gpumon-fleet: for whoever runs thousands of nodes.

First what is there and who needs somebody, then where users lost time, then how well the GPUs are used. What every node
would have to be asked for comes from the recording rules of deploy/prometheus/rules/gpumon-recording.yaml; only the
table of GPUs that need somebody, and that of incidents, ask the nodes' own series, once for each look.
"""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as model

from gpumon import catalogue as c
from gpumon.detect.detectors import DETECTORS
from grafana import columns
from grafana import panels as p
from grafana import queries as q
from grafana.boards import fleet_gpus, fleet_needs, fleet_nodes, fleet_serving
from grafana.boards.fleet_rules import EVER, HANDED_ON, MADE, NO_RULES, by_cluster, by_model, by_node
from grafana.kit import Board
from grafana.queries import Query

_ACTIONS = {kind.name: kind.action for detector in DETECTORS for kind in detector.kinds}
_UP = by_node("up", 'job="gpumon"')


def board() -> Board:
    """The dashboard."""
    made = Board(
        "gpumon-fleet",
        "gpumon / Fleet",
        "All nodes at a glance. Figures of whole clusters follow Cluster and Model; tables of nodes follow Node, too; Server "
        "is for the dashboards that are opened from here. Most figures are means of five minutes, taken once a minute by "
        "the recording rules.",
        variables=("cluster", "node", "gpu", "model", "server"),
        since="now-6h",
        incidents=Query(f"{by_cluster('cluster:gpumon_incident_active:sum')} > 0", "{{cluster}}"),
    )
    _now(made)
    fleet_needs.rows(made)
    _incidents(made)
    fleet_serving.rows(made)
    fleet_gpus.rows(made)
    fleet_nodes.rows(made)
    return made


def _now(made: Board) -> None:
    gpus = p.number(
        "GPUs of the clusters",
        "Expected: on the PCI bus of nodes that report. Present: NVML has them. Lost: they do not answer any more. A node "
        "that is down counts in none of the three: see gpumon down.",
        Query(f"sum by (state) ({by_cluster('cluster:gpumon_gpus:sum')})", "{{state}}"),
        unit="short",
        empty=NO_RULES,
        spark=False,
    )
    red = [{"value": None, "color": "text"}, {"value": 1, "color": "red"}]
    gpus.override_by_name(
        "lost", [model.DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": red})]
    )
    made.row(
        "Now",
        (
            3,
            p.number(
                "Nodes that report",
                "Targets of the job gpumon, of the selection, that were scraped.",
                Query(f"sum({_UP})", "nodes"),
                unit="short",
                empty="no data: no target of a job named gpumon",
            ),
        ),
        (
            3,
            p.number(
                "gpumon down",
                "Targets that could not be scraped: nothing is known of their GPUs and requests, and none of their alerts "
                "can fire. They are in the table below.",
                Query(f"sum({_UP} == bool 0)", "down"),
                unit="short",
                steps=((None, "text"), (1, "red")),
                empty="no data: no target of a job named gpumon",
            ),
        ),
        (6, gpus),
        (
            3,
            p.number(
                "Incidents open",
                "Of all nodes of the clusters; below by kind and node.",
                Query(f"sum({by_cluster('cluster:gpumon_incident_active:sum')})", "open"),
                unit="short",
                steps=((None, "text"), (1, "orange")),
                empty=NO_RULES,
            ),
        ),
        (
            3,
            p.number(
                "Tokens per second",
                "Completion tokens of requests that ended, by traces. Servers that send no traces are not in it.",
                Query(f"sum({by_model('cluster_model:gpumon_tokens:rate5m', MADE)})", "made"),
                unit="short",
                empty=NO_RULES,
            ),
        ),
        (
            3,
            p.number(
                "Slow-token time",
                "Seconds by which tokens came too late, for each second, over all requests. 30: at any moment thirty users "
                "wait longer than they usually do.",
                Query(f"sum({by_model('cluster_model:gpumon_token_excess_seconds:rate5m')})", "lost"),
                unit="short",
                empty=NO_RULES,
            ),
        ),
        (
            3,
            p.number(
                "Energy for 1,000 tokens",
                "Joules of all GPUs over the tokens made, idle time included: it rises when traffic falls. Of nodes that "
                "tell both.",
                Query(by_cluster("cluster:gpumon_gpu_energy_joules:per_1k_tokens5m"), "{{cluster}}"),
                unit="joule",
                empty=NO_RULES,
            ),
        ),
        height=4,
    )


def _incidents(made: Board) -> None:
    by = "sum by (kind)"
    recorded = by_cluster("cluster:gpumon_incident_active:sum")
    opened = f"sum by (cluster, node, kind, gpu) ({q.select(c.INCIDENT_ACTIVE, without=('gpu',))}) > 0"
    listed = p.rows(
        "Incidents open by kind and node",
        "What is open at the end of the time shown. One node with several kinds has one fault and its consequences; one "
        "kind on many nodes is something they share: power, cooling, a driver, a release. Click a node to open it.",
        Query(q.copied(opened, "kind", "action")),
        order=("cluster", "node", "kind", "gpu", "Value #A", "action"),
        rename={
            "cluster": "Cluster",
            "node": "Node",
            "kind": "Kind",
            "gpu": "GPU",
            "Value #A": "Open",
            "action": "What to do",
        },
        sort_by="Open",
        empty="none open",
    )
    columns.linked(listed, "Node", "gpumon-node", "node", HANDED_ON)
    columns.telling(listed, "What to do", _ACTIONS)
    for heading, pixels in (("Cluster", 100), ("Node", 130), ("Kind", 150), ("GPU", 50), ("Open", 60)):
        columns.wide(listed, heading, pixels)
    made.row(
        "Incidents",
        (
            9,
            p.graph(
                "Incidents open by kind",
                "Over all nodes of the clusters. Kinds that never occurred are left out. A step up in one kind at one "
                "moment has one cause: look what was changed then.",
                Query(f"{by} ({recorded}) and {by} (max_over_time({recorded}{EVER})) > 0", "{{kind}}"),
                unit="short",
                stacked=True,
                empty="none open in this time",
            ),
        ),
        (15, listed),
        height=10,
    )
