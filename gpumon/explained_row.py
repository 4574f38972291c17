"""The row of tokens of ``gpumon explain``: one request from its begin to its end, as wide as the terminal.

Each column is as high as the longest gap that ends in it, on a logarithmic scale from what was expected up (from the
request's own median, where nothing was expected); a letter below it names the cause of the slowest gap there, so that
nothing is told by colour alone. Of a long answer every column holds so many gaps that its longest one says little:
then a second row has their mean, on a scale of its own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rich.text import Text

from gpumon.shown import shown_seconds
from gpumon.terminal import colour_of, heading, title_of
from gpumon.web.explanation import Explanation, SlowGap, Tokens

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_SPAN_LEAST: Final = 4.0
"""Longest gap over the expected one at which the row has its full height: below it nothing stands out."""
_MEAN_SPAN_LEAST: Final = 2.0
"""Likewise of the mean of many."""
_MANY: Final = 20
"""Steps to a column, from which on their mean is told."""
_LEAST_WIDTH: Final = 30
"""Of the terminal, for rows with names."""
_KEPT: Final = 64
"""Slow gaps that an answer has at most: the slowest ones."""


class _Columns(NamedTuple):
    longest_ms: list[float]
    """Of the gaps that end in each; 0 where none does."""
    causes: list[str]
    """Of the slow gap with the most excess that touches each; empty where there is none."""
    means_ms: list[float] | None
    """Mean gap; None where there are few to a column."""


def row(request: Explanation, tokens: Tokens, letters: Mapping[str, str], width: int) -> list[Text]:
    """Its lines. letters: by cause. width: columns of the terminal."""
    is_long = tokens.steps > _MANY * width and width >= _LEAST_WIDTH
    labels = ("longest ", "mean    ") if is_long else ("", "")
    across = width - len(labels[0])
    end_ms = max(tokens.ms[-1] if tokens.ms else 0.0, 1e3 * request.duration_seconds, 1e-3)
    first_ms = tokens.ms[0] if tokens.ms else 0.0
    columns = _columns(tokens, request.slow_gaps, end_ms, across, is_long=is_long)
    typical_ms, origin = _typical(request, tokens)
    most_ms = max(columns.longest_ms, default=0.0)
    scale = f"{tokens.steps:,} steps; {_BLOCKS[0]} {_ms(typical_ms)} {origin}, or less; {_BLOCKS[-1]} {_ms(most_ms)}"
    waits = [(number + 1) * end_ms / across <= first_ms for number in range(across)]
    lines = [_drawn(labels[0], columns.longest_ms, columns.causes, waits, (typical_ms, most_ms, _SPAN_LEAST))]
    if columns.means_ms is not None:
        most_mean_ms = max(columns.means_ms, default=0.0)
        scale += f" longest, {_ms(most_mean_ms)} mean"
        span = (typical_ms, most_mean_ms, _MEAN_SPAN_LEAST)
        lines.append(_drawn(labels[1], columns.means_ms, columns.causes, waits, span))
    title = heading("Tokens")
    title.append(f" ({scale})", style="not bold dim")
    lines.insert(0, title)
    marked = any(columns.causes)
    if marked:
        marks = Text(" " * len(labels[0]), no_wrap=True)
        for cause in columns.causes:
            marks.append(letters.get(cause, "?") if cause else " ", style=colour_of(cause) if cause else "")
        marks.rstrip()
        lines.append(marks)
    begin, end = " " * len(labels[0]) + "0 s", shown_seconds(end_ms / 1e3)
    lines.append(Text(f"{begin}{end:>{max(1, width - len(begin))}}", style="dim"))
    if marked:
        lines.append(_legend(columns.causes, letters, is_cut=len(request.slow_gaps) >= _KEPT))
    return lines


def _typical(request: Explanation, tokens: Tokens) -> tuple[float, str]:
    """Milliseconds of a usual gap, and whence they are."""
    expected_s = request.decode.expected_seconds
    if expected_s is not None and expected_s > 0.0 and tokens.steps > 1:
        return 1e3 * expected_s / (tokens.steps - 1), "as expected"
    known = [gap for gap in tokens.gap_ms if gap is not None and gap > 0.0]
    return (statistics.median(known) if known else 1.0), "its median"


def _columns(tokens: Tokens, slow: Sequence[SlowGap], end_ms: float, width: int, *, is_long: bool) -> _Columns:
    longest = [0.0] * width

    def place_of(at_ms: float) -> int:
        return min(width - 1, max(0, int(at_ms / end_ms * width)))

    for at_ms, gap_ms in zip(tokens.ms, tokens.gap_ms, strict=False):
        if gap_ms is None:
            continue
        first, last = place_of(at_ms - gap_ms), place_of(at_ms)
        # The time before the token, in which nothing came, is the gap's as well; where it began another one may end.
        begins = first if first == last or longest[first] == 0.0 else first + 1
        for place in range(begins, last + 1):
            longest[place] = max(longest[place], gap_ms)
    causes, worst = [""] * width, [0.0] * width
    for gap in slow:
        if not gap.cause:
            continue
        last = place_of(gap.start_ms + 1e3 * gap.duration_seconds)
        for place in range(place_of(gap.start_ms), last + 1):
            if gap.excess_seconds > worst[place]:
                causes[place], worst[place] = gap.cause, gap.excess_seconds
    return _Columns(longest, causes, _means(tokens, end_ms, width) if is_long else None)


def _means(tokens: Tokens, end_ms: float, width: int) -> list[float]:
    """Mean gap of each column. Of thinned steps as many are between two points on the mean."""
    each = (tokens.steps - 1) / max(1, len(tokens.ms) - 1)
    steps, spent_ms = [0.0] * width, [0.0] * width
    step_ms = end_ms / width
    for begin_ms, at_ms in zip(tokens.ms, tokens.ms[1:], strict=False):
        if not 0.0 <= begin_ms < at_ms <= end_ms:
            continue
        first, last = int(begin_ms / step_ms), min(width - 1, int(at_ms / step_ms))
        for place in range(min(first, width - 1), last + 1):
            inside_ms = max(0.0, min(at_ms, (place + 1) * step_ms) - max(begin_ms, place * step_ms))
            steps[place] += each * inside_ms / (at_ms - begin_ms)
            spent_ms[place] += inside_ms
    return [spent / count if count > 0.0 else 0.0 for spent, count in zip(spent_ms, steps, strict=True)]


def _drawn(
    label: str, gaps_ms: Sequence[float], causes: Sequence[str], waits: Sequence[bool], span: tuple[float, float, float]
) -> Text:
    """A row. waits: where the first token was still to come. span: as ``_block``'s."""
    drawn = Text(label, no_wrap=True)
    for gap_ms, cause, is_waiting in zip(gaps_ms, causes, waits, strict=True):
        drawn.append("·" if is_waiting else _block(gap_ms, *span), style=colour_of(cause) if cause else "default")
    return drawn


def _block(gap_ms: float, typical_ms: float, most_ms: float, least: float) -> str:
    """least: of the longest gap over the typical one."""
    if gap_ms <= 0.0:
        return " "
    if gap_ms <= typical_ms:
        return _BLOCKS[0]
    height = math.log(gap_ms / typical_ms) / math.log(max(most_ms / typical_ms, least))
    return _BLOCKS[min(len(_BLOCKS) - 1, int(height * len(_BLOCKS)))]


def _legend(causes: Sequence[str], letters: Mapping[str, str], *, is_cut: bool) -> Text:
    legend = Text()
    for cause in dict.fromkeys(cause for cause in causes if cause):
        legend.append(f"{'  ' if legend.plain else ''}{letters.get(cause, '?')}", style=colour_of(cause))
        legend.append(f" {title_of(cause)}")
    if is_cut:
        legend.append(f"  (of the {_KEPT} slowest gaps)", style="dim")
    return legend


def _ms(milliseconds: float) -> str:
    return shown_seconds(milliseconds / 1e3)
