"""Exemplars: on an OpenMetrics page, and in a real Prometheus that keeps them."""

from __future__ import annotations

import json
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

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
        real = shutil.which("prometheus")
        assert real is not None, "prometheus is missing: install Debian's package prometheus, or any 2.40 or newer"
        programs = folder / "bin"
        programs.mkdir(parents=True)
        wrapper = programs / "prometheus"
        wrapper.write_text(f'#!/bin/sh\nexec "{real}" --enable-feature=exemplar-storage "$@"\n')
        wrapper.chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(programs), prepend=":")
            super().__init__(folder, jobs)

    def exemplars(self, promql: str) -> list[Exemplar]:
        """Those of the last ten minutes."""
        now_s = time.time()
        query = urllib.parse.urlencode({"query": promql, "start": now_s - 600, "end": now_s + 60})
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._port}/api/v1/query_exemplars?{query}", timeout=30
        ) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return list(_read(body["data"]))


def _read(data: list[dict[str, list[dict[str, object]]]]) -> Iterator[Exemplar]:
    for series in data:
        for one in series["exemplars"]:
            labels = one["labels"]
            assert isinstance(labels, dict)
            yield Exemplar(labels["trace_id"], float(str(one["value"])), float(str(one["timestamp"])))
