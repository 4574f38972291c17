"""The forwarder against receivers of the tests' own, through real sockets, on a clock that is stepped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message import Message

from gpumon.catalogue import (
    FORWARD_DROPPED,
    FORWARD_QUEUE_BYTES,
    FORWARD_QUEUE_ITEMS,
    FORWARD_RETRIES,
    FORWARD_SENT,
    FORWARD_UP,
)
from gpumon.export.forward import Disk, Forwarder, Limits
from gpumon.export.forward_edit import Attribute
from gpumon.export.forward_send import Answer, Backoff, Endpoint, Outcome, Tls, make_sender
from gpumon.export.forward_tail import SlowRule, SlowTail, keep_ratio
from gpumon.host.clock import ManualClock, SystemClock
from gpumon.ingest.request import Signal, Transport
from gpumon.model import Metric, RequestRecord
from tests.export.otlp_requests import START_NS, as_json, logs, metrics, span_id, trace_id, traces
from tests.export.receivers import Certificates, GrpcReceiver, HttpReceiver, Receiver, Reply

RECEIVERS: dict[Transport, type[HttpReceiver] | type[GrpcReceiver]] = {
    Transport.HTTP: HttpReceiver,
    Transport.GRPC: GrpcReceiver,
}
both = pytest.mark.parametrize("protocol", RECEIVERS)


def values(forwarder: Forwarder) -> dict[tuple[Metric, tuple[str, ...]], float]:
    """What it says about itself."""
    return {(sample.metric, sample.labels): cast(float, sample.value) for sample in forwarder.samples()}


class Bench:
    """A forwarder without threads: time moves when ``run`` has nothing more to do at this moment."""

    def __init__(
        self,
        url: str,
        protocol: Transport,
        clock: ManualClock | None = None,
        *,
        timeout_s: float = 5.0,
        tls: Tls = Tls(),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        endpoint = Endpoint(url, protocol, headers={"Authorization": "Bearer t"}, tls=tls, timeout_s=timeout_s)
        sender = make_sender(endpoint, SystemClock().now_s, lambda: self.clock.to_unix(self.clock.now_s()))
        self.forwarder = Forwarder(sender, self.clock, backoff=Backoff(random=lambda: 0.0), **options)

    def offer(self, request: Message, signal: Signal = Signal.TRACES) -> None:
        body = request.SerializeToString()
        self.forwarder.offer(signal, body, is_json=False, at_s=self.clock.now_s())

    def run(self, seconds: float = 0.0) -> None:
        """All that happens in this time."""
        end_s = self.clock.now_s() + seconds
        while True:
            due_s = [self.forwarder.prepare(), self.forwarder.deliver()]
            now_s = self.clock.now_s()
            next_s = min((at_s for at_s in due_s if at_s is not None), default=end_s)
            if next_s <= now_s and any(at_s is not None for at_s in due_s):
                continue
            if now_s >= end_s:
                return
            self.clock.step(min(max(next_s, now_s + 0.001), end_s) - now_s)

    def value(self, metric: Metric, *labels: str) -> float:
        return values(self.forwarder)[metric, labels]

    @property
    def dropped(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for (metric, labels), value in values(self.forwarder).items():
            if metric is FORWARD_DROPPED and value:
                found[labels[1]] = found.get(labels[1], 0.0) + value
        return found


@pytest.fixture(params=list(RECEIVERS))
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    with RECEIVERS[request.param]() as receiver:
        yield receiver


@pytest.fixture
def bench(receiver: Receiver) -> Iterator[Bench]:
    bench = Bench(receiver.url, receiver.protocol)
    yield bench
    bench.forwarder.close()


def test_every_signal_arrives_as_it_was(bench: Bench, receiver: Receiver) -> None:
    sent = [(Signal.TRACES, traces(1, 3, events=5)), (Signal.METRICS, metrics(2)), (Signal.LOGS, logs(4))]
    for signal, request in sent:
        bench.offer(request, signal)
    bench.run()
    assert sorted(receiver.taken.requests) == sorted((str(signal), request) for signal, request in sent)
    assert [bench.value(FORWARD_SENT, signal) for signal in Signal] == [3, 2, 4]
    assert receiver.taken.headers[0]["authorization"] == "Bearer t"
    assert receiver.taken.headers[0]["user-agent"].startswith("gpumon/")
    assert bench.value(FORWARD_QUEUE_BYTES, "memory") == bench.value(FORWARD_QUEUE_ITEMS, "memory") == 0
    assert not bench.dropped


def test_json_arrives_as_protobuf_with_its_ids(bench: Bench, receiver: Receiver) -> None:
    for signal, request in (
        (Signal.TRACES, traces(1, 3, events=2)),
        (Signal.LOGS, logs(2)),
        (Signal.METRICS, metrics()),
    ):
        bench.forwarder.offer(signal, as_json(request), is_json=True, at_s=0.0)
    bench.run()
    assert receiver.taken.requests == [("traces", traces(1, 3, events=2)), ("metrics", metrics()), ("logs", logs(2))]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"resourceSpans":7}',
        b"[" * 100_000,
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":1}]}]}]}',
    ],
)
def test_json_that_is_none_is_counted_and_others_go_on(body: bytes, bench: Bench, receiver: Receiver) -> None:
    bench.forwarder.offer(Signal.TRACES, body, is_json=True, at_s=0.0)
    bench.forwarder.offer(Signal.TRACES, b"\xff\xff", is_json=False, at_s=0.0)
    bench.offer(traces(1))
    bench.run()
    assert bench.dropped == {"malformed": 2}
    assert len(receiver.taken.spans) == 1


def test_spans_without_valid_ids_are_left_out(bench: Bench, receiver: Receiver) -> None:
    request = traces(1, 4)
    spans = request.resource_spans[0].scope_spans[0].spans
    spans[0].trace_id, spans[1].span_id, spans[2].trace_id = bytes(16), b"", bytes(24)
    bench.offer(request)
    bench.run()
    assert list(receiver.taken.span_ids) == [span_id(4)]
    assert bench.dropped == {"invalid_id": 3}


def test_small_requests_are_joined_and_large_ones_are_cut(receiver: Receiver) -> None:
    bench = Bench(receiver.url, receiver.protocol, limits=Limits(batch_bytes=20_000, batch_items=100))
    for number in range(50):
        bench.offer(traces(1 + number))
    bench.offer(traces(1000, 30, events=50))  # 80 kB
    bench.offer(traces(2000, 350))
    bench.run()
    ids = receiver.taken.span_ids
    assert len(ids) == 430
    assert set(ids.values()) == {1}
    requests = receiver.taken.traces
    assert len(requests) < 20
    assert all(request.ByteSize() <= 20_000 for request in requests)
    for request in requests:
        for resource in request.resource_spans:
            assert resource.resource.attributes[0].key == "service.name"
            assert resource.schema_url
            assert resource.scope_spans[0].scope.name == "vllm.tracing.otel"
    bench.forwarder.close()


def test_a_span_larger_than_a_batch_goes_alone(receiver: Receiver) -> None:
    bench = Bench(receiver.url, receiver.protocol, limits=Limits(batch_bytes=5000))
    bench.offer(traces(1, 3, events=200))
    bench.run()
    assert [len(request.resource_spans[0].scope_spans[0].spans) for request in receiver.taken.traces] == [1, 1, 1]
    bench.forwarder.close()


# --- answers ----------------------------------------------------------------------------------------------------------

HTTP_RETRYABLE = (429, 502, 503, 504)
HTTP_FINAL = (400, 401, 403, 404, 405, 413, 415, 500, 501, 301)
GRPC_RETRYABLE = ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS")
GRPC_CODES = {code.name: code.value[0] for code in grpc.StatusCode}
GRPC_FINAL = tuple(name for name in GRPC_CODES if name not in (*GRPC_RETRYABLE, "OK"))


@pytest.mark.parametrize(
    ("protocol", "code"),
    [(Transport.HTTP, code) for code in HTTP_RETRYABLE]
    + [(Transport.GRPC, GRPC_CODES[name]) for name in GRPC_RETRYABLE],
)
def test_retryable_answers_are_tried_again_until_taken(protocol: Transport, code: int) -> None:
    with RECEIVERS[protocol]([Reply(code)] * 3) as receiver:
        bench = Bench(receiver.url, protocol)
        bench.offer(traces(1))
        bench.run()
        assert bench.value(FORWARD_UP) == 0
        assert bench.value(FORWARD_QUEUE_ITEMS, "memory") == 1
        bench.run(1.0)
        assert receiver.taken.refused == 2
        bench.run(1.9)
        assert receiver.taken.refused == 2, "the wait doubles"
        bench.run(0.1 + 4.0)
        assert list(receiver.taken.span_ids.items()) == [(span_id(1), 1)]
        assert bench.value(FORWARD_RETRIES) == 3
        assert bench.value(FORWARD_UP) == 1
        assert not bench.dropped
        bench.forwarder.close()


@pytest.mark.parametrize(
    ("protocol", "code"),
    [(Transport.HTTP, code) for code in HTTP_FINAL] + [(Transport.GRPC, GRPC_CODES[name]) for name in GRPC_FINAL],
)
def test_final_answers_drop_the_batch_and_count_it(protocol: Transport, code: int) -> None:
    with RECEIVERS[protocol]([Reply(code)]) as receiver:
        bench = Bench(receiver.url, protocol)
        bench.offer(traces(1, 3))
        bench.run()
        bench.offer(traces(7, 2))
        bench.run()
        assert set(receiver.taken.span_ids) == {span_id(7), span_id(8)}
        assert bench.dropped == {"refused": 3}
        assert bench.value(FORWARD_SENT, "traces") == 2
        bench.forwarder.close()


def test_resource_exhausted_is_tried_again_only_with_retry_info() -> None:
    with GrpcReceiver([Reply(8, retry_after="7.5")]) as receiver:
        bench = Bench(receiver.url, Transport.GRPC)
        bench.offer(traces(1))
        bench.run(7.4)
        assert not receiver.taken.spans
        bench.run(0.2)
        assert len(receiver.taken.spans) == 1
        bench.forwarder.close()


def retry_after_date(clock: ManualClock) -> str:
    return format_datetime(datetime.fromtimestamp(clock.to_unix(clock.now_s()) + 20, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        (lambda clock: "20", 20),
        (retry_after_date, 20),
        (lambda clock: "soon", 1),
        (lambda clock: "9" * 400, 300),
        (lambda clock: "-4", 1),
        (lambda clock: "0", 1),
    ],
)
def test_retry_after_is_honoured_within_reason(header: Callable[[ManualClock], str], wait_s: float) -> None:
    clock = ManualClock()
    with HttpReceiver([Reply(503, retry_after=header(clock))]) as receiver:
        bench = Bench(receiver.url, Transport.HTTP, clock)
        bench.offer(traces(1))
        bench.run(wait_s - 0.01)
        assert not receiver.taken.spans
        bench.run(0.02)
        assert len(receiver.taken.spans) == 1
        bench.forwarder.close()


def test_partial_success_is_read_and_counted(bench: Bench, receiver: Receiver) -> None:
    receiver.script.extend([Reply(rejected=2), Reply(rejected=99)])
    bench.offer(traces(1, 5))
    bench.run()
    bench.offer(logs(3), Signal.LOGS)
    bench.run()
    assert bench.value(FORWARD_SENT, "traces") == 3
    assert bench.value(FORWARD_SENT, "logs") == 0
    assert bench.dropped == {"partial": 5}


def test_a_downstream_that_hangs_is_given_up_at_the_deadline_and_tried_again(
    receiver: Receiver,
) -> None:
    receiver.script.append(Reply(hang=True))
    bench = Bench(receiver.url, receiver.protocol, timeout_s=1.0)
    bench.offer(traces(1))
    bench.run()
    assert bench.value(FORWARD_RETRIES) == 1
    bench.run(2.0)
    assert bench.value(FORWARD_SENT, "traces") == 1
    assert receiver.taken.span_ids == {span_id(1): 2}  # it had taken it before it hung
    bench.forwarder.close()


@pytest.mark.parametrize("reply", [Reply(drip=True), Reply(cut=True)], ids=["one byte at a time", "cut off"])
def test_half_an_answer_is_no_answer(reply: Reply) -> None:
    with HttpReceiver([reply]) as receiver:
        bench = Bench(receiver.url, Transport.HTTP, timeout_s=0.3)
        bench.offer(traces(1))
        bench.run()
        assert bench.value(FORWARD_RETRIES) == 1
        assert bench.value(FORWARD_SENT, "traces") == 0
        bench.run(2.0)
        assert bench.value(FORWARD_SENT, "traces") == 1
        bench.forwarder.close()


def test_connections_that_end_after_an_answer_cost_no_retry() -> None:
    with HttpReceiver([Reply(rejected=1, close=True), Reply(), Reply(cut=True)]) as receiver:
        bench = Bench(receiver.url, Transport.HTTP)
        for number in range(2):
            bench.offer(traces(1 + 2 * number, 2))
            bench.run()
        assert bench.dropped == {"partial": 1}
        assert bench.value(FORWARD_SENT, "traces") == 3
        assert bench.value(FORWARD_RETRIES) == 0
        bench.forwarder.close()


@both
def test_a_connection_that_died_meanwhile_costs_at_most_one_retry(protocol: Transport) -> None:
    with RECEIVERS[protocol]() as receiver:
        bench = Bench(receiver.url, protocol)
        bench.offer(traces(1))
        bench.run()
        receiver.drop_connections()
        bench.offer(traces(2))
        bench.run(2.0)
        assert len(receiver.taken.spans) == 2
        assert bench.value(FORWARD_RETRIES) <= (protocol is Transport.GRPC)
        bench.forwarder.close()


@both
def test_nobody_at_the_other_end_is_tried_again(protocol: Transport) -> None:
    with RECEIVERS[protocol]() as receiver:
        url = receiver.url
    bench = Bench(url, protocol)
    bench.offer(traces(1))
    bench.run(10.0)
    assert bench.value(FORWARD_RETRIES) == 4
    assert bench.value(FORWARD_QUEUE_ITEMS, "memory") == 1
    bench.forwarder.close()
    assert bench.dropped == {"stopped": 1}


def test_a_batch_is_not_tried_for_ever() -> None:
    with HttpReceiver([Reply(503)] * 100) as receiver:
        bench = Bench(receiver.url, Transport.HTTP, limits=Limits(give_up_s=100.0))
        bench.offer(traces(1))
        bench.run(200.0)
        assert bench.dropped == {"gave_up": 1}
        bench.forwarder.close()


# --- bounds -----------------------------------------------------------------------------------------------------------


@both
def test_tls_with_a_certificate_of_our_own(protocol: Transport, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with RECEIVERS[protocol](certificates=certificates) as receiver:
        bench = Bench(receiver.url, protocol, tls=certificates.tls)
        bench.offer(traces(1))
        bench.run()
        assert bench.value(FORWARD_SENT, "traces") == 1
        bench.forwarder.close()
        for wrong in (Tls(), Tls(certificates.tls.ca), Tls(tmp_path / "missing.pem")):
            bench = Bench(receiver.url, protocol, tls=wrong)
            bench.offer(traces(2))
            bench.run()
            assert bench.value(FORWARD_RETRIES) == 1
            bench.forwarder.close()
        assert len(receiver.taken.spans) == 1


@pytest.mark.parametrize("url", ["localhost:4317", "ftp://localhost:1", "http://", "", "http://localhost:4317/path"])
def test_endpoints_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        Endpoint(url, Transport.GRPC)


class NoSender:
    """A downstream that is away."""

    def send(self, signal: Signal, body: bytes) -> Outcome:
        return Outcome(Answer.RETRY)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("limits", [Limits(max_bytes=100_000), Limits(max_requests=30)], ids=["bytes", "requests"])
def test_memory_is_bounded_and_what_is_refused_is_counted(limits: Limits) -> None:
    forwarder = Forwarder(NoSender(), ManualClock(), limits=limits)
    body, as_text = traces(1, 5, events=20).SerializeToString(), as_json(traces(1, 5))
    for _ in range(60):
        forwarder.offer(Signal.TRACES, body, is_json=False, at_s=0.0)
        forwarder.offer(Signal.TRACES, as_text, is_json=True, at_s=0.0)
        forwarder.offer(Signal.METRICS, b"\xff", is_json=False, at_s=0.0)
    found = values(forwarder)
    assert found[FORWARD_QUEUE_BYTES, ("memory",)] <= 100_000
    before = found[FORWARD_DROPPED, ("traces", "queue_full")]
    assert before > 0
    assert before % 5 == 0
    forwarder.prepare()
    forwarder.deliver()
    forwarder.close()
    found = values(forwarder)
    assert found[FORWARD_DROPPED, ("traces", "stopped")] == 600 - before


# --- attributes -------------------------------------------------------------------------------------------------------


def annotate(trace: bytes, span: bytes, start_ns: int, end_ns: int) -> list[Attribute]:
    assert end_ns - start_ns == 1_000_000_000
    return [("gpumon.gpu.uuids", ("GPU-1", "GPU-2")), ("gpumon.gpu.sm_active", 0.5)] if span == span_id(2) else []


def test_attributes_are_added_once_the_samples_are_there(receiver: Receiver) -> None:
    bench = Bench(receiver.url, receiver.protocol, annotate=annotate, limits=Limits(settle_s=2.0))
    bench.offer(traces(1, 3))
    bench.run(1.9)
    assert not receiver.taken.spans
    assert bench.value(FORWARD_QUEUE_ITEMS, "memory") == 3
    bench.run(0.2)
    first, second, third = receiver.taken.spans
    assert len(first.attributes) == len(third.attributes) == 1
    uuids, active = second.attributes[1:]
    assert (uuids.key, [value.string_value for value in uuids.value.array_value.values]) == (
        "gpumon.gpu.uuids",
        ["GPU-1", "GPU-2"],
    )
    assert (active.key, active.value.double_value) == ("gpumon.gpu.sm_active", 0.5)
    del second.attributes[1:]
    assert [first, second, third] == list(traces(1, 3).resource_spans[0].scope_spans[0].spans)
    bench.forwarder.close()


# --- tail policies ----------------------------------------------------------------------------------------------------


def record(number: int, *, first_token_s: float | None = None, duration_s: float = 0.1) -> RequestRecord:
    return RequestRecord(
        trace_id=trace_id(number), request_id="", server="vllm", model="", arrived_s=0.0,
        start_ns=START_NS, end_ns=START_NS + int(duration_s * 1e9), time_to_first_token_s=first_token_s,
    )  # fmt: skip


def slow_bench(url: str, **options: Any) -> Bench:
    rule = SlowRule(time_to_first_token_s=1.0, duration_s=5.0)
    tail = SlowTail(rule, hold_s=30.0, max_bytes=1 << 20)
    return Bench(url, Transport.HTTP, tail=tail, **options)


def test_only_traces_with_a_slow_request_are_forwarded_and_whole() -> None:
    with HttpReceiver() as receiver:
        bench = slow_bench(receiver.url)
        bench.offer(traces(1, 4, trace=1))
        bench.offer(traces(11, 4, trace=2))
        bench.run(1.0)
        assert not receiver.taken.spans
        assert bench.value(FORWARD_QUEUE_ITEMS, "memory") == 8
        bench.forwarder.judge(record(1, first_token_s=1.5))
        bench.forwarder.judge(record(2, first_token_s=0.5))
        bench.run()
        assert set(receiver.taken.span_ids) == {span_id(number) for number in (1, 2, 3, 4)}
        assert bench.dropped == {"tail_policy": 4}
        bench.offer(traces(5, 1, trace=1))
        bench.offer(traces(15, 1, trace=2))
        bench.run()
        assert span_id(5) in receiver.taken.span_ids
        assert bench.dropped == {"tail_policy": 5}
        bench.forwarder.judge(record(2, duration_s=9.0))
        bench.offer(traces(16, 1, trace=2))
        bench.run()
        assert span_id(16) in receiver.taken.span_ids, "a later slow request keeps what still comes"
        assert bench.value(FORWARD_QUEUE_ITEMS, "memory") == 0
        bench.forwarder.close()


def test_a_trace_that_nobody_judges_is_decided_by_what_it_spans() -> None:
    with HttpReceiver() as receiver:
        bench = slow_bench(receiver.url)
        bench.offer(traces(1, 2, trace=1))
        long = traces(11, 2, trace=2)
        long.resource_spans[0].scope_spans[0].spans[1].end_time_unix_nano = START_NS + 6_000_000_000
        bench.offer(long)
        bench.run(29.0)
        assert not receiver.taken.spans
        bench.run(2.0)
        assert set(receiver.taken.span_ids) == {span_id(11), span_id(12)}
        assert bench.dropped == {"undecided": 2}
        bench.forwarder.close()


def test_traces_that_wait_are_bounded() -> None:
    rule = SlowRule(duration_s=5.0)
    with HttpReceiver() as receiver:
        bench = Bench(receiver.url, Transport.HTTP, tail=SlowTail(rule, hold_s=1e6, max_bytes=20_000))
        for number in range(1, 200):
            bench.offer(traces(number))
            bench.run(0.001)
        assert bench.value(FORWARD_QUEUE_BYTES, "memory") <= 20_000
        assert bench.dropped["undecided"] > 100
        bench.forwarder.close()


def test_metrics_and_logs_pass_the_tail_policies() -> None:
    with HttpReceiver() as receiver:
        bench = slow_bench(receiver.url)
        bench.offer(metrics(), Signal.METRICS)
        bench.offer(logs(), Signal.LOGS)
        bench.run()
        assert [signal for signal, _ in receiver.taken.requests] == ["metrics", "logs"]
        bench.forwarder.close()


def test_a_ratio_keeps_whole_traces_and_always_the_same() -> None:
    with HttpReceiver() as receiver:
        bench = Bench(receiver.url, Transport.HTTP, keep=keep_ratio(0.25))
        for number in range(1, 1001):
            bench.offer(traces(2 * number, 2, trace=number))
        bench.run()
        kept = Counter(span.trace_id for span in receiver.taken.spans)
        assert set(kept.values()) == {2}
        assert 190 < len(kept) < 310
        assert bench.dropped == {"tail_policy": 2000 - 2 * len(kept)}
        assert set(kept) == {trace_id(number) for number in range(1, 1001) if keep_ratio(0.25)(trace_id(number))}
        bench.forwarder.close()


@pytest.mark.parametrize(("ratio", "kept"), [(0.0, 0), (1.0, 100)])
def test_ratios_of_nothing_and_all(ratio: float, kept: int) -> None:
    assert sum(map(keep_ratio(ratio), map(trace_id, range(100)))) == kept


# --- what gpumon makes itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        {"keep": keep_ratio(0.0)},
        {"tail": SlowTail(SlowRule(duration_s=5.0), hold_s=30.0, max_bytes=1 << 20)},
        {"annotate": lambda *_: [("gpumon.gpu.sm_active", 0.5)], "limits": Limits(settle_s=60.0)},
    ],
    ids=["ratio", "slow", "annotated"],
)
def test_own_spans_go_at_once_and_unchanged_whatever_the_policy(policy: dict[str, Any], receiver: Receiver) -> None:
    bench = Bench(receiver.url, receiver.protocol, **policy)
    bench.offer(traces(1))
    body = traces(7).SerializeToString()
    bench.forwarder.offer(Signal.TRACES, body, is_json=False, at_s=bench.clock.now_s(), own=True)
    bench.run()
    assert list(receiver.taken.spans) == list(traces(7).resource_spans[0].scope_spans[0].spans)
    assert bench.value(FORWARD_SENT, "traces") == 1
    bench.run(120.0)
    assert span_id(7) not in {span.span_id for span in receiver.taken.spans[1:]}
    bench.forwarder.close()


def test_own_spans_wait_in_the_spool_like_others_and_outlive_gpumon(tmp_path: Path) -> None:
    clock = ManualClock()
    with HttpReceiver([Reply(503)]) as receiver:
        bench = slow_bench(receiver.url, clock=clock, disk=Disk(tmp_path))
        bench.forwarder.offer(Signal.TRACES, traces(7).SerializeToString(), is_json=False, at_s=clock.now_s(), own=True)
        bench.run()
        assert not receiver.taken.spans
        bench.forwarder.close()
        bench = slow_bench(receiver.url, clock=clock, disk=Disk(tmp_path))
        bench.run(5.0)
        assert list(receiver.taken.span_ids) == [span_id(7)]
        bench.forwarder.close()


# --- outages ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "settling"])
def test_an_outage_of_five_minutes_with_a_restart_in_the_middle_loses_nothing(
    protocol: Transport, waits: bool, tmp_path: Path
) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"disk": Disk(tmp_path)}
    if waits:
        options["annotate"] = lambda *_: [("gpumon.gpu.sm_active", 0.25)]
    with RECEIVERS[protocol]() as receiver:
        receiver.default = Reply(503 if protocol is Transport.HTTP else GRPC_CODES["UNAVAILABLE"])
        offered = 0
        bench = Bench(receiver.url, protocol, clock, **options)
        for second in range(300):
            bench.offer(traces(1 + offered, 7))
            offered += 7
            bench.run(1.0)
            if second == 150:
                bench.offer(traces(1 + offered, 3))  # stored, not settled
                offered += 3
                bench.forwarder.prepare()
                bench.forwarder.close()  # kills are in test_spool.py: nothing more is written here either
                bench = Bench(receiver.url, protocol, clock, **options)
        assert not receiver.taken.spans
        assert bench.value(FORWARD_QUEUE_BYTES, "memory") < 100_000
        assert bench.value(FORWARD_QUEUE_ITEMS, "spool") > 0
        receiver.default = Reply()
        bench.run(60.0)
        assert receiver.taken.span_ids == {span_id(number): 1 for number in range(1, offered + 1)}
        assert bench.value(FORWARD_SENT, "traces") == offered
        assert not bench.dropped
        assert bench.value(FORWARD_QUEUE_ITEMS, "spool") == bench.value(FORWARD_QUEUE_ITEMS, "memory") == 0
        if waits:
            assert all(span.attributes[-1].key == "gpumon.gpu.sm_active" for span in receiver.taken.spans)
        bench.forwarder.close()
        assert [path.name for path in tmp_path.rglob("*.seg")] == []


def test_a_slow_tail_keeps_on_disk_what_it_has_not_decided(tmp_path: Path) -> None:
    clock = ManualClock()
    with HttpReceiver() as receiver:
        bench = slow_bench(receiver.url, clock=clock, disk=Disk(tmp_path))
        bench.offer(traces(1, 2, trace=1))
        bench.offer(traces(11, 2, trace=2))
        bench.run(1.0)
        bench.forwarder.judge(record(2))
        bench.run(1.0)
        bench.forwarder.close()
        bench = slow_bench(receiver.url, clock=clock, disk=Disk(tmp_path))
        bench.run(1.0)
        bench.forwarder.judge(record(1, first_token_s=2.0))
        bench.run(1.0)
        assert receiver.taken.span_ids == {span_id(1): 1, span_id(2): 1}
        bench.forwarder.close()


# --- threads ----------------------------------------------------------------------------------------------------------


@both
def test_threads_send_and_stop_drains(protocol: Transport, tmp_path: Path) -> None:
    clock = SystemClock()
    with RECEIVERS[protocol]() as receiver:
        sender = make_sender(Endpoint(receiver.url, protocol), clock.now_s, lambda: clock.to_unix(clock.now_s()))
        forwarder = Forwarder(sender, clock, disk=Disk(tmp_path))
        forwarder.start()
        for number in range(1, 200):
            forwarder.offer(Signal.TRACES, traces(number).SerializeToString(), is_json=False, at_s=clock.now_s())
        assert forwarder.wait_stored(5.0)
        forwarder.stop(5.0)
        assert receiver.taken.span_ids == {span_id(number): 1 for number in range(1, 200)}


def test_stop_does_not_wait_for_a_downstream_that_is_away() -> None:
    clock = SystemClock()
    forwarder = Forwarder(NoSender(), clock, annotate=lambda *_: [])
    forwarder.start()
    forwarder.offer(Signal.TRACES, traces(1, 4).SerializeToString(), is_json=False, at_s=clock.now_s())
    before_s = clock.now_s()
    forwarder.stop(0.2)
    assert clock.now_s() - before_s < 2.0
    found = values(forwarder)
    assert found[FORWARD_DROPPED, ("traces", "stopped")] == 4
