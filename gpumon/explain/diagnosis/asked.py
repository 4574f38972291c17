"""A diagnosis of one server or model alone, by the names that people see: ``llama-70b`` or ``vllm/llama-70b``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpumon.explain.diagnosis.model import Diagnosis

NAMES: Final = 20
"""Told where a name is not known."""
_LONGEST: Final = 80
"""Characters of a name."""


class UnknownNameError(LookupError):
    """No request of this name ended in the period. One line, which lists the names that there are."""


def of_named(diagnose: Callable[[str, str], Diagnosis], server: str, model: str) -> Diagnosis:
    """Of the requests of a server and a model; empty: all. diagnose: of exactly these two. Raises UnknownNameError.

    A model may be told with its server before it, as gpumon prints it. Where no request ended at all, no name is wrong.
    """
    said = diagnose(server, model)
    if said.requests or not (server or model):
        return said
    known = diagnose("", "").engines
    for each in known:
        if server in ("", each.server) and model == f"{each.server}/{each.model}":
            return diagnose(each.server, each.model)
    if not known:
        return said
    asked = " and ".join(f"{of} {name[:_LONGEST]!r}" for of, name in (("server", server), ("model", model)) if name)
    names = sorted({f"{each.server}/{each.model}"[:_LONGEST] for each in known})
    more = f", and {len(names) - NAMES} more" if len(names) > NAMES else ""
    raise UnknownNameError(
        f"no request of {asked} ended in this time; requests ended of {', '.join(names[:NAMES])}{more}"
    )
