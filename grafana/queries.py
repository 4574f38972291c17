"""PromQL of dashboards: metrics come from the catalogue, and selectors follow from a metric's labels.

A metric is written as the object of the catalogue, so a misspelt name is a type error and not an empty graph. Every
selector filters by the variables that the metric's labels allow: ``cluster`` and ``node`` (labels of the scrape target)
always; ``gpu``, ``model`` and ``server`` where the family has them.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumon import catalogue
from gpumon.model import Kind, Metric

TARGET = ('cluster=~"$cluster"', 'node=~"$node"')
"""Matchers of the scrape target's labels."""
JOB = 'job=~".*gpumon.*"'
"""Matcher of gpumon's own targets, for Prometheus' metrics about them: in Kubernetes jobs are ``NAMESPACE/NAME``."""
_VARIABLES = ("gpu", "model", "server")
_WINDOW = "$__rate_interval"
NOT_SUPPORTED = -1
SOURCE_DOWN = -2


class Query(NamedTuple):
    """One query of a panel."""

    expr: str
    legend: str = ""
    """Grafana's legend format: ``{{label}}``."""
    instant: bool = False
    table: bool = False
    heatmap: bool = False
    """Of a classic histogram by ``le``: Grafana takes neighbouring buckets from each other. Never for a quantile."""
    exemplar: bool = False


def where(label: str, *values: str) -> str:
    """A matcher: the label has the value, or one of them. It has no quotes to escape where it is part of a text."""
    return f'{label}="{values[0]}"' if len(values) == 1 else f'{label}=~"{"|".join(values)}"'


def select(metric: Metric, *matchers: str, suffix: str = "", without: tuple[str, ...] = ()) -> str:
    """The series of a family that the variables select.

    ``suffix`` is ``_bucket``, ``_count`` or ``_sum`` of a histogram; ``without`` names variables not to filter by.
    """
    if (metric.kind is Kind.HISTOGRAM) != bool(suffix):
        raise ValueError(f"{metric.name}: a suffix belongs to histograms, and to all of them")
    own = [f'{name}=~"${name}"' for name in _VARIABLES if name in metric.labels and name not in without]
    return f"{metric.name}{suffix}{{{','.join((*TARGET, *own, *matchers))}}}"


def recorded(name: str, *matchers: str, variables: tuple[str, ...] = ("cluster", "node")) -> str:
    """The series of a recording rule, filtered by these variables."""
    own = [f'{variable}=~"${variable}"' for variable in variables]
    return f"{name}{{{','.join((*own, *matchers))}}}"


def rate(metric: Metric, *matchers: str, suffix: str = "", window: str = _WINDOW, without: tuple[str, ...] = ()) -> str:
    """Growth per second of a counter or a histogram's part."""
    return f"rate({select(metric, *matchers, suffix=suffix, without=without)}[{window}])"


def increase(
    metric: Metric, *matchers: str, suffix: str = "", window: str = _WINDOW, without: tuple[str, ...] = ()
) -> str:
    """Growth within the window."""
    return f"increase({select(metric, *matchers, suffix=suffix, without=without)}[{window}])"


def quantile(q: float, metric: Metric, *matchers: str, by: tuple[str, ...] = (), window: str = _WINDOW) -> str:
    """A quantile of a classic histogram over the window, one series for each combination of ``by``."""
    labels = ", ".join(("le", *by))
    return f"histogram_quantile({q}, sum by ({labels}) ({rate(metric, *matchers, suffix='_bucket', window=window)}))"


def or_why(expr: str, field: str, source: str, *, by: tuple[str, ...] = ("cluster", "node", "gpu", "uuid")) -> str:
    """The value; or ``NOT_SUPPORTED`` where the GPU said that it never answers for the field; or ``SOURCE_DOWN``.

    ``expr`` must have exactly the labels of ``by``. A panel that shows it maps the two to words (``panels.WHY``).
    """
    labels = ", ".join(by)
    supported = select(catalogue.GPU_FIELD_SUPPORTED, f'field="{field}"')
    up = select(catalogue.SOURCE_UP, f'source="{source}"')
    return (
        f"({expr}) or (max by ({labels}) ({supported} == 0) - {-NOT_SUPPORTED})"
        f" or (max by (cluster, node) ({up} == 0) - {-SOURCE_DOWN})"
    )


def named(expr: str, **labels: str) -> str:
    """The series with these labels besides their own."""
    for name, value in labels.items():
        expr = f'label_replace({expr}, "{name}", "{value}", "", "")'
    return expr


def copied(expr: str, label: str, *copies: str) -> str:
    """The series with copies of a label under other names, for columns that show other texts for it."""
    for copy in copies:
        expr = f'label_replace({expr}, "{copy}", "$1", "{label}", "(.*)")'
    return expr
