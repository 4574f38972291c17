"""Traces on their way to gpumon: batches, tries, what is dropped, and that nobody waits."""

from __future__ import annotations

import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon.export.forward_send import Answer, Backoff, Outcome
from gpumon.ingest.request import Signal
from gpumon.proxy import exporter as module
from gpumon.proxy.exporter import EVERY_S, TraceExporter
from gpumon.proxy.observed import Budget, Observed
from gpumon.proxy.routes import Kind
from gpumon.proxy.trace_context import trace_context
from tests.proxy.rig import Receiver


def ended(tokens: int = 2) -> Observed:
    one = Observed(
        Kind.CHAT, trace_context(None, bytes), 0, 10**18, Budget(0), tenant="", request_id="", inference_id=""
    )
    one.times_ns.extend(range(tokens))
    one.chunks = tokens
    one.end(10**9)
    return one


def exporter(receiver: Receiver) -> TraceExporter:
    return TraceExporter(
        receiver, lambda: {"service.name": "proxy", "gpumon.upstream": "127.0.0.1:1"}, Backoff(jitter=0)
    )


def spans_in(body: bytes) -> int:
    request = ExportTraceServiceRequest.FromString(body)
    (resource,) = request.resource_spans
    assert {one.key: one.value.string_value for one in resource.resource.attributes} == {
        "service.name": "proxy",
        "gpumon.upstream": "127.0.0.1:1",
    }
    assert resource.scope_spans[0].scope.name == "gpumon.tokens"
    return len(resource.scope_spans[0].spans)


def test_what_waits_goes_together() -> None:
    receiver = Receiver()
    one = exporter(receiver)
    for _ in range(300):
        one.offer(ended())
    assert one.send_batch() == 0.0  # there is more
    assert one.send_batch() == EVERY_S
    assert [spans_in(body) for body in receiver.bodies] == [256, 44]
    assert (one.sent, len(one)) == (300, 0)
    assert one.send_batch() == EVERY_S
    assert len(receiver.bodies) == 2


def test_a_batch_is_bounded_in_tokens_but_holds_one_request_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_TOKENS", 10)
    receiver = Receiver()
    one = exporter(receiver)
    for tokens in (6, 4, 1, 50, 1):
        one.offer(ended(tokens))
    while len(one):
        one.send_batch()
    assert [spans_in(body) for body in receiver.bodies] == [2, 1, 1, 1]


def test_what_cannot_be_delivered_is_tried_again_with_growing_pauses() -> None:
    receiver = Receiver()
    receiver.answers = [Outcome(Answer.RETRY, "HTTP 503")] * 2 + [Outcome(Answer.RETRY, "429", retry_after_s=60.0)]
    one = exporter(receiver)
    one.offer(ended())
    assert [one.send_batch() for _ in range(3)] == [1.0, 2.0, 60.0]
    assert len(one) == 1
    assert one.send_batch() == EVERY_S
    assert (one.sent, sum(one.dropped.values())) == (1, 0)


def test_what_the_receiver_refuses_is_counted() -> None:
    receiver = Receiver()
    receiver.answers = [Outcome(Answer.REFUSED, "HTTP 400"), Outcome(Answer.ACCEPTED, rejected=1)]
    one = exporter(receiver)
    for _ in range(2):
        one.offer(ended())
        one.offer(ended())
        one.send_batch()
    assert (one.sent, one.dropped["refused"], len(one)) == (1, 3, 0)


def test_a_full_queue_drops_the_newest_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_TRACES", 3)
    monkeypatch.setattr(module, "QUEUE_TOKENS", 20)
    one = exporter(Receiver())
    for tokens in (8, 8, 8, 1, 1):
        one.offer(ended(tokens))
    assert (len(one), one.dropped["queue_full"]) == (3, 2)


def test_nobody_waits_for_a_receiver_that_hangs_and_what_is_left_at_the_end_is_counted() -> None:
    go_on = threading.Event()
    begun = threading.Event()

    class Hangs(Receiver):
        def send(self, signal: Signal, body: bytes) -> Outcome:
            begun.set()
            go_on.wait()
            return super().send(signal, body)

    one = exporter(Hangs())
    one.offer(ended())
    one.start()
    assert begun.wait(10)
    for _ in range(5000):
        one.offer(ended())
    assert one.dropped["queue_full"] > 0
    one.stop(timeout_s=0.05)
    assert one.dropped["stopped"] == 4096
    go_on.set()


def test_what_waits_at_the_end_is_sent() -> None:
    receiver = Receiver()
    one = exporter(receiver)
    one.start()
    one.offer(ended())
    one.stop()
    assert (one.sent, sum(one.dropped.values())) == (1, 0)
