"""The bill of materials: CycloneDX's own schema takes it, and every runtime dependency is in it with its licence."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import sbom

ROOT = Path(__file__).resolve().parents[2]
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


class Package(Distribution):
    """One whose metadata a test writes."""

    def __init__(self, *lines: str) -> None:
        self.text = "\n".join(["Metadata-Version: 2.1", "Name: some", "Version: 1", *lines, ""])

    def read_text(self, filename: str) -> str | None:
        return self.text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return sbom.document()


def test_cyclonedx_takes_it(bill: dict[str, Any]) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(bill)) is None
    assert validator.validate_str(json.dumps({**bill, "components": [{"name": "no type"}]})) is not None


def test_every_runtime_dependency_is_in_it_with_version_and_licence(bill: dict[str, Any]) -> None:
    components = {each["name"]: each for each in bill["components"]}
    for name in (canonicalize_name(Requirement(text).name) for text in DEPENDENCIES):
        assert components[name]["version"] == distribution(name).version
    for component in bill["components"]:
        [licence] = component["licenses"]
        assert licence.get("expression") or licence["license"]["id"], component["name"]


def test_what_only_developers_need_is_not_in_it(bill: dict[str, Any]) -> None:
    assert not {"pytest", "mypy", "ruff", "hatchling"} & {each["name"] for each in bill["components"]}
    assert bill["metadata"]["component"]["name"] == "gpumon"


def test_all_that_something_depends_on_is_there(bill: dict[str, Any]) -> None:
    known = {each["bom-ref"] for each in (bill["metadata"]["component"], *bill["components"])}
    assert {each["ref"] for each in bill["dependencies"]} == known
    assert {need for each in bill["dependencies"] for need in each["dependsOn"]} <= known


def test_the_same_environment_gives_the_same_bytes() -> None:
    command = [sys.executable, str(ROOT / "scripts/sbom.py")]
    first, second = (subprocess.run(command, check=True, capture_output=True).stdout for _ in range(2))
    assert first == second
    assert json.loads(first)["bomFormat"] == "CycloneDX"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["License-Expression: MIT OR Apache-2.0", "License: other"], {"expression": "MIT OR Apache-2.0"}),
        (["License: BSD-3-Clause"], {"license": {"id": "BSD-3-Clause"}}),
        (["License: MIT License"], {"license": {"id": "MIT"}}),
        (["Classifier: License :: OSI Approved :: Apache Software License"], {"license": {"id": "Apache-2.0"}}),
        (["License: Copyright (c) somebody, all rights"], None),
        ([], None),
    ],
)
def test_a_licence_is_an_spdx_identifier_or_an_error(lines: list[str], told: dict[str, Any] | None) -> None:
    if told is None:
        with pytest.raises(sbom.BomError, match="licence of some 1"):
            sbom.licence("some", Package(*lines))
    else:
        assert sbom.licence("some", Package(*lines)) == told


def test_requirements_of_other_machines_and_extras_do_not_count() -> None:
    package = Package(
        "Requires-Dist: Here_Too>=1",
        "Requires-Dist: there; sys_platform == 'win32'",
        "Requires-Dist: more; extra == 'more'",
    )
    assert sbom.required(package) == ["here-too"]


def test_a_package_that_is_missing_ends_it() -> None:
    with pytest.raises(sbom.BomError, match="not installed"):
        sbom.packages("no-such-package-anywhere")
