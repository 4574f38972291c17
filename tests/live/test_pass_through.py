"""The same requests to a real llama.cpp, direct and through ``gpumon proxy``, in turns: the same bytes come back.

llama.cpp writes into an answer what belongs to one request: ``id``, ``created`` and ``timings``. Their values are left
out on both sides before the bytes are compared, and so is ``Content-Length`` where an answer has them, as its length
goes with theirs.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import openai
import pytest

from tests.live.alone import alone, disk_folder
from tests.live.client import PROMPTS, TIMEOUT_S, TOKENS, chat
from tests.live.server import MODEL, LlamaServer
from tests.proxy.process import ProxyProcess

pytestmark = pytest.mark.slow
ROUNDS = 2
OWN = (rb'("id":)"[^"]*"', rb'("created":)\d+', rb'("timings":)\{[^{}]*\}')
"""Members of an answer that differ between two by nature; their names stay."""
OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding"})


class Ports(NamedTuple):
    """Where the same server is asked."""

    direct: int
    proxy: int


class Reply(NamedTuple):
    """What a client sees."""

    status: int
    headers: list[tuple[str, str]]
    """As spelled and in their order; without those that belong to a connection."""
    body: bytes


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """A server and a proxy before it, for all tests here; not while others measure."""
    with (
        alone(tmp_path_factory),
        disk_folder() as folder,
        LlamaServer(folder) as server,
        ProxyProcess(folder, server.port) as proxy,
    ):
        yield Ports(server.port, proxy.port)


def ask(port: int, path: str, body: object = None) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request("GET" if sent is None else "POST", path, sent, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        headers = [(name, value) for name, value in reply.getheaders() if name.lower() not in OF_ONE_CONNECTION]
        return Reply(reply.status, headers, reply.read())
    finally:
        connection.close()


def comparable(reply: Reply) -> Reply:
    """Without what is of one request."""
    body, headers = reply.body, reply.headers
    for pattern in OWN:
        body = re.sub(pattern, rb"\1", body)
    if body != reply.body:
        headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
    return Reply(reply.status, headers, body)


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_a_streamed_chat_is_the_same_bytes(ports: Ports, number: int) -> None:
    seen = [comparable(ask(port, "/v1/chat/completions", chat(number))) for _ in range(ROUNDS) for port in ports]
    assert seen[0].status == 200
    assert seen[0].body.count(b'"content":') >= TOKENS
    assert seen[0].body.endswith(b"data: [DONE]\n\n")
    assert all(one == seen[0] for one in seen), seen


REQUESTS: dict[str, tuple[str, object]] = {
    "a chat in one piece": ("/v1/chat/completions", {**chat(0), "stream": False}),
    "a streamed completion": (
        "/v1/completions",
        {"model": MODEL, "prompt": "The sea", "max_tokens": 8, "temperature": 0, "cache_prompt": False, "stream": True},
    ),
    "more choices than there are places": ("/v1/chat/completions", {**chat(1), "n": 2, "max_tokens": 4}),
    "a body that is no JSON object": ("/v1/chat/completions", "{"),
    "a request without messages": ("/v1/chat/completions", {"model": MODEL, "stream": True}),
    "a path that there is not": ("/v1/nothing", {}),
    "models": ("/v1/models", None),
    "health": ("/health", None),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_any_other_answer_is_the_same(ports: Ports, what: str) -> None:
    path, body = REQUESTS[what]
    seen = [comparable(ask(port, path, body)) for _ in range(ROUNDS) for port in ports]
    assert all(one == seen[0] for one in seen), seen


def test_a_client_that_asks_again_at_once_on_its_connection_is_answered_every_time(ports: Ports) -> None:
    # Behind each stream the server closes its connection, though it said that it keeps it.
    connection = http.client.HTTPConnection("127.0.0.1", ports.proxy, timeout=TIMEOUT_S)
    try:
        for number in range(20):
            body = json.dumps({**chat(number), "max_tokens": 2})
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            assert (reply.status, reply.read().endswith(b"data: [DONE]\n\n")) == (200, True)
    finally:
        connection.close()


def test_the_openai_client_sees_the_same_chunks(ports: Ports) -> None:
    seen = [_streamed(port) for _ in range(ROUNDS) for port in ports]
    assert len(seen[0]) >= TOKENS
    assert seen[0][-1]["usage"]["completion_tokens"] == TOKENS
    assert all(one == seen[0] for one in seen), seen


def _streamed(port: int) -> list[dict[str, Any]]:
    asked = chat(2)
    beyond = {name: asked[name] for name in ("ignore_eos", "cache_prompt")}  # of llama.cpp, not of OpenAI
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=asked["messages"],
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=beyond,
        )
        return [chunk.model_dump(exclude={"id", "created", "timings"}) for chunk in answer]
