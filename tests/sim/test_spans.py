"""What the simulated servers export, read by gpumon's own decoders, assembler and binder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon.ingest.assembly import Assembler
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.nccl import CollectiveRecord, Collectives
from gpumon.ingest.records import Decoded
from gpumon.model import GpuProcess, GpuUuid, RequestRecord
from gpumon.requests.binding import Binder
from gpumon.sim.files import SimFiles
from gpumon.sim.spans import BATCH, SpanMaker
from gpumon.sim.state import CollectiveStep, FinishedRequest
from gpumon.sim.world import World
from tests.sim.nodes import DENSE, SEED, STARTED_S, clock_at, node, scenario

UNIX_S = 1_800_000_000.0 - STARTED_S


def to_unix(at_s: float) -> float:
    return at_s + UNIX_S


class Told(World):
    """A world in which exactly this has ended."""

    def __init__(
        self, requests: Sequence[FinishedRequest] = (), steps: Sequence[CollectiveStep] = (), *faults: str
    ) -> None:
        super().__init__(scenario(*faults), started_at_s=STARTED_S, seed=SEED)
        self._told = (list(requests), list(steps))

    def take_requests(self, until_s: float) -> list[FinishedRequest]:
        requests = [request for request in self._told[0] if request.end_s <= until_s]
        self._told = ([request for request in self._told[0] if request.end_s > until_s], self._told[1])
        return requests

    def take_collectives(self, until_s: float) -> list[CollectiveStep]:
        steps, self._told = self._told[1], (self._told[0], [])
        return steps


def request(number: int = 0, *gaps_s: float, server: int = 0, start_s: float = 3.0, **other: object) -> FinishedRequest:
    """A request that came ``start_s`` after the story's begin; its first token came half a second later."""
    start_s += STARTED_S
    token_s = tuple(start_s + 0.5 + float(gap_s) for gap_s in np.cumsum([0.0, *gaps_s]))
    fields: dict[str, object] = {
        "queue_s": 0.2,
        "prefill_s": 0.3,
        "token_s": token_s,
        "end_s": token_s[-1] + 0.001,
        "prompt_tokens": 1200,
        "cached_tokens": 400,
        "outcome": "ok",
        "tenant": "acme",
        "parameters": (("temperature", 0.7), ("max_tokens", 256.0)),
        "prompt_group": "summarize",
        "score": None,
        "truth": (("page_faults", 0.5),),
        "first_truth": (),
    }
    return FinishedRequest(server=server, number=number, start_s=start_s, **(fields | other))  # type: ignore[arg-type]


def decoded(bodies: Sequence[bytes]) -> list[Decoded]:
    found = decode_traces(bodies)
    assert all(isinstance(one, Decoded) and not one.rejected and not one.truncated for one in found)
    return [one for one in found if isinstance(one, Decoded)]


def assembled(bodies: Sequence[bytes], **other: object) -> list[RequestRecord]:
    """Records of requests, as the receiver makes them."""
    assembler = Assembler(**other)  # type: ignore[arg-type]
    now_s = STARTED_S + 300
    for one in decoded(bodies):
        assembler.add(one, "", now_s, lambda ns: ns / 1e9 - UNIX_S)
    records = assembler.tick(now_s + 10)
    samples = {(sample.metric.stem, *sample.labels): sample.value for sample in assembler.samples()}
    assert not any(value for key, value in samples.items() if "dropped" in key[0] or "rejected" in key[0])
    return records


def test_a_request_arrives_as_it_was() -> None:
    sent = request(5, 0.02, 0.03, 0.025, 0.5)
    (body,) = SpanMaker(Told([sent]), to_unix).bodies(STARTED_S + 100)
    (record,) = assembled([body])
    assert (record.server, record.model, record.outcome, record.tenant) == ("gpumon", "llama-3.1-8b", "ok", "acme")
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (1200, 5, 400)
    assert record.parameters == {"temperature": 0.7, "max_tokens": 256.0}
    assert record.prompt_hash == "summarize"
    assert record.inference_id == record.request_id != ""
    assert record.queue_s == pytest.approx(0.2)
    assert record.prefill_s == pytest.approx(0.3)
    assert record.decode_s == pytest.approx(0.575)
    assert record.time_to_first_token_s == pytest.approx(0.5)
    assert record.per_token
    assert record.token_ns is not None
    assert record.token_ns / 1e9 == pytest.approx(np.array(sent.token_s) + UNIX_S, abs=2e-6)
    assert record.start_ns / 1e9 == pytest.approx(to_unix(sent.start_s), abs=1e-6)
    assert record.end_ns / 1e9 == pytest.approx(to_unix(sent.end_s), abs=1e-6)
    assert record.evaluations == {}


def test_what_only_the_simulation_knows_is_not_told() -> None:
    (body,) = SpanMaker(Told([request(5, 0.02)]), to_unix).bodies(STARTED_S + 100)
    assert b"page_faults" not in body
    assert b"truth" not in body


