"""The real ``host.kube_api.KubeApi``: HTTPS to the API server with the pod's service account.

Address from the environment of every pod, token and certificate authority from the service account's folder; the token
is read anew for every request, for it changes within the hour. One list, then one request that stays open and of which
only what is there is read, so that nothing waits. Needs ``list`` and ``watch`` of pods; the field selector keeps it to
the pods of one node. Standard library and msgspec.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlencode

import msgspec

from gpumon.host.kube_api import Change, KubeApiError, KubePod
from gpumon.host.timed_socket import TimedSocket, TooLongError, left_s
from gpumon.model import Reason

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S: Final = 10.0
LIST_BYTES: Final = 64 << 20
"""250 pods of 100 KB; most have 10."""
LINE_BYTES: Final = 4 << 20
READ_BYTES: Final = 16 << 20
"""Most that one look takes from the watch; the rest is there at the next."""
WATCH_S: Final = 300
"""After which the server ends the watch, and it is begun anew from where it was."""
_GRACE_S = 30.0
_LOOK_S = 0.02
_CHUNK_HEAD = re.compile(rb"([0-9a-fA-F]{1,8})(?:;[^\r\n]*)?\r\n")
_HEAD_BYTES = 1024
_MANIFEST = "kubernetes.io/config.hash"


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _ContainerStatus(msgspec.Struct):
    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")


class _Status(msgspec.Struct, rename="camel"):
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    ephemeral_container_statuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[_Pod] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Refusal(msgspec.Struct):
    code: int = 0


class Chunks:
    """The body of an HTTP answer that comes in chunks, out of whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        """Of the chunk, and of the line end after it; 0 between two."""
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """What these bytes add to the body. Raises ValueError where they are no chunks."""
        self._rest += data
        parts = []
        while self._rest and not self.ended:
            if self._left:
                part, self._rest = self._rest[: self._left], self._rest[self._left :]
                body = part[: max(0, self._left - 2)]
                if part[len(body) :] not in (b"\r\n", b"\r", b"\n", b""):
                    raise ValueError("no line end after a chunk")
                parts.append(body)
                self._left -= len(part)
                continue
            head = _CHUNK_HEAD.match(self._rest)
            if head is None:
                if b"\n" in self._rest or len(self._rest) > _HEAD_BYTES:
                    raise ValueError("no chunk")
                break
            size = int(head.group(1), 16)
            self._rest = self._rest[head.end() :]
            self.ended = size == 0
            self._left = size + 2 if size else 0
        return b"".join(parts)


