"""One engine: what shares a batch. Requests of one group slow one another down; everything explained is by group.

A group is a server's kind, its model, and the GPUs that its requests are bound to, or where there are none the process,
or the container. Two replicas of a model on one node are two groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpumon.detect.scene import Holder
from gpumon.model import RequestRecord

Key = tuple[str, str]
"""Whom a sign is of: a scope and a name in it. Scopes: ``gpu`` (UUID), ``process`` (pid as text), ``server`` (the model
on a page that was scraped; ``kind/`` where the page names none), ``host`` ("")."""


class Group(NamedTuple):
    """See the module."""

    server: str
    """Kind of server, as in ``RequestRecord.server``."""
    model: str
    gpus: tuple[str, ...]
    """UUIDs, as bound; empty where unbound."""
    pid: str
    """Of the process that requests are bound to, as text; empty where several or none are known."""
    container: str

    @property
    def name(self) -> str:
        """As incidents name a server: ``vllm/llama-70b``."""
        return f"{self.server}/{self.model}"


def group_of(record: RequestRecord) -> Group:
    """The group of a request."""
    binding = record.binding
    if binding.gpus:
        return Group(record.server, record.model, tuple(binding.gpus), "", "")
    pid = str(binding.pid) if binding.pid is not None else ""
    return Group(record.server, record.model, (), pid, "" if pid else binding.container_id or "")


def keys_of(group: Group, pids: Iterable[str]) -> list[Key]:
    """Everything whose signs matter to a group. pids: of its processes (``pids_of``), as text."""
    keys: list[Key] = [("gpu", uuid) for uuid in group.gpus]
    keys += [("process", pid) for pid in dict.fromkeys((*((group.pid,) if group.pid else ()), *pids))]
    # A request that gpumon passed on does not say of which kind its server is: the model is enough.
    keys += [("server", group.model)] if group.model else []
    keys.append(("server", f"{group.server}/"))
    if group.gpus or group.pid or group.container:
        keys.append(("host", ""))
    return keys


def pids_of(group: Group, by_gpu: Callable[[str], Iterable[str]]) -> list[str]:
    """Processes of a group: those that hold its GPUs. by_gpu: pids that hold the GPU with this UUID."""
    return list(dict.fromkeys(pid for uuid in group.gpus for pid in by_gpu(uuid)))


def holders_by_gpu(pids: Iterable[str], holders: Callable[[str], Iterable[Holder]]) -> dict[str, list[str]]:
    """Pids by UUID of the GPU that they hold. holders: ``Scene.holders``."""
    found: dict[str, list[str]] = {}
    for pid in pids:
        for holder in holders(pid):
            found.setdefault(holder.uuid, []).append(pid)
    return found
