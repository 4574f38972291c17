"""Bursts of page faults that go on: what they are, how it was before, and how that is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpumon.detect.bursts import Burst, duration_s, rate_in, recovery_s
from gpumon.detect.detector import Entity, Evidence, Finding, Severity
from gpumon.detect.prompt_lengths import bucket, long
from gpumon.detect.spoken import duration, figure
from gpumon.model import Unit

KEPT: Final = 64
"""Bursts of an episode."""
KEPT_PROMPTS: Final = 512


@dataclass(slots=True)
class Before:
    """How it was."""

    mean: float
    quiet: float
    level: float
    """Above this a sample is of a burst."""
    bursts: list[Burst]
    prompts: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Of the bursts there were, else of all the time."""
        return self.quiet + rate_in(self.bursts) if self.bursts else self.mean


@dataclass(slots=True)
class Episode:
    """Bursts that go on."""

    entity: Entity
    since_s: float
    before: Before
    variation: float
    cursor_s: float
    """What follows has to be looked at again: the end of the last burst that is over."""
    over: deque[Burst] = field(default_factory=lambda: deque(maxlen=KEPT))
    running: Burst | None = None
    prompts: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_PROMPTS))

    @property
    def bursts(self) -> list[Burst]:
        return [*self.over, *([self.running] if self.running is not None else ())]

    def take(self, bursts: Sequence[Burst], jump: float) -> None:
        """New bursts, and the one that goes on. Over ``jump`` times the largest before, they begin the episode anew."""
        running, self.running = self.running, None
        for burst in bursts:
            if running is not None and burst is bursts[0] and running.start_s < burst.start_s:
                burst = burst._replace(start_s=running.start_s)  # it is longer than the history
            if len(self.over) > 1 and burst.size > jump * max(other.size for other in self.over):
                before = self.before
                before.bursts, before.prompts = [*self.over], [*self.prompts]
                self.over.clear()
                self.prompts.clear()
                self.since_s = burst.start_s
            if burst.is_over:
                self.over.append(burst)
                self.cursor_s = burst.end_s
            else:
                self.running = burst

    def finding(self, *, is_over: bool) -> Finding:
        """With its figures as they are now."""
        before, bursts = self.before, self.bursts
        now = before.quiet + rate_in(bursts)
        lasted_s, recovery = duration_s(bursts), recovery_s(self.over)
        evidence = [
            Evidence("major_faults_per_second", now, Unit.NONE, before.rate),
            Evidence("peak_faults_per_second", max(burst.peak for burst in bursts) + before.quiet, Unit.NONE),
            Evidence("variation", self.variation, Unit.NONE),
            Evidence("burst_duration", lasted_s, Unit.SECONDS, duration_s(before.bursts) if before.bursts else None),
        ]
        summary = f"major faults {figure(before.rate)} → {figure(now)}/s in bursts of {duration(lasted_s)}"
        if recovery is not None:
            evidence.append(Evidence("burst_recovery", recovery, Unit.SECONDS, recovery_s(before.bursts)))
            summary += f", recovery {duration(recovery)}"
        tokens, tokens_before = long([*self.prompts]), long(before.prompts)
        if tokens is not None:
            evidence.append(Evidence("context_tokens", tokens, Unit.NONE, tokens_before))
            buckets = [bucket(each) for each in (tokens_before, tokens) if each is not None]
            summary += f", context {' → '.join(dict.fromkeys(buckets))}"
        return Finding(
            "page_fault_burst",
            self.entity,
            Severity.WARNING,
            self.since_s,
            summary,
            tuple(evidence),
            over=is_over,
        )
