"""The port to the kubelet's pod-resources API: which containers of this node hold which devices.

The kubelet tells names alone: namespaces, pods, containers, resources, device ids, DRA claims. It tells no pod uid and
no container id. Used by one thread.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gpumon.model import Reason


class PodResourcesError(Exception):
    """The kubelet did not answer as asked.

    reason: UNAVAILABLE (no socket, nobody behind it, too many questions), DENIED (the socket is root's), TIMEOUT,
    UNSUPPORTED (this kubelet does not have the call, or has it off), MALFORMED (an answer that cannot be read, or one
    that is too large).
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class HeldDevices(NamedTuple):
    """Devices of one resource of a device plugin."""

    resource: str
    """Such as ``nvidia.com/gpu``."""
    ids: tuple[str, ...]
    """As the plugin spells them: ``GPU-…``, ``MIG-…``, ``GPU-…::3`` for a replica, ``nvidia0/gi1``."""


class ClaimedDevice(NamedTuple):
    """A device of a DRA claim."""

    namespace: str
    claim: str
    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...]
    """Names of CDI devices, ``vendor/class=name``."""


class ContainerHolds(NamedTuple):
    """What a container holds."""

    name: str
    devices: tuple[HeldDevices, ...]
    claimed: tuple[ClaimedDevice, ...] = ()


class PodHolds(NamedTuple):
    """A pod that holds something, and its containers that do."""

    namespace: str
    name: str
    containers: tuple[ContainerHolds, ...]


class Answer(NamedTuple):
    """What List told."""

    pods: tuple[PodHolds, ...]
    """Those that hold something."""
    told: int
    """All that were listed."""
    version: str
    """``v1``, or ``v1alpha1`` of kubelets before 1.20."""


class PodResources(Protocol):
    """What a source may ask of the kubelet. Every call ends in time. Raises PodResourcesError, nothing else."""

    def list(self) -> Answer:
        """All pods of the node."""
        ...

    def get(self, namespace: str, pod: str) -> PodHolds | None:
        """One pod; None where the kubelet has none of that name."""
        ...

    def allocatable(self) -> tuple[HeldDevices, ...]:
        """The devices that may be handed out, also those that are."""
        ...
