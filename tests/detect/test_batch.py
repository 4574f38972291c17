"""Pauses between steps that nothing explains, and requests that wait because they come alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gpumon.detect.batch import BatchJitter
from gpumon.detect.detector import Entity, Finding, Severity
from gpumon.model import RequestRecord
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence
from tests.requests.records import request

STEP_S = 0.02
STEPS = 200


def test_what_is_told_of_it_is_complete() -> None:
    check_described(BatchJitter)


class Server:
    """Every second two requests end, each of ``STEPS`` decode steps; the batch meets the same pauses."""

    def __init__(self, *, concurrency: int = 8, largest: int = 20) -> None:
        self.stage = Stage()
        self.detector = BatchJitter()
        self.chance = random.Random(4)
        self.concurrency = concurrency
        self.largest = largest
        self.server = "vllm"

    def play(
        self,
        seconds: int,
        gap: Callable[[random.Random], float] = lambda _: STEP_S,
        *,
        prompts: bool = False,
        tokens: bool = True,
    ) -> list[tuple[float, Finding]]:
        """gap: seconds of a step. prompts: each long step was another request's prompt. Findings with their times."""
        found: list[tuple[float, Finding]] = []
        for second in range(seconds):
            ended = [self._request(gap, tokens=tokens) for _ in range(2)]
            if prompts:
                ended += [explained for record in ended[:] for explained in _prompts(record)]
            if second % 20 == 0 and ended:
                ended[0].concurrency = self.largest
            scene = self.stage.step(1.0, ended)
            found += [(self.stage.at_s, finding) for finding in self.detector.step(scene)]
        return found

    def _request(self, gap: Callable[[random.Random], float], *, tokens: bool) -> RequestRecord:
        gaps = np.array([gap(self.chance) * 1e9 for _ in range(STEPS)]).astype(np.int64)
        end_ns = self.stage.at_ns + self.chance.randrange(10**9)
        times = end_ns - np.cumsum(gaps[::-1])[::-1]
        return request(
            server=self.server,
            start_ns=int(times[0]) - 200_000_000,
            end_ns=end_ns,
            first_token_ns=int(times[0]),
            arrived_s=self.stage.at_s - 5.0,
            queue_s=0.01,
            prompt_tokens=1000,
            concurrency=self.concurrency,
            per_token=tokens,
            token_ns=times if tokens else None,
        )


def _prompts(record: RequestRecord) -> list[RequestRecord]:
    """Short requests whose prompts were processed in the long steps of this one."""
    assert record.token_ns is not None
    times = record.token_ns
    gaps = np.diff(times)
    return [
        request(
            server=record.server,
            start_ns=int(times[at]),
            first_token_ns=int(times[at + 1]),
            end_ns=int(times[at + 1]) + 1,
            queue_s=0.0,
            concurrency=record.concurrency,
        )
        for at in np.nonzero(gaps > 2 * np.median(gaps))[0]
    ]


def even(chance: random.Random) -> float:
    return STEP_S * (0.9 + 0.2 * chance.random())


def paused(chance: random.Random) -> float:
    """One step in twelve waits for some steps."""
    return even(chance) + (STEP_S * (2 + 4 * chance.random()) if chance.random() < 0.08 else 0.0)


def test_pauses_that_nothing_explains_are_found_with_their_figures() -> None:
    server = Server()
    assert server.play(80, even) == []
    began_s = server.stage.at_s
    found = server.play(40, paused)
    at_s, finding = found[0]
    assert at_s - began_s <= 25
    assert finding.since_s <= at_s - 4
    assert finding.entity == Entity("server", "vllm/m")
    assert finding.severity is Severity.INFO
    pauses = evidence(found[-1][1], "pauses")
    assert 0.03 < pauses.observed < 0.08
    assert pauses.baseline == 0.0
    median = evidence(found[-1][1], "inter_token_median")
    assert median.baseline == pytest.approx(STEP_S, rel=0.03)
    assert median.observed == pytest.approx(STEP_S, rel=0.06)
    assert evidence(finding, "batch_fill").observed == pytest.approx(0.45, abs=0.1)


def test_it_ends_with_the_pauses() -> None:
    server = Server()
    server.play(80, even)
    assert server.play(120, paused)
    server.play(50, even)
    assert server.play(60, even) == []


@pytest.mark.parametrize(
    ("name", "gap"),
    [
        ("all steps longer", lambda chance: 3 * even(chance)),
        ("all steps longer, with pauses", lambda chance: 2.5 * paused(chance)),
        ("steps of all lengths", lambda chance: even(chance) * (1.0 + 4.0 * chance.random())),
        ("a pause now and then", lambda chance: even(chance) * (5.0 if chance.random() < 0.005 else 1.0)),
    ],
)
def test_what_is_no_jitter(name: str, gap: Callable[[random.Random], float]) -> None:
    server = Server()
    server.play(80, even)
    assert server.play(60, gap) == []


def test_pauses_in_which_prompts_were_processed_are_explained() -> None:
    server = Server()
    server.play(80, even)
    assert server.play(60, paused, prompts=True) == []


def test_runs_of_slow_steps_are_something_else() -> None:
    state = {"left": 0}

    def bursts(chance: random.Random) -> float:
        if state["left"] == 0 and chance.random() < 0.01:
            state["left"] = 10
        state["left"] = max(0, state["left"] - 1)
        return even(chance) * (4.0 if state["left"] else 1.0)

    server = Server()
    server.play(80, even)
    assert server.play(60, bursts) == []


