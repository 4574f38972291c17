"""The bodies of answers: ``Export…ServiceResponse`` and ``google.rpc.Status``, as protobuf and as JSON.

Written by hand, since there are four messages of two fields: that keeps four generated modules out of memory. Tests
compare with the official classes. Field numbers: opentelemetry-proto ``collector/*/v1`` (the same for each signal),
googleapis ``google/rpc/{status,error_details}.proto``.
"""

from __future__ import annotations

import json

from gpumon.ingest.request import Ack, Outcome, Signal

HTTP_STATUS = {
    Outcome.OK: 200,
    Outcome.PARTIAL: 200,
    Outcome.BAD: 400,
    Outcome.UNAUTHORIZED: 401,
    Outcome.TOO_SLOW: 408,
    Outcome.TOO_LARGE: 413,
    Outcome.FAILED: 500,
    Outcome.OVERLOAD: 503,
    Outcome.UNAVAILABLE: 503,
}
RPC_CODE = {
    Outcome.BAD: 3,  # INVALID_ARGUMENT
    Outcome.TOO_SLOW: 4,  # DEADLINE_EXCEEDED
    Outcome.TOO_LARGE: 8,  # RESOURCE_EXHAUSTED, without RetryInfo: not to be sent again
    Outcome.FAILED: 13,  # INTERNAL
    Outcome.OVERLOAD: 14,  # UNAVAILABLE, with RetryInfo
    Outcome.UNAVAILABLE: 14,
    Outcome.UNAUTHORIZED: 16,  # UNAUTHENTICATED
}
"""Numbers of google.rpc.Code and of gRPC's status codes."""

MESSAGE_CHARACTERS = 1000
"""Of a message in an answer; gRPC carries it in a header, whose size clients limit."""

_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_REJECTED = {
    Signal.TRACES: "rejectedSpans",
    Signal.METRICS: "rejectedDataPoints",
    Signal.LOGS: "rejectedLogRecords",
}


def response(signal: Signal, ack: Ack, *, as_json: bool) -> bytes:
    """``Export…ServiceResponse`` for OK and PARTIAL; ``partial_success`` is unset on full success."""
    message = ack.message[:MESSAGE_CHARACTERS]
    if as_json:
        if ack.outcome is Outcome.OK:
            return b"{}"
        partial: dict[str, str] = {}
        if ack.rejected:
            partial[_REJECTED[signal]] = str(ack.rejected)  # int64 is text in protobuf's JSON
        if message:
            partial["errorMessage"] = message
        return _json({"partialSuccess": partial})
    if ack.outcome is Outcome.OK:
        return b""
    return _bytes_field(1, _int_field(1, ack.rejected) + _text_field(2, message))


def status(ack: Ack, *, as_json: bool) -> bytes:
    """``google.rpc.Status`` for every other outcome, with a RetryInfo where sending again makes sense."""
    code = RPC_CODE[ack.outcome]
    message = ack.message[:MESSAGE_CHARACTERS]
    if as_json:
        answer: dict[str, object] = {"code": code, "message": message}
        if ack.retry_after_s:
            answer["details"] = [{"@type": _RETRY_INFO, "retryDelay": f"{ack.retry_after_s}s"}]
        return _json(answer)
    answer_bytes = _int_field(1, code) + _text_field(2, message)
    if ack.retry_after_s:
        any_ = _text_field(1, _RETRY_INFO) + _bytes_field(2, retry_info(ack.retry_after_s))
        answer_bytes += _bytes_field(3, any_)
    return answer_bytes


def retry_info(after_s: int) -> bytes:
    """``google.rpc.RetryInfo``."""
    return _bytes_field(1, _int_field(1, after_s))  # a Duration of whole seconds


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int_field(number: int, value: int) -> bytes:
    return bytes((number << 3,)) + _varint(value) if value else b""


def _text_field(number: int, text: str) -> bytes:
    return _bytes_field(number, text.encode("utf-8", "replace")) if text else b""


def _bytes_field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content
