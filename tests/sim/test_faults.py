"""The table of faults, and that each costs what its truth says, for the cause it is said to have."""

from __future__ import annotations

import statistics
from functools import cache
from itertools import pairwise

import pytest

from gpumon.sim.faults import CAUSES, KINDS
from gpumon.sim.state import FinishedRequest, Rate
from tests.sim.runs import STARTED_S, Run, gaps, grown, mean_gap, run, top, truth, world

SLOW = [  # kind, keys, strength, slower at least by
    ("thermal_throttle", "gpu: 1", 0.3, 1.15),
    ("power_throttle", "gpu: 1", 0.6, 1.05),
    ("power_brake", "gpu: 2", 0.5, 1.3),
    ("memory_bandwidth", "gpu: 1", 0.4, 1.3),
    ("pcie_degraded", "gpu: 1", 5, 1.05),
    ("pcie_saturated", "gpu: 3", 0.95, 1.04),
    ("nvlink_degraded", "gpu: 0", 9, 1.08),
    ("gpu_contention", "gpu: 1", 0.3, 1.25),
    ("straggler", "gpu: 1", 2, 1.5),
    ("page_faults", "server: a", 30_000, 1.005),
    ("memory_pressure", "server: a", 0.5, 1.3),
    ("numa_remote", "server: a", 0.9, 1.2),
    ("cpu_starvation", "server: a", 0.7, 1.4),
    ("process_stopped", "server: a", 0.3, 1.3),
    ("graph_fallback", "server: a", 0.5, 1.15),
    ("batch_jitter", "server: a", 3, 1.2),
]


@cache
def clean() -> Run:
    return run(world(), 90.0)


@cache
def struck(kind: str, keys: str, strength: float) -> Run:
    """The same node with one fault from second 10 on."""
    return run(world(f"kind: {kind}, at_s: 10, for_s: 190, {keys}, strength: {strength}"), 90.0)


def test_every_row_of_the_table_is_whole() -> None:
    for kind, row in KINDS.items():
        assert row.cause is None or row.cause in CAUSES, kind
        assert row.low <= row.usual <= row.high, kind
        assert row.strength, kind
        assert row.effect, kind
    assert CAUSES[-1] == "unexplained"
    assert len(set(CAUSES)) == len(CAUSES)


def test_a_healthy_node_owes_its_tokens_nothing() -> None:
    rows = clean().between(30, 90)
    assert len(rows) > 60
    assert sum(truth(rows).values()) < 0.002 * sum(row.end_s - row.token_s[0] for row in rows)
    assert not any(grown(clean().world, gpu, rate, 65, 89) for gpu in range(4) for rate in list(Rate)[9:])


@pytest.mark.parametrize(("kind", "keys", "strength", "least"), SLOW, ids=[row[0] for row in SLOW])
def test_the_truth_is_what_the_fault_costs(kind: str, keys: str, strength: float, least: float) -> None:
    before, after = clean().between(35, 85), struck(kind, keys, strength).between(35, 85)
    slower_s = mean_gap(after) - mean_gap(before)
    assert mean_gap(after) > least * mean_gap(before)
    causes = truth(after)
    assert top(causes) == KINDS[kind].cause
    told_s = sum(causes.values()) / sum(len(row.token_s) - 1 for row in after)
    assert told_s == pytest.approx(slower_s, rel=0.06, abs=2e-5)


def test_unevenly_busy_experts_are_to_blame_for_slow_steps_and_for_the_batch_that_grows_behind_them() -> None:
    server = "experts: 64, kv_capacity_tokens: 600000, max_batch: 64, prefill_chunk_tokens: 512"
    before = run(world(server=server), 90.0).between(35, 85)
    found = run(world("kind: moe_imbalance, at_s: 10, for_s: 190, server: a, strength: 3", server=server), 90.0)
    after = found.between(35, 85)
    causes = truth(after)
    assert top(causes) == "moe_imbalance"
    told_s = sum(causes.values()) / sum(len(row.token_s) - 1 for row in after)
    assert told_s == pytest.approx(mean_gap(after) - mean_gap(before), rel=0.1)
    balance = found.world.server_state(0, STARTED_S + 85).expert_balance
    assert balance == pytest.approx(1 / 3, rel=0.05)


