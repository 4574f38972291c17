"""One request's record, fed by hand with times of a stepped clock; and its span, read by gpumon's own adapter."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gpumon.proxy import observed as module
from gpumon.proxy.http_head import parse_response
from gpumon.proxy.observed import Budget, Observed
from gpumon.proxy.request_body import read_body
from gpumon.proxy.routes import Kind
from gpumon.proxy.spans import build_span
from gpumon.proxy.trace_context import trace_context
from tests.proxy.rig import DONE, attributes_of, event

START = 5_000_000_000
UNIX = 1_800_000_000_000_000_000
MS = 1_000_000
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8"
BODY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json"


def one(kind: Kind = Kind.CHAT, head: bytes = SSE, budget: Budget | None = None, **told: str) -> Observed:
    names = {"tenant": "", "request_id": "", "inference_id": "", **told}
    found = Observed(kind, trace_context(None, bytes), START, UNIX, budget or Budget(1 << 20), **names)
    found.begin_answer(parse_response(head, b"POST"))
    return found


def spoken(observed: Observed, *parts: bytes, every_ms: int = 10) -> Observed:
    """The parts came so far apart; then the answer ended."""
    at_ns = START
    for part in parts:
        at_ns += every_ms * MS
        observed.look(part, at_ns)
    observed.end(at_ns + MS)
    return observed


def usage(prompt: int, completion: int) -> bytes:
    return b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (prompt, completion)


def attributes(observed: Observed) -> dict[str, Any]:
    return attributes_of(build_span(observed))


def test_every_chunk_with_output_has_its_time_and_usage_tells_how_many_tokens() -> None:
    found = spoken(one(), event(""), event("a"), event("b") + event("c"), usage(7, 3), DONE)
    assert list(found.times_ns) == [20 * MS, 30 * MS, 30 * MS]
    told = attributes(found)
    assert told["gen_ai.token.times_ns"] == [20 * MS, 30 * MS, 30 * MS]
    assert told["gen_ai.token.source"] == "usage"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (7, 3)
    assert "gen_ai.token.counts" not in told


def test_without_usage_each_chunk_counts_as_one_and_it_is_said() -> None:
    told = attributes(spoken(one(), event("a"), event("b"), DONE))
    assert (told["gen_ai.token.source"], told["gen_ai.usage.output_tokens"]) == ("chunk", 2)
    assert "gen_ai.usage.input_tokens" not in told


def test_usage_in_every_chunk_tells_the_size_of_each() -> None:
    chunks = [event("a", usage='{"completion_tokens":1}'), event("bcd", usage='{"completion_tokens":4}')]
    told = attributes(spoken(one(), *chunks, usage(7, 4), DONE))
    assert told["gen_ai.token.counts"] == [1, 3]
    assert told["gen_ai.usage.output_tokens"] == 4


@pytest.mark.parametrize("totals", [(4, 1), (1, None), (1, 4)])
def test_sizes_that_do_not_add_up_are_not_told(totals: tuple[int, int | None]) -> None:
    chunks = [event("a", usage=json.dumps({"completion_tokens": total})) for total in totals if total is not None]
    chunks += [event("a")] * totals.count(None)
    assert "gen_ai.token.counts" not in attributes(spoken(one(), *chunks, usage(7, 5), DONE))


def test_more_tokens_than_are_timed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMED_TOKENS", 3)
    found = spoken(one(), *[event("a")] * 5, DONE)
    assert (len(found.times_ns), found.chunks) == (3, 5)
    assert attributes(found)["gen_ai.usage.output_tokens"] == 5


def test_units_are_the_stream_and_say_what_look_says() -> None:
    stream = event("") + event("a") + b": ping\n\n" + usage(7, 1) + DONE + b"data: rest"
    found, other = one(), one()
    passed = b""
    for at in range(0, len(stream), 7):
        for part, told in found.units(stream[at : at + 7]):
            passed += part
            if told is not None:
                found.note(told, START + at)
        other.look(stream[at : at + 7], START + at)
    assert passed + found.rest == stream
    assert found.times_ns == other.times_ns
    assert found.completion_tokens == other.completion_tokens == 1


def test_an_answer_that_is_no_stream_tells_usage_and_no_times() -> None:
    body = json.dumps(
        {"id": "x", "choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    ).encode()
    found = spoken(one(head=BODY), body[:20], body[20:])
    told = attributes(found)
    assert (told["gen_ai.usage.output_tokens"], told["gen_ai.response.finish_reasons"]) == (3, ["stop"])
    assert "gen_ai.token.times_ns" not in told


def test_large_answers_and_many_at_once_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES", 100)
    budget = Budget(150)
    first, second, third = (one(head=BODY, budget=budget) for _ in range(3))
    first.look(b"x" * 100, START)
    second.look(b"x" * 51, START)  # no room
    third.look(b"x" * 50, START)
    for each in (first, second, third):
        each.end(START)
    assert budget.take(150)
    assert not budget.take(1)


@pytest.mark.parametrize(("status", "outcome"), [(b"400", "400"), (b"503", "503")])
def test_a_status_that_says_so_is_an_error(status: bytes, outcome: str) -> None:
    found = spoken(one(head=BODY.replace(b"200", status)), b'{"error":{"message":"secret words"}}')
    span = build_span(found)
    assert span.status.code == Span().status.STATUS_CODE_ERROR
    assert attributes(found)["error.type"] == outcome
    assert b"secret" not in span.SerializeToString()


def test_an_error_in_the_stream_is_an_error() -> None:
    found = spoken(one(), event("a"), b'data: {"error":{"message":"x"}}\n\n')
    assert attributes(found)["error.type"] == "stream_error"


def test_a_client_that_left_before_the_end_is_told_and_one_that_left_with_it_is_not() -> None:
    early, late = one(), one()
    for found, last in ((early, event("b")), (late, DONE)):
        found.look(event("a") + last, START + MS)
        found.end(START + 2 * MS, aborted=True)
    assert attributes(early)["gen_ai.response.finish_reasons"] == ["cancelled"]
    assert "gen_ai.response.finish_reasons" not in attributes(late)


def test_a_response_stream_ends_with_its_last_event() -> None:
    found = one(Kind.RESPONSE)
    found.look(b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n', START)
    found.look(b'data: {"type":"response.completed","response":{"usage":{"output_tokens":1}}}\n\n', START)
    found.end(START, aborted=True)
    assert not found.aborted
    assert found.completion_tokens == 1


def test_identity_parameters_and_ends_are_in_the_span() -> None:
    found = one(tenant="blue", request_id="r1", inference_id="i1")
    found.asked = read_body(b'{"model":"llama","temperature":0.5,"n":2,"prompt":"hello"}', b"s" * 16)
    spoken(found, event("a"), DONE)
    span = build_span(found)
    told = attributes(found)
    assert told["tenant.id"] == "blue"
    assert told["gen_ai.request.id"] == "r1"
    assert told["inference_id"] == "i1"
    assert told["gen_ai.request.model"] == "llama"
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.request.choice.count"] == 2
    assert told["prompt_hash"] == found.asked.prompt_hash
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (UNIX, UNIX + 21 * MS)
    assert np.diff(told["gen_ai.token.times_ns"]).min(initial=0) >= 0


def test_a_model_that_the_request_does_not_name_is_the_answers() -> None:
    assert attributes(spoken(one(), event("a"), DONE))["gen_ai.response.model"] == "llama"
