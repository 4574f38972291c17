"""What happened and what gpumon said of it, in lines for people: ``pytest tests/live -s``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tests.live.agreement import first_tokens_s, gaps_s, longest_gaps_s, tokens_s
from tests.live.story import Story


def summary(story: Story) -> str:
    """A line for the calm and for each fault, and how far gpumon's times are from the client's."""
    lines = [""]
    for name, answers in (("calm", story.calm()), *((fault, story.during(fault)) for fault in story.episodes)):
        waits_ms = sorted(1e3 * wait_s for answer in answers for wait_s in answer.waits_s[1:])
        blamed = {cause: round(seconds, 2) for cause, seconds in story.blamed(answers).items()}
        waited_s = sum(answer.server_waited_s for answer in answers)
        lines += [
            f"{name}: {len(answers)} answers, gaps ms median {median(waits_ms):.1f} longest {waits_ms[-1]:.0f}, "
            f"late {story.late_s(answers):.2f} s, server waited for a CPU {waited_s:.2f} s, blamed {blamed}",
            f"    client less gpumon, ms: first token {_ms(first_tokens_s(story, answers))}, longest gap "
            f"{_ms(longest_gaps_s(story, answers))}; proxy and client waited for a CPU, per answer "
            f"{_ms([answer.way_waited_s for answer in answers])}",
            *(f"    {episode}" for episode in story.episodes.get(name, ())),
        ]
    slow = [answer for answer in story.answers if answer.trace_id in story.details]
    lines.append(
        f"token by token, of {len(slow)} answers that gpumon calls slow, client less gpumon, ms: since the start "
        f"{_ms([late_s for answer in slow for late_s in tokens_s(story, answer)])}, gaps "
        f"{_ms([late_s for answer in slow for late_s in gaps_s(story, answer)])}"
    )
    lines += [f"{fault} was not done: {why}" for fault, why in story.forbidden.items()]
    return "\n".join(lines)


def _ms(seconds: Sequence[float]) -> str:
    ordered = sorted(1e3 * each for each in seconds)
    if not ordered:
        return "none"
    return f"least {ordered[0]:.3f} median {median(ordered):.3f} most {ordered[-1]:.3f}"
