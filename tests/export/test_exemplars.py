"""Exemplars: only in OpenMetrics, as prometheus_client reads them, and never a change to the text format."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from gpumon.export.prometheus import Exposition
from gpumon.export.text import Format, exemplar
from gpumon.model import Distribution, Exemplar, Kind, Sample, Unit
from gpumon.store import Store
from tests.export.views import FOREVER_S, family, view_of

BOUNDS = (0.001, 0.5, 1.0, 2.5e6)
HISTOGRAM = family("wait", Kind.HISTOGRAM, Unit.SECONDS, labels=("a",), bounds=BOUNDS)
VALUES = (0.0005, 0.25, 1.0, 2e6, 7e9)
"""One in each bucket."""


def page(samples: list[Sample], form: Format) -> str:
    return Exposition((HISTOGRAM,)).render(view_of(samples)).body(form).decode()


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    traces = draw(st.tuples(*[st.none() | st.integers(1, 2**128 - 1)] * 5))
    exemplars = tuple(
        None if trace is None else Exemplar(f"{trace:032x}", value, draw(st.integers(0, 2**41)) / 1000)
        for trace, value in zip(traces, VALUES, strict=True)
    )
    counts = tuple(draw(st.integers(1, 9)) for _ in VALUES)
    return Distribution(counts, 1.0, exemplars)


@given(st.lists(distributions(), max_size=4))
@settings(deadline=None)
def test_the_reference_parser_reads_every_exemplar_in_its_bucket(given_: list[Distribution]) -> None:
    samples = [Sample(HISTOGRAM, (str(i),), one) for i, one in enumerate(given_)]
    found = {}
    for parsed in parse_openmetrics(page(samples, Format.OPENMETRICS)):
        for line in parsed.samples:
            if line.name.endswith("_bucket"):
                found[line.labels["a"], line.labels["le"]] = line.exemplar
            else:
                assert line.exemplar is None
    for i, one in enumerate(given_):
        for le, told in zip(("0.001", "0.5", "1.0", "2.5e+06", "+Inf"), one.exemplars, strict=True):
            read = found[str(i), le]
            if told is None:
                assert read is None
            else:
                assert read is not None
                assert read.labels == {"trace_id": told.trace_id}
                assert read.value == told.value
                assert float(read.timestamp) == pytest.approx(told.unix_s, abs=1e-6)
                assert bisect_left(BOUNDS, read.value) == [*BOUNDS, 0].index(0 if le == "+Inf" else float(le))


@given(st.lists(distributions(), max_size=4))
@settings(deadline=None)
def test_the_text_format_is_the_same_with_and_without(given_: list[Distribution]) -> None:
    with_ = [Sample(HISTOGRAM, (str(i),), one) for i, one in enumerate(given_)]
    without = [sample._replace(value=Distribution(*sample.value[:2])) for sample in with_]  # type: ignore[index]
    assert page(with_, Format.TEXT) == page(without, Format.TEXT)
    bare = "\n".join(line.partition(" # {")[0] for line in page(with_, Format.OPENMETRICS).split("\n"))
    assert bare == page(without, Format.OPENMETRICS)


def test_a_new_exemplar_of_the_same_counts_is_written() -> None:
    store, exposition = Store(), Exposition((HISTOGRAM,))
    for trace in ("a" * 32, "b" * 32):
        told = (None, Exemplar(trace, 0.25, 1.0), None, None, None)
        store.put("one", 1.0, [Sample(HISTOGRAM, ("x",), Distribution((0, 1, 0, 0, 0), 1.0, told))], FOREVER_S)
        assert trace.encode() in exposition.render(store.view(1.0)).body(Format.OPENMETRICS)


def test_exemplars_of_the_wrong_number_are_refused_by_the_store() -> None:
    store = Store()
    told = (Exemplar("a" * 32, 0.25, 1.0),)
    store.put("one", 1.0, [Sample(HISTOGRAM, ("x",), Distribution((0, 1, 0, 0, 0), 1.0, told))], FOREVER_S)
    assert list(store.view(1.0)) == []


def test_labels_that_are_too_long_leave_no_exemplar() -> None:
    assert exemplar([("trace_id", "x" * 120)], 1.0, 2.0) == f' # {{trace_id="{"x" * 120}"}} 1.0 2.000'
    assert exemplar([("trace_id", "x" * 121)], 1.0, 2.0) == ""
