"""Assembly: any order, any copies, any loss, bounded memory, and nothing of the text."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan

from gpumon.ingest.adapters.seen import Reading
from gpumon.ingest.assembly import Assembler
from gpumon.ingest.records import Decoded, Resource, Scope, SpanRecord, StepColumns
from gpumon.ingest.waiting import AssemblyLimits
from gpumon.model import Binding, GpuUuid, RequestRecord
from tests.ingest.senders import MS, NOW_S, T0, Ids, Sender, assemble, decode, dropped, to_steady
from tests.ingest.servers import (
    SECRET,
    SGLANG_END_NS,
    sglang_rank,
    sglang_request,
    tgi_request,
    vllm_request,
    vllm_sender,
)

SGLANG = Resource({"service.name": "sglang"}, 1)
SCOPE = Scope("sglang server", "")


def plain(record: RequestRecord) -> dict[str, Any]:
    """A record that can be compared."""
    told = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in told.items()} | {
        "rank_steps": {rank: ends.tolist() for rank, ends in record.rank_steps.items()}
    }


TWO_SPANS = [*sglang_request(2, steps=12), *tgi_request()]
EXPECTED = sorted((plain(record) for record in assemble(TWO_SPANS)), key=lambda told: told["server"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_order_and_copies_of_arrival_change_nothing(data: st.DataObject) -> None:
    spans = data.draw(st.permutations(TWO_SPANS))
    copies = data.draw(st.lists(st.integers(0, len(spans) - 1), max_size=60))
    sent: list[ReadableSpan] = [*spans, *(spans[i] for i in copies)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    edges = [0, *cuts, len(sent)]
    batches = [sent[start:end] for start, end in pairwise(edges)]
    records = assemble(*batches)
    assert sorted((plain(record) for record in records), key=lambda told: told["server"]) == EXPECTED


def test_every_span_received_is_kept_or_counted() -> None:
    spans = sglang_request(8)
    assembler = Assembler()
    [record] = assemble(spans[:-1], spans, assembler=assembler)
    assert record.completion_tokens == 41
    assert dropped(assembler) == {"duplicate": len(spans) - 1}
    received = {s.labels: s.value for s in assembler.samples() if s.metric.name == "gpumon_spans_received_total"}
    assert received["sglang",] == 2 * len(spans) - 1
    assert {s.labels[0]: s.value for s in assembler.samples() if s.metric.name == "gpumon_spans_waiting"} == {
        "traces": 0,
        "spans": 0,
        "steps": 0,
    }


def test_a_record_knows_the_span_of_its_request_and_not_those_of_its_children() -> None:
    spans = sglang_request(2)
    context = spans[-1].get_span_context()
    assert context is not None
    [record] = assemble(spans)
    assert (record.trace_id, record.span_id) == (
        context.trace_id.to_bytes(16, "big"),
        context.span_id.to_bytes(8, "big"),
    )


def test_a_record_of_what_an_orphaned_request_left_behind_has_no_span() -> None:
    assembler = Assembler()
    assembler.add(decode(sglang_request(1)[:-1]), "peer", NOW_S, to_steady)
    [record] = assembler.tick(NOW_S + 1000)
    assert (record.outcome, record.span_id) == ("incomplete", b"")


def test_children_get_a_grace_after_their_request() -> None:
    spans = sglang_request(1)
    root, children = spans[-1], spans[:-1]
    assembler = Assembler()
    assembler.add(decode([root]), "peer", NOW_S, to_steady)
    assert assembler.tick(NOW_S + 1.9) == []
    assembler.add(decode(children), "peer", NOW_S + 1.9, to_steady)
    [record] = assembler.tick(NOW_S + 2.0)
    assert record.token_ns is not None
    assert len(record.token_ns) == 41


def test_children_that_come_after_the_record_are_counted_and_no_request_of_their_own() -> None:
    spans = sglang_request(1)
    assembler = Assembler()
    assert len(assemble(spans[-1:], assembler=assembler)) == 1
    assembler.add(decode(spans[:-1]), "peer", NOW_S + 20, to_steady)
    assert assembler.tick(NOW_S + 1000) == []
    assert dropped(assembler) == {"after_request": len(spans) - 1}


def test_copies_of_the_children_of_a_finished_request_in_a_trace_of_others_are_counted() -> None:
    agent = Sender("my.agent").start("agent", T0)
    sender = Sender("sglang server", {"service.name": "sglang"}, Ids(3))
    root = sender.start(" Req aaaa", T0, parent=agent.get_span_context(), attributes={"rid": "aaaa"})
    sglang_rank(sender, root, 0, 5)
    root.end(SGLANG_END_NS)
    assembler = Assembler()
    assert len(assemble(sender.spans, assembler=assembler)) == 1
    assembler.add(decode(sender.spans), "peer", NOW_S + 20, to_steady)
    assert assembler.tick(NOW_S + 1000) == []
    assert dropped(assembler) == {"after_request": len(sender.spans) - 1, "duplicate": 1}


def test_requests_of_one_trace_keep_their_own_children() -> None:
    """An agent's trace: the same remote parent above several requests."""
    agent = Sender("my.agent").start("agent", T0)
    sender = Sender("sglang server", {"service.name": "sglang"}, Ids(3))
    for rid, steps in (("aaaa", 5), ("bbbb", 9)):
        root = sender.start(f" Req {rid}", T0, parent=agent.get_span_context(), attributes={"rid": rid})
        sglang_rank(sender, root, 0, steps)
        root.end(SGLANG_END_NS)
    records = {record.request_id: record for record in assemble(sender.spans)}
    assert {rid: len(record.rank_steps[0]) for rid, record in records.items()} == {"aaaa": 5, "bbbb": 9}


