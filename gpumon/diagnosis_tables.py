"""The tables of ``gpumon diagnose`` on a terminal. Each says nothing where there is nothing to say.

What is healthy is left out unless everything is asked for, but for the matrix: that a GPU was as always is an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from gpumon.diagnosis_words import ROWS, Lines, begin, engine, measured, moved, rest, signed, some
from gpumon.explain.diagnosis.model import (
    BatchJitter,
    BeforeDuring,
    ContextProfile,
    Correlation,
    Diagnosis,
    Engine,
    Interference,
    MatrixRow,
    QualityLink,
    QueryClass,
    Surface,
    Verdict,
)
from gpumon.grid import Grid
from gpumon.shown import percent, shown, shown_clock, shown_duration, shown_seconds
from gpumon.terminal import colour_of, printable, title_of

_SUSPICIOUS = ("bad", "suspect")
_VERDICTS: Final[dict[Verdict, str]] = {"bad": "bold red", "suspect": "yellow", "ok": "green", "unknown": "dim"}
VERDICTS_TOLD: Final = (
    "bad: past what is healthy, and worse than on the others; suspect: it goes with slowness; r: how closely it "
    "follows the time per token, -1 to 1."
)
"""Below the matrix."""
NO_BEFORE: Final = "There is no quiet time before it to compare with."
"""Of the worst stretch: then nothing is said to have changed."""
_HIGH = 0.9
"""Cells of a surface above this quantile of all its cells stand out."""


def matrix(rows: Sequence[MatrixRow], of: str, everything: bool) -> Lines:
    """The dimensions that differ, or all, over slow requests and over the others. of: whose requests, in brackets."""
    chosen = some([row for row in rows if everything or row.verdict in _SUSPICIOUS], everything)
    if not chosen:
        same = sum(row.verdict == "ok" for row in rows)
        if not same:
            return []
        same_told = f"{same} dimension{'s' if same > 1 else ''} as on the other requests"
        more = f"Nothing that was watched; {same_told}. --all shows all."
        return [*begin("What was different", of), Text(more, style="dim")]
    drawn = Grid("Dimension", "healthy", "slow", "others", "r", "verdict", right=2)
    for row in chosen:
        drawn.add_row(
            Text(printable(row.title)),
            Text(printable(row.healthy)),
            Text(measured(row.dimension, row.slow_mean, row.unit)),
            Text(measured(row.dimension, row.other_mean, row.unit)),
            Text(signed(row.r)),
            _judged(row.verdict),
        )
    return [*begin("What was different", of), drawn, Text(VERDICTS_TOLD, style="dim"), *rest(chosen, rows)]


def compared(said: Diagnosis) -> str:
    """Whose requests the matrix compares."""
    means = "means over slow requests and the others"
    stretch = said.before_during
    return f"{means} of {engine(stretch.server, stretch.model)}" if stretch is not None else means


def before_during(compared: BeforeDuring, everything: bool) -> Lines:
    """The signals of the worst stretch."""
    if not compared.changes:
        return []
    during, before = compared.during, compared.before
    length = shown_duration(max(0.0, during.end - during.start))
    quiet = f", against {shown_clock(before.start)} to {shown_clock(before.end)}" if before is not None else ""
    lost = f"{lost_of(compared)}; signals of {engine(compared.server, compared.model)}"
    title = begin("The worst stretch", f"{length} from {shown_clock(during.start)} on{quiet}")
    if before is None and not everything:
        return [*title, Text(f"{lost_of(compared)}. {NO_BEFORE}")]
    chosen = some(compared.changes, everything)
    drawn = Grid("Signal", "before", "during", "change")
    for each in chosen:
        drawn.add_row(
            Text(printable(each.title)),
            Text(measured(each.signal, each.before, each.unit)),
            Text(measured(each.signal, each.during, each.unit)),
            Text(moved(each)),
        )
    return [*title, Text(lost), drawn, *rest(chosen, compared.changes)]


def lost_of(compared: BeforeDuring) -> str:
    """What the worst stretch lost, and how much of that is usual."""
    usual = (
        f", {shown_seconds(compared.usual_seconds)} of it as in calm minutes" if compared.usual_seconds > 0.0 else ""
    )
    return f"{shown_seconds(compared.excess_seconds)} lost{usual}"


def engines(found: Sequence[Engine], everything: bool) -> Lines:
    """Who lost how much, where there is more than one."""
    if len(found) < 2 and not (everything and found):
        return []
    chosen = some(found, everything)
    drawn = Grid("Server", "where", "requests", "slow", "lost", right=2)
    drawn.add_texts("mostly by", least=10)
    for each in chosen:
        drawn.add_row(
            Text(engine(each.server, each.model)),
            Text(printable(each.place) or "not bound"),
            Text(f"{each.requests:,}"),
            Text(f"{each.slow_requests:,}"),
            Text(shown_seconds(each.excess_seconds)),
            Text(title_of(each.cause) if each.cause else "-", style=colour_of(each.cause) if each.cause else ""),
        )
    return [*begin("Servers"), drawn, *rest(chosen, found)]


def correlations(pairs: Sequence[Correlation]) -> Lines:
    """Strong pairs, each once."""
    if not pairs:
        return []
    owners = {engine(each.server, each.model) for each in pairs}
    drawn = Grid("Signal", "with", "r", "follows after", "samples", "each", right=2)
    for each in pairs:
        owner = f" of {engine(each.server, each.model)}" if len(owners) > 1 else ""
        drawn.add_row(
            Text(printable(each.x).replace("_", " ")),
            Text(printable(each.y).replace("_", " ") + owner),
            Text(signed(each.r)),
            Text(f"{each.lag_seconds:+.3g} s"),
            Text(f"{each.n_eff:,.0f}"),
            Text(shown_seconds(each.step_seconds)),
        )
    of = f"of {next(iter(owners))}, " if len(owners) == 1 else ""
    return [*begin("What goes together", f"{of}over time, at the best lag"), drawn]


def tenants(found: Interference, everything: bool) -> Lines:
    """Those of one engine that others slow down."""
    chosen = some([each for each in found.tenants if everything or each.verdict in _SUSPICIOUS], everything)
    if not chosen:
        return []
    active = f"{found.active_mean:.1f} active at a time, at most {found.active_most}"
    drawn = Grid("Tenant", "requests", "tokens/s", "by one tenant more", "r", "verdict")
    for each in chosen:
        drawn.add_row(
            Text(printable(each.tenant, 30) or "none named"),
            Text(f"{each.requests:,}"),
            Text(shown(each.tokens_per_second, "")),
            Text(f"{each.slope:+.3g}" if each.slope is not None else "-"),
            Text(signed(each.r)),
            _judged(each.verdict),
        )
    title = begin(f"Tenants of {engine(found.server, found.model)}", active)
    return [*title, drawn, *rest(chosen, found.tenants)]


def batch_jitter(batch: BatchJitter, everything: bool) -> Lines:
    """How steadily an engine's batch is filled."""
    if not (everything or batch.verdict in _SUSPICIOUS):
        return []
    line = Text.assemble(f"{classed(batch)}; ", _judged(batch.verdict))
    if batch.rare_over_frequent is not None:
        line.append(f": rare ones have {batch.rare_over_frequent:.3g} times the jitter of frequent ones")
    drawn = Grid("Queries", "requests", "first token P50", "its jitter P99", "gaps' jitter P99")
    _add_class(drawn, "frequent", batch.frequent)
    _add_class(drawn, "rare", batch.rare)
    full = f"{percent(batch.fill)} full, {batch.open_most:,} open at most"
    return [*begin(f"Batch of {engine(batch.server, batch.model)}", full), line, drawn]


