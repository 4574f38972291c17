"""The row of gpumon-health about forwarding traces and exporting metrics, closed: most nodes do neither."""

from __future__ import annotations

from gpumon import catalogue as c
from grafana import panels
from grafana.kit import Board
from grafana.queries import Query, increase, rate, select

_NOT_ON = "forwarding is off (forward.endpoint), or no gpumon answers"


def add(board: Board) -> None:
    """Adds the row."""
    board.row(
        "Forwarding and OTLP out",
        *((8, _sent()), (8, _queue()), (8, _queue_size()), (8, _lost()), (8, _spool()), (8, _exports())),
        collapsed=True,
    )


def _sent() -> panels.Panel:
    return panels.graph(
        "Forwarded",
        "Spans, log records and metrics per second that the endpoint took, and tries that failed and were repeated, "
        "over all nodes. Retries without end: the endpoint is down or refuses; the log says which.",
        Query(f"sum by (signal) ({rate(c.FORWARD_SENT)})", "{{signal}}"),
        Query(f"sum({rate(c.FORWARD_RETRIES)})", "retries"),
        unit="cps",
        empty=_NOT_ON,
    )


def _queue() -> panels.Panel:
    return panels.graph(
        "Waiting to be forwarded",
        "Items in memory and in the spool, of the node with the most. Growth means that the endpoint takes less than "
        "comes in; at the limit, the oldest are dropped.",
        Query(f"max by (place) ({select(c.FORWARD_QUEUE_ITEMS)})", "{{place}}, most"),
        unit="short",
        empty=_NOT_ON,
    )


def _queue_size() -> panels.Panel:
    panel = panels.graph(
        "Bytes that wait and that went",
        "Bytes that wait, of the node with the most (left); bytes per second that went, before compression, over all "
        "nodes (right).",
        Query(f"max by (place) ({select(c.FORWARD_QUEUE_BYTES)})", "{{place}}, most"),
        Query(f"sum by (signal) ({rate(c.FORWARD_SENT_BYTES)})", "sent {{signal}}"),
        unit="bytes",
        empty=_NOT_ON,
    )
    return panels.right_axis(panel, "/^sent/", "Bps", "sent")


def _lost() -> panels.Panel:
    return panels.graph(
        "Not forwarded",
        "Per second, by reason, over all nodes. tail_policy and undecided are left out as configured, invalid_id was "
        "told to the sender: no losses. All others are: queue_full, spool_full, refused, gave_up and the rest.",
        Query(f"sum by (reason) ({rate(c.FORWARD_DROPPED)})", "{{reason}}"),
        unit="cps",
        empty=_NOT_ON,
    )


def _spool() -> panels.Panel:
    return panels.graph(
        "Spool and endpoint, by nodes",
        "Nodes whose endpoint does not take what is sent, whose spool cannot be written, and damage found in spools "
        "within each step. torn is what a kill leaves behind, corrupt is a disk.",
        Query(f"sum({select(c.FORWARD_UP)} == bool 0)", "endpoint down"),
        Query(f"sum({select(c.FORWARD_SPOOL_OK)} == bool 0)", "spool not writable"),
        Query(f"sum by (kind) ({increase(c.FORWARD_SPOOL_DAMAGED)})", "damaged: {{kind}}"),
        unit="short",
        empty=_NOT_ON,
    )


def _exports() -> panels.Panel:
    return panels.graph(
        "OTLP export of gpumon's own metrics",
        "Exports per second that succeeded and that failed, over all nodes. They go beside Prometheus, and fail alone.",
        Query(f"sum({rate(c.OTLP_EXPORTS)})", "succeeded"),
        Query(f"sum({rate(c.OTLP_EXPORT_FAILURES)})", "failed"),
        unit="cps",
        empty="the export is off, or no gpumon answers",
    )