def test_lost_children_in_a_trace_of_others_are_counted_and_no_request_of_their_own() -> None:
    agent = Sender("my.agent").start("agent", T0)
    sender = Sender("sglang server", {"service.name": "sglang"}, Ids(3))
    other = sender.start("Scheduler", T0, parent=agent.get_span_context())  # never sent, nor its parent
    sender.span("decode_loop", T0, T0 + MS, parent=other, attributes={"decode_ct": 0})
    sender.span(" Req aaaa", T0, T0 + MS, parent=agent.get_span_context())
    assembler = Assembler()
    [record] = assemble(sender.spans, assembler=assembler)
    assert record.token_ns is None
    assert assembler.tick(NOW_S + 1000) == []
    assert dropped(assembler) == {"orphan": 1}


def test_ranks_on_another_host_with_a_resource_of_its_own_find_their_request() -> None:
    first = Sender("sglang server", {"service.name": "sglang", "host.name": "a"}, Ids(1))
    second = Sender("sglang server", {"service.name": "sglang", "host.name": "b"}, Ids(2))
    agent = Sender("my.agent").start("agent", T0)
    root = first.start(" Req 0123", T0, parent=agent.get_span_context(), attributes={"rid": "0123"})
    sglang_rank(first, root, 0, 6)
    sglang_rank(second, root, 1, 6)
    root.end(SGLANG_END_NS)
    [record] = assemble(second.spans, first.spans)
    assert sorted(record.rank_steps) == [0, 1]


def test_equal_ids_from_two_processes_are_two_requests() -> None:
    """SGLang seeds its ids with the time: two nodes started together send the same ones."""
    requests = []
    for host in ("a", "b"):
        sender = Sender("sglang server", {"service.name": f"sglang-{host}"}, Ids(7))
        root = sender.start(" Req 0123", T0, attributes={"rid": host})
        sglang_rank(sender, root, 0, 6 if host == "a" else 8)
        root.end(SGLANG_END_NS)
        requests.append(sender.spans)
    assert requests[0][0].get_span_context() == requests[1][0].get_span_context()
    records = {record.request_id: record for record in assemble(*requests)}
    assert {rid: len(record.rank_steps[0]) for rid, record in records.items()} == {"a": 6, "b": 8}


def test_phases_whose_link_to_the_request_was_lost_are_its_own_in_a_trace_of_its_own() -> None:
    spans = [span for span in sglang_request(1) if not span.name.startswith(("Scheduler", "decode_forward"))]
    [record] = assemble(spans)
    assert record.queue_s == pytest.approx(0.060)
    assert record.token_ns is not None
    assert len(record.token_ns) == 41
    assert record.rank_steps == {}  # which rank, nobody told


def test_a_request_began_by_our_clock_when_its_span_says() -> None:
    sender = vllm_sender()
    vllm_request(sender)
    [record] = assemble(sender.spans)
    assert record.arrived_s == pytest.approx(to_steady(T0))


