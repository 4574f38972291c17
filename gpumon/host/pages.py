"""The port to page placement: which NUMA node holds a page of another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Pages(Protocol):
    """Query of page placement (``move_pages(2)`` with no target nodes: it moves nothing)."""

    def nodes(self, pid: int, addresses: Sequence[int]) -> list[int | None]:
        """NUMA node of the page at each address; None where no page is present.

        Raises host.files.ReadError: DENIED without ptrace access to the process, UNAVAILABLE when it is gone,
        UNSUPPORTED on a kernel without NUMA.
        """
        ...