def test_two_causes_at_once_share_what_both_cost() -> None:
    faults = (
        "kind: memory_bandwidth, at_s: 10, for_s: 190, gpu: 1, strength: 0.3",
        "kind: gpu_contention, at_s: 10, for_s: 190, gpu: 1, strength: 0.3",
    )
    after = run(world(*faults), 90.0).between(35, 85)
    causes = truth(after)
    assert causes["memory_bandwidth"] == pytest.approx(causes["gpu_contention"], rel=0.03)
    told_s = sum(causes.values()) / sum(len(row.token_s) - 1 for row in after)
    assert told_s == pytest.approx(mean_gap(after) - mean_gap(clean().between(35, 85)), rel=0.06)


# --- load -------------------------------------------------------------------------------------------------------------


def test_a_surge_makes_requests_wait_and_the_queue_drains_afterwards() -> None:
    small = {"server": "max_batch: 8, kv_capacity_tokens: 600000, prefill_chunk_tokens: 512"}
    found = run(world("kind: queue_surge, at_s: 40, for_s: 10, server: a, strength: 5", **small), 120.0)
    assert max(found.world.server_state(0, STARTED_S + 91 + second).waiting for second in range(29)) < 4
    waited = [row for row in found.requests if row.queue_s > 1.0]
    assert len(waited) > 30
    assert all(row.start_s - STARTED_S >= 40 for row in waited)
    assert top(truth(waited, first=True)) == "queueing"
    told_s = truth(waited, first=True)["queueing"]
    assert told_s == pytest.approx(sum(row.queue_s for row in waited), rel=0.1)


def test_a_queue_behind_slow_hardware_is_the_hardwares() -> None:
    small = {"server": "max_batch: 5, kv_capacity_tokens: 600000, prefill_chunk_tokens: 512"}
    found = run(world("kind: power_brake, at_s: 40, for_s: 60, gpu: 1, strength: 0.7", **small), 110.0)
    waited = [row for row in found.between(50, 100) if row.queue_s > 1.0]
    assert len(waited) > 20
    assert top(truth(waited, first=True)) == "hw_slowdown"


def test_a_shrunken_cache_preempts_and_what_is_computed_again_is_late() -> None:
    fault = "kind: kv_shrink, at_s: 40, for_s: 60, server: a, strength: 0.05"
    found = run(world(fault, prompts="{4k: 1}", outputs="{mean: 600, spread: 0.1}"), 115.0)
    state = found.world.server_state(0, STARTED_S + 99)
    assert state.preemptions > 0
    assert state.kv_capacity_tokens == 30_000
    assert top(truth(found.between(42, 110), first=True)) == "kv_pressure"
    late = [row for row in found.between(30, 110) if dict(row.truth).get("kv_pressure", 0) > 0]
    assert late
    for row in late:
        told_s = dict(row.truth)["kv_pressure"]
        longest = sorted(b - a for a, b in pairwise(row.token_s))[-3:]
        assert sum(longest) > 0.8 * told_s


def test_a_cache_reserved_for_nothing_looks_full() -> None:
    node = world("kind: kv_over_reserved, at_s: 40, for_s: 60, server: a, strength: 0.9")
    before, after = node.server_state(0, STARTED_S + 39), node.server_state(0, STARTED_S + 60)
    assert after.kv_usage > 5 * before.kv_usage
    assert after.kv_live_tokens < 0.15 * after.kv_usage * after.kv_capacity_tokens


def test_long_prompts_hold_up_the_tokens_of_others() -> None:
    keys = {"cached": "0.9", "prompts": "{2k: 1}"}
    before = run(world(**keys), 90.0).between(35, 85)
    fault = "kind: long_prompts, at_s: 30, for_s: 60, server: a, strength: 6"
    after = run(world(fault, **keys), 95.0).between(35, 85)
    assert top(truth(after)) == "prefill_interference"
    assert truth(after)["prefill_interference"] > 3 * truth(before)["prefill_interference"]


