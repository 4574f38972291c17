"""The real ``host.podresources.PodResources``: gRPC on the kubelet's Unix socket.

Importing this loads grpc and protobuf (20 MB), so do it only where there is a kubelet to ask. Needs the right to
connect to the socket, which is root's (uid 0, or CAP_DAC_OVERRIDE), and the *folder* of the socket in a container: a
kubelet that restarts makes the socket anew. Every call has a deadline and a largest answer. After a failure the
channel is opened anew, so that a new socket is found at once and not when gRPC's own back-off ends.

A kubelet that has no ``v1`` is asked for ``v1alpha1``, which has List alone.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from gpumon.host.podresources import (
    Answer,
    ClaimedDevice,
    ContainerHolds,
    HeldDevices,
    PodHolds,
    PodResourcesError,
)
from gpumon.host.podresources_schema import AllocatableResponse, GetRequest, GetResponse, ListResponse
from gpumon.model import Reason

TIMEOUT_S: Final = 10.0
ANSWER_BYTES: Final = 16 << 20
"""250 pods of a large node have 1 MB, most of it CPU ids."""
VERSIONS: Final = ("v1", "v1alpha1")
_PROBE_S = 1.0
_OPTIONS = (
    ("grpc.max_receive_message_length", ANSWER_BYTES),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    # Or a new channel would share the old one's connection, with its waiting time.
    ("grpc.use_local_subchannel_pool", 1),
)
_LOST = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
_REASONS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.TIMEOUT,
    grpc.StatusCode.PERMISSION_DENIED: Reason.DENIED,
    grpc.StatusCode.UNAUTHENTICATED: Reason.DENIED,
    grpc.StatusCode.UNIMPLEMENTED: Reason.UNSUPPORTED,
    grpc.StatusCode.DATA_LOSS: Reason.MALFORMED,
    grpc.StatusCode.INTERNAL: Reason.MALFORMED,
}
_CONNECT_REASONS = {errno.EACCES: Reason.DENIED, errno.EPERM: Reason.DENIED}


class KubeletSocket:
    """See the module. Opens nothing before the first call."""

    def __init__(self, path: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """timeout_s: for each call."""
        self._path = path
        self._timeout_s = timeout_s
        self._channel: grpc.Channel | None = None

    def list(self) -> Answer:
        version = VERSIONS[0]
        try:
            data = self._ask(version, "List", b"")
        except PodResourcesError as error:
            if error.reason is not Reason.UNSUPPORTED:
                raise
            version = VERSIONS[1]
            data = self._ask(version, "List", b"")
        listed = _parsed(ListResponse, data).pod_resources
        pods = (_pod(pod) for pod in listed)
        return Answer(tuple(pod for pod in pods if pod.containers), len(listed), version)

    def get(self, namespace: str, pod: str) -> PodHolds | None:
        question = GetRequest(pod_namespace=namespace, pod_name=pod).SerializeToString()
        try:
            data = self._ask(VERSIONS[0], "Get", question)
        except PodResourcesError as error:
            if error.reason is Reason.UNAVAILABLE and error.detail.endswith("not found"):
                return None
            raise
        return _pod(_parsed(GetResponse, data).pod_resources)

    def allocatable(self) -> tuple[HeldDevices, ...]:
        return _devices(_parsed(AllocatableResponse, self._ask(VERSIONS[0], "GetAllocatableResources", b"")).devices)

    def close(self) -> None:
        """Close the channel; another call opens one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ask(self, version: str, method: str, question: bytes) -> bytes:
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{os.path.abspath(self._path)}", _OPTIONS)
        call: Callable[..., bytes] = self._channel.unary_unary(f"/{version}.PodResourcesLister/{method}")
        try:
            return call(question, timeout=self._timeout_s)
        except grpc.RpcError as error:
            code, said = error.code(), str(error.details() or "")
            if code in _LOST:
                self.close()
            if code is grpc.StatusCode.UNAVAILABLE:
                raise self._why_unavailable() from error
            raise _failure(code, said, self._timeout_s) from error

    def _why_unavailable(self) -> PodResourcesError:
        """What the system says of the socket, which gRPC does not tell apart."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE_S)
            try:
                probe.connect(self._path)
            except OSError as error:
                detail = f"{self._path}: {error.strerror or error}"
                return PodResourcesError(_CONNECT_REASONS.get(error.errno or 0, Reason.UNAVAILABLE), detail)
        return PodResourcesError(Reason.UNAVAILABLE, f"{self._path}: no gRPC, or ended in the middle")


def _failure(code: grpc.StatusCode, said: str, timeout_s: float) -> PodResourcesError:
    """What the kubelet says is for the log alone, but for three answers that have no code of their own."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PodResourcesError(Reason.TIMEOUT, f"no answer within {timeout_s:g} s")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if "larger than max" in said:
            return PodResourcesError(Reason.MALFORMED, f"an answer of more than {ANSWER_BYTES} bytes")
        return PodResourcesError(Reason.UNAVAILABLE, "the kubelet limits how often it is asked")
    if code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND):
        if "disabled" in said:
            return PodResourcesError(Reason.UNSUPPORTED, "a feature gate of the kubelet is off")
        if "not found" in said or code is grpc.StatusCode.NOT_FOUND:
            return PodResourcesError(Reason.UNAVAILABLE, "not found")
    return PodResourcesError(_REASONS.get(code, Reason.UNAVAILABLE), code.name)


def _parsed(kind: Any, data: bytes) -> Any:  # noqa: ANN401 - see podresources_schema
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise PodResourcesError(Reason.MALFORMED, "an answer that is none") from error


def _pod(pod: Any) -> PodHolds:  # noqa: ANN401
    containers = (_container(container) for container in pod.containers)
    return PodHolds(pod.namespace, pod.name, tuple(each for each in containers if each.devices or each.claimed))


def _container(container: Any) -> ContainerHolds:  # noqa: ANN401
    claimed = tuple(
        ClaimedDevice(
            claim.claim_namespace,
            claim.claim_name,
            device.driver_name,
            device.pool_name,
            device.device_name,
            tuple(cdi.name for cdi in device.cdi_devices),
        )
        for claim in container.dynamic_resources
        for device in claim.claim_resources
    )
    return ContainerHolds(container.name, _devices(container.devices), claimed)


def _devices(devices: Iterable[Any]) -> tuple[HeldDevices, ...]:
    """One entry per resource, though the kubelet has one for each NUMA node."""
    ids: dict[str, dict[str, None]] = {}
    for each in devices:
        ids.setdefault(each.resource_name, {}).update(dict.fromkeys(each.device_ids))
    return tuple(HeldDevices(resource, tuple(held)) for resource, held in ids.items() if held)
