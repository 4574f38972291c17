"""How long the prompts of the newest requests were, and when and where they ran. From requests that have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpumon.catalogue import CONTEXT_BUCKETS
from gpumon.detect.scene import Scene
from gpumon.requests.buckets import context_buckets
from gpumon.requests.gaps import possible

REMEMBERED: Final = 1024
_LONG_SHARE: Final = 0.9


class Prompt(NamedTuple):
    """Of one request."""

    tokens: int
    start_s: float
    end_s: float
    pid: str
    """Of the process it is bound to; empty for none."""
    gpus: tuple[str, ...]
    """UUIDs."""


class PromptLengths:
    """The newest 1,024. ``feed`` once per step."""

    def __init__(self) -> None:
        self._prompts: deque[Prompt] = deque(maxlen=REMEMBERED)
        self.new: list[Prompt] = []
        """Those of this step."""

    def feed(self, scene: Scene) -> None:
        """Take the requests that ended. One whose prompt nobody counted is left out."""
        self.new = [
            Prompt(
                record.prompt_tokens,
                scene.to_steady(record.start_ns),
                scene.to_steady(record.end_ns),
                "" if record.binding.pid is None else str(record.binding.pid),
                tuple(record.binding.gpus),
            )
            for record in scene.requests
            if possible(record.prompt_tokens)
        ]
        self._prompts += self.new

    def all(self) -> list[Prompt]:
        """In the order in which they came."""
        return list(self._prompts)


def on_process(prompts: Iterable[Prompt], scene: Scene, pid: str) -> list[Prompt]:
    """Those that may have run on a process: bound to it or to a GPU that it holds, or to nothing."""
    held = frozenset(gpu.uuid for gpu in scene.holders(pid))
    return [
        prompt
        for prompt in prompts
        if prompt.pid == pid or not held.isdisjoint(prompt.gpus) or not (prompt.pid or prompt.gpus)
    ]


def long(tokens: Sequence[int]) -> int | None:
    """The length that nine of ten do not exceed; None of none."""
    return int(np.quantile(np.array(tokens), _LONG_SHARE, method="higher")) if tokens else None


def bucket(tokens: int) -> str:
    """Of context: ``16k``."""
    return CONTEXT_BUCKETS[int(context_buckets(np.array(tokens)))]
