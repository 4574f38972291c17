from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon.host.clock import ManualClock, SystemClock
from gpumon.sim.sender import PAUSE_MAX_S, Sender
from gpumon.sim.spans import SpanMaker
from tests.e2e.waiting import eventually
from tests.export.receivers import HttpReceiver, Reply
from tests.ingest.receiving import Receiving
from tests.sim.test_spans import Told, request


class Bodies:
    """Hands out one body at each call, as long as there are any."""

    def __init__(self, count: int, each: int = 1) -> None:
        self.left = count
        self.each = each
        self.asked_s: list[float] = []

    def bodies(self, until_s: float) -> list[bytes]:
        self.asked_s.append(until_s)
        now = min(self.left, self.each)
        self.left -= now
        body = ExportTraceServiceRequest()
        span = body.resource_spans.add().scope_spans.add().spans.add()
        span.trace_id, span.span_id = b"t" * 16, b"s" * 8
        return [body.SerializeToString()] * now


def traces(url: str) -> str:
    return f"{url}/v1/traces"


def test_what_is_due_is_posted_on_one_kept_connection() -> None:
    clock, maker = ManualClock(), Bodies(6, each=2)
    with HttpReceiver() as receiver:
        sender = Sender(maker, clock, traces(receiver.url))
        for _ in range(3):
            sender.send_once()
            clock.step(0.25)
        sender.close()
        assert len(receiver.taken.traces) == 6
        assert len(receiver._server.connections) == 1
    assert sender.counts == {"sent": 6, "retried": 0, "refused": 0, "dropped": 0}
    assert maker.asked_s == pytest.approx([1000.0, 1000.25, 1000.5])


@pytest.mark.parametrize("code", [429, 502, 503, 504])
def test_what_is_put_off_goes_again_after_a_growing_pause(code: int) -> None:
    clock = ManualClock()
    with HttpReceiver([Reply(code), Reply(code), Reply(code)]) as receiver:
        sender = Sender(Bodies(1), clock, traces(receiver.url))
        tried_s = []
        while not sender.counts["sent"]:
            before = sender.counts["retried"]
            sender.send_once()
            if sender.counts["retried"] > before:
                tried_s.append(clock.now_s() - 1000)
            clock.step(0.1)
        sender.close()
        assert len(receiver.taken.traces) == 1
    assert tried_s == pytest.approx([0.0, 0.5, 1.5], abs=0.11)
    assert sender.counts["retried"] == 3
    assert sender.counts["dropped"] == 0


def test_the_pause_that_is_asked_for_is_kept() -> None:
    clock = ManualClock()
    with HttpReceiver([Reply(503, retry_after="7")]) as receiver:
        sender = Sender(Bodies(1), clock, traces(receiver.url))
        sender.send_once()
        clock.step(6.9)
        sender.send_once()
        assert receiver.taken.traces == []
        assert receiver.taken.refused == 1
        clock.step(0.2)
        sender.send_once()
        assert len(receiver.taken.traces) == 1
        sender.close()


def test_what_is_refused_is_given_up_and_the_next_goes_on() -> None:
    with HttpReceiver([Reply(400)]) as receiver:
        sender = Sender(Bodies(2, each=2), ManualClock(), traces(receiver.url))
        sender.send_once()
        sender.close()
        assert len(receiver.taken.traces) == 1
    assert sender.counts == {"sent": 1, "retried": 0, "refused": 1, "dropped": 0}


def test_nobody_listening_is_put_off_and_the_pause_is_bounded() -> None:
    with HttpReceiver() as receiver:
        url = traces(receiver.url)
    clock = ManualClock()
    sender = Sender(Bodies(1), clock, url)
    tried_s = []
    while clock.now_s() < 1100:
        before = sender.counts["retried"]
        sender.send_once()
        if sender.counts["retried"] > before:
            tried_s.append(clock.now_s())
        clock.step(0.5)
    assert len(tried_s) > 10
    assert tried_s[-1] - tried_s[-2] == pytest.approx(PAUSE_MAX_S, abs=0.5)
    assert sender.counts["sent"] == sender.counts["dropped"] == 0


def test_a_receiver_that_ends_the_connection_after_an_answer_is_connected_to_again() -> None:
    with HttpReceiver([Reply(close=True)]) as receiver:
        sender = Sender(Bodies(2), ManualClock(), traces(receiver.url))
        sender.send_once()
        sender.send_once()
        sender.close()
        assert len(receiver.taken.traces) == 2
    assert sender.counts["retried"] == 0


def test_a_kept_connection_that_was_ended_meanwhile_is_replaced_within_the_try() -> None:
    with HttpReceiver() as receiver:
        sender = Sender(Bodies(2), ManualClock(), traces(receiver.url))
        sender.send_once()
        receiver.drop_connections()
        sender.send_once()
        sender.close()
        assert len(receiver.taken.traces) == 2
    assert sender.counts["retried"] == 0


def test_an_answer_that_is_cut_short_is_no_answer() -> None:
    clock = ManualClock()
    with HttpReceiver([Reply(cut=True)]) as receiver:
        sender = Sender(Bodies(1), clock, traces(receiver.url))
        sender.send_once()
        assert sender.counts == {"sent": 0, "retried": 1, "refused": 0, "dropped": 0}
        clock.step(1.0)
        sender.send_once()
        sender.close()
    assert sender.counts["sent"] == 1


def test_what_waits_is_bounded_and_the_oldest_is_dropped() -> None:
    clock = ManualClock()
    with HttpReceiver([Reply(503, retry_after="10")]) as receiver:
        sender = Sender(Bodies(50, each=5), clock, traces(receiver.url), backlog=8)
        for _ in range(10):
            sender.send_once()
            clock.step(0.25)
        assert sender.counts["dropped"] == 42
        clock.step(10)
        sender.send_once()
        sender.close()
        assert len(receiver.taken.traces) == 8


@pytest.mark.parametrize("url", ["https://127.0.0.1:4318/v1/traces", "127.0.0.1:4318", "http:///v1/traces"])
def test_only_plain_http_is_spoken(url: str) -> None:
    with pytest.raises(ValueError, match="expected an http URL"):
        Sender(Bodies(0), ManualClock(), url)


def test_the_thread_sends_until_it_is_stopped() -> None:
    with HttpReceiver() as receiver:
        sender = Sender(Bodies(3), SystemClock(), traces(receiver.url), every_s=0.01)
        sender.start()
        eventually(lambda: len(receiver.taken.traces) == 3, "three bodies")
        sender.stop()
        assert sender.counts["sent"] == 3
        thread = sender._thread
        assert thread is not None
        assert not thread.is_alive()


def test_gpumon_s_own_receiver_takes_it() -> None:
    world = Told([request(number, 0.02, 0.03) for number in range(100)])
    with Receiving() as receiving:
        clock = ManualClock(at_s=world.started_at_s + 100)
        sender = Sender(SpanMaker(world, clock.to_unix), clock, traces(f"http://127.0.0.1:{receiving.http_port}"))
        sender.send_once()
        sender.close()
        eventually(lambda: sum(len(taken.decoded.spans) for taken in receiving.taken) == 100, "100 spans")
    assert sender.counts["sent"] == 2
