"""This node's pods from the API server: their names by uid and container id, and the labels that are wanted.

One list, then a watch that is looked into at every pass; nothing is asked for as long as it lives. Where it ends it is
begun anew from where it was, and where the server no longer knows that version (410), after a new list. Failures are
tried again after 2 s, then 4, up to a minute. Off unless ``kubernetes.api`` is on. Only labels whose keys are listed
become series, and only those of pods that hold a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from gpumon import catalogue
from gpumon.host.kube_api import KubeApi, KubeApiError, KubePod
from gpumon.model import Item, Miss, Reason, Sample, SourceError
from gpumon.sources.kube_names import ContainerName, Names, PodName, is_container, is_pod

PODS_MAX: Final = 1024
"""A node has 110 by default, and some hundred at most."""
RETRY_MIN_S: Final = 2.0
RETRY_MAX_S: Final = 60.0
_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}", re.ASCII)


class PodLabels:
    """Source ``pod_labels``.

    keys: of labels that become series. wanted: pods whose labels are told.
    """

    name = "pod_labels"

    def __init__(self, api: KubeApi, keys: Sequence[str], wanted: Callable[[], Collection[PodName]]) -> None:
        self._api = api
        self._keys = tuple(keys)
        self._wanted = wanted
        self._pods: dict[PodName, KubePod] = {}
        self._names = Names()
        self._version = ""
        self._is_watching = False
        self._newest = False
        self._failure: KubeApiError | None = None
        self._retry_at_s = 0.0
        self._retry_s = RETRY_MIN_S
        self._over = 0

    def names(self) -> Names:
        """Of the newest pass that could be made. From any thread."""
        return self._names

    def read(self, at_s: float) -> Iterator[Item]:
        if self._failure is not None and at_s < self._retry_at_s:
            raise SourceError(self._failure.reason, self._failure.detail)
        try:
            self._follow()
        except KubeApiError as error:
            self._is_watching = False
            if error.gone:  # normal: what this node has missed is listed at the next pass
                self._version, self._newest = "", True
            self._failure = error
            self._retry_at_s = at_s + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            raise SourceError(error.reason, error.detail) from error
        self._failure, self._retry_s = None, RETRY_MIN_S
        return self._told()

    def _follow(self) -> None:
        if not self._version:
            pods, self._version = self._api.pods(newest=self._newest)
            self._pods, self._over = {}, 0
            for pod in pods:
                self._take(pod)
            self._name()
            self._is_watching = False
        if not self._is_watching:
            self._api.watch(self._version)
            self._is_watching = True
        changes = self._api.changes()
        self._is_watching = changes is not None
        for change in changes or ():
            self._version = change.version or self._version
            if change.pod is not None and change.is_deleted:
                self._pods.pop(PodName(change.pod.namespace, change.pod.name), None)
            elif change.pod is not None:
                self._take(change.pod)
        if changes:
            self._name()

    def _take(self, pod: KubePod) -> None:
        name = PodName(pod.namespace, pod.name)
        if not is_pod(*name) or (len(self._pods) >= PODS_MAX and name not in self._pods):
            self._over += 1
            return
        kept = {key: value for key in self._keys if _VALUE.fullmatch(value := pod.labels.get(key, "\0"))}
        self._pods[name] = pod._replace(labels=kept)

    def _name(self) -> None:
        containers = {
            id_: ContainerName(name, container)
            for name, pod in self._pods.items()
            for id_, container in pod.containers
            if is_container(container)
        }
        self._names = Names({uid: name for name, pod in self._pods.items() for uid in pod.uids}, containers)

    def _told(self) -> Iterator[Item]:
        for name in sorted(self._wanted()):
            pod = self._pods.get(name)
            for key, value in pod.labels.items() if pod is not None else ():
                yield Sample(catalogue.POD_LABEL, (*name, key, value), 1.0)
        if self._over:
            yield Miss("pods", Reason.OUT_OF_RANGE, f"{self._over} too many, or without a name that can be one")
