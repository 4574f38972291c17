"""One look at a running gpumon over its JSON API: the node first, then part by part, so that one part without an answer
does not lose the others.

A diagnosis goes through all requests of its period, so it is asked for less often than the rest. Where there is no API,
the metrics page tells why: it is not a gpumon, or an older one, or one with ``http.ui`` off.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel

from gpumon import __version__
from gpumon.api_client import Api, ApiError, NobodyError, NoPageError
from gpumon.top.answers import Gpus, Incidents, Lost, Node, Servers, Snapshot

TIMEOUT_S: Final = 10.0
"""Of one question."""
LOST_S: Final = 300.0
"""Period of the causes."""
LOST_EVERY_S: Final = 10.0
_BUILD: Final = re.compile(rb'^gpumon_build_info\{[^}\n]*version="([0-9A-Za-z.+-]{1,40})"', re.MULTILINE)
_Answer = TypeVar("_Answer", bound=BaseModel)


class Asking:
    """Asks the same gpumon again and again."""

    def __init__(self, api: Api, now_s: Callable[[], float] = time.monotonic) -> None:
        """now_s: steady seconds."""
        self._api = api
        self._now_s = now_s
        self._lost: Lost | None = None
        self._lost_why = ""
        self._lost_due_s = now_s()

    def look(self) -> Snapshot:
        """Raises ApiError where nothing can be told at all."""
        try:
            node = self._api.get("node", Node)
        except NobodyError as error:
            raise ApiError(f"{error}; `gpumon run` starts one, `gpumon demo` a simulated one") from error
        except NoPageError as error:
            raise ApiError(self._without_api()) from error
        problems: dict[str, str] = {}

        def part(name: str, path: str, answer: type[_Answer], query: dict[str, str]) -> _Answer | None:
            try:
                return self._api.get(path, answer, query)
            except ApiError as error:
                problems[name] = _of_another(str(error), node.version)
                return None

        gpus = part("gpus", "gpus", Gpus, {})
        servers = part("servers", "servers", Servers, {})
        incidents = part("incidents", "incidents", Incidents, {"state": "open"})
        if self._now_s() >= self._lost_due_s:
            self._lost = part("lost", "diagnose", Lost, {"since": f"{LOST_S:g}"})
            self._lost_why = problems.get("lost", "")
            self._lost_due_s = self._now_s() + LOST_EVERY_S
        elif self._lost_why:
            problems["lost"] = self._lost_why
        return Snapshot(
            url=str(self._api.address),
            node=node,
            gpus=gpus,
            servers=servers,
            incidents=incidents,
            lost=self._lost,
            problems=problems,
        )

    def _without_api(self) -> str:
        """Why there is no API, and what to do."""
        address = self._api.address
        try:
            found = _BUILD.search(self._api.page("/metrics"))
        except NoPageError:
            found = None
        if found is None:
            return f"{address} is no gpumon: another program answers there; --url says where gpumon listens"
        version = found[1].decode()
        try:
            self._api.page("/openapi.json")
        except NoPageError:
            return (
                f"the gpumon {version} at {address} has its JSON API off, or is too old to have one: http.ui in its "
                "configuration switches it on"
            )
        return (
            f"the gpumon {version} at {address} is older than this one ({__version__}) and lacks what is shown here: "
            "update it"
        )


def _of_another(why: str, version: str) -> str:
    """The same, and of which version the daemon is, where it is not this one."""
    return why if version == __version__ else f"{why} (gpumon {version[:40]} there, {__version__} here)"
