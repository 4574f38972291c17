"""Run-queue wait of a whole process, as one counter that only grows though its threads come and go.

The kernel counts the wait per thread (/proc/<pid>/task/<tid>/schedstat) and forgets it when the thread ends. So the
growth of each thread is added up from pass to pass; what a thread waited between the last pass and its end is lost,
which makes the counter a lower bound. Pure: nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class RunQueueCounter:
    """Sum over the threads of one process, nanoseconds."""

    def __init__(self) -> None:
        self._last_ns: dict[int, int] = {}
        self._partial = False
        self.total_ns = 0

    def update(self, waits_ns: Mapping[int, int], listed: Iterable[int], *, partial: bool) -> None:
        """Take the readings of one pass.

        waits_ns: what was read, by thread. listed: all threads that were asked, also those that could not be read:
        they stay known, so that a thread that is read again later is not added twice. partial: the process has more
        threads than were asked.
        """
        for tid, wait_ns in waits_ns.items():
            before_ns = self._last_ns.get(tid)
            if before_ns is None:
                # A thread seen first counts from its start, except where it may have been there all along unasked:
                # then what it waited so far belongs to no interval of ours.
                self.total_ns += 0 if self._partial else wait_ns
            elif wait_ns >= before_ns:
                self.total_ns += wait_ns - before_ns
            else:  # another thread by the same number
                self.total_ns += wait_ns
        known = self._last_ns | dict(waits_ns)
        self._last_ns = {tid: known[tid] for tid in listed if tid in known}
        self._partial = partial
