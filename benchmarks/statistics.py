"""The claim about counting requests: tokens/s/core of RequestStatistics, and what its samples cost at a scrape.

2,000 requests of 256 tokens, as events or the compact form give them, of 4 models; the same tokens as speculative
decoding makes them, 3 to a step; and short answers of 8 tokens, where the cost per request is all. Bar: 5 M tokens/s
at 256 tokens, so that counting leaves room for decoding within the 5 M of the compact form. Exposition: time to make
the samples, put them into the store and render the page when every series changed. One JSON line; CPU time.
Usage: python -m benchmarks.statistics [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from gpumon.export.prometheus import Exposition
from gpumon.export.text import Format
from gpumon.model import RequestRecord
from gpumon.requests.statistics import RequestStatistics
from gpumon.requests.windows import Ladder
from gpumon.store import Store

BAR_TOKENS_PER_S = 5e6
START_NS = 1_800_000_000_000_000_000
AT_S = 100_000.0
RANDOM = np.random.default_rng(3)


def _records(requests: int, steps: int, tokens_per_step: int) -> list[RequestRecord]:
    records = []
    for i in range(requests):
        gaps_ns = (RANDOM.lognormal(-4.0, 0.4, steps) * 1e9).astype(np.int64)
        times = START_NS + i * 1_000_000 + np.cumsum(gaps_ns)
        lasted_s = (int(times[-1]) - START_NS) / 1e9
        records.append(
            RequestRecord(
                trace_id=RANDOM.bytes(16),
                request_id="",
                server="vllm",
                model=f"model-{i % 4}",
                arrived_s=AT_S - lasted_s,
                start_ns=START_NS,
                end_ns=int(times[-1]),
                first_token_ns=int(times[0]),
                time_to_first_token_s=(int(times[0]) - START_NS) / 1e9,
                queue_s=0.002,
                prefill_s=0.03,
                decode_s=lasted_s,
                token_ns=times,
                token_counts=np.full(steps, tokens_per_step, dtype=np.int32) if tokens_per_step > 1 else None,
                per_token=True,
                prompt_tokens=int(RANDOM.integers(10, 30_000)),
                completion_tokens=steps * tokens_per_step,
                concurrency=int(RANDOM.integers(1, 64)),
            )
        )
    return records


def _seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def _counted(statistics: RequestStatistics, records: list[RequestRecord]) -> float:
    def run() -> None:
        for record in records:
            statistics.add(record, AT_S)
        statistics.cells(AT_S, AT_S, None)  # counts what waits

    return _seconds(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    shapes = {"256 tokens": (2000, 256, 1), "85 steps of 3": (2000, 85, 3), "8 tokens": (10_000, 8, 1)}
    statistics = RequestStatistics()
    rates: dict[str, float] = {}
    per_request_us: dict[str, float] = {}
    for name, shape in shapes.items():
        records = _records(*shape)
        best = min(_counted(statistics, records) for _ in range(rounds))
        rates[name] = len(records) * shape[1] * shape[2] / best
        per_request_us[name] = best / len(records) * 1e6
    changed = _records(2000, 256, 1)
    store, exposition = Store(), Exposition()
    scrape_ms = []
    lines = 0
    for _ in range(rounds):
        _counted(statistics, changed)

        def scrape() -> bytes:
            store.put("requests", AT_S, statistics.samples(AT_S), 1e9)
            return exposition.render(store.view(AT_S)).body(Format.OPENMETRICS)

        scrape_ms.append(_seconds(scrape) * 1e3)
        lines = scrape().count(b"\n")
    cells_ms = _seconds(lambda: statistics.cells(0.0, AT_S, Ladder.CONTEXT)) * 1e3
    result = {
        "tokens_per_s": {name: round(rate) for name, rate in rates.items()},
        "us_per_request": {name: round(us, 2) for name, us in per_request_us.items()},
        "exposition_ms": round(min(scrape_ms), 2),
        "lines": lines,
        "cells_ms": round(cells_ms, 2),
        "bar_tokens_per_s": BAR_TOKENS_PER_S,
        "ok": rates["256 tokens"] >= BAR_TOKENS_PER_S,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
