"""Exemplars: on an OpenMetrics page, and in a real Prometheus that keeps them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.e2e.page import Page
from tests.e2e.prometheus import Job, Prometheus


class Exemplar(NamedTuple):
    """One exemplar. ``at_s``: unix time."""

    trace_id: str
    value: float
    at_s: float


def exemplars_of(body: bytes, name: str, **labels: str) -> list[Exemplar]:
    """Exemplars of a histogram of an OpenMetrics page, in the order of its buckets."""
    page = Page(body, openmetrics=True)
    return [
        Exemplar(sample.exemplar.labels["trace_id"], sample.exemplar.value, float(sample.exemplar.timestamp or 0))
        for sample in page.families[name].samples
        if sample.exemplar is not None and labels.items() <= sample.labels.items()
    ]


class ExemplarPrometheus(Prometheus):
    """A Prometheus with its storage for exemplars switched on."""

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        super().__init__(folder, jobs, flags=["--enable-feature=exemplar-storage"])

    def exemplars(self, promql: str) -> list[Exemplar]:
        """Those of the last ten minutes."""
        now_s = time.time()
        return list(_read(self.ask("query_exemplars", query=promql, start=now_s - 600, end=now_s + 60)))


def _read(data: list[dict[str, list[dict[str, object]]]]) -> Iterator[Exemplar]:
    for series in data:
        for one in series["exemplars"]:
            labels = one["labels"]
            assert isinstance(labels, dict)
            yield Exemplar(labels["trace_id"], float(str(one["value"])), float(str(one["timestamp"])))
