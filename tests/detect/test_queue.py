"""Queues that stand in front of a server, and those that only look like it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Finding
from gpumon.detect.queue import QueueBuildup
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence
from tests.requests.records import request

SERVER = ("vllm", "llama-70b", "127.0.0.1:8000")
ENTITY = Entity("server", "vllm/llama-70b at 127.0.0.1:8000")


def page(stage: Stage, waiting: float, running: float | None = 48.0, server: tuple[str, ...] = SERVER) -> None:
    values = {(catalogue.SERVER_WAITING, server): waiting}
    if running is not None:
        values[catalogue.SERVER_RUNNING, server] = running
    stage.put({**values})


def play(
    waiting: Iterable[float], running: float | None = 48.0, *, step_s: float = 1.0
) -> tuple[Stage, list[tuple[float, Finding]]]:
    """One reading of the page per step; the findings with their times."""
    stage, detector = Stage(), QueueBuildup()
    found: list[tuple[float, Finding]] = []
    for value in waiting:
        page(stage, float(value), running)
        scene = stage.step(step_s)
        found += [(stage.at_s, finding) for finding in detector.step(scene)]
    return stage, found


def test_what_is_told_of_it_is_complete() -> None:
    check_described(QueueBuildup)


@pytest.mark.parametrize("step_s", [1.0, 2.0, 5.0, 10.0])
def test_a_queue_that_grows_while_the_batch_is_full_is_found_with_its_figures(step_s: float) -> None:
    calm = [0.0] * 5
    _, found = play([*calm, *(3.0 * step_s * n for n in range(1, 14))], step_s=step_s)
    at_s, finding = found[0]
    # The first reading of a queue of 48 / 10 or more, and one before it that is short.
    began = next(n for n in range(1, 14) if 3.0 * step_s * n >= 4.8)
    assert finding.since_s == BEGIN_S + step_s * (len(calm) + began)
    assert at_s - finding.since_s <= max(10.0, 2 * step_s)
    assert finding.entity == ENTITY
    assert finding.severity == "warning"
    waiting = evidence(found[-1][1], "waiting")
    assert waiting.observed == 39.0 * step_s
    assert found[-1][1].weight == 39.0 * step_s
    assert waiting.baseline is not None
    assert waiting.baseline < 4.8
    assert evidence(finding, "running").observed == 48.0
    assert "→" in finding.summary


def test_a_queue_that_came_at_once_and_stays_is_found() -> None:
    _, found = play([0.0] * 5 + [30.0] * 15)
    assert found[0][0] == BEGIN_S + 16.0
    assert evidence(found[0][1], "waiting")[1] == 30.0


@pytest.mark.parametrize(
    ("name", "waiting"),
    [
        ("bursts that drain", [value for _ in range(8) for value in (0, 40, 30, 20, 10, 2, 0, 0)]),
        ("a short queue all the time", [3.0] * 60),
        ("one tenth of the batch at most", [4.0] * 60),
        ("one burst that drains slowly", [0.0] * 3 + [200.0 - 6 * n for n in range(33)] + [0.0] * 20),
        ("one that was there before and stays as it is", [32.0] * 60),
    ],
)
def test_a_queue_of_a_healthy_server_is_none(name: str, waiting: list[float]) -> None:
    assert play(waiting)[1] == []


def test_a_bursty_load_on_a_server_that_bears_it_is_none() -> None:
    chance = random.Random(5)
    queue, lengths = 0.0, []
    for second in range(600):
        arrivals = chance.randrange(30, 60) if second % 9 == 0 else chance.randrange(4)
        queue = max(0.0, queue + arrivals - 9.0)
        lengths.append(queue)
    assert max(lengths) > 30
    assert play(lengths)[1] == []


def test_a_queue_that_stood_from_the_first_look_on_is_found_once_it_grows() -> None:
    _, found = play([20.0] * 20 + [20.0 + 2 * n for n in range(20)])
    assert found
    assert found[0][0] > BEGIN_S + 21
    assert found[0][1].since_s == BEGIN_S + 1.0


def test_while_the_batch_takes_them_in_they_are_no_queue() -> None:
    stage, detector = Stage(), QueueBuildup()
    for second in range(20):
        page(stage, 6.0 + second, 10.0 + 5 * second)
        assert list(detector.step(stage.step())) == []


def test_without_the_running_batch_the_queue_alone_decides() -> None:
    _, found = play([0.0] * 3 + [2.0 * n for n in range(20)], running=None)
    assert found
    assert [each.name for each in found[0][1].evidence] == ["waiting", "longest_queue"]


def test_it_is_over_when_the_queue_has_been_short_for_a_while() -> None:
    stage, detector = Stage(), QueueBuildup()

    def found_at(waiting: float) -> bool:
        page(stage, waiting)
        return bool(list(detector.step(stage.step())))

    for second in range(30):
        found_at(2.0 * second)
    assert all(found_at(value) for value in (58.0, 40.0, 20.0, 15.0)), "a quarter of the longest still counts"
    assert [found_at(value) for value in (3.0, 3.0, 40.0)] == [False, False, True], "a short break is forgiven"
    assert not any(found_at(0.0) for _ in range(6)), "its figures would be those of a calm moment"
    assert not found_at(40.0), "a queue for a moment is a burst"
    assert not any(found_at(3.0) for _ in range(30))


def test_the_last_figures_of_a_queue_are_not_of_its_absence() -> None:
    _, found = play([2.0 * n for n in range(30)] + [0.0] * 20)
    waiting, longest = found[-1][1].evidence[:2]
    assert waiting.observed == longest.observed == 58.0


def test_a_page_that_could_not_be_read_for_some_seconds_ends_nothing() -> None:
    stage, detector = Stage(), QueueBuildup()
    found: list[Finding] = []
    for second in range(40):
        page(stage, 2.0 * second)
        if 20 <= second < 26:
            stage.drop(catalogue.SERVER_WAITING)
        found = list(detector.step(stage.step()))
        assert bool(found) == (second >= 13 and not 20 <= second < 26)
    assert found[0].since_s < BEGIN_S + 5


def test_servers_do_not_mix_and_those_that_are_gone_are_forgotten() -> None:
    stage, detector = Stage(), QueueBuildup()
    other = ("sglang", "qwen", "127.0.0.1:8001")
    for second in range(20):
        page(stage, 2.0 * second)
        page(stage, 0.0, 3.0, other)
        found = list(detector.step(stage.step()))
    assert [finding.entity for finding in found] == [ENTITY]
    stage.drop(catalogue.SERVER_WAITING, labels=SERVER)
    for _ in range(70):
        stage.step()
        assert list(detector.step(stage.step())) == []
    page(stage, 40.0)
    assert list(detector.step(stage.step())) == []


def test_a_hundred_servers_take_bounded_room() -> None:
    stage, detector = Stage(), QueueBuildup()
    for second in range(12):
        for port in range(100):
            page(stage, 2.0 * second, 10.0, ("vllm", "m", f"127.0.0.1:{port}"))
        list(detector.step(stage.step()))
    assert len(detector._queues) <= 64


# --- without a page -------------------------------------------------------------------------------------------------


def served(
    stage: Stage,
    detector: QueueBuildup,
    seconds: int,
    queue_s: Callable[[int], float],
    *,
    opened: Callable[[int], float] | None = None,
    server: str = "tgi",
) -> list[Finding]:
    """Two requests per second end, each having waited this long."""
    found: list[Finding] = []
    for second in range(seconds):
        if opened is not None:
            stage.put({(catalogue.REQUESTS_OPEN, (server, "m")): opened(second)})
        at_ns = stage.at_ns
        ended = [
            request(
                [10_000_000] * 4,
                server=server,
                start_ns=at_ns - 9_000_000_000,
                end_ns=at_ns,
                arrived_s=stage.at_s - 9.0,
                queue_s=queue_s(second),
            )
            for _ in range(2)
        ]
        found = list(detector.step(stage.step(1.0, ended)))
    return found


def test_requests_that_wait_longer_than_usual_tell_of_a_queue() -> None:
    stage, detector = Stage(), QueueBuildup()
    assert served(stage, detector, 40, lambda _: 0.1) == []
    begun_s = stage.at_s
    found = served(stage, detector, 20, lambda second: 1.0 + 0.2 * second, opened=lambda second: 50.0 + second)
    (finding,) = found
    assert finding.entity == Entity("server", "tgi/m")
    assert finding.since_s <= begun_s, "they had arrived before"
    figure = evidence(finding, "queue_time_median")
    assert 3.5 < figure.observed < 4.5
    assert figure.baseline == pytest.approx(0.1)
    assert evidence(finding, "requests_open")[1] == 69.0
    assert served(stage, detector, 30, lambda _: 0.1) == []


def test_while_requests_that_waited_less_are_awaited_nothing_is_told() -> None:
    stage, detector = Stage(), QueueBuildup()
    served(stage, detector, 40, lambda _: 0.1)
    (finding,) = served(stage, detector, 30, lambda _: 4.0)
    assert finding.weight == pytest.approx(4.0)
    assert served(stage, detector, 7, lambda _: 0.1) == [], "not over for ten seconds, and no figures of it"
    assert served(stage, detector, 8, lambda _: 4.0)[0].since_s == finding.since_s


@pytest.mark.parametrize(
    ("queue_s", "opened"),
    [
        (lambda second: 0.8, None),  # below a second
        (lambda second: 5.0 if second % 4 == 0 else 0.1, None),  # a few only
        (lambda second: 3.0, lambda second: 200.0 - 5 * second),  # the queue gets shorter
    ],
)
def test_requests_of_a_healthy_server_tell_of_none(
    queue_s: Callable[[int], float], opened: Callable[[int], float] | None
) -> None:
    stage, detector = Stage(), QueueBuildup()
    served(stage, detector, 40, lambda _: 0.1)
    assert served(stage, detector, 30, queue_s, opened=opened) == []


def test_a_server_that_always_lets_requests_wait_is_told_of_once_it_is_worse() -> None:
    stage, detector = Stage(), QueueBuildup()
    served(stage, detector, 20, lambda _: 0.9)
    assert served(stage, detector, 40, lambda _: 2.0) == []
    assert served(stage, detector, 40, lambda _: 9.0)


@pytest.mark.parametrize("labels", [("tgi", "other", "h:1"), ("vllm", "m", "h:1")])
def test_where_a_page_tells_requests_are_not_asked(labels: tuple[str, ...]) -> None:
    """By the server, or by the model: requests may be those of a proxy in front of it."""
    stage, detector = Stage(), QueueBuildup()
    page(stage, 0.0, 8.0, labels)
    served(stage, detector, 40, lambda _: 0.1)
    assert served(stage, detector, 40, lambda _: 9.0) == []
