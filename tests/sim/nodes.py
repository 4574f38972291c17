"""Small simulated nodes for tests. A world forgets what is half a minute old, so every test makes its own."""

from __future__ import annotations

from gpumon.host.clock import ManualClock
from gpumon.sim.nvml import SimNvml
from gpumon.sim.scenario import Scenario, parse_scenario
from gpumon.sim.world import World

STARTED_S = 10_000.0
SEED = 7
GPUS = 4
DENSE, SPARSE = "llama-8b-0", "qwen-30b-0"

_TEXT = """
name: test
duration_s: 600
node: {{model: {model}, gpus: 4, numa_nodes: {numa_nodes}}}
servers:
  - {{name: llama-8b-0, kind: vllm, model: llama-3.1-8b, gpus: [0, 1], parameters_b: 8, kv_capacity_tokens: 200000}}
  - {{name: qwen-30b-0, kind: sglang, model: qwen3-30b-a3b, gpus: [2, 3], parameters_b: 30, active_parameters_b: 3,
      experts: 128, kv_capacity_tokens: 200000}}
load:
  - {{server: llama-8b-0, arrivals: {{per_s: 1.0}}, outputs: {{mean: 60}}, tenants: {{acme: 1, globex: 1}},
      parameters: {{temperature: [0.0, 0.7], max_tokens: [256]}}, evaluations: {{summarize: 0.9}}}}
  - {{server: qwen-30b-0, arrivals: {{per_s: 1.0}}, outputs: {{mean: 60}}}}
faults: [{faults}]
"""


def scenario_text(*faults: str, model: str = "h200", numa_nodes: int = 2) -> str:
    """Four GPUs, two servers. faults: flow mappings of YAML without their braces."""
    listed = ", ".join(f"{{{fault}}}" for fault in faults)
    return _TEXT.format(model=model, numa_nodes=numa_nodes, faults=listed)


def scenario(*faults: str, model: str = "h200", numa_nodes: int = 2) -> Scenario:
    """The scenario of ``scenario_text``."""
    return parse_scenario(scenario_text(*faults, model=model, numa_nodes=numa_nodes))


def node(*faults: str, model: str = "h200", numa_nodes: int = 2) -> World:
    """A world of ``scenario``, at the story's begin."""
    return World(scenario(*faults, model=model, numa_nodes=numa_nodes), started_at_s=STARTED_S, seed=SEED)


def clock_at(story_s: float) -> ManualClock:
    """A clock that stands at a second of the story."""
    return ManualClock(at_s=STARTED_S + story_s)


def opened(world: World, clock: ManualClock) -> SimNvml:
    """NVML of a world."""
    nvml = SimNvml(world, clock, sleep=clock.step)
    nvml.open()
    return nvml
