"""How the fleet dashboard asks the recording rules."""

from __future__ import annotations

from gpumon.model import Metric
from grafana import queries as q

MADE = 'kind="completion"'
RANGE = "$__range"
EVER = f"[{RANGE}] @ end()"
"""The whole time shown, at each of its points: to leave out of a graph what was 0 throughout."""
HANDED_ON = ("model", "server")
"""Variables that a link to a node's dashboard takes along, besides the cluster and the node of the row."""
NO_RULES = "no data: is gpumon-recording.yaml loaded, and does a node report?"


def by_cluster(name: str, *matchers: str) -> str:
    """Of a rule that has lost the node."""
    return q.recorded(name, *matchers, variables=("cluster",))


def by_model(name: str, *matchers: str) -> str:
    """Of a rule that has kept the model, and lost the node."""
    return q.recorded(name, *matchers, variables=("cluster", "model"))


def by_node(name: str, *matchers: str) -> str:
    """Of a rule that has kept the node."""
    return q.recorded(name, *matchers, variables=("cluster", "node"))


def of_cluster(metric: Metric, *matchers: str, suffix: str = "") -> str:
    """A family of all nodes of the clusters, whatever node is chosen: to go with what the rules say of them."""
    own = ('model=~"$model"',) if "model" in metric.labels else ()
    return q.recorded(f"{metric.name}{suffix}", *own, *matchers, variables=("cluster",))


def total(selector: str) -> str:
    """What a recorded rate comes to over the time shown. Gaps count as nothing: a mean would fill them."""
    return f"60 * sum_over_time({selector}[{RANGE}:1m])"
