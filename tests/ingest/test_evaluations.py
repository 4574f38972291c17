"""Scores find their request by trace, response id or inference id, before it or after it, within a window."""

from __future__ import annotations

from typing import Any

import pytest

from gpumon.ingest.assembly import Assembler
from gpumon.ingest.evaluations import Evaluated
from gpumon.ingest.records import Decoded, LogEvent, Resource, Scope
from tests.ingest.senders import MS, NOW_S, T0, Sender, assemble, counts, decode, dropped, to_steady

NAME = "gen_ai.evaluation.result"


def score(value: Any = 0.75, name: str = "relevance", **more: Any) -> dict[str, Any]:
    told = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": value}
    return told | {key.replace("__", "."): one for key, one in more.items()}


def request(**attributes: Any) -> Sender:
    sender = Sender("chatbot")
    told = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.response.id": "r-1"}
    sender.span("chat m", T0, T0 + MS, attributes=told | attributes)
    return sender


def log(attributes: dict[str, Any], trace_id: bytes | None = None) -> Decoded:
    return Decoded(logs=[LogEvent(Resource({}, 0), Scope("", ""), trace_id, None, NAME, T0, attributes)])


def add(assembler: Assembler, decoded: Decoded, at_s: float = NOW_S) -> None:
    assembler.add(decoded, "peer", at_s, to_steady)


def states(assembler: Assembler) -> dict[str, Any]:
    return counts(assembler, "gpumon_evaluations_total")


def test_event_on_the_request_span() -> None:
    sender = Sender("chatbot")
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    sender.span("chat m", T0, T0 + MS, attributes=attributes, events=[(NAME, T0, score())])
    [record] = assemble(sender.spans)
    assert record.evaluations == {"relevance": 0.75}


def test_attributes_of_the_request_span() -> None:
    [record] = assemble(request(**score("0.5")).spans)
    assert record.evaluations == {"relevance": 0.5}


def test_span_of_its_own_in_the_trace_of_the_request() -> None:
    sender = request()
    assembler = Assembler()
    sender.span("evaluate", T0, T0 + MS, parent=None, attributes=score(gen_ai__response__id="r-1"))
    [record] = assemble(sender.spans, assembler=assembler)
    assert record.evaluations == {"relevance": 0.75}
    assert dropped(assembler) == {}


@pytest.mark.parametrize("key", ["trace", "response", "inference"])
@pytest.mark.parametrize("after", [False, True])
def test_log_record_before_or_after_the_request(key: str, after: bool) -> None:
    sender = request(inference_id="i-1")
    context = sender.spans[0].get_span_context()
    assert context is not None
    trace_id = context.trace_id.to_bytes(16, "big")
    decoded = {
        "trace": log(score(), trace_id),
        "response": log(score(gen_ai__response__id="r-1"), bytes(15) + b"1"),
        "inference": log(score(inference_id="i-1")),
    }[key]
    assembler = Assembler()
    if not after:
        add(assembler, decoded)
    [record] = assemble(sender.spans, assembler=assembler)
    if after:
        add(assembler, decoded, NOW_S + 500)
        assert assembler.evaluations.take_late() == [Evaluated("genai", "m", "relevance", 0.75)]
    assert record.evaluations == {"relevance": 0.75}
    assert states(assembler) == {"attached": 1}
    assert assembler.evaluations.take_late() == []


def test_after_the_window_nothing_is_attached() -> None:
    assembler = Assembler()
    [record] = assemble(request().spans, assembler=assembler)
    add(assembler, log(score(gen_ai__response__id="r-1")), NOW_S + 700)
    assembler.tick(NOW_S + 1400)
    assert record.evaluations == {}
    assert states(assembler) == {"unmatched": 1}


@pytest.mark.parametrize(
    "told", [score("good"), score(float("nan")), score(name=""), {"gen_ai.evaluation.name": "x"}, {}]
)
def test_scores_without_name_or_number_are_invalid(told: dict[str, Any]) -> None:
    assembler = Assembler()
    add(assembler, log(told, bytes(15) + b"1"))
    assert states(assembler) == {"invalid": 1}


def test_a_score_that_names_no_request_is_unmatched() -> None:
    assembler = Assembler()
    add(assembler, log(score()))
    assert states(assembler) == {"unmatched": 1}


def test_scores_and_requests_waiting_are_bounded() -> None:
    assembler = Assembler()
    for i in range(10_000):
        assembler.evaluations.add(score(gen_ai__response__id=str(i)), None, NOW_S)
    assert states(assembler) == {"unmatched": 10_000 - 8192}
    for i in range(100):
        assembler.evaluations.add(score(i / 100, f"n{i}", gen_ai__response__id="9999"), None, NOW_S)
    [record] = assemble(request(**{"gen_ai.response.id": "9999"}).spans, assembler=assembler)
    assert len(record.evaluations) == 16


def test_a_retried_span_scores_once() -> None:
    sender = request(**score())
    assembler = Assembler()
    for _ in range(3):
        add(assembler, decode(sender.spans))
    assert assemble(assembler=assembler)[0].evaluations == {"relevance": 0.75}
    assert states(assembler) == {"attached": 1}
