"""The claim about /metrics: 16,560 samples rendered and served, against prometheus_client on the same samples.

640 gauges of GPUs, 1,200 of processes, 20 families of 32 histograms with 21 buckets. One JSON line; times in ms. The
two ways alternate in one run, so that a noisy machine is noisy for both.
Usage: python -m benchmarks.scrape [--rounds N]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as ReferenceFamily
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gpumon.export.prometheus import Exposition
from gpumon.export.scrape import ScrapeCache
from gpumon.export.text import Format
from gpumon.model import Distribution, Kind, Metric, Sample, Unit
from gpumon.store import Store

P = ParamSpec("P")
RANDOM = random.Random(3)
BOUNDS = tuple(0.001 * 1.6**i for i in range(20))
TTL_S = 1e9


def _family(stem: str, labels: tuple[str, ...], unit: Unit, bounds: tuple[float, ...] = ()) -> Metric:
    kind = Kind.HISTOGRAM if bounds else Kind.GAUGE
    return Metric(
        stem=stem, kind=kind, unit=unit, labels=labels, help=f"What {stem} is.", origin="", budget=10_000, bounds=bounds
    )


GPU_FAMILIES = [_family(f"gpu_signal_{i}", ("gpu", "uuid", "model"), Unit.RATIO) for i in range(80)]
PROCESS_FAMILIES = [_family(f"process_signal_{i}", ("pid", "name", "gpu", "pod"), Unit.BYTES) for i in range(6)]
HISTOGRAM_FAMILIES = [_family(f"wait_{i}", ("model", "slot", "tenant"), Unit.SECONDS, BOUNDS) for i in range(20)]
FAMILIES = (*GPU_FAMILIES, *PROCESS_FAMILIES, *HISTOGRAM_FAMILIES)

GPUS = [
    (str(i), f"GPU-{RANDOM.getrandbits(32):08x}-1f2e-4c3d-9a8b-{RANDOM.getrandbits(48):012x}", "H200") for i in range(8)
]
PROCESSES = [(str(1000 + i), f"python3-worker-{i % 17}", str(i % 8), f"vllm-{i % 25}") for i in range(200)]
STREAMS = [(f"llama-3-{i % 4}", str(i // 4), "default") for i in range(32)]


def gpu_samples() -> list[Sample]:
    return [Sample(metric, labels, RANDOM.random()) for metric in GPU_FAMILIES for labels in GPUS]


def process_samples() -> list[Sample]:
    return [
        Sample(metric, labels, float(RANDOM.randrange(10**11))) for metric in PROCESS_FAMILIES for labels in PROCESSES
    ]


def histogram_samples() -> list[Sample]:
    return [
        Sample(metric, labels, Distribution(tuple(RANDOM.randrange(1000) for _ in range(21)), RANDOM.random() * 1e3))
        for metric in HISTOGRAM_FAMILIES
        for labels in STREAMS
    ]


class Reference(Collector):
    """A collector as prometheus_client's documentation shows it."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._families: dict[Metric, list[Sample]] = {}
        for sample in samples:
            self._families.setdefault(sample.metric, []).append(sample)

    def collect(self) -> Iterator[ReferenceFamily]:
        for metric, samples in self._families.items():
            if metric.kind is Kind.HISTOGRAM:
                bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
                histograms = HistogramMetricFamily(metric.family, metric.help, labels=metric.labels)
                for _, labels, value in samples:
                    assert isinstance(value, Distribution)
                    seen, buckets = 0, []
                    for bound, count in zip(bounds, value.counts, strict=True):
                        seen += count
                        buckets.append((bound, seen))
                    histograms.add_metric(labels, buckets, sum_value=value.total)
                yield histograms
            else:
                gauges = GaugeMetricFamily(metric.family, metric.help, labels=metric.labels)
                for _, labels, number in samples:
                    assert isinstance(number, float)
                    gauges.add_metric(labels, number)
                yield gauges


def timed(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    work(*args, **kwargs)
    return (time.perf_counter() - start) * 1e3


def summary(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {"p50": round(statistics.median(ordered), 4), "p99": round(p99, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    store = Store(max_series=50_000)
    exposition = Exposition(FAMILIES)
    owners = {"gpu": gpu_samples, "process": process_samples, "requests": histogram_samples}

    def fill(at_s: float, names: Iterable[str]) -> list[Sample]:
        for name in names:
            store.put(name, at_s, owners[name](), TTL_S)
        return list(store.view(at_s))

    def render(at_s: float) -> bytes:
        return exposition.render(store.view(at_s)).body(Format.TEXT)

    fill(0.0, owners)
    times: dict[str, list[float]] = {name: [] for name in ("generate_latest", "full", "one_batch", "gzip", "put_gpu")}
    first_ms = timed(render, 0.0)
    gc.collect()
    gc.freeze()
    at_s = 0.0
    for _ in range(rounds):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Reference(fill(at_s + 1, owners)))
        times["generate_latest"].append(timed(generate_latest, registry))
        # Once untimed: the reference leaves the allocator in a state that no process without it has.
        fill(at_s + 2, owners)
        render(at_s + 2)
        fill(at_s + 3, owners)
        times["full"].append(timed(render, at_s + 3))
        page = exposition.render(store.view(at_s + 3))
        page.body(Format.TEXT)
        times["gzip"].append(timed(page.body, Format.TEXT, compressed=True))
        fill(at_s + 4, ["gpu"])
        times["one_batch"].append(timed(render, at_s + 4))
        times["put_gpu"].append(timed(store.put, "gpu", at_s + 5, gpu_samples(), TTL_S))
        at_s += 10

    cache = ScrapeCache(store.view, exposition.render)
    times["changed_gzip"] = []
    for _ in range(rounds):
        at_s += 10
        fill(at_s, owners)
        times["changed_gzip"].append(timed(cache.scrape, "text/plain", "gzip", at_s))
    times["ready_gzip"] = [timed(cache.scrape, "text/plain", "gzip", at_s) for _ in range(2000)]

    ours, theirs = statistics.median(times["full"]), statistics.median(times["generate_latest"])
    result = {
        "benchmark": "scrape",
        "samples": render(at_s).count(b"\n") - 2 * len(FAMILIES),
        "bytes": len(render(at_s)),
        "bytes_gzip": len(cache.scrape("text/plain", "gzip", at_s).body),
        "first_render_ms": round(first_ms, 2),
        **{f"{name}_ms": summary(measured) for name, measured in times.items()},
        "full_times_faster_than_generate_latest": round(theirs / ours, 1),
        "one_batch_times_faster_than_generate_latest": round(theirs / statistics.median(times["one_batch"]), 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