def test_pauses_that_were_always_there_are_usual() -> None:
    server = Server()
    assert server.play(200, paused) == []


def test_a_full_server_is_left_alone() -> None:
    server = Server(concurrency=18)
    server.play(80, even)
    assert server.play(60, paused) == []


def test_a_load_that_has_doubled_is_left_alone() -> None:
    server = Server(largest=64)
    server.play(80, even)
    server.concurrency = 16
    assert server.play(60, paused) == []


def test_without_token_times_there_are_no_pauses() -> None:
    server = Server()
    server.play(80, even, tokens=False)
    assert server.play(60, paused, tokens=False) == []


def test_times_that_go_back_and_requests_that_failed_do_no_harm() -> None:
    server = Server()
    server.play(60, even)
    odd = server._request(paused, tokens=True)
    assert odd.token_ns is not None
    odd.token_ns = odd.token_ns[::-1].copy()
    still = server._request(lambda _: 0.0, tokens=True)
    failed = server._request(paused, tokens=True)
    failed.outcome = "error"
    assert list(server.detector.step(server.stage.step(1.0, [odd, still, failed] * 4))) == []
    assert server.play(40, even) == []


def test_a_server_that_is_gone_is_forgotten_and_many_take_bounded_room() -> None:
    server = Server()
    for number in range(80):
        server.server = f"s{number}"
        server.play(1, even)
    assert len(server.detector._pairs) <= 64
    assert server.stage.run(server.detector, 700, step_s=10.0) == []
    assert len(server.detector._pairs) == 0


# --- requests that come alone -----------------------------------------------------------------------------------------


def arrivals(
    seed: int = 7,
    *,
    lone_s: float = 0.2,
    others_s: float = 0.05,
    lone_prompt: int = 1000,
    queue: bool = True,
    seconds: int = 280,
    groups: bool = True,
) -> list[tuple[float, RequestRecord]]:
    """Bursts of 12 requests each 20 s, and between them single ones; with the times at which they become known."""
    chance = random.Random(seed)
    found: list[tuple[float, RequestRecord]] = []

    def add(at_s: float, concurrency: int, waited_s: float, prompt: int) -> None:
        waited_s *= 0.8 + 0.4 * chance.random()
        found.append(
            (
                at_s + 1.0,
                request(
                    arrived_s=BEGIN_S + at_s,
                    concurrency=concurrency,
                    queue_s=waited_s if queue else None,
                    time_to_first_token_s=waited_s + prompt * 1e-5,
                    prompt_tokens=prompt,
                ),
            )
        )

    for second in range(seconds):
        if groups and second % 20 == 0:
            for number in range(12):
                add(second + 0.02 * number, 4 + number, others_s, 1000)
        elif second % 10 == 5 or not groups:
            add(float(second), 1 if groups else 1 + second % 2, lone_s, lone_prompt)
    return sorted(found, key=lambda pair: pair[0])


def watch(known: Sequence[tuple[float, RequestRecord]], seconds: int = 300) -> list[Finding]:
    """Findings of the last step."""
    stage, detector = Stage(), BatchJitter()
    found: list[Finding] = []
    for second in range(seconds):
        found = list(detector.step(stage.step(1.0, [record for at_s, record in known if int(at_s) == second])))
    return found


def test_lone_requests_that_wait_longer_are_found_with_their_figures() -> None:
    (finding,) = watch(arrivals())
    assert finding.entity == Entity("server", "vllm/m")
    assert finding.severity is Severity.INFO
    assert BEGIN_S < finding.since_s < BEGIN_S + 200
    p99, median = evidence(finding, "queue_time_p99"), evidence(finding, "queue_time_median")
    assert p99.observed == pytest.approx(0.24, rel=0.1)
    assert p99.baseline == pytest.approx(0.06, rel=0.1)
    assert median.observed == pytest.approx(0.2, rel=0.15)
    assert evidence(finding, "lone_requests").observed == 28.0
    assert evidence(finding, "other_requests").observed == 12.0 * 14
    assert evidence(finding, "spacing_variation").observed > 1.3


def test_without_queue_times_the_first_token_tells() -> None:
    (finding,) = watch(arrivals(queue=False))
    assert evidence(finding, "time_to_first_token_p99").observed > 0.2


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("lone ones are sooner, as they should be", arrivals(lone_s=0.01)),
        ("a little longer", arrivals(lone_s=0.06)),
        ("longer, but nobody notices", arrivals(lone_s=0.004, others_s=0.001)),
        ("their prompts are longer", arrivals(queue=False, lone_prompt=20_000, lone_s=0.01)),
        ("too few", arrivals(seconds=60)),
        ("nobody comes in company", arrivals(groups=False)),
    ],
)
def test_lone_requests_of_a_healthy_server_are_none(name: str, known: list[tuple[float, RequestRecord]]) -> None:
    assert watch(known) == []


def test_it_ends_some_minutes_after_the_last_of_them() -> None:
    known = [*arrivals(), *((300 + at_s, _later(record)) for at_s, record in arrivals(lone_s=0.01))]
    assert watch(known, 700) == []


def _later(record: RequestRecord) -> RequestRecord:
    record.arrived_s += 300.0
    return record


@pytest.mark.parametrize("lone", [0, -1])
def test_fewest_lone_requests_are_at_least_one(lone: int) -> None:
    with pytest.raises(ValueError, match="lone must be at least 1"):
        BatchJitter(lone=lone)
