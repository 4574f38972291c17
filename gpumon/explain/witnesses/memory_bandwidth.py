"""DRAM that is busier than the server's own work explains: somebody else takes bandwidth from it.

Two looks at the integral of DRAM activity (GPM: Hopper and newer; of other GPUs nothing is said), read every second:

* Beside its peers. The ranks of a server move the same bytes in the same steps, whichever of them is slow; what one
  has above the others' median, and above what it rarely passed, is not the server's. Needs a server that is bound to
  two GPUs or more.
* Per step. A decode step moves the weights and the KV cache once, however long it takes: DRAM activity while the GPU is
  busy, times the time of a step, against what it was at this much KV cache. Step times are those of requests that have
  just ended; the KV cache is told by the server's page, one for the model. Without these, nothing is said by this look.

Only a DRAM that is nearly full makes reading take longer. What another process computes there moves bytes, too, but is
``gpu_contention``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, Final, NamedTuple

import numpy as np

from gpumon import catalogue
from gpumon.detect.contention import GpuContention
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Growth, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.gpus import GPUS_MAX, found_on, ratio
from gpumon.explain.witnesses.weighing import HOLDS, confirmed, ramp
from gpumon.model import RequestRecord, Unit

CAUSE: Final = "memory_bandwidth"
_TAIL: Final = 64
"""Steps at the end of a request."""
_STEPS_S: Final = 1.0
"""Steps of this time, at the end of a request, are taken together."""
_FRESH_S: Final = 5.0
"""Steps that are older say nothing of now: requests are known two or three seconds after their end."""
_STEPS_LEAST: Final = 8
_READINGS: Final = 16
_PER_LOOK: Final = 64
"""Requests looked at, the newest."""
_FORGET_S: Final = 300.0
_BUSY_S: Final = 10.0
"""Utilization is summed and told every 5 s."""
_BUSY_READINGS: Final = 5
"""Of DRAM activity, about as long."""
_BUSY: Final = 0.05
"""Utilization up to which a GPU does nothing."""
_HISTORY: Final = 120
_ABOVE_LEAST: Final = 20
_HISTORY_LEAST: Final = 10
_LEAST_SPREAD: Final = 1e-6
"""Sum of squares from which a slope is one."""
_READ_ALL_S: Final = 0.04
"""Reading all of a board's memory: 80 GB at 2.0 TB/s (A100); 24 to 29 ms on H100, H200, B200. A KV cache is less."""


class _Reading(NamedTuple):
    """Of the GPU of a server whose DRAM is the least active: what one has above that is told by the other look."""

    at_s: float
    dram: float


@dataclass(slots=True)
class _Server:
    """The GPUs of a server, and bytes of its steps."""

    model: str = ""
    step_s: float = 0.0
    """Median of the steps of the second up to ``stepped_s``."""
    stepped_s: float = -math.inf
    recent: deque[_Reading] = field(default_factory=lambda: deque(maxlen=_READINGS))
    history: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    """KV cache in use, and seconds of DRAM activity per step, while all was well."""


@dataclass(slots=True)
class _Gpu:
    """One GPU beside its peers."""

    above: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    """DRAM activity above that of its peers, while all was well."""
    busy: float = 0.0
    """Utilization over the seconds up to ``busy_s``."""
    busy_s: float = -math.inf


