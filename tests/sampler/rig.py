"""A sampler process on a fake node, with the real link, store and health around it, and short cadences."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from gpumon.health import Health
from gpumon.host.clock import SystemClock
from gpumon.host.interpreter import module_command
from gpumon.model import Distribution, GpuProcess, GpuUuid, Kind, Reason, Sample
from gpumon.node import Node
from gpumon.sampler.handover import Plan
from gpumon.sampler.link import SamplerLink
from gpumon.sources.gpu_state import SENTINELS
from gpumon.store import Store
from tests.fakenvml.controller import FakeNode

PLAN = Plan(
    fast_s=0.05,
    mig_s=0.2,
    slow_s=0.2,
    inventory_s=0.5,
    stuck_after_s=0.4,
    retry_min_s=0.05,
    retry_max_s=0.2,
    lost_retry_s=0.2,
    refresh_s=30.0,
)
LIMIT_S = 15.0


def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait for another process to get somewhere; fails after the limit."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "the condition did not come true"
        time.sleep(0.005)


class Ears(Node):
    """The node's own listener, which remembers what it heard."""

    def __init__(self, store: Store, health: Health, clock: SystemClock) -> None:
        super().__init__(store, health, clock)
        self.states: list[tuple[str, Reason, str]] = []
        self.xids_heard: list[tuple[GpuUuid | None, int]] = []
        self.processes_heard: dict[GpuUuid, list[GpuProcess]] = {}

    def nvml_state(self, state: str, at_s: float, reason: Reason, detail: str) -> None:
        self.states.append((state, reason, detail))
        super().nvml_state(state, at_s, reason, detail)

    def xid(self, uuid: GpuUuid | None, xid: int, at_s: float) -> None:
        self.xids_heard.append((uuid, xid))
        super().xid(uuid, xid, at_s)

    def gpu_processes(self, uuid: GpuUuid, processes: list[GpuProcess]) -> None:
        self.processes_heard[uuid] = processes
        super().gpu_processes(uuid, processes)


class Rig:
    """Starts when entered. Every look at what is exported checks it: unique, finite, and no total ever falls."""

    def __init__(
        self,
        fake: FakeNode,
        monkeypatch: pytest.MonkeyPatch,
        *,
        plan: Plan = PLAN,
        library: Path | str | None = None,
        interpreter: list[str] | None = None,
        restart_after_s: float = 20.0,
        **changes: float,
    ) -> None:
        monkeypatch.setenv("FAKENVML_STATE", str(fake.scenario.path))
        self.fake = fake
        self.clock = SystemClock()
        self.store = Store()
        self.health = Health(self.clock.to_unix)
        self.ears = Ears(self.store, self.health, self.clock)
        options = {
            "library": str(library if library is not None else fake.library),
            "procfs": "/proc",
            "sysfs": "/sys",
            "cgroupfs": "/sys/fs/cgroup",
        }
        self.link = SamplerLink(
            interpreter or module_command("gpumon.sampler"),
            options,
            replace(plan, **changes),
            self.clock,
            self.ears,
            publish_s=0.05,
            restart_after_s=restart_after_s,
        )
        self._highest: dict[tuple[str, tuple[str, ...]], float] = {}

    def __enter__(self) -> Self:
        self.link.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.fake.close()  # first: nothing may hang in it
        self.link.stop()

    def samples(self) -> list[Sample]:
        """What is exported now."""
        samples = list(self.store.view(self.clock.now_s()))
        keys = [(sample.metric.name, sample.labels) for sample in samples]
        assert len(keys) == len(set(keys))
        for sample in samples:
            self._check(sample)
        return samples

    def _check(self, sample: Sample) -> None:
        metric, labels, value = sample
        if isinstance(value, Distribution):
            assert min(value.counts) >= 0
            assert math.isfinite(value.total)
            total = float(sum(value.counts))
        else:
            assert math.isfinite(value), sample
            assert value not in SENTINELS, sample
            assert value >= 0 or metric.unit == "celsius", sample
            total = value
        if metric.kind in (Kind.COUNTER, Kind.HISTOGRAM):
            key = (metric.name, labels[1:] if metric.labels[:1] == ("gpu",) else labels)
            assert total >= self._highest.get(key, 0.0), (sample, self._highest.get(key))
            self._highest[key] = total

    def family(self, name: str) -> dict[tuple[str, ...], float]:
        """Values of a scalar family by labels; ``name`` without gpumon_."""
        return {
            sample.labels: sample.value
            for sample in self.samples()
            if sample.metric.name == f"gpumon_{name}" and not isinstance(sample.value, Distribution)
        }

    def by_uuid(self, name: str, *rest: str) -> dict[str, float]:
        """Values of a family of GPUs by uuid, those whose further labels are ``rest``."""
        return {labels[1]: value for labels, value in self.family(name).items() if labels[2:] == rest}

    def value(self, name: str, *labels: str) -> float | None:
        return self.family(name).get(labels)

    def uuid(self, slot: int) -> str:
        return self.fake.gpu(slot).uuid

    def uuids(self) -> set[str]:
        return {gpu.uuid for gpu in self.fake.gpus}

    def present(self) -> set[str]:
        return {uuid for uuid, value in self.by_uuid("gpu_present").items() if value == 1.0}

    def wait_running(self, gpus: int | None = None) -> None:
        """Until every GPU has rows and slow values."""
        count = len(self.fake.gpus) if gpus is None else gpus
        until(
            lambda: (
                len(self.by_uuid("gpu_samples_total")) == count and len(self.by_uuid("gpu_busy_seconds_total")) == count
            )
        )

    def wait_rows(self, more: int = 3, *, slots: list[int] | None = None) -> None:
        """Until these GPUs have given that many more rows."""
        chosen = [self.uuid(slot) for slot in slots] if slots is not None else sorted(self.uuids())
        before = self.by_uuid("gpu_samples_total")
        until(
            lambda: all(
                self.by_uuid("gpu_samples_total").get(uuid, -1.0) >= before.get(uuid, 0.0) + more for uuid in chosen
            )
        )

    def restarts(self, reason: str) -> float:
        return self.value("sampler_restarts_total", reason) or 0.0
