"""/api/v1/servers: latencies and rates from requests, queues from pages, the GPUs they ran on."""

from __future__ import annotations

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.model import Sample
from gpumon.web.server_history import server_history
from tests.explained import record
from tests.web.known import OFFSET_S, START_S, Known

NEAR = pytest.approx
NAN = np.nan
PAIR = ("vllm", "llama-70b")
PAGE = (*PAIR, "127.0.0.1:8000")


def page(running: float = 5.0, waiting: float = 2.0, kv: float = 0.25, endpoint: str = PAGE[2]) -> list[Sample]:
    of = (*PAIR, endpoint)
    return [
        Sample(catalogue.SERVER_UP, ("vllm", endpoint), 1.0),
        Sample(catalogue.SERVER_RUNNING, of, running),
        Sample(catalogue.SERVER_WAITING, of, waiting),
        Sample(catalogue.SERVER_KV_USAGE, of, kv),
    ]


def requests(count: float) -> list[Sample]:
    return [
        Sample(catalogue.REQUESTS, (*PAIR, "ok"), count),
        Sample(catalogue.REQUESTS, (*PAIR, "error"), count / 4),
        Sample(catalogue.TOKENS, (*PAIR, "completion"), 100.0 * count),
    ]


def test_without_servers_there_are_none() -> None:
    assert Known().get("servers")["servers"] == []


def test_latencies_are_of_the_minute_under_way_and_the_one_before() -> None:
    known = Known()
    known.clock.step(30.0)
    for ttft_s in (0.1, 0.1, 0.1, 0.8):
        known.statistics.add(record(time_to_first_token_s=ttft_s, arrived_s=START_S + 10), START_S + 30)
    known.put("requests", *known.statistics.samples(START_S + 30))
    told = known.get("servers")
    assert told["window_from"] == START_S - 60 + OFFSET_S
    (server,) = told["servers"]
    assert (server["server"], server["model"]) == PAIR
    assert server["time_to_first_token"] == {
        "count": 4, "p50_seconds": NEAR(0.1, rel=0.022), "p95_seconds": NEAR(0.8, rel=0.022),
        "p99_seconds": NEAR(0.8, rel=0.022),
    }  # fmt: skip
    assert server["inter_token"] == {"count": 0, "p50_seconds": None, "p95_seconds": None, "p99_seconds": None}
    known.clock.step(120.0)
    known.put("requests", *known.statistics.samples(known.clock.now_s()))
    assert known.get("servers")["servers"][0]["time_to_first_token"]["count"] == 0


def test_rates_are_of_the_last_minute() -> None:
    known = Known()
    known.run("requests", 30, lambda second: requests(2.0 * second))
    (server,) = known.get("servers")["servers"]
    assert server["tokens_per_second"] == 200.0
    assert (server["requests_per_second"], server["errors_per_second"]) == (2.5, 0.5)
    assert server["prompt_tokens_per_second"] is None
    assert (server["pages"], server["running"], server["kv_usage"]) == ([], None, None)


def test_pages_of_replicas_stand_under_their_model_and_add_up() -> None:
    known = Known()
    known.put("requests", *requests(1.0))
    known.put("page a", *page())
    known.put("page b", *page(7.0, 0.0, 0.75, "127.0.0.1:8001"))
    (server,) = known.get("servers")["servers"]
    assert [each["endpoint"] for each in server["pages"]] == ["127.0.0.1:8000", "127.0.0.1:8001"]
    assert (server["running"], server["waiting"], server["kv_usage"]) == (12.0, 2.0, 0.75)


def test_requests_that_a_proxy_told_of_have_the_pages_of_their_model() -> None:
    known = Known()
    known.put("requests", Sample(catalogue.REQUESTS, ("gpumon", PAIR[1], "ok"), 1.0))
    known.put("page", *page())
    (server,) = known.get("servers")["servers"]
    assert (server["server"], server["running"]) == ("gpumon", 5.0)


def test_a_server_of_which_only_its_page_is_known_is_told_and_so_is_one_that_cannot_be_read() -> None:
    known = Known()
    known.put("page", *page(), Sample(catalogue.SERVER_UP, ("sglang", "127.0.0.1:9"), 0.0))
    first, second = known.get("servers")["servers"]
    assert (first["server"], first["model"], first["time_to_first_token"]["count"]) == (*PAIR, 0)
    assert (second["server"], second["model"], second["pages"][0]["up"]) == ("sglang", "", False)


