from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.sim.boards import MODELS
from gpumon.sim.costs import costs
from gpumon.sim.scenario import ServerSpec
from gpumon.sim.state import FinishedRequest
from tests.sim.runs import STARTED_S, gaps, mean_gap, quantile, run, truth, world

BUSY = {
    "server": "kv_capacity_tokens: 12000, max_batch: 10, prefill_chunk_tokens: 256",
    "arrivals": "{process: bursty, per_s: 2.5}",
    "prompts": '{"300": 2, 1k: 2, 2k: 1}',
    "cached": "0.3",
    "outputs": "{mean: 150, spread: 0.8}",
}


def spec(**changes: object) -> ServerSpec:
    keys = {"name": "a", "model": "m", "gpus": [0, 1, 2, 3], "parameters_b": 70.0} | changes
    return ServerSpec.model_validate(keys)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["poisson", "constant", "bursty"]), st.integers(1, 12), st.integers(6_000, 40_000))
def test_whatever_the_load_every_request_is_whole(process: str, most: int, capacity: int) -> None:
    server = f"kv_capacity_tokens: {capacity}, max_batch: {most}, prefill_chunk_tokens: 256"
    found = run(world(**BUSY | {"server": server, "arrivals": f"{{process: {process}, per_s: 2.5}}"}), 60.0)
    assert found.requests
    for row in found.requests:
        _check(row)
    numbers = [row.number for row in found.requests]
    assert len(set(numbers)) == len(numbers)
    assert [row.end_s for row in found.requests] == sorted(row.end_s for row in found.requests)


def _check(row: FinishedRequest) -> None:
    assert row.outcome == "ok"
    assert len(row.token_s) >= 1
    assert all(later > sooner for sooner, later in pairwise(row.token_s))
    assert row.end_s == row.token_s[-1]
    assert row.queue_s >= 0
    assert row.prefill_s > 0
    assert row.start_s + row.queue_s + row.prefill_s == pytest.approx(row.token_s[0], abs=1e-6)
    assert 0 <= row.cached_tokens < row.prompt_tokens
    assert all(seconds > 0 and math.isfinite(seconds) for _, seconds in (*row.truth, *row.first_truth))
    assert sum(dict(row.truth).values()) <= 1.3 * (row.end_s - row.token_s[0]) + 0.05


def test_batch_and_cache_hold_no_more_than_they_can() -> None:
    node = world(**BUSY)
    states = [node.server_state(0, STARTED_S + tenth / 10) for tenth in range(900)]
    assert max(state.running for state in states) == 10
    assert max(state.waiting for state in states) > 3
    assert 0.9 < max(state.kv_usage for state in states) <= 1.0
    assert max(state.kv_live_tokens for state in states) <= 12_000
    for sooner, later in pairwise(states):
        assert later.generation_tokens >= sooner.generation_tokens
        assert later.prompt_tokens >= sooner.prompt_tokens
        assert later.preemptions >= sooner.preemptions
        assert later.prefix_hit_tokens - sooner.prefix_hit_tokens <= later.prompt_tokens - sooner.prompt_tokens


def test_tokens_told_by_the_server_are_those_of_the_requests() -> None:
    node = world()
    parts, made = [], []
    for second in (50, 75, 95):
        parts.append(run(node, second))
        made.append(node.server_state(0, STARTED_S + second).generation_tokens)
    # The last requests that had tokens in between have ended by the third reading. A reading may be a step ahead.
    assert made[1] - made[0] == pytest.approx(sum(part.tokens(50, 75) for part in parts), abs=20)


def test_a_request_that_never_fits_fails_at_once() -> None:
    found = run(world(**BUSY | {"prompts": "{4k: 1}", "outputs": "{mean: 10}"}, faults="{kind: kv_shrink, at_s: 20, "
                      "for_s: 30, server: a, strength: 0.2}"), 60.0)  # fmt: skip
    failed = [row for row in found.requests if row.outcome == "error"]
    assert failed
    assert all(not row.token_s and row.score is None and not row.truth for row in failed)
    assert all(20 <= row.end_s - STARTED_S < 51 for row in failed)
    assert any(row.outcome == "ok" and row.start_s - STARTED_S > 51 for row in found.requests)


