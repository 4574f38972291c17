"""Short stories of a simulated node, for tests of whole programs: one whose faults are found within seconds."""

from __future__ import annotations

from pathlib import Path

from gpumon.sim.scenario import Scenario, parse_scenario

LENGTH_S = 30
FOUND = ("hw_slowdown", "xid", "process_stopped")
"""Kinds of its incidents, in the order of their opening; the last one is of both workers of the server."""
_TEXT = """\
name: {name}
duration_s: {duration_s}
seed: 11
node: {{model: h200, gpus: 2, numa_nodes: 2}}
servers:
  - {{name: llama-8b-0, kind: vllm, model: llama-3.1-8b, gpus: [0, 1], parameters_b: 8, kv_capacity_tokens: 200000}}
load:
  - {{server: llama-8b-0, arrivals: {{per_s: 2.0}}, outputs: {{mean: 60}}, tenants: {{acme: 1, globex: 1}}}}
faults: [{faults}]
"""
_FAULTS = (
    "kind: power_brake, at_s: 6, for_s: 6, gpu: 1, strength: 0.5",
    "kind: xid, at_s: 9, gpu: 0, strength: 13",
    "kind: process_stopped, at_s: 14, for_s: 4, server: llama-8b-0",
)
_SILENT = """\
name: silent
duration_s: 600
node: {model: h200, gpus: 8, numa_nodes: 2}
servers:
  - {name: llama-70b-0, model: llama-3.1-70b, gpus: [0, 1, 2, 3], parameters_b: 70, kv_capacity_tokens: 400000}
  - {name: llama-70b-1, model: llama-3.1-70b, gpus: [4, 5, 6, 7], parameters_b: 70, kv_capacity_tokens: 400000}
"""


def story_text(*faults: str, name: str = "quick", duration_s: int = LENGTH_S) -> str:
    """The scenario's file. faults: flow mappings of YAML without their braces, instead of the story's own."""
    listed = ", ".join(f"{{{fault}}}" for fault in faults or _FAULTS)
    return _TEXT.format(name=name, duration_s=duration_s, faults=listed)


def story(*faults: str) -> Scenario:
    """The scenario of ``story_text``."""
    return parse_scenario(story_text(*faults))


def write_story(folder: Path, *faults: str) -> Path:
    """The scenario's file, written."""
    path = folder / "quick.yaml"
    path.write_text(story_text(*faults))
    return path


def write_silent(folder: Path) -> Path:
    """The file of a scenario in which nothing happens, written: a node of eight GPUs whose servers nobody asks."""
    path = folder / "silent.yaml"
    path.write_text(_SILENT)
    return path
