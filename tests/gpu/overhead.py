"""Step: what ten samples a second cost a CUDA load, with and without gpumon in turns, and whether they come.

Rounds of (off, on) or (on, off), alternating, so that a drift of clocks or heat hits both alike. Where ``gpumon run``
cannot be started for want of packages, its NVML passes alone run in a process in its place.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from gpumon.host.nvml import Nvml
from gpumon.host.nvml_driver import NvmlDriver
from tests.gpu.common import LIBRARY, NEEDED_BY_APP, Row, judged, missing_modules, run, seconds, write
from tests.gpu.gpumon_process import Gpumon, rate
from tests.gpu.load import Load

ROUNDS = 6
KINDS = ("matmul", "decode")
RUN_S = 2.0
GPU = 'gpu="0"'
SETTLE_S = 1.5


def measure() -> Iterator[Row]:
    lacking = missing_modules(NEEDED_BY_APP)
    load = Load()
    rounds: list[dict[str, Any]] = []
    rates: list[float] = []
    for kind in KINDS:
        load.run(kind, seconds(1.0))  # warm, and as hot as it will be
    for number in range(ROUNDS):
        for on in (number % 2 == 0, number % 2 == 1):
            with ExitStack() as stack:
                gpumon = None
                if on and lacking:
                    stack.enter_context(_passes_alone())
                elif on:
                    gpumon = stack.enter_context(Gpumon())
                if on:
                    time.sleep(seconds(SETTLE_S, least=1.2))
                before = gpumon.page() if gpumon else {}
                result = {kind: load.run(kind, seconds(RUN_S)) for kind in KINDS}
                if gpumon is not None:
                    after = gpumon.page()
                    counted = rate(before, after, "gpumon_gpu_samples_total", GPU)
                    # By the samples' own times: a page may be a publishing interval old.
                    passed_s = rate(before, after, "gpumon_gpu_last_sample_timestamp_seconds", GPU)
                    if counted and passed_s:
                        rates.append(counted / passed_s)
                rounds.append({"round": number, "gpumon": on, **result})
    load.close()
    document: dict[str, Any] = {
        "load": load.hello,
        "what": f"NVML passes alone ({', '.join(lacking)} missing)" if lacking else "gpumon run",
        "rounds": rounds,
        "samples_per_second": rates,
        "cost": {kind: _cost(rounds, kind) for kind in KINDS},
    }
    write("overhead.json", document)
    yield Row("overhead measured with", document["what"], "SKIP" if lacking else "INFO")
    for kind, cost in document["cost"].items():
        shown = f"{100 * cost['median']:+.2f} % (rounds {100 * cost['least']:+.2f} to {100 * cost['most']:+.2f})"
        yield judged(f"{kind}: slower with gpumon", cost["median"], shown, most=0.01)
        yield Row(f"{kind}: p99 of a batch with gpumon", f"{100 * cost['p99']:+.2f} %")
    if rates:
        yield judged("samples per second", statistics.fmean(rates), f"{statistics.fmean(rates):.2f}", least=9.5)


def _cost(rounds: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Share of throughput lost with gpumon, by round."""
    lost, longer = [], []
    for number in range(ROUNDS):
        on, off = (
            next(r[kind] for r in rounds if r["round"] == number and r["gpumon"] is wanted) for wanted in (True, False)
        )
        lost.append(1 - on["per_second"] / off["per_second"])
        longer.append(on["batch_ms"]["p99"] / off["batch_ms"]["p99"] - 1)
    return {"median": statistics.median(lost), "least": min(lost), "most": max(lost), "p99": statistics.median(longer)}


class _passes_alone:  # noqa: N801 - used as a function
    """A process that reads GPU 0 ten times a second."""

    def __enter__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "tests.gpu.overhead", "passes"])

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)


def passes() -> None:
    """Until ended."""
    from tests.gpu.activity import TICK_S, Reader

    driver = NvmlDriver(LIBRARY)
    driver.open()
    port: Nvml = driver
    reader = Reader(port)
    due = time.monotonic()
    while True:
        reader.tick()
        due += TICK_S
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    if sys.argv[1:] == ["passes"]:
        passes()
    sys.exit(run("overhead", measure))
