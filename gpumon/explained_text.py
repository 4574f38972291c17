"""``gpumon explain`` on a terminal: how late a request was, why, when, and what to do about it.

What is told is ``web.explanation.Trace``, as a running gpumon answers it. In the row of tokens each column is as high
as the longest gap that ends in it, on a logarithmic scale from the median gap up; a letter below it names the cause of
the slowest gap there, so that nothing is told by colour alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gpumon.explain.causes import TABLE, UNEXPLAINED
from gpumon.explain.diagnosis.facts import PHRASES
from gpumon.record.comparison import shown, shown_duration, shown_time
from gpumon.terminal import bar, bound, colour_of, figure, heading, percent, printable, table, title_of
from gpumon.web.explanation import Account, Explanation, Fact, Share, SlowGap, Tokens, Trace

GAPS_SHOWN: Final = 12
_TITLE_WIDTH = 26
_BAR_WIDTH = 20
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPAN_LEAST = 4.0
"""Longest gap over the median at which the row has its full height: below it nothing stands out."""
_EVIDENCE_TOLD = 0.995
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def render(console: Console, trace: Trace, everything: bool = False) -> None:
    """Write all of a trace. everything: every slow gap and every mean, not only what stands out."""
    for number, request in enumerate(trace.requests):
        if number:
            console.rule(style="dim")
        _request(console, request, everything)
    if trace.left_out:
        console.print()
        console.print(Text(f"{trace.left_out:,} further requests of this trace were less late and are left out."))


def _request(console: Console, request: Explanation, everything: bool) -> None:
    for line in _header(request):
        console.print(line)
    if request.causes:
        console.print()
        console.print(heading("Why"))
        for each_line in _why(request):
            console.print(each_line)
    letters = {each.cause: _LETTERS[number % 26] for number, each in enumerate(request.causes)}
    if request.tokens is not None and request.tokens.steps > 1:
        console.print()
        for line in _timeline(request, request.tokens, letters, console.width):
            console.print(line)
    if request.slow_gaps:
        _slow_gaps(console, request, everything)
    if everything and request.signals:
        means = table("Mean over the request", "healthy", "", right=2)
        for signal in request.signals:
            told = bound(signal.healthy, signal.unit), figure(signal.value, signal.unit)
            means.add_row(Text(printable(signal.title)), *map(Text, told))
        console.print()
        console.print(means)
    for line in _advice(request):
        console.print(line)


# --- who and how late -------------------------------------------------------------------------------------------------


def _header(request: Explanation) -> list[Text]:
    model = Text.assemble((printable(request.model) or "a model without a name", "bold"))
    model.append(f" on {printable(request.server)}")
    if request.tenant:
        model.append(f", tenant {printable(request.tenant)}")
    if request.outcome != "ok":
        model.append(f", {printable(request.outcome)}", style="yellow")
    lines = [model, Text(f"Trace {printable(request.trace_id)}{_named(request.request_id)}")]
    lines.append(
        Text(f"Began {shown_time(request.start)}, took {_seconds(request.duration_seconds)}; {_others(request)}")
    )
    if request.gpus:
        told = ", ".join(printable(uuid) for uuid in request.gpus[:8])
        lines.append(Text(f"GPU{'s' if len(request.gpus) > 1 else ''} {told}{'…' if len(request.gpus) > 8 else ''}"))
    else:
        why = f" ({printable(request.unbound).replace('_', ' ')})" if request.unbound else ""
        lines.append(Text(f"Not bound to GPUs{why}: what its GPUs did is not known"))
    lines += [Text(_amounts(request)), *_times(request), _verdict(request)]
    return [line for line in lines if line.plain]


def _named(request_id: str) -> str:
    return f", request {printable(request_id)}" if request_id else ""


def _others(request: Explanation) -> str:
    count = request.concurrency
    return f"{count} open on the server" if count > 1 else "alone on the server"


def _amounts(request: Explanation) -> str:
    parts = []
    if request.prompt_tokens is not None:
        cached = f" ({request.cached_tokens:,} cached)" if request.cached_tokens else ""
        parts.append(f"prompt {request.prompt_tokens:,} tokens{cached}")
    if request.completion_tokens is not None:
        parts.append(f"{request.completion_tokens:,} made")
    if request.tokens_per_second is not None:
        parts.append(f"{shown(request.tokens_per_second, '')} tokens/s after the first")
    text = ", ".join(parts)
    return text[:1].upper() + text[1:]


def _times(request: Explanation) -> list[Text]:
    lines = []
    first = request.first_token
    if request.time_to_first_token_seconds is not None:
        queued = f", {_seconds(request.queue_seconds)} of it queued" if request.queue_seconds else ""
        usual = _usually(first)
        lines.append(Text(f"First token after {_seconds(request.time_to_first_token_seconds)}{usual}{queued}"))
    if request.decode.actual_seconds > 0.0:
        lines.append(
            Text(f"The tokens after it took {_seconds(request.decode.actual_seconds)}{_usually(request.decode)}")
        )
    return lines


def _usually(account: Account) -> str:
    if account.expected_seconds is None:
        return " (what is usual is not known yet)"
    return f", usually {_seconds(account.expected_seconds)}"


def _verdict(request: Explanation) -> Text:
    if request.excess_seconds <= 0.0:
        known = request.first_token.expected_seconds is not None or request.decode.expected_seconds is not None
        return Text("Not late." if known else "Too little is known yet to say whether it was late.", style="green")
    first, decode = request.first_token.excess_seconds, request.decode.excess_seconds
    both = f": {_seconds(first)} until the first token, {_seconds(decode)} between tokens" if first and decode else ""
    where = both or (" until the first token" if first else " between tokens")
    return Text.assemble((f"Late by {_seconds(request.excess_seconds)}", "bold red"), where)


# --- why --------------------------------------------------------------------------------------------------------------


def _why(request: Explanation) -> list[Text | Padding]:
    lines: list[Text | Padding] = []
    for number, each in enumerate(request.causes):
        title = title_of(each.cause)
        line = Text(f"{_LETTERS[number % 26]} {title:<{_TITLE_WIDTH}} ")
        line.append(f"{bar(each.share, _BAR_WIDTH):<{_BAR_WIDTH}}", style=colour_of(each.cause))
        line.append(f" {_seconds(each.seconds):>8} {percent(each.share):>6}  ")
        line.append("fault" if each.fault else "" if each.cause == UNEXPLAINED else "load", style="dim")
        lines.append(line)
        told = _proof(_largest(request, each.cause))
        if told:
            lines.append(Padding(Text(told, style="dim"), (0, 0, 0, 2), expand=False))
    return lines


def _largest(request: Explanation, cause: str) -> Share | None:
    """Of the shares of a cause the one with a fact, and of those the largest."""
    shares = [each for each in (*request.first_token.shares, *request.decode.shares) if each.cause == cause]
    return max(shares, key=lambda each: (each.fact is not None, each.seconds), default=None)


def _proof(share: Share | None) -> str:
    """What speaks for a cause."""
    if share is None or share.cause == UNEXPLAINED:
        return ""
    parts = [_fact(share.fact)] if share.fact is not None else []
    if share.lift is not None:
        parts.append(f"{shown(share.lift, '')} times as much lateness while it held")
    if 0.0 < share.evidence < _EVIDENCE_TOLD:  # 0: worked out from load, there is nothing to be sure of
        parts.append(f"{percent(share.evidence)} sure")
    return "; ".join(parts)


def _fact(fact: Fact) -> str:
    usual = f", usually {shown(fact.usual, fact.unit)}" if fact.usual is not None else ""
    name = PHRASES.get(fact.name) or printable(fact.name).replace("_", " ")
    return f"{name} {shown(fact.observed, fact.unit)}{usual}"


# --- when -------------------------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    gap_ms: float
    """The longest that ends here; 0 where none does."""
    cause: str
    """Of the slow gap with the most excess that touches this time; empty where there is none."""


def _timeline(request: Explanation, tokens: Tokens, letters: dict[str, str], width: int) -> list[Text]:
    end_ms = max(tokens.ms[-1] if tokens.ms else 0.0, 1e3 * request.duration_seconds, 1e-3)
    columns = _columns(tokens, request.slow_gaps, end_ms, width)
    known = [gap for gap in tokens.gap_ms if gap is not None and gap > 0.0]
    typical = statistics.median(known) if known else 1.0
    most = max((column.gap_ms for column in columns), default=0.0)
    title = heading("Tokens")
    title.append(
        f" ({tokens.steps:,} steps; {_BLOCKS[0]} {_ms(typical)} and less, {_BLOCKS[-1]} {_ms(most)})", style="dim"
    )
    blocks, marks = Text(no_wrap=True), Text(no_wrap=True)
    first_ms = tokens.ms[0] if tokens.ms else 0.0
    for number, column in enumerate(columns):
        style = colour_of(column.cause) if column.cause else "default"
        waits = (number + 1) * end_ms / width <= first_ms
        blocks.append("·" if waits else _block(column.gap_ms, typical, most), style=style)
        marks.append(letters.get(column.cause, "?") if column.cause else " ", style=style)
    lines = [title, blocks]
    if marks.plain.strip():
        marks.rstrip()
        lines.append(marks)
    begin, end = "0 s", _seconds(end_ms / 1e3)
    lines.append(Text(f"{begin}{end:>{max(1, width - len(begin))}}", style="dim"))
    if marks.plain.strip():
        lines.append(_legend(columns, letters))
    return lines


def _columns(tokens: Tokens, slow: Sequence[SlowGap], end_ms: float, width: int) -> list[_Column]:
    gaps = [0.0] * width

    def place_of(at_ms: float) -> int:
        return min(width - 1, max(0, int(at_ms / end_ms * width)))

    for at_ms, gap_ms in zip(tokens.ms, tokens.gap_ms, strict=False):
        if gap_ms is None:
            continue
        first, last = place_of(at_ms - gap_ms), place_of(at_ms)
        # The time before the token, in which nothing came, is the gap's as well; its first column is another one's end.
        for place in range(first if gaps[first] == 0.0 else first + 1, last + 1):
            gaps[place] = max(gaps[place], gap_ms)
    causes, worst = [""] * width, [0.0] * width
    for gap in slow:
        if not gap.cause:
            continue
        last = place_of(gap.start_ms + 1e3 * gap.duration_seconds)
        for place in range(place_of(gap.start_ms), last + 1):
            if gap.excess_seconds > worst[place]:
                causes[place], worst[place] = gap.cause, gap.excess_seconds
    return [_Column(*each) for each in zip(gaps, causes, strict=True)]


def _block(gap_ms: float, typical_ms: float, most_ms: float) -> str:
    if gap_ms <= 0.0:
        return " "
    if gap_ms <= typical_ms:
        return _BLOCKS[0]
    height = math.log(gap_ms / typical_ms) / math.log(max(most_ms / typical_ms, _SPAN_LEAST))
    return _BLOCKS[min(len(_BLOCKS) - 1, int(height * len(_BLOCKS)))]


def _legend(columns: Sequence[_Column], letters: dict[str, str]) -> Text:
    legend = Text()
    for cause in dict.fromkeys(column.cause for column in columns if column.cause):
        legend.append(f"{'  ' if legend.plain else ''}{letters.get(cause, '?')}", style=colour_of(cause))
        legend.append(f" {title_of(cause)}")
    return legend


def _slow_gaps(console: Console, request: Explanation, everything: bool) -> None:
    by_excess = sorted(request.slow_gaps, key=lambda gap: -gap.excess_seconds)
    chosen = by_excess if everything else by_excess[:GAPS_SHOWN]
    rows = table("At", "took", "usually", "tokens", "what held meanwhile", right=0)
    rows.columns[-1].justify, rows.columns[-1].no_wrap, rows.columns[-1].overflow = "left", False, "fold"
    for gap in sorted(chosen, key=lambda gap: gap.start_ms):
        figures = (
            f"{gap.start_ms / 1e3:,.3f} s",
            _seconds(gap.duration_seconds),
            _seconds(gap.expected_seconds),
            f"{gap.tokens:,}",
        )
        rows.add_row(*(Text(figure) for figure in figures), _conditions(gap))
    console.print()
    title = heading("When it was slow")
    title.append(" (single gaps, and stretches of tokens that were late together)", style="not bold dim")
    console.print(title)
    console.print(rows)
    if len(chosen) < len(by_excess):
        console.print(Text(f"The {len(chosen)} slowest of {len(by_excess)}; --all shows the rest.", style="dim"))


def _conditions(gap: SlowGap) -> Text:
    told = Text()
    for share in gap.shares[:3]:
        told.append(", " if told.plain else "")
        told.append(title_of(share.cause), style=colour_of(share.cause))
        told.append(f" {percent(share.seconds / gap.excess_seconds)}" if gap.excess_seconds > 0.0 else "")
    if gap.shares and gap.shares[0].fact is not None:
        told.append(f" ({_fact(gap.shares[0].fact)})", style="dim")
    return told


# --- what to do -------------------------------------------------------------------------------------------------------


def _advice(request: Explanation) -> list[Text]:
    """For the causes that matter: a tenth of the excess, the first one anyway."""
    chosen = [
        each
        for number, each in enumerate(request.causes)
        if each.cause in TABLE and (number == 0 or (each.share >= 0.1 and each.cause != UNEXPLAINED))
    ]
    lines = [Text(), heading("What to do")] if chosen else []
    lines += [
        Text.assemble((title_of(each.cause), colour_of(each.cause)), f": {TABLE[each.cause].action}") for each in chosen
    ]
    return lines


def _seconds(seconds: float) -> str:
    return shown_duration(seconds) if seconds >= 100.0 else shown(seconds, "seconds")


def _ms(milliseconds: float) -> str:
    return shown(milliseconds / 1e3, "seconds")