def test_longer_prompts_read_more_cache_at_every_step() -> None:
    keys = {"prompts": "{8k: 1}", "server": "kv_capacity_tokens: 900000, max_batch: 64, prefill_chunk_tokens: 512"}
    before = run(world(**keys), 90.0).between(35, 85)
    fault = "kind: context_jump, at_s: 40, for_s: 60, server: a, strength: 4"
    after = run(world(fault, **keys), 100.0).between(55, 95)
    assert max(row.prompt_tokens for row in after) > 3 * max(row.prompt_tokens for row in before)
    assert top(truth(after)) == "long_context"
    told_s = truth(after)["long_context"] / sum(len(row.token_s) - 1 for row in after)
    assert told_s == pytest.approx(mean_gap(after) - mean_gap(before), rel=0.35)


def test_more_arrivals_grow_the_batch_and_every_step() -> None:
    keys = {"prompts": "{16k: 1}", "server": "kv_capacity_tokens: 900000, max_batch: 64, prefill_chunk_tokens: 512"}
    fault = "kind: batch_growth, at_s: 40, for_s: 80, server: a, strength: 3"
    found = run(world(fault, **keys), 120.0)
    assert mean_gap(found.between(60, 118)) > 1.1 * mean_gap(found.between(20, 40))
    assert top(truth(found.between(60, 118))) == "batch_growth"
    assert max(row.queue_s for row in found.between(60, 118)) < 0.1


def test_a_flood_is_one_tenants() -> None:
    found = run(world("kind: tenant_flood, at_s: 40, for_s: 40, tenant: globex, strength: 9"), 90.0)

    def counts(since_s: float, until_s: float) -> tuple[int, int]:
        rows = [row.tenant for row in found.requests if since_s <= row.start_s - STARTED_S < until_s]
        return rows.count("acme"), rows.count("globex")

    (acme, globex), (acme_then, globex_then) = counts(0, 40), counts(40, 80)
    assert globex_then > 5 * globex
    assert acme_then == pytest.approx(acme, rel=0.35)


def test_jittery_scheduling_spaces_tokens_unevenly() -> None:
    spread = _spread(struck("batch_jitter", "server: a", 3).between(35, 85))
    assert spread > 2 * _spread(clean().between(35, 85))


def _spread(requests: list[FinishedRequest]) -> float:
    return statistics.pstdev(gaps(requests)) / mean_gap(requests)


def test_worse_answers_come_slower() -> None:
    found = run(world("kind: quality_drop, at_s: 40, for_s: 60, server: a, strength: 0.4"), 110.0)

    def score(group: str, since_s: float, until_s: float) -> float:
        rows = [row.score or 0.0 for row in found.between(since_s, until_s) if row.prompt_group == group]
        return sum(rows) / len(rows)

    assert score("chat", 50, 100) == pytest.approx(0.6 * score("chat", 0, 40), rel=0.1)
    assert score("sum", 50, 100) == pytest.approx(score("sum", 0, 40), rel=0.1)
    assert mean_gap(found.between(50, 100)) > 1.5 * mean_gap(found.between(0, 40))
    assert top(truth(found.between(50, 100))) == "unexplained"


def test_an_idle_server_leaves_its_gpus_idle() -> None:
    node = world("kind: idle, at_s: 20, for_s: 60, server: a")
    found = run(node, 70.0)
    assert not [row for row in found.requests if 20 < row.start_s - STARTED_S < 80]
    moment = node.gpu(0, STARTED_S + 70)
    assert (moment.reasons, moment.clock_mhz) == (0x1, 345)


@pytest.mark.parametrize("kind", [kind for kind, row in KINDS.items() if row.target == "server"])
def test_a_fault_of_a_server_that_nobody_asks_anything_changes_nothing_and_breaks_nothing(kind: str) -> None:
    never = "{process: poisson, per_s: 1.0e-300}"
    assert run(world(f"kind: {kind}, at_s: 1, for_s: 20, server: a", arrivals=never), 25.0).requests == []
