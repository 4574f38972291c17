"""What is read of answers: output or none, usage, how it ended; in the words of each interface."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.proxy.answers import Usage, read_answer, read_event


def chat(delta: object, finish: object = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-1", "model": "llama", "choices": [choice], **more}).encode()


@pytest.mark.parametrize(
    "data",
    [
        chat({"content": "a"}),
        chat({"role": "assistant", "content": " "}),
        chat({"reasoning_content": "a"}),
        chat({"reasoning": "a", "content": None}),
        chat({"refusal": "no"}),
        chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        chat({"function_call": {"arguments": "{"}}),
        b'{"choices":[{"text":"a"}]}',
        b'{"choices":[{"delta":{"content":""}},{"delta":{"content":"\\ud83d"}}]}',
        b'{"type":"response.output_text.delta","delta":"a"}',
        b'{"type":"response.function_call_arguments.delta","delta":"{"}',
        b'{"type":"response.reasoning_text.delta","delta":"a"}',
    ],
)
def test_output_is_seen(data: bytes) -> None:
    assert read_event(data, names=False).tokens


@pytest.mark.parametrize(
    "data",
    [
        chat({"role": "assistant", "content": ""}),
        chat({"role": "assistant", "content": None}),
        chat({}, "stop"),
        chat({"tool_calls": []}),
        chat(None),
        b'{"choices":[]}',
        b'{"choices":[{"text":""}]}',
        b'{"choices":null}',
        b"{}",
        b'{"type":"response.created","response":{"id":"resp_1"}}',
        b'{"type":"response.output_text.done","text":"all of it"}',
        b'{"type":"response.output_text.delta","delta":""}',
    ],
)
def test_what_has_no_output_is_no_token(data: bytes) -> None:
    told = read_event(data, names=False)
    assert not told.tokens
    assert not told.malformed


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"hello", b'{"choices":7}', b'{"choices":[1]}', b"\xff", b"[" * 100_000, b"", b"[DONE] "]
)
def test_what_cannot_be_read_is_said(data: bytes) -> None:
    assert read_event(data, names=True).malformed


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}


def test_usage_is_read_in_either_spelling() -> None:
    assert read_event(chat({}, usage=USAGE), names=False).usage == Usage(7, 3, 4)
    completed = {
        "type": "response.completed",
        "response": {
            "id": "resp_1",
            "model": "llama",
            "usage": {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}},
        },
    }
    told = read_event(json.dumps(completed).encode(), names=False)
    assert (told.usage, told.finish, told.response_id, told.model) == (Usage(7, 3, 4), "stop", "resp_1", "llama")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, None),
        ({"prompt_tokens": 7}, Usage(prompt=7)),
        ({"prompt_tokens": -1, "completion_tokens": "3"}, Usage()),
        ({"prompt_tokens": 1e30, "completion_tokens": 3.0}, Usage(completion=3)),
        ({"completion_tokens": 3, "prompt_tokens_details": [1]}, Usage(completion=3)),
        ({"completion_tokens": 3, "prompt_tokens_details": None}, Usage(completion=3)),
        ([1], None),
        (7, None),
    ],
)
def test_of_usage_what_can_be_true_is_taken(usage: object, expected: Usage | None) -> None:
    told = read_event(chat({"content": "a"}, usage=usage), names=False)
    assert told.usage == expected
    assert told.tokens


@pytest.mark.parametrize(
    ("data", "finish", "error"),
    [
        (chat({}, "length"), "length", ""),
        (chat({}, ["stop"]), "", ""),
        (b'{"error":{"message":"out of memory","code":500}}', "", "stream_error"),
        (b'{"type":"error","message":"x"}', "", "stream_error"),
        (b'{"type":"response.failed","response":{"error":{"message":"x"}}}', "", "response_failed"),
        (
            b'{"type":"response.incomplete","response":{"incomplete_details":{"reason":"max_output_tokens"}}}',
            "length",
            "",
        ),
        (b'{"type":"response.incomplete","response":{"incomplete_details":null}}', "incomplete", ""),
    ],
)
def test_how_it_ended_is_told_in_one_vocabulary(data: bytes, finish: str, error: str) -> None:
    told = read_event(data, names=False)
    assert (told.finish, told.error) == (finish, error)


def test_names_are_read_where_they_are_asked_for() -> None:
    assert read_event(chat({}), names=True).response_id == "chatcmpl-1"
    assert read_event(chat({}), names=False).response_id == ""


@pytest.mark.parametrize(
    ("body", "finish"),
    [
        ({"id": "x", "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": USAGE}, "stop"),
        ({"id": "x", "choices": [{"text": "a", "finish_reason": "length"}], "usage": USAGE}, "length"),
        ({"id": "x", "status": "completed", "output": [], "usage": USAGE}, "stop"),
        (
            {"id": "x", "status": "incomplete", "incomplete_details": {"reason": "content_filter"}, "usage": USAGE},
            "content_filter",
        ),
        ({"id": "x", "data": [{"embedding": [0.1]}], "usage": USAGE}, ""),
    ],
)
def test_a_whole_body_tells_usage_and_its_end(body: dict[str, object], finish: str) -> None:
    told = read_answer(json.dumps(body).encode())
    assert (told.response_id, told.usage, told.finish) == ("x", Usage(7, 3, 4), finish)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    read_event(data, names=True)
    read_answer(data)
