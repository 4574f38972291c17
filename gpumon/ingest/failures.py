"""What to tell the developer whose request cannot be read. No content of the request is quoted."""

from __future__ import annotations

from gpumon.ingest.records import DecodeError


def unreadable(body: bytes, signal: str) -> DecodeError:
    """Error for a body that is no protobuf message of that signal (trace, logs, metrics), with the likeliest reason."""
    if body.startswith(b"\x1f\x8b"):
        hint = "it looks like gzip: send Content-Encoding: gzip"
    elif body.lstrip()[:1] in (b"{", b"["):
        hint = "it looks like JSON: send Content-Type: application/json"
    else:
        hint = "it is truncated, corrupt, has text that is not UTF-8, or belongs to another signal's path"
    return DecodeError(f"cannot parse the body ({len(body)} bytes) as an OTLP {signal} export request: {hint}")
