"""The source of servers' metrics pages: what each server's page becomes, and targets of every manner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.host.http import HttpError
from gpumon.model import Item, Miss, Reason, Rejection, Sample, apart
from gpumon.sources.servers import MODELS, PAGE_BYTES, PARTS, TIMEOUTS, ServerSource
from gpumon.store import Store

PAGES = Path(__file__).parent.parent / "fixtures" / "servers"
URL = "http://127.0.0.1:8000/metrics"
SLOW = HttpError(Reason.TIMEOUT, "no page within 1 s")
GONE = HttpError(Reason.UNAVAILABLE, "Connection refused")


class FakeHttp:
    """``host.http.Http`` over a dict from address to page or error. ``asked`` lists every address asked for."""

    def __init__(self, pages: Mapping[str, bytes | str | HttpError]) -> None:
        self.pages = dict(pages)
        self.asked: list[str] = []

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        self.asked.append(url)
        assert (timeout_s, limit) == (1.0, PAGE_BYTES)
        page = self.pages.get(url, GONE)
        if isinstance(page, HttpError):
            raise page
        return page.encode() if isinstance(page, str) else page


def page(name: str) -> bytes:
    return (PAGES / f"{name}.prom").read_bytes()


def source(*pages: bytes | str | HttpError) -> tuple[ServerSource, FakeHttp]:
    """One whose targets are on ports 8000 and up."""
    urls = [f"http://127.0.0.1:{8000 + index}/metrics" for index in range(len(pages))]
    http = FakeHttp(dict(zip(urls, pages, strict=True)))
    return ServerSource(http, urls, timeout_s=1.0), http


def told(items: Iterable[Item]) -> dict[tuple[str, ...], float]:
    """Value by stem without ``server_`` and labels, the endpoint left out, of a page without a fault."""
    samples, misses, rejections = apart(items)
    assert (misses, rejections) == ([], [])
    return values(samples)


def values(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for metric, labels, value in samples:
        assert len(labels) == len(metric.labels)
        kept = [label for name, label in zip(metric.labels, labels, strict=True) if name != "endpoint"]
        key = (metric.stem.removeprefix("server_"), *kept)
        assert key not in found
        assert isinstance(value, float)
        found[key] = value
    return found


def once(name: str) -> dict[tuple[str, ...], float]:
    return told(source(page(name))[0].read(0.0))


LLAMA = ("vllm", "meta-llama/Llama-3.3-70B-Instruct")
DEEPSEEK = ("sglang", "deepseek-ai/DeepSeek-V3")


def test_a_page_of_vllm() -> None:
    assert once("vllm") == {
        ("up", "vllm"): 1.0,
        ("requests_running", *LLAMA): 37.0,
        ("requests_waiting", *LLAMA): 4.0,
        ("kv_cache_usage", *LLAMA): 0.6314553990610329,
        ("kv_cache_capacity_tokens", *LLAMA): 852_000.0,
        ("preemptions", *LLAMA): 12.0,
        ("prefix_cache_hit_tokens", *LLAMA): 4_096_000.0,
        ("prefix_cache_query_tokens", *LLAMA): 16_384_000.0,
        ("tokens", *LLAMA, "prompt"): 12_288_000.0,
        ("tokens", *LLAMA, "generation"): 2_519_040.0,
    }


def test_a_page_of_an_old_vllm_by_its_old_names() -> None:
    mistral = ("vllm", "mistral")
    assert once("vllm-old") == {
        ("up", "vllm"): 1.0,
        ("requests_running", *mistral): 2.0,
        ("requests_waiting", *mistral): 0.0,
        ("kv_cache_usage", *mistral): 0.25,
        ("kv_cache_capacity_tokens", *mistral): 7431.0 * 16,
        ("preemptions", *mistral): 0.0,
        ("prefix_cache_hit_tokens", *mistral): 1024.0,
        ("prefix_cache_query_tokens", *mistral): 51_200.0,
        ("tokens", *mistral, "prompt"): 51_200.0,
        ("tokens", *mistral, "generation"): 9000.0,
    }


def test_engines_add_up_what_api_servers_repeat_does_not_and_shims_may_add() -> None:
    m = ("vllm", "m")
    assert once("vllm-engines") == {
        ("up", "vllm"): 1.0,
        ("requests_running", *m): 24.0,
        ("requests_waiting", *m): 3.0,
        ("kv_cache_usage", *m): pytest.approx(0.6),
        ("kv_cache_capacity_tokens", *m): 32_000.0,
        ("tokens", *m, "generation"): 3000.0,
        ("kv_cache_live_tokens", *m): 12_000.0,
        ("allocator", *m, "reserved"): 7e10,
        ("allocator", *m, "allocated"): 6.5e10,
    }


def test_a_page_of_sglang() -> None:
    assert once("sglang") == {
        ("up", "sglang"): 1.0,
        ("requests_running", *DEEPSEEK): 24.0,
        ("requests_waiting", *DEEPSEEK): 3.0,
        ("kv_cache_usage", *DEEPSEEK): 0.73,
        ("kv_cache_capacity_tokens", *DEEPSEEK): 500_000.0,
        ("kv_cache_live_tokens", *DEEPSEEK): 310_000.0,
        ("preemptions", *DEEPSEEK): 5.0,
        ("prefix_cache_hit_tokens", *DEEPSEEK): 4000.0,
        ("prefix_cache_query_tokens", *DEEPSEEK): 10_000.0,
        ("tokens", *DEEPSEEK, "prompt"): 10_100.0,
        ("tokens", *DEEPSEEK, "generation"): 90_500.0,
        ("decode_passes", *DEEPSEEK, "graph"): 7000.0,
        ("decode_passes", *DEEPSEEK, "eager"): 70.0,
    }


def test_the_balance_of_experts_is_the_mean_since_the_page_before() -> None:
    text = page("sglang").decode()
    servers, http = source(text)
    balance = ("expert_balance", *DEEPSEEK)
    assert balance not in told(servers.read(0.0))
    # 100 decode passes more, with 40 between them: 0.4, whatever it was over the hours before.
    http.pages[URL] = text.replace("} 7000.0", "} 7100.0").replace("} 5600.0", "} 5640.0")
    assert told(servers.read(2.0))[balance] == pytest.approx(0.4)
    assert balance not in told(servers.read(4.0)), "nothing was observed since"


def test_ranks_repeat_what_data_parallel_ranks_add() -> None:
    qwen = ("sglang", "qwen")
    assert once("sglang-ranks") == {
        ("up", "sglang"): 1.0,
        ("requests_running", *qwen): 10.0,
        ("kv_cache_usage", *qwen): pytest.approx(0.3),
        ("prefix_cache_hit_tokens", *qwen): 42.0,
        ("decode_passes", *qwen, "eager"): 110.0,
    }


def test_a_page_of_tgi() -> None:
    assert once("tgi") == {
        ("up", "tgi"): 1.0,
        ("requests_running", "tgi", ""): 8.0,
        ("requests_waiting", "tgi", ""): 2.0,
        ("kv_cache_usage", "tgi", ""): 0.25,
        ("kv_cache_capacity_tokens", "tgi", ""): 48_180.0,
        ("tokens", "tgi", "", "prompt"): 512_000.0,
        ("tokens", "tgi", "", "generation"): 90_211.0,
    }


def test_a_page_of_triton_with_tensorrt_llm() -> None:
    model = ("triton", "tensorrt_llm")
    assert once("triton") == {
        ("up", "triton"): 1.0,
        ("requests_running", *model): 4.0,
        ("requests_waiting", *model): 3.0,
        ("kv_cache_usage", *model): 0.4875,
        ("kv_cache_capacity_tokens", *model): 6240.0 * 64,
    }
    assert once("triton-old")["requests_waiting", *model] == 3.0


def test_a_page_of_trtllm_serve() -> None:
    model = ("trtllm", "llama-3.1-8b")
    assert once("trtllm") == {
        ("up", "trtllm"): 1.0,
        ("requests_running", *model): 3.0,
        ("requests_waiting", *model): 1.0,
        ("kv_cache_usage", *model): 0.62,
        ("kv_cache_capacity_tokens", *model): 96_000.0,
        ("prefix_cache_hit_tokens", *model): 200.0 * 32,
        ("prefix_cache_query_tokens", *model): 1000.0 * 32,
        ("tokens", *model, "generation"): 12_345.0,
    }


def test_a_page_of_llamacpp_whose_router_takes_the_model_from_the_address() -> None:
    urls = [f"http://localhost:8080/metrics?model={model}" for model in ("a", "b%2Fc")]
    servers = ServerSource(FakeHttp(dict.fromkeys(urls, page("llamacpp"))), urls, timeout_s=1.0)
    samples, misses, _ = apart(servers.read(0.0))
    assert misses == []
    running = [labels for metric, labels, value in samples if metric is catalogue.SERVER_RUNNING and value == 2.0]
    assert running == [("llamacpp", "a", "localhost:8080"), ("llamacpp", "b/c", "localhost:8080")]


def test_a_page_of_dynamos_front_end() -> None:
    model = ("dynamo", "Kimi-K2.5")
    assert once("dynamo") == {
        ("up", "dynamo"): 1.0,
        ("requests_running", *model): 7.0,
        ("requests_waiting", *model): 5.0,
        ("prefix_cache_query_tokens", *model): 160_000.0,
        ("tokens", *model, "prompt"): 160_000.0,
        ("tokens", *model, "generation"): 8200.0,
    }


def test_a_page_of_dynamos_worker_by_its_new_and_its_old_names() -> None:
    assert once("dynamo-worker") == {("up", "dynamo"): 1.0, ("kv_cache_usage", "dynamo", "Kimi-K2.5"): 0.5}
    assert once("dynamo-worker-old") == {("up", "dynamo"): 1.0, ("kv_cache_usage", "dynamo", ""): 0.25}


def test_the_share_of_a_cache_whose_size_is_not_known_yet_is_not_told() -> None:
    text = "tgi_queue_size 0\ntgi_batch_current_max_tokens 0\ntgi_batch_max_total_tokens 0\n"
    assert ("kv_cache_usage", "tgi", "") not in told(source(text)[0].read(0.0))


def test_blocks_that_were_found_count_as_tokens_on_over_a_restart() -> None:
    text = "trtllm_kv_cache_reused_blocks_total {}\ntrtllm_kv_cache_tokens_per_block 32\n"
    servers, http = source(text.format(10))
    assert told(servers.read(0.0))["prefix_cache_hit_tokens", "trtllm", ""] == 320.0
    http.pages[URL] = text.format(2)
    assert told(servers.read(2.0))["prefix_cache_hit_tokens", "trtllm", ""] == 384.0


def test_a_page_that_passes_an_engines_families_on_is_the_engines() -> None:
    servers, _ = source(page("dynamo") + page("vllm-old"))
    assert {labels[0] for _, labels, _ in apart(servers.read(0.0))[0]} == {"vllm"}


def test_every_family_of_the_catalogue_is_told_by_some_page_and_taken_by_the_store() -> None:
    names = [path.stem for path in sorted(PAGES.glob("*.prom"))]
    servers, http = source(*map(page, names))
    samples, _, _ = apart(servers.read(0.0))
    # The balance is told from the second page on.
    grown = page("sglang").replace(b"} 7000.0", b"} 7001.0").replace(b"} 5600.0", b"} 5600.5")
    http.pages[f"http://127.0.0.1:{8000 + names.index('sglang')}/metrics"] = grown
    samples, misses, rejections = apart(servers.read(2.0))
    assert (misses, rejections) == ([], [])
    assert {sample.metric for sample in samples} == set(catalogue.GROUPS["servers"])
    store = Store()
    store.put("servers", 2.0, samples, ttl_s=10.0)
    assert list(store.view(2.0)) == samples


def test_one_target_that_fails_is_a_miss_and_its_neighbours_go_on() -> None:
    servers, _ = source(page("vllm"), GONE, page("tgi"))
    samples, misses, _ = apart(servers.read(0.0))
    assert misses == [Miss("server 127.0.0.1:8001", Reason.UNAVAILABLE, "Connection refused")]
    up = [(labels, value) for metric, labels, value in samples if metric is catalogue.SERVER_UP]
    assert up == [
        (("vllm", "127.0.0.1:8000"), 1.0),
        (("unknown", "127.0.0.1:8001"), 0.0),
        (("tgi", "127.0.0.1:8002"), 1.0),
    ]
    assert {labels[-1] for metric, labels, _ in samples if metric is catalogue.SERVER_RUNNING} == {
        "127.0.0.1:8000",
        "127.0.0.1:8002",
    }


def test_a_target_that_goes_away_is_down_under_the_name_it_had_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gpumon.sources.servers")
    servers, http = source(page("tgi"))
    told(servers.read(0.0))
    http.pages[URL] = GONE
    for at_s in (2.0, 4.0):
        samples, misses, _ = apart(servers.read(at_s))
        assert values(samples) == {("up", "tgi"): 0.0}
        assert len(misses) == 1
    http.pages[URL] = page("tgi")
    assert told(servers.read(6.0))["up", "tgi"] == 1.0
    assert [(record.levelname, "state=down" in record.message) for record in caplog.records] == [
        ("INFO", False),
        ("WARNING", True),
        ("INFO", False),
    ]


@pytest.mark.parametrize("text", [b"", b"<html>not here</html>", b"process_cpu_seconds_total 1\n", b"\xff\x00" * 100])
def test_a_page_of_no_known_server_is_a_miss(text: bytes) -> None:
    samples, misses, rejections = apart(source(text)[0].read(0.0))
    assert values(samples) == {("up", "unknown"): 0.0}
    assert misses == [Miss("server 127.0.0.1:8000", Reason.UNAVAILABLE, "no metrics of a known server on the page")]
    assert rejections == []


def test_a_server_that_has_not_counted_yet_is_up() -> None:
    text = "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n"
    assert told(source(text)[0].read(0.0))["requests_running", "sglang", ""] == 0.0


def test_counters_go_on_over_restarts_of_one_engine_of_two() -> None:
    text = 'vllm:generation_tokens_total{{engine="0"}} {}\nvllm:generation_tokens_total{{engine="1"}} {}\n'
    servers, http = source(text.format(100, 50))
    key = ("tokens", "vllm", "", "generation")
    assert told(servers.read(0.0))[key] == 150.0
    for raw, total in (((110, 60), 170.0), ((5, 70), 185.0), ((25, 70), 205.0), ((0, 0), 205.0)):
        http.pages[URL] = text.format(*raw)
        assert told(servers.read(2.0))[key] == total


def test_a_counter_survives_that_its_page_is_away_and_that_a_part_of_it_is() -> None:
    one, two = 'vllm:num_preemptions_total{engine="0"} 7\n', 'vllm:num_preemptions_total{engine="1"} 3\n'
    servers, http = source(one + two)
    key = ("preemptions", "vllm", "")
    assert told(servers.read(0.0))[key] == 10.0
    http.pages[URL] = GONE
    apart(servers.read(2.0))
    http.pages[URL] = one
    assert told(servers.read(4.0))[key] == 10.0
    http.pages[URL] = one + two.replace("3", "4")
    assert told(servers.read(6.0))[key] == 11.0


def test_parts_of_a_counter_that_come_and_go_take_bounded_room_and_are_not_lost() -> None:
    servers, http = source("")
    key = ("preemptions", "vllm", "")
    for generation in range(3):
        http.pages[URL] = "".join(
            f'vllm:num_preemptions_total{{engine="{generation * PARTS + part}"}} 1\n' for part in range(PARTS)
        )
        assert told(servers.read(float(generation)))[key] == PARTS * (generation + 1)


@given(
    st.lists(
        st.dictionaries(st.integers(0, 4), st.floats(0, 1e9) | st.sampled_from([-5.0, 1e30]), max_size=5), max_size=12
    )
)
def test_a_counter_never_falls_whatever_the_pages_say(readings: list[dict[int, float]]) -> None:
    servers, http = source("")
    before = 0.0
    for reading in readings:
        http.pages[URL] = "vllm:num_requests_running 1\n" + "".join(
            f'vllm:num_preemptions_total{{engine="{engine}"}} {value!r}\n' for engine, value in reading.items()
        )
        samples, misses, _ = apart(servers.read(0.0))
        assert misses == []
        total = values(samples).get(("preemptions", "vllm", ""), before)
        assert total >= before
        before = total


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("vllm:kv_cache_usage_perc 1.5", "server_kv_cache_usage"),
        ("vllm:kv_cache_usage_perc -0.1", "server_kv_cache_usage"),
        ("vllm:num_requests_waiting -1", "server_requests_waiting"),
        ("vllm:num_requests_waiting 1e300", "server_requests_waiting"),
        ("vllm:num_preemptions_total -1", "server_preemptions"),
    ],
)
def test_a_value_that_cannot_be_is_rejected_and_the_others_are_not(line: str, field: str) -> None:
    samples, misses, rejections = apart(source(f"vllm:num_requests_running 3\n{line}\n")[0].read(0.0))
    assert misses == []
    assert rejections == [Rejection(field, Reason.OUT_OF_RANGE)]
    found = values(samples)
    assert found["requests_running", "vllm", ""] == 3.0
    assert found.get((field.removeprefix("server_"), "vllm", ""), 0.0) == 0.0


def test_garbled_lines_and_values_that_are_none_are_counted() -> None:
    text = "vllm:num_requests_running 3\nvllm:num_requests_waiting x\nvllm:kv_cache_usage_perc NaN\n"
    samples, _, rejections = apart(source(text)[0].read(0.0))
    assert set(rejections) == {
        Rejection("server_line", Reason.MALFORMED),
        Rejection("server_value", Reason.OUT_OF_RANGE),
    }
    assert values(samples) == {("up", "vllm"): 1.0, ("requests_running", "vllm", ""): 3.0}


def test_a_page_of_garbage_is_counted_within_reason() -> None:
    _, _, rejections = apart(source("vllm:num_requests_running x\n" * 100_000 + "tgi_queue_size 1\n")[0].read(0.0))
    assert 0 < len(rejections) <= 200


def test_a_capacity_that_vllm_does_not_know_is_none() -> None:
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\nvllm:num_requests_running 0\n'
    assert ("kv_cache_capacity_tokens", "vllm", "") not in told(source(text)[0].read(0.0))


def test_models_past_the_most_are_left_out_and_counted() -> None:
    text = "".join(f'vllm:num_requests_running{{model_name="m{index}"}} 1\n' for index in range(MODELS + 2))
    samples, _, rejections = apart(source(text)[0].read(0.0))
    names = [labels[1] for metric, labels, _ in samples if metric is catalogue.SERVER_RUNNING]
    assert names == [f"m{index}" for index in range(MODELS)]
    assert rejections == [Rejection("server_model", Reason.OUT_OF_RANGE)] * 2


def test_models_that_come_and_go_for_days_take_bounded_room() -> None:
    servers, http = source("")
    for day in range(100):
        http.pages[URL] = f'vllm:num_preemptions_total{{model_name="m{day}"}} {day}\n'
        assert told(servers.read(float(day)))["preemptions", "vllm", f"m{day}"] == day
    (target,) = servers._targets
    assert len(target._totals) <= 2 * MODELS + 1


def test_a_long_name_of_a_model_is_cut_and_an_odd_one_is_unescaped() -> None:
    text = 'vllm:num_requests_running{model_name="' + "x" * 500 + '"} 1\n'
    assert ("requests_running", "vllm", "x" * 128) in told(source(text)[0].read(0.0))
    text = r'vllm:num_requests_running{model_name="C:\\models\\\"m\""} 1' + "\n"
    assert ("requests_running", "vllm", 'C:\\models\\"m"') in told(source(text)[0].read(0.0))


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://10.0.0.7:8000/metrics", "10.0.0.7:8000"),
        ("http://vllm.models/metrics", "vllm.models:80"),
        ("https://vllm.models/metrics", "vllm.models:443"),
        ("http://[fd00::7]:8000/metrics", "[fd00::7]:8000"),
        ("http://user:secret@host:1/metrics", "host:1"),
        ("http://host:none/metrics", "invalid"),
    ],
)
def test_the_endpoint_is_host_and_port(url: str, endpoint: str) -> None:
    samples, misses, _ = apart(ServerSource(FakeHttp({}), [url], timeout_s=1.0).read(0.0))
    assert [labels[-1] for _, labels, _ in samples] == [endpoint]
    assert misses[0].what == f"server {endpoint}"


def test_the_same_address_twice_is_one_target() -> None:
    http = FakeHttp({URL: page("tgi")})
    told(ServerSource(http, [URL, URL], timeout_s=1.0).read(0.0))
    assert http.asked == [URL]


def ports(http: FakeHttp) -> list[int]:
    """Of the addresses asked for since the last call."""
    asked = [int(url.split(":")[2].split("/")[0]) - 8000 for url in http.asked]
    http.asked.clear()
    return asked


def test_targets_that_hang_are_asked_last_and_one_at_a_time() -> None:
    servers, http = source(SLOW, page("tgi"), SLOW, page("vllm"), SLOW)
    apart(servers.read(0.0))
    assert ports(http) == [0, 1, 2, 3, 4]
    asked_slow = set()
    for at_s in range(3):
        samples, misses, _ = apart(servers.read(float(at_s)))
        first, second, slow = ports(http)
        assert (first, second) == (1, 3)
        asked_slow.add(slow)
        # Those that were not asked are not well either.
        assert sorted(miss.what for miss in misses) == [f"server 127.0.0.1:800{port}" for port in (0, 2, 4)]
        assert {miss.reason for miss in misses} == {Reason.TIMEOUT}
        assert sorted(value for metric, _, value in samples if metric is catalogue.SERVER_UP) == [0, 0, 0, 1, 1]
    assert asked_slow == {0, 2, 4}
    http.pages["http://127.0.0.1:8002/metrics"] = page("tgi")
    for at_s in range(3):
        apart(servers.read(float(at_s)))
    ports(http)
    apart(servers.read(9.0))
    assert ports(http)[:3] == [1, 2, 3], "one that answers again is asked with the others"


def test_a_pass_ends_after_so_many_that_hang_at_once() -> None:
    servers, http = source(*[SLOW] * (TIMEOUTS + 2), page("tgi"))
    samples, misses, _ = apart(servers.read(0.0))
    assert len(ports(http)) == TIMEOUTS
    assert [miss.detail for miss in misses[TIMEOUTS:]] == ["not asked: others took the time"] * 3
    assert len(samples) == TIMEOUTS, "of those not asked nothing is known"
    samples, _, _ = apart(servers.read(2.0))
    assert values(s for s in samples if s.metric is catalogue.SERVER_RUNNING) == {("requests_running", "tgi", ""): 8.0}
