"""Whole stories of a simulated server with one thing wrong: what is said of its requests against what it truly was."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from gpumon.catalogue import CAUSES, EXPLAINED_REQUESTS, PHASES, SLOW_TOKEN_SECONDS, TOKEN_EXCESS
from gpumon.config import CadenceConfig, Config, StateConfig
from gpumon.explain.explained import Account, Explained, SlowGap
from gpumon.export.prometheus import Exposition
from gpumon.export.text import Format
from gpumon.model import Metric
from gpumon.sim.scenario import parse_scenario
from gpumon.sim.state import FinishedRequest
from gpumon.simulated import STARTED_S, SimulatedNode

COLD_S = 15.0
"""Requests that began before are left out: little is known of the server yet."""
LENGTH_S = 85.0
DRAIN_S = 15.0
"""After the story: by then what has ended is explained."""
_TEXT: Final = """\
name: explained
duration_s: {length_s}
seed: 7
node: {{model: h200, gpus: 2, numa_nodes: 2}}
servers:
  - {{name: dense-0, kind: vllm, model: dense-8b, gpus: [0, 1], parameters_b: 8, kv_bytes_per_token: 131072}}
load:
  - {{server: dense-0, arrivals: {{per_s: {per_s}}}, prompts: {{{prompts}}}, outputs: {{mean: 300, spread: 0.5}}}}
