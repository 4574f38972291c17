"""Rows of gpumon-health: token traces in, requests bound to GPUs, and detection."""

from __future__ import annotations

from gpumon import catalogue as c
from grafana import panels
from grafana.kit import Board
from grafana.queries import Query, increase, rate, select

_ALL = ("server", "model")
"""Variables of other dashboards: this one is about gpumon, whatever is served."""


def add(board: Board) -> None:
    """Adds the rows."""
    board.row("Traces in", (8, _answers()), (8, _items()), (8, _waiting()))
    board.add((8, _connections()), (8, _spans()), (8, _spans_dropped()))
    board.add((8, _rejected()), (8, _cut()), (8, _incomplete()))
    board.row("Requests and their GPUs", (8, _bound()), (8, _unbound()), (4, _folded()), (4, _clocks()))
    board.row("Detection and explanation", (8, _failures()), (8, _undetected()), (8, _explained()))
    board.add((12, _recordings()), (12, _recorder_size()))


def _answers() -> panels.Panel:
    return panels.graph(
        "OTLP requests by answer",
        "Per second, over all nodes. ok and partial were taken. overload and unavailable are sent again by their "
        "sender: gpumon is too slow, or has just started. All others are refused for good: unauthorized (token), "
        "too_large, bad (no OTLP), too_slow, failed.",
        Query(f"sum by (outcome) ({rate(c.OTLP_REQUESTS)})", "{{outcome}}"),
        unit="reqps",
        empty="no gpumon answers, or otlp.enabled is off",
    )


def _items() -> panels.Panel:
    panel = panels.graph(
        "Taken",
        "Spans, log records and metric points per second (left), and bytes (right), over all nodes. None at all while "
        "requests are served: the servers do not send to gpumon, see docs/TOKENS.md.",
        Query(f"sum by (signal) ({rate(c.OTLP_ITEMS)})", "{{signal}}"),
        Query(f"sum by (transport) ({rate(c.OTLP_RECEIVED_BYTES)})", "bytes over {{transport}}"),
        unit="cps",
        empty="no gpumon answers, or otlp.enabled is off",
    )
    return panels.right_axis(panel, "/^bytes/", "Bps", "bytes received")


def _waiting() -> panels.Panel:
    panel = panels.graph(
        "OTLP requests that wait",
        "Requests that wait for their answer (left), and their bytes (right), of the node with the most. Near 0 is "
        "right; a line that stays up is a receiver that does not keep up, and `overload` follows.",
        Query(f"max({select(c.OTLP_WAITING)})", "requests"),
        Query(f"max({select(c.OTLP_WAITING_BYTES)})", "bytes"),
        unit="short",
        empty="no gpumon answers, or otlp.enabled is off",
    )
    return panels.right_axis(panel, "/^bytes/", "bytes", "bytes that wait")


def _connections() -> panels.Panel:
    return panels.graph(
        "OTLP/HTTP connections",
        "Open ones, of the node with the most; and those that gpumon closed, over all nodes, within each step. limit: "
        "more than it takes, as from a client that opens one for each request.",
        Query(f"max({select(c.OTLP_CONNECTIONS)})", "open, most"),
        Query(f"sum by (reason) ({increase(c.OTLP_CONNECTIONS_CLOSED)})", "closed: {{reason}}"),
        unit="short",
        empty="no gpumon answers, or otlp.enabled is off",
    )


def _spans() -> panels.Panel:
    return panels.graph(
        "Spans by kind of server",
        "Per second, over all nodes, copies included. unknown: spans that gpumon does not read; they are forwarded all "
        "the same. A server that you run and do not see here has tracing off, or another scope name.",
        Query(f"sum by (server) ({rate(c.SPANS_RECEIVED, without=_ALL)})", "{{server}}"),
        unit="cps",
        empty="no gpumon answers, or otlp.enabled is off",
    )


def _spans_dropped() -> panels.Panel:
    return panels.graph(
        "Spans that are part of no request",
        "Per second, by reason, over all nodes. unused and startup are normal. late: batches come after their request "
        "was closed. future and negative_duration: clocks. orphan: the request's own span never came. overflow: more "
        "open traces than fit.",
        Query(f"sum by (reason) ({rate(c.SPANS_DROPPED)})", "{{reason}}"),
        unit="cps",
        empty="no gpumon answers, or otlp.enabled is off",
    )


def _rejected() -> panels.Panel:
    return panels.graph(
        "Spans and values rejected",
        "Per second, over all nodes: spans and log records left out of requests that were taken otherwise, and "
        "latencies or token times that cannot be true, of spans that were kept. A server's bug, or two clocks.",
        Query(f"sum by (reason) ({rate(c.SPANS_REJECTED)})", "span: {{reason}}"),
        Query(f"sum by (attribute, reason) ({rate(c.SPAN_VALUES_REJECTED)})", "{{attribute}}: {{reason}}"),
        unit="cps",
        empty="none, where Taken has data",
    )


