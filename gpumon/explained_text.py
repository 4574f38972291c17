"""``gpumon explain`` on a terminal: how late a request was, why, when, and what to do about it.

What is told is ``web.explanation.Trace``, as a running gpumon answers it. 80 columns are enough; on fewer, what stands
side by side there stands below one another.
"""

from __future__ import annotations

import re
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gpumon.diagnosis_words import measured
from gpumon.explain.causes import TABLE, UNEXPLAINED
from gpumon.explain.diagnosis.facts import observed_text
from gpumon.explained_row import row
from gpumon.grid import Grid
from gpumon.shown import percent, shown, shown_seconds, shown_time
from gpumon.terminal import LONG, bar, colour_of, heading, printable, title_of
from gpumon.web.explanation import Account, Explanation, Fact, Share, SlowGap, Trace

GAPS_SHOWN: Final = 12
_TITLE_WIDTH = 26
_BAR_WIDTH = 20
_SIDE_BY_SIDE: Final = 74
"""Columns of a cause with its bar and figures on one line."""
_CAUSES_OF_GAP: Final = 3
_LITTLE: Final = 0.05
"""Of a gap: a cause that explains less of it is told in the sum alone."""
_GPUS: Final = 8
_UUID: Final = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{27}", re.ASCII)
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
    for line in _header(request, everything):
        console.print(line)
    if request.causes:
        console.print()
        console.print(heading("Why"))
        for each_line in _why(request, console.width):
            console.print(each_line)
    letters = {each.cause: _LETTERS[number % 26] for number, each in enumerate(request.causes)}
    if request.tokens is not None and request.tokens.steps > 1:
        console.print()
        for line in row(request, request.tokens, letters, console.width):
            console.print(line)
    if request.slow_gaps:
        _slow_gaps(console, request, everything)
    if everything and request.signals:
        means = Grid("Mean over the request", "healthy", "mean", right=2)
        for signal in request.signals:
            told = printable(signal.healthy), measured(signal.name, signal.value, signal.unit)
            means.add_row(Text(printable(signal.title)), *map(Text, told))
        console.print()
        console.print(means)
    for line in _advice(request):
        console.print(line)


# --- who and how late -------------------------------------------------------------------------------------------------


def _header(request: Explanation, everything: bool) -> list[Text]:
    model = Text.assemble((printable(request.model) or "a model without a name", "bold"))
    model.append(f" on {printable(request.server)}")
    if request.tenant:
        model.append(f", tenant {printable(request.tenant)}")
    if request.outcome != "ok":
        model.append(f", {printable(request.outcome)}", style="yellow")
    lines = [model, Text(f"Trace {printable(request.trace_id)}{_named(request.request_id)}")]
    lines.append(
        Text(f"Began {shown_time(request.start)}, took {shown_seconds(request.duration_seconds)}; {_others(request)}")
    )
    if request.gpus:
        # The first eight digits tell GPUs of a node apart; the rest is for machines.
        names = [uuid if everything else _UUID.sub(r"\1", uuid) for uuid in request.gpus]
        told = ", ".join(map(printable, names[:_GPUS])) + (" …" if len(names) > _GPUS else "")
        lines.append(Text(f"GPU{'s' if len(names) > 1 else ''} {told}"))
    else:
        why = f" ({printable(request.unbound).replace('_', ' ')})" if request.unbound else ""
        lines.append(Text(f"Not bound to GPUs{why}: what its GPUs did is not known"))
    lines += [Text(_amounts(request)), *_times(request), _verdict(request)]
    return [line for line in lines if line.plain]


def _named(request_id: str) -> str:
    return f", request {printable(request_id)}" if request_id else ""


def _others(request: Explanation) -> str:
    others = request.concurrency - 1
    told = f"{others:,} other{'s' if others > 1 else ''}" if others > 0 else "no other"
    return f"{told} open when it came"


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
        queued = f", {shown_seconds(request.queue_seconds)} of it queued" if request.queue_seconds else ""
        usual = _usually(first)
        lines.append(Text(f"First token after {shown_seconds(request.time_to_first_token_seconds)}{usual}{queued}"))
    if request.decode.actual_seconds > 0.0:
        lines.append(
            Text(f"The tokens after it took {shown_seconds(request.decode.actual_seconds)}{_usually(request.decode)}")
        )
    return lines


def _usually(account: Account) -> str:
    if account.expected_seconds is None:
        return " (what is usual is not known yet)"
    return f", usually {shown_seconds(account.expected_seconds)}"


