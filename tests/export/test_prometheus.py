"""The exposition against prometheus_client's parsers and writer, promtool, and golden files."""

import math
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as ReferenceFamily
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gpumon.catalogue import METRICS
from gpumon.export.prometheus import Exposition
from gpumon.export.text import Format
from gpumon.model import Distribution, Kind, Metric, Sample, Unit
from gpumon.store import Store, View
from tests.export.views import FOREVER_S, family, view_of
from tests.golden_file import golden

BOUNDS = (0.001, 0.5, 1.0, 2.5e6)
GAUGE = family("speed", unit=Unit.HERTZ)
COUNTER = family("used", Kind.COUNTER, Unit.BYTES, help_='Bytes "used"\\wasted,\nall of them.')
INFO = family("box", Kind.INFO)
HISTOGRAM = family("wait", Kind.HISTOGRAM, Unit.SECONDS, bounds=BOUNDS)
MOMENT = family("last_seen", unit=Unit.TIMESTAMP, labels=())
FAMILIES = (GAUGE, COUNTER, INFO, HISTOGRAM, MOMENT)

Value = tuple[str, tuple[tuple[str, str], ...], float]


def text_of(view: View, metrics: Sequence[Metric] = FAMILIES) -> str:
    return Exposition(metrics).render(view).body(Format.TEXT).decode()


def openmetrics_of(view: View, metrics: Sequence[Metric] = FAMILIES) -> str:
    return Exposition(metrics).render(view).body(Format.OPENMETRICS).decode()


def values_of(families: Iterable[ReferenceFamily]) -> list[Value]:
    return sorted(
        (sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
        for parsed in families
        for sample in parsed.samples
    )


def expected_values(samples: Iterable[Sample]) -> list[Value]:
    def lines() -> Iterator[Value]:
        for metric, values, value in samples:
            labels = tuple(zip(metric.labels, values, strict=True))
            if isinstance(value, Distribution):
                seen = 0
                for bound, count in zip((*metric.bounds, math.inf), value.counts, strict=True):
                    seen += count
                    le = ("le", floatToGoString(bound))
                    yield f"{metric.name}_bucket", tuple(sorted((*labels, le))), float(seen)
                yield f"{metric.name}_count", tuple(sorted(labels)), float(seen)
                yield f"{metric.name}_sum", tuple(sorted(labels)), value.total
            else:
                yield metric.name, tuple(sorted(labels)), value

    return sorted(lines())


class Reference(Collector):
    """The same samples through prometheus_client's own families."""

    def __init__(self, samples: Iterable[Sample], metrics: Sequence[Metric]) -> None:
        self._samples = list(samples)
        self._metrics = metrics

    def collect(self) -> Iterator[ReferenceFamily]:
        for metric in self._metrics:
            samples = [sample for sample in self._samples if sample.metric is metric]
            if samples:
                yield self._family(metric, samples)

    def _family(self, metric: Metric, samples: list[Sample]) -> ReferenceFamily:
        unit = "seconds" if metric.unit is Unit.TIMESTAMP else metric.unit.value
        if metric.kind is Kind.HISTOGRAM:
            histograms = HistogramMetricFamily(metric.family, metric.help, labels=metric.labels, unit=unit)
            for _, labels, value in samples:
                assert isinstance(value, Distribution)
                bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
                sums = [float(sum(value.counts[: i + 1])) for i in range(len(value.counts))]
                histograms.add_metric(labels, list(zip(bounds, sums, strict=True)), sum_value=value.total)
            return histograms
        if metric.kind is Kind.INFO:
            infos = InfoMetricFamily(metric.family, metric.help)
            for _, labels, _ in samples:
                infos.add_metric([], dict(zip(metric.labels, labels, strict=True)))
            return infos
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        scalars = kind(metric.family, metric.help, labels=metric.labels, unit=unit)
        for _, labels, number in samples:
            assert isinstance(number, float)
            scalars.add_metric(labels, number)
        return scalars


def as_reference_writes(page: str) -> list[str]:
    """Lines with labels sorted by name and all numbers as floats: the freedoms in which the two writers differ."""
    lines = []
    for line in page.split("\n"):
        if line and not line.startswith("#"):
            start, _, value = line.rpartition(" ")
            value = floatToGoString(float(value))
            for reading in parse_text(f"{start} {value}\n"):
                (sample,) = reading.samples
                labels = ",".join(f"{name}={text!r}" for name, text in sorted(sample.labels.items()))
                lines.append(f"{sample.name} {labels} {value}")
        else:
            lines.append(line)
    return lines


# Surrogates cannot be in a page; the store replaces them at its door.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", '"', "\\", "\n", '\\"', "\\n", "a,b=c", "}", "#", "%d%s%", "ünïcödé ☃", "\u2028", "\r", "\x85"]
)
number = st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2**63).map(float)
count = st.floats(0, allow_infinity=False) | st.integers(0, 2**63).map(float)


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    labels = st.lists(st.tuples(text, text), unique=True, max_size=4)
    samples = [Sample(GAUGE, values, draw(number)) for values in draw(labels)]
    samples += [Sample(COUNTER, values, draw(count)) for values in draw(labels)]
    samples += [Sample(INFO, values, 1.0) for values in draw(labels)]
    counts = st.tuples(*[st.integers(0, 10**12)] * (len(BOUNDS) + 1))
    samples += [Sample(HISTOGRAM, values, Distribution(draw(counts), draw(count))) for values in draw(labels)]
    return samples + [Sample(MOMENT, (), draw(count)) for _ in range(draw(st.integers(0, 1)))]


