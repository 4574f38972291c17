"""The port to the API server: the pods of this node, and what changes about them. Used by one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from gpumon.model import Reason


class KubeApiError(Exception):
    """The API server did not answer as asked.

    reason: UNAVAILABLE (no connection, an error of its own), DENIED (401, 403, no token to show), TIMEOUT, MALFORMED
    (no JSON, or more than is read). The watch, if there was one, is over.
    """

    def __init__(self, reason: Reason, detail: str, *, gone: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.gone = gone
        """The changes since that version are no longer kept (410): list again."""


class KubePod(NamedTuple):
    """A pod, as far as it is needed."""

    namespace: str
    name: str
    uids: tuple[str, ...]
    """As in cgroup paths: its uid, and for one of the kubelet's own manifests the manifest's hash."""
    labels: Mapping[str, str]
    containers: tuple[tuple[str, str], ...]
    """Id, without the runtime's name before it, and name."""


class Change(NamedTuple):
    """What a watch tells."""

    pod: KubePod | None
    """None for a bookmark, which tells the version alone."""
    is_deleted: bool
    version: str
    """After this."""


class KubeApi(Protocol):
    """What a source may ask. Every call ends in time. Raises KubeApiError, nothing else."""

    def pods(self, *, newest: bool) -> tuple[Sequence[KubePod], str]:
        """The pods of this node, and the version of the list. newest: not from a cache, which may be behind."""
        ...

    def watch(self, version: str) -> None:
        """Begin to hear of changes since a version."""
        ...

    def changes(self) -> list[Change] | None:
        """What has come since the last call, without waiting for more; None when the server ended the watch."""
        ...
