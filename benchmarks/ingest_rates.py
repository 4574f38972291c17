"""What of ``benchmarks.ingest`` runs in this process: decoding, assembly and statistics, one core.

The parts of the daemon, called as the intake's worker and the source ``traces`` call them: requests that arrive
within a pass are decoded together, records are collected every ten passes. Nothing is
measured before the memory of past requests is full, and generating the load is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import ingest_load
from gpumon.catalogue import SPANS_DROPPED
from gpumon.host.garbage import short_pauses
from gpumon.ingest.assembly import Assembler
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.records import Decoded
from gpumon.model import RequestRecord
from gpumon.requests.statistics import RequestStatistics

PASS = 6400
"""Tokens or steps that are decoded together, where a request has fewer."""
AT_S = 10_000.0
COLLECT_EVERY = 10
WORN_IN = 40_000
"""Requests before anything is measured."""
Fresh = Callable[[], list[bytes]]


class Shape(NamedTuple):
    """Requests of one shape."""

    fresh: Fresh
    """Bodies that were never seen before, of ``size`` tokens or steps together."""
    per_pass: int
    size: int


def shapes(tokens: int) -> dict[str, Shape]:
    """The shapes measured, each of about so many tokens."""
    random = np.random.default_rng(7)
    found: dict[str, Shape] = {}

    def add(name: str, template: ingest_load.Template) -> None:
        count = max(1, tokens // template.tokens)
        per_pass = max(1, PASS // template.tokens)
        found[name] = Shape(lambda: [template.fresh(random) for _ in range(count)], per_pass, count * template.tokens)

    add("events_64", ingest_load.events(100, 64))
    add("events_256", ingest_load.events(25, 256))
    add("compact_64", ingest_load.compact(100, 64))
    add("compact_256", ingest_load.compact(100, 256))
    add("compact_2000", ingest_load.compact(10, 2000))
    for batch in (64, 512):
        server = ingest_load.Sglang(64, 128, batch)
        rounds = max(1, tokens // server.spans // 6)
        found[f"steps_in_batches_of_{batch}"] = Shape(
            lambda server=server, rounds=rounds: [body for _ in range(rounds) for body in server.round(random)],  # type: ignore[misc]  # bound now
            PASS // batch,
            rounds * server.spans,
        )
    return found


class Pipeline:
    """The parts of the daemon, worn in: they remember as many requests as they ever do."""

    def __init__(self) -> None:
        self._assembler, self._counted = Assembler(), RequestStatistics()
        self._at_s = AT_S
        self._offset_s = time.time() - AT_S
        template, random = ingest_load.compact(100, 16), np.random.default_rng(8)
        self.run([template.fresh(random) for _ in range(WORN_IN // 100)], 4)
        short_pauses()

    def rate(self, shape: Shape, rounds: int) -> dict[str, float]:
        """Tokens (or steps) per second of CPU in the median round, and where the time went, in ns for each."""
        self.run(shape.fresh()[: 2 * shape.per_pass], shape.per_pass)
        spent = [self.run(shape.fresh(), shape.per_pass) for _ in range(rounds)]
        median = sorted(spent, key=lambda one: sum(one.values()))[len(spent) // 2]
        ns = {f"{name}_ns": round(seconds / shape.size * 1e9, 1) for name, seconds in median.items()}
        return {"per_s": round(shape.size / sum(median.values())), **ns}

    def run(self, bodies: Sequence[bytes], per_pass: int) -> dict[str, float]:
        """CPU seconds by what they were spent on."""
        spent = dict.fromkeys(("decode", "assemble", "complete", "count"), 0.0)
        last_s = time.process_time()

        def passed(what: str) -> None:
            nonlocal last_s
            now_s = time.process_time()
            spent[what] += now_s - last_s
            last_s = now_s

        def collect() -> None:
            records: list[RequestRecord] = self._assembler.tick(self._at_s)
            passed("complete")
            for record in records:
                self._counted.add(record, self._at_s)
            passed("count")

        for number, first in enumerate(range(0, len(bodies), per_pass)):
            decoded = decode_traces(bodies[first : first + per_pass])
            passed("decode")
            for one in decoded:
                assert isinstance(one, Decoded)
                self._assembler.add(one, "127.0.0.1:1", self._at_s, lambda ns: ns / 1e9 - self._offset_s)
            passed("assemble")
            self._at_s += 0.05
            if number % COLLECT_EVERY == COLLECT_EVERY - 1:
                collect()
        self._at_s += 3.0  # the last requests are complete by then; not more, or spans become old news
        collect()
        self._counted.samples(self._at_s)
        passed("count")
        for sample in self._assembler.samples():
            assert sample.metric is not SPANS_DROPPED or not sample.value, sample
        return spent
