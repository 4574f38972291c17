"""Rules per function and device: return codes, delays, hangs; call counts and the call log.

A rule's ``from_call``/``to_call`` count from the moment it is set, per device: 1 is the next call.
``device=None`` means every device and the calls that name none.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterable

from tests.fakenvml import build, layout
from tests.fakenvml.scenario import Scenario

_FOREVER = 2**64 - 1
_CELL_WORDS = ctypes.sizeof(layout.Cell) // 8


@dataclasses.dataclass(frozen=True, slots=True)
class LoggedCall:
    """One call as the library saw it; times are CLOCK_MONOTONIC nanoseconds."""

    function: str
    gpu: int | None
    mig: int | None
    pid: int
    tid: int
    start_ns: int
    latency_ns: int
    rc: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.latency_ns


class RuleBook:
    """Device columns are those of ``layout.column``."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._ids = {name: i for i, name in enumerate(build.function_names())}
        self._armed: set[tuple[int, int]] = set()
        self._log_since = 0

    def add(
        self, fn: str, kind: int, arg: int, column: int | None, from_call: int, to_call: int | None
    ) -> None:
        function = self._id(fn)
        with self._scenario.lock:
            for col in _columns(column):
                cell = self._scenario.state.cells[function][col]
                rule = _free_slot(fn, cell)
                rule.from_call = cell.calls + from_call
                rule.to_call = _FOREVER if to_call is None else cell.calls + to_call
                rule.arg = arg
                rule.kind = kind  # last: from here on the library applies it
                cell.armed = layout.RULES
                self._armed.add((function, col))

    def clear(self, fn: str | None, column: int | None, kind: int | None = None) -> None:
        function = None if fn is None else self._id(fn)
        with self._scenario.lock:
            for armed in sorted(self._armed):
                if (function is not None and armed[0] != function) or (
                    column is not None and armed[1] != column
                ):
                    continue
                cell = self._scenario.state.cells[armed[0]][armed[1]]
                kept = False
                for rule in cell.rules:
                    if kind is None or rule.kind == kind:
                        rule.kind = layout.RULE_NONE
                    kept = kept or rule.kind != layout.RULE_NONE
                if not kept:
                    cell.armed = 0
                    self._armed.discard(armed)
            self._scenario.wake()

    def set_base(
        self, fn: str, column: int | None, *, code: int | None = None, delay_us: int | None = None
    ) -> None:
        """What the part itself answers when no rule matches."""
        function = self._id(fn)
        for col in _columns(column):
            cell = self._scenario.state.cells[function][col]
            if code is not None:
                cell.base_code = code
            if delay_us is not None:
                cell.base_delay_us = delay_us

    def waiting(self, fn: str, column: int | None) -> int:
        cells = self._scenario.state.cells[self._id(fn)]
        return sum(cells[col].waiting for col in _columns(column))

    def calls(self, fn: str, column: int | None) -> int:
        function = self._id(fn)
        if column is not None:
            return self._scenario.state.cells[function][column].calls
        return sum(self._counts(function))

    def all_calls(self) -> dict[str, int]:
        totals = {name: sum(self._counts(i)) for name, i in self._ids.items()}
        return {name: count for name, count in totals.items() if count}

    def forget_calls(self) -> None:
        """Restarts the log. Counts go on: call numbers of rules depend on them."""
        self._log_since = self._scenario.state.log_head

    def log(self) -> list[LoggedCall]:
        names = build.function_names()
        state = self._scenario.state
        first = max(self._log_since, state.log_head - layout.LOG)
        calls = []
        for index in range(first, state.log_head):
            record = state.log[index % layout.LOG]
            if record.sequence != index + 1:
                continue  # being written
            gpu, mig = _device(record.column)
            calls.append(
                LoggedCall(
                    function=names[record.function], gpu=gpu, mig=mig, pid=record.pid,
                    tid=record.tid, start_ns=record.start_ns, latency_ns=record.latency_ns,
                    rc=record.rc,
                )
            )  # fmt: skip
        return sorted(calls, key=lambda call: call.start_ns)

    def _id(self, fn: str) -> int:
        if fn not in self._ids:
            raise KeyError(f"{fn} is no exported NVML function")
        return self._ids[fn]

    def _counts(self, function: int) -> list[int]:
        row = layout.COLUMNS * ctypes.sizeof(layout.Cell)
        start = layout.offset(layout.State, "cells") + function * row
        words = self._scenario.words(start, row)
        return words[::_CELL_WORDS].tolist()


def _columns(column: int | None) -> Iterable[int]:
    return range(layout.COLUMNS) if column is None else (column,)


def _device(column: int) -> tuple[int | None, int | None]:
    if column == layout.NO_GPU:
        return None, None
    if column < layout.GPUS:
        return column, None
    gpu, mig = divmod(column - layout.GPUS - 1, layout.MIGS)
    return gpu, mig


def _free_slot(fn: str, cell: layout.Cell) -> layout.Rule:
    for rule in cell.rules:
        if rule.kind == layout.RULE_NONE or rule.to_call <= cell.calls:
            rule.kind = layout.RULE_NONE
            return rule
    raise ValueError(f"more than {layout.RULES} rules for {fn} on one device")