def classed(batch: BatchJitter) -> str:
    """By what queries are told apart, and how they come."""
    by = {"prompt_hash": "told apart by prompt", "tenant": "told apart by tenant", "none": "not told apart"}
    spacing = f"; arrivals vary by {batch.spacing_jitter:.2g}" if batch.spacing_jitter is not None else ""
    return f"Queries {by[batch.classed_by]}{spacing}"


def context_profile(profile: ContextProfile, everything: bool) -> Lines:
    """Latency by context length, where it has a cliff."""
    if not profile.rows or not (everything or profile.cliff):
        return []
    drawn = Grid("From", "requests", "mean", "P95", "growth", "tokens/s", "normalised")
    for row in profile.rows:
        style = "bold red" if profile.cliff and row.bucket == profile.cliff else ""
        drawn.add_row(
            Text(printable(row.bucket, 12), style=style),
            Text(f"{row.requests:,}"),
            Text(shown_seconds(row.response_mean)),
            Text(shown_seconds(row.response_p95), style=style),
            Text(f"x {row.growth:.3g}" if row.growth is not None else "-"),
            Text(shown(row.decode_tokens_per_second, "")),
            Text(shown(row.normalised_throughput, "")),
        )
    cliff = f"a cliff from {printable(profile.cliff, 12)} on" if profile.cliff else "no cliff"
    return [*begin(f"Context lengths of {engine(profile.server, profile.model)}", cliff), drawn]


