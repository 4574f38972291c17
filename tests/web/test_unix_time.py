"""Unix time that does not tremble: one distance between the clocks until the wall clock is set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpumon.web.unix_time import SAME_S, UnixTime
from gpumon.web.whole import make_whole
from tests.explained import TRACE, explained
from tests.web.asking import ask_asgi
from tests.web.known import Known


def reading(*offsets_s: float) -> Callable[[float], float]:
    """Clocks that are read as so far apart, one time after the other, and as the last time from then on."""
    read = itertools.chain(offsets_s, itertools.repeat(offsets_s[-1]))
    return lambda at_s: at_s + next(read)


@pytest.mark.parametrize(
    ("offsets_s", "told"),
    [
        ((500.0, 500.0000003, 499.9999998, 500.0 + SAME_S / 2), [510.0, 510.0, 510.0]),
        # The wall clock was set: forward, back, and by little.
        ((500.0, 4100.0, 4100.0, 4100.0000001), [4110.0, 4110.0]),
        ((500.0, -86_000.0), [-85_990.0, -85_990.0]),
        ((500.0, 500.25, 500.25), [510.25]),
        # Held up between the two clocks, once in the midst and once at the beginning.
        ((500.0, 499.9, 500.0, 500.0), [510.0, 510.0]),
        ((499.9, 500.0, 500.0), [510.0, 510.0]),
    ],
)
def test_a_moment_is_the_same_until_the_wall_clock_is_set(offsets_s: Sequence[float], told: Sequence[float]) -> None:
    to_unix = UnixTime(reading(*offsets_s))
    assert [to_unix(10.0) for _ in told] == told


@pytest.mark.parametrize(
    "question", [f"explain?trace_id={TRACE}", f"timeline?trace_id={TRACE}", "requests", "explained", "heatmap"]
)
def test_an_answer_that_says_nothing_new_has_the_tag_that_it_had(question: str) -> None:
    known = Known()
    assert known.explanation is not None
    known.explanation._keep([explained()], cold=False)
    read = itertools.count()

    def trembling(at_s: float) -> float:
        return known.clock.to_unix(at_s) + 1e-7 * (next(read) % 7)

    asgi = make_whole(known.knowledge._replace(to_unix=trembling), "").asgi
    path, _, query = question.partition("?")

    def get(**headers: Any) -> Any:
        return ask_asgi(asgi, f"/api/v1/{path}", query, headers=headers)

    first = get()
    assert first.status == 200, first.body
    assert [get(**{"if-none-match": first.headers["etag"]}).status for _ in range(5)] == [304] * 5
