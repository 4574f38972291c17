"""Bursts of major page faults, of a serving process or of the host: ``page_fault_burst``.

From the counters that are published every half second, over the history that the store keeps of them (two minutes).
A process is looked at closely only at a step in which it faulted enough for a burst. What is compared with is the time
before: its mean, its quiet rate, and the largest burst in it, so that bursts that come as they always did are none of
this. Faults per second are those while bursts last, now and before. While bursts go on without a pause of ``quiet_s``
they are one incident; when they grow beyond what its earlier ones were, those become the time before. Durations and
recovery: ``detect.bursts``; a recovery shorter than the half second between samples is interpolated.

Processes that warm up (``detect.serving``) are left alone. The host is told of only where none starts and the watched
processes do not have half of its faults of ten seconds: one burst is not to be two incidents. It is looked at when
their counters have been read after its own, and it ends when they come to have that half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.detect.bursts import Burst, Rates, find_bursts, rates
from gpumon.detect.detector import Entity, Finding, IncidentKind, Severity
from gpumon.detect.fault_episode import Before, Episode
from gpumon.detect.prompt_lengths import Prompt, PromptLengths, on_process
from gpumon.detect.scene import Growth, Labels, Scene
from gpumon.detect.serving import Serving, process_entity
from gpumon.model import Metric

WINDOW: Final = 20
"""Samples, half a second each."""
BEFORE_LEAST: Final = 60
"""Fewer samples than these are no time before to compare with."""
LOOK_BACK_S: Final = 125.0
CALM_S: Final = 30.0
EXPLAINED_S: Final = 10.0
"""Over which the faults of the host and of the watched processes are compared."""

LEAST_PER_S: Final = 4.0
"""Over the quiet rate, for a sample to be of a burst: more than two faults in half a second."""
LEAST_SIZE: Final = 5.0
"""Faults of a burst to compare with."""

_HOST: Final = ("major",)


@dataclass(slots=True)
class _Past:
    """Episodes that the history still holds: no time to compare with."""

    marks: list[tuple[float, float]]
    """From when to when."""
    before: Before
    """How it was before the newest: for when too little of the history is left."""


class _Calm(NamedTuple):
    """A look that found nothing: it need not be repeated until something changes, or time has passed."""

    at_s: float
    mean: float


class PageFaultBurst:
    """Finds ``page_fault_burst``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "page_fault_burst",
            "Major faults of a serving process, sampled every 0.5 s: over 20 samples their standard deviation is over "
            "`variation` times their mean, or two samples running are over `jump` times the mean before; and the "
            "highest is over `floor_per_s`, and the burst has at least `least_faults` faults and over `jump` times "
            "those of any burst before. For the host, with `host_floor_per_s`, where the watched processes have less "
            "than half of its faults of ten seconds. Not in the first `warm_up_s` of a process, nor while it only "
            "loads, for the host of any. Over after `quiet_s` without a burst; of the host when a process has them.",
            (Severity.WARNING,),
            "Keep the server's pages in memory: more memory for the pod or shorter contexts, no swap, weights and "
            "KV offload locked or on huge pages; look what else fills the page cache of this host.",
            hold_s=20.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "variation": "Standard deviation over mean of 20 samples, ten seconds. Only bursts up to a second reach 2.5.",
        "jump": "Times the mean before, and the size of bursts before; ratio.",
        "floor_per_s": "Faults per second; at 0.1 to 10 ms each, fewer do not hold up a server.",
        "host_floor_per_s": "Faults per second of the whole host, where starting programs fault by the hundred.",
        "least_faults": "Faults of a burst: a second at the floor.",
        "quiet_s": "Seconds without a burst after which it is over; bursts of one cause come within ten seconds.",
        "warm_up_s": "Seconds after which a process may serve.",
    }

    def __init__(
        self,
        *,
        variation: float = 2.5,
        jump: float = 3.0,
        floor_per_s: float = 50.0,
        host_floor_per_s: float = 200.0,
        least_faults: float = 50.0,
        quiet_s: float = 15.0,
        warm_up_s: float = 60.0,
    ) -> None:
        self._variation = variation
        self._jump = jump
        self._floor_per_s = floor_per_s
        self._host_floor_per_s = host_floor_per_s
        self._least_faults = least_faults
        self._quiet_s = quiet_s
        self._serving = Serving(warm_up_s=warm_up_s)
        self._prompts = PromptLengths()
        self._episodes: dict[Labels, Episode] = {}
        self._past: dict[Labels, _Past] = {}
        self._calm: dict[Labels, _Calm] = {}
        self._waiting: deque[Growth] = deque()
        """Of the host, until the counters of processes have been read after it."""
        self._of_host: deque[tuple[float, float]] = deque()
        """Its faults in the last seconds, by when they were read."""
        self._of_processes: deque[tuple[float, float]] = deque()
        """Those of the watched processes likewise."""

    def step(self, scene: Scene) -> Iterable[Finding]:
        self._serving.feed(scene)
        self._prompts.feed(scene)
        processes = [growth for growth in scene.grown(catalogue.PROCESS_PAGE_FAULTS) if growth.labels[-1] == "major"]
        for growth in processes:
            if self._may_begin(growth, self._floor_per_s) and self._serving.is_warm(scene, growth.labels[0]):
                self._look(scene, catalogue.PROCESS_PAGE_FAULTS, growth, self._floor_per_s)
        self._look_at_host(scene, processes)
        yield from self._go_on(scene)
        self._forget(scene)

    def _look_at_host(self, scene: Scene, processes: Iterable[Growth]) -> None:
        self._waiting.extend(growth for growth in scene.grown(catalogue.HOST_PAGE_FAULTS) if growth.labels == _HOST)
        self._of_processes.extend((growth.at_s, growth.amount) for growth in processes)
        read = [each.at_s for each in scene.read(catalogue.PROCESS_PAGE_FAULTS) if each.labels[-1] == "major"]
        read_s = max(min(read, default=scene.at_s), scene.at_s - EXPLAINED_S)
        while self._waiting and self._waiting[0].at_s <= read_s:
            host = self._waiting.popleft()
            self._of_host.append((host.at_s, host.amount))
            for faults in (self._of_host, self._of_processes):
                while faults and faults[0][0] <= host.at_s - EXPLAINED_S:
                    faults.popleft()
            may_begin = not self._is_explained() and self._may_begin(host, self._host_floor_per_s)
            if may_begin and self._serving.is_settled(scene):
                self._look(scene, catalogue.HOST_PAGE_FAULTS, host, self._host_floor_per_s)

    def _is_explained(self) -> bool:
        """Whether the watched processes have half of the host's faults."""
        return 2 * _sum(self._of_processes) >= _sum(self._of_host)

    def _may_begin(self, growth: Growth, floor_per_s: float) -> bool:
        """Cheap: a half second at the floor has half of it as its faults, and so has the step that it lies in."""
        if growth.amount < floor_per_s / 2 and growth.rate < floor_per_s:
            return False
        calm = self._calm.get(growth.labels)
        if calm is not None and growth.at_s - calm.at_s < CALM_S and growth.rate < self._jump / 2 * calm.mean:
            return False
        return growth.labels not in self._episodes

    def _look(self, scene: Scene, metric: Metric, growth: Growth, floor_per_s: float) -> None:
        """Begin an episode if there is a burst unlike those before."""
        labels = growth.labels
        seen = rates(*scene.window(metric, labels, scene.at_s - LOOK_BACK_S))
        new_s = growth.at_s - growth.dt_s
        size = max(WINDOW, int((seen.ends_s > new_s).sum()))
        before = self._time_before(labels, seen, size)
        if before is None:
            return
        recent = seen.per_s[-size:]
        variation = float(recent.std() / max(recent.mean(), 1e-9))
        high = recent > max(self._jump * before.mean, floor_per_s)
        self._calm[labels] = _Calm(scene.at_s, before.mean)
        if variation <= self._variation and not (high[1:] & high[:-1]).any():
            return
        largest = 0.0
        for burst in before.bursts:
            if (
                burst.end_s > new_s
                and burst.peak + before.quiet > floor_per_s
                and burst.size >= self._least_faults
                and burst.size > self._jump * largest
            ):
                self._begin(scene, labels, burst, before, variation)
                return
            largest = max(largest, burst.size)

    def _begin(self, scene: Scene, labels: Labels, burst: Burst, before: Before, variation: float) -> None:
        entity = Entity("host", "host") if labels == _HOST else process_entity(scene, labels)
        prompts = self._prompts_on(scene, labels, self._prompts.all())
        bursts = [other for other in before.bursts if other.start_s < burst.start_s]
        known = [prompt.tokens for prompt in prompts if prompt.end_s < burst.start_s]
        before = Before(before.mean, before.quiet, before.level, bursts, known)
        episode = Episode(entity, burst.start_s, before, variation, burst.start_s - burst.sample_s)
        new = self._prompts.new  # taken below, as at every step
        episode.prompts += [each.tokens for each in prompts if each.end_s >= burst.start_s and each not in new]
        self._episodes[labels] = episode

    def _time_before(self, labels: Labels, seen: Rates, size: int) -> Before | None:
        """How it was outside of the newest samples and of earlier episodes, and all bursts outside of these."""
        past = self._past.get(labels)
        marks = past.marks if past is not None else []
        unmarked = seen.only(_unmarked(marks, seen.ends_s))
        earlier = unmarked.only(unmarked.ends_s < (seen.ends_s[-size] if len(seen.ends_s) >= size else 0.0))
        if len(earlier.ends_s) >= BEFORE_LEAST:
            quiet = float(np.median(earlier.per_s))
            spread = 1.4826 * float(np.median(np.abs(earlier.per_s - quiet)))
            mean, level = float(earlier.per_s.mean()), quiet + max(3 * spread, LEAST_PER_S)
        elif past is not None:
            mean, quiet, level = past.before.mean, past.before.quiet, past.before.level
        else:
            return None
        bursts = [burst for burst in find_bursts(seen, quiet, level) if burst.size >= LEAST_SIZE]
        good = _unmarked(marks, np.array([burst.end_s for burst in bursts])).tolist()
        return Before(mean, quiet, level, [burst for burst, is_good in zip(bursts, good, strict=True) if is_good])

    def _go_on(self, scene: Scene) -> Iterator[Finding]:
        for labels, episode in [*self._episodes.items()]:
            metric = catalogue.HOST_PAGE_FAULTS if labels == _HOST else catalogue.PROCESS_PAGE_FAULTS
            seen = rates(*scene.window(metric, labels, max(episode.cursor_s, scene.at_s - LOOK_BACK_S)))
            found = find_bursts(seen, episode.before.quiet, episode.before.level)
            episode.prompts += [prompt.tokens for prompt in self._prompts_on(scene, labels, self._prompts.new)]
            episode.take(found, self._jump)
            bursts = episode.bursts
            if not bursts:  # the counter began anew in the middle of it
                del self._episodes[labels]
                continue
            is_over = scene.at_s - bursts[-1].end_s >= self._quiet_s
            is_over |= labels == _HOST and self._is_explained() and _sum(self._of_processes) > 0
            if is_over:
                past = self._past.setdefault(labels, _Past([], episode.before))
                past.marks.append((episode.since_s, scene.at_s))
                past.before = episode.before
                del self._episodes[labels]
            if found or is_over:  # between two bursts nothing is to be seen
                yield episode.finding(is_over=is_over)

    def _prompts_on(self, scene: Scene, labels: Labels, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
        return prompts if labels == _HOST else on_process(prompts, scene, labels[0])

    def _forget(self, scene: Scene) -> None:
        """What is past the history, and processes that are gone."""
        if not (self._episodes or self._past or self._calm):
            return
        there = {*scene.values(catalogue.PROCESS_PAGE_FAULTS), *scene.values(catalogue.HOST_PAGE_FAULTS)}
        self._episodes = {labels: episode for labels, episode in self._episodes.items() if labels in there}
        for past in self._past.values():
            past.marks = [mark for mark in past.marks if mark[1] > scene.at_s - LOOK_BACK_S]
        self._past = {labels: past for labels, past in self._past.items() if past.marks and labels in there}
        self._calm = {labels: calm for labels, calm in self._calm.items() if labels in there}


def _sum(faults: Iterable[tuple[float, float]]) -> float:
    return sum(amount for _, amount in faults)


def _unmarked(marks: Iterable[tuple[float, float]], ends_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which moments are not of an earlier episode."""
    good = np.ones(len(ends_s), dtype=np.bool_)
    for since_s, until_s in marks:
        good &= (ends_s < since_s) | (ends_s > until_s)
    return good
