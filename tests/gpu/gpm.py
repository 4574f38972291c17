"""Step: GPM on GPU 0: which metrics there are, how short an interval may be, and whether a bad id spoils a request."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tests.gpu.common import Row, nvml, repeat, run, seconds, spread, timed, write

LAST_ID = 333
WANTED = (1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21, 60, 61)
INTERVALS_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.5)


class Gpm:
    """Two samples of one device."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._p, self._h = pynvml, handle
        self.older, self.newer = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()

    def take(self, interval_s: float) -> tuple[int, int]:
        """Both samples, so far apart; return codes."""
        codes = [timed(lambda: self._p.nvmlGpmSampleGet(self._h, self.older))[1]]
        time.sleep(interval_s)
        codes.append(timed(lambda: self._p.nvmlGpmSampleGet(self._h, self.newer))[1])
        return codes[0], codes[1]

    def ask(self, metrics: Sequence[int]) -> tuple[int, list[tuple[int, float]], float]:
        """Code of the whole, code and value of each, microseconds."""
        request = self._p.c_nvmlGpmMetricsGet_t()
        request.version = 1
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = self.older, self.newer
        for i, metric in enumerate(metrics):
            request.metrics[i].metricId = metric
        _, code, took_us = timed(lambda: self._p.nvmlGpmMetricsGet(request))
        entries = [(int(request.metrics[i].nvmlReturn), float(request.metrics[i].value)) for i in range(len(metrics))]
        return code, entries, took_us

    def close(self) -> None:
        for sample in (self.older, self.newer):
            timed(partial(self._p.nvmlGpmSampleFree, sample))


def measure() -> Iterator[Row]:
    with nvml() as pynvml:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        support, code, _ = timed(lambda: pynvml.nvmlGpmQueryDeviceSupport(handle))
        supported = bool(code == 0 and getattr(support, "isSupportedDevice", 0))
        document: dict[str, Any] = {"query_code": code, "supported": supported}
        if not supported:
            write("gpm.json", document)
            yield Row("GPM", f"not supported (code {code})", "SKIP")
            return
        streaming, code, _ = timed(lambda: pynvml.nvmlGpmQueryIfStreamingEnabled(handle))
        document["streaming"] = {"code": code, "enabled": streaming}
        gpm = Gpm(pynvml, handle)
        document["metrics"] = _metrics(gpm)
        document["bad_id_in_request"] = _bad_id(gpm)
        document["intervals"] = list(_intervals(gpm))
        sample_code, durations = repeat(lambda: pynvml.nvmlGpmSampleGet(handle, gpm.newer), 100, seconds(3))
        document["sample_get_us"] = {"code": sample_code, **spread(durations)}
        gpm.take(seconds(0.15))
        document["metrics_get_us"] = spread([gpm.ask(WANTED)[2] for _ in range(50)])
        gpm.close()
    write("gpm.json", document)
    codes = Counter(entry["code"] for entry in document["metrics"])
    good = [entry["id"] for entry in document["metrics"] if entry["code"] == 0]
    yield Row("GPM metrics", f"{len(good)} answer; codes {dict(codes.most_common())}")
    yield Row("GPM wanted and absent", ", ".join(str(m) for m in WANTED if m not in good) or "none")
    usable = [entry["interval_s"] for entry in document["intervals"] if entry["code"] == 0 and entry["finite"]]
    yield Row("GPM shortest interval", f"{min(usable) * 1e3:.0f} ms" if usable else "none works")
    yield Row("GPM one bad id", f"whole request answers {document['bad_id_in_request']['code']}")
    yield Row("GPM sample, metrics", f"{document['sample_get_us']['p50']} us, {document['metrics_get_us']['p50']} us")


def _metrics(gpm: Gpm) -> list[dict[str, Any]]:
    """Each metric alone, over one pair of samples."""
    gpm.take(seconds(0.5, least=0.15))
    rows = []
    for metric in range(1, LAST_ID + 1):
        code, [(own, value)], _ = gpm.ask([metric])
        rows.append({"id": metric, "code": code or own, "value": value if value == value else "nan"})
    return rows


def _bad_id(gpm: Gpm) -> dict[str, Any]:
    gpm.take(seconds(0.15, least=0.15))
    code, entries, _ = gpm.ask([2, 9999, 10])
    return {"code": code, "entries": [(own, value if value == value else "nan") for own, value in entries]}


def _intervals(gpm: Gpm) -> Iterator[dict[str, Any]]:
    for interval_s in INTERVALS_S:
        sample_codes = gpm.take(interval_s)
        code, entries, _ = gpm.ask(WANTED)
        finite = all(own != 0 or value == value for own, value in entries)
        yield {
            "interval_s": interval_s,
            "sample_codes": sample_codes,
            "code": code,
            "finite": finite,
            "values": [value if value == value else "nan" for _, value in entries],
        }


if __name__ == "__main__":
    sys.exit(run("gpm", measure))
