"""Traces of clients go on; a trace is begun where there is none."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.proxy.trace_context import trace_context

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("text", [f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00", f"cc-{TRACE}-{PARENT}-01-more"])
def test_a_clients_trace_goes_on(text: str) -> None:
    found = trace_context(text.encode(), os.urandom)
    assert (found.trace_id.hex(), found.parent_id.hex()) == (TRACE, PARENT)
    assert found.span_id not in (found.parent_id, bytes(8))


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}",
    ],
)
def test_without_one_a_trace_begins(text: str | None) -> None:
    found = trace_context(text.encode() if text is not None else None, os.urandom)
    assert found.parent_id == b""
    assert found.trace_id.hex() != TRACE
    assert found.traceparent == f"00-{found.trace_id.hex()}-{found.span_id.hex()}-01".encode()


@given(st.binary(max_size=80))
def test_any_bytes_give_ids_that_are_some(text: bytes) -> None:
    found = trace_context(text, bytes)
    assert any(found.trace_id)
    assert any(found.span_id)
