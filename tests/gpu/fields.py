"""Step: every field value of GPU 0 in every scope: return code, type, value, and what it costs alone and in a batch.

Settles which fields the chip has, which say INVALID_ARGUMENT where they mean NOT_SUPPORTED, which types differ from
the documented ones, and whether a batch is cheaper than single calls.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tests.gpu.common import LIBRARY, Row, nvml, run, seconds, write

LAST_ID = 320
"""Past the highest id of pynvml 13.615 (308), for what newer drivers have."""
ALL_LINKS = 0xFFFFFFFF
SCOPES: dict[int, tuple[int, ...]] = {
    **dict.fromkeys((*range(185, 193), 83), (0, 1, 2, 3)),  # GPU, module, memory, GPU base
    **{number: (*range(18), ALL_LINKS) for number in (*range(138, 142), *range(161, 168))},  # links
}
FAST = (82, 83, 185, 186, 74, 76, 77, 78, 79, 81, 269, 270, 271, 197, 198)
"""What is read ten times a second, but for the links."""
BATCH = (
    *(82, 83, 185, 186, 190, 193, 194, 195, 196, 74, 76, 77, 78, 79, 81, 269, 270, 271),
    *(1, 3, 4, 5, 6, 94, 95, 142, 143, 144, 145, 91, 197, 198, 230),
)
_TYPES = ("double", "uint", "ulong", "ulonglong", "longlong", "int", "ushort")
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

Pair = tuple[int, int]


class Batch:
    """A kept array of field values, read straight through ctypes: the driver's time and little else."""

    def __init__(self, pynvml: Any, handle: Any, pairs: Sequence[Pair]) -> None:
        self.array = (pynvml.c_nvmlFieldValue_t * len(pairs))()
        for entry, (number, scope) in zip(self.array, pairs, strict=True):
            entry.fieldId, entry.scopeId = number, scope
        self._function = ctypes.CDLL(LIBRARY).nvmlDeviceGetFieldValues
        self._arguments = (handle, ctypes.c_int(len(pairs)), self.array)

    def read(self) -> tuple[int, float]:
        """Return code and microseconds."""
        start = time.perf_counter_ns()
        code = self._function(*self._arguments)
        return code, (time.perf_counter_ns() - start) / 1e3


def describe(entry: Any) -> dict[str, object]:
    """One field value as the driver left it."""
    kind = int(entry.valueType)
    known = kind < len(_TYPES)
    return {
        "code": int(entry.nvmlReturn),
        "type": _TYPES[kind] if known else kind,
        "value": getattr(entry.value, _MEMBERS[kind]) if known and entry.nvmlReturn == 0 else None,
        "driver_us": int(entry.latencyUsec),
        "stamped": int(entry.timestamp) > 0,
    }


def measure() -> Iterator[Row]:
    pairs = [(number, scope) for number in range(1, LAST_ID + 1) for scope in SCOPES.get(number, (0,))]
    with nvml() as pynvml:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        end = time.monotonic() + seconds(15)
        fields: list[dict[str, Any]] = []
        for pair in pairs:
            batch = Batch(pynvml, handle, [pair])
            call_code, *_ = batch.read()
            took = [batch.read()[1] for _ in range(5 if time.monotonic() < end else 1)]
            fields.append(
                {"id": pair[0], "scope": pair[1], "call_code": call_code, **describe(batch.array[0])}
                | {"alone_us": round(statistics.median(took), 1)}
            )
        good = [(f["id"], f["scope"]) for f in fields if f["code"] == 0 and f["call_code"] == 0]
        batches = {
            "fast": _compare(pynvml, handle, [(number, 0) for number in FAST if (number, 0) in good]),
            "suggested": _compare(pynvml, handle, [(number, 0) for number in BATCH if (number, 0) in good]),
            "all_supported": _compare(pynvml, handle, good),
            "with_unsupported": _compare(pynvml, handle, [(number, 0) for number in BATCH]),
        }
    write("fields.json", {"fields": fields, "batches": batches})
    codes = Counter(f["code"] if f["call_code"] == 0 else f["call_code"] for f in fields)
    yield Row("fields answered", f"{codes[0]} of {len(fields)}; codes {dict(codes.most_common())}")
    invalid = sorted({f["id"] for f in fields if f["code"] == 2})
    yield Row(
        "fields INVALID_ARGUMENT", ", ".join(map(str, invalid[:12])) + (" ..." if len(invalid) > 12 else "") or "-"
    )
    for name in ("fast", "suggested"):
        b = batches[name]
        yield Row(
            f"batch '{name}' of {b['fields']}", f"{b['batch_us']} us, the same one by one {b['one_by_one_us']} us"
        )


def _compare(pynvml: Any, handle: Any, pairs: Sequence[Pair]) -> dict[str, Any]:
    """A batch against the same fields one by one, in turns."""
    if not pairs:
        return {"fields": 0, "batch_us": None, "one_by_one_us": None}
    batch = Batch(pynvml, handle, pairs)
    singles = [Batch(pynvml, handle, [pair]) for pair in pairs]
    together: list[float] = []
    alone: list[float] = []
    end = time.monotonic() + seconds(1.0)
    while len(together) < 3 or (time.monotonic() < end and len(together) < 200):
        together.append(batch.read()[1])
        alone.append(sum(single.read()[1] for single in singles))
    return {
        "fields": len(pairs),
        "rounds": len(together),
        "batch_us": round(statistics.median(together), 1),
        "one_by_one_us": round(statistics.median(alone), 1),
        "in_batch": [
            {"id": number, "scope": scope, **describe(entry)}
            for (number, scope), entry in zip(pairs, batch.array, strict=True)
        ],
    }


if __name__ == "__main__":
    sys.exit(run("fields", measure))
