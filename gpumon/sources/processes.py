"""What the host does to the watched processes: page faults, CPU, waits for a CPU, memory, cgroup limits and stalls.

Every pass reads /proc/<pid>/stat on a kept descriptor, about 6 us a process. The rest is read every ``slow_s`` and
repeated until then: statm, the cgroup's cpu.stat and PSI files, and the run-queue wait of all threads, whose cost is
bounded per pass (a server has hundreds of threads, 10 us each): who finds the budget spent waits for the next pass.
Where the cgroup is, is asked every ``cgroup_s``. Counters are the kernel's own totals, but for the time a process is
stopped (SIGSTOP, a debugger), which is summed from its state at every pass. Needs no privilege but the sight of the
processes (hidepid, hostPID) and of the host's cgroup tree.

A process that ended, or whose number now belongs to another, is one miss and then silence until the targets change.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gpumon import catalogue
from gpumon.host.files import Files, ReadError
from gpumon.model import Item, Miss, Pid, Reason, Sample, SourceError
from gpumon.sources.cgroup import CgroupFolders
from gpumon.sources.cgroup_stats import CgroupStats, Value
from gpumon.sources.own_cgroup import OwnCgroup
from gpumon.sources.procfs import TICKS_PER_SECOND, Stat, parse_cgroup, parse_schedstat, parse_stat, parse_statm
from gpumon.sources.runqueue import RunQueueCounter
from gpumon.sources.targets import ENDED, Target, ended

_NO_FOLDERS = CgroupFolders((), ())
_STOPPED = frozenset("Tt")  # by a signal, by a tracer
_BUSY_TICKS = TICKS_PER_SECOND  # a process with this much CPU time has some in schedstat, if that counts at all


@dataclass(slots=True)
class _Watched:
    """What is remembered of a process from pass to pass."""

    slow_due_s: float
    threads_due_s: float
    cgroup_due_s: float
    folders: CgroupFolders = _NO_FOLDERS
    slow: list[Value] = field(default_factory=list)
    repeated: tuple[tuple[str, ...], list[Sample]] | None = None
    """``slow`` as samples, and for which labels; None until they are made."""
    runqueue: RunQueueCounter = field(default_factory=RunQueueCounter)
    runqueue_known: bool = False
    threads_over: bool = False
    ended: bool = False
    looked_s: float | None = None
    is_stopped: bool = False
    stopped_s: float = 0.0

    def note_state(self, state: str, at_s: float) -> None:
        """Half the time between two looks counts as the one found it, half as the other."""
        is_stopped = state in _STOPPED
        if self.looked_s is not None:
            self.stopped_s += (at_s - self.looked_s) * (is_stopped + self.is_stopped) / 2
        self.looked_s, self.is_stopped = at_s, is_stopped


class ProcessSource:
    """Source ``processes``.

    targets: the processes to watch now. limit: most of them; those with the most GPU memory are kept.
    slow_s, cgroup_s: periods of the slower readings, seconds. max_threads: most threads read of one process.
    thread_budget: threads after which no further process's are read in the same pass.
    """

    name = "processes"

    def __init__(
        self,
        files: Files,
        targets: Callable[[], Sequence[Target]],
        limit: int = 64,
        *,
        slow_s: float = 5.0,
        cgroup_s: float = 30.0,
        max_threads: int = 512,
        thread_budget: int = 512,
        page_bytes: int = mmap.PAGESIZE,
    ) -> None:
        self._files = files
        self._own_cgroup = OwnCgroup(files)
        self._targets = targets
        self._limit = limit
        self._slow_s = slow_s
        self._cgroup_s = cgroup_s
        self._max_threads = max_threads
        self._thread_budget = thread_budget
        self._page_bytes = page_bytes
        self._watched: dict[Pid, _Watched] = {}
        self._over_limit = False

    def read(self, at_s: float) -> Iterator[Item]:
        targets = self._targets()
        yield from self._account_for_limit(len(targets))
        if len(targets) > self._limit:
            targets = most_gpu_memory(targets, self._limit)
        before = self._watched
        self._watched = {t.pid: before.get(t.pid) or _Watched(at_s, at_s, at_s) for t in targets}
        cgroups = CgroupStats(self._files)
        alive: list[tuple[Target, _Watched, Stat]] = []
        for target in targets:
            watched = self._watched[target.pid]
            if watched.ended:
                continue
            stat = self._stat(target.pid)
            if isinstance(stat, Miss):
                watched.ended = stat.reason is Reason.ENDED
                yield stat
                continue
            watched.note_state(stat.state, at_s)
            alive.append((target, watched, stat))
            if at_s >= watched.slow_due_s:
                watched.slow_due_s = at_s + self._slow_s
                yield from self._read_slow(target.pid.number, watched, cgroups, at_s)
        yield from self._read_threads(alive, at_s)
        for target, watched, stat in alive:
            yield from _fast_samples(target.labels, watched, stat)
            yield from _slow_samples(target.labels, watched)
            if watched.runqueue_known:
                yield Sample(catalogue.PROCESS_RUNQUEUE_SECONDS, target.labels, watched.runqueue.total_ns / 1e9)

    def _account_for_limit(self, count: int) -> Iterator[Miss]:
        over = count > self._limit
        if over and not self._over_limit:
            detail = f"{count} to watch; the {self._limit} with the most GPU memory are watched"
            yield Miss("processes over the limit", Reason.UNAVAILABLE, detail)
        self._over_limit = over

    def _stat(self, pid: Pid) -> Stat | Miss:
        what = f"pid {pid.number}"
        try:
            stat = parse_stat(self._files.read(f"proc/{pid.number}/stat", keep=True))
        except (ReadError, SourceError) as err:
            return Miss(what, ended(err.reason), err.detail)
        if stat.start_ticks != pid.start_ticks:
            return Miss(what, Reason.ENDED, "the pid belongs to another process now")
        if stat.state in ENDED:
            return Miss(what, Reason.ENDED, "ended")
        return stat

    def _read_slow(self, number: int, watched: _Watched, cgroups: CgroupStats, at_s: float) -> Iterator[Miss]:
        watched.slow, watched.repeated = [], None
        try:
            pages = parse_statm(self._files.read(f"proc/{number}/statm", keep=True))
            watched.slow.append(Value(catalogue.PROCESS_RESIDENT, (), pages * self._page_bytes))
        except (ReadError, SourceError) as err:
            yield Miss(f"pid {number} statm", err.reason, err.detail)
        if at_s >= watched.cgroup_due_s:
            watched.cgroup_due_s = at_s + self._cgroup_s
            yield from self._locate_cgroup(number, watched, at_s)
        for item in cgroups.read(f"pid {number} cgroup", watched.folders):
            if isinstance(item, Miss):
                yield item
            else:
                watched.slow.append(item)

    def _locate_cgroup(self, number: int, watched: _Watched, at_s: float) -> Iterator[Miss]:
        watched.folders = _NO_FOLDERS
        try:
            lines = parse_cgroup(self._files.read(f"proc/{number}/cgroup"))
        except (ReadError, SourceError) as err:
            yield Miss(f"pid {number} cgroup", err.reason, err.detail)
            return
        watched.folders = self._own_cgroup.locate(lines, at_s)
        if watched.folders == _NO_FOLDERS:
            detail = "not in sight: the host's cgroup namespace is needed, or its whole cgroup tree mounted"
            yield Miss(f"pid {number} cgroup", Reason.DENIED, detail)

    def _read_threads(self, alive: Sequence[tuple[Target, _Watched, Stat]], at_s: float) -> Iterator[Miss]:
        due = [entry for entry in alive if at_s >= entry[1].threads_due_s]
        spent = 0
        for target, watched, stat in sorted(due, key=lambda entry: entry[1].threads_due_s):  # the longest overdue first
            if spent >= self._thread_budget:
                return
            watched.threads_due_s = at_s + self._slow_s
            spent += min(stat.threads, self._max_threads)
            yield from self._read_runqueue(target.pid.number, watched, stat)

    def _read_runqueue(self, number: int, watched: _Watched, stat: Stat) -> Iterator[Miss]:
        watched.runqueue_known = False
        try:
            tids = sorted(int(name) for name in self._files.list(f"proc/{number}/task") if name.isdecimal())
        except ReadError as err:
            yield Miss(f"pid {number} threads", err.reason, err.detail)
            return
        # The lowest numbers are mostly the oldest threads, so the choice is the same at every pass.
        asked = tids[: self._max_threads]
        over = len(tids) > len(asked)
        if over and not watched.threads_over:
            detail = f"{len(tids)} threads, {len(asked)} read"
            yield Miss(f"pid {number} threads over the limit", Reason.UNAVAILABLE, detail)
        watched.threads_over = over
        waits_ns: dict[int, int] = {}
        run_ns = 0
        failed: ReadError | SourceError | None = None
        for tid in asked:
            try:
                times = parse_schedstat(self._files.read(f"proc/{number}/task/{tid}/schedstat"))
            except (ReadError, SourceError) as err:
                if err.reason is not Reason.UNAVAILABLE:  # a thread may end at any time
                    failed = err
                continue
            waits_ns[tid] = times.wait_ns
            run_ns += times.run_ns
        if failed is not None:
            yield Miss(f"pid {number} schedstat", failed.reason, failed.detail)
        if not waits_ns:
            return
        if run_ns == 0 and stat.cpu_ticks >= _BUSY_TICKS:
            yield Miss(f"pid {number} schedstat", Reason.UNSUPPORTED, "the kernel counts nothing there")
            return
        watched.runqueue.update(waits_ns, asked, partial=over)
        watched.runqueue_known = True


def most_gpu_memory(targets: Sequence[Target], limit: int) -> list[Target]:
    """The ``limit`` targets that hold the most device memory, then by pid."""
    return sorted(targets, key=lambda target: (-target.gpu_bytes, target.pid))[:limit]


def _fast_samples(labels: tuple[str, ...], watched: _Watched, stat: Stat) -> list[Sample]:
    return [
        Sample(catalogue.PROCESS_PAGE_FAULTS, (*labels, "major"), float(stat.major_faults)),
        Sample(catalogue.PROCESS_PAGE_FAULTS, (*labels, "minor"), float(stat.minor_faults)),
        Sample(catalogue.PROCESS_CPU_SECONDS, labels, stat.cpu_ticks / TICKS_PER_SECOND),
        Sample(catalogue.PROCESS_STOPPED_SECONDS, labels, watched.stopped_s),
        Sample(catalogue.PROCESS_THREADS, labels, float(stat.threads)),
    ]


def _slow_samples(labels: tuple[str, ...], watched: _Watched) -> list[Sample]:
    """Made once for the passes in which they are repeated."""
    if watched.repeated is None or watched.repeated[0] != labels:
        samples = [Sample(metric, labels + extra, float(value)) for metric, extra, value in watched.slow]
        watched.repeated = (labels, samples)
    return watched.repeated[1]
