"""``gpumon diagnose --html``: one file that shows a diagnosis in any browser, without network and without a server.

What is told is ``explain.diagnosis.model.Diagnosis``. Every text is escaped. But for the course of time, what plots
show is in tables as well: the page can be read without scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gpumon.diagnosis_figures import Figure, colours, figures
from gpumon.diagnosis_tables import NO_BEFORE, VERDICTS_TOLD, classed, compared, lost_of, measure
from gpumon.diagnosis_text import LOOK_AT, ORDER, action_told, calm_told, cause_told, ready
from gpumon.diagnosis_words import counted, engine, known_s, lasted, measured, moved, period, signed
from gpumon.explain.diagnosis.model import (
    BatchJitter,
    BeforeDuring,
    CauseLost,
    ContextProfile,
    Correlation,
    Diagnosis,
    Engine,
    IncidentBrief,
    Interference,
    MatrixRow,
    QualityLink,
    SlowRequest,
    Surface,
)
from gpumon.markup import Html, begin, escaped, items, judged, table
from gpumon.report_page import document
from gpumon.shown import percent, shown, shown_clock, shown_duration, shown_seconds
from gpumon.terminal import LONG, printable, title_of

_HELP: Final = f'<p class="dim">{VERDICTS_TOLD} Effect: by how many standard deviations the means differ.</p>'
_STYLE: Final = """
caption{text-align:left;color:#666}details{margin:.5rem 0}summary{cursor:pointer;color:#666}
td:first-child{min-width:6.5rem}td.t:nth-child(n+5){min-width:10rem}
.plot{min-width:32rem}#plot-before-during{min-width:52rem}
.bad,.critical{color:#b03a2e;font-weight:600}.suspect,.warning{color:#9a7d0a;font-weight:600}.ok{color:#1e8449}
.unknown,.info{color:#666}.chip{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
"""


def page(said: Diagnosis, command: str, script: str | None = None) -> str:
    """The document. command: what a trace id completes, such as ``gpumon explain``; empty where nobody can be asked.

    script: plotly's; None: that of its package, empty: there are no plots then.
    """
    return document(
        f"{said.node}: why tokens were slow",
        lambda plots: _sections(said, command, plots),
        lambda: figures(said),
        said.version,
        style=_STYLE,
        script=script,
    )


def _sections(said: Diagnosis, command: str, plots: dict[str, Figure]) -> Iterable[str]:
    yield _head(said)
    if said.actions:
        yield begin("What to do", ORDER) + items(map(action_told, said.actions), numbered=True)
    if said.causes:
        yield begin("Causes") + _plot("plot-causes", plots) + _causes(said.causes, known_s(said))
    if "plot-timeline" in plots:
        title = begin("Time lost", "by the cause, and response time, UTC; dotted: incidents opened")
        yield title + _plot("plot-timeline", plots)
    if said.matrix:
        yield begin("What was different", compared(said)) + _matrix(said.matrix)
    if said.before_during is not None and said.before_during.changes:
        yield _before_during(said.before_during, plots)
    if said.slowest:
        yield begin("Requests to look at", LOOK_AT) + _slowest(said.slowest, command)
    if said.incidents:
        yield begin("Incidents") + _incidents(said.incidents)
    if said.engines:
        yield begin("Servers") + _engines(said.engines)
    if said.correlations:
        title = begin("What goes together", "over time, at the best lag")
        yield title + _plot("plot-correlations", plots) + _correlations(said.correlations)
    for number, found in enumerate(said.tenants):
        yield _tenants(found, _plot(f"plot-tenants-{number}", plots))
    for batch in said.batches:
        yield _batch(batch)
    for number, profile in enumerate(said.contexts):
        yield _contexts(profile, _plot(f"plot-contexts-{number}", plots))
    if said.surface is not None:
        yield _surface(said.surface, _plot("plot-surface", plots))
    if said.quality:
        yield begin("Quality and token rate") + _quality(said.quality)
    if said.notes:
        yield begin("Not told") + items(said.notes)


def _head(said: Diagnosis) -> str:
    sentences = "".join(f"<p>{escaped(sentence, LONG)}</p>" for sentence in said.verdict)
    return f'<p class="dim">{escaped(period(said), LONG)}</p><div class="verdict">{sentences}</div>'


def _causes(causes: Sequence[CauseLost], period_s: float) -> str:
    shades = colours([each.cause for each in causes])
    rows = [
        (
            Html(f'<span class="chip" style="background:{shades[each.cause]}"></span>{escaped(each.title)}'),
            shown_seconds(each.seconds),
            percent(each.share),
            f"{each.requests:,}",
            "; ".join(part for part in (cause_told(each), calm_told(each, period_s)) if part),
        )
        for each in causes
    ]
    return table(("Cause", "lost", "share", "requests", "based on"), rows, left=(0, 4))


def _matrix(rows: Sequence[MatrixRow]) -> str:
    """Those that differ; the others are there to be opened."""
    differ = [row for row in rows if row.verdict in ("bad", "suspect")]
    others = [row for row in rows if row not in differ]
    told = f"{_dimensions(differ)}{_HELP}" if differ else "<p>Nothing that was watched.</p>"
    if not others:
        return told
    known = sum(row.verdict == "ok" for row in others)
    unknown = f", {len(others) - known} that are not known" if len(others) > known else ""
    summary = f"{known} that were as on the other requests{unknown}"
    return f"{told}<details><summary>{summary}</summary>{_dimensions(others)}</details>"


def _dimensions(rows: Sequence[MatrixRow]) -> str:
    told = [
        (
            row.title,
            printable(row.healthy),
            measured(row.dimension, row.slow_mean, row.unit),
            measured(row.dimension, row.other_mean, row.unit),
            f"{row.effect:+.2f}" if row.effect is not None else "-",
            signed(row.r),
            f"{row.n:,}",
            judged(row.verdict),
        )
        for row in rows
    ]
    titles = ("Dimension", "healthy", "slow", "others", "effect, sd", "r", "n", "verdict")
    return table(titles, told, left=(0, 1))


def _before_during(found: BeforeDuring, plots: dict[str, Figure]) -> str:
    during, before = found.during, found.before
    length = shown_duration(max(0.0, during.end - during.start))
    quiet = f", against {shown_clock(before.start)} to {shown_clock(before.end)}" if before is not None else ""
    title = begin("The worst stretch", f"{length} from {shown_clock(during.start)} on{quiet}")
    lost = f"{lost_of(found)}; signals of {engine(found.server, found.model)}"
    if before is None:
        lost = f"{lost_of(found)}. {NO_BEFORE}"
    rows = [
        (
            each.title,
            measured(each.signal, each.before, each.unit),
            measured(each.signal, each.during, each.unit),
            moved(each),
        )
        for each in found.changes
    ]
    told, plot = table(("Signal", "before", "during", "change"), rows), _plot("plot-before-during", plots)
    if plot or before is None:
        told = f"<details><summary>{counted(len(rows), 'signal')} in figures</summary>{told}</details>"
    return f"{title}<p>{escaped(lost, LONG)}</p>{plot}{told}"


def _slowest(requests: Sequence[SlowRequest], command: str) -> str:
    rows = [
        (
            shown_clock(each.started),
            engine(each.server, each.model),
            each.tenant,
            shown_seconds(each.duration_seconds),
            shown_seconds(each.excess_seconds),
            f"{title_of(each.cause)} {percent(each.cause_share)}" if each.cause else "-",
            Html(f"<code>{escaped(ready(command, each.trace_id) or each.trace_id, LONG)}</code>"),
        )
        for each in requests
    ]
    return table(("Began", "server", "tenant", "took", "late by", "cause", "more"), rows, left=(0, 1, 2, 5, 6))


def _incidents(incidents: Sequence[IncidentBrief]) -> str:
    rows = [
        (
            shown_clock(each.opened),
            Html(f'<span class="{each.severity}">{each.severity}</span>'),
            each.title,
            each.entity,
            lasted(each).removeprefix("lasted "),
            each.summary,
            ", ".join(map(title_of, each.causes)),
        )
        for each in incidents
    ]
    titles = ("Opened", "severity", "what", "of", "lasted", "summary", "causes meanwhile")
    return table(titles, rows, left=(0, 1, 2, 3, 5, 6))


def _engines(found: Sequence[Engine]) -> str:
    rows = [
        (
            engine(each.server, each.model),
            each.place or "not bound",
            f"{each.requests:,}",
            f"{each.slow_requests:,}",
            shown_seconds(each.token_seconds),
            shown_seconds(each.excess_seconds),
            title_of(each.cause) if each.cause else "-",
        )
        for each in found
    ]
    titles = ("Server", "where", "requests", "slow", "time", "lost", "mostly by")
    return table(titles, rows, left=(0, 1))


def _correlations(pairs: Sequence[Correlation]) -> str:
    rows = [
        (
            each.x.replace("_", " "),
            f"{each.y.replace('_', ' ')} of {engine(each.server, each.model)}",
            signed(each.r),
            f"{each.lag_seconds:+.3g} s",
            f"{each.n_eff:,.0f}",
            shown_seconds(each.step_seconds),
            f"{each.p:.1g}",
        )
        for each in pairs
    ]
    return table(("Signal", "with", "r", "follows after", "samples", "each", "p"), rows, left=(0, 1))


def _tenants(found: Interference, plot: str) -> str:
    rows = [
        (
            each.tenant or "none named",
            f"{each.requests:,}",
            shown(each.tokens_per_second, ""),
            f"{each.slope:+.3g}" if each.slope is not None else "-",
            signed(each.r),
            judged(each.verdict),
        )
        for each in found.tenants
    ]
    active = f"{found.active_mean:.1f} active at a time, at most {found.active_most}"
    titles = ("Tenant", "requests", "tokens/s", "by one tenant more", "r", "verdict")
    return begin(f"Tenants of {engine(found.server, found.model)}", active) + plot + table(titles, rows)


def _batch(batch: BatchJitter) -> str:
    rows = [
        (
            name,
            f"{each.requests:,}",
            *map(shown_seconds, (each.first_token_p50, each.first_token_jitter_p99, each.gap_jitter_p99)),
        )
        for name, each in (("frequent", batch.frequent), ("rare", batch.rare))
    ]
    full = f"{percent(batch.fill)} full, {batch.open_most:,} open at most"
    more = f"{batch.rare_over_frequent:.3g} times the jitter for rare ones" if batch.rare_over_frequent else ""
    told = f"<p>{escaped(classed(batch), LONG)}; {judged(batch.verdict)} {more}</p>"
    titles = ("Queries", "requests", "first token P50", "its jitter P99", "gaps' jitter P99")
    return begin(f"Batch of {engine(batch.server, batch.model)}", full) + told + table(titles, rows)


def _contexts(profile: ContextProfile, plot: str) -> str:
    rows = [
        (
            row.bucket,
            f"{row.requests:,}",
            shown_seconds(row.response_mean),
            shown_seconds(row.response_p95),
            shown_seconds(row.first_token_p95),
            f"x {row.growth:.3g}" if row.growth is not None else "-",
            shown(row.decode_tokens_per_second, ""),
            shown(row.normalised_throughput, ""),
        )
        for row in profile.rows
    ]
    marked = {number for number, row in enumerate(profile.rows) if profile.cliff and row.bucket == profile.cliff}
    cliff = f"a cliff from {printable(profile.cliff)} on" if profile.cliff else "no cliff"
    titles = ("From", "requests", "mean", "P95", "first token P95", "growth", "tokens/s", "normalised")
    title = begin(f"Context lengths of {engine(profile.server, profile.model)}", cliff)
    return title + plot + table(titles, rows, marked=marked)


def _surface(surface: Surface, plot: str) -> str:
    rows = [
        (label, *(shown_seconds(value) if value is not None else "" for value in row))
        for label, row in zip(surface.y.labels, surface.values, strict=False)
    ]
    corner = f"{surface.y.name.replace('_', ' ')} by {surface.x.name.replace('_', ' ')}"
    title = begin("Response surface", f"{measure(surface)}; cells of fewer than 5 requests are empty")
    return title + plot + table((corner, *surface.x.labels), rows)


def _quality(links: Sequence[QualityLink]) -> str:
    rows = [
        (
            engine(each.server, each.model),
            each.prompts or "all others",
            each.evaluation,
            f"{each.n:,}",
            shown(each.score_mean, ""),
            shown(each.tokens_per_second_mean, ""),
            signed(each.r),
            judged(each.verdict),
        )
        for each in links
    ]
    titles = ("Server", "prompts", "evaluation", "n", "score", "tokens/s", "r", "verdict")
    return table(titles, rows, left=(0, 1, 2))


def _plot(place_id: str, plots: dict[str, Figure]) -> str:
    return f'<div class="scroll"><div class="plot" id="{place_id}"></div></div>' if place_id in plots else ""
