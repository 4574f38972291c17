"""The last rows of Explain: lateness against the work done, how much was judged at all, what goes together."""

from __future__ import annotations

from grafana_foundation_sdk.builders import table

from gpumon import catalogue as c
from grafana import columns
from grafana import panels as p
from grafana import queries as q
from grafana.boards.explain_signals import RANGE
from grafana.kit import Board
from grafana.queries import Query

JUDGED = 'outcome=~"on_time|slow"'
MADE = 'kind="completion"'
EXPLAINED_LATER = "8s"
"""``explain.delay_s``: how long after its end a request is explained."""
NOTHING_EXPLAINED = "no data: no request of this selection was explained in this time"


def work(made: Board) -> None:
    """Lateness against tokens and requests: what grows with these is traffic."""
    # Tokens count when a request ends, its lateness when it was explained: earlier ones belong to it.
    tokens = q.rate(c.TOKENS, MADE).replace("]", f"] offset {EXPLAINED_LATER}")
    late = p.graph(
        "Late by, for each token made",
        "Seconds of lateness over the tokens of the requests that ended, and at the right how many those were. Seconds "
        "lost that grow with tokens are traffic; seconds that grow for each token are slowness. In cells of a minute.",
        Query(
            f"sum by (model) ({q.rate(c.TOKEN_EXCESS)}) / (sum by (model) ({tokens}) > 0)", "{{model}}: late per token"
        ),
        Query(f"sum by (model) ({q.rate(c.TOKENS, MADE)})", "{{model}}: tokens made per second"),
        unit="s",
        empty=NOTHING_EXPLAINED,
    )
    requests = p.graph(
        "Late by, for each request judged",
        "Mean seconds, by model and phase. Until the first token it is felt as silence, between tokens as stutter.",
        Query(
            f"sum by (model, phase) ({q.rate(c.TOKEN_EXCESS)}) / ignoring (phase) group_left () "
            f"(sum by (model) ({q.rate(c.EXPLAINED_REQUESTS, JUDGED)}) > 0)",
            "{{model}} {{phase}}",
        ),
        unit="s",
        empty=NOTHING_EXPLAINED,
    )
    late = p.right_axis(late.interval("1m"), "/tokens made/", "short", "tokens made per second")
    made.row("Measured against the work done", (12, late), (12, requests.interval("1m")))


def coverage(made: Board) -> None:
    outcomes = c.EXPLAINED_REQUESTS.values
    by = "sum by (server, model)"
    counts = [
        Query(f"round({by} ({q.increase(c.EXPLAINED_REQUESTS, matcher, window=RANGE)}))")
        for matcher in (f'outcome="{outcome}"' for outcome in outcomes)
    ]
    values = [f"Value #{chr(ord('A') + number)}" for number in range(len(outcomes))]
    made.row(
        "What this rests on",
        (
            8,
            p.graph(
                "Requests looked at, by outcome",
                "slow: late at least in part, one late token is enough; on_time: nothing was. cold: too little is known yet "
                "to expect anything, as after a start. untimed: its spans tell neither token times nor phases. dropped: "
                "more came than the queue takes.",
                Query(f"sum by (outcome) ({q.rate(c.EXPLAINED_REQUESTS)})", "{{outcome}}"),
                unit="reqps",
                stacked=True,
                empty=NOTHING_EXPLAINED,
            ),
        ),
        (
            8,
            p.rows(
                "Requests looked at, by model",
                "Over the time shown. A model with many cold, untimed or dropped requests is slower than this dashboard "
                "says: for cold ones wait some minutes, for untimed ones see docs/TOKENS.md.",
                *counts,
                order=("server", "model", *values),
                rename={"server": "Server", "model": "Model", **dict(zip(values, outcomes, strict=True))},
                ranked_by=values[outcomes.index("slow")],
                empty=NOTHING_EXPLAINED,
            ),
        ),
        (
            8,
            p.graph(
                "Requests bound to no GPU",
                "By reason. Of these only load and the server's page can explain anything, and a fault of the GPU or the "
                "process goes unexplained. pending ones are still looked for; docs/METRICS.md tells what each reason needs.",
                Query(f"sum by (reason) ({q.rate(c.REQUESTS_UNBOUND)})", "{{reason}}"),
                unit="reqps",
                empty="no data: no gpumon of this selection takes traces",
            ),
        ),
    )


def correlation(made: Board) -> None:
    def pairs(title: str, description: str, what: str) -> table.Panel:
        matcher = f'y=~"${{model}}:{what}"'
        by = "max by (cluster, node, x, y)"
        r = f"{by} ({q.select(c.CORRELATION, matcher)})"
        panel = p.rows(
            title,
            f"{description} Of the last ten minutes, strong pairs only (|r| over 0.7, and hardly by chance). Lag: by how "
            "long the latency or rate follows the signal; below 0 it comes first. No cause by itself: what grows with the "
            "load goes with all that grows with the load. All pairs: /api/v1/correlation of the node.",
            Query(r),
            Query(f"{by} ({q.select(c.CORRELATION_LAG, matcher)})"),
            Query(f"abs({r})"),
            order=("cluster", "node", "x", "y", "Value #A", "Value #B"),
            rename={
                "cluster": "Cluster",
                "node": "Node",
                "x": "Signal",
                "y": "Goes with",
                "Value #A": "r",
                "Value #B": "Lag",
            },
            units={"Lag": "s"},
            ranked_by="Value #C",
            empty="no strong pair",
        )
        columns.linked(panel, "Node", "gpumon-node", "node", ("model", "server"))
        return panel

    made.row(
        "What goes together",
        (12, pairs("What goes with latency", "The strongest first.", ".*_p95")),
        (12, pairs("What goes with tokens per second", "The strongest first.", "tokens_per_second")),
        height=10,
    )
