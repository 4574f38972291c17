"""The node that the benchmarks of detection, simulation and replay share: simulated, healthy and busy.

Eight H200, four servers on two of them each that make about 2,000 tokens a second together, and jobs that look in on
the GPUs so lightly that nothing comes of it: 30 processes are watched. Servers tell of their requests, tokens and
collective operations and have metrics pages. One GPU throttles for a while, so that incidents open and close too.
"""

from __future__ import annotations

from gpumon.config import Config, ProcessesConfig, StateConfig
from gpumon.sim.scenario import Scenario

GPUS, SERVERS, PROCESSES = 8, 4, 30
WARM_UP_S = 30.0
"""After this the medians and means have what they need."""
STORY_S, FAULT_AT_S, FAULT_S = 120.0, 60.0, 30.0
"""The node goes on after the story, which comes again."""

_DENSE = {
    "kind": "vllm",
    "model": "dense-70b",
    "parameters_b": 70.6,
    "kv_bytes_per_token": 327_680,
    "kv_capacity_tokens": 300_000,
    "max_batch": 48,
    "prefill_chunk_tokens": 1024,
}
_MOE = {
    "kind": "sglang",
    "model": "moe-235b",
    "parameters_b": 235,
    "active_parameters_b": 22,
    "bytes_per_parameter": 0.6,
    "experts": 128,
    "kv_bytes_per_token": 192_512,
    "kv_capacity_tokens": 300_000,
    "max_batch": 48,
    "prefill_chunk_tokens": 1024,
}
_PER_S = 2.0
_TOKENS = 250
_OF_A_SERVER = 4
"""Processes: the front, the engine, and a worker on each GPU."""


def scenario() -> Scenario:
    """The node, for as long as wanted."""
    jobs = PROCESSES - SERVERS * _OF_A_SERVER
    servers = [(_DENSE, _MOE)[i % 2] | {"name": f"server-{i}", "gpus": [2 * i, 2 * i + 1]} for i in range(SERVERS)]
    return Scenario.model_validate(
        {
            "name": "busy",
            "duration_s": STORY_S,
            "repeat": True,
            "node": {"model": "h200", "gpus": GPUS},
            "servers": servers,
            "load": [_load(str(server["name"])) for server in servers],
            "faults": [
                {"kind": "thermal_throttle", "at_s": FAULT_AT_S, "for_s": FAULT_S, "gpu": 3, "strength": 0.4},
                *(
                    {"kind": "short_job", "at_s": 0.0, "for_s": STORY_S, "gpu": i % GPUS, "strength": 0.005}
                    for i in range(jobs)
                ),
            ],
        }
    )


def config() -> Config:
    """The daemon's defaults, with all processes of the servers watched, and nothing written."""
    processes = ProcessesConfig(servers=("/(VLLM|vllm|sglang).*/",))
    return Config(processes=processes, state=StateConfig(folder=None))


def _load(server: str) -> dict[str, object]:
    return {
        "server": server,
        "arrivals": {"process": "poisson", "per_s": _PER_S},
        "prompts": {"1k": 5, "2k": 4, "4k": 2},
        "cached_share": 0.4,
        "outputs": {"mean": _TOKENS, "spread": 0.5},
        "tenants": {"acme": 5, "globex": 4, "initech": 3},
        "parameters": {"temperature": [0.0, 0.7, 1.0], "max_tokens": [1024]},
        "evaluations": {"summarize": 0.86, "extract": 0.92},
    }
