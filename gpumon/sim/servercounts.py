"""What a simulated server would say on its metrics page: its engine's reading, in the server's own terms."""

from __future__ import annotations

from gpumon.sim.boards import MIB, MODELS
from gpumon.sim.costs import MOE_BALANCE
from gpumon.sim.population import AGE_S, Population
from gpumon.sim.scenario import Scenario
from gpumon.sim.simulation import Reading, Simulation
from gpumon.sim.state import ServerState

_STEPS_S = 40  # of a server at work, in the time before the world began
_OVERHEAD_MIB = 2_048  # of a rank: activations, graphs, communicators
_MOST_LEAKED_MIB = 16_384  # of a server: then fragmentation has eaten all there was


def server_state(
    scenario: Scenario, index: int, simulation: Simulation, population: Population, story_s: float
) -> ServerState:
    """Of one server at a moment of the story."""
    spec = scenario.servers[index]
    frame, _ = simulation.frame(story_s)
    now = frame.readings[index]
    life = population.life(index, story_s)
    start = simulation.reading_at_start(index, life.number) or _earlier(scenario, index)
    generated = now.generated - start.generated
    # The mean of the busiest rank's share wanders a little with what the prompts are about.
    balance = None
    if spec.experts:
        balance = (1 / now.imbalance if now.imbalance else MOE_BALANCE) * (0.97 + 0.03 * (generated % 97) / 97)
    ranks = len(spec.gpus)
    allocated = int(spec.parameters_b * 1e9 * spec.bytes_per_parameter) + _OVERHEAD_MIB * MIB * ranks
    allocated += int(spec.kv_capacity_tokens * spec.kv_bytes_per_token)
    most = int(0.95 * MODELS[scenario.node.model].memory_mib) * MIB * ranks
    # A story that repeats begins with an allocator that has given back what was free.
    rest_s = story_s % scenario.duration_s if scenario.repeat else story_s
    leaked = sum(
        fault.strength * MIB * min(max(rest_s - fault.at_s, 0.0), fault.for_s)
        for fault in scenario.faults
        if fault.kind == "allocator_leak" and fault.server == spec.name
    )
    reserved = min(most, allocated + 512 * MIB * ranks + int(min(leaked, _MOST_LEAKED_MIB * MIB)))
    return ServerState(
        kind=spec.kind,
        model=spec.model,
        running=now.running,
        waiting=now.waiting,
        kv_usage=min(1.0, now.live / now.usable),
        kv_capacity_tokens=now.capacity,
        kv_live_tokens=now.live,
        preemptions=now.preempted - start.preempted,
        prefix_query_tokens=now.prompt - start.prompt,
        prefix_hit_tokens=now.hit - start.hit,
        prompt_tokens=now.prompt - start.prompt,
        generation_tokens=generated,
        graph_passes=now.graph_passes - start.graph_passes,
        eager_passes=now.eager_passes - start.eager_passes,
        expert_balance=balance,
        allocator_reserved_bytes=reserved,
        allocator_allocated_bytes=min(allocated, reserved),
    )


def _earlier(scenario: Scenario, index: int) -> Reading:
    """Counters as if the server had begun to count long before the simulation did: below zero where that began."""
    loads = [load for load in scenario.load if load.server == scenario.servers[index].name]
    made = prompt = hit = 0.0
    for load in loads:
        weight = sum(load.prompts.values())
        length = sum(tokens * share for tokens, share in load.lengths.items()) / weight
        made += load.arrivals.per_s * load.outputs.mean
        prompt += load.arrivals.per_s * length
        hit += load.arrivals.per_s * length * load.cached_share
    steps = -int(AGE_S * _STEPS_S) if loads else 0
    graphs = scenario.servers[index].cuda_graphs
    return Reading(
        *(0, 0, 0, 1.0, 0, 0, -int(AGE_S * prompt), -int(AGE_S * hit), -int(AGE_S * made)),
        *(steps if graphs else 0, 0 if graphs else steps, 0.0),
    )
