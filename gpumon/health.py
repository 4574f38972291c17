"""How the sources fare: one account, whoever runs them, exported as gpumon_source_*.

Repetitions are counted, changes are logged: what fails is said once, and once more when it works again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gpumon import catalogue
from gpumon.logs import Transitions
from gpumon.model import Miss, Reason, Sample

log = logging.getLogger(__name__)

MISSES_REMEMBERED = 512
DENIED_HELD_S = 150.0
"""What was denied is asked for again once a minute: not to be told of in between does not mean that it was granted."""


_NORMAL = frozenset({Reason.UNSUPPORTED, Reason.ENDED})
"""No errors."""


@dataclass(slots=True)
class _Account:
    up: bool = False
    passed_once: bool = False
    duration_s: float | None = None
    last_success_s: float | None = None
    stale_after_s: float | None = None
    running_since_s: float | None = None
    deadline_s: float | None = None
    errors: Counter[Reason] = field(default_factory=Counter)
    missing: dict[str, dict[str, float]] = field(default_factory=dict)
    """By scope: what is missed, and the steady second until which it counts as missed without being told again."""


class Health:
    """Accounts by source. Every method may be called from any thread."""

    def __init__(self, to_unix: Callable[[float], float]) -> None:
        self._to_unix = to_unix
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        self._transitions = Transitions(log)

    def expect(self, source: str, *, stale_after_s: float | None = None, deadline_s: float | None = None) -> None:
        """A source exists, before its first pass. It is down when its last pass is older than ``stale_after_s``,
        or one has been under way for longer than ``deadline_s``."""
        with self._lock:
            account = self._accounts.setdefault(source, _Account())
            account.stale_after_s = stale_after_s
            account.deadline_s = deadline_s

    def began(self, source: str, at_s: float) -> None:
        """A pass is under way."""
        with self._lock:
            self._accounts.setdefault(source, _Account()).running_since_s = at_s

    def succeeded(
        self, source: str, at_s: float, duration_s: float | None, misses: Sequence[Miss], scope: str = ""
    ) -> None:
        """A pass is over; single things may have failed in it.

        ``duration_s``: None where it was not measured. ``scope``: what the pass was over, such as one GPU.
        """
        with self._lock:
            account = self._accounts.setdefault(source, _Account())
            account.up = account.passed_once = True
            if duration_s is not None:
                account.duration_s = duration_s
            account.last_success_s = max(at_s, account.last_success_s or at_s)  # batches come in any order
            account.running_since_s = None
            self._transitions.ok(f"source {source}")
            for miss in misses:
                if miss.reason not in _NORMAL:
                    account.errors[miss.reason] += 1
            misses = [miss for miss in misses if miss.reason is not Reason.ENDED]
            missing = account.missing.pop(scope, {})
            for miss in misses[:MISSES_REMEMBERED]:
                self._transitions.failing(f"{source}: {miss.what}", miss.reason, miss.detail)
                missing.pop(miss.what, None)
                missing[miss.what] = at_s + DENIED_HELD_S if miss.reason is Reason.DENIED else at_s
            told = {miss.what for miss in misses}
            for what in [what for what, until_s in missing.items() if what not in told and at_s >= until_s]:
                del missing[what]
                self._transitions.ok(f"{source}: {what}")
            while len(missing) > MISSES_REMEMBERED:
                oldest = next(iter(missing))
                del missing[oldest]
                self._transitions.forget(f"{source}: {oldest}")
            if missing:
                account.missing[scope] = missing

    def failed(self, source: str, duration_s: float | None, reason: Reason, detail: str) -> None:
        """A pass failed as a whole."""
        with self._lock:
            account = self._accounts.setdefault(source, _Account())
            account.up = False
            account.passed_once = True
            if duration_s is not None:
                account.duration_s = duration_s
            account.running_since_s = None
            account.errors[reason] += 1
            self._transitions.failing(f"source {source}", reason, detail)

    def paused(self, source: str) -> None:
        """The source is down by wish: no error."""
        with self._lock:
            account = self._accounts.setdefault(source, _Account())
            account.up = False
            account.passed_once = True
            self._transitions.forget(f"source {source}")

    def forget(self, source: str) -> None:
        """The source is no more: its series end."""
        with self._lock:
            account = self._accounts.pop(source, _Account())
            self._transitions.forget(f"source {source}")
            for missing in account.missing.values():
                for what in missing:
                    self._transitions.forget(f"{source}: {what}")

    def stuck(self, at_s: float) -> list[str]:
        """Sources whose pass has been under way for longer than their deadline."""
        with self._lock:
            return [name for name, account in self._accounts.items() if _is_stuck(account, at_s)]

    def count_stuck(self, source: str) -> None:
        """A pass passed its deadline: count it once."""
        with self._lock:
            account = self._accounts.setdefault(source, _Account())
            account.errors[Reason.TIMEOUT] += 1
            self._transitions.failing(f"source {source}", Reason.TIMEOUT, "its pass is still under way")

    def waiting_for(self) -> list[str]:
        """Sources that have not finished a first pass."""
        with self._lock:
            return [name for name, account in self._accounts.items() if not account.passed_once]

    def samples(self, at_s: float) -> Iterator[Sample]:
        """All accounts."""
        with self._lock:
            accounts = list(self._accounts.items())
        for source, account in accounts:
            labels = (source,)
            yield Sample(catalogue.SOURCE_UP, labels, float(_is_up(account, at_s)))
            if account.duration_s is not None:
                yield Sample(catalogue.SOURCE_DURATION, labels, account.duration_s)
            if account.last_success_s is not None:
                yield Sample(catalogue.SOURCE_LAST_SUCCESS, labels, self._to_unix(account.last_success_s))
            for reason in Reason:
                if reason not in _NORMAL:
                    yield Sample(catalogue.SOURCE_ERRORS, (source, reason.value), float(account.errors[reason]))


def _is_stuck(account: _Account, at_s: float) -> bool:
    since_s, deadline_s = account.running_since_s, account.deadline_s
    return since_s is not None and deadline_s is not None and at_s - since_s > deadline_s


def _is_up(account: _Account, at_s: float) -> bool:
    if not account.up or _is_stuck(account, at_s):
        return False
    stale_s, last_s = account.stale_after_s, account.last_success_s
    return stale_s is None or (last_s is not None and at_s - last_s <= stale_s)
