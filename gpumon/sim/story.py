"""What happens on the simulated node, as data: five minutes that repeat, with a day's load in them.

Times are seconds since the story began; ``world.World`` repeats it for ever. Everything that is not in this table
is the ordinary course of two inference servers: A on GPUs 0-3, B on GPUs 4-6 with GPU 7 as its overflow.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

STORY_S = 300.0
"""Length of the story: one compressed day."""


class Kind(StrEnum):
    """What sort of thing an event is: how the GPU and the host answer it."""

    HOT_AISLE = "hot_aisle"  # cooling fails: the temperature runs to the limit
    THERMAL_THROTTLE = "thermal_throttle"  # the driver lowers clocks to hold the limit (sw_thermal)
    LEAKY_BOARD = "leaky_board"  # draws more for the same work: reaches the power cap in prefill
    OVERFLOW = "overflow"  # GPU 7 serves; outside of it, it idles
    BURST = "burst"  # a short full load on a GPU that idles
    PAGE_FAULTS = "page_faults"  # major faults per second of the GPU's serving process; its server starves
    JOB = "job"  # a second process shares the GPU
    XID = "xid"  # the driver reports an error: rate is the XID's number
    REMOTE_MEMORY = "remote_memory"  # share of the process's pages on the other NUMA node
    PCIE_REPLAYS = "pcie_replays"  # packets sent again, per second
    ECC_CORRECTED = "ecc_corrected"  # corrected memory errors, per second


class Event(NamedTuple):
    """One row of the story."""

    kind: Kind
    gpu: int
    start_s: float
    end_s: float
    """Equal to start_s for what takes no time."""
    rate: float
    """The event's own number; its unit is in the comment of its kind. 0 where it has none."""


STORY: tuple[Event, ...] = (
    #     kind                   GPU  from    to      number
    Event(Kind.HOT_AISLE, 3, 44.0, 90.0, 0.0),
    Event(Kind.THERMAL_THROTTLE, 3, 60.0, 90.0, 0.0),
    Event(Kind.LEAKY_BOARD, 0, 0.0, STORY_S, 1.13),  # power over that of its neighbours
    Event(Kind.OVERFLOW, 7, 40.0, 140.0, 0.0),
    Event(Kind.BURST, 7, 10.9, 11.2, 0.0),
    Event(Kind.BURST, 7, 150.4, 150.7, 0.0),
    Event(Kind.BURST, 7, 191.0, 191.3, 0.0),
    Event(Kind.BURST, 7, 229.7, 230.0, 0.0),
    Event(Kind.BURST, 7, 270.2, 270.5, 0.0),
    Event(Kind.PAGE_FAULTS, 1, 120.0, 121.0, 6000.0),
    Event(Kind.PAGE_FAULTS, 1, 121.0, 126.0, 250.0),
    Event(Kind.JOB, 5, 150.0, 180.0, 0.0),
    Event(Kind.XID, 5, 180.0, 180.0, 31.0),
    Event(Kind.REMOTE_MEMORY, 6, 0.0, STORY_S, 0.72),
    Event(Kind.PCIE_REPLAYS, 2, 0.0, STORY_S, 1 / 6),
    Event(Kind.ECC_CORRECTED, 4, 0.0, STORY_S, 1 / 20),
)

SERVER_OF_GPU = ("a", "a", "a", "a", "b", "b", "b", "b")

_LOAD_MEAN = 0.6
_LOAD_SWING = 0.35
_LOAD_PEAK_S = 90.0
_OMEGA = 2 * math.pi / STORY_S


def events(kind: Kind, gpu: int | None = None) -> list[Event]:
    """Rows of a kind, of one GPU or of all, in the order of time."""
    rows = [event for event in STORY if event.kind is kind and (gpu is None or event.gpu == gpu)]
    return sorted(rows, key=lambda event: event.start_s)


def load(story_s: float) -> float:
    """Load offered to the servers, as a share of what they can bear: the day's wave, 0.25 to 0.95."""
    return _LOAD_MEAN + _LOAD_SWING * math.cos(_OMEGA * (story_s - _LOAD_PEAK_S))


def load_total(story_s: float) -> float:
    """Integral of ``load`` from 0, in seconds of full load; not bounded to one story."""
    wave = math.sin(_OMEGA * (story_s - _LOAD_PEAK_S)) - math.sin(-_OMEGA * _LOAD_PEAK_S)
    return _LOAD_MEAN * story_s + _LOAD_SWING / _OMEGA * wave


def rate_total(rows: list[Event], story_s: float) -> float:
    """Integral of the rows' rates from 0, over repeating stories."""
    cycle, rest = divmod(story_s, STORY_S)
    whole = sum(row.rate * (row.end_s - row.start_s) for row in rows)
    begun = sum(row.rate * min(max(rest - row.start_s, 0.0), row.end_s - row.start_s) for row in rows)
    return cycle * whole + begun


def active(rows: list[Event], story_s: float) -> Event | None:
    """The row under way at a moment of any repetition."""
    rest = story_s % STORY_S
    return next((row for row in rows if row.start_s <= rest < row.end_s), None)