def test_concurrency_counts_requests_open_when_this_one_began_with_itself() -> None:
    sender = vllm_sender()
    for start_ms, duration_ms in ((0, 100), (50, 100), (99, 10), (100, 10), (140, 200)):
        vllm_request(sender, T0 + start_ms * MS, duration_ms * MS)
    other = vllm_sender(**{"service.name": "vllm-2"})
    vllm_request(other, T0, 1000 * MS)
    told = {(record.start_ns - T0) // MS: record.concurrency for record in assemble(sender.spans, other.spans)}
    told.pop(0)
    assert told == {50: 2, 99: 3, 100: 3, 140: 2}


def test_open_requests_are_those_with_children_and_no_span_of_their_own() -> None:
    assembler = Assembler(
        reading=Reading(models={"sglang": "llama"}),
        bind=lambda resource, peer: Binding(how="peer", gpus=(GpuUuid("GPU-1"), GpuUuid("GPU-2"))),
    )
    first, second = sglang_request(2, seed=1), Sender("sglang server", {"service.name": "sglang"}, Ids(2))
    sglang_rank(second, second.start(" Req 4567", T0), 0, 6)
    assembler.add(decode(first[:-1]), "10.0.0.7:1", NOW_S, to_steady)
    assembler.add(decode(second.spans), "10.0.0.7:1", NOW_S, to_steady)
    [one] = assembler.open_requests()
    assert (one.server, one.model, one.requests, one.peer) == ("sglang", "llama", 2, "10.0.0.7:1")
    assert assembler.open_by_model() == {("sglang", "llama"): 2}
    assert assembler.open_by_gpu() == {"GPU-1": 2, "GPU-2": 2}
    assembler.add(decode(first[-1:]), "10.0.0.7:1", NOW_S + 1, to_steady)
    assert assembler.open_by_model() == {("sglang", "meta-llama/Llama-3.1-70B"): 1}
    [record] = assembler.tick(NOW_S + 3)
    assert record.binding.gpus == ("GPU-1", "GPU-2")
    assert record.concurrency == 1  # by what came of the other one, it began later


def test_concurrency_counts_requests_known_by_their_children_alone() -> None:
    assembler = Assembler()
    sender = Sender("sglang server", {"service.name": "sglang"}, Ids(2))
    sglang_rank(sender, sender.start(" Req 4567", T0), 0, 6)  # goes on
    sender.span(" Req 0123", T0 + 50 * MS, T0 + 90 * MS)
    [record] = assemble(sender.spans, assembler=assembler)
    assert record.concurrency == 2


def step(number: int, resource: Resource = SGLANG, *, rows: int = 1, parent: bool = True) -> StepColumns:
    return StepColumns(
        resource=resource,
        scope=SCOPE,
        name="decode_loop",
        trace_id=number.to_bytes(16, "big"),
        parent_id=number.to_bytes(8, "big") if parent else None,
        span_ids=tuple((number * 1_000_000 + row + 1).to_bytes(8, "big") for row in range(rows)),
        start_ns=np.arange(rows, dtype=np.int64) * MS + T0,
        end_ns=np.arange(rows, dtype=np.int64) * MS + T0 + MS,
        index=np.arange(rows, dtype=np.int64),
        counts=None,
    )


def test_a_flood_of_orphans_meets_bounded_memory() -> None:
    limits = AssemblyLimits(traces=2000)
    assembler = Assembler(limits)
    for start in range(0, 100_000, 500):
        if start == 96_000:  # of the last ones all that is held; tracing all of them would take half a minute
            gc.collect()
            tracemalloc.start()
        assembler.add(Decoded(steps=[step(start + i + 1) for i in range(500)]), "peer", NOW_S + start / 1e4, to_steady)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2000 * 1_600
    assert dropped(assembler) == {"overflow": 98_000}
    assert sum(assembler.open_by_model().values()) <= 2000
    records = assembler.tick(NOW_S + 1000)
    assert len(records) == 2000
    assert {record.outcome for record in records} == {"incomplete"}
    assert assembler.open_requests() == []


def test_a_flood_does_not_push_out_a_request_that_goes_on_nor_lose_one_that_ended() -> None:
    assembler = Assembler(AssemblyLimits(traces=100))
    spans = sglang_request(1)
    ended = vllm_sender()
    vllm_request(ended)
    assembler.add(decode(ended.spans), "peer", NOW_S, to_steady)
    for i, span in enumerate(spans):
        assembler.add(decode([span]), "peer", NOW_S + i, to_steady)
        assembler.add(Decoded(steps=[step(i * 50 + j + 1) for j in range(50)]), "peer", NOW_S + i + 0.5, to_steady)
    complete = [record for record in assembler.tick(NOW_S + 500) if record.outcome == "ok"]
    assert sorted(record.server for record in complete) == ["sglang", "vllm"]
    assert next(len(r.token_ns) for r in complete if r.token_ns is not None) == 41


def test_steps_of_one_trace_without_end_are_bounded() -> None:
    assembler = Assembler(AssemblyLimits(steps_per_trace=1000))
    for i in range(30):
        assembler.add(Decoded(steps=[step(5, rows=100)]), "peer", NOW_S + i, to_steady)
    assert dropped(assembler)["overflow"] == 2000


def test_a_span_for_every_token_costs_forty_bytes() -> None:
    assembler = Assembler()
    chunks = [step(9, rows=1000) for _ in range(50)]
    gc.collect()
    tracemalloc.start()
    for chunk in chunks:
        assembler.add(Decoded(steps=[chunk]), "peer", NOW_S, to_steady)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50_000 * 40 * 1.3


def request_span(number: int, attributes: dict[str, Any], *, parent: bytes | None = None) -> SpanRecord:
    return SpanRecord(
        resource=Resource({}, 2),
        scope=Scope("gpumon.tokens", ""),
        trace_id=number.to_bytes(16, "big"),
        span_id=number.to_bytes(8, "big"),
        parent_id=parent,
        name="gen_ai.request",
        kind=2,
        start_ns=T0,
        end_ns=T0 + 1000 * MS,
        status=0,
        attributes=attributes,
    )


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "gen_ai.token.times_ns",
                "gen_ai.token.counts",
                "gen_ai.latency.time_to_first_token",
                "gen_ai.latency.time_in_queue",
                "gen_ai.usage.completion_tokens",
                "gen_ai.usage.output_tokens",
                "gen_ai.request.temperature",
                "gen_ai.response.finish_reasons",
                "gen_ai.response.model",
                "tenant.id",
            ]
        ),
        st.one_of(
            st.text(max_size=20),
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(tuple),
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5).map(lambda v: np.array(v, np.int64)),
            st.lists(st.text(max_size=9), max_size=5).map(tuple),
        ),
    ),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)
