"""The claim about explaining: at 100,000 tokens/s, 5 % of them slow, it adds at most 25 % to what ingest costs a token.

On the node of ``busy_node`` in fast mode (8 GPUs, 30 processes, 4 servers' pages, one GPU that throttles for a while),
whose own few requests make way for those of ``token_stream``: on four servers of two GPUs, of 250 tokens each.
The same tokens go through decoding, assembly and statistics in the form of events and in the compact form; the records
of the former then go to detection and explanation, with all witnesses, and one more that sees the slow seconds. Counted
is CPU time alone: of ingest, as ``ingest_rates`` does; of the detectors; and of explanation's look, which is also
measured before the first request comes, when only its witnesses and signals have anything to do. Memory is what can be
reached from explanation and from nothing else. One JSON line.
``added_share`` is explanation over ingest, against the bar of 0.25; ``added_share_with_detectors`` counts the detectors
too, which have the same bar. What does not grow with tokens, the idle look, is in both.
Usage: python -m benchmarks.explain_cost [--seconds N] [--tokens N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from benchmarks.busy_node import WARM_UP_S, config, scenario
from benchmarks.common import percentiles, report
from benchmarks.detect_cost import size_of
from benchmarks.token_stream import Form, Server, compact, events
from gpumon.detect.incident import Incident
from gpumon.detect.scene import Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.host.garbage import short_pauses
from gpumon.ingest.assembly import Assembler
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.records import Decoded, Resource
from gpumon.model import Binding, GpuUuid, RequestRecord, Sample, Unit
from gpumon.requests.statistics import RequestStatistics
from gpumon.simulated import STARTED_S, UNIX_S, SimulatedNode

BARS = {"added_share": 0.25, "added_share_with_detectors": 0.25}
STRETCH = 0.10
IDLE_S = 15.0
FILL_S = 50.0
"""From the first request on, until all that is usual is known and the rings of details are full."""
TICK_S = 0.5
MODELS = ("dense-70b", "moe-235b", "dense-70b", "moe-235b")
"""Of ``busy_node``'s servers."""
OFFSET_S = UNIX_S - STARTED_S


class Ingest:
    """The parts of the daemon that a request goes through on its way to the detectors."""

    def __init__(self) -> None:
        self._assembler = Assembler(bind=_bind)
        self._counted = RequestStatistics()
        self.spent_s = 0.0

    def take(self, bodies: Sequence[bytes], at_s: float) -> list[RequestRecord]:
        """Exports that came in the last half second; the requests that are complete."""
        began = time.process_time()
        for body in bodies:
            (decoded,) = decode_traces([body])
            assert isinstance(decoded, Decoded)
            self._assembler.add(decoded, "127.0.0.1:1", at_s, lambda ns: ns / 1e9 - OFFSET_S)
        records = self._assembler.tick(at_s)
        for record in records:
            self._counted.add(record, at_s)
        self._counted.samples(at_s)
        self.spent_s += time.process_time() - began
        return records


def _forget(records: Sequence[RequestRecord]) -> None:
    del records


def _bind(resource: Resource, _: str) -> Binding:
    return Binding("resource", gpus=tuple(map(GpuUuid, str(resource.attributes["gpumon.gpu.uuid"]).split(","))))


