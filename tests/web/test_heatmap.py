"""/api/v1/heatmap: cells by minute and bucket, and ids that lead to their requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.catalogue import CONCURRENCY_BUCKETS, CONTEXT_BUCKETS
from gpumon.web.heatmap import CellId, cell_id
from gpumon.web.questions import UnreadableError
from tests.explained import record
from tests.web.known import OFFSET_S, START_S, Known

NEAR = pytest.approx


def to_unix(at_s: float) -> float:
    return at_s + OFFSET_S


def served(known: Known, at_s: float, ttft_s: float, count: int = 1, **fields: object) -> None:
    """Requests whose first token came at this time."""
    for _ in range(count):
        told = record(arrived_s=at_s - ttft_s, time_to_first_token_s=ttft_s, **fields)
        known.statistics.add(told, at_s + 3.5)
        known.clock.move_to(at_s + 3.5)


def test_without_requests_there_are_no_cells_and_the_whole_ladder() -> None:
    told = Known().get("heatmap")
    assert (told["of"], told["by"], told["cells"], told["models"]) == ("inter_token", "concurrency", [], [])
    assert told["buckets"] == [*CONCURRENCY_BUCKETS]
    assert told["end"] - told["start"] == 3600.0
    assert told["end"] == START_S + 60 + OFFSET_S


def test_a_cell_has_its_minute_bucket_count_and_quantiles() -> None:
    known = Known()
    served(known, START_S + 10, 0.1, 9, concurrency=12)
    served(known, START_S + 12, 0.8, 1, concurrency=15)
    served(known, START_S + 70, 0.2, 1, concurrency=64)
    first, second = known.get("heatmap", "of=ttft")["cells"]
    assert first == {
        "id": f"ttft.concurrency.3.{round((START_S + OFFSET_S) * 1e3)}",
        "start": START_S + OFFSET_S,
        "bucket": "8-15",
        "count": 10,
        "p50_seconds": NEAR(0.1, rel=0.022),
        "p95_seconds": NEAR(0.8, rel=0.022),
        "p99_seconds": NEAR(0.8, rel=0.022),
    }
    assert (second["start"], second["bucket"], second["count"]) == (START_S + 60 + OFFSET_S, "64+", 1)


def test_models_are_merged_or_chosen_and_all_are_named() -> None:
    known = Known()
    served(known, START_S + 10, 0.1, 2)
    served(known, START_S + 10, 0.4, 3, model="qwen", server="sglang")
    told = known.get("heatmap", "of=ttft&by=context")
    assert [cell["count"] for cell in told["cells"]] == [5]
    assert told["cells"][0]["bucket"] == "2k"
    models = [{"server": "sglang", "model": "qwen"}, {"server": "vllm", "model": "llama-70b"}]
    assert told["models"] == models
    chosen = known.get("heatmap", "of=ttft&by=context&model=qwen&server=sglang")
    assert ([cell["count"] for cell in chosen["cells"]], chosen["models"]) == ([3], models)
    assert known.get("heatmap", "of=ttft&model=qwen&server=vllm")["cells"] == []


def test_older_minutes_than_were_asked_for_are_left_out() -> None:
    known = Known()
    served(known, START_S + 10, 0.1)
    served(known, START_S + 130, 0.1)
    assert len(known.get("heatmap", "of=ttft&minutes=3")["cells"]) == 2
    assert len(known.get("heatmap", "of=ttft&minutes=2")["cells"]) == 1


def test_the_same_cells_are_the_same_answer() -> None:
    known = Known()
    served(known, START_S + 10, 0.1)
    first = known.ask("heatmap", "of=ttft")
    known.clock.step(5.0)
    second = known.ask("heatmap", "of=ttft")
    assert first.body == second.body


@given(
    st.sampled_from(["ttft", "inter_token"]),
    st.sampled_from(["concurrency", "context"]),
    st.integers(0, 6),
    st.integers(0, 10_000),
)
def test_an_id_says_its_cell(of: str, by: str, position: int, minute: int) -> None:
    text = f"{of}.{by}.{position}.{round(1e3 * to_unix(60.0 * minute))}"
    assert cell_id(text, to_unix) == CellId(of, by, position, 60.0 * minute)  # type: ignore[arg-type]


def test_an_id_still_says_its_cell_after_a_small_step_of_the_wall_clock() -> None:
    text = f"ttft.context.2.{round(1e3 * to_unix(START_S))}"
    assert cell_id(text, lambda at_s: to_unix(at_s) + 20.0).start_s == START_S


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "ttft.context.2",
        "ttft.context.2.",
        "ttft.context.-1.5",
        "ttft.context.2.5\n",
        "ttft.context.²." + "1",
        "e2e.context.1.5",
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError, match="no id of a cell"):
        cell_id(text, to_unix)


@pytest.mark.parametrize(("by", "size"), [("concurrency", len(CONCURRENCY_BUCKETS)), ("context", len(CONTEXT_BUCKETS))])
def test_a_bucket_that_is_not_on_the_ladder_is_refused(by: str, size: int) -> None:
    with pytest.raises(UnreadableError, match=f"there are {size}"):
        cell_id(f"ttft.{by}.{size}.5", to_unix)


@given(st.text(max_size=64))
def test_no_text_is_anything_but_an_id_or_refused(text: str) -> None:
    try:
        cell_id(text, to_unix)
    except UnreadableError:
        pass


@pytest.mark.parametrize(
    "query", ["of=e2e", "by=tenant", "minutes=0", "minutes=61", "minutes=1.5", "model=" + "x" * 257]
)
def test_a_question_that_cannot_be_answered_is_refused(query: str) -> None:
    reply = Known().ask("heatmap", query)
    assert (reply.status, [each["where"] for each in reply.json["errors"]]) == (422, [query.split("=")[0]])
