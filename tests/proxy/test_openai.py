"""The `openai` client, as people use it, through the proxy: it sees what it would see without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import openai
import pytest

from tests.proxy.rig import LAST, SSE_HEAD, Handler, Rig, attributes_of, chunked, event, read_request, rig, run, until

T = TypeVar("T")
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def json_answer(told: object, status: str = "200 OK") -> bytes:
    body = json.dumps(told).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def stream(*events: object) -> bytes:
    data = [f"data: {json.dumps(one)}\n\n".encode() for one in events]
    return SSE_HEAD + chunked(*data, b"data: [DONE]\n\n") + LAST


def chat(text: str | None, finish: str | None = None) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "llama", "choices": choices}


ANSWERS: dict[tuple[str, bool], bytes] = {
    ("/v1/chat/completions", True): stream(
        chat(""), chat("a"), chat("b"), chat("c"), chat(None, "stop"), {**chat(None), "choices": [], "usage": USAGE}
    ),
    ("/v1/chat/completions", False): json_answer(
        {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "llama",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "abc"}, "finish_reason": "stop"}],
            "usage": USAGE,
        }
    ),
    ("/v1/completions", True): stream(
        *(
            {
                "id": "c1",
                "object": "text_completion",
                "created": 1,
                "model": "llama",
                "choices": [{"index": 0, "text": x}],
            }
            for x in "abc"
        )
    ),
    ("/v1/responses", True): SSE_HEAD
    + chunked(
        *(
            f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode()
            for one in (
                {
                    "type": "response.output_text.delta",
                    "delta": "a",
                    "item_id": "i",
                    "output_index": 0,
                    "content_index": 0,
                },
                {
                    "type": "response.output_text.delta",
                    "delta": "b",
                    "item_id": "i",
                    "output_index": 0,
                    "content_index": 0,
                },
                {
                    "type": "response.completed",
                    "response": {"id": "r1", "model": "llama", "usage": {"input_tokens": 7, "output_tokens": 2}},
                },
            )
        )
    )
    + LAST,
    ("/v1/embeddings", False): json_answer(
        {
            "object": "list",
            "model": "bge",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        }
    ),
    ("/v1/models", False): json_answer(
        {"object": "list", "data": [{"id": "llama", "object": "model", "created": 1, "owned_by": "x"}]}
    ),
}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head, body = await read_request(reader)
            told = json.loads(body) if body else {}
            writer.write(ANSWERS[head.split(b" ")[1].decode(), bool(told.get("stream"))])
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def with_client(
    use: Callable[[openai.AsyncOpenAI], Awaitable[T]], handler: Handler = serve
) -> tuple[T, T, list[dict[str, Any]]]:
    """What a use gives without the proxy, with it, and the attributes of the traces that it left."""

    async def through() -> tuple[T, T, list[dict[str, Any]]]:
        async with rig(handler) as one:
            found = []
            for port in (one.upstream_port, one.port):
                client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-test", max_retries=0)
                async with client:
                    found.append(await use(client))
            await until(lambda: not one.counted("gpumon_proxy_requests_open"))
            return found[0], found[1], [attributes_of(span) for span in one.spans()]

    return run(through())


def test_a_streamed_chat() -> None:
    async def use(client: openai.AsyncOpenAI) -> list[str]:
        answer = await client.chat.completions.create(
            model="llama",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            temperature=0.5,
            max_tokens=9,
            stream_options={"include_usage": True},
        )
        return [chunk.model_dump_json() async for chunk in answer]

    direct, passed, (told,) = with_client(use)
    assert direct == passed
    assert told["gen_ai.usage.output_tokens"] == len(told["gen_ai.token.times_ns"]) == 3
    assert told["gen_ai.response.finish_reasons"] == ["stop"]
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.max_tokens"]) == (0.5, 9)


def test_a_chat_in_one_piece() -> None:
    async def use(client: openai.AsyncOpenAI) -> str:
        answer = await client.chat.completions.create(model="llama", messages=[{"role": "user", "content": "hello"}])
        return answer.model_dump_json()

    direct, passed, (told,) = with_client(use)
    assert direct == passed
    assert (told["gen_ai.usage.output_tokens"], told["gen_ai.token.source"]) == (3, "usage")


def test_streamed_completions_and_responses() -> None:
    async def use(client: openai.AsyncOpenAI) -> list[str]:
        completion = await client.completions.create(model="llama", prompt="hello", stream=True)
        found = [chunk.model_dump_json() async for chunk in completion]
        response = await client.responses.create(model="llama", input="hello", stream=True)
        return found + [one.model_dump_json(warnings=False) async for one in response]

    direct, passed, told = with_client(use)
    assert direct == passed
    assert [one["gen_ai.operation.name"] for one in told] == ["text_completion", "responses"]
    assert [one["gen_ai.usage.output_tokens"] for one in told] == [3, 2]
    assert [one["gen_ai.token.source"] for one in told] == ["chunk", "usage"]
    assert told[0]["prompt_hash"] != told[1]["prompt_hash"]


def test_embeddings_and_models() -> None:
    async def use(client: openai.AsyncOpenAI) -> list[str]:
        embedding = await client.embeddings.create(model="bge", input="hello", encoding_format="float")
        return [embedding.model_dump_json(), (await client.models.list()).model_dump_json()]

    direct, passed, (told,) = with_client(use)
    assert direct == passed
    assert (told["gen_ai.operation.name"], told["gen_ai.usage.input_tokens"]) == ("embeddings", 7)


def test_errors_are_the_servers_own() -> None:
    async def failing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(json_answer({"error": {"message": "too long", "type": "invalid", "code": 7}}, "400 Bad Request"))
        writer.close()

    async def use(client: openai.AsyncOpenAI) -> str:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="llama", messages=[])
        return str(caught.value)

    direct, passed, (told,) = with_client(use, failing)
    assert direct == passed
    assert told["error.type"] == "400"


def test_the_proxys_own_errors_are_shown_as_such() -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def through(one: Rig) -> str:
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="sk-test", max_retries=0)
        async with client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.models.list()
        return str(caught.value)

    async def with_rig() -> str:
        async with rig(closing) as one:
            return await through(one)

    assert "gpumon proxy: the server behind closed the connection" in run(with_rig())


def test_leaving_a_stream_ends_it_at_the_server() -> None:
    left = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunked(event("a")))
        assert await reader.read() == b""
        left.set()
        writer.close()

    async def with_rig() -> dict[str, Any]:
        async with rig(endless) as one:
            client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="sk-test", max_retries=0)
            async with client:
                answer = await client.chat.completions.create(model="llama", messages=[], stream=True)
                async for _ in answer:
                    break
                await answer.close()
                await left.wait()
            await until(lambda: not one.counted("gpumon_proxy_requests_open"))
            return one.told()

    assert run(with_rig())["gen_ai.response.finish_reasons"] == ["cancelled"]
