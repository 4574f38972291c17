"""Step: the driver's own rings of samples on GPU 0: how long they are and how often they are written."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from tests.gpu.common import Row, nvml, run, seconds, timed, write

KINDS = ("power", "gpu", "memory", "encoder", "decoder", "clock", "memory_clock", "module_power", "jpeg", "ofa")


def measure() -> Iterator[Row]:
    document: dict[str, dict[str, Any]] = {}
    with nvml() as pynvml:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        last = {}
        for kind, name in enumerate(KINDS):
            answer, code, took_us = timed(partial(pynvml.nvmlDeviceGetSamples, handle, kind, 0))
            document[name] = {"code": code, "us": round(took_us, 1), **_ring(answer)}
            last[kind] = document[name].get("last_us", 0)
        pause_s = seconds(2.0)
        time.sleep(pause_s)
        for kind, name in enumerate(KINDS):
            answer, code, _ = timed(partial(pynvml.nvmlDeviceGetSamples, handle, kind, last[kind]))
            news = _ring(answer)
            document[name]["after"] = {"seconds": pause_s, "code": code, "new": news.get("count", 0)}
    write("samples.json", document)
    for name in ("gpu", "power"):
        ring = document[name]
        if ring["code"] == 0 and ring.get("count"):
            text = f"{ring['count']} entries, {ring['span_s']:.1f} s, every {ring['period_ms']:.0f} ms"
            yield Row(f"ring of {name}", text)
        else:
            yield Row(f"ring of {name}", f"code {ring['code']}, {ring.get('count', 0)} entries")


def _ring(answer: object) -> dict[str, Any]:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        return {}
    kind, rows = answer
    stamps = sorted(int(row.timeStamp) for row in rows if int(row.timeStamp) > 0)
    gaps = [(b - a) / 1e3 for a, b in pairwise(stamps)]
    return {
        "value_type": int(kind),
        "count": len(rows),
        "stamped": len(stamps),
        "last_us": stamps[-1] if stamps else 0,
        "span_s": (stamps[-1] - stamps[0]) / 1e6 if stamps else 0.0,
        "period_ms": statistics.median(gaps) if gaps else 0.0,
    }


if __name__ == "__main__":
    sys.exit(run("samples", measure))
