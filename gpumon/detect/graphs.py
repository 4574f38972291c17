"""Decode passes that fell out of CUDA graphs: ``graph_fallback``.

From the counters of decode passes on the server's page (SGLang, or a shim). A server that never used graphs is not
told of: it was configured so. One that used them falls back when its batch or a request asks for what was not
captured, and launches every kernel by itself then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, server_entity
from gpumon.detect.hysteresis import Baseline, Held
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.model import Unit

_PASSES_MAX: Final = 64
_LEAST_PASSES: Final = 20.0
"""In the window: fewer are no share."""
_USUAL: Final = 120
_USUAL_LEAST: Final = 5


class _Passes(NamedTuple):
    at_s: float
    dt_s: float
    eager: float
    graph: float


@dataclass(slots=True)
class _Server:
    recent: deque[_Passes] = field(default_factory=lambda: deque(maxlen=_PASSES_MAX))
    usual: Baseline = field(default_factory=lambda: Baseline(_USUAL, _USUAL_LEAST))
    """Shares of eager passes between readings of the page, while it was not found."""


class GraphFallback:
    """See the module."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "graph_fallback",
            "More than `share` of the decode passes of the last `window_s` ran outside CUDA graphs, where it was less "
            "than `before` in the median of the last minutes, for `on_s`.",
            (Severity.WARNING,),
            "Every kernel is launched on its own now, which costs milliseconds per token. See what changed: a batch "
            "above the largest captured size (SGLang: --cuda-graph-max-bs; vLLM: --cuda-graph-sizes), LoRA, a grammar, "
            "speculative decoding, logprobs, or memory too short to capture at the last start.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "share": "Eager passes among decode passes; ratio.",
        "before": "The same, that a server which uses graphs stays below; ratio.",
        "window_s": "Over which passes are counted; seconds.",
        "on_s": "True for this long; seconds. One batch of an odd size is shorter.",
        "off_s": "Untrue for this long, it is over; seconds.",
    }

    def __init__(
        self,
        *,
        share: float = 0.2,
        before: float = 0.05,
        window_s: float = 5.0,
        on_s: float = 3.0,
        off_s: float = 5.0,
    ) -> None:
        self._share = share
        self._before = before
        self._window_s = window_s
        self._servers: Kept[Labels, _Server] = Kept(_Server, forget_s=300.0)
        self._held: Held[Labels] = Held(on_s=on_s, off_s=off_s)

    def step(self, scene: Scene) -> Iterator[Finding]:
        grown = {growth.labels: growth for growth in scene.grown(catalogue.SERVER_GRAPH_PASSES)}
        for labels in scene.values(catalogue.SERVER_GRAPH_PASSES):
            if labels[-1] != "eager":
                continue
            of = labels[:-1]
            server = self._servers.look(of, scene.at_s)
            eager, graph = grown.get(labels), grown.get((*of, "graph"))
            if eager is not None:
                passes = _Passes(eager.at_s, eager.dt_s, eager.amount, graph.amount if graph is not None else 0.0)
                server.recent.append(passes)
            while len(server.recent) > 1 and server.recent[0].at_s < scene.at_s - self._window_s:
                server.recent.popleft()
            yield from self._judge(scene, of, server, is_new=eager is not None)
        self._servers.sweep(scene.at_s)
        self._held.keep([key for key, _ in self._servers.items()])

    def _judge(self, scene: Scene, labels: Labels, server: _Server, *, is_new: bool) -> Iterator[Finding]:
        eager = sum([each.eager for each in server.recent])
        passes = eager + sum([each.graph for each in server.recent])
        share = eager / passes if passes >= _LEAST_PASSES else 0.0
        newest = server.recent[-1] if server.recent else None
        goes_on = newest is not None and newest.eager > self._share * (newest.eager + newest.graph)
        usual = server.usual.median if share > self._share and goes_on else None
        is_true = usual is not None and usual < self._before
        began_s = newest.at_s - newest.dt_s if newest is not None else None
        since_s = self._held.feed(labels, is_true, scene.at_s, began_s)
        if since_s is None:
            if is_new and newest is not None and not is_true and newest.eager + newest.graph > 0:
                server.usual.feed(newest.eager / (newest.eager + newest.graph))
        elif is_true:
            yield Finding(
                "graph_fallback",
                server_entity(labels),
                Severity.WARNING,
                since_s,
                f"{100 * share:.0f} % of decode passes outside CUDA graphs, {100 * (usual or 0.0):.0f} % before",
                (
                    Evidence("eager_share", share, Unit.RATIO, usual),
                    Evidence("eager_passes", eager, Unit.NONE),
                    Evidence("decode_passes", passes, Unit.NONE),
                ),
            )