def test_clients_that_wait_too_long_give_up() -> None:
    found = run(world(**BUSY | {"arrivals": "{process: constant, per_s: 20}"}), 180.0)
    given_up = [row for row in found.requests if row.outcome == "aborted"]
    assert given_up
    assert all(row.queue_s > 120 and not row.token_s for row in given_up)


def test_the_queue_is_bounded() -> None:
    node = world(server="max_batch: 1, kv_capacity_tokens: 12000", arrivals="{process: constant, per_s: 300}")
    found = run(node, 12.0)
    assert node.server_state(0, STARTED_S + 12).waiting <= 4096
    assert any(row.outcome == "error" and row.end_s == row.start_s for row in found.requests)


def test_long_prompts_are_cut_into_chunks_between_which_others_get_their_tokens() -> None:
    keys = {"prompts": "{1k: 5, 32k: 1}", "cached": "0"}
    fine, coarse = (
        run(world(**keys, server=f"kv_capacity_tokens: 600000, prefill_chunk_tokens: {chunk}"), 60.0)
        for chunk in (256, 8192)
    )
    assert quantile(gaps(fine.requests), 0.999) < 0.4 * quantile(gaps(coarse.requests), 0.999)


def test_what_the_prefix_cache_holds_is_not_computed_again() -> None:
    keys = {"prompts": "{8k: 1}"}
    cold, warm = ([row.prefill_s for row in run(world(**keys, cached=share), 40.0).requests] for share in ("0", "0.9"))
    assert quantile(warm, 0.5) < 0.3 * quantile(cold, 0.5)


def test_prefill_grows_faster_than_the_prompt() -> None:
    def prefill_s(length: str) -> float:
        keys = {"prompts": f"{{{length}: 1}}", "arrivals": "{process: constant, per_s: 0.05}", "cached": "0"}
        return mean([row.prefill_s for row in run(world(**keys), 150.0).requests])

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    assert 2.2 < prefill_s("128k") / prefill_s("64k") < 4


def test_a_decode_step_takes_as_long_as_reading_weights_and_cache() -> None:
    model = MODELS["h200"]
    cost = costs(spec(), model)
    read_s = 140e9 / (4 * 0.85 * model.memory_bytes_s)
    assert cost.weights_s[1] == pytest.approx(read_s)
    assert cost.all_weights_s == pytest.approx(read_s)
    assert cost.context_s == pytest.approx(327_680 / (4 * 0.85 * model.memory_bytes_s))
    gap_s = mean_gap(run(world(arrivals="{process: constant, per_s: 0.3}"), 60.0).requests)
    assert gap_s == pytest.approx(read_s + cost.reduce_s + cost.host_s + 0.0015, rel=0.03)


def test_one_gpu_has_no_collectives_and_reads_all_itself() -> None:
    model = MODELS["h200"]
    alone = costs(spec(gpus=[0], parameters_b=8.0), model)
    shared = costs(spec(gpus=[0, 1], parameters_b=8.0), model)
    assert alone.reduce_s == alone.reduce_token_s == alone.reduce_token_bytes == 0.0
    assert alone.weights_s[1] == pytest.approx(2 * shared.weights_s[1])


def test_a_mixture_of_experts_reads_more_of_its_weights_the_larger_the_batch() -> None:
    cost = costs(spec(experts=64, active_parameters_b=7.0), MODELS["h200"])
    assert cost.weights_s[1] == pytest.approx(0.1 * cost.all_weights_s)
    assert all(later > sooner for sooner, later in pairwise(cost.weights_s[1:]))
    assert 0.9 * cost.all_weights_s < cost.weights_s[40] < cost.all_weights_s


def test_passes_of_a_server_without_graphs_are_eager_and_slower() -> None:
    server = "kv_capacity_tokens: 600000, host_overhead_s: 0.003"
    with_graphs, without = (run(world(server=f"{server}, cuda_graphs: {word}"), 40.0) for word in ("true", "false"))
    assert mean_gap(without.requests) > mean_gap(with_graphs.requests) + 0.003
    state = without.world.server_state(0, STARTED_S + 40)
    assert state.graph_passes == 0
    assert state.eager_passes > 1000


