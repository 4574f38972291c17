"""/api/v1/requests: filters, order, pages, cells; and what cannot be asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.explained import Account, Explained
from gpumon.model import Binding, GpuUuid
from gpumon.web.api import make_api
from gpumon.web.explain import explain_routes
from tests.explained import ON_TIME, PREFILL, THERMAL, explained
from tests.web.asking import ask
from tests.web.known import OFFSET_S, START_S, Known

NEAR = pytest.approx


def request(number: int, late_s: float = 0.0, *, ended_s: float | None = None, **fields: Any) -> Explained:
    """The request of this number, that ended so many seconds after the start. late_s: between tokens, for heat."""
    ended_s = START_S + number if ended_s is None else ended_s
    share = fields.pop("share", THERMAL)
    decode = Account(1.0, 1.0 + late_s, late_s, (share._replace(seconds=late_s),)) if late_s else ON_TIME
    return explained(
        first_token=ON_TIME,
        decode=decode,
        start_s=ended_s - 3.18,
        request_id=str(number),
        **{"trace_id": number.to_bytes(16), "span_id": number.to_bytes(8)} | fields,
    )


def api(*requests: Explained, after_s: float = 100.0) -> Known:
    known = Known()
    assert known.explanation is not None
    known.explanation.log.extend(requests)
    known.clock.step(after_s)
    return known


def ids(known: Known, query: str = "") -> list[str]:
    return [each["request_id"] for each in known.get("requests", query)["requests"]]


def pages(known: Known, query: str) -> list[list[str]]:
    found, cursor = [], ""
    while True:
        page = known.get("requests", f"{query}&cursor={cursor}")
        found.append([each["request_id"] for each in page["requests"]])
        if page["cursor"] is None:
            return found
        cursor = page["cursor"]


def test_without_requests_there_is_an_empty_page() -> None:
    assert api().get("requests") == {"requests": [], "matched": 0, "cursor": None, "kept_from": None}


def test_a_row_says_what_is_known_of_a_request() -> None:
    (row,) = api(request(1, 0.5)).get("requests")["requests"]
    assert row == {
        "trace_id": f"{1:032x}", "span_id": f"{1:016x}", "request_id": "1", "server": "vllm", "model": "llama-70b",
        "tenant": "acme", "outcome": "ok", "start": NEAR(START_S + 1 - 3.18 + OFFSET_S), "end": START_S + 1 + OFFSET_S,
        "duration_seconds": 3.18, "time_to_first_token_seconds": NEAR(0.4), "queue_seconds": NEAR(0.05),
        "prompt_tokens": 2048, "cached_tokens": 512, "completion_tokens": 100,
        "tokens_per_second": NEAR(99 / 3.18, rel=1e-3),
        "gap_p95_seconds": NEAR(0.02), "gap_max_seconds": NEAR(0.42), "concurrency": 12, "late_seconds": 0.5,
        "late_first_token_seconds": 0.0, "late_decode_seconds": 0.5, "cause": "thermal_throttle",
        "title": "GPU too hot",
        "causes": {"thermal_throttle": 0.5}, "gpus": ["GPU-0003", "GPU-0004"], "detailed": False,
    }  # fmt: skip


def test_what_a_server_did_not_tell_is_null() -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("time_to_first_token_s", "queue_s", "prompt_tokens", "cached_tokens", "completion_tokens"), None
    )
    silent = request(1, timed=False, binding=Binding(unbound="no_identity"), tenant="", **nothing)
    (row,) = api(silent).get("requests")["requests"]
    null = {name for name, value in row.items() if value is None}
    assert null == {
        "time_to_first_token_seconds", "queue_seconds", "prompt_tokens", "cached_tokens", "completion_tokens",
        "tokens_per_second", "gap_p95_seconds", "gap_max_seconds", "cause", "title",
    }  # fmt: skip
    assert (row["gpus"], row["causes"], row["tenant"]) == ([], {}, "")


def test_the_latest_come_first_or_the_newest() -> None:
    known = api(request(1, 0.2), request(2), request(3, 0.7), request(4, 0.1))
    assert ids(known) == ["3", "1", "4", "2"]
    assert ids(known, "sort=newest") == ["4", "3", "2", "1"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("server=sglang", ["2"]),
        ("model=llama-70b", ["3", "1"]),
        ("model=other", []),
        ("tenant=globex", ["3"]),
        ("outcome=error", ["2"]),
        ("cause=prefill_interference", ["1"]),
        ("cause=nvlink", []),
        ("uuid=GPU-7", ["2"]),
        ("uuid=GPU", []),
        ("min_late=0.3", ["3"]),
        ("min_ttft=0.5", ["2"]),
        ("min_gap=0.4", ["3", "1", "2"]),
        ("min_gap=0.5", []),
        ("since=98.5", ["3", "2"]),
        ("since=98.5&min_late=0.3&limit=1", ["3"]),
    ],
)
def test_filters_choose(query: str, found: list[str]) -> None:
    known = api(
        request(1, 0.2, share=PREFILL),
        request(2, server="sglang", model="qwen", outcome="error", time_to_first_token_s=0.9,
                binding=Binding("resource", 1, gpus=(GpuUuid("GPU-7"),))),
        request(3, 0.4, tenant="globex"),
    )  # fmt: skip
    assert ids(known, query) == found


@pytest.mark.parametrize("sort", ["slowest", "newest"])
def test_pages_together_are_all_requests_once(sort: str) -> None:
    known = api(*(request(number, (number % 5) / 10) for number in range(1, 24)))
    whole = ids(known, f"sort={sort}&limit=500")
    assert len(whole) == 23
    found = pages(known, f"sort={sort}&limit=5")
    assert [len(page) for page in found] == [5, 5, 5, 5, 3]
    assert [each for page in found for each in page] == whole


def test_requests_of_the_same_moment_and_lateness_are_on_one_page_each() -> None:
    known = api(*(request(number, 0.5, ended_s=START_S) for number in range(1, 10)))
    found = pages(known, "limit=2")
    assert sorted(each for page in found for each in page) == [str(number) for number in range(1, 10)]


def test_what_ends_meanwhile_changes_no_later_page() -> None:
    known = api(*(request(number) for number in range(1, 7)))
    first = known.get("requests", "sort=newest&limit=3")
    assert known.explanation is not None
    known.explanation.log.extend([request(7, ended_s=START_S + 99)])
    assert ids(known, f"sort=newest&limit=3&cursor={first['cursor']}") == ["3", "2", "1"]


def test_how_many_match_is_told_whatever_the_page() -> None:
    known = api(*(request(number, 0.1) for number in range(1, 8)))
    assert known.get("requests", "limit=2")["matched"] == 7


def test_the_requests_of_a_cell_are_those_whose_first_token_came_in_it_the_slowest_first() -> None:
    known = api(
        request(1, concurrency=12, time_to_first_token_s=0.3, ended_s=START_S + 30.0),
        request(2, concurrency=12, time_to_first_token_s=0.9, ended_s=START_S + 31.0),
        request(3, concurrency=16, time_to_first_token_s=0.9, ended_s=START_S + 32.0),
        request(4, concurrency=12, ended_s=START_S + 90.0),
        request(5, concurrency=12, time_to_first_token_s=None),
    )
    cell = f"ttft.concurrency.3.{round((START_S + OFFSET_S) * 1e3)}"
    assert ids(known, f"cell={cell}&since=7200") == ["2", "1"]


def test_the_requests_of_a_cell_between_tokens_are_those_that_made_tokens_in_it_by_their_longest_gap() -> None:
    known = api(
        request(1, ended_s=START_S + 61.0),
        request(2, ended_s=START_S + 40.0, token_s=None, timed=False),
        request(3, ended_s=START_S + 90.0),
        request(4, ended_s=START_S + 30.0, prompt_tokens=1900),
        request(5, ended_s=START_S + 30.0, prompt_tokens=4096),
        request(6, ended_s=START_S + 30.0, prompt_tokens=None),
    )
    cell = f"inter_token.context.2.{round((START_S + OFFSET_S) * 1e3)}"
    # Number 4 grew from 1,900 tokens to 2,000: it never had 2k of context.
    assert ids(known, f"cell={cell}") == ["1", "2"]


def test_every_cell_of_the_heatmap_leads_to_its_requests() -> None:
    known = api()
    assert known.explanation is not None
    for number in range(1, 12):
        told = request(number, 0.1 * number, concurrency=number, ended_s=START_S + 7 * number)
        told.record.arrived_s = told.start_s
        known.statistics.add(told.record, told.end_s)
        known.explanation.log.extend([told])
    found = set()
    for of in ("ttft", "inter_token"):
        for by in ("concurrency", "context"):
            for cell in known.get("heatmap", f"of={of}&by={by}")["cells"]:
                chosen = ids(known, f"cell={cell['id']}")
                assert chosen, cell
                found.update(chosen)
    assert len(found) == 11


def test_since_when_none_was_forgotten_is_told() -> None:
    known = api(*(request(number) for number in range(1, 17_000)))
    assert known.get("requests", "limit=1")["kept_from"] == NEAR(START_S + 16_999 - 16_384 + OFFSET_S)


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("sort=fastest", "sort"),
        ("outcome=lost", "outcome"),
        ("cause=magic", "cause"),
        ("since=0", "since"),
        ("since=7201", "since"),
        ("min_ttft=nan", "min_ttft"),
        ("min_gap=-1", "min_gap"),
        ("min_late=inf", "min_late"),
        ("cell=ttft.context.99.1", "cell"),
        ("cell=%00", "cell"),
        ("cursor=x", "cursor"),
        ("cursor=%F0%9F%92%A9", "cursor"),
        ("cursor=" + "A" * 55, "cursor"),
        ("cursor=" + "A" * 129, "cursor"),
        ("model=" + "x" * 257, "model"),
    ],
)
def test_a_question_that_cannot_be_answered_names_the_parameter(query: str, where: str) -> None:
    reply = api(request(1)).ask("requests", query)
    assert reply.status == 422, reply.body
    assert [each["where"] for each in reply.json["errors"]] == [where]


def test_a_cursor_of_another_order_is_refused() -> None:
    known = api(request(1), request(2))
    cursor = known.get("requests", "sort=newest&limit=1")["cursor"]
    reply = known.ask("requests", f"sort=slowest&limit=1&cursor={cursor}")
    assert reply.status == 422
    assert "sort=slowest" in reply.json["detail"]


@given(st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", min_size=55, max_size=55))
def test_no_cursor_is_anything_but_a_page_or_refused(cursor: str) -> None:
    assert api(request(1)).ask("requests", f"cursor={cursor}").status in (200, 422)


def test_names_from_outside_find_their_requests_and_come_back_as_they_were() -> None:
    known = api(request(1, tenant='<b>"&\u2028'))
    (row,) = known.get("requests", "tenant=%3Cb%3E%22%26%E2%80%A8")["requests"]
    assert row["tenant"] == '<b>"&\u2028'


def test_detailed_are_exactly_those_that_explain_answers_for() -> None:
    known = Known()
    assert known.explanation is not None
    app = make_api(
        explain_routes(
            known.explanation.find, known.explanation.details.traces, known.explanation.newest, known.clock.to_unix
        )
    )
    of = [
        request(number, number % 3 / 10, span_id=bytes(8) if number == 4 else number.to_bytes(8))
        for number in range(1, 8)
    ]
    of.append(request(9, trace_id=b"", span_id=b""))
    known.explanation.log.extend(of)
    known.explanation.details.keep([each for number, each in enumerate(of) if number % 2])
    rows = known.get("requests", "limit=500")["requests"]
    assert len(rows) == len(of)
    answers = {row["trace_id"]: ask(app, "/api/v1/explain", f"trace_id={row['trace_id']}").status for row in rows}
    assert {row["trace_id"]: row["detailed"] for row in rows} == {
        trace_id: status == 200 for trace_id, status in answers.items()
    }
    assert sum(row["detailed"] for row in rows) == 3
