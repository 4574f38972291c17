"""Writes copies of Prometheus rule files for a story that is told faster: every duration divided by a number.

The demo tells in five minutes what takes an hour elsewhere, so the rules that watch it wait as much less: ``for``,
``keep_firing_for``, ranges, subqueries, offsets, the groups' intervals, and the seconds that ``time() - ...`` is
compared with. Nothing gets shorter than a second, and no range shorter than four scrapes, below which ``rate()`` has
too little to go by. Other numbers stay what they are: a threshold on ``increase()`` is of a shorter range afterwards.

    python -m scripts.scale_rules --by 10 --scrape-s 2 --into FOLDER RULES.yaml...
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

LEAST_S = 1.0
LEAST_SCRAPES = 4
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_DURATION = r"(?:[0-9]+(?:ms|[smhdwy]))+"
_TOKEN = re.compile(
    rf"""
    "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | `[^`]*` | \#[^\n]*  # nothing in these is a duration
    | (?P<open>\[\s*) (?P<range>{_DURATION}) (?: (?P<colon>\s*:\s*) (?P<step>{_DURATION})? )? \s*\]
    | (?P<word>\boffset\s+-?\s*) (?P<offset>{_DURATION})
    | (?P<age>\btime\(\)) | (?P<set>\b(?:and|or|unless)\b)
    | (?P<compare>[<>]=?\s*(?:bool\s+)?) (?P<seconds>[0-9]+(?:\.[0-9]+)?)
    """,
    re.VERBOSE,
)


def scale_duration(text: str, by: float, least_s: float = LEAST_S) -> str:
    """A duration of Prometheus divided, to whole seconds from ten on and to milliseconds below; zero stays zero."""
    if not re.fullmatch(_DURATION, text):
        raise ValueError(f"{text!r} is no duration")
    seconds = sum(int(number) * _UNITS_S[unit] for number, unit in re.findall(r"([0-9]+)([a-z]+)", text))
    if not seconds:
        return text
    scaled_s = max(seconds / by, least_s)
    if scaled_s >= 10 or scaled_s == round(scaled_s):
        return f"{scaled_s:.0f}s"
    return f"{scaled_s * 1000:.0f}ms"


def scale_expression(expr: str, by: float, scrape_s: float) -> str:
    """PromQL with its ranges, subqueries, offsets and ages divided."""
    parts, end = [], 0
    is_age = False
    for found in _TOKEN.finditer(expr):
        parts += [expr[end : found.start()], _scale_token(found, by, scrape_s, is_age=is_age)]
        end = found.end()
        is_age = bool(found["age"]) or (is_age and not found["set"] and not found["compare"])
    return "".join((*parts, expr[end:]))


def scale_rules(text: str, by: float, scrape_s: float) -> str:
    """A rule file, divided; all else in it stays as it is, comments and layout too."""
    parts, end = [], 0
    for key, value in _scalars(yaml.compose(text)):
        begin, after = value.start_mark.index, value.end_mark.index
        written = text[begin:after]
        if key == "expr" and value.style in ("'", '"'):
            raise ValueError(f"{written}: an expression in quotes of YAML is not understood")
        scaled = scale_expression(written, by, scrape_s) if key == "expr" else scale_duration(value.value, by)
        parts += [text[end:begin], scaled]
        end = after
    return "".join((*parts, text[end:]))


def scale_file(path: Path, into: Path, by: float, scrape_s: float) -> Path:
    """Writes the copy, under the same name, and returns where."""
    text = scale_rules(path.read_text(encoding="utf-8"), by, scrape_s)
    copy = into / path.name
    copy.write_text(f"# Times divided by {by:g}, by scripts/scale_rules.py: do not edit.\n#\n{text}", encoding="utf-8")
    return copy


def main(arguments: list[str]) -> int:
    """The script. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Copies of Prometheus rule files, every duration divided.")
    parser.add_argument("--by", type=float, default=10.0, help="what to divide by; default: 10")
    parser.add_argument("--scrape-s", type=float, default=2.0, help="scrape interval in seconds; default: 2")
    parser.add_argument("--into", type=Path, required=True, help="folder for the copies")
    parser.add_argument("files", type=Path, nargs="+", metavar="RULES.yaml")
    options = parser.parse_args(arguments)
    options.into.mkdir(parents=True, exist_ok=True)
    for path in options.files:
        scale_file(path, options.into, options.by, options.scrape_s)
    return 0


def _scale_token(found: re.Match[str], by: float, scrape_s: float, *, is_age: bool) -> str:
    """is_age: whether ``time()`` stands on the left of the next comparison."""
    if found["range"]:
        length = scale_duration(found["range"], by, LEAST_SCRAPES * scrape_s)
        step = scale_duration(found["step"], by) if found["step"] else ""
        return f"{found['open']}{length}{found['colon'] or ''}{step}]"
    if found["offset"]:
        return found["word"] + scale_duration(found["offset"], by)
    if found["compare"] and is_age:
        return f"{found['compare']}{float(found['seconds']) / by:g}"
    return found[0]


def _scalars(document: yaml.Node | None) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """What is to be divided, in the order of the file."""
    for group in _items(_mapping(document)["groups"]):
        fields = _mapping(group)
        found = [("interval", fields["interval"])] if "interval" in fields else []
        for rule in _items(fields["rules"]):
            found += [
                (key, value) for key, value in _mapping(rule).items() if key in ("expr", "for", "keep_firing_for")
            ]
        for key, value in sorted(found, key=lambda each: each[1].start_mark.index):
            assert isinstance(value, yaml.ScalarNode)
            yield key, value


def _mapping(node: yaml.Node | None) -> dict[str, yaml.Node]:
    assert isinstance(node, yaml.MappingNode)
    return {key.value: value for key, value in node.value}


def _items(node: yaml.Node) -> list[yaml.Node]:
    assert isinstance(node, yaml.SequenceNode)
    items: list[yaml.Node] = node.value
    return items


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