def test_collectives_are_told_step_by_step_and_all_ranks_leave_together() -> None:
    found = run(world(), 20.0)
    assert len(found.collectives) > 1000
    first = found.collectives[0].sequence
    assert [step.sequence for step in found.collectives] == list(range(first, first + len(found.collectives)))
    for sooner, later in pairwise(found.collectives):
        assert len(later.start_s) == 4
        assert sooner.end_s < min(later.start_s)
        assert max(later.start_s) < later.end_s
        assert later.size_bytes > 0


@pytest.mark.parametrize(
    "keys",
    [
        {"server": "collectives: false"},
        {"served": "[0]", "server": "bytes_per_parameter: 1, kv_capacity_tokens: 100000"},
    ],
)
def test_other_servers_tell_of_no_collectives(keys: dict[str, str]) -> None:
    found = run(world(**keys), 10.0)
    assert found.requests
    assert not found.collectives


@pytest.mark.parametrize("process", ["poisson", "constant", "bursty"])
def test_arrivals_come_at_their_rate(process: str) -> None:
    found = run(world(arrivals=f"{{process: {process}, per_s: 5}}", outputs="{mean: 5}"), 300.0)
    starts = sorted(row.start_s for row in found.requests)
    assert len(starts) / 300 == pytest.approx(5, rel=0.15)
    spaces = [later - sooner for sooner, later in pairwise(starts)]
    mean = sum(spaces) / len(spaces)
    spread = math.sqrt(sum((space - mean) ** 2 for space in spaces) / len(spaces)) / mean
    low, high = {"poisson": (0.85, 1.15), "constant": (0.0, 0.05), "bursty": (1.2, 3.0)}[process]
    assert low <= spread <= high


def test_a_wave_swings_the_arrivals() -> None:
    found = run(world(arrivals="{per_s: 4, wave: {amplitude: 0.8, period_s: 100}}", outputs="{mean: 5}"), 200.0)
    counts = [0] * 4
    for row in found.requests:
        counts[int((row.start_s - STARTED_S) % 100 // 25)] += row.start_s >= STARTED_S
    assert counts[0] + counts[1] > 2 * (counts[2] + counts[3])


def test_requests_are_what_the_load_says() -> None:
    node = world(
        prompts="{1k: 1, 4k: 1}",
        load="tenants: {acme: 3, globex: 1}, evaluations: {chat: 0.8}, "
        "parameters: {max_tokens: [50], temperature: [0.0, 0.5]}",
        outputs="{mean: 100, spread: 1.0}",
    )
    rows = run(node, 100.0).requests
    assert all(1024 <= row.prompt_tokens <= 1280 or 4096 <= row.prompt_tokens <= 5120 for row in rows)
    assert all(len(row.token_s) <= 50 for row in rows)
    assert {dict(row.parameters)["temperature"] for row in rows} == {0.0, 0.5}
    assert 0.6 < sum(row.tenant == "acme" for row in rows) / len(rows) < 0.9
    assert sum(row.score or 0 for row in rows) / len(rows) == pytest.approx(0.8, abs=0.02)
    assert {row.prompt_group for row in rows} == {"chat"}


def test_a_fault_that_does_not_touch_the_load_leaves_the_requests_alone() -> None:
    def wants(*faults: str) -> list[tuple[int, float, int, str, int]]:
        keys = {"arrivals": "{process: poisson, per_s: 1.5}"}
        rows = sorted(run(world(*faults, **keys), 60.0).requests, key=lambda row: row.number)
        return [
            (row.number, row.start_s, row.prompt_tokens, row.tenant, len(row.token_s))
            for row in rows
            if row.start_s < STARTED_S + 40
        ]

    assert wants() == wants("kind: gpu_contention, at_s: 10, for_s: 40, gpu: 1, strength: 0.3")


def test_a_bursty_but_healthy_load_is_nobodys_fault() -> None:
    keys = {"arrivals": "{process: bursty, per_s: 1.5}", "prompts": "{1k: 1}"}
    causes = truth(run(world(**keys), 120.0).requests)
    assert set(causes) <= {"prefill_interference"}
