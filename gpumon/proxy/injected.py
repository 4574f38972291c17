"""Delays that are put into requests on purpose, so that alerts and arithmetic can be tested.

With a seed, the same requests in the same order get the same delays: each request and rule draws from numbers of its
own, so that it does not matter which requests run beside it. Nanoseconds; time is handed in.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from gpumon.proxy.counters import Counters
from gpumon.proxy.http_head import INJECTED_HEADER, RequestHead
from gpumon.proxy.inject_rules import Rule, Where


class Injection:
    """The rules of a proxy. Off where there are none."""

    def __init__(self, rules: Sequence[Rule], seed: int, start_ns: int, counters: Counters) -> None:
        """start_ns: when bursts begin."""
        self.rules = tuple(rules)
        self._seed = seed
        self._start_ns = start_ns
        self._counters = counters
        self._number = 0

    def of(self, head: RequestHead) -> RequestDelays | None:
        """The delays of the next request; None where no rule applies to it."""
        if not self.rules:
            return None
        self._number += 1
        applying = [
            (rule, random.Random(f"{self._seed} {self._number} {place}"))  # noqa: S311 - numbers, not secrets
            for place, rule in enumerate(self.rules)
            if rule.header is None or rule.header in {(name.lower(), value) for name, value in head.headers}
        ]
        return RequestDelays(applying, self._start_ns, self._counters) if applying else None


class RequestDelays:
    """The delays of one request."""

    def __init__(self, rules: Sequence[tuple[Rule, random.Random]], start_ns: int, counters: Counters) -> None:
        self._rules = rules
        self._start_ns = start_ns
        self._counters = counters
        self.total_ns = 0
        """Drawn so far."""

    @property
    def header(self) -> tuple[bytes, bytes]:
        """For the answer."""
        return INJECTED_HEADER, " ".join(rule.text for rule, _ in self._rules).encode()

    @property
    def on_answer(self) -> bool:
        """Whether any comes while the answer is passed on."""
        return any(rule.where is not Where.REQUEST for rule, _ in self._rules)

    def draw_ns(self, where: Where, at_ns: int) -> int:
        """The delay here and now, of all rules together."""
        total_ns = 0
        for rule, chance in self._rules:
            if rule.where is not where or not rule.holds(at_ns - self._start_ns):
                continue
            if rule.probability < 1.0 and chance.random() >= rule.probability:
                continue
            delay_ns = rule.delay.draw_ns(chance)
            total_ns += delay_ns
            self._counters.injected(where, delay_ns)
        self.total_ns += total_ns
        return total_ns
