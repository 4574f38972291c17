"""Logs and metrics in both encodings."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from gpumon.ingest.decode_limits import DEFAULT_LIMITS, DecodeLimits
from gpumon.ingest.records import Decoded, DecodeError
from gpumon.ingest.signals import count_metrics, decode_logs
from tests.ingest import wire
from tests.ingest.differential import SMALL_LIMITS
from tests.ingest.payloads import PROMPT
from tests.ingest.vectors import SPAN, START, TRACE, Json, attribute, with_base64_ids

DecodeLogs = Callable[..., Decoded]
Count = Callable[[Json], int]


def logs_of_protobuf(request: Json, limits: DecodeLimits = DEFAULT_LIMITS) -> Decoded:
    message = json_format.ParseDict(with_base64_ids(request), ExportLogsServiceRequest())
    return decode_logs(message.SerializeToString(), False, limits)


def logs_of_json(request: Json, limits: DecodeLimits = DEFAULT_LIMITS) -> Decoded:
    return decode_logs(json.dumps(request).encode(), True, limits)


@pytest.fixture(params=[logs_of_protobuf, logs_of_json], ids=["protobuf", "json"])
def decode(request: pytest.FixtureRequest) -> DecodeLogs:
    chosen: DecodeLogs = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["protobuf", "json"])
def count(request: pytest.FixtureRequest) -> Count:
    def counted(metrics: Json) -> int:
        if request.param:
            return count_metrics(json.dumps(metrics).encode(), True)
        return count_metrics(json_format.ParseDict(metrics, ExportMetricsServiceRequest()).SerializeToString(), False)

    return counted


def record(**fields: Json) -> Json:
    whole = {
        "timeUnixNano": str(START),
        "eventName": "gen_ai.evaluation.result",
        "traceId": TRACE,
        "spanId": SPAN,
        "attributes": [
            attribute("gen_ai.evaluation.name", stringValue="relevance"),
            attribute("gen_ai.evaluation.score.value", doubleValue=0.75),
            attribute("gen_ai.evaluation.explanation", stringValue=PROMPT),
        ],
        **fields,
    }
    return {key: value for key, value in whole.items() if value is not None}


def envelope(*records: Json) -> Json:
    resource = {"attributes": [attribute("service.name", stringValue="judge")]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": {"name": "s"}, "logRecords": [*records]}]}]}


def test_an_evaluation_result_is_kept_without_its_explanation(decode: DecodeLogs) -> None:
    decoded = decode(envelope(record()))
    [log] = decoded.logs
    assert (log.name, log.at_ns, log.scope.name) == ("gen_ai.evaluation.result", START, "s")
    assert (log.trace_id, log.span_id) == (bytes.fromhex(TRACE), bytes.fromhex(SPAN))
    assert log.attributes == {"gen_ai.evaluation.name": "relevance", "gen_ai.evaluation.score.value": 0.75}
    assert log.resource.attributes == {"service.name": "judge"}
    assert PROMPT not in repr(decoded)


def test_the_name_may_be_an_attribute_where_the_record_has_no_field_for_it(decode: DecodeLogs) -> None:
    named = [attribute("event.name", stringValue="gen_ai.evaluation.result")]
    decoded = decode(envelope(record(eventName=None, attributes=named), record(eventName="other", attributes=named)))
    assert (len(decoded.logs), decoded.ignored) == (1, 1)


def test_other_log_records_are_counted_only(decode: DecodeLogs) -> None:
    decoded = decode(envelope({"body": {"stringValue": PROMPT}}, record(eventName="x"), record()))
    assert (len(decoded.logs), decoded.ignored, decoded.rejected) == (1, 2, {})


def test_absent_ids_are_none_and_an_absent_time_is_when_it_was_seen(decode: DecodeLogs) -> None:
    bare = record(traceId=None, spanId="0" * 16, timeUnixNano=None, observedTimeUnixNano=str(START + 1))
    [log] = decode(envelope(bare)).logs
    assert (log.trace_id, log.span_id, log.at_ns) == (None, None, START + 1)


def test_ids_of_a_wrong_length_reject_the_record(decode: DecodeLogs) -> None:
    decoded = decode(envelope(record(traceId="abcd"), record()))
    assert (len(decoded.logs), decoded.rejected) == (1, {"bad_id": 1})
    assert "bad_id" in decoded.message


def test_too_many_results_are_rejected(decode: DecodeLogs) -> None:
    assert decode(envelope(*[record()] * 5), SMALL_LIMITS).rejected == {"too_many_logs": 2}


@pytest.mark.parametrize("json_", [False, True])
def test_logs_that_cannot_be_read_are_refused(json_: bool) -> None:
    with pytest.raises(DecodeError, match="logs export request" if not json_ else "OTLP/JSON"):
        decode_logs(b"\x0a\xff", json_)


def test_data_points_of_every_kind_are_counted(count: Count) -> None:
    points = {"dataPoints": [{"timeUnixNano": str(START)}, {}]}
    kinds = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")
    metrics = [{"name": kind, kind: points} for kind in kinds]
    scope = {"scopeMetrics": [{"metrics": [*metrics, {"name": "empty"}, {"name": "none", "gauge": {}}]}]}
    assert count({"resourceMetrics": [scope, scope]}) == 20


def test_no_metrics_are_zero(count: Count) -> None:
    assert count({}) == 0


@pytest.mark.parametrize("json_", [False, True])
def test_metrics_that_cannot_be_read_are_refused(json_: bool) -> None:
    with pytest.raises(DecodeError):
        count_metrics(b"\x0a\xff", json_)


def test_a_trace_on_the_logs_path_is_refused_with_a_hint() -> None:
    span = wire.delimited(1, b"0123456789abcdef") + wire.delimited(2, b"01234567") + wire.delimited(5, "llm_request")
    with pytest.raises(DecodeError, match="another signal's path"):
        decode_logs(wire.request(span), False)
