"""From a server's page to values by catalogue family and model: which server it is, and the rules of ``server_names``.

Counters come as one raw value per part (engine, mode, …), for each part starts anew on its own; gauges as one value.
A series without a model's label is of the only model that the page names, else of none ("").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpumon.model import Kind, Metric, Unit
from gpumon.sources.server_names import ADDED, MODEL_LABELS, REPEATED_BY, SERVERS, How, Pick, Rule, Server
from gpumon.sources.server_page import Series

MAX_MODEL = 128
"""Characters of a model's name; the same as where requests name theirs."""

Part = tuple[str, ...]
"""What tells apart the series that add up: the family and the labels."""
Parts = dict[Part, float]


class Key(NamedTuple):
    """An exported series, but for the server and the endpoint."""

    metric: Metric
    model: str
    value: str
    """Of the metric's last label, or ""."""


class Values(NamedTuple):
    """What a page tells. Nothing is judged yet: values may be out of range."""

    gauges: dict[Key, float]
    counters: dict[Key, Parts]
    summaries: dict[Key, tuple[Parts, Parts]]
    """Of rules ``How.MEAN``: parts of the sum and of the count."""


def recognise(families: Mapping[str, Sequence[Series]]) -> Server | None:
    """The server whose families these are; None for none."""
    for server in SERVERS:
        if any(pick.family in families for rule in server.rules for pick in rule.picks):
            return server
    return None


def values_of(server: Server, families: Mapping[str, Sequence[Series]]) -> Values:
    """All that the server's rules find, and what was added to the page besides."""
    only = _only_model(families)
    values = Values({}, {}, {})
    taken: set[tuple[Metric, str]] = set()
    for rule in (*server.rules, *ADDED):
        if (rule.metric, rule.value) not in taken and _apply(rule, families, only, values):
            taken.add((rule.metric, rule.value))
    return values


def _apply(rule: Rule, families: Mapping[str, Sequence[Series]], only: str, values: Values) -> bool:
    """Whether the rule found anything. One that needs several picks finds nothing where any is missing."""
    picked = [_parts(pick, families.get(pick.family, ()), only) for pick in rule.picks]
    if rule.how is How.SUM:
        models = {model: None for parts in picked for model in parts}  # a set in the order of the page
    else:
        models = {model: None for model in picked[0] if all(model in parts for parts in picked[1:])}
    for model in models:
        key = Key(rule.metric, model, rule.value)
        if rule.how is How.MEAN:
            values.summaries[key] = picked[0][model], picked[1][model]
        elif rule.how is How.DIFFERENCE:
            values.gauges[key] = max(0.0, sum(picked[0][model].values()) - sum(picked[1][model].values()))
        elif rule.how is How.QUOTIENT:
            whole = sum(picked[1][model].values())
            if whole > 0:
                values.gauges[key] = sum(picked[0][model].values()) / whole
        elif rule.how is How.PRODUCT:
            factor = max(picked[-1][model].values())
            parts = {part: value * factor for of in picked[:-1] for part, value in of[model].items()}
            if rule.metric.kind is Kind.COUNTER:
                values.counters[key] = parts
            else:
                values.gauges[key] = sum(parts.values())
        else:
            parts = {part: value for of in picked for part, value in of.get(model, {}).items()}
            if rule.metric.kind is Kind.COUNTER:
                values.counters[key] = parts
            else:
                total = sum(parts.values())
                values.gauges[key] = total / len(parts) if rule.metric.unit is Unit.RATIO else total
    return bool(models)


def _parts(pick: Pick, series: Iterable[Series], only: str) -> dict[str, Parts]:
    """Values by model and part; of what is told several times the largest."""
    found: dict[str, Parts] = {}
    for labels, told in series:
        if any(labels.get(label, "") != wanted for label, wanted in pick.where):
            continue
        value = _product(labels, pick.numbers) if pick.numbers else told
        if value is None:
            continue
        parts = found.setdefault(_model(labels) or only, {})
        part = (pick.family, *(f"{name}={text}" for name, text in sorted(labels.items()) if name not in REPEATED_BY))
        parts[part] = max(value, parts.get(part, value))
    return found


def _product(labels: Mapping[str, str], names: Sequence[str]) -> float | None:
    product = 1.0
    for name in names:
        text = labels.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) < 16):  # vLLM writes "None" for what it does not know
            return None
        product *= float(text)
    return product


def _model(labels: Mapping[str, str]) -> str:
    return next((labels[name][:MAX_MODEL] for name in MODEL_LABELS if labels.get(name)), "")


def _only_model(families: Mapping[str, Sequence[Series]]) -> str:
    models = {_model(labels) for series in families.values() for labels, _ in series} - {""}
    return next(iter(models)) if len(models) == 1 else ""