@pytest.mark.parametrize(("outcome", "kept"), [("ok", "ok"), ("error", "error"), ("aborted", "aborted")])
def test_the_outcome_is_told(outcome: str, kept: str) -> None:
    (body,) = SpanMaker(Told([request(1, 0.02, outcome=outcome)]), to_unix).bodies(STARTED_S + 100)
    (record,) = assembled([body])
    assert record.outcome == kept


def test_a_request_that_failed_before_its_first_token_has_no_tokens_and_no_latency_of_one() -> None:
    failed = request(1, outcome="error", token_s=(), end_s=STARTED_S + 4, prefill_s=0.0)
    (body,) = SpanMaker(Told([failed, request(2, 0.01)]), to_unix).bodies(STARTED_S + 100)
    records = {record.outcome: record for record in assembled([body])}
    assert records["error"].token_ns is None
    assert records["error"].time_to_first_token_s is None
    assert records["error"].prefill_s is None
    assert records["error"].completion_tokens == 0
    assert records["ok"].token_ns is not None
    assert len(records["ok"].token_ns) == records["ok"].completion_tokens == 2


def test_a_score_comes_as_an_evaluation_of_its_request() -> None:
    (body,) = SpanMaker(Told([request(1, 0.02, score=0.83), request(2, 0.02)]), to_unix).bodies(STARTED_S + 100)
    scores = [record.evaluations for record in assembled([body])]
    assert sorted(scores, key=len) == [{}, {"relevance": pytest.approx(0.83)}]


@settings(max_examples=40)  # each makes a world
@given(st.lists(st.lists(st.floats(0, 100), max_size=40), min_size=1, max_size=12))
def test_token_times_of_any_size_survive(requests: list[list[float]]) -> None:
    sent = [request(number, *gaps_s) for number, gaps_s in enumerate(requests)]
    bodies = SpanMaker(Told(sent), to_unix).bodies(STARTED_S + 1e6)
    arrays = [
        [element.int_value for element in pair.value.array_value.values]
        for body in bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for span in resource.scope_spans[0].spans
        for pair in span.attributes
        if pair.key == "gen_ai.token.times_ns"
    ]
    wanted = [[round((at_s - one.start_s) * 1e9) for at_s in one.token_s] for one in sorted(sent, key=_by_end)]
    assert arrays == wanted


def _by_end(one: FinishedRequest) -> tuple[float, int, int]:
    return one.end_s, one.server, one.number


def test_ids_are_those_of_the_seed_and_the_number_and_differ() -> None:
    sent = [request(number, 0.02, server=server) for number in range(200) for server in (0, 1)]
    ids = []
    for _ in range(2):
        records = assembled(SpanMaker(Told(sent), to_unix).bodies(STARTED_S + 100))
        ids.append([record.trace_id for record in records])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(sent)


def later(by_s: float, at_s: float) -> float:
    return to_unix(at_s) + by_s


def test_another_start_sends_other_ids() -> None:
    sent = [request(number, 0.02) for number in range(50)]
    steps = [CollectiveStep(0, number, (STARTED_S, STARTED_S), STARTED_S + 1.0, 1) for number in range(3)]
    ids = []
    for began_s in (0.0, 0.002):
        bodies = SpanMaker(Told(sent, steps), partial(later, began_s)).bodies(STARTED_S + 100)
        spans = [
            span
            for body in bodies
            for of in ExportTraceServiceRequest.FromString(body).resource_spans
            for span in of.scope_spans[0].spans
        ]
        ids.append({(span.trace_id, span.span_id) for span in spans})
    assert len(ids[0]) == len(ids[1]) > 50
    assert not ids[0] & ids[1]


def test_who_asks_is_told_of_each_request_and_the_trace_id_under_which_it_is_exported() -> None:
    sent = [request(number, 0.02, server=server) for number in range(3) for server in (0, 1)]
    told: dict[bytes, FinishedRequest] = {}
    bodies = SpanMaker(Told(sent), to_unix, told.__setitem__).bodies(STARTED_S + 100)
    records = {record.trace_id: record for record in assembled(bodies)}
    assert sorted(told.values(), key=_by_end) == sorted(sent, key=_by_end)
    assert told.keys() == records.keys()
    models = [told[trace_id].server for trace_id, record in records.items() if record.model == "llama-3.1-8b"]
    assert models == [0, 0, 0]


def test_bodies_are_bounded_and_in_the_order_of_time_and_nothing_comes_twice() -> None:
    sent = [request(number, 0.02, start_s=(number * 7) % 150) for number in range(150)]
    maker = SpanMaker(Told(sent), to_unix)
    early, late = maker.bodies(STARTED_S + 60), maker.bodies(STARTED_S + 200)
    sizes, ends = [], []
    for body in (*early, *late):
        spans = [
            span for of in ExportTraceServiceRequest.FromString(body).resource_spans for span in of.scope_spans[0].spans
        ]
        sizes.append(len(spans))
        ends += [span.end_time_unix_nano for span in spans]
    assert max(sizes) <= BATCH
    assert ends == sorted(ends)
    assert len(ends) == len(set(ends)) == 150
    assert all(end <= (UNIX_S + STARTED_S + 60) * 1e9 for end in ends[: sum(sizes[: len(early)])])
    assert maker.bodies(STARTED_S + 300) == []


