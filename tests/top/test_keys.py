"""Keys from what a terminal sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.top.keys import Key, keys


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"q", [Key.QUIT]),
        (b"?h", [Key.HELP, Key.HELP]),
        (b"ps ", [Key.PAUSE, Key.SORT, Key.PAUSE]),
        (b"\x1b[A\x1b[B", [Key.UP, Key.DOWN]),
        (b"\x1bOA\x1bOB", [Key.UP, Key.DOWN]),
        (b"\x1b[5~\x1b[6~", [Key.PAGE_UP, Key.PAGE_DOWN]),
        (b"", []),
        (b"xyz\xff\x00", []),
    ],
)
def test_keys_are_known_by_their_bytes(data: bytes, found: list[Key]) -> None:
    assert keys(data) == found


@pytest.mark.parametrize("data", [b"\x1b[1;5q", b"\x1b[200~", b"\x1bOq", b"\x1b", b"\x1b[12;3p"])
def test_letters_in_a_sequence_are_no_keys(data: bytes) -> None:
    assert keys(data) == []


@given(st.binary(max_size=200))
def test_any_bytes_are_at_most_as_many_keys(data: bytes) -> None:
    assert len(keys(data)) <= len(data)
