"""What the faults at work do to each GPU and each server, as plain numbers for the physics and the engine.

Made once for every stretch of the timeline. Where two faults of one kind strike the same thing, the stronger counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpumon.sim.boards import Model
from gpumon.sim.scenario import Fault, Scenario

LOAD_KINDS = frozenset(
    ("queue_surge", "batch_growth", "tenant_flood", "context_jump", "long_prompts", "kv_shrink", "kv_over_reserved")
)
"""What changes how much work a server has: its steady reference must not follow."""


@dataclass(slots=True)
class GpuEffects:
    """On one GPU. The defaults are those of health."""

    heat: float = 0.0
    """Share of the clock to be lost once hot."""
    cap_lost: float = 0.0
    brake: float = 0.0
    bandwidth_taken: float = 0.0
    time_taken: float = 0.0
    link_share: float = 1.0
    """Of the PCIe link's speed that is there."""
    link_taken: float = 0.0
    nvlink_share: float = 1.0
    straggle: float = 1.0
    lost: bool = False

    @property
    def slows(self) -> bool:
        """Whether anything but the clocks slows the steps on it."""
        return self != _HEALTHY


@dataclass(slots=True)
class ServerEffects:
    """On one server. The defaults are those of health."""

    page_faults: float = 0.0
    memory_pressure: float = 0.0
    numa_remote: float = 0.0
    cpu_starvation: float = 0.0
    stopped: float = 0.0
    eager: float = 0.0
    arrivals: float = 1.0
    tenants: dict[str, float] = field(default_factory=dict)
    context: float = 1.0
    long_prompts: float = 1.0
    kv_share: float = 1.0
    kv_empty: float = 0.0
    jitter: float = 0.0
    imbalance: float = 0.0
    quality: float = 0.0
    load_fault: bool = False
    """One of LOAD_KINDS is at work."""
    stopped_at_s: float = 0.0
    """When ``stopped`` began, in the story; the same with ``faults_at_s``."""
    faults_at_s: float = 0.0

    @property
    def stalls(self) -> bool:
        """Whether something holds steps up that is no part of them."""
        return bool(self.memory_pressure or self.jitter or self.quality)


_HEALTHY = GpuEffects()


def gpu_effects(faults: tuple[Fault, ...], gpu: int, model: Model) -> GpuEffects:
    """Of the faults at work on one GPU."""
    effects = GpuEffects()
    for fault in faults:
        if fault.kind == "driver_restart":
            effects.lost = True
        if fault.gpu != gpu:
            continue
        strength = fault.strength
        match fault.kind:
            case "thermal_throttle":
                effects.heat = max(effects.heat, strength)
            case "power_throttle":
                effects.cap_lost = max(effects.cap_lost, strength)
            case "power_brake":
                effects.brake = max(effects.brake, strength)
            case "memory_bandwidth":
                effects.bandwidth_taken = max(effects.bandwidth_taken, strength)
            case "gpu_contention" | "short_job":
                effects.time_taken = max(effects.time_taken, strength)
            case "pcie_degraded":
                generation, width = link(model, strength)
                speed = 2.0 ** (generation - model.pcie_generation) * width / model.pcie_width
                effects.link_share = min(effects.link_share, speed)
            case "pcie_saturated":
                effects.link_taken = max(effects.link_taken, strength)
            case "nvlink_degraded":
                effects.nvlink_share = min(effects.nvlink_share, links_left(model, strength) / model.nvlinks)
            case "straggler":
                effects.straggle = max(effects.straggle, strength)
            case "gpu_lost":
                effects.lost = True
    return effects


def server_effects(faults: tuple[Fault, ...], server: int, scenario: Scenario) -> ServerEffects:
    """Of the faults at work on one server."""
    effects = ServerEffects()
    name = scenario.servers[server].name
    tenants = {tenant for load in scenario.load if load.server == name for tenant in load.tenants}
    for fault in faults:
        strength = fault.strength
        if fault.kind == "tenant_flood" and fault.tenant in tenants:
            effects.tenants[fault.tenant] = max(effects.tenants.get(fault.tenant, 1.0), strength)
            effects.load_fault = True
        if fault.server != name:
            continue
        effects.load_fault = effects.load_fault or fault.kind in LOAD_KINDS
        match fault.kind:
            case "page_faults":
                effects.page_faults, effects.faults_at_s = max(effects.page_faults, strength), fault.at_s
            case "memory_pressure":
                effects.memory_pressure = max(effects.memory_pressure, strength)
            case "numa_remote":
                effects.numa_remote = max(effects.numa_remote, strength)
            case "cpu_starvation":
                effects.cpu_starvation = max(effects.cpu_starvation, strength)
            case "process_stopped":
                effects.stopped, effects.stopped_at_s = max(effects.stopped, strength), fault.at_s
            case "graph_fallback":
                effects.eager = max(effects.eager, strength)
            case "queue_surge" | "batch_growth":
                effects.arrivals *= strength
            case "idle":
                effects.arrivals *= 1 - strength
            case "context_jump":
                effects.context = max(effects.context, strength)
            case "long_prompts":
                effects.long_prompts = max(effects.long_prompts, strength)
            case "kv_shrink":
                effects.kv_share = min(effects.kv_share, strength)
            case "kv_over_reserved":
                effects.kv_empty = max(effects.kv_empty, strength)
            case "batch_jitter":
                effects.jitter = max(effects.jitter, strength)
            case "moe_imbalance":
                effects.imbalance = max(effects.imbalance, strength)
            case "quality_drop":
                effects.quality = max(effects.quality, strength)
    return effects


def link(model: Model, halvings: float) -> tuple[int, int]:
    """PCIe generation and width of a link that trained down: first the generation, then the width."""
    steps = round(halvings)
    generation = max(1, model.pcie_generation - steps)
    narrower = steps - (model.pcie_generation - generation)
    return generation, max(1, model.pcie_width >> narrower)


def links_left(model: Model, lost: float) -> int:
    """NVLinks still active."""
    return max(1, model.nvlinks - round(lost))
