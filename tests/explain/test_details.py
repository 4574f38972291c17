"""What is known of requests by whichever place knows them: the newest, and those that are held."""

from __future__ import annotations

import numpy as np
import pytest

from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.explain import recent
from gpumon.explain.details import Details
from gpumon.explain.explained import key_of
from tests.explain.test_held import request


def incident(numbers: list[int]) -> Incident:
    keys = [key_of(request(number)) for number in numbers]
    return Incident(
        id="20261130T000000Z-xid-gpu-3",
        kind="xid",
        entity=Entity("gpu", "gpu 3", "3", "GPU-3"),
        severity=Severity.WARNING,
        since_s=1.0,
        opened_s=1.0,
        seen_s=1.0,
        summary="",
        evidence=(),
        action="",
        traces=tuple(trace_id for trace_id, _ in keys),
        spans=tuple(span_id for _, span_id in keys),
    )


@pytest.fixture
def details(monkeypatch: pytest.MonkeyPatch) -> Details:
    """In which one request was the slowest of its minute, and three others came after it."""
    monkeypatch.setattr(recent, "ON_TIME_MAX", 2)
    found = Details()
    found.keep([request(0xABCDEF01 << 96, gap_s=2.0)])
    for number in (1, 2, 3):
        found.keep([request(number, gap_s=0.01)])
    return found


def test_a_request_is_found_whether_it_is_new_or_held(details: Details) -> None:
    for number in (0xABCDEF01 << 96, 1, 3):
        trace_id, span_id = key_of(request(number))
        (found,) = details.find(trace_id)
        assert key_of(found) == (trace_id, span_id)
        of_span = details.of_span(bytes.fromhex(trace_id), bytes.fromhex(span_id))
        assert of_span is not None
        assert key_of(of_span) == (trace_id, span_id)
        assert details.knows(trace_id, span_id)
    assert details.find("f" * 32) == []
    assert details.of_span(bytes(16), bytes(8)) is None
    assert not details.knows("0" * 32, "")


def test_one_that_is_new_and_held_is_found_once() -> None:
    details = Details()
    details.keep([request(1)])
    assert len(details.find(key_of(request(1))[0])) == 1


def test_traces_are_found_by_their_beginning(details: Details) -> None:
    full = f"{0xABCDEF01 << 96:032x}"
    assert details.traces("abcdef01") == [full]
    assert details.traces(full) == [full]
    assert details.traces("0" * 24) == [f"{number:032x}" for number in (1, 2, 3)]
    assert details.traces("1") == []


def test_what_an_incident_names_is_held_once_it_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "ON_TIME_MAX", 2)
    details = Details()
    quiet = {"first_s": None, "timed": False}
    named = incident([7, 8])
    details.name([named])
    details.keep([request(7, **quiet)])  # type: ignore[arg-type]  # of no cell
    assert not details.holds(*key_of(request(7)))
    details.name([named])
    assert details.holds(*key_of(request(7)))
    for number in range(20, 30):
        details.keep([request(number, **quiet)])  # type: ignore[arg-type]
        details.name([named])
    assert details.knows(*key_of(request(7)))
    assert not details.knows(*key_of(request(20)))
    assert not details.knows(*key_of(request(8))), "it never was explained"


def test_details_are_the_same_after_they_were_held(details: Details) -> None:
    whole = request(0xABCDEF01 << 96, gap_s=2.0)
    (found,) = details.find(key_of(whole)[0])
    assert found.token_s is not None
    assert whole.token_s is not None
    assert found.token_s == pytest.approx(whole.token_s, abs=6e-7)
    assert np.array_equal(found.signals, whole.signals, equal_nan=True)
    assert found._replace(record=whole.record, token_s=None, signals=whole.signals) == whole._replace(token_s=None)
