"""The locks of the image: they are of today's pyproject.toml, every file has its hash, and no index is named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = {
    "requirements.lock": PROJECT["project"]["dependencies"],
    "build.lock": PROJECT["build-system"]["requires"],
}
_ENTRY = re.compile(r"([a-z0-9-]+)==(\S+)(?: ; [^\\]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def stale(lock: str, wanted: list[str]) -> list[str]:
    """What of pyproject.toml a lock does not have, or not new enough. (That a newer version exists is no fault.)"""
    pins = {name: Version(version) for name, version, _ in _ENTRY.findall(lock)}
    needs = [Requirement(text) for text in wanted]
    return [
        str(need)
        for need in needs
        if (pin := pins.get(canonicalize_name(need.name))) is None or not need.specifier.contains(pin, prereleases=True)
    ]


@pytest.fixture(params=WANTED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lock(name: str) -> str:
    return (ROOT / "deploy/image" / name).read_text()


def test_a_lock_fits_pyproject(name: str, lock: str) -> None:
    assert not stale(lock, WANTED[name]), "run scripts/lock.sh"


def test_a_lock_that_does_not_fit_is_noticed() -> None:
    lock = f"numpy==1.25.0 \\\n    --hash=sha256:{'0' * 64}\n"
    assert stale(lock, ["numpy>=1.26", "psutil>=6"]) == ["numpy>=1.26", "psutil>=6"]
    assert stale(lock, ["NumPy>=1.25"]) == []


def test_every_line_of_a_lock_is_a_pin_with_hashes_or_a_comment(lock: str) -> None:
    entries = _ENTRY.findall(lock)
    rest = _ENTRY.sub("", lock)
    assert entries
    assert [line for line in rest.splitlines() if not re.match(r"\s*#", line)] == []
    assert len({name for name, *_ in entries}) == len(entries)


def test_a_lock_names_no_index(lock: str) -> None:
    assert not re.search(r"://|--(?:extra-)?index-url|--find-links|--trusted-host|pypi", lock)


def test_the_image_installs_from_the_locks_by_hash_and_nothing_else() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", text)
    assert len(installs) == 4
    locked = [install for install in installs if "--no-deps" not in install]
    assert len(locked) == len(WANTED)
    for install in locked:
        assert "--require-hashes -r" in install, install
        # A source archive would run its own build, which takes what no lock names.
        assert "--only-binary :all:" in install, install


def test_a_lock_is_made_of_versions_that_the_image_takes() -> None:
    assert "--pip-args '--only-binary :all:'" in (ROOT / "scripts/lock.sh").read_text()
