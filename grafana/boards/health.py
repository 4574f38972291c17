"""The dashboard gpumon-health: is gpumon itself up, does it see all that it should, and what does it cost."""

from __future__ import annotations

from gpumon import catalogue as c
from gpumon.model import Metric
from grafana import panels
from grafana.boards import health_forward, health_requests, health_sources
from grafana.boards.findings import OF_NODE, UNREACHABLE, told
from grafana.columns import colored, linked, wide
from grafana.kit import Board
from grafana.queries import JOB, TARGET, Query, increase, named, select, where

_ALERT: panels.Steps = ((None, "green"), (1, "red"))
_OWN = ",".join((*TARGET, JOB))
NOT_LOST = ("tail_policy", "undecided", "invalid_id")
"""Reasons of the forward queue for which nothing was lost."""


def board() -> Board:
    """The dashboard."""
    made = Board(
        "gpumon-health",
        "gpumon / Health",
        "Whether gpumon itself is well. Graphs are over all nodes selected, of the worst ones where that is said; the "
        "table What is wrong names the nodes.",
        variables=("cluster", "node", "gpu"),
    )
    made.row("Is it up, and is it whole", *((4, number) for number in _numbers()), height=4)
    made.add((16, _wrong()), (8, _versions()), height=9)
    made.add((8, _up()), (8, _scrape_time()), (8, _scrape_size()))
    health_sources.add(made)
    health_requests.add(made)
    health_forward.add(made)
    return made


def _numbers() -> list[panels.Panel]:
    expected = f"sum({select(c.GPU_COUNT, where('state', 'expected'))})"
    present = f"sum({select(c.GPU_COUNT, where('state', 'present'))})"
    return [
        panels.number(
            "Nodes whose gpumon answers",
            "Targets that Prometheus could read at its last scrape. A node that was never a target is not counted.",
            Query(f"sum(up{{{_OWN}}})"),
            unit="short",
        ),
        panels.number(
            "Nodes that do not answer",
            "Targets that it could not read: they are in What is wrong. What they told before ends there, and their "
            "GPUs are in none of the other figures.",
            Query(f"sum(up{{{_OWN}}} == bool 0)"),
            unit="short",
            steps=_ALERT,
        ),
        panels.number(
            "Sources that fail",
            "Over all nodes that answer. Each is a part of the picture that is missing.",
            Query(f"sum({select(c.SOURCE_UP)} == bool 0)"),
            unit="short",
            steps=_ALERT,
        ),
        panels.number(
            "GPUs that are not seen",
            "On the PCI bus of nodes that answer, and not shown by the driver. Of nodes whose NVML is down these are "
            "all of their GPUs.",
            Query(f"({expected}) - ({present})"),
            unit="short",
            steps=_ALERT,
        ),
        panels.number(
            "Series left out",
            "In the time selected, counted at every pass: any figure but 0 means that some GPU, process or model is "
            "not in the graphs. budget: more of one family than the catalogue allows, or store.max_series in all.",
            Query(f"round(sum({increase(c.SERIES_DROPPED, window='$__range')}))", instant=True),
            unit="short",
            steps=_ALERT,
            spark=False,
        ),
        panels.number(
            "Reloads refused",
            "Nodes whose last change of configuration was refused. They run with the one before; the log says which "
            "key is wrong.",
            Query(f"sum({select(c.CONFIG_RELOAD_OK)} == bool 0)"),
            unit="short",
            steps=_ALERT,
        ),
    ]


