"""Finished requests for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpumon.model import RequestRecord

START_NS = 1_800_000_000_000_000_000
AT_S = 6000.0


def request(
    gaps_ns: Sequence[int] | None = None,
    *,
    counts: Sequence[int] | None = None,
    trace: int = 1,
    first_ns: int = 100_000_000,
    **told: Any,
) -> RequestRecord:
    """A request whose first token came ``first_ns`` after its start and the others after these gaps; ended then.

    gaps_ns: None for one without token times. ``told``: other fields, as they are to be.
    """
    fields: dict[str, Any] = {"server": "vllm", "model": "m", "request_id": "", "start_ns": START_NS}
    if gaps_ns is not None:
        times = START_NS + first_ns + np.cumsum(np.array([0, *gaps_ns], dtype=np.int64))
        fields |= {"token_ns": times, "first_token_ns": int(times[0]), "per_token": True}
        fields |= {"end_ns": int(times[-1]), "time_to_first_token_s": first_ns / 1e9}
    if counts is not None:
        fields["token_counts"] = np.array(counts, dtype=np.int32)
    fields.setdefault("end_ns", START_NS + 1_000_000_000)
    fields.setdefault("arrived_s", AT_S - (fields["end_ns"] - START_NS) / 1e9)
    return RequestRecord(trace_id=trace.to_bytes(16, "big"), **(fields | told))
