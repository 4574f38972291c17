"""A stage for tests of detectors: a real store and a real ``SceneMaker`` over series that the test sets by hand.

What is put stays and is published anew at every step, with the time of that step, as sources do. Steady seconds begin
at 1000; a server's clock in unix nanoseconds is the same number (``at_ns``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpumon.detect.detector import Detector, Evidence, Finding
from gpumon.detect.scene import Labels, Scene, SceneMaker
from gpumon.ingest.nccl import CollectiveRecord
from gpumon.model import Distribution, Metric, RequestRecord, Sample
from gpumon.store import Store

Series = tuple[Metric, Labels]

BEGIN_S = 1000.0


def gpu(index: int = 0) -> tuple[str, str]:
    """Labels gpu and uuid of a GPU."""
    return (str(index), f"GPU-{index:04d}")


class Stage:
    """Series by owner, the time, and the scenes they make."""

    def __init__(self, *, history_points: int = 240) -> None:
        self.at_s = BEGIN_S
        self.store = Store(history_points=history_points, history_series=1024)
        self.silent: set[str] = set()
        """Owners that are not published at the next steps: their values stay, and grow old."""
        self._maker = SceneMaker(lambda ns: ns / 1e9)
        self._owners: dict[str, dict[Series, float | Distribution]] = {}

    @property
    def at_ns(self) -> int:
        """The time now by a server's clock."""
        return round(self.at_s * 1e9)

    def put(self, values: Mapping[Series, float | Distribution], *, owner: str = "stage") -> None:
        """Set series; seen from the next step on."""
        self._owners.setdefault(owner, {}).update(values)

    def grow(self, amounts: Mapping[Series, float], *, owner: str = "stage") -> None:
        """Add to counters, which begin at 0."""
        kept = self._owners.setdefault(owner, {})
        for series, amount in amounts.items():
            before = kept.get(series, 0.0)
            assert isinstance(before, float)
            kept[series] = before + amount

    def drop(self, *metrics: Metric, labels: Labels | None = None) -> None:
        """End series of these families: all of them, or those whose labels begin like this."""
        for kept in self._owners.values():
            for metric, of in [*kept]:
                if metric in metrics and (labels is None or of[: len(labels)] == labels):
                    del kept[metric, of]

    def drop_owner(self, owner: str) -> None:
        """An owner ends with all it said."""
        self._owners.pop(owner, None)
        self.store.drop(owner)

    def step(
        self,
        seconds: float = 1.0,
        requests: Sequence[RequestRecord] = (),
        collectives: Sequence[CollectiveRecord] = (),
    ) -> Scene:
        """Let time pass, publish, look."""
        self.at_s += seconds
        for owner, values in self._owners.items():
            if owner not in self.silent:
                samples = [Sample(metric, labels, value) for (metric, labels), value in values.items()]
                self.store.put(owner, self.at_s, samples, ttl_s=3600.0)
        return self._maker.make(self.store.view(self.at_s), requests, collectives)

    def run(
        self,
        detector: Detector,
        seconds: float,
        *,
        step_s: float = 1.0,
        each: Callable[[], object] | None = None,
        requests: Callable[[], Sequence[RequestRecord]] | None = None,
    ) -> list[Finding]:
        """Findings of every step over this time, in order. each: called before every step, to change the series."""
        found: list[Finding] = []
        for _ in range(round(seconds / step_s)):
            if each is not None:
                each()
            found += detector.step(self.step(step_s, requests() if requests is not None else ()))
        return found


def evidence(finding: Finding, name: str) -> Evidence:
    """The one figure of this name."""
    (found,) = [each for each in finding.evidence if each.name == name]
    return found


def kinds(findings: Iterable[Finding]) -> list[str]:
    """Kinds found, each once, in alphabetical order."""
    return sorted({finding.kind for finding in findings})


def check_described(*detectors: type[Detector]) -> None:
    """Every keyword of the constructor is told in ``thresholds``, and every kind in full."""
    for detector in detectors:
        code = detector.__init__.__code__
        keywords = set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])
        assert keywords == set(detector.thresholds), detector
        assert code.co_argcount == 1, "keywords only"
        for kind in detector.kinds:
            assert kind.name
            assert kind.fires_when
            assert kind.action
            assert kind.severities
