"""Whose readings are a group's: the processes of its server, and whoever else is on its GPUs.

A GPU's server is the process that holds most of its memory. To it belong the processes of its pod; where no pods are
known, of its container; where there are no containers, those of the same program: vLLM and SGLang name their processes
after it (``VLLM::Worker_TP``). The others on the GPU are somebody else's. Processes that hold no GPU belong to a group
by the pod or container of one that does: front ends and schedulers. Read anew at every step; keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpumon import catalogue
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.group import Group

PID, PROCESS, NAMESPACE, POD, CONTAINER = range(5)
"""Positions in the labels of a workload."""
OTHER: Final = "other"
"""Pid of those past the cap, summed: they may be anybody's."""
_CONTAINER_LEAST: Final = 12
"""Characters that tell a container's id: the label may be cut."""


class Members:
    """Of one step."""

    def __init__(self, scene: Scene) -> None:
        self._holders: dict[str, list[Labels]] = {}
        """Workloads by UUID of the GPU they hold, that with most memory first."""
        held: dict[str, list[tuple[float, Labels]]] = {}
        for labels, used_bytes, _ in scene.read(catalogue.PROCESS_GPU_MEMORY):
            if labels[2] != OTHER:
                held.setdefault(labels[1], []).append((used_bytes, labels[2:]))
        for uuid, holders in held.items():
            self._holders[uuid] = [of for _, of in sorted(holders, key=lambda each: (-each[0], each[1]))]
        self._by_pid: dict[str, Labels] = {}
        self._by_container: dict[Labels, list[Labels]] = {}
        for labels in scene.values(catalogue.PROCESS_CPU_SECONDS):
            self._by_pid[labels[PID]] = labels
            if labels[POD] or labels[CONTAINER]:
                self._by_container.setdefault(labels[NAMESPACE:], []).append(labels)

    def others(self, uuid: str) -> list[Labels] | None:
        """Workloads on a GPU that are not its server's; None where nothing is known of who holds it."""
        holders = self._holders.get(uuid)
        return None if holders is None else [each for each in holders if not _belongs(each, holders[0])]

    def processes(self, group: Group) -> list[Labels]:
        """Workloads of a group that are watched: their labels, in the order in which they were found."""
        found: dict[Labels, None] = {}
        for uuid in group.gpus:
            holders = self._holders.get(uuid, [])
            found.update(dict.fromkeys(each for each in holders if _belongs(each, holders[0])))
        if group.pid and (bound := self._by_pid.get(group.pid)) is not None:
            found[bound] = None
        if group.container:
            for names, members in self._by_container.items():
                if _same_container(names[CONTAINER - NAMESPACE], group.container):
                    found.update(dict.fromkeys(members))
        for each in [*found]:
            found.update(dict.fromkeys(self._by_container.get(each[NAMESPACE:], ())))
        # A process that /proc showed under other names than NVML's list did is known by its pid.
        watched = [self._by_pid.get(each[PID]) for each in found]
        return list(dict.fromkeys(each for each in watched if each is not None))


def parents(scene: Scene) -> Mapping[str, str]:
    """The GPU's UUID of each MIG instance."""
    return {labels[0]: labels[1] for labels in scene.values(catalogue.MIG_INFO)}


def is_page_of(group: Group, page: Labels) -> bool:
    """Whether a metrics page, by its labels server, model and endpoint, tells of a group: it is of its model. Pages of
    replicas of one model cannot be told apart; one that names no model counts by its kind of server.
    """
    return page[1] == group.model if page[1] else page[0] == group.server


def _belongs(each: Labels, server: Labels) -> bool:
    if each[PID] == server[PID]:
        return True
    if each[POD] and server[POD]:
        return each[NAMESPACE:CONTAINER] == server[NAMESPACE:CONTAINER]
    if each[CONTAINER] and server[CONTAINER]:
        return each[CONTAINER] == server[CONTAINER]
    return each[PROCESS].partition("::")[0] == server[PROCESS].partition("::")[0]


def _same_container(label: str, container_id: str) -> bool:
    return len(label) >= _CONTAINER_LEAST and container_id.startswith(label)
