"""How far gpumon's times are from the client's of the same requests. Seconds; positive: the client's are longer.

By definition the client's are the longer ones to a token: its clock starts when it sends, the proxy's when the head of
the request has arrived there; the proxy takes a token's time when its chunk has come, and then hands it on; the client
when it has read it. A gap between tokens has this at both of its ends, so that the difference may have either sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tests.live.client import Answer
from tests.live.story import Story


def first_tokens_s(story: Story, answers: Sequence[Answer]) -> list[float]:
    """Of the time to the first token, one for each answer."""
    return [
        answer.token_ns[0] / 1e9 - float(story.rows[answer.trace_id]["time_to_first_token_seconds"])
        for answer in answers
    ]


def longest_gaps_s(story: Story, answers: Sequence[Answer]) -> list[float]:
    """Of the longest gap between tokens, one for each answer."""
    return [max(answer.waits_s[1:]) - float(story.rows[answer.trace_id]["gap_max_seconds"]) for answer in answers]


def tokens_s(story: Story, answer: Answer) -> list[float]:
    """Of the time from the start to each token. answer: one that gpumon was asked about by itself (``details``)."""
    told_ms = story.details[answer.trace_id]["tokens"]["ms"]
    return [seen_ns / 1e9 - float(ms) / 1e3 for seen_ns, ms in zip(answer.token_ns, told_ms, strict=True)]


def gaps_s(story: Story, answer: Answer) -> list[float]:
    """Of each gap between tokens. answer: likewise."""
    late_s = tokens_s(story, answer)
    return [after - before for before, after in pairwise(late_s)]
