"""What ``gpumon top`` shows of one look, as lines: the node, GPUs, servers, incidents, causes; and the part of it that
fits a screen.

A part without an answer says why, in its place. Every line fits the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.text import Text

from gpumon import __version__
from gpumon.shown import shown_clock, shown_duration, shown_time
from gpumon.terminal import LONG, printable
from gpumon.top.answers import Node, Snapshot
from gpumon.top.gpus import ORDERS, Order, gpu_lines
from gpumon.top.help import help_lines
from gpumon.top.servers import server_lines
from gpumon.top.table import cut, wrapped
from gpumon.top.trouble import incident_lines, lost_lines

_SOURCES: Final = 6
"""That are down, named."""
_GAP: Final = 2
"""Spaces between what stands side by side."""


class Looks(NamedTuple):
    """How it is looked at."""

    order: Order = ORDERS[0]
    offset: int = 0
    """Lines scrolled by."""
    is_paused: bool = False
    every_s: float = 0.0
    is_help: bool = False
    """The keys are shown instead."""


def whole(snapshot: Snapshot, width: int, order: Order = ORDERS[0]) -> list[Text]:
    """All of it, with sentences in full: for a pipe."""
    parts = _parts(snapshot, width, order, in_full=True, spaced=True)
    head: list[Text] = []
    for part in _head(snapshot, shown_time(snapshot.node.at)):
        if head and head[-1].cell_len + _GAP + part.cell_len <= width:
            head[-1].append(" " * _GAP).append_text(part)
        else:
            head.append(part.copy())
    return [*(cut(line, width) for line in head), Text(), *parts]


def screen(snapshot: Snapshot, looks: Looks, width: int, height: int) -> list[Text]:
    """As many lines as the screen has; blank lines between parts go first where it is low."""
    room = max(1, height - 2)
    body = _parts(snapshot, width, looks.order, in_full=False, spaced=True)
    if len(body) > room:
        body = _parts(snapshot, width, looks.order, in_full=False, spaced=False)
    offset = clamped(looks.offset, len(body), room)
    seen = body[offset : offset + room]
    seen += [Text() for _ in range(room - len(seen))]
    place = f"lines {offset + 1}-{offset + room} of {len(body)}" if len(body) > room else ""
    when = shown_clock(snapshot.node.at) + " UTC"
    head = _head(snapshot, f"paused at {when}" if looks.is_paused else when, is_paused=looks.is_paused)
    return [cut(Text(" " * _GAP).join(head), width), *seen, _foot(looks, place, width)][:height]


def help_screen(looks: Looks, width: int, height: int) -> list[Text]:
    """The keys, and what words mean."""
    lines = help_lines(width)[: max(0, height - 1)]
    return [*lines, *(Text() for _ in range(height - 1 - len(lines))), _foot(looks, "", width)]


def clamped(offset: int, lines: int, room: int) -> int:
    """Where scrolling ends."""
    return max(0, min(offset, lines - room))


def scrolled(snapshot: Snapshot, looks: Looks, by: int, width: int, height: int) -> int:
    """The offset after scrolling by so many lines."""
    lines = len(_parts(snapshot, width, looks.order, in_full=False, spaced=False))
    room = max(1, height - 2)
    return clamped(clamped(looks.offset, lines, room) + by, lines, room)


def silent_screen(why: str, url: str, last_at: float | None, looks: Looks, width: int, height: int) -> list[Text]:
    """Where gpumon does not answer any more: old figures would look like new ones."""
    lines = [cut(Text.assemble("gpumon top  ", (url, "bold")), width), Text()]
    lines += wrapped(printable(why, LONG), width, style="bold red")
    if last_at is not None:
        lines.append(cut(Text(f"The last answer was of {shown_clock(last_at)} UTC."), width))
    again = "Paused: p asks again." if looks.is_paused else f"Asked again every {shown_duration(looks.every_s)}."
    lines = [*lines, cut(Text(again), width)][: max(1, height - 1)]
    lines += [Text() for _ in range(height - 1 - len(lines))]
    return [*lines, _foot(looks, "", width)][:height]


def _head(snapshot: Snapshot, when: str, *, is_paused: bool = False) -> list[Text]:
    """Which node, when, and what it has."""
    node = snapshot.node
    parts = [Text(printable(node.name) + (" (demo)" if node.demo else ""), style="bold")]
    parts.append(Text(when, style="reverse" if is_paused else ""))
    if node.gpus.present is not None:
        names = {gpu.name for gpu in snapshot.gpus.gpus} if snapshot.gpus is not None else set()
        kind = f"GPU{'' if node.gpus.present == 1 else 's'}"
        if len(names) == 1 and (name := names.pop()):
            kind = printable(name, 24)
        parts.append(Text(f"{node.gpus.present} {kind}"))
    if node.gpus.lost:
        parts.append(Text(f"{node.gpus.lost} lost", style="bold red"))
    if snapshot.incidents is not None:
        count = len(snapshot.incidents.root)
        parts.append(Text(f"{count} incident{'' if count == 1 else 's'}", style="bold yellow" if count else ""))
    if node.uptime_seconds is not None and node.uptime_seconds >= 0.0:
        parts.append(Text(f"up {shown_duration(node.uptime_seconds)}"))
    version = printable(node.version, 20)
    parts.append(Text(f"gpumon {version}" + (f", top {__version__}" if node.version != __version__ else ""), "dim"))
    return parts


def _foot(looks: Looks, place: str, width: int) -> Text:
    keys = f"q quit  ? {'back' if looks.is_help else 'keys'}  p {'go on' if looks.is_paused else 'pause'}"
    keys += f"  s sort: {looks.order.name}"
    line = Text(keys, style="reverse")
    return cut(line.append(f"  ↑↓ {place}", style="not reverse dim") if place else line, width)


def _parts(snapshot: Snapshot, width: int, order: Order, *, in_full: bool, spaced: bool) -> list[Text]:
    parts = [
        _warnings(snapshot.node, width),
        _gpus(snapshot, width, order),
        _servers(snapshot, width),
        _incidents(snapshot, width, in_full),
        _lost(snapshot, width, in_full),
    ]
    lines: list[Text] = []
    for part in parts:
        if part and lines and spaced:
            lines.append(Text())
        lines += part
    return lines


def _gpus(snapshot: Snapshot, width: int, order: Order) -> list[Text]:
    if snapshot.gpus is None:
        return _missing(snapshot, "gpus", "GPUs", width)
    if not snapshot.gpus.gpus:
        return [cut(Text("No GPU is seen; `gpumon doctor` on that node says why."), width)]
    return gpu_lines(snapshot.gpus.gpus, width, order)


def _servers(snapshot: Snapshot, width: int) -> list[Text]:
    if snapshot.servers is None:
        return _missing(snapshot, "servers", "servers", width)
    if not snapshot.servers.servers:
        return [cut(Text("No server has told anything yet; docs/SERVERS.md says how."), width)]
    return server_lines(snapshot.servers.servers, width)


def _incidents(snapshot: Snapshot, width: int, in_full: bool) -> list[Text]:
    if snapshot.incidents is None:
        return _missing(snapshot, "incidents", "incidents", width)
    return incident_lines(snapshot.incidents.root, snapshot.node.at, width, in_full=in_full)


def _lost(snapshot: Snapshot, width: int, in_full: bool) -> list[Text]:
    if snapshot.lost is None:
        return _missing(snapshot, "lost", "causes", width)
    return lost_lines(snapshot.lost, width, in_full=in_full)


def _missing(snapshot: Snapshot, part: str, title: str, width: int) -> list[Text]:
    why = snapshot.problems.get(part, "not told")
    why = printable(why.removeprefix(f"{snapshot.url}: "), LONG)
    return wrapped(f"No {title}: {why}", width, style="yellow")


def _warnings(node: Node, width: int) -> list[Text]:
    """What the daemon itself cannot see."""
    said: list[str] = []
    if node.nvml.state not in ("", "running", "off"):
        error = f" ({printable(node.nvml.error)})" if node.nvml.error else ""
        said.append(f"NVML is {printable(node.nvml.state, 20)}{error}: `gpumon doctor` on that node says what to do")
    down = [source.source for source in node.sources if not source.up]
    if down:
        told = ", ".join(map(printable, down[:_SOURCES])) + (" …" if len(down) > _SOURCES else "")
        said.append(f"nothing comes from: {told}")
    return [cut(Text(line, style="yellow"), width) for line in said]


def lines_of(texts: Sequence[Text]) -> str:
    """Without colours."""
    return "".join(f"{text.plain}\n" for text in texts)
