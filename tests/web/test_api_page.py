"""docs/API.md against the description that the API makes of itself: what is written is there, what is there is written.

A section is what stands below an address, down to the next one. What is in the answers of several addresses is
described with one of them, or with what holds for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumon.web.whole import make_whole
from tests.web.asking import ask_asgi
from tests.web.known import Known

PAGE = (Path(__file__).parents[2] / "docs" / "API.md").read_text(encoding="utf-8")
_TEXT = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
_COMMON, *_PARTS = re.split(r"^## (?=`/)", _TEXT, flags=re.MULTILINE)
SECTIONS = {address: part for part in _PARTS for address in re.findall(r"`(/api/v1/[^`]+)`", part.partition("\n")[0])}
SCHEMA: Any = ask_asgi(make_whole(Known().knowledge, "").asgi, "/openapi.json").json
PATHS = {path.replace("{incident_id}", "{id}"): item["get"] for path, item in SCHEMA["paths"].items()}
MODELS: dict[str, Any] = SCHEMA["components"]["schemas"]
ADDRESSES = sorted({*PATHS, *SECTIONS})


def models_in(described: object) -> Iterator[str]:
    """Names of the models that are referred to, and of those that these refer to."""
    waiting, seen = [described], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in seen:
                seen.add(name)
                waiting.append(MODELS[name])
                yield name
            waiting += part.values()


def answered(address: str) -> list[str]:
    return [*models_in(PATHS[address]["responses"]["200"])]


def parameters(address: str) -> dict[str, Any]:
    """Defaults by name."""
    every = PATHS[address].get("parameters", [])
    return {each["name"]: each["schema"].get("default") for each in every if each["in"] == "query"}


def code(text: str) -> Iterator[str]:
    return (re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", text))


def words(text: str) -> set[str]:
    """Those that are code."""
    return {word for span in code(text) for word in re.findall(r"[a-z][a-z0-9_]*", span)}


def test_every_address_has_a_section_and_is_in_the_table_at_the_top() -> None:
    assert sorted(SECTIONS) == sorted(PATHS)
    table = {span for line in _COMMON.splitlines() if line.startswith("| `/api") for span in code(line.split("|")[1])}
    assert table == {*PATHS}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_parameters_that_are_described_are_those_that_there_are(address: str) -> None:
    """Of all addresses that share a section; a default that is no switch is written with its parameter."""
    sharing = [each for each in PATHS if SECTIONS[each] == SECTIONS[address]]
    there = {name: default for each in sharing for name, default in parameters(each).items()}
    written = dict(re.findall(r"`\?([a-z_]+)=([^`&]*)`", SECTIONS[address]))
    assert sorted(written) == sorted(there)
    for name, default in there.items():
        if default:
            assert written[name] in ("", f"{default:g}" if isinstance(default, float) else str(default))


@pytest.mark.parametrize("name", sorted({name for address in PATHS for name in answered(address)}))
def test_every_field_of_an_answer_is_described(name: str) -> None:
    sections = [SECTIONS[address] for address in PATHS if name in answered(address)]
    described = words(_COMMON + "".join(sections))
    assert [field for field in MODELS[name].get("properties", {}) if field not in described] == []


@pytest.mark.parametrize("name", ["Problem", "Wrong"])
def test_every_field_of_an_error_is_described(name: str) -> None:
    assert MODELS[name]["properties"].keys() <= words(_COMMON)


@pytest.mark.parametrize("address", [each for each in ADDRESSES if not each.endswith("/stream")])
def test_every_field_that_is_described_is_there(address: str) -> None:
    """In the first column of tables, and in what is written as objects."""
    fields = {field for name in answered(address) for field in MODELS[name].get("properties", {})}
    rows = [line.split("|")[1] for line in SECTIONS[address].splitlines() if line.startswith("| `")]
    written = {span for row in rows for span in code(row)}
    for span in code(SECTIONS[address]):
        if span.startswith(("{", "[{")) and span != "{cause: seconds}":
            written |= set(re.findall(r"[a-z][a-z0-9_]*", span))
    assert sorted(written - fields) == []


@pytest.mark.parametrize("line", [line for line in PAGE.splitlines() if line.startswith("$ ")])
def test_what_an_example_asks_for_is_there(line: str) -> None:
    ((address, query),) = re.findall(r"localhost:9450(/api/v1/[a-z]+)\??([^' |]*)", line)
    assert {part.partition("=")[0] for part in query.split("&") if part} <= parameters(address).keys()
    (picked,) = re.findall(r"\{([a-z_, ]+)\}", line) or [""]
    fields = {field for name in answered(address) for field in MODELS[name].get("properties", {})}
    assert {*re.findall(r"[a-z_]+", picked)} <= fields
