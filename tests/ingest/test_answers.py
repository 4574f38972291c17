from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from gpumon.ingest.answers import HTTP_STATUS, MESSAGE_CHARACTERS, RPC_CODE, response, retry_info, status
from gpumon.ingest.request import Ack, Outcome, Signal
from tests.ingest.rpc import RetryInfo, Status

OFFICIAL: dict[Signal, tuple[type[Message], str]] = {
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
}
REFUSALS = [outcome for outcome in Outcome if outcome not in (Outcome.OK, Outcome.PARTIAL)]


@pytest.mark.parametrize("signal", Signal)
def test_full_success_leaves_partial_success_unset(signal: Signal) -> None:
    official, _ = OFFICIAL[signal]
    assert not official.FromString(response(signal, Ack(Outcome.OK), as_json=False)).HasField("partial_success")
    assert response(signal, Ack(Outcome.OK), as_json=True) == b"{}"


@given(st.sampled_from(list(Signal)), st.integers(0, 2**40), st.text(max_size=50))
def test_partial_success_is_what_the_official_classes_read(signal: Signal, rejected: int, message: str) -> None:
    official, rejected_field = OFFICIAL[signal]
    ack = Ack(Outcome.PARTIAL, rejected, message)
    binary = official.FromString(response(signal, ack, as_json=False))
    from_json = json_format.Parse(response(signal, ack, as_json=True), official())
    assert binary == from_json
    assert binary.HasField("partial_success")
    partial = getattr(binary, "partial_success")  # noqa: B009 - of each of the three classes
    assert (getattr(partial, rejected_field), partial.error_message) == (rejected, message)


@pytest.mark.parametrize("outcome", REFUSALS)
def test_every_refusal_has_a_status_in_both_encodings(outcome: Outcome) -> None:
    ack = Ack(outcome, message="grün ✓")
    binary = Status.FromString(status(ack, as_json=False))
    assert binary == json_format.Parse(status(ack, as_json=True), Status())
    assert binary.code == RPC_CODE[outcome] != 0
    assert binary.message == "grün ✓"
    assert not binary.details
    assert HTTP_STATUS[outcome] >= 400


def test_a_retry_delay_is_a_retry_info() -> None:
    ack = Ack(Outcome.OVERLOAD, message="later", retry_after_s=300)
    details = Status.FromString(status(ack, as_json=False)).details
    found = RetryInfo()
    assert details[0].Unpack(found)
    assert found.retry_delay.seconds == 300
    assert RetryInfo.FromString(retry_info(300)) == found
    as_json = json.loads(status(ack, as_json=True))["details"][0]
    assert as_json == {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "300s"}


def test_a_message_is_cut_and_never_breaks_the_encoding() -> None:
    long = Status.FromString(status(Ack(Outcome.BAD, message="x" * 10_000), as_json=False))
    assert len(long.message) == MESSAGE_CHARACTERS
    assert Status.FromString(status(Ack(Outcome.BAD, message="half \ud800 pair"), as_json=False)).message
