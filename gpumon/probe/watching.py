"""What GPU, host and servers do during a rung: looked up on the page ``/metrics`` of the local gpumon.

One look before a rung and one after it, when nothing is under way, for everything that counts; and one each second
meanwhile for what is true at a moment. Looks are made in a thread, and of a page only a few families are read, so that
no time of a token is late for it. A counter that went back, a family that is not there, a look that failed: then that
is not known. A look that failed is counted, and the rung goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.api_client import ApiError
from gpumon.model import Metric
from gpumon.probe.exchange import NowNs
from gpumon.probe.ladder import Cell
from gpumon.probe.model import Conditions, GpuConditions
from gpumon.sources.server_page import Page, Parser, Series

EVERY_S: Final = 1.0
LOOKS_MAX: Final = 4096
"""Of a rung; further ones are not made but the last."""
GPUS_MAX: Final = 64
_SM_SECONDS, _DRAM_SECONDS = catalogue.GPU_SM_ACTIVE_SECONDS, catalogue.GPU_DRAM_ACTIVE_SECONDS
_FAMILIES: Final = (
    catalogue.GPU_PRESENT,
    catalogue.GPU_LAST_SAMPLE,
    catalogue.GPU_UTILIZATION,
    catalogue.GPU_CLOCK,
    catalogue.GPU_THROTTLED_SECONDS,
    _SM_SECONDS,
    _DRAM_SECONDS,
    catalogue.PROCESS_PAGE_FAULTS,
    catalogue.HOST_PAGE_FAULTS,
    catalogue.SERVER_KV_USAGE,
    catalogue.SERVER_WAITING,
    catalogue.SERVER_PREEMPTIONS,
)
_Labels = frozenset[tuple[str, str]]


class Look(NamedTuple):
    """A page, and when it was asked for, steady nanoseconds."""

    at_ns: int
    page: Page


PARSER: Final = Parser([metric.name for metric in _FAMILIES])


class GpumonWatch:
    """page: asks for ``/metrics``; raises ApiError. now_ns: steady."""

    def __init__(self, page: Callable[[], bytes], now_ns: NowNs, every_s: float = EVERY_S) -> None:
        self.conditions: dict[Cell, Conditions] = {}
        self.failed = 0
        """Looks."""
        self._page = page
        self._now_ns = now_ns
        self._every_s = every_s
        self._looks: list[Look] = []
        self._task: asyncio.Task[None] | None = None

    async def begin(self, cell: Cell) -> None:
        """Before a rung."""
        self._looks = []
        await self._look()
        self._task = asyncio.create_task(self._go_on(), name=f"watch {cell.aim}")

    async def end(self, cell: Cell) -> None:
        """After it: what was, as far as there were two looks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._look()
        if len(self._looks) > 1:
            self.conditions[cell] = conditions(self._looks)

    async def _go_on(self) -> None:
        while len(self._looks) < LOOKS_MAX:
            await asyncio.sleep(self._every_s)
            await self._look()

    async def _look(self) -> None:
        try:
            page = await asyncio.to_thread(self._asked)
        except ApiError:
            self.failed += 1
        else:
            self._looks.append(Look(self._now_ns(), page))

    def _asked(self) -> Page:
        return PARSER.parse(self._page())


class NoWatch:
    """Where there is no gpumon to ask."""

    async def begin(self, cell: Cell) -> None:
        """Nothing."""

    async def end(self, cell: Cell) -> None:
        """Nothing."""


def conditions(looks: list[Look]) -> Conditions:
    """Of a rung. looks: in order, at least two."""
    first, last = looks[0].page, looks[-1].page
    faults = catalogue.PROCESS_PAGE_FAULTS
    return Conditions(
        seconds=(looks[-1].at_ns - looks[0].at_ns) / 1e9,
        looks=len(looks),
        gpus=list(_gpus(looks)),
        process_major_faults=_sum(_grown(first, last, faults, {"kind": "major"})),
        host_major_faults=_sum(_grown(first, last, catalogue.HOST_PAGE_FAULTS, {"kind": "major"})),
        kv_usage=_most(looks, catalogue.SERVER_KV_USAGE),
        waiting=_most(looks, catalogue.SERVER_WAITING),
        preemptions=_sum(_grown(first, last, catalogue.SERVER_PREEMPTIONS, {})),
    )


def _gpus(looks: list[Look]) -> Iterator[GpuConditions]:
    first, last = looks[0].page, looks[-1].page
    for series in _of(last, catalogue.GPU_PRESENT, {})[:GPUS_MAX]:
        mine = {"uuid": series.labels.get("uuid", "")}
        # The integrals go as far as the newest sample does, not as far as the clock.
        sampled_s = _sum(_grown(first, last, catalogue.GPU_LAST_SAMPLE, mine))
        clocks = _sampled(looks, catalogue.GPU_CLOCK, mine | {"domain": "sm"})
        busy = _sampled(looks, catalogue.GPU_UTILIZATION, mine)
        throttled = _grown(first, last, catalogue.GPU_THROTTLED_SECONDS, mine)
        yield GpuConditions(
            gpu=series.labels.get("gpu", ""),
            uuid=mine["uuid"],
            sm_active=_share(_sum(_grown(first, last, _SM_SECONDS, mine)), sampled_s),
            dram_active=_share(_sum(_grown(first, last, _DRAM_SECONDS, mine)), sampled_s),
            utilization=sum(busy) / len(busy) if busy else None,
            clock_hertz=sum(clocks) / len(clocks) if clocks else None,
            clock_least_hertz=min(clocks, default=None),
            throttled_seconds={
                dict(labels).get("reason", ""): seconds for labels, seconds in throttled.items() if seconds > 0
            },
        )


def _of(page: Page, metric: Metric, labels: Mapping[str, str]) -> list[Series]:
    """The series of a family with these labels."""
    return [
        series
        for series in page.families.get(metric.name, ())
        if all(series.labels.get(name) == value for name, value in labels.items())
    ]


def _grown(first: Page, last: Page, metric: Metric, labels: Mapping[str, str]) -> dict[_Labels, float]:
    """By how much each series grew that is on both pages and did not go back."""
    before = {frozenset(series.labels.items()): series.value for series in _of(first, metric, labels)}
    found = {}
    for series in _of(last, metric, labels):
        key = frozenset(series.labels.items())
        if key in before and series.value >= before[key]:
            found[key] = series.value - before[key]
    return found


def _sampled(looks: list[Look], metric: Metric, labels: Mapping[str, str]) -> list[float]:
    """Values of the looks meanwhile; where there were none, of those before and after."""
    inside = looks[1:-1] or looks
    return [series.value for look in inside for series in _of(look.page, metric, labels)]


def _most(looks: list[Look], metric: Metric) -> float | None:
    return max(_sampled(looks, metric, {}), default=None)


def _sum(grown: Mapping[_Labels, float]) -> float | None:
    return sum(grown.values()) if grown else None


def _share(part_s: float | None, whole_s: float | None) -> float | None:
    return min(1.0, part_s / whole_s) if part_s is not None and whole_s else None
