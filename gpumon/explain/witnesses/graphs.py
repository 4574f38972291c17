"""Evidence of ``graph_fallback``: decode passes ran without a CUDA graph that usually have one.

From the counters of passes on the server's page (SGLang, or a shim), from reading to reading. What a pass loses by it
is the host's time to launch each kernel, which nobody tells: it is not bounded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.weighing import Usual, confirmed, found_servers, ramp, server_key, server_name
from gpumon.model import Unit

_LEAST = 8.0
"""Passes between two readings: fewer are no share."""


class Graphs:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("graph_fallback",)

    def __init__(self, *, few: float = 0.03, many: float = 0.15) -> None:
        """Share of passes without a graph, over the usual, that is no evidence, and all of it."""
        self._few = few
        self._many = many
        self._usual: Kept[Labels, Usual] = Kept(lambda: Usual(120, 5, settles=450), forget_s=300.0)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_servers(incidents, "graph_fallback")
        grown = {growth.labels: growth for growth in scene.grown(catalogue.SERVER_GRAPH_PASSES)}
        for labels, eager in grown.items():
            if labels[-1] != "eager":
                continue
            server = labels[:-1]
            usual = self._usual.look(server, scene.at_s)
            graph = grown.get((*server, "graph"))
            passes = eager.amount + (graph.amount if graph is not None else 0.0)
            if passes < _LEAST:
                continue
            share, before = eager.amount / passes, usual.value
            evidence = ramp(share - before, self._few, self._many) if before is not None else 0.0
            evidence = confirmed(evidence, is_found=server_name(labels) in found)
            usual.feed(share, evidence)
            if evidence > 0:
                start_s, fact = eager.at_s - eager.dt_s, Fact("eager_share", share, Unit.RATIO, before)
                yield Sign("graph_fallback", server_key(labels), start_s, eager.at_s, evidence, 1.0, fact)
        self._usual.sweep(scene.at_s)
