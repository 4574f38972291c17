"""Records the port to NVML: what each method returned, when, and how long it took, as lines of JSON.

A line: ``t`` seconds since the start, ``on`` (nvml, or a batch, reader or event set with its number), ``call``,
``device`` (index, or index/slot of a MIG instance), ``args``, ``result`` or ``code``, ``us``. UUIDs are masked: the
same one always by the same name, and no machine can be recognised by it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from gpumon.host.nvml import Call, Device, NvmlError, TextCall

_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F-]{20,}")
_PARTS = {"fields": "fields", "gpm": "gpm", "events": "events"}
"""Methods that hand out a further object to be recorded."""


class Recording:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._file = gzip.open(path, "wt", encoding="ascii")  # noqa: SIM115 - closed by ``close``
        self._began_ns = time.monotonic_ns()
        self._numbers = itertools.count(1)
        self._masks: dict[str, str] = {}
        self.lines = 0

    def write(self, on: str, call: str, args: tuple[Any, ...], outcome: dict[str, Any], took_ns: int) -> None:
        device = next((arg for arg in args if isinstance(arg, Device)), None)
        line: dict[str, Any] = {"t": round((time.monotonic_ns() - self._began_ns) / 1e9, 6), "on": on, "call": call}
        if device is not None:
            line["device"] = _device(device)
        rest = [self.encode(arg) for arg in args if not isinstance(arg, Device)]
        if rest:
            line["args"] = rest
        line |= outcome
        line["us"] = round(took_ns / 1e3, 1)
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self.lines += 1

    def part(self, name: str) -> str:
        """Name of one more batch, reader or set."""
        return f"{name}#{next(self._numbers)}"

    def encode(self, value: Any) -> Any:
        if isinstance(value, (Call, TextCall)):
            return value.name
        if isinstance(value, Device):
            return _device(value)
        if isinstance(value, str):
            return _UUID.sub(self._mask, value)
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, (list, tuple)):
            return [self.encode(part) for part in value]
        return value

    def _mask(self, found: re.Match[str]) -> str:
        number = len(self._masks)
        return self._masks.setdefault(found.group(), f"{found.group(1)}-00000000-0000-0000-0000-{number:012d}")

    def close(self) -> None:
        self._file.close()


class Recorder:
    """Stands where the port or one of its objects stands, and records every method."""

    def __init__(self, inner: Any, recording: Recording, name: str = "nvml") -> None:
        self._inner = inner
        self._recording = recording
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._recorded(name, value) if callable(value) else value

    def _recorded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.monotonic_ns()
            try:
                result = method(*args)
            except NvmlError as error:
                took = time.monotonic_ns() - start
                outcome: dict[str, Any] = {"code": int(error.code), "function": error.function}
                self._recording.write(self._name, name, args, outcome, took)
                raise
            took = time.monotonic_ns() - start
            part = self._recording.part(_PARTS[name]) if name in _PARTS else None
            outcome = {"result": part if part else self._recording.encode(result)}
            self._recording.write(self._name, name, args, outcome, took)
            return Recorder(result, self._recording, part) if part else result

        return call


def _device(device: Device) -> str:
    return str(device.index) if device.parent is None else f"{device.parent.index}/{device.index}"
