"""Requests that ended on a stage, for tests of detectors: their times are those of the stage's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpumon.model import Binding, GpuUuid, RequestRecord


def request(
    start_s: float,
    *,
    first_s: float | None = 0.1,
    gap_s: float | Sequence[float] = 0.02,
    tokens: int = 0,
    end_s: float | None = None,
    gpus: Sequence[str] = (),
    pid: int | None = None,
    **told: Any,
) -> RequestRecord:
    """A request that began at ``start_s``. first_s: time to its first token. tokens: made after that one, each gap_s
    later or by gaps one by one; 0: nobody told of tokens. end_s: with the last token where it is not given.
    """
    start_ns = round(start_s * 1e9)
    fields: dict[str, Any] = {"request_id": "", "server": "vllm", "model": "m", "trace_id": bytes(16)}
    ended_s = start_s + (first_s or 0.0)
    if first_s is not None:
        fields |= {"time_to_first_token_s": first_s, "first_token_ns": round((start_s + first_s) * 1e9)}
    gaps = np.full(tokens, gap_s) if isinstance(gap_s, float) else np.array(gap_s)
    if len(gaps):
        times_s = ended_s + np.concatenate(([0.0], np.cumsum(gaps)))
        fields |= {"token_ns": np.rint(times_s * 1e9).astype(np.int64), "per_token": True}
        fields["completion_tokens"] = len(times_s)
        ended_s = float(times_s[-1])
    if gpus or pid is not None:
        fields["binding"] = Binding("resource", pid=pid, gpus=tuple(GpuUuid(uuid) for uuid in gpus))
    end_ns = round((ended_s if end_s is None else end_s) * 1e9)
    return RequestRecord(**(fields | {"start_ns": start_ns, "end_ns": end_ns, "arrived_s": start_s} | told))