def _binder(world: World, at_s: float) -> tuple[Binder, Callable[[int], tuple[GpuUuid, ...]]]:
    holding = [
        GpuProcess(task.pid, str(task.gpu), GpuUuid(world.boards[task.gpu].uuid), 1e9, None)
        for task in world.tasks(at_s)
        if task.gpu is not None
    ]
    uuids = [GpuUuid(board.uuid) for board in world.boards]
    files = SimFiles(world, clock_at(at_s - STARTED_S))
    binder = Binder(files, lambda: holding, gpus=lambda: uuids, node_names=["node"])
    return binder, lambda server: tuple(sorted(uuids[gpu] for gpu in world.servers[server].gpus))


def test_the_binder_finds_the_gpus_of_the_server() -> None:
    world = Told([request(1, 0.02), request(2, 0.02, server=1)])
    at_s = STARTED_S + 10
    binder, gpus_of = _binder(world, at_s)
    (one,) = decoded(SpanMaker(world, to_unix).bodies(at_s))
    for _ in range(2):
        found = {span.resource.attributes["service.name"]: span.resource for span in one.spans}
        bindings = {
            name: binder.bind(resource.attributes, resource.key, "127.0.0.1:5000") for name, resource in found.items()
        }
        list(binder.read(at_s))
    for index, server in enumerate(world.servers):
        binding = bindings[server.name]
        assert (binding.how, binding.gpus) == ("resource", gpus_of(index))
        (worker,) = [task for task in world.gpu_tasks(server.gpus[0], at_s) if task.server == server.name]
        assert binding.pid == worker.parent


def test_a_server_that_starts_anew_exports_as_another_process() -> None:
    sent = [request(1, 0.02), request(2, 0.02, start_s=16.0), request(3, 0.02, start_s=60.0)]
    world = Told(
        sent, (), f"kind: warm_up, at_s: 10, for_s: 5, server: {DENSE}", "kind: xid, at_s: 15, gpu: 0, strength: 31"
    )
    (one,) = decoded(SpanMaker(world, to_unix).bodies(STARTED_S + 200))
    pids = [span.resource.attributes["process.pid"] for span in one.spans]
    alive = {task.pid for task in world.tasks(STARTED_S + 60)}
    assert pids[2] in alive
    assert pids[0] not in alive
    # At 16.5 there was no process: the one that had been there speaks last.
    assert pids[1] != pids[2]


def test_each_rank_tells_of_a_collective_with_its_own_process() -> None:
    at_s = STARTED_S + 5
    world = Told([], [CollectiveStep(0, 129, (at_s - 0.004, at_s - 0.001), at_s, 1 << 20)])
    (one,) = decoded(SpanMaker(world, to_unix).bodies(at_s))
    told: list[CollectiveRecord] = []
    collectives = Collectives(told.append)
    for span in one.spans:
        collectives.add_span(span)
    assert [(record.rank, record.n_ranks, record.sequence, record.collective) for record in told] == [
        (0, 2, 129, "AllReduce"),
        (1, 2, 129, "AllReduce"),
    ]
    assert [record.exec_s for record in told] == pytest.approx([0.004, 0.001], abs=1e-6)
    assert told[0].stop_ns == told[1].stop_ns
    assert len({record.comm_id for record in told}) == 1
    assert {record.size_bytes for record in told} == {1 << 20}
    workers = [task.pid for gpu in (0, 1) for task in world.gpu_tasks(gpu, at_s)]
    assert [record.pid for record in told] == workers


def test_collectives_come_in_runs_of_consecutive_ones() -> None:
    steps = [CollectiveStep(0, number, (STARTED_S,), STARTED_S + number / 100, 1) for number in range(1000)]
    told = [
        int(str(span.attributes["nccl.sequence"]))
        for one in decoded(SpanMaker(Told([], steps), to_unix).bodies(STARTED_S + 100))
        for span in one.spans
    ]
    assert told == sorted(told)
    assert len(told) == 4 * 24  # of ten seconds
    assert told[:25] == [*range(24), 300]


def test_the_world_s_own_requests_and_collectives_all_arrive() -> None:
    clock = clock_at(0)
    maker = SpanMaker(node(), to_unix)
    bodies: list[bytes] = []
    while clock.now_s() < STARTED_S + 30:
        clock.step(0.5)
        bodies += maker.bodies(clock.now_s())
    records = assembled(bodies)
    assert {record.model for record in records} == {"llama-3.1-8b", "qwen3-30b-a3b"}
    assert 20 < len(records) < 120
    for record in records:
        assert record.token_ns is not None
        assert record.per_token
        assert record.completion_tokens == len(record.token_ns) > 0
        assert record.queue_s is not None
        assert record.prefill_s is not None
    assert any(record.evaluations for record in records if record.model == "llama-3.1-8b")
    names = {span.name for one in decoded(bodies) for span in one.spans}
    assert names == {"gen_ai.request", "nccl.collective"}