class MemoryBandwidth:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = (CAUSE,)

    def __init__(self, *, taken_low: float = 0.15, taken_high: float = 0.3) -> None:
        """taken_low, taken_high: share of the bandwidth above the peers', from where on it may count, and counts
        wholly. Ranks differ by less than a tenth."""
        self._taken = (taken_low, taken_high)
        self._servers: Kept[tuple[str, ...], _Server] = Kept(_Server, forget_s=_FORGET_S, most=GPUS_MAX)
        self._gpus: Kept[str, _Gpu] = Kept(_Gpu, most=GPUS_MAX)
        self._sharing = GpuContention(sm=0.02, on_s=0.0, off_s=0.0)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        found = found_on(incidents, "memory_bound")
        shared = {finding.entity.uuid for finding in self._sharing.step(scene)}
        self._note_steps(scene)
        drams = {growth.labels[1]: growth for growth in scene.grown(catalogue.GPU_DRAM_ACTIVE_SECONDS)}
        for growth in scene.grown(catalogue.GPU_BUSY_SECONDS):
            gpu = self._gpus.look(growth.labels[1], scene.at_s)
            gpu.busy, gpu.busy_s = ratio(growth.rate), growth.at_s
        kv = _kv_in_use(scene) if drams else {}
        judged: set[str] = set()
        # The server seen last is the one that is there.
        for uuids, server in reversed([*self._servers.items()]):
            present = {uuid: drams[uuid] for uuid in uuids if uuid in drams}
            if not judged.isdisjoint(present):
                continue
            judged.update(present)
            by_step = self._per_step(scene, server, present, kv.get(server.model))
            for uuid, growth in present.items():
                peers = [ratio(other.rate) for peer, other in present.items() if peer != uuid]
                above, usual = self._above_peers(scene, uuid, ratio(growth.rate), peers)
                evidence, cap = max(above, by_step)
                if uuid in shared:
                    evidence *= HOLDS
                evidence = confirmed(evidence, is_found=uuid in found)
                if evidence > 0:
                    fact = Fact("dram_active", ratio(growth.rate), Unit.RATIO, usual)
                    yield Sign(CAUSE, ("gpu", uuid), growth.at_s - growth.dt_s, growth.at_s, evidence, cap, fact)
        self._servers.sweep(scene.at_s)
        self._gpus.sweep(scene.at_s)

    def _note_steps(self, scene: Scene) -> None:
        """Servers by their requests, and how long their steps are now."""
        for record in scene.requests[-_PER_LOOK:]:
            if record.binding.gpus:
                server = self._servers.look(tuple(map(str, record.binding.gpus)), scene.at_s)
                server.model = record.model
                end_s, step_s = _steps(scene, record)
                if step_s is not None and server.stepped_s < end_s <= scene.at_s:
                    server.stepped_s, server.step_s = end_s, step_s

    def _above_peers(
        self, scene: Scene, uuid: str, dram: float, peers: Sequence[float]
    ) -> tuple[tuple[float, float], float | None]:
        """Evidence and cap by the look beside its peers, and their DRAM activity."""
        if not peers:
            return (0.0, 0.0), None
        gpu = self._gpus.look(uuid, scene.at_s)
        usual = median(peers)
        taken = dram - usual
        evidence = 0.0
        is_known = len(gpu.above) >= _ABOVE_LEAST
        if taken > self._taken[0] and is_known:
            taken -= max(0.0, float(np.quantile(gpu.above, 0.95)))
            evidence = ramp(taken, *self._taken) * ramp(dram, 0.6, 0.85)
        if evidence < HOLDS or not is_known:
            gpu.above.append(dram - usual)
        return (evidence, ratio(taken)), usual

    def _per_step(
        self, scene: Scene, server: _Server, present: Mapping[str, Growth], kv: float | None
    ) -> tuple[float, float]:
        """Evidence and cap by the bytes of a step."""
        if not present:
            return 0.0, 0.0
        now = min(
            [_Reading(growth.at_s, ratio(growth.rate)) for growth in present.values()], key=lambda each: each.dram
        )
        server.recent.append(now)
        then = next((each for each in server.recent if each.at_s >= server.stepped_s), now)
        busy = self._busy(scene, present)
        if kv is None or busy is None or scene.at_s - server.stepped_s > _FRESH_S:
            return 0.0, 0.0
        full = ramp(min(then.dram, now.dram), 0.88, 0.94)
        usual = _usual_seconds(server.history, kv) if full > 0 else None
        more = then.dram * server.step_s / usual if usual else 1.0
        evidence = full * ramp(more, 1.3, 1.7)
        if evidence < HOLDS:
            recent = [*server.recent][-_BUSY_READINGS:]
            dram = ratio(sum([each.dram for each in recent]) / len(recent) / busy)
            server.history.append((kv, dram * server.step_s))
        return evidence, ratio(1.0 - 1.0 / max(1.0, more))

    def _busy(self, scene: Scene, uuids: Iterable[str]) -> float | None:
        """Utilization of the busiest of these GPUs over the last seconds; None where it is next to none or unknown."""
        gpus = [self._gpus.look(uuid, scene.at_s) for uuid in uuids]
        busy = max([gpu.busy for gpu in gpus if scene.at_s - gpu.busy_s <= _BUSY_S], default=0.0)
        return busy if busy > _BUSY else None


def _steps(scene: Scene, record: RequestRecord) -> tuple[float, float | None]:
    """When the last step of a request ended, steady seconds, and how long its last steps took, where it tells."""
    times = record.token_ns
    if times is None or len(times) <= _STEPS_LEAST:
        return 0.0, None
    last = int(times[-1])
    recent = times[-_TAIL:]
    recent = recent[recent >= last - round(_STEPS_S * 1e9)]
    if len(recent) <= _STEPS_LEAST:
        return 0.0, None
    step_s = float(np.median(np.diff(recent))) / 1e9
    return scene.to_steady(last), step_s if step_s > 0 else None


def _kv_in_use(scene: Scene) -> dict[str, float]:
    """Share of the KV cache in use by model, of those with one page."""
    shares: dict[str, list[float]] = {}
    for labels, value in scene.values(catalogue.SERVER_KV_USAGE).items():
        shares.setdefault(labels[1], []).append(ratio(value))
    return {model: values[0] for model, values in shares.items() if len(values) == 1}


def _usual_seconds(history: Sequence[tuple[float, float]], kv: float) -> float | None:
    """DRAM seconds that a step may well have with this much KV cache; None until that is known.

    Nearly all that was seen, and for more KV cache than usual as much more as was seen to come with it, but no less
    than reading it takes.
    """
    if len(history) < _HISTORY_LEAST:
        return None
    used, seconds = np.array(history).T
    apart = used - used.mean()
    spread = float(apart @ apart)
    slope = float(apart @ seconds) / spread if spread > _LEAST_SPREAD else 0.0
    more = max(0.0, kv - float(np.median(used)))
    return float(np.quantile(seconds, 0.9)) + max(_READ_ALL_S, slope) * more
