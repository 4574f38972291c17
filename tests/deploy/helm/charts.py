"""The chart as Helm renders it, with the values that CI has for it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy/helm/gpumon"
VARIANTS = ("default", *sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir()))
"""``default`` and the files of ``ci/``."""
NAMESPACE = "gpu-observability"
Object = dict[str, Any]


def values_of(variant: str) -> dict[str, Any]:
    """Values as a user would give them."""
    if variant == "default":
        return {}
    return helm_python.values_from_yaml((CHART / f"ci/{variant}-values.yaml").read_text())


def texts(values: Mapping[str, Any], *, chart: Path = CHART, name: str = "gpumon", namespace: str = NAMESPACE) -> str:
    """All objects as one YAML stream, without the notes."""
    with helm_python.Chart.load(chart) as loaded:
        rendered = loaded.render(dict(values), name=name, namespace=namespace)
    files = (text.strip().removeprefix("---") for path, text in sorted(rendered.items()) if path.endswith(".yaml"))
    return "".join(f"---\n{text.strip()}\n" for text in files if text)


def objects(
    values: Mapping[str, Any], *, chart: Path = CHART, name: str = "gpumon", namespace: str = NAMESPACE
) -> list[Object]:
    """All objects."""
    return list(yaml.load_all(texts(values, chart=chart, name=name, namespace=namespace), yaml.CSafeLoader))


def refused(values: Mapping[str, Any], *, chart: Path = CHART, name: str = "gpumon") -> str:
    """Why Helm does not take these values; a test fails where it does."""
    try:
        texts(values, chart=chart, name=name)
    except helm_python.HelmError as err:
        return str(err)
    raise AssertionError(f"taken: {values}")


def notes(values: Mapping[str, Any]) -> str:
    """What Helm says after an installation."""
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(dict(values), name="gpumon", namespace=NAMESPACE)["gpumon/templates/NOTES.txt"]


@functools.cache
def variant_text(variant: str) -> str:
    """``texts`` of a variant."""
    return texts(values_of(variant))


@functools.cache
def variant_objects(variant: str) -> tuple[Object, ...]:
    """``objects`` of a variant; not to be changed."""
    return tuple(yaml.load_all(variant_text(variant), yaml.CSafeLoader))


def of_kind(found: tuple[Object, ...] | list[Object], kind: str) -> list[Object]:
    """Those of a kind."""
    return [each for each in found if each["kind"] == kind]


def one(found: tuple[Object, ...] | list[Object], kind: str) -> Object:
    """The only one of a kind."""
    (only,) = of_kind(found, kind)
    return only


def daemonset(values: Mapping[str, Any]) -> Object:
    """Rendered with these values."""
    return one(objects(values), "DaemonSet")


def pod_specs(found: tuple[Object, ...] | list[Object]) -> Iterator[tuple[Object, Object]]:
    """Every object with a pod in it, and the pod's spec."""
    for each in found:
        if each["kind"] == "Pod":
            yield each, each["spec"]
        elif each["kind"] in ("DaemonSet", "Deployment"):
            yield each, each["spec"]["template"]["spec"]
