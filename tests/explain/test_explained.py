"""What is kept of a request once it is explained."""

from __future__ import annotations

from dataclasses import fields

from gpumon.explain.explained import without_times
from gpumon.model import RequestRecord


def test_a_copy_without_times_keeps_everything_else() -> None:
    """It is made by position: a field that is added to the record, or moved, must not end in another's place."""
    times = ("token_ns", "token_counts", "rank_steps")
    record = RequestRecord(**{field.name: f"value of {field.name}" for field in fields(RequestRecord)})  # type: ignore[arg-type]
    copy = without_times(record)
    for field in fields(RequestRecord):
        expected: object = (
            f"value of {field.name}" if field.name not in times else None if field.name != "rank_steps" else {}
        )
        assert getattr(copy, field.name) == expected, field.name
