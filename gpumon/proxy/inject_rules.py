"""The little language of ``--inject``: which delay, before what, and when. Pure: text in, rules out.

    WHERE:DELAY[,CONDITION]…

``token:20ms`` · ``first:100ms..300ms,p=0.1`` · ``request:lognormal(200ms,0.8),header=x-tenant-id:blue`` ·
``token:50ms,every=30s,for=5s``. docs/PROXY.md explains it. What is no rule raises RuleError, which says what was
expected.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpumon.config_types import holds_credentials

LONGEST_NS: Final = 600 * 10**9
RULES_MAX: Final = 16
RULE_CHARACTERS: Final = 200

_UNITS: Final = {"us": 10**3, "ms": 10**6, "s": 10**9}
_TIME: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(us|ms|s)", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,6})?", re.ASCII)
_LOGNORMAL: Final = re.compile(r"lognormal\(([^,()]*),([^,()]*)\)")
_HEADER: Final = re.compile(r"([A-Za-z0-9-]{1,64}):([\x21-\x2b\x2d-\x7e]{1,128})")
_NAMED: Final = re.compile(r"header=\s*([^:,=\s]+)")
_SIGMA_MAX: Final = 4.0


class RuleError(Exception):
    """A rule that is none. ``str()``: one line."""


class Where(StrEnum):
    """Before what a delay comes. Label values of ``gpumon_proxy_injected_delays_total``."""

    REQUEST = "request"  # before the request is sent to the server
    FIRST = "first"  # before its first token is passed on
    TOKEN = "token"  # noqa: S105 - before every token is passed on


@dataclass(frozen=True, slots=True)
class Delay:
    """How long. ``low_ns`` to ``high_ns``, evenly; with a ``sigma``, log-normal around the median ``low_ns``."""

    low_ns: int
    high_ns: int
    sigma: float = 0.0

    def draw_ns(self, chance: random.Random) -> int:
        """One of them; at most ``LONGEST_NS``."""
        if self.sigma:
            return min(LONGEST_NS, round(self.low_ns * chance.lognormvariate(0.0, self.sigma)))
        return self.low_ns if self.low_ns == self.high_ns else round(chance.uniform(self.low_ns, self.high_ns))


@dataclass(frozen=True, slots=True)
class Rule:
    """One ``--inject``."""

    text: str
    where: Where
    delay: Delay
    probability: float = 1.0
    header: tuple[bytes, bytes] | None = None
    """Name in lower case, and the whole value."""
    every_ns: int = 0
    """Bursts: a burst begins so often, the first one with the proxy itself. 0: always."""
    for_ns: int = 0
    """... and lasts so long."""

    def holds(self, since_start_ns: int) -> bool:
        """Whether this moment, since the proxy's start, is in a burst."""
        return not self.every_ns or since_start_ns % self.every_ns < self.for_ns


def parse_rule(text: str) -> Rule:
    """A rule. Raises RuleError."""
    if len(text) > RULE_CHARACTERS or not text.isascii() or not text.isprintable():
        raise RuleError(f"a rule has at most {RULE_CHARACTERS} printable ASCII characters")
    if any(holds_credentials(name) for name in _NAMED.findall(text)):  # first: the other errors repeat the rule
        raise RuleError("a rule is logged and shown to clients: no header with credentials")
    where_text, colon, rest = text.partition(":")
    if not colon or where_text not in tuple(Where):
        raise RuleError(f"{text!r}: expected request:, first: or token: and a delay, such as token:20ms")
    delay_text, *conditions = _split(rest)
    known: dict[str, str] = {}
    for condition in conditions:
        name, equals, value = condition.partition("=")
        if not equals or name not in ("p", "header", "every", "for"):
            raise RuleError(f"{text!r}: {condition!r} is none of p=, header=, every=, for=")
        if name in known:
            raise RuleError(f"{text!r}: {name}= is said twice")
        known[name] = value
    every_ns, for_ns = _bursts(text, known)
    return Rule(
        text=text,
        where=Where(where_text),
        delay=_delay(text, delay_text),
        probability=_probability(text, known.get("p")),
        header=_header(text, known.get("header")),
        every_ns=every_ns,
        for_ns=for_ns,
    )


def _split(text: str) -> list[str]:
    """By commas that stand in no brackets."""
    return re.split(r",(?![^()]*\))", text)


def _delay(rule: str, text: str) -> Delay:
    lognormal = _LOGNORMAL.fullmatch(text)
    if lognormal is not None:
        sigma = float(lognormal[2]) if _NUMBER.fullmatch(lognormal[2]) else 0.0
        if not 0.0 < sigma <= _SIGMA_MAX:
            raise RuleError(f"{rule!r}: expected lognormal(MEDIAN,SIGMA) with a sigma above 0, at most {_SIGMA_MAX:g}")
        median_ns = _time_ns(rule, lognormal[1])
        return Delay(median_ns, median_ns, sigma)
    low_text, dots, high_text = text.partition("..")
    low_ns = _time_ns(rule, low_text)
    high_ns = _time_ns(rule, high_text) if dots else low_ns
    if high_ns < low_ns:
        raise RuleError(f"{rule!r}: {low_text} is above {high_text}")
    return Delay(low_ns, high_ns)


def _time_ns(rule: str, text: str) -> int:
    match = _TIME.fullmatch(text)
    value = round(float(match[1]) * _UNITS[match[2]]) if match is not None else -1
    if not 0 <= value <= LONGEST_NS:
        raise RuleError(f"{rule!r}: {text!r} is no time such as 500us, 20ms or 1.5s, at most {LONGEST_NS // 10**9}s")
    return value


def _probability(rule: str, text: str | None) -> float:
    if text is None:
        return 1.0
    value = float(text) if _NUMBER.fullmatch(text) else -1.0
    if not 0.0 < value <= 1.0:
        raise RuleError(f"{rule!r}: p={text} is no probability above 0, at most 1")
    return value


def _header(rule: str, text: str | None) -> tuple[bytes, bytes] | None:
    if text is None:
        return None
    match = _HEADER.fullmatch(text)
    if match is None:
        raise RuleError(f"{rule!r}: expected header=NAME:VALUE, without spaces and commas")
    return match[1].lower().encode(), match[2].encode()


def _bursts(rule: str, known: dict[str, str]) -> tuple[int, int]:
    if ("every" in known) != ("for" in known):
        raise RuleError(f"{rule!r}: every= and for= go together: a burst begins every so often, and lasts for")
    if "every" not in known:
        return 0, 0
    every_ns, for_ns = _time_ns(rule, known["every"]), _time_ns(rule, known["for"])
    if not 0 < for_ns < every_ns:
        raise RuleError(f"{rule!r}: for= is above 0 and below every=")
    return every_ns, for_ns