def _wrong() -> panels.Panel:
    def grown(metric: Metric, *matchers: str, label: str) -> str:
        counted = increase(metric, *matchers, window="$__range")
        return f"round(sum by (cluster, node, {label}) ({counted})) > 0"

    def zero(metric: Metric) -> str:
        return f"1 + (max {OF_NODE} ({select(metric)}) == 0)"

    state = select(c.NVML_STATE, where("state", "unavailable", "stuck", "released"))
    down = f"{select(c.SOURCE_UP)} == 0"
    lost = select(c.GPU_COUNT, where("state", "lost"))
    refused = 'outcome!~"ok|partial"'
    dropped = f'reason!~"{"|".join(NOT_LOST)}"'
    nowhere = named(f"absent(up{{{_OWN}}})", node="none")
    arms = (
        told(nowhere, "no target", "Prometheus has no job gpumon: look at its scrape configuration"),
        told(f"1 + ({UNREACHABLE})", "gpumon", "does not answer: see whether it runs, and its port"),
        told(f"max by (cluster, node, state) ({state}) == 1", "NVML $1", "no figure of a GPU until it runs", "state"),
        told(f"max by (cluster, node, code) ({select(c.NVML_ERROR)})", "NVML says $1", "why it is unavailable", "code"),
        told(f"1 + (max by (cluster, node, source) ({down}))", "source $1", "it fails: see Sources", "source"),
        told(f"max {OF_NODE} ({lost}) > 0", "GPUs lost", "they do not answer any more: see gpumon / Node"),
        told(zero(c.CONFIG_RELOAD_OK), "configuration", "the last reload was refused: the log says why"),
        told(zero(c.STATE_OK), "state folder", "cannot be written: incidents are forgotten at a restart"),
        told(zero(c.FLIGHT_OK), "flight recorder", "cannot write: no recording of incidents"),
        told(zero(c.FORWARD_UP), "forwarding", "the endpoint does not take what is sent"),
        told(zero(c.FORWARD_SPOOL_OK), "spool", "cannot be written: what waits is in memory alone"),
        told(grown(c.SAMPLER_RESTARTS, label="reason"), "sampler restarted: $1", "GPU figures have gaps", "reason"),
        told(grown(c.SERIES_DROPPED, label="reason"), "series left out: $1", "graphs are not complete", "reason"),
        told(grown(c.DETECTOR_FAILURES, label="detector"), "detector $1", "it failed: a bug, see the log", "detector"),
        told(grown(c.OTLP_REQUESTS, refused, label="outcome"), "traces refused: $1", "see Traces in", "outcome"),
        told(grown(c.FORWARD_DROPPED, dropped, label="reason"), "not forwarded: $1", "they are lost", "reason"),
    )
    panel = panels.rows(
        "What is wrong",
        "By node: what is down now, and what failed in the time selected, with how many or how often. Nothing here and "
        "figures above: all is well. Nothing here and no figures above: Prometheus has no data at all.",
        Query(" or ".join(arms)),
        rename={"cluster": "Cluster", "node": "Node", "what": "What", "why": "Which means", "Value #A": "How many"},
        order=("cluster", "node", "what", "why", "Value #A"),
        empty="nothing is wrong, where the figures above are there",
    )
    linked(panel, "Node", "gpumon-node", "node")
    return wide(colored(panel, "What", steps=((None, "red"),)), "What", 220)


def _versions() -> panels.Panel:
    return panels.rows(
        "Versions",
        "Of gpumon and its Python, and on how many nodes. More than one version for longer than a roll-out takes is a "
        "roll-out that stopped.",
        Query(f"count by (version, python) ({select(c.BUILD_INFO)})"),
        rename={"version": "gpumon", "python": "Python", "Value #A": "Nodes"},
        order=("version", "python", "Value #A"),
        sort_by="Nodes",
        empty="no gpumon answers",
    )


def _up() -> panels.Panel:
    return panels.graph(
        "Nodes that answer",
        "Targets of Prometheus' job gpumon. A dip of all at once is Prometheus or the network; one node after the other "
        "is a roll-out.",
        Query(f"sum(up{{{_OWN}}})", "answer"),
        Query(f"sum(up{{{_OWN}}} == bool 0)", "do not answer"),
        unit="short",
        empty="no target: look at Prometheus' scrape configuration",
    )


def _scrape_time() -> panels.Panel:
    return panels.graph(
        "Time of a scrape",
        "The ten slowest nodes. Above Prometheus' scrape timeout (10 s unless set) the node is lost to it. gpumon "
        "renders its page once a publication, so a slow scrape is a slow host or network.",
        Query(f"topk(10, max {OF_NODE} (scrape_duration_seconds{{{_OWN}}}))", "{{node}}"),
        unit="s",
        steps=((None, "green"), (5, "red")),
        empty="no target",
    )


def _scrape_size() -> panels.Panel:
    return panels.graph(
        "Samples of a scrape",
        "The ten largest nodes. What Prometheus has to keep; a sampleLimit below it makes the whole scrape fail.",
        Query(f"topk(10, max {OF_NODE} (scrape_samples_scraped{{{_OWN}}}))", "{{node}}"),
        unit="short",
        empty="no target",
    )
