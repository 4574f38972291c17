"""The dashboard gpumon-explain: for whoever asks why tokens are slow.

From the verdict down to what it rests on: how much was late, by which cause, what gpumon found meanwhile, what else
changed, where to ask on; then how much of the traffic was judged at all.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import table, timeseries
from grafana_foundation_sdk.models import dashboard as model

from gpumon import catalogue as c
from gpumon.explain.causes import LOAD, UNEXPLAINED, is_fault
from grafana import columns
from grafana import panels as p
from grafana import queries as q
from grafana.boards import explain_basis as basis
from grafana.boards import explain_signals as signals
from grafana.boards import explain_words as words
from grafana.kit import Board
from grafana.queries import Query

RANGE = signals.RANGE
EVER = f"[{RANGE}] @ end()"
"""The whole time shown, at each of its points: to leave out of a graph what was 0 throughout."""
FAULTS = "|".join(cause for cause in c.CAUSES if is_fault(cause))


def board() -> Board:
    """The dashboard."""
    made = Board(
        "gpumon-explain",
        "gpumon / Explain",
        "Why tokens were slow: seconds lost by cause, what was found meanwhile, and what changed. Choose a node or a "
        "model: over all of a large fleet, the fleet dashboard asks cheaper questions.",
        variables=("cluster", "node", "gpu", "model", "server"),
        since="now-30m",
    )
    _verdict(made)
    _causes(made)
    _incidents(made)
    _before(made)
    basis.work(made)
    basis.coverage(made)
    basis.correlation(made)
    return made


def lost(by: str, *matchers: str) -> str:
    """Slow-token seconds of the time shown."""
    return f"sum by ({by}) ({q.increase(c.SLOW_TOKEN_SECONDS, *matchers, window=RANGE)})"


def _verdict(made: Board) -> None:
    excess = f"sum({q.increase(c.TOKEN_EXCESS, window=RANGE)})"
    spent = f"sum({q.increase(c.REQUEST_DURATION, suffix='_sum', window=RANGE)})"
    judged = f"sum({q.increase(c.EXPLAINED_REQUESTS, basis.JUDGED, window=RANGE)})"
    looked_at = f"sum({q.increase(c.EXPLAINED_REQUESTS, window=RANGE)})"

    def share(name: str, matcher: str) -> Query:
        part = f"sum({q.increase(c.SLOW_TOKEN_SECONDS, matcher, window=RANGE)})"
        return Query(f"{part} / ({excess} > 0)", name, instant=True)

    made.row(
        "The verdict, over the time shown",
        (
            4,
            p.number(
                "Late share of request time",
                "Of all the time that requests took, how much came on top of what is usual here. Read this one first: "
                "seconds alone grow with traffic. Below one in a hundred, look for the complaint elsewhere.",
                Query(f"{excess} / ({spent} > 0)", "late", instant=True),
                unit="percentunit",
                empty=basis.NOTHING_EXPLAINED,
                spark=False,
            ),
        ),
        (
            4,
            p.number(
                "Slow-token seconds",
                "Seconds by which tokens came too late, summed over requests: thirty users who wait for two seconds are a "
                "minute. It can be more than the time that passed.",
                Query(excess, "lost", instant=True),
                unit="s",
                empty=basis.NOTHING_EXPLAINED,
                spark=False,
            ),
        ),
        (
            8,
            p.number(
                "Broken, busy, or unexplained",
                "Of the seconds lost. Fault: the same work took longer than it had to, repair it. Load: there was more "
                "work, nothing is broken. Unexplained: nothing that is watched says why; with much of it, trust the rest "
                "less and run `gpumon doctor` on the node.",
                share("fault", f'cause=~"{FAULTS}"'),
                share("load", f'cause=~"{"|".join(sorted(LOAD))}"'),
                share(UNEXPLAINED, f'cause="{UNEXPLAINED}"'),
                unit="percentunit",
                empty=basis.NOTHING_EXPLAINED,
                spark=False,
            ),
        ),
        (
            4,
            p.number(
                "Requests judged",
                "Share of the requests looked at for which gpumon could say whether they were late. What it could not "
                "judge counts as nothing lost. Low: see What this rests on, below.",
                Query(f"{judged} / ({looked_at} > 0)", "judged", instant=True),
                unit="percentunit",
                steps=((None, "red"), (0.5, "orange"), (0.9, "text")),
                empty=basis.NOTHING_EXPLAINED,
                spark=False,
            ),
        ),
        (
            4,
            p.number(
                "Incidents open",
                "Open at the end of the time shown. Those of before are below.",
                Query(f"sum({q.select(c.INCIDENT_ACTIVE, without=('gpu',))})", "open", instant=True),
                unit="short",
                steps=((None, "text"), (1, "red")),
                empty="no data: no gpumon of this selection reports, or detection is off",
                spark=False,
            ),
        ),
        height=5,
    )


def _by_cause(title: str, description: str, phase: str) -> timeseries.Panel:
    by, matcher = "sum by (cause)", f'phase="{phase}"'
    ever = f"increase({q.select(c.SLOW_TOKEN_SECONDS, matcher)}{EVER})"
    panel = p.graph(
        title,
        f"{description} Seconds lost each second, counted when a request was explained, some seconds after it ended: the "
        "fault itself was earlier, by the length of an answer. Causes that never occurred are left out.",
        Query(f"{by} ({q.rate(c.SLOW_TOKEN_SECONDS, matcher)}) and {by} ({ever}) > 0", "{{cause}}"),
        unit="short",
        stacked=True,
        empty="nothing was late, or nothing was explained: see Requests judged",
    )
    grey = {"mode": "fixed", "fixedColor": "#8e8e8e"}
    panel.axis_label("s lost per s")
    return panel.override_by_name(UNEXPLAINED, [model.DynamicConfigValue(id_val="color", value=grey)])


def _ranking() -> table.Panel:
    by_cause = f"{lost('cause')} > 0"
    share = f"{lost('cause')} / scalar(sum({q.increase(c.TOKEN_EXCESS, window=RANGE)})) > 0"
    panel = p.rows(
        "Causes, the dearest first",
        "Seconds lost over the time shown, and what to do. Begin with the first fault: load often grows behind one, and "
        "queues of many users outweigh what caused them.",
        Query(q.copied(by_cause, "cause", "meaning", "action")),
        Query(q.copied(share, "cause", "meaning", "action")),
        order=("cause", "meaning", "Value #A", "Value #B", "action"),
        rename={
            "cause": "Cause",
            "meaning": "What it is",
            "Value #A": "Lost",
            "Value #B": "Of all lost",
            "action": "What to do",
        },
        units={"Lost": "s", "Of all lost": "percentunit"},
        ranked_by="Value #A",
        empty="nothing was late, or nothing was explained: see Requests judged",
    )
    columns.telling(panel, "What it is", words.MEANINGS)
    columns.telling(panel, "What to do", words.ACTIONS)
    for heading, pixels in (("Cause", 160), ("What it is", 300), ("Lost", 90), ("Of all lost", 90)):
        columns.wide(panel, heading, pixels)
    return panel


def _causes(made: Board) -> None:
    made.row(
        "Why",
        (12, _by_cause("Late between tokens, by cause", "What made answers slow once they had begun.", "decode")),
        (12, _by_cause("Late until the first token, by cause", "What made answers begin late.", "first_token")),
        height=9,
    )
    where = p.rows(
        "Where the seconds were lost",
        "The 25 dearest combinations. One node or model that stands out is where to look; the same cause everywhere is "
        "something they share.",
        Query(f"topk(25, {lost('cluster, node, server, model, phase, cause')} > 0)"),
        order=("cluster", "node", "server", "model", "phase", "cause", "Value #A"),
        rename={
            "cluster": "Cluster",
            "node": "Node",
            "server": "Server",
            "model": "Model",
            "phase": "Phase",
            "cause": "Cause",
            "Value #A": "Lost",
        },
        units={"Lost": "s"},
        ranked_by="Value #A",
        empty="nothing was late, or nothing was explained: see Requests judged",
    )
    made.add(
        (14, _ranking()),
        (10, columns.linked(where, "Node", "gpumon-node", "node", ("model", "server"))),
        height=11,
    )


def _incidents(made: Board) -> None:
    by = "max by (node, kind, gpu)"
    active = q.select(c.INCIDENT_ACTIVE, without=("gpu",))
    began = f"round(sum by (cluster, node, kind, severity) ({q.increase(c.INCIDENTS, window=RANGE)})) > 0"
    listed = p.rows(
        "Incidents that began",
        "In the time shown, by the severity they opened with, and what to do about them. Details, with the requests that "
        "each touched, are at /api/v1/incidents of the node.",
        Query(q.copied(began, "kind", "action")),
        order=("cluster", "node", "kind", "severity", "Value #A", "action"),
        rename={
            "cluster": "Cluster",
            "node": "Node",
            "kind": "Kind",
            "severity": "Severity",
            "Value #A": "How many",
            "action": "What to do",
        },
        sort_by="How many",
        empty="none",
    )
    columns.linked(listed, "Node", "gpumon-node", "node", ("model", "server"))
    columns.telling(listed, "What to do", words.INCIDENTS)
    for heading, pixels in (("Cluster", 90), ("Node", 110), ("Kind", 150), ("Severity", 80), ("How many", 80)):
        columns.wide(listed, heading, pixels)
    made.row(
        "What was found meanwhile",
        (
            10,
            p.states(
                "Incidents open, over time",
                "One row for each kind, node and GPU that had one. Lay it beside the causes above: a cause without an "
                "incident is one that no detector knows a threshold for.",
                Query(f"{by} ({active}) and {by} (max_over_time({active}{EVER})) > 0", "{{kind}} {{node}} {{gpu}}"),
                empty="none",
            ),
        ),
        (14, listed),
        height=10,
    )


def _before(made: Board) -> None:
    panel = p.rows(
        "Before and now",
        "Now is the time shown, before is as long a time until it began: choose the time of the complaint, and compare "
        "with the quiet before it. What grew most is at the top, what fell most at the bottom. Look at the load first: "
        "with more requests or longer prompts, the rest follows. A small figure can change by much and mean nothing.",
        Query(signals.before()),
        Query(signals.now()),
        Query(signals.change()),
        unit="none",
        order=("of", "signal", "Value #A", "Value #B", "unit", "Value #C"),
        rename={
            "of": "Of",
            "signal": "Signal",
            "Value #A": "Before",
            "Value #B": "Now",
            "unit": "Unit",
            "Value #C": "Change",
        },
        units={"Change": "percentunit"},
        ranked_by="Value #C",
        empty="no data in the time shown",
    )
    tenfold = model.ValueMappingResult(text="tenfold or more", color="red")
    range_of = model.DashboardRangeMapOptions(from_val=10, result=tenfold)
    columns.worded(panel, "Change", [model.RangeMap(options=range_of)])
    much = ((None, "orange"), (-0.2, "text"), (0.2, "orange"), (1.0, "red"))
    columns.inked(panel, "Change", much)
    made.row("What changed", (15, panel), (9, p.words("What to do next", words.NEXT)), height=20)
