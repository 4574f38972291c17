"""The processes of the simulated host as its files look them up: by pid, by pod, and their threads."""

from __future__ import annotations

from gpumon.sim.world import Task, World

_FIRST_TID = 200_000
_MAIN_SHARE = 0.6  # of a process's CPU time; the other threads have the rest in equal parts


class Living:
    """The processes alive in a stretch of time in which none comes or goes."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        self.tasks = tasks
        self.by_pid = {task.pid: task for task in tasks}
        self.by_pod: dict[str, list[Task]] = {}
        """By key of the pod; only pods that have a process."""
        for task in tasks:
            if task.server:
                self.by_pod.setdefault(task.server, []).append(task)


class Census:
    """Who is alive when; remembers the last answer. May be shared by threads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last = Living(())

    def at(self, at_s: float) -> Living:
        """The processes alive at a steady second."""
        tasks, last = self._world.tasks(at_s), self._last
        # The world hands out the same tuple as long as nothing changes.
        if tasks is not last.tasks:
            last = self._last = Living(tasks)
        return last


def thread_ids(task: Task) -> range:
    """Thread ids but the main thread's, which is the pid; the next hundred and fifty are no other process's."""
    first = _FIRST_TID + task.pid % 10_000 * 150
    return range(first, first + task.threads - 1)


def thread_share(task: Task, tid: int | None) -> float | None:
    """Of the process's CPU time, by thread; None where it has no such thread. tid: None for the main thread."""
    if tid is None or tid == task.pid:
        return 1.0 if task.threads == 1 else _MAIN_SHARE
    return (1 - _MAIN_SHARE) / (task.threads - 1) if tid in thread_ids(task) else None
