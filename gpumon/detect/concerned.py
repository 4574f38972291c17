"""What an incident concerns, as far as it is known: its GPUs, its process, the process's rank; and of the requests that
it touched, whose they were and where they ran.

Nothing is guessed. GPUs are those of the entity, or that its process holds; a GPU's process is told where one alone
holds it; a rank is what collectives (``ingest.nccl``) told of that process, where they told one. Servers and tenants
are those of requests that ran on the entity, by their binding (``detect.touched``); until one has ended, servers are
those of just before. What is known once stays: an incident is of what there was when it began.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.scene import Scene
from gpumon.ingest.nccl import CollectiveRecord
from gpumon.requests.tenants import OTHER

SERVERS_MAX: Final = 8
TENANTS_MAX: Final = 16
_PIDS: Final = 512
_GPUS_MAX: Final = 64
_PROCESS = re.compile(r"pid ([0-9]{1,10}) (.*)", re.DOTALL)
_RANK = re.compile(r"(.*) rank ([0-9]{1,9})", re.DOTALL)


class Rank(NamedTuple):
    """A process's place in a communicator."""

    communicator: str
    rank: int


class Served(NamedTuple):
    """Whose requests an incident touched."""

    server: str
    """Kind of server."""
    model: str
    requests: int
    gpus: tuple[str, ...]
    """Indices of the GPUs that they were bound to."""


class Concerned(NamedTuple):
    """See the module; what is not known is empty or None."""

    gpus: tuple[str, ...] = ()
    """Indices."""
    pid: str = ""
    process: str = ""
    """Its name, as the kernel has it: 15 bytes at most."""
    rank: Rank | None = None
    servers: tuple[Served, ...] = ()
    """Those with most requests first."""
    tenants: tuple[tuple[str, int], ...] = ()
    """With the number of their requests, those with most first; what is past ``TENANTS_MAX`` is ``other``."""


NOTHING: Final = Concerned()


class Ran(NamedTuple):
    """What matters of a request."""

    server: str
    model: str
    tenant: str
    gpus: Sequence[str]
    """UUIDs."""


class Knowing:
    """Not thread-safe. Once per step ``look``, then ``of``."""

    def __init__(self) -> None:
        self._ranks: OrderedDict[str, Rank | None] = OrderedDict()
        """By pid; None where it has several."""
        self._gpus: dict[str, str] = {}
        self._held: dict[str, dict[str, str]] = {}
        """Names of processes by pid, by the UUID of what they hold."""

    def look(self, scene: Scene, collectives: Iterable[CollectiveRecord]) -> None:
        """A step."""
        told = {(each.pid, each.comm_name, each.comm_id, each.rank) for each in collectives}
        found: dict[str, Rank | None] = {}
        for pid, name, comm_id, rank in sorted(told):
            if pid:
                key, of = str(pid), Rank(f"{name or 'communicator'} {comm_id}", rank)
                found[key] = of if found.get(key, of) == of else None
        for key, rank_of in found.items():
            before = self._ranks.pop(key, rank_of)
            self._ranks[key] = rank_of if before == rank_of else None
        while len(self._ranks) > _PIDS:
            self._ranks.popitem(last=False)
        self._gpus = {labels[1]: labels[0] for labels in scene.values(catalogue.GPU_PRESENT)}
        self._held = {}
        for labels in scene.values(catalogue.PROCESS_GPU_MEMORY):
            self._held.setdefault(labels[1], {})[labels[2]] = labels[3]

    def of(self, known: Concerned, scope: str, name: str, uuid: str, gpu: str) -> Concerned:
        """What is known now of an entity, and was before."""
        gpus, pid, process, rank = known.gpus, known.pid, known.process, known.rank
        if scope == "process" and not pid and (told := _PROCESS.fullmatch(name)) is not None:
            pid, process = told[1], told[2]
        if not gpus:
            gpus = (gpu,) if gpu else self._indices(held for held, by in self._held.items() if pid and pid in by)
        if not pid and uuid and len(by := self._held.get(uuid, {})) == 1:
            ((pid, process),) = by.items()
        if scope == "collective" and rank is None and (told := _RANK.fullmatch(name)) is not None:
            rank = Rank(told[1], int(told[2]))
        if rank is None and pid and any(pid in by for by in self._held.values()):
            rank = self._ranks.get(pid)
        return known._replace(gpus=gpus, pid=pid, process=process, rank=rank)

    def served(self, known: Concerned, requests: Iterable[Ran]) -> Concerned:
        """With whose requests ran on it just before it began; none of them counts."""
        if known.servers:
            return known
        found = self.touched(known, requests)
        return known._replace(servers=tuple([each._replace(requests=0) for each in found.servers]))

    def touched(self, known: Concerned, requests: Iterable[Ran]) -> Concerned:
        """With more requests that ran on it."""
        servers = {(each.server, each.model): each for each in known.servers}
        tenants = dict(known.tenants)
        for request in requests:
            key = (request.server, request.model)
            if key in servers or len(servers) < SERVERS_MAX:
                before = servers.get(key, Served(*key, 0, ()))
                gpus = before.gpus or self._indices(request.gpus)
                servers[key] = before._replace(requests=before.requests + 1, gpus=gpus)
            if request.tenant:
                tenant = request.tenant if request.tenant in tenants or len(tenants) < TENANTS_MAX else OTHER
                tenants[tenant] = tenants.get(tenant, 0) + 1
        return known._replace(
            servers=tuple(sorted(servers.values(), key=lambda each: (-each.requests, each.server, each.model))),
            tenants=tuple(sorted(tenants.items(), key=lambda each: (-each[1], each[0]))),
        )

    def _indices(self, uuids: Iterable[str]) -> tuple[str, ...]:
        found = {self._gpus[uuid] for uuid in uuids if uuid in self._gpus}
        return tuple(sorted(found, key=lambda gpu: (len(gpu), gpu))[:_GPUS_MAX])
