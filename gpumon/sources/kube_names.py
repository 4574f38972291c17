"""Names in Kubernetes: what one may look like, and who is called so by its uid or container id.

From the kubelet's log folders. A name that cannot be one (RFC 1123) is none; two names for one uid or one container id
are none either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"(?=.{1,253}(?:_|\Z))[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"
_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"  # the second: pods of the kubelet's own manifests
_POD_FOLDER = re.compile(rf"({_LABEL})_({_SUBDOMAIN})_({_UID})", re.ASCII)
_CONTAINER_LOG = re.compile(rf"({_SUBDOMAIN})_({_LABEL})_({_LABEL})-([0-9a-f]{{64}})\.log", re.ASCII)
_NAMESPACE = re.compile(_LABEL, re.ASCII)
_POD = re.compile(_SUBDOMAIN, re.ASCII)

K = TypeVar("K")
V = TypeVar("V")


class PodName(NamedTuple):
    """A pod, as people name it. The next one of the same name is another pod with another uid."""

    namespace: str
    pod: str


class ContainerName(NamedTuple):
    """A container of a pod."""

    pod: PodName
    container: str


@dataclass(frozen=True, slots=True)
class Names:
    """Who is called how."""

    pods: Mapping[str, PodName] = field(default_factory=dict)
    """By uid, as it stands in cgroup paths."""
    containers: Mapping[str, ContainerName] = field(default_factory=dict)
    """By id, 64 hex digits."""


def is_pod(namespace: str, pod: str) -> bool:
    """Whether these can be the names of a pod and its namespace."""
    return _NAMESPACE.fullmatch(namespace) is not None and _POD.fullmatch(pod) is not None


def is_container(name: str) -> bool:
    """Whether this can be the name of a container."""
    return _NAMESPACE.fullmatch(name) is not None


def parse_pod_folder(name: str) -> tuple[str, PodName] | None:
    """Uid and pod of ``<namespace>_<name>_<uid>``."""
    found = _POD_FOLDER.fullmatch(name)
    return (found.group(3), PodName(found.group(1), found.group(2))) if found else None


def parse_container_log(name: str) -> tuple[str, ContainerName] | None:
    """Id and container of ``<pod>_<namespace>_<container>-<id>.log``; the kubelet cuts very long names, which tell no
    id then."""
    found = _CONTAINER_LOG.fullmatch(name)
    if found is None:
        return None
    return found.group(4), ContainerName(PodName(found.group(2), found.group(1)), found.group(3))


def names_of(pod_folders: Iterable[str], container_logs: Iterable[str], wanted: Collection[str]) -> Names:
    """Names of the wanted uids and container ids."""
    return Names(
        _unambiguous(filter(None, map(parse_pod_folder, pod_folders)), wanted),
        _unambiguous(filter(None, map(parse_container_log, container_logs)), wanted),
    )


def _unambiguous(told: Iterable[tuple[str, V]], wanted: Collection[str]) -> dict[str, V]:
    found: dict[str, V] = {}
    twice: set[str] = set()
    for key, name in told:
        if key in wanted and found.setdefault(key, name) != name:
            twice.add(key)
    return {key: name for key, name in found.items() if key not in twice}