@given(sample_lists())
@settings(deadline=None)
def test_every_value_round_trips_through_both_parsers(samples: list[Sample]) -> None:
    view = view_of(samples)
    expected = expected_values(samples)
    assert values_of(parse_text(text_of(view))) == expected
    assert values_of(parse_openmetrics(openmetrics_of(view))) == expected


@given(sample_lists())
@settings(deadline=None)
def test_pages_say_what_prometheus_client_says_of_the_same_samples(samples: list[Sample]) -> None:
    view = view_of(samples)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Reference(samples, FAMILIES))
    reference = as_reference_writes(generate_latest(registry).decode())
    assert sorted(as_reference_writes(text_of(view))) == sorted(reference)
    reference = as_reference_writes(generate_openmetrics(registry).decode())
    assert sorted(as_reference_writes(openmetrics_of(view))) == sorted(reference)


@given(st.lists(sample_lists(), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_a_page_does_not_depend_on_what_was_rendered_before(passes: list[list[Sample]]) -> None:
    store = Store()
    kept = Exposition(FAMILIES)
    for at_s, samples in enumerate(passes):
        store.put("one", float(at_s), samples[::2], FOREVER_S)
        store.put("two", float(at_s), samples[1::2], FOREVER_S)
        view = store.view(float(at_s))
        for form in Format:
            assert kept.render(view).body(form) == Exposition(FAMILIES).render(view).body(form)


def test_a_family_is_written_once_and_in_one_piece_though_several_owners_have_it() -> None:
    view = view_of(
        [Sample(COUNTER, ("1", "x"), 1.0), Sample(GAUGE, ("1", "x"), 1.0)],
        [Sample(GAUGE, ("2", "x"), 2.0), Sample(COUNTER, ("2", "x"), 2.0)],
    )
    assert text_of(view) == (
        "# HELP gpumon_speed_hertz What it is.\n# TYPE gpumon_speed_hertz gauge\n"
        'gpumon_speed_hertz{a="1",b="x"} 1.0\ngpumon_speed_hertz{a="2",b="x"} 2.0\n'
        '# HELP gpumon_used_bytes_total Bytes "used"\\\\wasted,\\nall of them.\n'
        "# TYPE gpumon_used_bytes_total counter\n"
        'gpumon_used_bytes_total{a="1",b="x"} 1.0\ngpumon_used_bytes_total{a="2",b="x"} 2.0\n'
    )


def test_families_without_samples_are_not_mentioned() -> None:
    assert text_of(view_of([Sample(MOMENT, (), 5.0)])).count("# TYPE") == 1


def test_samples_of_families_that_are_not_to_be_written_are_not() -> None:
    assert text_of(view_of([Sample(GAUGE, ("1", "x"), 1.0)]), metrics=(COUNTER,)) == ""


def test_series_that_vanish_leave_the_page_and_the_memory_of_the_writer() -> None:
    store = Store(max_series=100_000)
    exposition = Exposition(FAMILIES)
    for at_s in range(20):
        batch = [Sample(GAUGE, (str(at_s), str(i)), 1.0) for i in range(50)]
        batch += [Sample(HISTOGRAM, (str(at_s), str(i)), Distribution((0,) * 5, 0.0)) for i in range(50)]
        store.put("all", float(at_s), batch, FOREVER_S)
        page = exposition.render(store.view(float(at_s)))
    assert page.body(Format.TEXT).count(b'a="19"') == 50 + 50 * (len(BOUNDS) + 3)
    assert b'a="18"' not in page.body(Format.TEXT)
    assert exposition.remembered == 100
    store.drop("all")
    assert exposition.render(store.view(20.0)).body(Format.TEXT) == b""
    assert exposition.remembered == 0


def largest_page() -> list[Sample]:
    """One series of every family of the catalogue, with awkward label values and numbers of every size."""
    samples = []
    for position, metric in enumerate(METRICS):
        labels = tuple(f'{name} "{position}"\\' for name in metric.labels)
        value: float | Distribution = float(position) * 10.0 ** (position % 9)
        if metric.kind is Kind.HISTOGRAM:
            value = Distribution(tuple(range(len(metric.bounds) + 1)), float(position))
        samples.append(Sample(metric, labels, 1.0 if metric.kind is Kind.INFO else value))
    return samples


def test_promtool_finds_nothing_wrong_with_any_family_of_the_catalogue() -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: install the package prometheus"
    page = text_of(view_of(largest_page()), metrics=METRICS)
    check = subprocess.run([promtool, "check", "metrics"], input=page.encode(), capture_output=True, check=False)
    assert (check.returncode, check.stdout.decode(), check.stderr.decode()) == (0, "", "")


def test_every_family_of_the_catalogue_is_read_by_both_parsers() -> None:
    samples = largest_page()
    view = view_of(samples)
    assert values_of(parse_text(text_of(view, METRICS))) == expected_values(samples)
    assert values_of(parse_openmetrics(openmetrics_of(view, METRICS))) == expected_values(samples)


@pytest.mark.parametrize("form", list(Format))
def test_each_format_matches_its_golden_file(form: Format) -> None:
    samples = [
        Sample(GAUGE, ("0", "GPU-1"), 1.98e9),
        Sample(GAUGE, ("1", 'quote " slash \\ line \n ü'), 0.25),
        Sample(COUNTER, ("0", ""), 0.0),
        Sample(INFO, ("NVIDIA H200", "580.1"), 1.0),
        Sample(HISTOGRAM, ("0", "x"), Distribution((1, 0, 2, 0, 3), 12.5)),
        Sample(MOMENT, (), 1_800_000_000.25),
    ]
    page = Exposition(FAMILIES).render(view_of(samples[::2], samples[1::2]))
    golden("exposition.prom" if form is Format.TEXT else "exposition.om", page.body(form))
