"""A kubelet for tests: a real gRPC server on a Unix socket that speaks the pod-resources API.

What it answers, how late, and which of its calls it has can be changed while it runs. ``stop`` and ``start`` make the
socket anew, as a kubelet that restarts does. Its messages are written by hand, field by field, and owe nothing to
the reader under test.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc


def text(number: int, value: str | bytes) -> bytes:
    """A field of text, bytes or a message, in protobuf's wire format."""
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def number(field_number: int, value: int) -> bytes:
    """A field of a whole number."""
    return _varint(field_number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


@dataclass(frozen=True)
class Claim:
    """A DRA claim of one device."""

    namespace: str
    name: str
    device: str
    cdi: tuple[str, ...] = ()
    driver: str = "gpu.nvidia.com"
    pool: str = "node-1"

    def encoded(self) -> bytes:
        resource = b"".join(text(1, text(1, name)) for name in self.cdi)
        resource += text(2, self.driver) + text(3, self.pool) + text(4, self.device)
        return text(2, self.name) + text(3, self.namespace) + text(4, resource)


@dataclass(frozen=True)
class Container:
    """A container, and what it holds: device ids by resource, claims."""

    name: str = "server"
    ids: tuple[str, ...] = ()
    resource: str = "nvidia.com/gpu"
    claims: tuple[Claim, ...] = ()
    cpus: int = 0

    def encoded(self, *, dynamic: bool, old: bool) -> bytes:
        # One entry per NUMA node, as the kubelet has them; every second id is of the other node.
        parts = [self.ids[::2], self.ids[1::2]]
        body = text(1, self.name)
        for node, ids in enumerate(part for part in parts if part):
            devices = text(1, self.resource) + b"".join(text(2, device_id) for device_id in ids)
            body += text(2, devices if old else devices + text(3, text(1, number(1, node))))
        if not old:
            body += b"".join(number(3, cpu) for cpu in range(self.cpus))
            body += text(4, text(1, "memory") + number(2, 1 << 40))
        if dynamic:
            body += b"".join(text(5, claim.encoded()) for claim in self.claims)
        return body


@dataclass(frozen=True)
class Pod:
    """A pod."""

    namespace: str
    name: str
    containers: tuple[Container, ...] = (Container(),)

    def encoded(self, *, dynamic: bool, old: bool = False) -> bytes:
        body = text(1, self.name) + text(2, self.namespace)
        return body + b"".join(text(3, each.encoded(dynamic=dynamic, old=old)) for each in self.containers)


def holding(namespace: str, name: str, *ids: str, container: str = "server") -> Pod:
    """A pod with one container, which holds these."""
    return Pod(namespace, name, (Container(container, ids),))


@dataclass
class Kubelet:
    """``with Kubelet(folder / "kubelet.sock") as kubelet``: it answers while the block lasts."""

    path: Path
    pods: Sequence[Pod] = ()
    offered: Sequence[str] = ()
    version: str = "v1"
    dynamic: bool = True
    """The gate of dynamic_resources."""
    get: bool = True
    """The gate of Get."""
    allocatable: bool = True
    delay_s: float = 0.0
    raw: bytes | None = None
    """Sent instead of every answer."""
    limited: bool = False
    """Every question is one too many."""
    gone: frozenset[str] = frozenset()
    """Names of pods that are listed and are no more."""
    asked: Counter[str] = field(default_factory=Counter)
    """Questions, by method."""
    _server: grpc.Server | None = None
    _let_go: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the socket and answer on it."""
        self._let_go.clear()
        self._server = server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {"List": self._list}
        if self.version == "v1":
            handlers |= {"Get": self._get, "GetAllocatableResources": self._allocatable}
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in handlers.items()
        }
        service = grpc.method_handlers_generic_handler(f"{self.version}.PodResourcesLister", methods)
        server.add_generic_rpc_handlers((service,))
        self.path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{self.path}")
        server.start()

    def stop(self) -> None:
        """Close the socket and remove it."""
        self._let_go.set()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
        self.path.unlink(missing_ok=True)

    def _list(self, question: bytes, context: grpc.ServicerContext) -> bytes:
        assert question == b""
        self._before("List", context)
        old = self.version == "v1alpha1"
        dynamic = self.dynamic and not old
        pods = list(self.pods)
        return self._answer(b"".join(text(1, pod.encoded(dynamic=dynamic, old=old)) for pod in pods))

    def _get(self, question: bytes, context: grpc.ServicerContext) -> bytes:
        self._before("Get", context)
        if not self.get:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for pod in self.pods:
            if question == text(1, pod.name) + text(2, pod.namespace) and pod.name not in self.gone:
                return self._answer(text(1, pod.encoded(dynamic=self.dynamic)))
        context.abort(grpc.StatusCode.UNKNOWN, "pod in namespace not found")
        raise AssertionError

    def _allocatable(self, question: bytes, context: grpc.ServicerContext) -> bytes:
        assert question == b""
        self._before("GetAllocatableResources", context)
        if not self.allocatable:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API GetAllocatableResources disabled")
        devices = b"".join(text(1, text(1, "nvidia.com/gpu") + text(2, device_id)) for device_id in self.offered)
        return self._answer(devices + number(2, 0) + number(2, 1))

    def _before(self, method: str, context: grpc.ServicerContext) -> None:
        self.asked[method] += 1
        if self.limited:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        if self.delay_s:
            self._let_go.wait(self.delay_s)

    def _answer(self, body: bytes) -> bytes:
        return self.raw if self.raw is not None else body