faults: [{{{fault}}}]
"""


class Story(NamedTuple):
    cause: str
    """The one that is injected."""
    fault: str
    """As in a scenario."""
    begins_s: float
    ends_s: float
    per_s: float = 2.0
    prompts: str = "1k: 3, 2k: 1"

    @property
    def text(self) -> str:
        fault = f"{self.fault}, at_s: {self.begins_s:g}, for_s: {self.ends_s - self.begins_s:g}"
        return _TEXT.format(length_s=LENGTH_S, per_s=self.per_s, prompts=self.prompts, fault=fault)


STORIES: Final = (
    # It takes ten seconds until the die is hot.
    Story("thermal_throttle", "kind: thermal_throttle, gpu: 1, strength: 0.4", 45.0, 80.0),
    Story("process_stopped", "kind: process_stopped, server: dense-0", 60.0, 63.0),
    # At short contexts faults would cost next to nothing.
    Story("page_faults", "kind: page_faults, server: dense-0, strength: 6000", 50.0, 80.0, 1.5, "8k: 1"),
    Story("cpu_starvation", "kind: cpu_starvation, server: dense-0, strength: 0.9", 50.0, 80.0),
    Story("prefill_interference", "kind: long_prompts, server: dense-0, strength: 12", 50.0, 80.0),
)


class Request(NamedTuple):
    """As it truly was, or as it was explained."""

    trace: bytes
    start_s: float
    """Of the story."""
    end_s: float
    lost_s: dict[str, float]
    """By cause."""


class Told(NamedTuple):
    """What became of a story."""

    explained: list[Explained]
    said: list[Request]
    true: list[Request]
    page: str
    """At its end."""


@functools.cache
def told(story: Story) -> Told:
    """Only looked at."""
    explained: list[Explained] = []
    finished: list[tuple[bytes, FinishedRequest]] = []
    node = SimulatedNode(
        parse_scenario(story.text),
        7,
        Config(cadence=CadenceConfig(fast_s=0.5), state=StateConfig(folder=None)),
        on_explained=explained.extend,
        on_truth=lambda trace, request: finished.append((trace, request)),
    )
    node.advance(LENGTH_S + DRAIN_S)
    view = node.node.store.view(node.clock.now_s())
    return Told(
        explained,
        [request(each.record.trace_id, each.start_s, each.end_s, each.by_cause().items()) for each in explained],
        [request(trace, each.start_s, each.end_s, (*each.first_truth, *each.truth)) for trace, each in finished],
        Exposition().render(view).body(Format.TEXT).decode(),
    )


def request(trace: bytes, start_s: float, end_s: float, lost_s: Iterable[tuple[str, float]]) -> Request:
    """Times: steady."""
    return Request(trace, start_s - STARTED_S, end_s - STARTED_S, summed(lost_s))


def summed(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for cause, seconds in pairs:
        found[cause] = found.get(cause, 0.0) + seconds
    return found


def gained(story: Story, requests: Iterable[Request]) -> dict[str, float]:
    """Seconds of each cause while the fault was there, less what the same time of requests had of it before."""
    warm = [each for each in requests if each.start_s >= COLD_S]
    during = [each for each in warm if each.start_s < story.ends_s and each.end_s > story.begins_s]
    before = [each for each in warm if each.end_s < story.begins_s]
    times = sum(each.end_s - each.start_s for each in during) / sum(each.end_s - each.start_s for each in before)
    lost, usual = (summed(pair for each in some for pair in each.lost_s.items()) for some in (during, before))
    return {cause: seconds - times * usual.get(cause, 0.0) for cause, seconds in lost.items()}


def counted(page: str, metric: Metric) -> dict[tuple[str, ...], float]:
    """Samples of a family by their labels, those above zero."""
    return {
        tuple(sample.labels[label] for label in metric.labels): sample.value
        for family in parse(page)
        for sample in family.samples
        if sample.name == metric.name and sample.value
    }


pytestmark = [pytest.mark.slow, pytest.mark.parametrize("story", STORIES, ids=[each.cause for each in STORIES])]


def test_the_cause_with_most_seconds_gained_is_the_one_that_was_injected(story: Story) -> None:
    true, said = gained(story, told(story).true), gained(story, told(story).said)
    assert max(true, key=lambda cause: true[cause]) == story.cause  # it is a story of this
    assert max(said, key=lambda cause: said[cause]) == story.cause
    assert said[story.cause] == pytest.approx(true[story.cause], rel=0.35)


def test_every_request_that_ended_is_explained_once(story: Story) -> None:
    ended = {each.trace for each in told(story).true if each.end_s <= LENGTH_S}
    known = Counter(each.trace for each in told(story).said)
    assert len(ended) > 100
    assert ended <= known.keys()
    assert set(known.values()) == {1}


def test_the_excess_of_every_request_and_gap_is_the_sum_of_its_shares(story: Story) -> None:
    slow = 0
    for each in told(story).explained:
        accounts = (each.first_token, each.decode)
        late: list[Account | SlowGap] = [*accounts, *each.slow_gaps]
        for said in late:
            assert all(share.seconds > 0 and share.cause in CAUSES for share in said.shares)
            assert said.excess_s == pytest.approx(sum(share.seconds for share in said.shares), abs=1e-9)
        assert all(0 <= account.excess_s <= account.actual_s + 1e-9 for account in accounts)
        slow += each.excess_s > 0
    assert slow > 10


def test_what_is_counted_on_the_page_is_the_sum_over_requests(story: Story) -> None:
    explained, page = told(story).explained, told(story).page
    seconds: dict[tuple[str, ...], float] = {}
    excess: dict[tuple[str, ...], float] = {}
    for each in explained:
        for phase, account in zip(PHASES, (each.first_token, each.decode), strict=True):
            labels = (each.record.server, each.record.model, phase)
            excess[labels] = excess.get(labels, 0.0) + account.excess_s
            for share in account.shares:
                seconds[*labels, share.cause] = seconds.get((*labels, share.cause), 0.0) + share.seconds
    assert {labels[1] for labels in excess} == {"dense-8b"}
    assert counted(page, SLOW_TOKEN_SECONDS) == pytest.approx(seconds)
    assert counted(page, TOKEN_EXCESS) == pytest.approx({labels: value for labels, value in excess.items() if value})
    assert sum(counted(page, EXPLAINED_REQUESTS).values()) == len(explained)
