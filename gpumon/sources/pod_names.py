"""From a process to the pod and container it is in, by name.

The cgroup path tells the pod's uid and the container's id. Their names are taken, in this order of trust, from the API
server where it is asked, from the names in the kubelet's log folders, and from the kubelet's listing where it leaves
one answer alone: everything that the pod's processes hold is held by one and the same pod, alone, nobody of another
pod is on those GPUs, the listing is newer than the first of these processes, and no other uid has that pod's name.

As a source it looks through the log folders, in a thread of its own, whenever somebody is not known, and every
``AGAIN_S`` for those that were not found. A folder that is not there or denied is a miss; a name that two of them
claim is nobody's. Without any of the three, containers have the first twelve digits of their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpumon.host.files import ReadError
from gpumon.host.log_names import CONTAINERS, PODS, LogNames
from gpumon.model import GpuUuid, Item, Miss
from gpumon.sources.cgroup import Identity
from gpumon.sources.kube_names import Names, PodName, names_of
from gpumon.sources.pod_map import Owner, PodMap
from gpumon.sources.targets import Occupant, Workload, started_s

AGAIN_S: Final = 10.0


class _Concluded(NamedTuple):
    owner: Owner
    container_id: str | None
    """Of the container that holds the GPUs; None where several do."""


class PodNames:
    """Source ``pod_names``, and ``lookup`` for ``sources.targets``.

    folder: the kubelet's logs. told: what the API server tells of this node's pods. mapped: who holds which GPU.
    """

    name = "pod_names"

    def __init__(
        self, folder: LogNames | None, told: Callable[[], Names | None], mapped: Callable[[], PodMap | None]
    ) -> None:
        self._folder = folder
        self._told = told
        self._mapped = mapped
        self._logged = Names()
        self._wanted: frozenset[str] = frozenset()
        """Uids and container ids of those that were asked for last."""
        self._looked_for: frozenset[str] = frozenset()
        self._again_s = 0.0
        self._concluded: dict[str, _Concluded] = {}
        """By uid: names that only the listing tells. Kept while a process of the pod is there and no listing counts."""

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
        certain = [_certain(each.identity, sources) for each in occupants]
        self._conclude(occupants, certain)
        return [
            workload if workload is not None else self._of_listing(each)
            for each, workload in zip(occupants, certain, strict=True)
        ]

    def _list(self, folder: str, misses: list[Item]) -> list[str]:
        assert self._folder is not None
        try:
            return self._folder.names(folder)
        except ReadError as error:
            misses.append(Miss(f"names in {folder}", error.reason, error.detail))
            return []

    def _of_listing(self, occupant: Occupant) -> Workload | None:
        found = self._concluded.get(occupant.identity.pod_uid or "")
        if found is None:
            return None
        is_holder = found.container_id is not None and found.container_id == occupant.identity.container_id
        return Workload(*found.owner.pod, found.owner.container if is_holder else "")

    def _conclude(self, occupants: Sequence[Occupant], certain: Sequence[Workload | None]) -> None:
        nameless: dict[str, list[Occupant]] = {}
        taken: set[PodName] = set()
        uids: dict[GpuUuid, set[str]] = {}
        for each, workload in zip(occupants, certain, strict=True):
            uid = each.identity.pod_uid
            if workload is not None:
                taken.add(PodName(workload.namespace, workload.pod))
            elif uid is not None:
                nameless.setdefault(uid, []).append(each)
            if uid is not None:
                for gpu in each.gpus:
                    uids.setdefault(gpu, set()).add(uid)
        mapped = self._mapped()
        before, self._concluded = self._concluded, {}
        for uid, processes in nameless.items():
            found = before.get(uid)
            if mapped is not None:
                found = _concluded(processes, mapped, uids, is_known=found is not None)
            if found is not None and found.owner.pod not in taken:
                self._concluded[uid] = found


def _certain(identity: Identity, sources: Sequence[Names]) -> Workload | None:
    """What names by uid and id tell. A container whose pod is told to be another one has no name."""
    uid, id_ = identity.pod_uid or "", identity.container_id or ""
    container = next((names.containers[id_] for names in sources if id_ in names.containers), None)
    pod = next((names.pods[uid] for names in sources if uid in names.pods), None)
    if pod is None:
        return Workload(*container.pod, container.container) if container is not None else None
    return Workload(*pod, container.container if container is not None and container.pod == pod else "")


def _concluded(
    processes: Sequence[Occupant], mapped: PodMap, uids: dict[GpuUuid, set[str]], *, is_known: bool
) -> _Concluded | None:
    """The one pod to which everything leads that these processes of one pod hold."""
    if not is_known and min(started_s(each.pid) for each in processes) > mapped.began_s:
        return None  # the pod may be newer than what was listed
    holders = [each for each in processes if each.gpus]
    gpus = {gpu for each in holders for gpu in each.gpus}
    owners = [owner for gpu in gpus if (owner := mapped.owner(gpu)) is not None]
    if len(owners) < len(gpus) or len({owner.pod for owner in owners}) != 1 or any(len(uids[gpu]) > 1 for gpu in gpus):
        return None
    containers = {owner.container for owner in owners}
    ids = {each.identity.container_id for each in holders}
    return _Concluded(
        Owner(owners[0].pod, containers.pop() if len(containers) == 1 else ""), ids.pop() if len(ids) == 1 else None
    )
