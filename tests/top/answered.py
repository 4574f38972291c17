"""Answers of a gpumon as its JSON API gave them, recorded from `gpumon demo`; and looks made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from gpumon.top.answers import Gpu, Gpus, Incidents, Lost, Node, Server, Servers, Snapshot

PATHS = ("node", "gpus", "servers", "incidents", "diagnose")
URL = "http://gpu-1:9450"
HOSTILE = "\x1b]0;x\x07a\u202eb\n" * 40
_FILE = Path(__file__).parents[1] / "fixtures/api/demo.json"


def answers() -> dict[str, Any]:
    """By the last part of the path."""
    found = json.loads(_FILE.read_text())
    assert isinstance(found, dict)
    return found


def snapshot(**other: Any) -> Snapshot:
    """The recorded look. other: parts instead."""
    said = answers()
    parts: dict[str, Any] = {
        "node": Node.model_validate(said["node"]),
        "gpus": Gpus.model_validate(said["gpus"]),
        "servers": Servers.model_validate(said["servers"]),
        "incidents": Incidents.model_validate(said["incidents"]),
        "lost": Lost.model_validate(said["diagnose"]),
    }
    return Snapshot(url=URL, **parts | other)


def gpu(**other: Any) -> Gpu:
    """The first GPU, in calm. other: fields instead."""
    calm: dict[str, Any] = {"throttled_by": [], "throttled": {}, "incidents": []}
    return Gpu.model_validate(answers()["gpus"]["gpus"][0] | calm | other)


def server(**other: Any) -> Server:
    """The first server. other: fields instead."""
    return Server.model_validate(answers()["servers"]["servers"][0] | {"incidents": []} | other)


def plain(lines: list[Text], width: int) -> list[str]:
    """Lines that must fit the width and hold nothing that a terminal would obey."""
    assert all(cell_len(line.plain) <= width for line in lines)
    assert all(line.plain.isprintable() for line in lines)
    return [line.plain.rstrip() for line in lines]
