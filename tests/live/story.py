"""One run: calm, then each fault in turn with calm between, and what gpumon said of it in the end.

The server, the proxy before it and gpumon beside it are processes as users start them; nothing in the server is changed
and the client tells gpumon nothing: all it knows of requests is from the proxy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.e2e.daemon import Daemon
from tests.e2e.page import Page
from tests.e2e.traces.gateway import OTLP, Gateway
from tests.e2e.waiting import eventually, settle
from tests.live.cgroup import Cgroup, ForbiddenError
from tests.live.client import TOKENS, Answer, Client
from tests.live.faults import Episode, paged_out, starved_cpu, stopped, throttled_cpu
from tests.live.maps import runqueue_wait_s
from tests.live.server import MODEL, LlamaServer
from tests.live.server_main import COMM
from tests.proxy.process import ProxyProcess

CALM_S: Final = 25.0
"""To learn what is usual."""
BETWEEN_S: Final = 7.0
"""After a fault: run-queue waits are read every five seconds."""
MAY_WAIT: Final = 0.4
"""Share of the calm in which others may keep the server from its CPU: taking it is to be a fault that stands out."""
STOPS_S: Final = (0.5, 0.8, 0.5, 1.2)
REAL = ("--procfs=/proc", "--sysfs=/sys", "--cgroupfs=/sys/fs/cgroup")
CAUSES: Final = {
    "stopped": "process_stopped",
    "paged_out": "page_faults",
    "starved_cpu": "cpu_starvation",
    "throttled_cpu": "cpu_starvation",
}
"""What gpumon is to say of each fault."""


@dataclass(slots=True)
class Story:
    """What happened, by the client and the kernel, and what gpumon said of it."""

    pid: int
    """Of the server."""
    answers: list[Answer] = field(default_factory=list)
    episodes: dict[str, list[Episode]] = field(default_factory=dict)
    """By fault, as in CAUSES."""
    forbidden: dict[str, str] = field(default_factory=dict)
    """Faults that the kernel does not let this user do, and why."""
    pages: dict[str, tuple[Page, Page]] = field(default_factory=dict)
    """gpumon's page before and some time after a fault."""
    end: Page | None = None
    explained: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds by cause of each request that was slow, by trace id."""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each request as /api/v1/requests has it, by trace id."""
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each request that was slow as /api/v1/explain has it, by trace id."""

    def during(self, fault: str) -> list[Answer]:
        """Answers that it overlapped."""
        return [a for a in self.answers if any(a.overlaps(e.start_ns, e.end_ns) for e in self.episodes.get(fault, ()))]

    def calm(self) -> list[Answer]:
        """Answers that no fault overlapped."""
        all_of_them = [episode for episodes in self.episodes.values() for episode in episodes]
        return [a for a in self.answers if not any(a.overlaps(e.start_ns, e.end_ns) for e in all_of_them)]

    def blamed(self, answers: list[Answer]) -> dict[str, float]:
        """Seconds by cause, the largest first."""
        sums: dict[str, float] = {}
        for answer in answers:
            for cause, seconds in self.explained.get(answer.trace_id, {}).items():
                sums[cause] = sums.get(cause, 0.0) + seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def late_s(self, answers: list[Answer]) -> float:
        """Seconds that their tokens came later than is usual for tokens, and first ones for first tokens."""
        calm = self.calm()
        first_s = median(answer.waits_s[0] for answer in calm)
        next_s = median(wait_s for answer in calm for wait_s in answer.waits_s[1:])
        usual_s = first_s + next_s * (TOKENS - 1)
        return sum(answer.duration_s - usual_s for answer in answers)


def tell(folder: Path) -> Story:
    """Live through it; about two minutes. folder: on a disk."""
    with ExitStack() as stack:
        cgroup, why = _cgroup(stack)
        server = stack.enter_context(LlamaServer(folder))
        if cgroup is not None:
            cgroup.add(server.pid)
        story = Story(server.pid)
        options = OTLP | {
            "GPUMON_PROCESSES__SERVERS": json.dumps([COMM]),
            "GPUMON_SERVERS__TARGETS": json.dumps([server.metrics_url]),
        }
        # After the server: one that gpumon sees start counts as warming up for a minute.
        daemon = stack.enter_context(Daemon(folder, *REAL, options=options))
        daemon.await_ready()
        daemon.await_series("gpumon_process_cpu_seconds_total", pid=str(server.pid))
        otlp = f"http://127.0.0.1:{Gateway(daemon).http_port}"
        proxy = stack.enter_context(ProxyProcess(folder, server.port, "--otlp", otlp))
        begun_s = runqueue_wait_s(server.pid)
        with Client(server, proxy) as client:
            settle(CALM_S)
            waited_s = runqueue_wait_s(server.pid) - begun_s
            assert waited_s < MAY_WAIT * CALM_S, (
                f"this machine is too busy for a fault to stand out: without one, the server waited {waited_s:.0f} of "
                f"{CALM_S:.0f} s for a CPU; run these tests alone"
            )
            _stops(story, daemon)
            with _part(story, daemon, "paged_out"):
                with paged_out(server) as episode:
                    settle(8.0)
                story.episodes["paged_out"] = [episode]
            with _part(story, daemon, "starved_cpu"):
                with starved_cpu(server.pid, cgroup=cgroup) as episode:
                    settle(12.0)
                story.episodes["starved_cpu"] = [episode]
            if cgroup is None:
                story.forbidden["throttled_cpu"] = why
            else:
                with _part(story, daemon, "throttled_cpu"):
                    with throttled_cpu(server.pid, cgroup) as episode:
                        settle(12.0)
                    story.episodes["throttled_cpu"] = [episode]
        assert client.error is None, client.error
        story.answers = client.answers
        _await_explained(daemon, len(story.answers))
        story.end = daemon.page()
        for late in _asked(daemon, f"explained?model={MODEL}&limit=500"):
            story.explained[late["trace_id"]] = {each["cause"]: each["seconds"] for each in late["causes"]}
        for row in _asked(daemon, f"requests?model={MODEL}&sort=newest&limit=500")["requests"]:
            assert row["trace_id"] not in story.rows, row
            story.rows[row["trace_id"]] = row
        for trace_id in story.explained:
            [story.details[trace_id]] = _asked(daemon, f"explain?trace_id={trace_id}")["requests"]
        return story


@contextmanager
def _part(story: Story, daemon: Daemon, fault: str) -> Iterator[None]:
    """A fault, gpumon's pages around it, and calm after it."""
    before = daemon.page()
    yield
    settle(BETWEEN_S)
    story.pages[fault] = (before, daemon.page())


def _stops(story: Story, daemon: Daemon) -> None:
    with _part(story, daemon, "stopped"):
        for seconds in STOPS_S:
            settle(2.0)
            with stopped(story.pid, seconds) as episode:
                pass
            story.episodes.setdefault("stopped", []).append(episode)


def _cgroup(stack: ExitStack) -> tuple[Cgroup | None, str]:
    """Or why there is none."""
    try:
        return stack.enter_context(Cgroup()), ""
    except ForbiddenError as error:
        return None, str(error)


def _await_explained(daemon: Daemon, count: int) -> None:
    def looked_at() -> bool:
        found = daemon.page().select("gpumon_explained_requests_total", model=MODEL)
        return sum(value for _, value in found) >= count

    eventually(looked_at, f"{count} requests to be explained", within_s=30.0, every_s=0.5)


def _asked(daemon: Daemon, question: str) -> Any:
    reply = daemon.ask(f"/api/v1/{question}")
    assert reply.status == 200, reply
    return json.loads(reply.body)
