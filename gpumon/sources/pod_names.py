"""From a process to the pod and container it is in, by name.

The cgroup path tells the pod's uid and the container's id. Their names are taken from the API server where it is asked,
else from the names in the kubelet's log folders. The kubelet's listing names nobody here: it tells no uid and no
container id, and a process of any pod may be on a GPU that it lists for another one.

As a source it looks through the log folders, in a thread of its own, whenever somebody is not known, and every
``AGAIN_S`` for those that were not found. A folder that is not there or denied is a miss; a name that two of them
claim is nobody's. Without either, and for those that are in no pod, containers have the first twelve digits of their
ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpumon.host.files import ReadError
from gpumon.host.log_names import CONTAINERS, PODS, LogNames
from gpumon.model import Item, Miss
from gpumon.sources.cgroup import Identity
from gpumon.sources.kube_names import Names, names_of
from gpumon.sources.targets import Occupant, Workload

AGAIN_S: Final = 10.0


class PodNames:
    """Source ``pod_names``, and ``lookup`` for ``sources.targets``.

    folder: the kubelet's logs. told: what the API server tells of this node's pods.
    """

    name = "pod_names"

    def __init__(self, folder: LogNames | None, told: Callable[[], Names | None]) -> None:
        self._folder = folder
        self._told = told
        self._logged = Names()
        self._wanted: frozenset[str] = frozenset()
        """Uids and container ids of those that were asked for last."""
        self._looked_for: frozenset[str] = frozenset()
        self._again_s = 0.0

    def read(self, at_s: float) -> list[Item]:
        """Has no samples."""
        if self._folder is None:
            return []
        known = self._logged
        missing = self._wanted - known.pods.keys() - known.containers.keys()
        if not missing or (missing <= self._looked_for and at_s < self._again_s):
            return []
        self._looked_for, self._again_s = missing, at_s + AGAIN_S
        misses: list[Item] = []
        pods, containers = self._list(PODS, misses), self._list(CONTAINERS, misses)
        found = names_of(pods, containers, self._wanted)
        # A folder goes with its pod, and the pod's processes may outlive it for a moment.
        self._logged = Names(
            {uid: name for uid, name in {**known.pods, **found.pods}.items() if uid in self._wanted},
            {key: name for key, name in {**known.containers, **found.containers}.items() if key in self._wanted},
        )
        return misses

    def lookup(self, occupants: Sequence[Occupant]) -> list[Workload | None]:
        """See ``targets.WorkloadLookup``."""
        self._wanted = frozenset(
            key for each in occupants for key in (each.identity.pod_uid, each.identity.container_id) if key is not None
        )
        sources = [names for names in (self._told(), self._logged) if names is not None]
        return [_named(each.identity, sources) for each in occupants]

    def _list(self, folder: str, misses: list[Item]) -> list[str]:
        assert self._folder is not None
        try:
            return self._folder.names(folder)
        except ReadError as error:
            misses.append(Miss(f"names in {folder}", error.reason, error.detail))
            return []


def _named(identity: Identity, sources: Sequence[Names]) -> Workload | None:
    """What names by uid and id tell. A container whose pod is told to be another one has no name."""
    uid, id_ = identity.pod_uid, identity.container_id or ""
    if uid is None:  # a path that names no pod may be anybody's, whatever container it names
        return None
    container = next((names.containers[id_] for names in sources if id_ in names.containers), None)
    pod = next((names.pods[uid] for names in sources if uid in names.pods), None)
    if pod is None:
        return Workload(*container.pod, container.container) if container is not None else None
    return Workload(*pod, container.container if container is not None and container.pod == pod else "")
