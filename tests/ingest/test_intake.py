from __future__ import annotations

import asyncio
import gzip
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from gpumon import catalogue
from gpumon.host.clock import ManualClock
from gpumon.ingest.intake import Decoders, Intake, Sink, SinkFullError
from gpumon.ingest.limits import Limits
from gpumon.ingest.records import Decoded, DecodeError
from gpumon.ingest.request import Ack, Outcome, Request, Signal, Transport
from gpumon.model import Metric

LIMITS = Limits(body_bytes=1000, queue_bytes=4000, queue_requests=50, gather_bytes=500)


class Decoding:
    """Decoders that remember what they were asked: a body of ``bad`` is malformed, of ``bug`` breaks them."""

    def __init__(self) -> None:
        self.turns: list[list[bytes]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.began = threading.Event()
        self.decoders = Decoders(self.traces, self.traces_json, self.logs, self.metrics)

    def traces(self, bodies: Sequence[bytes]) -> list[Decoded | DecodeError]:
        self.turns.append(list(bodies))
        self.began.set()
        assert self.may_go_on.wait(20)
        return [self.one(body) for body in bodies]

    def traces_json(self, body: bytes) -> Decoded:
        result = self.one(body)
        if isinstance(result, DecodeError):
            raise result
        return result

    def logs(self, body: bytes, json: bool) -> Decoded:
        return Decoded(ignored=len(body))

    def metrics(self, body: bytes, json: bool) -> int:
        return len(body)

    @staticmethod
    def one(body: bytes) -> Decoded | DecodeError:
        if body.startswith(b"bug"):
            raise KeyError("the secret prompt")
        if body.startswith(b"bad"):
            return DecodeError("not a trace request")
        if body.startswith(b"partial"):
            return Decoded(rejected={"bad_id": 2, "bad_time": 1}, message="ids of 24 bytes", truncated={"events": 5})
        return Decoded()


def request(body: bytes = b"x", signal: Signal = Signal.TRACES, *, is_json: bool = False, gz: bool = False) -> Request:
    return Request(Transport.HTTP, signal, body, is_json, gz, "127.0.0.1:1")


def run(
    scenario: Callable[[Intake], Awaitable[None]],
    decoding: Decoding | None = None,
    limits: Limits = LIMITS,
    sink: Sink | None = None,
    stored: Callable[[], bool] | None = None,
) -> Intake:
    """``scenario`` with an intake that runs; its sink forgets, unless another is given."""

    async def main() -> Intake:
        chosen = decoding or Decoding()
        intake = Intake(chosen.decoders, sink or (lambda *_: None), ManualClock(50.0), limits, stored)
        intake.start()
        await scenario(intake)
        chosen.may_go_on.set()
        await intake.stop(5.0)
        return intake

    return asyncio.run(main())


def value(intake: Intake, metric: Metric, *labels: str) -> float | None:
    found = [s.value for s in intake.samples() if s.metric is metric and s.labels == labels]
    assert all(isinstance(v, float) for v in found)
    return found[0] if found else None  # type: ignore[return-value]


def test_a_request_is_acknowledged_after_the_sink_has_taken_it() -> None:
    taken = []

    def sink(signal: Signal, decoded: Decoded, body: bytes, is_json: bool, peer: str, at_s: float) -> None:
        taken.append((signal, body, is_json, peer, at_s, threading.current_thread().name))

    async def scenario(intake: Intake) -> None:
        assert await intake.submit(request(b"abc")) == Ack(Outcome.OK)
        assert len(taken) == 1

    run(scenario, sink=sink)
    (signal, body, is_json, peer, at_s, thread) = taken[0]
    assert (signal, body, is_json, peer, at_s) == (Signal.TRACES, b"abc", False, "127.0.0.1:1", 50.0)
    assert thread.startswith("gpumon-intake")


def test_an_answer_waits_until_what_was_taken_is_stored_once_for_a_turn() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()
    order: list[str] = []

    def stored() -> bool:
        order.append("stored")
        return True

    async def scenario(intake: Intake) -> None:
        first = asyncio.create_task(intake.submit(request(b"a")))
        await asyncio.to_thread(decoding.began.wait, 20)
        rest = [asyncio.create_task(intake.submit(request(body))) for body in (b"b", b"bad", b"c")]
        await asyncio.sleep(0)
        decoding.may_go_on.set()
        outcomes = [(await one).outcome for one in (first, *rest)]
        assert outcomes == [Outcome.OK, Outcome.OK, Outcome.BAD, Outcome.OK]

    run(scenario, decoding, sink=lambda signal, decoded, body, *_: order.append(body.decode()), stored=stored)
    assert order == ["a", "stored", "b", "c", "stored"]


def test_what_was_taken_and_cannot_be_stored_is_to_come_again() -> None:
    async def scenario(intake: Intake) -> None:
        assert (await intake.submit(request(b"a"))).outcome is Outcome.OVERLOAD
        assert (await intake.submit(request(b"bad"))).outcome is Outcome.BAD

    intake = run(scenario, stored=lambda: False)
    assert value(intake, catalogue.OTLP_ITEMS, "http", "traces") == 0


def test_each_signal_goes_to_its_decoder_and_is_counted() -> None:
    async def scenario(intake: Intake) -> None:
        assert (await intake.submit(request(b"bad", is_json=True))).outcome is Outcome.BAD
        assert (await intake.submit(request(b"1234", Signal.LOGS))).outcome is Outcome.OK
        assert (await intake.submit(request(b"123456", Signal.METRICS, is_json=True))).outcome is Outcome.OK

    intake = run(scenario)
    assert value(intake, catalogue.OTLP_REQUESTS, "http", "traces", "bad") == 1
    assert value(intake, catalogue.OTLP_ITEMS, "http", "logs") == 4
    assert value(intake, catalogue.OTLP_ITEMS, "http", "metrics") == 6
    assert value(intake, catalogue.OTLP_RECEIVED_BYTES, "http") == 13
    assert value(intake, catalogue.OTLP_REQUESTS, "grpc", "traces", "ok") == 0


def test_what_was_left_out_is_told_and_counted_by_reason() -> None:
    async def scenario(intake: Intake) -> None:
        ack = await intake.submit(request(b"partial"))
        assert ack == Ack(Outcome.PARTIAL, 3, "ids of 24 bytes")

    intake = run(scenario)
    assert value(intake, catalogue.SPANS_REJECTED, "bad_id") == 2
    assert value(intake, catalogue.SPANS_TRUNCATED, "events") == 5


def test_reasons_are_bounded() -> None:
    def traces(bodies: Sequence[bytes]) -> list[Decoded | DecodeError]:
        return [Decoded(rejected={body.decode(): 1}) for body in bodies]

    decoding = Decoding()
    decoding.decoders = decoding.decoders._replace(traces=traces)

    async def scenario(intake: Intake) -> None:
        for number in range(40):
            await intake.submit(request(b"reason %d" % number))

    intake = run(scenario, decoding)
    assert value(intake, catalogue.SPANS_REJECTED, "other") == 8
    assert len({s.labels for s in intake.samples() if s.metric is catalogue.SPANS_REJECTED}) == 33


def test_requests_that_arrive_together_are_decoded_together() -> None:
    decoding = Decoding()

    async def scenario(intake: Intake) -> None:
        acks = await asyncio.gather(*(intake.submit(request(b"%d" % n)) for n in range(20)))
        assert all(ack.outcome is Outcome.OK for ack in acks)

    run(scenario, decoding)
    assert decoding.turns == [[b"%d" % n for n in range(20)]]


def test_a_turn_is_bounded_in_bytes_after_decompression() -> None:
    decoding = Decoding()
    bodies = [bytes(200), bytes(200), bytes(900), bytes(200)]

    async def scenario(intake: Intake) -> None:
        await asyncio.gather(*(intake.submit(request(gzip.compress(body), gz=True)) for body in bodies))

    run(scenario, decoding)
    assert [[len(body) for body in turn] for turn in decoding.turns] == [[200, 200, 900], [200]]


def test_gzip_is_undone_before_anybody_sees_it() -> None:
    taken = []

    async def scenario(intake: Intake) -> None:
        assert (await intake.submit(request(gzip.compress(b"abc"), gz=True))).outcome is Outcome.OK
        plain = await intake.submit(request(b"abc", gz=True))
        assert plain.outcome is Outcome.BAD
        assert "gzip" in plain.message
        bomb = await intake.submit(request(gzip.compress(bytes(1001)), gz=True))
        assert bomb.outcome is Outcome.TOO_LARGE
        assert bomb.retry_after_s == 0

    run(scenario, sink=lambda *given: taken.append(given[2]))
    assert taken == [b"abc"]


def test_a_request_above_the_limit_is_refused_unseen() -> None:
    decoding = Decoding()

    async def scenario(intake: Intake) -> None:
        assert (await intake.submit(request(bytes(1001)))).outcome is Outcome.TOO_LARGE
        assert (await intake.submit(request(bytes(1000)))).outcome is Outcome.OK

    run(scenario, decoding)
    assert len(decoding.turns) == 1


def test_a_full_queue_refuses_at_once_and_counts() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()

    async def scenario(intake: Intake) -> None:
        waiting = [asyncio.create_task(intake.submit(request())) for _ in range(50)]
        await asyncio.sleep(0)  # all of them wait now
        for _ in range(3):
            ack = await intake.submit(request())
            assert ack.outcome is Outcome.OVERLOAD
            assert 1 <= ack.retry_after_s <= 4
        assert value(intake, catalogue.OTLP_WAITING) == 50
        assert value(intake, catalogue.OTLP_WAITING_BYTES) == 50
        decoding.may_go_on.set()
        assert {ack.outcome for ack in await asyncio.gather(*waiting)} == {Outcome.OK}
        assert (await intake.submit(request())).outcome is Outcome.OK

    intake = run(scenario, decoding)
    assert value(intake, catalogue.OTLP_REQUESTS, "http", "traces", "overload") == 3
    assert value(intake, catalogue.OTLP_WAITING) == 0
    assert value(intake, catalogue.OTLP_WAITING_BYTES) == 0


def test_bytes_are_bounded_over_what_is_read_and_what_waits() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()

    async def scenario(intake: Intake) -> None:
        assert intake.hold(3000)
        assert not intake.hold(1001)
        waiting = asyncio.create_task(intake.submit(request(bytes(1000))))
        await asyncio.sleep(0)
        assert not intake.hold(1)
        assert (await intake.submit(request(b"x"))).outcome is Outcome.OVERLOAD
        intake.release(3000)
        decoding.may_go_on.set()
        assert (await waiting).outcome is Outcome.OK
        assert intake.hold(4000)
        intake.release(4000)

    run(scenario, decoding)


def test_what_cannot_be_answered_in_time_is_refused_and_not_taken() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()
    limits = replace(LIMITS, answer_within_s=0.1, gather_bytes=1)
    taken = []

    async def scenario(intake: Intake) -> None:
        first = asyncio.create_task(intake.submit(request(b"first")))
        await asyncio.to_thread(decoding.began.wait, 20)
        second = asyncio.create_task(intake.submit(request(b"second")))
        acks = await asyncio.gather(first, second)
        assert [ack.outcome for ack in acks] == [Outcome.OVERLOAD, Outcome.OVERLOAD]
        decoding.may_go_on.set()
        outcome = Outcome.OVERLOAD  # until the worker is back
        while outcome is Outcome.OVERLOAD:
            outcome = (await intake.submit(request(b"third"))).outcome
        assert outcome is Outcome.OK

    run(scenario, decoding, limits, sink=lambda *given: taken.append(given[2]))
    assert taken == [b"third"]


def test_a_worker_that_is_stuck_turns_new_requests_away_at_once() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()
    limits = replace(LIMITS, answer_within_s=3.0, gather_bytes=1)

    async def scenario(intake: Intake) -> None:
        loop = asyncio.get_running_loop()
        stuck = asyncio.create_task(intake.submit(request(b"stuck")))
        await asyncio.to_thread(decoding.began.wait, 20)
        await asyncio.sleep(2.5)  # more than 0.8 of that
        before = loop.time()
        assert (await intake.submit(request())).outcome is Outcome.OVERLOAD
        assert loop.time() - before < 0.5
        assert not stuck.done()
        await stuck

    run(scenario, decoding, limits)


def test_a_request_whose_sender_left_is_not_decoded() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()
    limits = replace(LIMITS, gather_bytes=1)

    async def scenario(intake: Intake) -> None:
        first = asyncio.create_task(intake.submit(request(b"first")))
        await asyncio.to_thread(decoding.began.wait, 20)
        gone = asyncio.create_task(intake.submit(request(b"gone")))
        last = asyncio.create_task(intake.submit(request(b"last")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})
        decoding.may_go_on.set()
        await asyncio.gather(first, last)

    intake = run(scenario, decoding, limits)
    assert decoding.turns == [[b"first"], [b"last"]]
    assert value(intake, catalogue.OTLP_WAITING) == 0


def test_a_bug_costs_only_the_request_that_meets_it(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(intake: Intake) -> None:
        bodies = [b"one", b"bug", b"two", b"bad", b"bug again"]
        acks = await asyncio.gather(*(intake.submit(request(body)) for body in bodies))
        expected = [Outcome.OK, Outcome.FAILED, Outcome.OK, Outcome.BAD, Outcome.FAILED]
        assert [ack.outcome for ack in acks] == expected
        assert (await intake.submit(request())).outcome is Outcome.OK

    with caplog.at_level(logging.INFO):
        run(scenario)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "KeyError" in record.getMessage()
    assert "secret" not in caplog.text


def test_a_bug_of_the_sink_keeps_the_answers_of_those_it_took() -> None:
    taken = []

    def sink(signal: Signal, decoded: Decoded, body: bytes, is_json: bool, peer: str, at_s: float) -> None:
        if body == b"breaks":
            raise RuntimeError
        taken.append(body)

    async def scenario(intake: Intake) -> None:
        acks = await asyncio.gather(*(intake.submit(request(body)) for body in (b"one", b"breaks", b"two")))
        assert [ack.outcome for ack in acks] == [Outcome.OK, Outcome.FAILED, Outcome.OK]

    run(scenario, sink=sink)
    assert taken == [b"one", b"two"]


def test_a_sink_that_is_full_is_an_overload() -> None:
    def sink(*_: object) -> None:
        raise SinkFullError

    async def scenario(intake: Intake) -> None:
        ack = await intake.submit(request())
        assert ack.outcome is Outcome.OVERLOAD
        assert ack.retry_after_s > 0

    intake = run(scenario, sink=sink)
    assert value(intake, catalogue.OTLP_ITEMS, "http", "traces") == 0


def test_before_its_start_and_after_its_stop_it_says_unavailable() -> None:
    async def main() -> None:
        intake = Intake(Decoding().decoders, lambda *_: None, ManualClock(), LIMITS)
        before = await intake.submit(request())
        intake.start()
        await intake.stop(1.0)
        after = await intake.submit(request())
        assert [ack.outcome for ack in (before, after)] == [Outcome.UNAVAILABLE] * 2
        assert after.retry_after_s > 0

    asyncio.run(main())


def test_stop_answers_what_is_there_and_turns_the_rest_away() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()

    async def main() -> list[Ack]:
        intake = Intake(decoding.decoders, lambda *_: None, ManualClock(), replace(LIMITS, gather_bytes=1))
        intake.start()
        requests = [asyncio.create_task(intake.submit(request(b"%d" % n))) for n in range(3)]
        await asyncio.to_thread(decoding.began.wait, 20)
        await intake.stop(0.05)
        decoding.may_go_on.set()
        return await asyncio.gather(*requests)

    assert [ack.outcome for ack in asyncio.run(main())] == [Outcome.UNAVAILABLE] * 3


def test_stop_lets_the_queue_drain() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()

    async def main() -> list[Ack]:
        intake = Intake(decoding.decoders, lambda *_: None, ManualClock(), replace(LIMITS, gather_bytes=1))
        intake.start()
        requests = [asyncio.create_task(intake.submit(request(b"%d" % n))) for n in range(3)]
        await asyncio.to_thread(decoding.began.wait, 20)
        asyncio.get_running_loop().call_later(0.05, decoding.may_go_on.set)
        await intake.stop(10.0)
        return await asyncio.gather(*requests)

    assert [ack.outcome for ack in asyncio.run(main())] == [Outcome.OK] * 3


def test_the_event_loop_is_free_while_the_worker_works() -> None:
    decoding = Decoding()
    decoding.may_go_on.clear()

    async def scenario(intake: Intake) -> None:
        busy = asyncio.create_task(intake.submit(request()))
        await asyncio.to_thread(decoding.began.wait, 20)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not busy.done()
        decoding.may_go_on.set()
        assert (await busy).outcome is Outcome.OK

    run(scenario, decoding)


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="queue_bytes"):
        Limits(body_bytes=100, queue_bytes=99)
