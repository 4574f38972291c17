"""Brings the configuration from the YAML file, the environment and the flags, and says what is wrong with it.

Decides precedence (file < environment ``GPUMON_SECTION__KEY`` < flags) and the words of every complaint. The only place
that is handed the environment. What is wrong raises ConfigError with one line for each problem; a missing file is a
problem, no file at all is not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Literal, NamedTuple, get_args, get_origin

from pydantic import ValidationError

from gpumon.config import Config
from gpumon.config_keys import ENVIRONMENT_PREFIX, FLAGS, Key, keys
from gpumon.config_types import shown
from gpumon.yamlfile import Value, YamlError, parse_yaml, read_yaml

# What Kubernetes puts into every pod when a service is called gpumon or gpumon-something: not meant for us.
_SERVICE_LINK = re.compile(
    r"GPUMON(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


LISTED = 24
"""Names that an error lists where none of them is near: the sections, not the keys."""


class ConfigError(Exception):
    """The configuration cannot be taken. ``str()``: one line for each problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load(
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, str | None],
    names: Mapping[str, str] = FLAGS,
) -> Config:
    """The configuration from a file (or none), the environment, and flags (None: not given), the later over the former.

    names: the key that each flag sets.

    Values from the environment and flags are YAML, except where text is wanted: that is taken as it stands.
    Raises ConfigError, which names every problem found, not only the first.
    """
    known = {key.path: key for key in keys()}
    given: dict[str, _Given] = {}
    problems: list[str] = []
    if path is not None:
        try:
            document = read_yaml(path)
        except YamlError as err:
            raise ConfigError((str(err),)) from err
        problems += _take_file(document, str(path), known, given)
    problems += _take_environ(environ, known, given)
    for flag, text in flags.items():
        if text is not None:
            problems += _take_text(known[names[flag]], text, flag, given)

    nested: dict[str, dict[str, object]] = {}
    for key_path, value in given.items():
        nested.setdefault(known[key_path].section, {})[known[key_path].name] = value.data
    try:
        config = Config.model_validate(nested)
    except ValidationError as err:
        problems += _problems(err, known, given)
        raise ConfigError(tuple(dict.fromkeys(problems))) from err
    if problems:
        raise ConfigError(tuple(dict.fromkeys(problems)))
    return config


class _Given(NamedTuple):
    data: object
    origin: str
    """Where it was said: ``gpumon.yaml:3``, a variable or a flag."""


def _take_file(document: Value, name: str, known: Mapping[str, Key], given: dict[str, _Given]) -> Iterator[str]:
    if document.data is None:
        return
    if not isinstance(document.data, dict):
        yield f"{name}:{document.line}: expected sections such as `http:`, got {shown(document.plain())}"
        return
    for section, body in document.data.items():
        where = f"{name}:{body.line}"
        if section not in Config.model_fields:
            yield f"{_word(section)} ({where}): unknown section{_near(section, Config.model_fields)}"
        elif isinstance(body.data, dict):
            for key, value in body.data.items():
                path = f"{section}.{key}"
                if path in known:
                    given[path] = _Given(value.plain(), f"{name}:{value.line}")
                else:
                    yield f"{_word(path)} ({name}:{value.line}): unknown key{_near(path, known)}"
        elif body.data is not None:  # a section with every key commented out is null
            yield f"{section} = {shown(body.plain())} ({where}): expected keys and values below it"


def _take_environ(environ: Mapping[str, str], known: Mapping[str, Key], given: dict[str, _Given]) -> Iterator[str]:
    variables = {key.variable: key for key in known.values()}
    for variable, text in sorted(environ.items()):
        if variable in variables:
            yield from _take_text(variables[variable], text, variable, given)
        elif variable.startswith(ENVIRONMENT_PREFIX) and not _SERVICE_LINK.fullmatch(variable):
            yield f"{_word(variable)}: unknown variable{_near(variable, variables)}"


def _take_text(key: Key, text: str, origin: str, given: dict[str, _Given]) -> Iterator[str]:
    data: object = text
    nullable = type(None) in get_args(key.field.annotation)
    if nullable and text in ("", "~", "null"):
        data = None
    elif not _takes_text(key.field.annotation):
        try:
            data = parse_yaml(text, origin).plain()
        except YamlError:
            yield f"{key.path}{_got(key, text)} ({origin}): expected {key.expected}"
            return
    given[key.path] = _Given(data, origin)


def _takes_text(annotation: object) -> bool:
    if get_origin(annotation) in (Annotated, UnionType):
        return any(_takes_text(part) for part in get_args(annotation))
    return annotation in (str, Path) or get_origin(annotation) is Literal


def _problems(err: ValidationError, known: Mapping[str, Key], given: Mapping[str, _Given]) -> Iterator[str]:
    for error in err.errors(include_url=False):
        path = ".".join(str(part) for part in error["loc"][:2])
        detail = str(error["ctx"]["error"]) if error["type"] == "value_error" else ""
        if path not in known:  # a rule over two keys of a section, which names both in its own words
            yield f"{path}: {detail or error['msg']}"
            continue
        # An item of a list is shown alone, with its place.
        item = "".join(f"[{part if isinstance(part, int) else _word(part)}]" for part in error["loc"][2:])
        value = error["input"] if item else given[path].data
        yield (
            f"{path}{item}{_got(known[path], value)} ({given[path].origin}): expected {known[path].expected}"
            f"{': ' if detail else ''}{detail}"
        )


def _got(key: Key, value: object) -> str:
    return "" if key.secret else f" = {shown(value)}"


def _near(word: str, words: Mapping[str, object]) -> str:
    match = difflib.get_close_matches(word[:80], words, n=1, cutoff=0.7)
    return f"; did you mean {match[0]}?" if match else f"; known are {', '.join(words)}" if len(words) <= LISTED else ""


def _word(text: str) -> str:
    """A foreign name in an error: as it is when it is plain, else quoted."""
    return text if re.fullmatch(r"[\w.-]{1,80}", text, re.ASCII) else shown(text)