def response_surface(surface: Surface) -> Lines:
    """Its cells; those that are slow stand out."""
    known = sorted(value for row in surface.values for value in row if value is not None)
    if not known:
        return []
    high = known[min(len(known) - 1, int(_HIGH * len(known)))]
    names = (printable(axis.name, 20).replace("_", " ") for axis in (surface.y, surface.x))
    drawn = Grid(" ╲ ".join(names))
    drawn.add_figures(printable(label, 14) for label in surface.x.labels[:ROWS])
    for label, row in zip(surface.y.labels, surface.values, strict=False):
        cells = [
            Text(shown_seconds(value), style="red" if value >= high > known[0] else "") if value is not None else Text()
            for value in row[:ROWS]
        ]
        drawn.add_row(Text(printable(label, 20)), *cells)
    more = f" {len(surface.x.labels) - ROWS} further columns are left out." if len(surface.x.labels) > ROWS else ""
    return [*begin("Response surface", f"{measure(surface)}; cells of fewer than 5 requests are empty.{more}"), drawn]


def measure(surface: Surface) -> str:
    """``P95 of response time``."""
    return f"P{100 * surface.quantile:.3g} of {printable(surface.measure).replace('_', ' ')}"


def quality(links: Sequence[QualityLink], everything: bool) -> Lines:
    """Scores that go with the token rate."""
    chosen = some([each for each in links if everything or each.verdict in _SUSPICIOUS], everything)
    if not chosen:
        return []
    drawn = Grid("Prompts", "evaluation", "n", "score", "tokens/s", "r", "verdict", right=2)
    for each in chosen:
        drawn.add_row(
            Text(printable(each.prompts, 16) or "all others"),
            Text(printable(each.evaluation, 24)),
            Text(f"{each.n:,}"),
            Text(shown(each.score_mean, "")),
            Text(shown(each.tokens_per_second_mean, "")),
            Text(signed(each.r)),
            _judged(each.verdict),
        )
    return [*begin("Quality and token rate"), drawn, *rest(chosen, links)]


def _add_class(drawn: Grid, name: str, queries: QueryClass) -> None:
    figures = (queries.first_token_p50, queries.first_token_jitter_p99, queries.gap_jitter_p99)
    drawn.add_row(Text(name), Text(f"{queries.requests:,}"), *(Text(shown_seconds(figure)) for figure in figures))


def _judged(verdict: Verdict) -> Text:
    return Text(verdict, style=_VERDICTS[verdict])
