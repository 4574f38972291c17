"""Lint of the catalogue: what promtool does not look at (units and where they stand, label names, budgets)."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from gpumon import catalogue
from gpumon.catalogue import CAUSES, INCIDENT_KINDS, METRICS, TITLES
from gpumon.model import Kind, Metric, Unit

FORBIDDEN_LABELS = {
    # Target labels, which a scrape would rename to exported_*, and names that Prometheus gives a meaning.
    *(
        "type",
        "cluster",
        "region",
        "zone",
        "env",
        "service",
        "owner",
        "instance",
        "job",
        "node_name",
        "host",
        "hostname",
    ),
    *("le", "quantile"),
}
UNIT_WORDS = {
    # Base units may only end a name, as Metric.unit; others may not occur at all. promtool passes most of these.
    *("seconds", "bytes", "watts", "joules", "hertz", "celsius", "ratio", "timestamp"),
    *("second", "byte", "watt", "joule", "hz", "ms", "us", "ns", "milliseconds", "microseconds", "nanoseconds"),
    *("minutes", "hours", "mhz", "ghz", "megahertz", "kib", "mib", "gib", "kb", "mb", "gb", "bits", "kilobytes"),
    *("megabytes", "percent", "percentage", "pct", "milliwatts", "mw", "mj", "millijoules", "volts", "amperes"),
    *("fahrenheit", "kelvin", "degrees"),
}
TYPE_WORDS = {
    "gauge",
    "counter",
    "histogram",
    "summary",
    "metric",
    "total",
    "count",
    "sum",
    "bucket",
    "info",
    "created",
}

each_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)


def sample_names(metric: Metric) -> set[str]:
    if metric.kind is Kind.HISTOGRAM:
        return {f"{metric.name}_{suffix}" for suffix in ("bucket", "count", "sum")}
    return {metric.name}


def test_every_cause_and_every_kind_of_incident_has_one_title_of_its_own() -> None:
    names = {*CAUSES, *INCIDENT_KINDS}
    assert {*TITLES} == names
    assert len({*TITLES.values()}) == len(names)
    assert not any("_" in title or "`" in title or title.endswith(".") or len(title) > 28 for title in TITLES.values())


def test_no_two_families_share_a_name_and_no_sample_has_the_name_of_another_family() -> None:
    names = [metric.family for metric in METRICS]
    assert len(set(names)) == len(names)
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    # OpenMetrics 1.0: a family owns its name with each of the suffixes.
    suffixes = ("_total", "_created", "_bucket", "_count", "_sum", "_gsum", "_gcount", "_info")
    families = {metric.family for metric in METRICS}
    for metric in METRICS:
        assert not families.intersection(metric.family + suffix for suffix in suffixes), metric.name


def test_all_samples_of_the_catalogue_have_different_names() -> None:
    names = [name for metric in METRICS for name in sample_names(metric)]
    assert len(set(names)) == len(names)


@each_metric
def test_name_is_plain_snake_case(metric: Metric) -> None:
    assert re.fullmatch(r"gpumon(_[a-z][a-z0-9]*)+", metric.name), metric.name


@each_metric
def test_units_stand_at_the_end_and_nowhere_else(metric: Metric) -> None:
    words = metric.stem.split("_")
    assert not UNIT_WORDS.intersection(words), f"{metric.name}: a unit in the stem"
    if metric.unit is not Unit.NONE:
        assert metric.family.endswith(f"_{metric.unit.value}")


@each_metric
def test_types_stand_in_the_suffix_that_the_kind_gives_and_nowhere_else(metric: Metric) -> None:
    assert not TYPE_WORDS.intersection(metric.stem.split("_")), f"{metric.name}: a type in the stem"
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)


@each_metric
def test_units_fit_the_kind(metric: Metric) -> None:
    if metric.kind is Kind.COUNTER:
        assert metric.unit not in (Unit.RATIO, Unit.CELSIUS, Unit.HERTZ, Unit.WATTS, Unit.TIMESTAMP)
    if metric.kind is Kind.INFO:
        assert metric.unit is Unit.NONE
    if metric.unit is Unit.TIMESTAMP:
        assert metric.kind is Kind.GAUGE


@each_metric
def test_labels_are_plain_different_and_not_reserved(metric: Metric) -> None:
    assert len(set(metric.labels)) == len(metric.labels)
    assert not FORBIDDEN_LABELS.intersection(metric.labels)
    for label in metric.labels:
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", label), label


@each_metric
def test_a_gpu_is_named_by_its_uuid(metric: Metric) -> None:
    if "gpu" in metric.labels:
        assert "uuid" in metric.labels


@each_metric
def test_the_budget_is_positive_and_holds_the_closed_values(metric: Metric) -> None:
    assert metric.budget > 0
    assert metric.budget >= len(metric.values)
    assert len(set(metric.values)) == len(metric.values)
    if metric.values:
        assert metric.labels
    if not metric.labels:
        assert metric.budget == 1
    for value in metric.values:
        assert value not in ("total", "all"), "a sum over the label would count twice"


@each_metric
def test_bounds_are_few_ascending_and_only_on_histograms(metric: Metric) -> None:
    assert bool(metric.bounds) == (metric.kind is Kind.HISTOGRAM)
    assert len(metric.bounds) <= 20
    assert all(low < high for low, high in pairwise(metric.bounds))


@each_metric
def test_help_and_origin_are_said(metric: Metric) -> None:
    assert metric.help.endswith(".")
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert "\n" not in metric.help
    assert metric.help == metric.help.strip()
    assert metric.origin


def test_every_family_is_named_where_something_is_read_or_counted() -> None:
    package = Path(catalogue.__file__).parent
    others = {"catalogue.py", "dcgm_names.py", "otlp_names.py"}  # which only translate names
    folders = ("doctor", "web")  # which only speak of what others export
    text = "\n".join(
        path.read_text()
        for path in package.rglob("*.py")
        if path.name not in others and path.relative_to(package).parts[0] not in folders
    )
    named = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", text))
    assert [name for name, value in vars(catalogue).items() if isinstance(value, Metric) and name not in named] == []
