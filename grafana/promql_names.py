"""What the names in a query mean: families of the catalogue, Prometheus' own series of a target, recording rules.

A recording rule has the labels and the unit of its expression; there may be several rules of one name, apart by labels
that they add (``labels:`` of the rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from gpumon.catalogue import INCIDENT_ACTIVE, INCIDENT_KINDS, INCIDENTS, METRICS
from gpumon.export.text import number
from gpumon.model import Kind, Metric, Unit

TARGET = frozenset({"job", "instance", "node", "cluster"})
"""Labels of the scrape target: on every series, and not gpumon's."""
OF_OPERATOR = frozenset({"namespace", "service", "pod", "container", "endpoint"})
"""Labels that prometheus-operator adds to those of the target: to be taken off, but not to be counted on."""
OF_TARGET = {
    "up": Unit.NONE,
    "scrape_duration_seconds": Unit.SECONDS,
    "scrape_samples_scraped": Unit.NONE,
    "scrape_samples_post_metric_relabeling": Unit.NONE,
    "scrape_series_added": Unit.NONE,
}
"""What Prometheus writes for each target."""
ALERTS = ("ALERTS", "ALERTS_FOR_STATE")
"""With the labels of any alert: they are not known."""
PARTS = ("_bucket", "_sum", "_count")

RULES = Path(__file__).parents[1] / "deploy" / "prometheus" / "rules"

_BY_NAME = {metric.name: metric for metric in METRICS}
_KINDS = {metric: {"kind": INCIDENT_KINDS} for metric in (INCIDENT_ACTIVE, INCIDENTS)}
"""Closed lists that the catalogue has, but not as values of a last label."""


class Recording(NamedTuple):
    """What is recorded under one name."""

    exprs: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]]
    """Labels that the rules add, with the values that they give."""


Recorded = Mapping[str, Recording]


class Family(NamedTuple):
    """A family of the catalogue, as a selector names it."""

    metric: Metric
    part: str
    """One of PARTS of a histogram, else empty."""

    @property
    def counter(self) -> bool:
        """Only grows, but for restarts: to be looked at by its growth."""
        return self.metric.kind is Kind.COUNTER or bool(self.part)

    @property
    def labels(self) -> frozenset[str]:
        """Its own and those of the target."""
        return TARGET.union(self.metric.labels, ("le",) if self.part == "_bucket" else ())

    @property
    def values(self) -> dict[str, tuple[str, ...]]:
        """Labels whose values are a closed list."""
        closed: dict[str, tuple[str, ...]] = dict(_KINDS.get(self.metric, {}))
        if self.metric.values:
            closed[self.metric.labels[-1]] = self.metric.values
        if self.part == "_bucket":
            closed["le"] = (*(number(bound) for bound in self.metric.bounds), "+Inf")
        return closed


def family(name: str) -> Family | None:
    """The family that a name in a query is of; None where the catalogue has none, or a histogram lacks its part."""
    metric = _BY_NAME.get(name)
    if metric is not None:
        return None if metric.kind is Kind.HISTOGRAM else Family(metric, "")
    for part in PARTS:
        metric = _BY_NAME.get(name.removesuffix(part))
        if name.endswith(part) and metric is not None and metric.kind is Kind.HISTOGRAM:
            return Family(metric, part)
    return None


def unknown(name: str, recorded: Recorded) -> str:
    """Why no series has this name; empty if one may."""
    if family(name) or name in recorded or name in OF_TARGET or name in ALERTS:
        return ""
    if name in _BY_NAME:
        return f"{name} is a histogram: name its _bucket, _sum or _count"
    return f"there is no {name}: neither in the catalogue nor recorded"


def load_recorded(folder: Path = RULES) -> dict[str, Recording]:
    """The recording rules of a folder's files, by name."""
    return recorded_of(rule for path in sorted(folder.glob("*.yaml")) for rule in rules_of(path))


def rules_of(path: Path) -> list[dict[str, object]]:
    """The rules of one file, recording and alerting, in order."""
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def recorded_of(rules: Iterable[Mapping[str, object]]) -> dict[str, Recording]:
    """Those of the rules that record, by name; rules of one name are put together."""
    found: dict[str, Recording] = {}
    for rule in rules:
        if "record" not in rule:
            continue
        name, added = str(rule["record"]), rule.get("labels") or {}
        before = found.get(name, Recording((), {}))
        assert isinstance(added, Mapping)
        labels = {key: (*before.labels.get(key, ()), str(value)) for key, value in added.items()}
        found[name] = Recording((*before.exprs, str(rule["expr"])), {**before.labels, **labels})
    return found
