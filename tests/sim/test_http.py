"""The simulated servers' pages: as prometheus_client's own parser reads them, and as gpumon's source does."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpumon import catalogue
from gpumon.host.http import Http, HttpError
from gpumon.model import Metric, Reason, Sample
from gpumon.sim.http import SimHttp, server_urls
from gpumon.sim.server_pages import Page
from gpumon.sim.state import ServerState
from gpumon.sources.servers import ServerSource
from tests.sim.nodes import DENSE, clock_at, node

STATE = ServerState(
    kind="vllm",
    model="llama-3.1-8b",
    running=7,
    waiting=3,
    kv_usage=0.625,
    kv_capacity_tokens=200_000,
    kv_live_tokens=120_000,
    preemptions=2,
    prefix_query_tokens=9_000,
    prefix_hit_tokens=3_000,
    prompt_tokens=8_000,
    generation_tokens=5_000_000,
    graph_passes=900,
    eager_passes=10,
    expert_balance=None,
    allocator_reserved_bytes=80 << 30,
    allocator_allocated_bytes=70 << 30,
)
LIMIT = 1 << 20


def value(page: bytes, name: str, **labels: str) -> float:
    """The one sample of that name with those labels among its own."""
    found = [
        sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    (one,) = found
    return float(one)


def read(source: ServerSource, at_s: float) -> dict[tuple[str, ...], float]:
    """Samples by stem and labels; nothing may be amiss."""
    found = {}
    for item in source.read(at_s):
        assert isinstance(item, Sample), item
        assert isinstance(item.value, float)
        found[(item.metric.stem, *item.labels)] = item.value
    return found


def test_every_server_has_a_page_of_its_own() -> None:
    world = node()
    assert server_urls(world) == ("http://127.0.0.1:8000/metrics", "http://127.0.0.1:8001/metrics")
    http: Http = SimHttp(world, clock_at(1.0))
    pages = [http.get(url, timeout_s=1.0, limit=LIMIT) for url in server_urls(world)]
    assert b'vllm:num_requests_running{engine="0",model_name="llama-3.1-8b"}' in pages[0]
    assert b"sglang:num_running_reqs{" in pages[1]
    assert b'model_name="qwen3-30b-a3b"' in pages[1]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_page_is_the_text_format_with_each_family_once(kind: str) -> None:
    text = Page().render(STATE._replace(kind=kind, expert_balance=0.5)).decode()
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared)) > 25
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)
    assert all(math.isfinite(sample.value) and sample.value >= 0 for sample in samples)
    for family in families:
        if family.type == "histogram":
            buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
            (count,) = [sample.value for sample in family.samples if sample.name.endswith("_count")]
            assert buckets == sorted(buckets)
            assert buckets[-1] == count


def test_vllm_s_page_says_what_the_state_is() -> None:
    page = Page().render(STATE)
    assert value(page, "vllm:num_requests_running") == 7
    assert value(page, "vllm:num_requests_waiting") == 3
    assert value(page, "vllm:kv_cache_usage_perc") == 0.625
    assert value(page, "vllm:num_preemptions_total") == 2
    assert value(page, "vllm:prefix_cache_queries_total") == 9_000
    assert value(page, "vllm:prefix_cache_hits_total") == 3_000
    assert value(page, "vllm:prompt_tokens_total") == 8_000
    assert value(page, "vllm:generation_tokens_total") == 5_000_000
    assert value(page, "vllm:cache_config_info", block_size="16", num_gpu_blocks="12500") == 1
    assert value(page, "pytorch_memory_reserved_bytes") == 80 << 30
    assert value(page, "pytorch_memory_allocated_bytes") == 70 << 30


def test_sglang_s_page_says_what_the_state_is() -> None:
    page = Page().render(STATE._replace(kind="sglang"))
    assert value(page, "sglang:num_running_reqs") == 7
    assert value(page, "sglang:num_queue_reqs") == 3
    assert value(page, "sglang:token_usage") == 0.625
    assert value(page, "sglang:max_total_num_tokens") == 200_000
    assert value(page, "sglang:kv_used_tokens") == 120_000
    assert value(page, "sglang:num_retracted_requests_total") == 2
    assert value(page, "sglang:cuda_graph_passes_total", mode="decode_cuda_graph") == 900
    assert value(page, "sglang:cuda_graph_passes_total", mode="decode_none") == 10
    assert b"eplb_balancedness" not in page


def test_the_balance_of_experts_is_the_growth_of_a_summary() -> None:
    page = Page()
    state = STATE._replace(kind="sglang", expert_balance=0.9)
    before = page.render(state)
    after = page.render(state._replace(graph_passes=1400, expert_balance=0.4))
    sums, counts = (
        value(after, f"sglang:eplb_balancedness_{part}") - value(before, f"sglang:eplb_balancedness_{part}")
        for part in ("sum", "count")
    )
    assert sums / counts == pytest.approx(0.4)
    anew = page.render(state._replace(graph_passes=10, eager_passes=0))
    assert value(anew, "sglang:eplb_balancedness_sum") == pytest.approx(9.0)


def test_the_capacity_may_change_and_odd_names_are_escaped() -> None:
    page = Page()
    page.render(STATE)
    after = page.render(STATE._replace(kv_capacity_tokens=64_000, model='a "b" 100% \\ c'))
    assert value(after, "vllm:cache_config_info", num_gpu_blocks="4000", model_name='a "b" 100% \\ c') == 1


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_gpumon_s_own_source_reads_everything_off_the_page(kind: str) -> None:
    class Pages:
        def __init__(self) -> None:
            self.page = Page()
            self.state = STATE._replace(kind=kind, expert_balance=0.5)

        def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
            return self.page.render(self.state)

    pages = Pages()
    source = ServerSource(pages, ["http://127.0.0.1:8000/metrics"], timeout_s=1.0)
    read(source, 1.0)
    pages.state = pages.state._replace(graph_passes=1900)
    found = read(source, 3.0)
    labels = (kind, "llama-3.1-8b", "127.0.0.1:8000")
    wanted: dict[tuple[Metric, str], float] = {
        (catalogue.SERVER_RUNNING, ""): 7,
        (catalogue.SERVER_WAITING, ""): 3,
        (catalogue.SERVER_KV_USAGE, ""): 0.625,
        (catalogue.SERVER_KV_CAPACITY, ""): 200_000,
        (catalogue.SERVER_KV_LIVE, ""): 120_000,
        (catalogue.SERVER_EXPERT_BALANCE, ""): 0.5,
        (catalogue.SERVER_ALLOCATOR, "reserved"): 80 << 30,
        (catalogue.SERVER_ALLOCATOR, "allocated"): 70 << 30,
        (catalogue.SERVER_PREFIX_HITS, ""): 3_000,
        (catalogue.SERVER_TOKENS, "generation"): 5_000_000,
        (catalogue.SERVER_GRAPH_PASSES, "eager"): 10,
        (catalogue.SERVER_GRAPH_PASSES, "graph"): 1900,
        (catalogue.SERVER_PREEMPTIONS, ""): 2,
    }
    for (metric, tail), expected in wanted.items():
        assert found[(metric.stem, *labels, *([tail] if tail else []))] == pytest.approx(expected), metric.name


def test_counters_of_a_living_server_never_fall() -> None:
    world, clock = node(), clock_at(0.0)
    source = ServerSource(SimHttp(world, clock), server_urls(world), timeout_s=1.0)
    before: dict[tuple[str, ...], float] = {}
    for _ in range(10):
        clock.step(2.0)
        after = read(source, clock.now_s())
        for key, number in after.items():
            if key[0] in {metric.stem for metric in catalogue.GROUPS["servers"] if metric.name.endswith("_total")}:
                assert number >= before.get(key, 0.0)
        before = after
    for server in ("vllm", "sglang"):
        (made,) = [
            number for key, number in before.items() if key[:2] == ("server_tokens", server) and key[-1] == "generation"
        ]
        assert made > 0


def test_a_server_that_is_down_refuses_and_comes_back() -> None:
    world = node(f"kind: memory_pressure, at_s: 5, for_s: 20, server: {DENSE}, strength: 1.0")
    clock = clock_at(1.0)
    http = SimHttp(world, clock)
    url = server_urls(world)[0]
    told: dict[bool, set[Reason | None]] = {True: set(), False: set()}
    for _ in range(40):
        clock.step(1.0)
        reason = None
        try:
            http.get(url, timeout_s=1.0, limit=LIMIT)
        except HttpError as error:
            reason = error.reason
        told[any(task.server == DENSE for task in world.tasks(clock.now_s()))].add(reason)
    assert told == {True: {None}, False: {Reason.UNAVAILABLE}}


def test_a_stopped_server_does_not_answer_in_time() -> None:
    world = node(f"kind: process_stopped, at_s: 2, for_s: 20, server: {DENSE}, strength: 1.0")
    http = SimHttp(world, clock_at(5.0))
    with pytest.raises(HttpError) as error:
        http.get(server_urls(world)[0], timeout_s=1.5, limit=LIMIT)
    assert error.value.reason is Reason.TIMEOUT
    assert http.get(server_urls(world)[1], timeout_s=1.5, limit=LIMIT)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:8002/metrics", Reason.UNAVAILABLE),
        ("http://127.0.0.1:7999/metrics", Reason.UNAVAILABLE),
        ("http://127.0.0.1/metrics", Reason.UNAVAILABLE),
        ("http://10.0.0.1:8000/metrics", Reason.UNAVAILABLE),
        ("https://127.0.0.1:8000/metrics", Reason.UNAVAILABLE),
        ("http://127.0.0.1:8000/", Reason.UNAVAILABLE),
        ("http://127.0.0.1:99999/metrics", Reason.MALFORMED),
        ("http://[::1/metrics", Reason.MALFORMED),
        ("", Reason.UNAVAILABLE),
    ],
)
def test_other_addresses_have_no_page(url: str, reason: Reason) -> None:
    with pytest.raises(HttpError) as error:
        SimHttp(node(), clock_at(1.0)).get(url, timeout_s=1.0, limit=LIMIT)
    assert error.value.reason is reason


def test_a_page_over_the_limit_is_malformed() -> None:
    world = node()
    with pytest.raises(HttpError) as error:
        SimHttp(world, clock_at(1.0)).get(server_urls(world)[0], timeout_s=1.0, limit=100)
    assert error.value.reason is Reason.MALFORMED
