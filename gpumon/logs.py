"""How gpumon logs: one record is one line on standard error, as text or JSON, and a state is logged when it changes.

Decides the shape of a line. Messages are written as ``key=value`` pairs by those who log and kept as they are; control
characters are escaped, so that foreign text can neither forge a line nor move a terminal's cursor. A standard error
that is gone or full is no reason to stop: the line is lost.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import TextIO

from gpumon.model import Reason

TEXT_LIMIT = 8192
"""Longest message written, in characters; a traceback is not cut."""

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",  # line breaks to some readers
    0x2029: "\\u2029",
}


def setup(format_: str, level: str, stream: TextIO | None = None) -> None:
    """Send every logger's records to ``stream`` (standard error), replacing what an earlier call set up.

    ``format_``: ``text`` or ``json``; ``level``: ``debug``, ``info``, ``warning`` or ``error``.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if format_ == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, TextFormatter | JsonFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # logging's own complaints go to the same stream that just failed


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z INFO gpumon.app message``; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name} {_message(record).translate(_CONTROL)}"
        return f"{line}\n{_traceback(self, record)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object: time, level, logger, message, what a record has ``more`` (logging's ``extra``), and traceback
    where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **getattr(record, "more", {}),
        }
        if record.exc_info:
            fields["traceback"] = _traceback(self, record)
        return json.dumps(fields)


class Transitions:
    """Logs what fails and what recovers, once each, and is silent while nothing changes.

    Holds at most ``limit`` failing keys. Past that, new ones are neither held nor logged, which is said once; the
    counters of those who call count them all the same. Not for use by two threads at once.
    """

    def __init__(self, log: logging.Logger, limit: int = 1024) -> None:
        self._log = log
        self._limit = limit
        self._failing: dict[Hashable, Reason] = {}
        self._full = False

    def failing(self, key: Hashable, reason: Reason, detail: str = "", fix: str = "") -> None:
        """``key`` (its str() names it in the log) fails; logged when it did not, or did for another reason.

        A warning, with ``fix`` saying what a person can do; what is merely not supported goes to debug.
        """
        if self._failing.get(key) is reason:
            return
        if key not in self._failing and len(self._failing) >= self._limit:
            if not self._full:
                self._full = True
                self._log.warning("failing=%d further failures are not logged until some recover", self._limit)
            return
        self._failing[key] = reason
        level = logging.DEBUG if reason is Reason.UNSUPPORTED else logging.WARNING
        self._log.log(
            level,
            "what=%s state=failing reason=%s%s%s",
            _pair(str(key)),
            reason,
            f" detail={_pair(detail)}" if detail else "",
            f" fix={_pair(fix)}" if fix else "",
        )

    def ok(self, key: Hashable) -> None:
        """``key`` works; logged when it failed before."""
        reason = self._failing.pop(key, None)
        if reason is None:
            return
        self._full = False
        level = logging.DEBUG if reason is Reason.UNSUPPORTED else logging.INFO
        self._log.log(level, "what=%s state=ok was=%s", _pair(str(key)), reason)

    def forget(self, key: Hashable) -> None:
        """``key`` is no more: a process that ended has not recovered."""
        if self._failing.pop(key, None) is not None:
            self._full = False


def _pair(text: str) -> str:
    """A value of a ``key=value`` pair: quoted where it would not end where it ends."""
    plain = bool(text) and not any(character.isspace() or character in "\"'=\\" for character in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… ({len(text)} characters)"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""
