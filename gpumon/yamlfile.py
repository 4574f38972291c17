"""Reads YAML as a configuration needs it: strict, bounded, and knowing the line of every value.

Decides what counts as well-formed: the core schema of YAML 1.2 (``yes`` and ``1:30`` are text, ``1e-1`` is a number),
text keys, no key twice, no aliases (so nothing can expand), no tags that build objects; 64 KiB, eight levels at most.
PyYAML's scanner and composer do the reading; none of its constructors run. What is not well-formed raises YamlError.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

import yaml
from yaml.composer import Composer
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

SIZE_LIMIT_BYTES = 64 << 10
"""Of a file. Every key of gpumon with a comment each is a tenth of it."""
DEPTH_LIMIT = 8

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_SCALARS = {_TAG + name for name in ("null", "bool", "int", "float", "str")}


class YamlError(Exception):
    """The text cannot be taken. ``str()`` is one line: file, line where there is one, and what is wrong."""


class Value(NamedTuple):
    """A value and the line it begins on (from 1)."""

    data: bool | int | float | str | list[Value] | dict[str, Value] | None
    line: int

    def plain(self) -> object:
        """The value alone, as lists, dicts and scalars."""
        if isinstance(self.data, list):
            return [item.plain() for item in self.data]
        if isinstance(self.data, dict):
            return {key: item.plain() for key, item in self.data.items()}
        return self.data


def read_yaml(path: Path) -> Value:
    """Content of a file of at most SIZE_LIMIT_BYTES, in UTF-8. Raises YamlError."""
    try:
        # Not blocking: a named pipe must not hold up the start. It is refused just below.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise YamlError(f"{path}: not a regular file")
            content = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as err:
        raise YamlError(f"{path}: {err.strerror or err}") from err
    except ValueError as err:  # a NUL character or a lone surrogate in the path
        raise YamlError(f"{str(path)!a}: not a path") from err
    if len(content) > SIZE_LIMIT_BYTES:
        raise YamlError(f"{path}: larger than {SIZE_LIMIT_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = content.count(b"\n", 0, err.start) + 1
        raise YamlError(f"{path}:{line}: not UTF-8 (byte 0x{content[err.start]:02x})") from err
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Value:
    """One YAML document; ``name`` stands in the errors. Empty text is null. Raises YamlError."""
    loader = None
    try:
        loader = _Loader(text, name)
        node = loader.get_single_node()
        return Value(None, 1) if node is None else _value(node, name)
    except ReaderError as err:
        line = text.count("\n", 0, err.position) + 1
        raise YamlError(f"{name}:{line}: character {err.character!r} is not allowed: {err.reason}") from err
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        what = ", ".join(_one_line(part) for part in (err.context, err.problem) if part)
        raise YamlError(f"{name}:{mark.line + 1 if mark else 1}: {what}") from err
    except (ValueError, OverflowError) as err:  # PyYAML passes on chr() and int() of what stands in escapes
        line = loader.line + 1 if loader is not None else 1
        raise YamlError(f"{name}:{line}: not YAML: {_one_line(str(err))}") from err


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """YAML to nodes: yaml.SafeLoader without its constructors, its YAML 1.1 resolvers, aliases and endless depth."""

    def __init__(self, stream: str, source: str) -> None:
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0
        self._source = source

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it without types
        alias = isinstance(event, AliasEvent)
        self._depth += 1
        if alias or self._depth > DEPTH_LIMIT:
            what = "aliases (*name) are not supported" if alias else f"nested deeper than {DEPTH_LIMIT} levels"
            raise YamlError(f"{self._source}:{event.start_mark.line + 1}: {what}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _name, _pattern, _first in (
    ("null", _NULL, ["~", "n", "N", ""]),
    ("bool", _BOOL, list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("float", _SPECIAL_FLOAT, list("-+.")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern.pattern})\Z"), _first)


def _value(node: Node, name: str) -> Value:
    line = node.start_mark.line + 1
    if isinstance(node, MappingNode) and node.tag == _TAG + "map":
        return Value(_mapping(node, name), line)
    if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
        return Value([_value(item, name) for item in node.value], line)
    if isinstance(node, ScalarNode) and node.tag in _SCALARS:
        try:
            return Value(_scalar(node.tag.removeprefix(_TAG), node.value), line)
        except ValueError as err:
            raise YamlError(f"{name}:{line}: {_one_line(str(err))}") from err
    raise YamlError(f"{name}:{line}: tag {_one_line(str(node.tag))!a} is not supported")


def _mapping(node: MappingNode, name: str) -> dict[str, Value]:
    result: dict[str, Value] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _value(key_node, name).data
        if not isinstance(key, str):
            raise YamlError(f"{name}:{line}: a key must be text")
        if key in result:
            raise YamlError(f"{name}:{line}: key {_one_line(key)!a} stands twice, first on line {result[key].line}")
        result[key] = _value(value_node, name)._replace(line=line)
    return result


def _scalar(tag: str, text: str) -> bool | int | float | str | None:
    if tag == "str":
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("text with half a surrogate pair")
        return text
    if tag == "null" and _NULL.fullmatch(text):
        return None
    if tag == "bool" and _BOOL.fullmatch(text):
        return text[0] in "tT"
    if tag == "int" and _INT.fullmatch(text):
        if len(text) > 20:
            raise ValueError(f"number of {len(text)} digits")
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    if tag == "float" and _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", "", 1))
    if tag == "float" and _FLOAT.fullmatch(text):
        return float(text)
    raise ValueError(f"{_one_line(text)!a} is not a value of tag !!{tag}")


def _one_line(text: str) -> str:
    """Foreign text in an error: one line, not long."""
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:79] + "…"
