"""Step: how wide the PCIe byte counters are (fields 197 and 198): copy past 2^32 bytes and see whether they fall."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.gpu.common import LOAD, Row, nvml, run, seconds, write
from tests.gpu.fields import Batch, describe
from tests.gpu.load import Load

FIELDS = (197, 198)
ENOUGH_BYTES = 3 << 32


def measure() -> Iterator[Row]:
    load = Load()
    with nvml() as pynvml:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        batch = Batch(pynvml, handle, [(number, 0) for number in FIELDS])
        kind_s = seconds(3)
        load.start("pcie", kind_s)
        readings: list[list[Any]] = []
        end = time.monotonic() + kind_s
        while time.monotonic() < end:
            batch.read()
            readings.append([time.monotonic(), *(describe(entry)["value"] for entry in batch.array)])
            time.sleep(0.01)
        done = load.result()
    load.close()
    moved = done["bytes_per_second"] * done["seconds"]
    document: dict[str, Any] = {"load": done, "moved_bytes": moved, "readings": readings[::10]}
    for i, number in enumerate(FIELDS):
        values = [reading[i + 1] for reading in readings if reading[i + 1] is not None]
        falls = [(a, b) for a, b in pairwise(values) if b < a]
        document[str(number)] = {
            "first": values[0] if values else None,
            "last": values[-1] if values else None,
            "most": max(values, default=None),
            "falls": falls[:10],
            "fell_from_below_2_32": all(a < 1 << 32 for a, _ in falls) if falls else None,
        }
    write("wrap.json", document)
    for number in FIELDS:
        found = document[str(number)]
        if found["most"] is None:
            yield Row(f"field {number}", "not answered")
        elif found["falls"]:
            yield Row(f"field {number}", f"falls {len(found['falls'])} times, from {found['falls'][0][0]:#x}")
        else:
            told = "never fell" if moved > ENOUGH_BYTES or LOAD != "cuda" else "never fell, but too little was moved"
            yield Row(f"field {number}", f"{told}; {moved / 1e9:.1f} GB moved, counter at {found['most']:#x}")


if __name__ == "__main__":
    sys.exit(run("wrap", measure))
