"""The examples of docs/TOKENS.md, run as they stand against a real HTTP receiver, give the request they describe."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumon.ingest.assembly import Assembler
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.records import DROPPED_ATTRIBUTES, Decoded
from tests.ingest.senders import NOW_S

PAGE = (Path(__file__).resolve().parents[2] / "docs/TOKENS.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
ALLOWED = ("opentelemetry.", "gpumon.tokens", "time")


class Receiver(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted and says yes."""

    bodies: list[bytes] = []  # noqa: RUF012 - of a class made for each test

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    class Handler(Receiver):
        bodies: list[bytes] = []  # noqa: RUF012

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield Handler.bodies
        server.shutdown()
        thread.join()


def test_there_is_an_example_of_every_form() -> None:
    assert len(EXAMPLES) == 5
    for word in (
        "gen_ai.token.times_ns",
        "gen_ai.token.generated",
        "gen_ai.token.index",
        "trace_request",
        "evaluation",
    ):
        assert any(word in example for example in EXAMPLES)


@pytest.mark.parametrize("number", range(5))
def test_example_gives_a_request_of_sixteen_tokens(number: int, bodies: list[bytes]) -> None:
    example = EXAMPLES[number]
    for module in re.findall(r"^(?:from|import) (\S+)", example, re.M):
        assert (module + ".").startswith(ALLOWED), module
    exec(compile(example, "docs/TOKENS.md", "exec"), {"__name__": "example"})
    assembler = Assembler()
    for decoded in decode_traces(bodies):
        assert isinstance(decoded, Decoded)
        end_ns = max(span.end_ns for span in decoded.spans)
        assembler.add(decoded, "peer", NOW_S, lambda unix_ns, end_ns=end_ns: (unix_ns - end_ns) / 1e9 + NOW_S)  # type: ignore[misc]
    [record] = assembler.tick(NOW_S + 10)
    assert (record.server, record.model, record.outcome) == ("gpumon", "llama-3.1-8b", "ok")
    assert record.completion_tokens == 16
    assert record.token_ns is not None
    assert record.token_counts is None or int(record.token_counts.sum()) == 16
    assert record.per_token
    assert record.time_to_first_token_s is not None
    assert 0 <= record.time_to_first_token_s < 1
    assert record.evaluations == ({"relevance": 0.8} if "evaluation" in example else {})


def test_every_reason_for_dropping_a_span_is_explained() -> None:
    reasons = {
        sample.labels[0] for sample in Assembler().samples() if sample.metric.name == "gpumon_spans_dropped_total"
    }
    table = PAGE[PAGE.index("## What is left out") : PAGE.index("## Evaluations")]
    assert reasons <= set(re.findall(r"`([a-z_]+)`", table))


def test_attributes_that_hold_text_are_dropped_while_decoding() -> None:
    for name in ("gen_ai.input.messages", "token_id", "new_token_ids"):
        assert name in DROPPED_ATTRIBUTES