def test_without_explanation_nothing_is_said_of_lateness() -> None:
    known = Known(explained=False)
    known.put("requests", *requests(1.0))
    (server,) = known.get("servers")["servers"]
    assert (server["late_seconds_per_second"], server["causes"], server["gpus"]) == (None, None, [])


def test_seconds_lost_are_told_by_cause() -> None:
    known = Known()

    def batch(second: int) -> list[Sample]:
        lost = {"thermal_throttle": 0.2 * second, "queueing": 0.5 * second, "nvlink": 0.0, "unexplained": 0.0}
        said = [Sample(catalogue.SLOW_TOKEN_SECONDS, (*PAIR, "decode", of), value) for of, value in lost.items()]
        return [*requests(1.0), *said]

    known.run("requests", 20, batch)
    (server,) = known.get("servers")["servers"]
    assert list(server["causes"].items()) == [("queueing", 0.5), ("thermal_throttle", 0.2)]
    assert server["late_seconds_per_second"] == 0.7


@pytest.mark.parametrize(
    ("name", "is_told"),
    [("vllm/llama-70b", True), ("vllm/llama-70b at 127.0.0.1:8000", True), ("vllm/llama-7b", False), ("vllm", False)],
)
def test_open_incidents_of_the_server_are_told(name: str, *, is_told: bool) -> None:
    known = Known()
    known.put("requests", *requests(1.0))
    known.found = [
        Incident("i", "queue_buildup", Entity("server", name), Severity.INFO, 1.0, 2.0, 3.0, "waits", (), "wait")
    ]
    assert bool(known.get("servers")["servers"][0]["incidents"]) == is_told


def test_the_history_has_what_pages_said_by_second() -> None:
    known = Known()
    known.put("requests", *requests(1.0), ttl_s=100.0)

    def batch(second: int) -> list[Sample]:
        return [*page(running=float(second)), *page(running=10.0, endpoint="127.0.0.1:8001")]

    known.run("pages", 3, batch)
    history = known.get("servers", "history=60")["servers"][0]["history"]
    assert history["at"] == [START_S + OFFSET_S + second for second in (1, 2, 3)]
    assert history["signals"]["running"] == [11.0, 12.0, 13.0]
    assert history["signals"]["kv_usage"] == [0.25, 0.25, 0.25]
    assert "tokens_per_second" not in history["signals"]


def test_the_history_has_the_worst_latency_of_replicas_and_the_sum_of_their_tokens() -> None:
    known = Known()
    known.clock.step(10.0)
    numbers = np.arange(3) + int(START_S)
    one = numbers, np.array([[0.1, NAN, 0.3], [0.01, 0.02, NAN], [10.0, 20.0, 30.0]])
    two = numbers, np.array([[0.2, NAN, 0.1], [NAN, 0.01, NAN], [5.0, 0.0, NAN]])
    view = known.store.view(known.clock.now_s())
    said = server_history(view, PAIR, [], [one, two], 60.0, known.clock.to_unix).signals
    assert said["time_to_first_token_p95_seconds"] == [0.2, None, 0.3]
    assert said["inter_token_p95_seconds"] == [0.01, 0.02, None]
    assert said["tokens_per_second"] == [15.0, 20.0, 30.0]


@pytest.mark.parametrize("query", ["history=241", "history=nan", "history=x"])
def test_a_history_that_cannot_be_is_refused(query: str) -> None:
    assert Known().ask("servers", query).status == 422


def test_a_server_whose_requests_named_no_model_is_told_of_while_there_are_any() -> None:
    known = Known()

    def counted(model: str, count: float) -> list[Sample]:
        return [Sample(catalogue.REQUESTS, ("gpumon", model, "ok"), count)]

    def told() -> list[str]:
        return [server["model"] for server in known.get("servers")["servers"]]

    known.run("requests", 3, lambda number: [*counted("", float(number)), *counted("m", 1.0)])
    assert sorted(told()) == ["", "m"]
    known.run("requests", 70, lambda _: [*counted("", 3.0), *counted("m", 1.0)])
    assert told() == ["m"], "an idle server with a name stays"
    open_ = Sample(catalogue.REQUESTS_OPEN, ("gpumon", ""), 1.0)
    known.run("requests", 1, lambda _: [*counted("", 3.0), *counted("m", 1.0), open_])
    assert sorted(told()) == ["", "m"]