class InCluster:
    """See the module. Opens nothing before the first call."""

    def __init__(
        self,
        address: tuple[str, int] | None,
        node: str,
        account: Path = ACCOUNT,
        *,
        timeout_s: float = TIMEOUT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """address: of the API server; None outside of a pod. node: whose pods. now_s: steady seconds."""
        self._address = address
        self._node = node
        self._account = account
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._open: http.client.HTTPConnection | None = None
        """That of the watch."""
        self._timed: TimedSocket | None = None
        self._over_at_s = 0.0
        self._stream: http.client.HTTPResponse | None = None
        self._chunks = Chunks()
        self._line = b""

    def pods(self, *, newest: bool) -> tuple[Sequence[KubePod], str]:
        query = {} if newest else {"resourceVersion": "0"}
        with self._failing(), contextlib.closing(self._connect()[0]) as connection:
            answer = self._ask(connection, query)
            body = answer.read(LIST_BYTES + 1)
            if len(body) > LIST_BYTES:
                raise TooLongError
            listed = msgspec.json.decode(body, type=_List)
        return [_pod(pod) for pod in listed.items or ()], listed.metadata.resource_version

    def watch(self, version: str) -> None:
        self.close()
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
        with self._failing():
            self._open, self._timed = self._connect()
            self._stream = self._ask(self._open, query | {"resourceVersion": version})
            self._over_at_s = self._now_s() + WATCH_S + _GRACE_S

    def changes(self) -> list[Change] | None:
        if self._stream is None:
            return None
        found: list[Change] = []
        with self._failing():
            is_open = self._read_into(found)
        if not is_open:
            self.close()
        return found if found or is_open else None

    def close(self) -> None:
        """End the watch."""
        if self._open is not None:
            self._open.close()
        self._open = self._stream = None
        self._chunks, self._line = Chunks(), b""

    def _read_into(self, found: list[Change]) -> bool:
        """Whether there may be more."""
        assert self._stream is not None
        # Not the answer's own read(), which would wait for the chunk after the one that is there.
        raw = cast("Any", self._stream).fp
        timed = self._timed
        assert timed is not None
        timed.bytes_left = READ_BYTES
        while timed.bytes_left > 0:
            timed.deadline_s = self._now_s() + _LOOK_S
            try:
                data = raw.read1(1 << 16)
            except TimeoutError:
                return self._now_s() < self._over_at_s  # later than that, nobody is at the other end
            self._line += self._chunks.feed(data) if self._stream.chunked else data
            *lines, self._line = self._line.split(b"\n")
            found += [_change(line) for line in lines if line.strip()]
            if len(self._line) > LINE_BYTES:
                raise TooLongError
            if not data or self._chunks.ended:
                return False
        return True

    def _connect(self) -> tuple[http.client.HTTPConnection, TimedSocket]:
        if self._address is None or not self._node:
            raise KubeApiError(Reason.UNAVAILABLE, "not in a pod, or NODE_NAME is not set")
        deadline_s = self._now_s() + self._timeout_s
        try:
            tls = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except OSError as error:
            raise KubeApiError(Reason.DENIED, f"ca.crt of the service account: {error.strerror or error}") from error
        real = socket.create_connection(self._address, left_s(deadline_s, self._now_s))
        try:
            real.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            real.settimeout(left_s(deadline_s, self._now_s))
            encrypted = tls.wrap_socket(real, server_hostname=self._address[0])
        except OSError:
            real.close()
            raise
        connection = http.client.HTTPConnection(*self._address)
        connection.auto_open = 0
        timed = TimedSocket(encrypted, self._now_s)
        timed.deadline_s, timed.bytes_left = deadline_s, 2 * LIST_BYTES
        connection.sock = cast(socket.socket, timed)
        return connection, timed

    def _ask(self, connection: http.client.HTTPConnection, query: dict[str, str]) -> http.client.HTTPResponse:
        try:
            token = (self._account / "token").read_text().strip()
        except OSError as error:
            raise KubeApiError(Reason.DENIED, f"token of the service account: {error.strerror or error}") from error
        selected = urlencode({"fieldSelector": f"spec.nodeName={self._node}", **query})
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "gpumon"}
        connection.request("GET", f"/api/v1/pods?{selected}", headers=headers)
        answer = connection.getresponse()
        if answer.status in (401, 403):
            raise KubeApiError(Reason.DENIED, f"HTTP {answer.status}")
        if answer.status != 200:
            raise KubeApiError(Reason.UNAVAILABLE, f"HTTP {answer.status}", gone=answer.status == 410)
        return answer

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Every way to fail, as the one that the port knows; the watch is over then."""
        try:
            yield
        except KubeApiError:
            self.close()
            raise
        except TimeoutError as error:
            self.close()
            raise KubeApiError(Reason.TIMEOUT, f"no answer within {self._timeout_s:g} s") from error
        except OSError as error:
            self.close()
            raise KubeApiError(Reason.UNAVAILABLE, error.strerror or type(error).__name__) from error
        except (TooLongError, http.client.HTTPException, msgspec.MsgspecError, ValueError) as error:
            self.close()
            raise KubeApiError(Reason.MALFORMED, type(error).__name__) from error


def _change(line: bytes) -> Change:
    event = msgspec.json.decode(line, type=_Event)
    if event.type == "ERROR":
        code = msgspec.json.decode(event.object, type=_Refusal).code
        raise KubeApiError(Reason.UNAVAILABLE, f"watch ended with {code}", gone=code == 410)
    pod = msgspec.json.decode(event.object, type=_Pod)
    is_bookmark = event.type == "BOOKMARK"
    return Change(None if is_bookmark else _pod(pod), event.type == "DELETED", pod.metadata.resource_version)


def _pod(pod: _Pod) -> KubePod:
    meta, status = pod.metadata, pod.status
    manifest = (meta.annotations or {}).get(_MANIFEST, "")
    some = (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses)
    statuses = [each for told in some for each in told or () if each.container_id]
    containers = tuple((each.container_id.rpartition("://")[2], each.name) for each in statuses)
    uids = tuple(uid for uid in (meta.uid, manifest) if uid)
    return KubePod(meta.namespace, meta.name, uids, meta.labels or {}, containers)
