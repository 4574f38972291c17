"""The names in the kubelet's log folders, which hold what its API does not tell: uids of pods, ids of containers.

Below a root (``/var/log``): ``pods/<namespace>_<name>_<uid>`` and
``containers/<pod>_<namespace>_<container>-<id>.log``. Names alone: nothing in the folders is opened. Needs the right
to list them, and a mount of each in a container.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

from gpumon.host.errnos import reason_of
from gpumon.host.files import ReadError
from gpumon.model import Reason

MAX_NAMES: Final = 65_536
PODS: Final = "pods"
CONTAINERS: Final = "containers"


class LogNames(Protocol):
    """What a source may ask of the log folders."""

    def names(self, folder: str) -> list[str]:
        """Names in ``pods`` or ``containers``, at most 65,536, in no order. Raises ReadError."""
        ...


class LogFolder:
    """``LogNames`` over a real folder."""

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def is_there(self) -> bool:
        """Whether the kubelet has made any of its folders there, and they can be seen."""
        return any(os.path.isdir(os.path.join(self._root, folder)) for folder in (PODS, CONTAINERS))

    def names(self, folder: str) -> list[str]:
        path = os.path.join(self._root, folder)
        names: list[str] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if len(names) == MAX_NAMES:
                        raise ReadError(path, Reason.MALFORMED, f"more than {MAX_NAMES} names")
                    names.append(entry.name)
        except OSError as error:
            raise ReadError(path, reason_of(error), os.strerror(error.errno or 0)) from error
        return names