def _cut() -> panels.Panel:
    return panels.graph(
        "Cut off spans",
        "Attributes, events, links, tokens and texts beyond gpumon's limits, per second, over all nodes; the spans were "
        "kept. tokens: answers with more tokens than it follows, whose last ones have no time.",
        Query(f"sum by (kind) ({rate(c.SPANS_TRUNCATED)})", "{{kind}}"),
        unit="cps",
        empty="no gpumon answers, or otlp.enabled is off",
    )


def _incomplete() -> panels.Panel:
    return panels.graph(
        "Waiting for the rest of their request",
        "Traces, and spans and steps in them, of the node with the most. It follows the load; growth without end means "
        "that requests' own spans do not come.",
        Query(f"max by (kind) ({select(c.SPANS_WAITING)})", "{{kind}}, most"),
        unit="short",
        empty="no gpumon answers, or otlp.enabled is off",
    )


def _bound() -> panels.Panel:
    ended = f"sum({rate(c.REQUESTS, without=_ALL)})"
    unbound = f"sum({rate(c.REQUESTS_UNBOUND)})"
    return panels.graph(
        "Requests and those without a GPU",
        "Requests that ended, and of them those that gpumon could not bind to GPUs of their node, per second, over all "
        "nodes. For the latter there are latencies, but no causes.",
        Query(ended, "ended"),
        Query(unbound, "without a GPU"),
        unit="reqps",
        empty="no gpumon answers, or no request ended yet",
    )


def _unbound() -> panels.Panel:
    return panels.graph(
        "Why requests have no GPU",
        "Per second, by reason, over all nodes. pending: a process that is too new to be known. no_identity: the spans name no "
        "process, host or pod. other_node: they ran elsewhere; send traces to the node that serves. no_process, no_gpu: "
        "the process ended, or holds no GPU. denied: a privilege is missing, see `gpumon doctor`.",
        Query(f"sum by (reason) ({rate(c.REQUESTS_UNBOUND)})", "{{reason}}"),
        unit="reqps",
        empty="no gpumon answers",
    )


def _folded() -> panels.Panel:
    return panels.graph(
        "Folded and left out",
        "Per second, over all nodes: requests counted under `other` because too many servers, models or tenants came; "
        "observations left out of gpumon's own windows of the last hour (histograms have them).",
        Query(f"sum by (label) ({rate(c.LABELS_FOLDED)})", "{{label}} folded into other"),
        Query(f"sum by (reason) ({rate(c.WINDOW_DROPPED)})", "left out of the windows: {{reason}}"),
        unit="cps",
        empty="no gpumon answers",
    )


def _clocks() -> panels.Panel:
    return panels.graph(
        "Clocks that differ",
        "How far spans lie outside of their request, by kind of server, on the worst node: they come from hosts with "
        "two clocks. Times to first token are wrong by as much: synchronise the hosts' clocks.",
        Query(f"max by (server) ({select(c.REQUEST_CLOCK_SKEW, without=_ALL)})", "{{server}}"),
        unit="s",
        empty="none seen",
    )


def _failures() -> panels.Panel:
    return panels.graph(
        "Detectors that failed",
        "Failed passes per second, of all detectors and parts of the explanation, over all nodes; What is wrong says "
        "which. 0 is right, anything else is a bug: report it with the log. The other detectors go on.",
        Query(f"sum by (cluster) ({rate(c.DETECTOR_FAILURES)})", "failed passes {{cluster}}"),
        unit="cps",
        empty="no gpumon answers, or detect.enabled is off",
    )


def _undetected() -> panels.Panel:
    return panels.graph(
        "Left out of detection",
        "Per second, over all nodes: requests, collectives and incidents beyond what is looked at, tokens told of more "
        "than five minutes late, requests of models beyond the sixteenth. Of these, silence of the detectors means "
        "nothing.",
        Query(f"sum by (what) ({rate(c.DETECTION_DROPPED)})", "{{what}}"),
        unit="cps",
        empty="no gpumon answers, or detect.enabled is off",
    )


def _explained() -> panels.Panel:
    return panels.graph(
        "Requests that were looked at for slowness",
        "Per second, over all nodes. cold: too little is known yet to expect anything. untimed: their spans tell no "
        "token times and no phases. dropped: more came than were looked at. Only on_time and slow are answers.",
        Query(f"sum by (outcome) ({rate(c.EXPLAINED_REQUESTS, without=_ALL)})", "{{outcome}}"),
        unit="reqps",
        stacked=True,
        empty="no gpumon answers, explain.enabled is off, or no request ended yet",
    )


def _recordings() -> panels.Panel:
    return panels.graph(
        "Flight recordings",
        "Within each step, over all nodes. written: one for each incident. skipped: too many incidents at once. "
        "removed: the oldest, for room. failed: the folder is full or may not be written.",
        Query(f"sum by (outcome) ({increase(c.FLIGHT_RECORDINGS)})", "{{outcome}}"),
        unit="short",
        empty="no flight recorder (flight.folder), or no gpumon answers",
    )


def _recorder_size() -> panels.Panel:
    return panels.graph(
        "Size of the flight recorder",
        "In memory and in its folder, of the node with the most. Both are bounded by the configuration.",
        Query(f"max by (place) ({select(c.FLIGHT_BYTES)})", "{{place}}, most"),
        unit="bytes",
        empty="no flight recorder (flight.folder), or no gpumon answers",
    )
