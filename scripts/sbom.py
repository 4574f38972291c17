"""The software bill of materials of an installed gpumon: CycloneDX 1.6, JSON, on standard output.

From the metadata of the packages that this interpreter sees: gpumon, what it requires, and what that requires, each
with version, licence, package URL and what it depends on, and the interpreter itself. Needs no package but
``packaging``, which comes with gpumon's requirements. The same environment gives the same bytes: there is no time and
no serial number in it. A package that is required and not there ends it, as does one whose licence cannot be told.

A tool such as cyclonedx-py would tell no more and would have to be installed, with a dozen packages, into the image
that it describes; tests hold this one against CycloneDX's own schema. Debian's packages below are the base image's.

Usage: python scripts/sbom.py >sbom.cdx.json
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "gpumon"
SPEC = "1.6"
# What older packages wrote before License-Expression (PEP 639), as SPDX identifiers.
IDENTIFIERS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
}
# Those whose metadata say too little: read in the text of the package's own licence.
READ = {"nvidia-ml-py": "BSD-3-Clause"}
_IDENTIFIER = re.compile(r"[A-Za-z0-9.]+(?:-[A-Za-z0-9.]+)+|MIT|ISC|Zlib", re.ASCII)


class BomError(Exception):
    """The environment is not what it should be."""


def packages(root: str = ROOT) -> dict[str, Distribution]:
    """The root and everything it requires here, directly or not, by canonical name."""
    found: dict[str, Distribution] = {}
    waiting = [root]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise BomError(f"{name} is required and not installed") from None
        waiting += required(found[name])
    return dict(sorted(found.items()))


def required(package: Distribution) -> list[str]:
    """Canonical names of what a package requires on this interpreter and machine, without its extras."""
    wanted = (Requirement(text) for text in package.requires or ())
    here = {need.name for need in wanted if need.marker is None or need.marker.evaluate({"extra": ""})}
    return sorted(map(canonicalize_name, here))


def licence(name: str, package: Distribution) -> dict[str, Any]:
    """The licence as CycloneDX writes it: an SPDX expression or identifier."""
    expression = _told(package, "License-Expression")
    if expression:
        return {"expression": expression}
    if name in READ:
        return {"license": {"id": READ[name]}}
    for told in (_told(package, "License"), *(package.metadata.get_all("Classifier") or ())):
        identifier = IDENTIFIERS.get(told, told)
        if _IDENTIFIER.fullmatch(identifier):
            return {"license": {"id": identifier}}
    raise BomError(f"the licence of {name} {package.version} cannot be told: read it, and add it to READ")


def document() -> dict[str, Any]:
    """The whole bill."""
    found = packages()
    references = {name: f"pkg:pypi/{name}@{package.version}" for name, package in found.items()}
    components = [
        _component(name, package, references[name], "application" if name == ROOT else "library")
        for name, package in found.items()
    ]
    main = next(component for component in components if component["name"] == ROOT)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {
            "component": main,
            "tools": {"components": [{"type": "application", "name": "scripts/sbom.py", "version": main["version"]}]},
        },
        "components": [*(one for one in components if one is not main), _interpreter()],
        "dependencies": list(_dependencies(found, references)),
    }


def _told(package: Distribution, field: str) -> str:
    """What the metadata have in a field; empty where they do not have it."""
    values = package.metadata.get_all(field)
    return str(values[0]) if values else ""


def _component(name: str, package: Distribution, reference: str, kind: str) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": kind,
        "bom-ref": reference,
        "name": name,
        "version": package.version,
        "licenses": [licence(name, package)],
        "purl": reference,
    }
    summary = _told(package, "Summary")
    if summary:
        component["description"] = summary
    return component


def _interpreter() -> dict[str, Any]:
    return {
        "type": "platform",
        "bom-ref": "python",
        "name": "python",
        "version": platform.python_version(),
        "licenses": [{"license": {"id": "PSF-2.0"}}],
    }


def _dependencies(found: dict[str, Distribution], references: dict[str, str]) -> Iterator[dict[str, Any]]:
    for name, package in found.items():
        needs: Iterable[str] = (references[need] for need in required(package))
        yield {"ref": references[name], "dependsOn": sorted([*needs, *(["python"] if name == ROOT else [])])}
    yield {"ref": "python", "dependsOn": []}


def main() -> int:
    """Print it."""
    try:
        text = json.dumps(document(), indent=1)
    except BomError as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
