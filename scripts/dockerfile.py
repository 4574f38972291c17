"""The Dockerfile as data: its stages, each with its steps, environment, user and entry point.

Understands what the repository's own Dockerfile uses, and refuses anything else: FROM … AS, ARG, ENV, LABEL, WORKDIR,
COPY with --from, RUN as shell, USER, EXPOSE, ENTRYPOINT and CMD as JSON. Reads text, writes nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

DEFAULT_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerfileError(Exception):
    """A line that this reader does not understand."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One COPY. ``stage``: where from; None is the build context."""

    stage: str | None
    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class Run:
    """One RUN."""

    command: str


@dataclass(slots=True)
class Stage:
    """One FROM and what follows."""

    base: str
    name: str
    steps: list[Copy | Run] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    labels: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    folder: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def parse(text: str) -> list[Stage]:
    """The stages, in order. Raises DockerfileError."""
    before: dict[str, str] = {}
    stages: list[Stage] = []
    for name, rest in _instructions(text):
        if name == "FROM":
            found = re.fullmatch(r"(\S+)(?: AS (\S+))?", _filled(rest, before))
            if found is None:
                raise DockerfileError(f"FROM {rest}")
            stages.append(Stage(found[1], found[2] or str(len(stages))))
        elif name == "ARG":
            _assign(before if not stages else stages[-1].arguments, rest)
        elif not stages:
            raise DockerfileError(f"{name} before FROM")
        else:
            _apply(stages[-1], name, rest)
    if not stages:
        raise DockerfileError("no FROM")
    return stages


def _apply(stage: Stage, name: str, rest: str) -> None:
    known = {**stage.arguments, **stage.environment}
    match name:
        case "RUN":
            stage.steps.append(Run(rest))
        case "COPY":
            stage.steps.append(_copy(stage, shlex.split(_filled(rest, known))))
        case "ENV":
            _assign(stage.environment, _filled(rest, known))
        case "LABEL":
            _assign(stage.labels, _filled(rest, known))
        case "WORKDIR":
            stage.folder = _below(stage.folder, rest)
        case "USER":
            stage.user = rest
        case "EXPOSE":
            stage.ports += map(int, rest.split())
        case "ENTRYPOINT":
            stage.entrypoint = _listed(name, rest)
        case "CMD":
            stage.command = _listed(name, rest)
        case _:
            raise DockerfileError(f"{name}: not known here")


def _copy(stage: Stage, words: list[str]) -> Copy:
    source = None
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).partition("=")
        if option != "--from":
            raise DockerfileError(f"COPY {option}: not known here")
        source = value
    if len(words) < 2:
        raise DockerfileError("COPY without a target")
    *sources, target = words
    ends = "/" if target.endswith("/") or target == "." else ""
    return Copy(source, tuple(sources), _below(stage.folder, target).rstrip("/") + ends)


def _below(folder: str, path: str) -> str:
    """An absolute path, ``path`` being relative to the folder unless it is absolute."""
    parts = [part for part in f"{'' if path.startswith('/') else folder}/{path}".split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def _listed(name: str, rest: str) -> list[str]:
    try:
        words = json.loads(rest)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DockerfileError(f"{name} {rest}: not a JSON list, so a shell would start it")
    return words


def _assign(to: dict[str, str], rest: str) -> None:
    for word in shlex.split(rest):
        name, _, value = word.partition("=")
        to[name] = value


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: values.get(found[1], ""), text)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\s*\\\n\s*", " ", kept).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name.upper(), rest.strip()