class SlowSeconds:
    """A witness of the seconds in which a server was slow."""

    causes: ClassVar[tuple[str, ...]] = ("hw_slowdown",)

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Those that ended since the last look."""
        del incidents
        for server in self._servers:
            for start_s, end_s in server.slow_s:
                if scene.at_s - 1.0 < end_s <= scene.at_s:
                    fact = Fact("sm_clock", 1.2e9, Unit.HERTZ, 1.98e9)
                    yield Sign("hw_slowdown", ("gpu", server.gpus[0]), start_s, end_s, 0.95, 0.3, fact)


class Load:
    """A simulated node, the stream of tokens that it is given, and what each part of it took."""

    def __init__(self) -> None:
        self.simulated = SimulatedNode(scenario(), 1, config())
        node = self.simulated.node
        self.detection = node.detection
        explanation = node.explanation
        assert explanation is not None
        self.explanation = explanation
        self.looks_s: list[float] = []
        self.steps_s: list[float] = []
        """Of detection, without the look."""
        look = explanation.look
        (task,) = [task for task in node._tasks if task.name == self.detection.name]
        run = task.run
        self._offer = self.detection.offer_requests

        def timed_look(scene: Scene, incidents: Sequence[Incident]) -> list[Sample]:
            began = time.process_time()
            samples = look(scene, incidents)
            self.looks_s.append(time.process_time() - began)
            return samples

        def timed_step(at_s: float) -> None:
            began = time.process_time()
            run(at_s)
            self.steps_s.append(time.process_time() - began - self.looks_s[-1])

        self.detection._after, task.run = timed_look, timed_step
        self.detection.offer_requests = lambda _: None  # type: ignore[method-assign,assignment]  # the scenario's own
        self.events, self.compact = Ingest(), Ingest()
        self._random = np.random.default_rng(4)
        self.servers: list[Server] = []
        self._forms: list[tuple[Form, Form]] = []
        self.tokens = 0

    def begin(self, seconds: float, tokens: int) -> None:
        """From now on there are requests, of so many tokens."""
        uuids = [gpu.uuid for gpu in self.simulated.node.node.known_gpus()]
        self.servers = [
            Server(model, uuids[2 * i : 2 * i + 2], self.simulated.clock.now_s(), seconds, i, tokens)
            for i, model in enumerate(MODELS)
        ]
        self._forms = [(events(server), compact(server)) for server in self.servers]
        self.explanation._witnesses += (SlowSeconds(self.servers),)

    def advance(self, seconds: float) -> None:
        """Go on for so long."""
        until_s = self.simulated.story_s + seconds
        while self.simulated.story_s < until_s:
            self.simulated.advance(min(until_s, self.simulated.story_s + TICK_S))
            at_s = self.simulated.clock.now_s()
            exports = [
                (form, requests)
                for server, form in zip(self.servers, self._forms, strict=True)
                for requests in server.ended(at_s - 0.1, OFFSET_S)
            ]
            bodies = [[form[way].fresh(requests, self._random) for form, requests in exports] for way in range(2)]
            self.compact.take(bodies[1], at_s)
            self._offer(self.events.take(bodies[0], at_s))
            self.tokens += sum([requests.tokens_ns.size for _, requests in exports])

    def forget_times(self) -> None:
        """What comes now is what is measured."""
        self.looks_s.clear()
        self.steps_s.clear()
        self.events.spent_s = self.compact.spent_s = 0.0
        self.tokens = 0


def size(load: Load) -> int:
    """Bytes of explanation."""
    simulated = load.simulated
    node = simulated.node
    others = [
        node.store,
        node.tracing,
        node.node,
        node.health,
        simulated.world,
        load.detection._detectors,
        load.servers,
    ]
    return size_of(load.explanation, [*others, load.detection._scenes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="measured, after 95 s until all is known and full")
    parser.add_argument("--tokens", type=int, default=250, help="of an answer, at most 1,000")
    arguments = parser.parse_args()
    load = Load()
    load.advance(WARM_UP_S)
    short_pauses()
    load.forget_times()
    load.advance(IDLE_S)
    look_idle_s, step_idle_s = statistics.mean(load.looks_s), statistics.mean(load.steps_s)
    memory_idle = size(load)
    load.begin(FILL_S + arguments.seconds + 10.0, arguments.tokens)
    load.advance(FILL_S)
    load.forget_times()
    load.advance(arguments.seconds)

    def us(spent_s: float) -> float:
        """Of each token."""
        return 1e6 * spent_s / load.tokens

    ingest = {"events": us(load.events.spent_s), "compact": us(load.compact.spent_s)}
    explain, detect = us(sum(load.looks_s)), us(sum(load.steps_s))
    shares = {form: round(explain / cost, 3) for form, cost in ingest.items()}
    explained = sum(load.explanation._outcomes.values(), start=Counter[str]())
    report(
        "explain_cost",
        tokens_per_s=round(load.tokens / arguments.seconds),
        tokens_of_an_answer=arguments.tokens,
        slow_share=round(statistics.mean([server.slow_share for server in load.servers]), 4),
        groups=len(load.explanation._groups),
        explained=dict(sorted(explained.items())),
        ingest_us_per_token={form: round(cost, 4) for form, cost in ingest.items()},
        explain_us_per_token=round(explain, 4),
        explain_us_per_token_over_idle=round(explain - us(look_idle_s * len(load.looks_s)), 4),
        detect_us_per_token=round(detect, 4),
        added_share=shares,
        added_share_with_detectors={form: round((explain + detect) / cost, 3) for form, cost in ingest.items()},
        bars=BARS,
        stretch=STRETCH,
        within_bar={form: share <= BARS["added_share"] for form, share in shares.items()},
        look_idle_ms=round(1e3 * look_idle_s, 2),
        look_ms=percentiles([1e3 * each for each in load.looks_s]),
        detect_idle_ms=round(1e3 * step_idle_s, 2),
        memory_idle_bytes=memory_idle,
        memory_bytes=size(load),
    )


if __name__ == "__main__":
    main()
