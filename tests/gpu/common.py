"""What the steps of ``check.sh`` share: where results go, how long things take, and rows of the summary.

A step is a module with a function that returns its rows; ``run`` calls it, writes what it measured, and turns any
failure into a row, so that the next step goes on. Environment: OUT (folder for results), CHECK_SCALE (factor on every
duration, 1 by default), LOAD (cuda or cpu; cuda by default), NVML_LIB (library to load).
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

OUT = Path(os.environ.get("OUT", "gpu-check"))
SCALE = float(os.environ.get("CHECK_SCALE", "1"))
LOAD = os.environ.get("LOAD", "cuda")
LIBRARY = os.environ.get("NVML_LIB") or "libnvidia-ml.so.1"
ROWS = "rows"

NEEDED_BY_APP = (
    *("pynvml", "pydantic", "annotated_types", "yaml", "click", "rich"),
    *("uvicorn", "uvloop", "httptools", "fastapi", "numpy"),
)
"""Modules that ``gpumon run`` imports."""


class Row(NamedTuple):
    """A line of the summary. verdict: OK, NO (not as expected), INFO, SKIP, ERROR."""

    what: str
    value: str
    verdict: str = "INFO"


def missing_modules(names: Iterable[str]) -> list[str]:
    """Those that this interpreter does not have."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def seconds(wanted: float, least: float = 0.05) -> float:
    """A duration, scaled."""
    return max(least, wanted * SCALE)


def write(name: str, document: object) -> None:
    """A result as JSON, whole or not at all."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / name
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(document, indent=1, default=str) + "\n")
    scratch.replace(path)


def run(step: str, measure: Callable[[], Iterable[Row]]) -> int:
    """Run a step and keep its rows; the exit status."""
    began = time.monotonic()
    status = 0
    try:
        rows = list(measure())
    except Exception as error:  # noqa: BLE001 - the step's own loop: whatever it is goes into the summary
        traceback.print_exc()
        rows = [Row(step, f"{type(error).__name__}: {error}", "ERROR")]
        status = 1
    took = time.monotonic() - began
    folder = OUT / ROWS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step}.json").write_text(json.dumps({"seconds": round(took, 1), "rows": rows}))
    print(f"{step}: {took:.1f} s")
    return status


def judged(what: str, value: float, shown: str, *, least: float | None = None, most: float | None = None) -> Row:
    """A row with a verdict; without a CUDA load there is nothing to judge."""
    if LOAD != "cuda":
        return Row(what, f"{shown} (not judged: LOAD={LOAD})")
    ok = (least is None or value >= least) and (most is None or value <= most)
    bound = f">= {least}" if least is not None else f"<= {most}"
    return Row(what, f"{shown} (expected {bound})", "OK" if ok else "NO")


def spread(values_us: Sequence[float]) -> dict[str, float]:
    """Percentiles of durations, rounded to 0.1 us."""
    if not values_us:
        return {"n": 0}
    ordered = sorted(values_us)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    return {
        "n": len(ordered),
        "min": round(ordered[0], 1),
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "max": round(ordered[-1], 1),
        "mean": round(statistics.fmean(ordered), 1),
    }


@contextmanager
def nvml() -> Iterator[Any]:
    """pynvml, initialised."""
    if missing_modules(["pynvml"]):
        raise RuntimeError(f"nvidia-ml-py is not importable by {sys.executable}: put it on PYTHONPATH")
    import pynvml

    ctypes.CDLL(LIBRARY)  # whoever loads it first decides which
    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def timed(call: Callable[[], object]) -> tuple[object, int, float]:
    """Answer (None on failure), return code, microseconds of one pynvml call."""
    import pynvml

    start = time.perf_counter_ns()
    try:
        answer = call()
        code = 0
    except pynvml.NVMLError as error:
        answer, code = None, int(error.value)
    except pynvml.NVMLLibraryMismatchError:  # a plain Exception of pynvml's, for a missing symbol
        answer, code = None, 13
    return answer, code, (time.perf_counter_ns() - start) / 1e3


def repeat(call: Callable[[], object], most: int, limit_s: float) -> tuple[int, list[float]]:
    """The last return code and the durations of up to ``most`` calls, at least one, within ``limit_s``."""
    end = time.monotonic() + limit_s
    durations: list[float] = []
    code = 0
    while len(durations) < most and (not durations or time.monotonic() < end):
        _, code, took_us = timed(call)
        durations.append(took_us)
    return code, durations


def plain(value: object) -> object:
    """An answer of pynvml as something JSON can hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value[:64]]
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    return repr(value)[:200]
