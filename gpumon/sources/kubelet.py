"""The kubelet's pod-resources, asked now and then: which container holds which device ids.

Every ``every_s`` a List and, where there is one, GetAllocatableResources. Sooner when a process that holds a GPU in a
pod began after the last listing, for its pod may be new; such listings wait longer each time, up to ``every_s``, so
that a pod that begins anew all the time does not cost the kubelet more than that. A socket that is not there is tried
at every pass. In its own thread: a kubelet that takes its time holds up nobody. Has no samples of its own.

What was listed counts for ``max_age_s``, also while the kubelet does not answer: without it no pod gets a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpumon.host.podresources import HeldDevices, PodHolds, PodResources, PodResourcesError
from gpumon.model import Item, Miss, Reason, SourceError
from gpumon.sources.pod_map import Listing

EARLY_S: Final = 2.0
GETS_MAX: Final = 8
WAITING: Final = "waiting"
OK: Final = "ok"


class KubeletSource:
    """Source ``kubelet``.

    newest_start_s: steady second in which the newest process began that holds a GPU in a pod; None without one.
    """

    name = "kubelet"

    def __init__(
        self,
        port: PodResources,
        newest_start_s: Callable[[], float | None],
        *,
        every_s: float = 10.0,
        max_age_s: float = 60.0,
    ) -> None:
        self._port = port
        self._newest_start_s = newest_start_s
        self._every_s = every_s
        self._max_age_s = max_age_s
        self._listing: Listing | None = None
        self._failure: PodResourcesError | None = None
        self._due_s = 0.0
        self._early_s = EARLY_S

    @property
    def state(self) -> str:
        """How the last question went: ``ok``, a reason, or ``waiting`` before the first."""
        failure = self._failure
        if failure is not None:
            return failure.reason.value
        return OK if self._listing is not None else WAITING

    def listing(self, at_s: float) -> Listing | None:
        """The newest one that still counts. From any thread."""
        listing = self._listing
        return listing if listing is not None and at_s - listing.began_s <= self._max_age_s else None

    def read(self, at_s: float) -> list[Item]:
        is_due = at_s >= self._due_s
        if not is_due and not self._is_early(at_s):
            if self._failure is not None:  # what it was told the last time is still so
                raise SourceError(self._failure.reason, self._failure.detail)
            return []
        self._early_s = EARLY_S if is_due else min(2 * self._early_s, self._every_s)
        try:
            pods = self._settled(self._port.list().pods)
        except PodResourcesError as error:
            self._failure = error
            self._due_s = at_s if error.reason is Reason.UNAVAILABLE else at_s + self._every_s
            raise SourceError(error.reason, error.detail) from error
        misses: list[Item] = []
        offered = self._offered(misses)
        self._listing, self._failure = Listing(at_s, pods, offered), None
        self._due_s = at_s + self._every_s
        return misses

    def _is_early(self, at_s: float) -> bool:
        newest_s, listing = self._newest_start_s(), self._listing
        if newest_s is None or listing is None or self._failure is not None:
            return False
        return newest_s > listing.began_s and at_s - listing.began_s >= self._early_s

    def _settled(self, pods: tuple[PodHolds, ...]) -> tuple[PodHolds, ...]:
        """The pods, without those that are no more.

        Old kubelets also list pods that have ended. An id is handed out once, so of two pods with the same one at
        least one is no more: Get says which, where it is on. Where it is not, both stay, and the GPU counts as shared.
        """
        owners: dict[tuple[str, str], set[PodHolds]] = {}
        for pod in pods:
            for container in pod.containers:
                for held in container.devices:
                    for device_id in held.ids:
                        owners.setdefault((held.resource, device_id), set()).add(pod)
        doubtful = sorted({pod for several in owners.values() if len(several) > 1 for pod in several})
        now: dict[PodHolds, PodHolds | None] = {}
        try:
            for pod in doubtful[:GETS_MAX]:
                now[pod] = self._port.get(pod.namespace, pod.name)
        except PodResourcesError as error:
            if error.reason is not Reason.UNSUPPORTED:
                raise
            return pods
        told = (now.get(pod, pod) for pod in pods)
        return tuple(pod for pod in told if pod is not None)

    def _offered(self, misses: list[Item]) -> tuple[HeldDevices, ...] | None:
        try:
            return self._port.allocatable()
        except PodResourcesError as error:
            if error.reason is not Reason.UNSUPPORTED:
                misses.append(Miss("allocatable devices", error.reason, error.detail))
            return None
