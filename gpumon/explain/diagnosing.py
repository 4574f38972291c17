"""Diagnoses what an explanation has kept: hands the requests, signals and pairs of a period to ``diagnosis.build``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final

from gpumon import __version__, catalogue
from gpumon.detect.incident import Incident
from gpumon.explain.correlations import Pair
from gpumon.explain.diagnosis.build import diagnose
from gpumon.explain.diagnosis.incidents import of_others
from gpumon.explain.diagnosis.inputs import Inputs, Track
from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.explain.dimensions import DIMENSIONS
from gpumon.explain.engine import Explanation
from gpumon.explain.group import Group
from gpumon.store import View

PAST_S: Final = 60.0
"""A period that ended so long ago has passed: all of its requests that ended are explained."""


def diagnose_since(
    explanation: Explanation,
    incidents: Sequence[Incident],
    view: View,
    to_unix: Callable[[float], float],
    *,
    since_s: float,
    until_s: float,
    node: str = "",
    server: str = "",
    model: str = "",
    x: str = "",
    y: str = "",
    quantile: float = 0.95,
    is_over: bool = False,
) -> Diagnosis:
    """Of the requests that ran between two steady seconds and have ended. Any thread may ask.

    Of a time that has passed no correlations are told, for those are of the last minutes.

    incidents: those kept. view: of now. server, model: of these only, where not empty. x, y: attributes of the response
    surface; empty: those that matter most. is_over: whether all requests of the period are explained by now, as those
    of a recording are. Raises ValueError for an attribute that there is not.
    """
    is_past = until_s < view.at_s - PAST_S
    pairs: dict[Group, list[tuple[float, Pair]]] = {}
    for matrix in explanation.correlations.matrices() if not is_past else ():
        if server in ("", matrix.group.server) and model in ("", matrix.group.model):
            strong = matrix.pairs(strong_only=True)
            pairs.setdefault(matrix.group, []).extend((matrix.step_s, pair) for pair in strong)
    held: dict[str, set[str]] = {}
    for sample in view.family(catalogue.PROCESS_GPU_MEMORY):
        held.setdefault(sample.labels[2], set()).add(sample.labels[1])
    tracks = {}
    for group in explanation.dimensions.groups():
        seconds, values = explanation.dimensions.series(group)
        tracks[group] = Track(seconds.astype(float), values)
    return diagnose(
        Inputs(
            rows=explanation.log.since(since_s, server=server, model=model),
            from_s=since_s,
            to_s=until_s,
            to_unix=to_unix,
            version=__version__,
            node=node,
            dimensions=DIMENSIONS,
            tracks=tracks,
            correlations=pairs,
            incidents=incidents,
            of_others=_of_others(incidents, tracks, held, server, model),
            held=held,
            gpu_names={sample.labels[1]: sample.labels[0] for sample in view.family(catalogue.GPU_PRESENT)},
            kept_from_s=explanation.log.dropped_until_s,
            began_s=explanation.dimensions.began_s,
            is_live=not is_over and not is_past,
            dropped=explanation.dropped(since_s) - explanation.dropped(until_s),
            surface_x=x,
            surface_y=y,
            quantile=quantile,
        )
    )


def _of_others(
    incidents: Sequence[Incident], groups: Iterable[Group], held: Mapping[str, Set[str]], server: str, model: str
) -> frozenset[str]:
    """Ids of incidents of engines that were not asked for."""
    mine: list[Group] = []
    others: list[Group] = []
    for group in groups:
        (mine if server in ("", group.server) and model in ("", group.model) else others).append(group)
    return of_others(incidents, mine, others, held)