def test_no_attributes_or_times_break_a_record(attributes: dict[str, Any], start_ns: int, end_ns: int) -> None:
    span = request_span(1, attributes)
    for start, end in ((T0, T0 + 1000 * MS), (start_ns, T0), (T0, end_ns), (start_ns, end_ns)):
        span.start_ns, span.end_ns = start, end
        assembler = Assembler()
        assembler.add(Decoded(spans=[span]), "peer", NOW_S, to_steady)
        for record in assembler.tick(NOW_S + 1000):
            told = [record.time_to_first_token_s, record.queue_s, record.prefill_s, record.decode_s, record.kv_sync_s]
            assert all(value is None or 0 <= value <= 3600 for value in told)
            assert record.start_ns <= record.end_ns
            assert all(np.isfinite(value) for value in record.parameters.values())
            assert len(record.model) <= 128
            if record.token_ns is not None:
                assert (np.diff(record.token_ns) >= 0).all()
                assert record.token_ns[0] >= T0 - 1000 * MS


def test_ten_million_token_times_are_cut() -> None:
    times = np.arange(10_000_000, dtype=np.int64) * 90
    assembler = Assembler()
    assembler.add(Decoded(spans=[request_span(1, {"gen_ai.token.times_ns": times})]), "peer", NOW_S, to_steady)
    [record] = assembler.tick(NOW_S + 10)
    assert record.token_ns is not None
    assert len(record.token_ns) == 1 << 20
    assert record.completion_tokens is None
    assert record.per_token


def test_nothing_of_the_text_reaches_a_record() -> None:
    attributes: dict[str, Any] = {
        "gen_ai.prompt": SECRET,
        "gen_ai.prompt.0.content": SECRET,
        "gen_ai.completion": SECRET,
        "gen_ai.input.messages": SECRET,
        "llm.prompts": SECRET,
        "some.other.attribute": SECRET,
        "gen_ai.latency.time_to_first_token": SECRET,
        "gen_ai.token.times_ns": SECRET,
        "gen_ai.request.temperature": SECRET,
    }
    vllm, own = vllm_sender(), Sender("gpumon.tokens")
    vllm_request(vllm, **attributes)
    event = ("gen_ai.token.generated", T0 + MS, {"token_id": 4711, "text": SECRET})
    own.span("gen_ai.request", T0, T0 + 10 * MS, attributes=attributes, events=[event])
    genai = Sender("unknown")
    genai.span("chat x", T0, T0 + MS, attributes={"gen_ai.operation.name": "chat", **attributes})
    assembler = Assembler()
    records = assemble(vllm.spans, own.spans, genai.spans, tgi_request(), assembler=assembler)
    assert len(records) == 4
    told = repr([plain(record) for record in records]) + repr(list(assembler.samples()))
    assert SECRET not in told
    assert "4711" not in told
