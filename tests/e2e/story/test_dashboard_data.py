"""Every query of every dashboard brings data in the demo's story, in the shape that its panel needs."""

from __future__ import annotations

import pytest

from tests.e2e.story.checks import columns, complaints, excuses
from tests.e2e.story.queries import load
from tests.e2e.story.story import BOARDS, Outcome

pytestmark = pytest.mark.slow

FILES = sorted(BOARDS.glob("*.json"))
EXCUSES = excuses(BOARDS.parent / "may_be_empty.yaml")


def test_every_dashboard_is_there() -> None:
    names = {path.stem for path in FILES}
    assert names == {f"gpumon-{name}" for name in ("fleet", "node", "inference", "explain", "health")}
    assert {excuse.board for excuse in EXCUSES} <= names


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_queries_of_a_dashboard_have_data(outcome: Outcome, name: str) -> None:
    mine = [answer for answer in outcome.answers if answer.target.board == name]
    excused = [excuse for excuse in EXCUSES if excuse.board == name]
    assert complaints(mine, excused) == []
    assert columns(load(BOARDS / f"{name}.json"), mine, excused) == []


def test_exemplars_open_a_trace_that_exists(outcome: Outcome) -> None:
    shown = {trace for answer in outcome.answers for trace in answer.traces}
    assert len(shown) > 10
    assert shown <= set(outcome.traces)
