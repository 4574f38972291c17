"""What is wrong with the answers that a dashboard got: no data, or not in the shape that its panels need."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from grafana.queries import NOT_SUPPORTED, SOURCE_DOWN
from tests.e2e.story.queries import Answer, Series, panels

_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_NUMBER = re.compile(r"\s*[-+]?\.?\d")  # what JavaScript's parseFloat makes a number of
_OUTSIDE = {"namespace", "pod"}
"""Labels that are empty where there is no Kubernetes, and so in the demo."""
_WHY = {float(NOT_SUPPORTED), float(SOURCE_DOWN)}


class Excuse(NamedTuple):
    """A target that need not have data in the story."""

    board: str
    panel: str
    target: str
    """Its refId; * for all of the panel."""
    why: str
    sometimes: bool = False
    """It may have data as well."""

    def covers(self, answer: Answer) -> bool:
        target = answer.target
        return (self.board, self.panel) == (target.board, target.panel) and self.target in ("*", target.ref)


def excuses(path: Path) -> list[Excuse]:
    """Of grafana/may_be_empty.yaml."""
    return [Excuse(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def complaints(answers: Iterable[Answer], excused: Iterable[Excuse] = ()) -> list[str]:
    """In words, one for each thing that is wrong; excuses that excuse nothing are wrong as well."""
    answers, excused = list(answers), list(excused)
    found = []
    for answer in answers:
        wrong = list(_complaints(answer))
        mine = [excuse for excuse in excused if excuse.covers(answer)]
        if mine and wrong == [_EMPTY]:
            continue
        if wrong != [_EMPTY] and any(not excuse.sometimes for excuse in mine):
            wrong.append("has data, and is said to have none")
        found += [f"{answer.target.where}: {each}: {answer.target.expr}" for each in wrong]
    for excuse in excused:
        if not any(excuse.covers(answer) for answer in answers):
            found.append(f"{excuse.board}, {excuse.panel}, {excuse.target}: is excused, and not there")
    return found


_EMPTY = "no data"


def _complaints(answer: Answer) -> Iterator[str]:
    target = answer.target
    if answer.error:
        yield answer.error
    elif target.kind == "variable":
        if not any(answer.options):
            yield _EMPTY
    elif not _has_data(answer.series):
        yield _EMPTY
    else:
        if any(math.isinf(value) for one in answer.series for value in one.values.values()):
            yield "has values without end"
        yield from _legend(answer)
        if target.format == "heatmap":
            yield from _buckets(answer.series)
        elif target.kind == "heatmap":
            yield from _rows(answer)
        if target.exemplar and not any(answer.traces):
            yield "has no exemplar with a trace_id"


def _has_data(series: list[Series]) -> bool:
    """Numbers, and not only those that say why there is none."""
    values = {value for one in series for value in one.values.values() if not math.isnan(value)}
    return bool(values - _WHY)


def _legend(answer: Answer) -> Iterator[str]:
    """Labels of the legend exist, and it tells series apart."""
    legend = answer.target.legend
    for label in dict.fromkeys(_LEGEND.findall(legend)):
        # What an expression itself adds to some of its series may be on none of these.
        may_lack = label in _OUTSIDE or f'"{label}"' in answer.target.expr
        if not may_lack and not any(one.labels.get(label) for one in answer.series):
            yield f"no series has the label {label} of the legend"
    if answer.target.format == "time_series" and answer.target.kind != "annotation" and legend != "__auto":
        for name, count in Counter(name_of(answer, one) for one in answer.series).items():
            if count > 1:
                yield f"{count} series have one name, {name!r}"


def name_of(answer: Answer, series: Series) -> str:
    """As Grafana shows it; all labels where there is no legend."""
    legend = answer.target.legend
    if not legend:
        return str(sorted(series.labels.items()))
    return _LEGEND.sub(lambda found: series.labels.get(found[1], ""), legend)


def _buckets(series: list[Series]) -> Iterator[str]:
    """Grafana takes each bucket from the next larger one: counts must be cumulative, up to one of all."""
    histograms: dict[tuple[tuple[str, str], ...], dict[float, dict[float, float]]] = defaultdict(dict)
    for one in series:
        if "le" not in one.labels:
            yield "a heatmap of buckets without the label le"
            return
        key = tuple(sorted((name, value) for name, value in one.labels.items() if name != "le"))
        histograms[key][float(one.labels["le"])] = one.values
    if len(histograms) > 1:
        yield f"{len(histograms)} histograms in one heatmap"
    for buckets in histograms.values():
        bounds = sorted(buckets)
        if len(bounds) < 2 or bounds[-1] != math.inf:
            yield f"a histogram of the buckets {bounds}"
        for lower, upper in itertools.pairwise(bounds):
            both = buckets[lower].keys() & buckets[upper].keys()
            if any(buckets[lower][at_s] > buckets[upper][at_s] * (1 + 1e-9) + 1e-9 for at_s in both):
                yield f"less up to {upper} than up to {lower}: no cumulative counts"


def _rows(answer: Answer) -> Iterator[str]:
    """Grafana sorts rows by the number that their names begin with, if all begin with one; else they stand anyhow."""
    names = [name_of(answer, one) for one in answer.series]
    odd = [name for name in names if not _NUMBER.match(name)]
    if odd:
        yield f"rows that begin with no number, {odd}, and so in no order"


def columns(board: Mapping[str, Any], answers: Iterable[Answer], excused: Iterable[Excuse] = ()) -> list[str]:
    """What tables say of fields that their queries do not bring. Of those that may be empty nothing is known."""
    labels: dict[str, set[str]] = defaultdict(lambda: {"Time", "Value"} | _OUTSIDE)
    unknown = {excuse.panel for excuse in excused}
    for answer in answers:
        labels[answer.target.panel] |= {f"Value #{answer.target.ref}"}
        labels[answer.target.panel] |= {label for one in answer.series for label in one.labels}
        if not answer.series:
            unknown.add(answer.target.panel)
    found = []
    for panel in panels(board):
        if panel["title"] in unknown:
            continue
        names, lacking = labels[panel["title"]], set()
        for transformation in panel.get("transformations", []):
            options = transformation["options"]
            match transformation["id"]:
                case "filterFieldsByName":
                    asked = set(options["include"]["names"])
                case "organize":
                    asked = {*options.get("renameByName", {}), *options.get("indexByName", {})}
                    asked |= {*options.get("excludeByName", {})}
                case _:
                    continue
            lacking |= asked - names
            names |= set(options.get("renameByName", {}).values())
        found += [f"{board['uid']}, {panel['title']}: no query brings {name!r}" for name in sorted(lacking)]
    return found
