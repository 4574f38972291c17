"""Scenarios by name: those that come with gpumon, files beside this one, and any other by its path."""

from __future__ import annotations

from pathlib import Path

from gpumon.sim.scenario import Scenario, load_scenario

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Of the scenarios that come with gpumon."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def find_scenario(name: str) -> Scenario:
    """name: of one that comes with gpumon, else the path of a file. Raises ScenarioError."""
    return load_scenario(_FOLDER / f"{name}.yaml" if name in names() else Path(name))
