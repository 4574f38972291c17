"""The client library: what it sends is what gpumon reads, with the SDK, without it, in coroutines, after failures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import numpy as np
import pytest
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.trace import NoOpTracer

from gpumon import tokens
from gpumon.ingest import records
from gpumon.ingest.adapters import contract
from gpumon.ingest.assembly import Assembler
from gpumon.model import RequestRecord
from gpumon.tokens import TracedRequest, trace_request
from tests.ingest.senders import NOW_S, Sender, decode


def received(sender: Sender) -> RequestRecord:
    """The one request that gpumon makes of what was sent."""
    assembler = Assembler()
    decoded = decode(sender.spans)
    end_ns = max(span.end_ns for span in decoded.spans)
    assembler.add(decoded, "peer", NOW_S, lambda unix_ns: (unix_ns - end_ns) / 1e9 + NOW_S)
    [record] = assembler.tick(NOW_S + 10)
    return record


@pytest.fixture
def sender() -> Sender:
    return Sender(tokens.SCOPE, {"service.name": "shim"})


def test_names_are_the_contracts() -> None:
    assert tokens.TOKEN_TIMES == records.TOKEN_TIMES
    assert tokens.TOKEN_COUNTS == records.TOKEN_COUNTS
    assert tokens.TOKEN_COUNT == records.TOKEN_COUNT
    assert tokens.EVENT_NAME in records.TOKEN_EVENT_NAMES
    assert tokens.SCOPE == contract.SCOPE
    assert tokens.SPAN_NAME == contract.REQUEST


@pytest.mark.parametrize("events", [False, True])
def test_tokens_arrive_as_they_were_timed(sender: Sender, events: bool) -> None:
    with trace_request(
        model="llama",
        tenant="blue",
        request_id="r-1",
        inference_id="i-1",
        prompt_hash="9f",
        prompt_tokens=12,
        parameters={"temperature": 0.7, "max_tokens": 64},
        events=events,
        tracer=sender.tracer,
    ) as request:
        for _ in range(40):
            request.token()
    record = received(sender)
    [span] = sender.spans
    assert len(span.events) == (40 if events else 0)
    assert (record.server, record.model, record.tenant) == ("gpumon", "llama", "blue")
    assert (record.request_id, record.inference_id, record.prompt_hash) == ("r-1", "i-1", "9f")
    assert record.parameters == {"temperature": 0.7, "max_tokens": 64.0}
    assert (record.prompt_tokens, record.completion_tokens) == (12, 40)
    assert record.token_ns is not None
    sent = np.array(request._times) - request._start_ns
    assert (record.token_ns - record.start_ns == sent).all()
    assert record.per_token
    assert record.token_counts is None
    assert record.time_to_first_token_s == sent[0] / 1e9
    assert record.outcome == "ok"


@pytest.mark.parametrize("events", [False, True])
def test_steps_of_several_tokens(sender: Sender, events: bool) -> None:
    with trace_request(events=events, tracer=sender.tracer) as request:
        request.token()
        request.token()
        request.step(3)
        request.token()
    record = received(sender)
    assert record.token_counts is not None
    assert record.token_counts.tolist() == [1, 1, 3, 1]
    assert record.completion_tokens == 6
    assert record.per_token


def test_chunks_of_unknown_size_are_not_taken_for_tokens(sender: Sender) -> None:
    with trace_request(tracer=sender.tracer) as request:
        for _ in range(5):
            request.token()
        request.usage(prompt_tokens=7, completion_tokens=23, cached_tokens=4)
        request.finish("length")
    record = received(sender)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (7, 23, 4)
    assert not record.per_token


def test_phases(sender: Sender) -> None:
    with trace_request(tracer=sender.tracer) as request:
        for name in ("queue", "prefill", "kv_sync", "decode", "decode"):
            with request.phase(name):
                pass
    record = received(sender)
    for told in (record.queue_s, record.prefill_s, record.kv_sync_s, record.decode_s):
        assert told is not None
        assert 0 < told < 1


def test_unknown_phase_is_refused_at_once(sender: Sender) -> None:
    with trace_request(tracer=sender.tracer) as request, pytest.raises(ValueError, match="queue, prefill"):
        request.phase("thinking")


def test_a_failure_marks_the_request_without_its_text(sender: Sender) -> None:
    def generate() -> None:
        with trace_request(tracer=sender.tracer) as request:
            request.token()
            raise RuntimeError("cannot tokenize 'correct horse'")

    with pytest.raises(RuntimeError):
        generate()
    record = received(sender)
    assert record.outcome == "error"
    assert record.completion_tokens == 1
    assert sender.spans[0].attributes is not None
    assert sender.spans[0].attributes["error.type"] == "RuntimeError"
    assert "correct horse" not in sender.spans[0].to_json()


def test_a_client_that_leaves_is_an_abort(sender: Sender) -> None:
    async def stream() -> AsyncIterator[int]:
        with trace_request(tracer=sender.tracer) as request:
            for i in range(100):
                request.token()
                yield i

    async def main() -> None:
        pieces = stream()
        async for piece in pieces:
            if piece == 3:
                break
        # Closed in another task, thus another context, as web frameworks do.
        await asyncio.create_task(pieces.aclose())  # type: ignore[attr-defined]

    asyncio.run(main())
    record = received(sender)
    assert record.outcome == "aborted"
    assert record.completion_tokens == 4


def test_requests_of_many_coroutines_do_not_mix(sender: Sender) -> None:
    async def generate(number: int) -> None:
        with trace_request(request_id=str(number), tracer=sender.tracer) as request:
            for _ in range(number):
                await asyncio.sleep(0)
                request.token()

    async def main() -> None:
        await asyncio.gather(*(generate(number) for number in range(1, 30)))

    asyncio.run(main())
    told = {span.attributes["gen_ai.request.id"]: span.attributes for span in sender.spans if span.attributes}
    assert {int(str(name)) for name in told} == set(range(1, 30))
    assert all(attributes["gen_ai.usage.output_tokens"] == int(str(name)) for name, attributes in told.items())


def test_a_request_without_tokens(sender: Sender) -> None:
    with trace_request(tracer=sender.tracer):
        pass
    record = received(sender)
    assert record.token_ns is None
    assert record.completion_tokens is None
    assert record.time_to_first_token_s is None


def test_ending_twice_sends_once(sender: Sender) -> None:
    with trace_request(tracer=sender.tracer) as request:
        request.token()
        request.end()
        request.token()
    assert received(sender).completion_tokens == 1
    assert len(sender.spans) == 1


def test_without_an_sdk_everything_goes_and_nothing_is_sent() -> None:
    with trace_request(model="llama", tracer=NoOpTracer()) as request:
        request.token()
        request.step(2)
        with request.phase("prefill"):
            pass
        request.usage(completion_tokens=3)
    assert isinstance(request, TracedRequest)
    assert not request.span.is_recording()


def test_the_sdks_limit_of_events_costs_the_first_tokens_and_gpumon_says_so() -> None:
    sender = Sender(tokens.SCOPE, limits=SpanLimits(max_events=128))
    with trace_request(events=True, tracer=sender.tracer) as request:
        for _ in range(200):
            request.token()
    record = received(sender)
    assert record.token_ns is not None
    assert len(record.token_ns) == 128
    assert record.first_token_ns is None
    assert record.time_to_first_token_s is None
    assert record.completion_tokens == 200
    assert record.per_token


def test_importing_it_loads_neither_gpumon_nor_numpy_nor_an_sdk() -> None:
    code = "import sys, gpumon.tokens; print(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ran.stdout.split()
    assert [name for name in loaded if name.startswith("gpumon")] == ["gpumon", "gpumon.tokens"]
    assert not {"numpy", "asyncio", "opentelemetry.sdk"} & set(loaded)
