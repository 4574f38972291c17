"""Which steady seconds a diagnosis is of, by the moments that were asked for."""

from __future__ import annotations

import pytest

from gpumon.web.questions import SINCE_MAX_S, DiagnoseQuery
from tests.web.known import OFFSET_S, START_S, Known

NOW = OFFSET_S + START_S


@pytest.mark.parametrize(
    ("query", "period"),
    [
        (DiagnoseQuery(), (NOW - 1800.0, NOW)),
        (DiagnoseQuery(60.0), (NOW - 60.0, NOW)),
        (DiagnoseQuery(from_unix_s=NOW - 300.0, to_unix_s=NOW - 240.0), (NOW - 300.0, NOW - 240.0)),
        (DiagnoseQuery(60.0, to_unix_s=NOW - 240.0), (NOW - 300.0, NOW - 240.0)),
        (DiagnoseQuery(from_unix_s=NOW - 300.0), (NOW - 300.0, NOW)),
        (DiagnoseQuery(from_unix_s=NOW - 300.0, to_unix_s=NOW + 300.0), (NOW - 300.0, NOW)),
        (DiagnoseQuery(from_unix_s=0.0), (NOW - SINCE_MAX_S, NOW)),
        (DiagnoseQuery(from_unix_s=NOW + 10.0, to_unix_s=NOW + 20.0), (NOW, NOW)),
    ],
)
def test_a_period_ends_now_at_the_latest_and_is_bounded(query: DiagnoseQuery, period: tuple[float, float]) -> None:
    known = Known()
    assert known.explanation is not None
    said = known.knowledge.diagnose(known.explanation, query)
    assert (said.since, said.until) == pytest.approx(period)
    assert said.requests == 0
