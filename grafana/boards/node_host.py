"""Rows of gpumon-node: pressure, memory, swap and NUMA of the host."""

from __future__ import annotations

from gpumon import catalogue as c
from grafana import panels
from grafana.kit import Board
from grafana.queries import Query, increase, rate, select, where


def add(board: Board) -> None:
    """Adds the rows."""
    board.row("Host", (12, _pressure()), (12, _stalled_all()))
    board.add((10, _memory()), (6, _swap()), (3, _oom()), (5, _misses()))


def _pressure() -> panels.Panel:
    return panels.graph(
        "Pressure: some tasks waited",
        "Share of time in which at least one task of the host waited for CPU, memory or storage (PSI some). CPU is "
        "often high on a busy host and harmless by itself: see whether GPU processes wait. Memory above 15 % is not.",
        Query(
            f"max by (cluster, node, resource) ({rate(c.HOST_PRESSURE, where('kind', 'some'))})",
            "{{node}} {{resource}}",
        ),
        unit="percentunit",
        most=1,
    )


def _stalled_all() -> panels.Panel:
    return panels.graph(
        "Pressure: all tasks waited",
        "Share of time in which every task that was not idle waited (PSI full): time in which the host did nothing. "
        "Memory above 10 %: free some, or raise the limit, before the kernel kills a server. Of CPU the host has no "
        "such figure.",
        Query(
            f"max by (cluster, node, resource) ({rate(c.HOST_PRESSURE, where('kind', 'full'))})",
            "{{node}} {{resource}}",
        ),
        unit="percentunit",
        most=1,
        steps=((None, "green"), (0.1, "red")),
    )


def _memory() -> panels.Panel:
    return panels.graph(
        "Host memory by NUMA node",
        "Used, page cache (file) and free. Little free is normal, since the cache takes what is left; little free and "
        "little cache is not. One NUMA node full while the other is free makes allocations remote.",
        Query(
            f"sum by (cluster, node, numa_node, state) ({select(c.HOST_MEMORY)})",
            "{{node}} NUMA node {{numa_node}} {{state}}",
        ),
        unit="bytes",
        stacked=True,
    )


def _swap() -> panels.Panel:
    return panels.graph(
        "Swap",
        "Pages per second. Pages that come in are waited for, each of them: above 256 a second servers suffer. A "
        "trickle out of cold pages is healthy.",
        Query(f"max by (cluster, node, direction) ({rate(c.HOST_SWAP_PAGES)})", "{{node}} {{direction}}"),
        unit="short",
    )


def _oom() -> panels.Panel:
    return panels.number(
        "Killed for lack of memory",
        "Processes that the kernel killed in the time selected, on the whole host. The kernel log says which, and "
        "whose limit it was.",
        Query(f"round(sum({increase(c.HOST_OOM_KILLS, window='$__range')}))", instant=True),
        unit="short",
        steps=((None, "green"), (1, "red")),
        empty=panels.NO_DATA,
        spark=False,
    )


def _misses() -> panels.Panel:
    away = rate(c.HOST_NUMA_PAGES, where("event", "miss"))
    all_of_them = rate(c.HOST_NUMA_PAGES, where("event", "hit", "miss"))
    return panels.graph(
        "Pages on the wrong NUMA node",
        "Share of new pages that were meant for another node, which was full. It is of the whole host; where a server's "
        "own pages lie is above.",
        Query(
            f"sum by (cluster, node, numa_node) ({away}) / sum by (cluster, node, numa_node) ({all_of_them})",
            "{{node}} NUMA node {{numa_node}}",
        ),
        unit="percentunit",
    )
