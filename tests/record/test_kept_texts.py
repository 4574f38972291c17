"""``gpumon.record.kept_texts``: what is read is kept, of every server, so that a replay makes the same requests."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

import gpumon.ingest
from gpumon.ingest.assembly import Assembler
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.nccl import CollectiveRecord, Collectives
from gpumon.ingest.records import DROPPED_ATTRIBUTES, Decoded
from gpumon.ingest.request import Signal
from gpumon.record.kept_texts import KEPT, REDUCED, TENANTS
from gpumon.record.strip import strip
from gpumon.sim.spans import SpanMaker
from tests.ingest import vectors
from tests.ingest.senders import MS, NOW_S, T0, Sender, to_steady
from tests.ingest.servers import (
    sglang_request,
    tgi_request,
    triton_request,
    trtllm_request,
    vllm_request,
    vllm_sender,
)
from tests.sim.nodes import STARTED_S
from tests.sim.test_spans import UNIX_S, Told, to_unix
from tests.sim.test_spans import request as finished

PACKAGE = Path(gpumon.ingest.__file__).parent
READERS = [
    *sorted((PACKAGE / "adapters").glob("*.py")),
    *(PACKAGE / name for name in ("nccl.py", "evaluations.py", "complete.py", "spans.py", "signals.py", "records.py")),
    PACKAGE.parent / "requests" / "binding.py",
]
NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+")
OTHER_NAMES = {
    *("gpumon.tokens", "trt.llm", "nccl.collective", "gen_ai.request", "gen_ai.evaluation.result"),  # scopes, spans
    *("gen_ai.token.generated", "gen_ai.token", "gen_ai.decode_step"),  # events and steps
}


def names_in(path: Path) -> Iterator[str]:
    """Texts of a module that look like an attribute's name, and those it asks a mapping called attributes for."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            yield node.value
        asked: ast.expr | None = None
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attributes.get"):
            asked = node.args[0]
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("attributes"):
            asked = node.left
        if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
            yield asked.value


@pytest.mark.parametrize("path", READERS, ids=lambda path: path.name)
def test_every_name_that_is_read_is_kept(path: Path) -> None:
    unknown = set(names_in(path)) - KEPT - set(REDUCED) - set(TENANTS) - OTHER_NAMES - DROPPED_ATTRIBUTES
    assert unknown == set()


def test_the_names_are_found() -> None:
    found = {name for path in READERS for name in names_in(path)}
    assert {"rid", "tp_rank", "uri", "abort_info", "code.function", "nccl.rank", "process.pid"} <= found


def encoded(spans: Any) -> bytes:
    return encode_spans(spans).SerializeToString()


def vllm() -> bytes:
    sender = vllm_sender(**{"k8s.pod.name": "vllm-0", "service.instance.id": "a", "my.secret": "hunter2"})
    with_secret: dict[str, Any] = {"gen_ai.usage.cached_tokens": "7", "http.request.header.authorization": "hunter2"}
    failed: dict[str, Any] = {"error.type": "ValueError: hunter2", "gen_ai.request.id": "2"}
    vllm_request(sender, **with_secret)
    vllm_request(sender, **failed)
    return encoded(sender.spans)


def dynamo() -> bytes:
    sender = Sender("dynamo_runtime", {"service.name": "dynamo"})
    for number, uri in enumerate(("/v1/chat/completions?key=hunter2", "/health")):
        sender.span("http-request", T0, T0 + 5 * MS, attributes={"uri": uri, "x_request_id": f"r{number}"})
    return encoded(sender.spans)


def genai() -> bytes:
    sender = Sender("some.client", {"service.name": "shop"})
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "llama",
        "gen_ai.response.finish_reasons": ["abort"],
        "gen_ai.usage.input_tokens": "12",
        "gen_ai.request.seed": "5",
        "tenant.id": "acme",
        "ai.prompt.messages": "hunter2",
        "traceloop.entity.input": ["hunter2"],
    }
    score = {"gen_ai.evaluation.name": "relevance", "gen_ai.evaluation.score.value": "0.5", "note": "hunter2"}
    events = [("gen_ai.evaluation.result", T0 + MS, score)]
    sender.span("chat", T0, T0 + 5 * MS, attributes=attributes, events=events)
    sender.span("tool", T0, T0 + 5 * MS, attributes={"gen_ai.operation.name": "execute_tool"})
    return encoded(sender.spans)


def nccl() -> bytes:
    sender = Sender("nccl", {"service.name": "train", "host.name": "node1", "process.pid": "71"})
    attributes: dict[str, Any] = {"nccl.collective": "AllReduce", "nccl.timing": "kernel_gpu"}
    attributes |= {"nccl.comm.id": "0xab", "nccl.comm.name": "world", "my.note": "hunter2"}
    attributes |= {"nccl.rank": "3", "nccl.n_ranks": 8, "nccl.sequence": "9", "nccl.size_bytes": 1024}
    sender.span("nccl.collective", T0, T0 + MS, attributes=attributes)
    return encoded(sender.spans)


def simulated() -> bytes:
    sent = [finished(5, 0.02, 0.03, score=0.8), finished(6, outcome="error"), finished(7, 0.1, outcome="aborted")]
    [body] = SpanMaker(Told(sent), to_unix).bodies(STARTED_S + 100)
    return body


BODIES: dict[str, Callable[[], bytes]] = {
    "vllm": vllm,
    "sglang": lambda: encoded(sglang_request()),
    "tgi": lambda: encoded(tgi_request()),
    "tgi, told nothing": lambda: encoded(tgi_request(told=False)),
    "triton": lambda: encoded(triton_request()),
    "trtllm": lambda: encoded(trtllm_request()),
    "dynamo": dynamo,
    "genai": genai,
    "nccl": nccl,
    "reported": lambda: vectors.as_protobuf(
        vectors.envelope(
            *(vectors.HOST_UPTIME_AS_QUEUE_TIME, vectors.NEGATIVE_TTFT, vectors.NO_END, vectors.NO_START),
            *(vectors.STEP, vectors.MIXED_NUMBERS, vectors.SKEWED),
        )
    ),
    "simulated": simulated,
}


def made_of(decoded: Decoded, *, simulated: bool) -> str:
    """Everything that comes of a request."""
    collectives: list[CollectiveRecord] = []
    assembler = Assembler(collectives=Collectives(collectives.append))
    if simulated:
        assembler.add(decoded, "10.0.0.7:40000", STARTED_S + 300, lambda ns: ns / 1e9 - UNIX_S)
        records = assembler.tick(STARTED_S + 310)
    else:
        assembler.add(decoded, "10.0.0.7:40000", NOW_S, to_steady)
        records = assembler.tick(NOW_S + 10)
    told = sorted(repr(sample) for sample in assembler.samples())
    return repr((records, collectives, told))


@pytest.mark.parametrize("name", BODIES)
def test_the_same_requests_are_made_of_what_is_recorded(name: str) -> None:
    body = BODIES[name]()
    for is_json, sent in ((False, body), (True, vectors.from_protobuf(body))):
        left, _ = strip(Signal.TRACES, sent, is_json)
        assert b"hunter2" not in left
        made = []
        for one in (sent, left):
            decoded = decode_traces_json(one) if is_json else vectors.only(decode_traces([one]))
            made.append(made_of(decoded, simulated=name == "simulated"))
        assert made[0] == made[1]
        assert "RequestRecord(" in made[0] or "CollectiveRecord(" in made[0]
