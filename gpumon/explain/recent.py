"""The newest explained requests with all that is said of them.

Kept are the 1,024 that were slow last, with the times of their tokens, 400,000 together; and 1,024 of the others, with
the newest of theirs, 500,000 together. At 8 bytes each that is 3.2 MB and 4 MB. A request whose tokens would take more
than a sixteenth of that keeps no times. Times are kept as explaining has made them: nothing is converted.

The others are kept by model: the one that has most gives up its oldest, so that a model that is asked a lot leaves
those of the rest in place. One of which nothing came for a quarter of an hour gives first: its room is not kept for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from gpumon.explain.explained import Explained, Key, key_of

SLOW_MAX: Final = 1024
SLOW_TOKENS: Final = 400_000
"""Token times in memory."""
ON_TIME_MAX: Final = 1024
ON_TIME_TOKENS: Final = 500_000
IDLE_S: Final = 900.0
_LARGE: Final = 16
"""The part of the room from which on a request takes too much of it."""


class Recent:
    """One thread keeps; any may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slow: OrderedDict[Key, Explained] = OrderedDict()
        """The newest last."""
        self._slow_tokens = 0
        self._models: dict[tuple[str, str], _OnTime] = {}
        """By server and model."""
        self._model_of: dict[Key, _OnTime] = {}
        """Of each request that was on time."""

    def find(self, trace_id: str) -> dict[Key, Explained]:
        """What is known of the requests of a trace (32 hex digits)."""
        with self._lock:
            every = [self._slow, *(model.requests for model in self._models.values())]
            return {key: each for known in every for key, each in known.items() if key[0] == trace_id}

    def all_keys(self) -> list[Key]:
        """Of those that are known."""
        with self._lock:
            return [*self._slow, *self._model_of]

    def __contains__(self, key: Key) -> bool:
        with self._lock:
            return key in self._slow or key in self._model_of

    def get(self, key: Key) -> Explained | None:
        """What is known of one."""
        with self._lock:
            model = self._model_of.get(key)
            return model.requests[key] if model is not None else self._slow.get(key)

    def slow(self) -> list[Explained]:
        """Requests that were slow, the newest first."""
        with self._lock:
            return list(reversed(self._slow.values()))

    def keep(self, explained: Sequence[Explained]) -> None:
        """Those that ended, the newest last. One that is told again is known as it was told last."""
        with self._lock:
            for each in explained:
                key = key_of(each)
                self._forget(key)
                if each.excess_s > 0:
                    self._keep_slow(key, _fitting(each, SLOW_TOKENS))
                    continue
                of = (each.group.server, each.group.model)
                model = self._models.get(of)
                if model is None:
                    model = self._models[of] = _OnTime()
                self._model_of[key] = model
                model.put(key, _fitting(each, ON_TIME_TOKENS))
            if explained:
                self._make_room(explained[-1].end_s)

    def _forget(self, key: Key) -> None:
        if (model := self._model_of.pop(key, None)) is not None:
            model.drop(key)
        elif (each := self._slow.pop(key, None)) is not None:
            self._slow_tokens -= _tokens(each)

    def _keep_slow(self, key: Key, each: Explained) -> None:
        self._slow[key] = each
        self._slow_tokens += _tokens(each)
        while len(self._slow) > SLOW_MAX or self._slow_tokens > SLOW_TOKENS:
            _, oldest = self._slow.popitem(last=False)
            self._slow_tokens -= _tokens(oldest)

    def _make_room(self, at_s: float) -> None:
        while len(self._model_of) > ON_TIME_MAX:
            key = self._giver(at_s, _requests).drop_oldest()
            del self._model_of[key]
        while sum([model.tokens for model in self._models.values()]) > ON_TIME_TOKENS:
            self._giver(at_s, _times).drop_times()
        if not all(model.requests for model in self._models.values()):
            self._models = {of: model for of, model in self._models.items() if model.requests}

    def _giver(self, at_s: float, size: Callable[[_OnTime], int]) -> _OnTime:
        """Who gives up something, of those that have it."""

        def weight(model: _OnTime) -> tuple[bool, int]:
            has = size(model)
            return has > 0 and at_s - model.seen_s > IDLE_S, has

        return max(self._models.values(), key=weight)


class _OnTime:
    """Requests of one model that were on time, the newest last."""

    def __init__(self) -> None:
        self.requests: OrderedDict[Key, Explained] = OrderedDict()
        self._timed: OrderedDict[Key, int] = OrderedDict()
        """Tokens of those that have their times."""
        self.tokens = 0
        """All of them."""
        self.seen_s = 0.0
        """When its newest request ended."""

    def put(self, key: Key, each: Explained) -> None:
        self.requests[key] = each
        self.seen_s = each.end_s
        if count := _tokens(each):
            self._timed[key] = count
            self.tokens += count

    def drop(self, key: Key) -> None:
        del self.requests[key]
        self.tokens -= self._timed.pop(key, 0)

    def drop_oldest(self) -> Key:
        """Which it was."""
        key = next(iter(self.requests))
        self.drop(key)
        return key

    def drop_times(self) -> None:
        """Of the oldest that has any; all else of it stays."""
        key, count = self._timed.popitem(last=False)
        self.tokens -= count
        self.requests[key] = self.requests[key]._replace(token_s=None)


def _requests(model: _OnTime) -> int:
    return len(model.requests)


def _times(model: _OnTime) -> int:
    return model.tokens


def _tokens(each: Explained) -> int:
    return 0 if each.token_s is None else len(each.token_s)


def _fitting(each: Explained, room: int) -> Explained:
    return each if _tokens(each) <= room // _LARGE else each._replace(token_s=None)