def _verdict(request: Explanation) -> Text:
    if request.excess_seconds <= 0.0:
        known = request.first_token.expected_seconds is not None or request.decode.expected_seconds is not None
        return Text("Not late." if known else "Too little is known yet to say whether it was late.", style="green")
    first, decode = request.first_token.excess_seconds, request.decode.excess_seconds
    both = (
        f": {shown_seconds(first)} until the first token, {shown_seconds(decode)} between tokens"
        if first and decode
        else ""
    )
    where = both or (" until the first token" if first else " between tokens")
    return Text.assemble((f"Late by {shown_seconds(request.excess_seconds)}", "bold red"), where)


# --- why --------------------------------------------------------------------------------------------------------------


def _why(request: Explanation, width: int) -> list[Text | Padding]:
    lines: list[Text | Padding] = []
    for number, each in enumerate(request.causes):
        line = Text(f"{_LETTERS[number % 26]} {title_of(each.cause):<{_TITLE_WIDTH}} ")
        lost, share = shown_seconds(each.seconds), percent(each.share)
        kind = "fault" if each.fault else "" if each.cause == UNEXPLAINED else "load"
        told = _proof(_largest(request, each.cause))
        if width >= _SIDE_BY_SIDE:
            line.append(f"{bar(each.share, _BAR_WIDTH):<{_BAR_WIDTH}}", style=colour_of(each.cause))
            line.append(f" {lost:>11} {share:>5}  ").append(kind, style="dim")
        else:
            line.append(bar(each.share, max(1, min(_BAR_WIDTH, width - line.cell_len))), style=colour_of(each.cause))
            told = "; ".join(part for part in (f"{lost}, {share}", kind, told) if part)
        lines.append(line)
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
    parts = [told] if share.fact is not None and (told := _fact(share.fact)) else []
    if share.lift is not None:
        parts.append(f"{shown(share.lift, '')} times as much lateness while it held")
    if 0.0 < share.evidence < _EVIDENCE_TOLD:  # 0: worked out from load, there is nothing to be sure of
        parts.append(f"{percent(share.evidence)} sure")
    return "; ".join(parts)


def _fact(fact: Fact) -> str:
    return printable(observed_text(fact.name, fact.observed, fact.unit, fact.usual), LONG)


# --- when -------------------------------------------------------------------------------------------------------------


def _slow_gaps(console: Console, request: Explanation, everything: bool) -> None:
    by_excess = sorted(request.slow_gaps, key=lambda gap: -gap.excess_seconds)
    chosen = by_excess if everything else by_excess[:GAPS_SHOWN]
    rows = Grid("At", "took", "usually", "tokens", right=0)
    rows.add_texts("what held meanwhile", least=24)
    told: set[str] = set()
    for gap in sorted(chosen, key=lambda gap: gap.start_ms):
        figures = (
            f"{gap.start_ms / 1e3:,.3f} s",
            shown_seconds(gap.duration_seconds),
            shown_seconds(gap.expected_seconds),
            f"{gap.tokens:,}",
        )
        rows.add_row(*map(Text, figures), _conditions(gap, told))
    console.print()
    title = heading("When it was slow")
    title.append(" (single gaps, and stretches of tokens that were late together)", style="not bold dim")
    console.print(title)
    console.print(rows)
    if len(chosen) < len(by_excess):
        console.print(Text(f"The {len(chosen)} slowest of {len(by_excess)}; --all shows the rest.", style="dim"))


def _conditions(gap: SlowGap, told: set[str]) -> Text:
    """told: names of facts that were told in full before; that of this gap is added."""
    line = Text()
    for number, share in enumerate(gap.shares[:_CAUSES_OF_GAP]):
        part = share.seconds / gap.excess_seconds if gap.excess_seconds > 0.0 else None
        if number and part is not None and part < _LITTLE:
            break
        line.append(", " if number else "")
        line.append(title_of(share.cause), style=colour_of(share.cause))
        line.append(f" {percent(part)}" if part is not None else "")
    fact = gap.shares[0].fact if gap.shares else None
    if fact is not None and (in_full := _fact(fact)):
        # Of the same fact again the figure is enough, where it moves at all.
        again = "" if in_full in told else shown(fact.observed, fact.unit) if fact.name in told else in_full
        told |= {fact.name, in_full}
        line.append(f" ({again})" if again else "", style="dim")
    return line


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
