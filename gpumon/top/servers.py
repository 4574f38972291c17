"""The servers of ``gpumon top``: a line each, and a line for each of their pages that cannot be read.

P99 are of one to two minutes, rates of requests that ended in the last minute. A server whose traces tell of requests
only when they end has those open that its metrics page counts as running or waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gpumon.shown import percent, shown, shown_seconds
from gpumon.terminal import printable
from gpumon.top.answers import Server
from gpumon.top.table import Column, cut, table

_COLUMNS = (
    Column("server", is_text=True, least=22),
    Column("tokens/s"),
    Column("TTFT P99"),
    Column("gap P99"),
    Column("open"),
    Column("wait"),
    Column("KV"),
    Column("late s/s", rank=2),
    Column("on GPUs", is_text=True, least=7, rank=3),
)
"""The gap is that between tokens; ``wait``: requests in its queue."""
_NO_KIND = "gpumon"
"""Kind of servers that speak docs/TOKENS.md."""
_ERRORS = Column("errors/s", rank=1)
"""A column where there are any."""


def server_lines(servers: Sequence[Server], width: int) -> list[Text]:
    """All servers."""
    has_errors = any(server.errors_per_second for server in servers)
    columns = (*_COLUMNS[:1], *([_ERRORS] if has_errors else ()), *_COLUMNS[1:])
    lines = table(columns, [_row(server, has_errors) for server in servers], width)
    silent = [(page.server, page.endpoint) for server in servers for page in server.pages if not page.up]
    lines += [
        cut(Text(f"{printable(kind)} at {printable(endpoint)}: its metrics page cannot be read", style="yellow"), width)
        for kind, endpoint in dict.fromkeys(silent)
    ]
    return lines


def _row(server: Server, has_errors: bool) -> list[Text]:
    name = Text()
    if server.incidents:
        name.append("! ", style="bold yellow")
    if server.model:
        name.append(printable(server.model)).append(f" {_kind(server)}", style="dim")
    elif server.pages:
        name.append(_kind(server))
    else:  # only traces tell of it, and name none
        name.append("no model").append(f" {_kind(server)}", style="dim")
    errors = server.errors_per_second
    waits = server.waiting is not None and server.waiting > 0.0
    return [
        name,
        *([Text(shown(errors, ""), style="bold red" if errors else "")] if has_errors else ()),
        Text(shown(server.tokens_per_second, "")),
        Text(shown_seconds(server.time_to_first_token.p99_seconds)),
        Text(shown_seconds(server.inter_token.p99_seconds)),
        Text(shown(_open(server), "")),
        Text(shown(server.waiting, ""), style="yellow" if waits else ""),
        Text(percent(server.kv_usage) if server.kv_usage is not None else "-"),
        Text(shown(server.late_seconds_per_second, "")),
        Text(_gpus([each.gpu for each in server.gpus if each.gpu is not None])),
    ]


def _kind(server: Server) -> str:
    """Of one whose traces name none, as its pages name it."""
    of_pages = {page.server for page in server.pages}
    kind = of_pages.pop() if server.server == _NO_KIND and len(of_pages) == 1 else server.server
    return printable(kind, 20)


def _open(server: Server) -> float | None:
    if server.requests_open is not None or server.running is None or server.waiting is None:
        return server.requests_open
    return server.running + server.waiting


def _gpus(indices: Sequence[str]) -> str:
    """``0-3, 7``; names that are no numbers as they are."""
    numbers = sorted({int(index) for index in indices if index.isascii() and index.isdigit() and len(index) < 5})
    told = [printable(index, 12) for index in indices if not (index.isascii() and index.isdigit() and len(index) < 5)]
    start = 0
    for at, number in enumerate(numbers):
        if at + 1 == len(numbers) or numbers[at + 1] != number + 1:
            told.append(f"{numbers[start]}-{number}" if number > numbers[start] else f"{number}")
            start = at + 1
    return ", ".join(told)
