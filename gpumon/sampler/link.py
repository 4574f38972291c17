"""The main process's end of the sampler: starts it, listens to it, and replaces it when it dies or falls silent.

The sampler may hang, crash or be killed at any moment; this side never waits for it longer than STOP_S. One thread
does everything here: it owns the process, its ring and its channel. Other threads only leave wishes (release,
acquire, another plan, stop) and wake it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence

from gpumon import catalogue
from gpumon.host.clock import Clock
from gpumon.host.interpreter import module_environment
from gpumon.model import GpuUuid, Reason, Sample
from gpumon.sampler.child import EXIT_NEW_PROCESS
from gpumon.sampler.handover import SLOTS, Handover, Plan
from gpumon.sampler.hearing import Hearing, Listener
from gpumon.sampler.ring import Ring, Row
from gpumon.sampler.wire import Channel, pair
from gpumon.sources.gpu_fast import Column

log = logging.getLogger(__name__)

RING_SECONDS = 15.0
STOP_S = 3.0
KILL_S = 1.0
"""A killed process is gone by then, unless it hangs in the driver; nobody waits for it then."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 60.0
STABLE_S = 60.0
"""A sampler that lived this long is replaced at once the next time."""
LATE_S = 1.0
"""The heart beats five times a second, and a busy machine may make it wait."""
FIRST_ROWS_S = 0.05
"""The GPUs have given their first rows this long after NVML was opened: no reason to wait for the next round."""
PATIENCE_MOST = 8
"""A sampler that falls silent before NVML is open gets up to this many times as long the next time: the first call to
a GPU without persistence mode may take half a minute."""


class SamplerLink:
    """One sampler process after another."""

    def __init__(
        self,
        command: Sequence[str],
        options: dict[str, str],
        plan: Plan,
        clock: Clock,
        listener: Listener,
        *,
        publish_s: float = 1.0,
        restart_after_s: float = 30.0,
        requests_open: Callable[[GpuUuid], bool] | None = None,
        rows: Callable[[GpuUuid, Sequence[Row]], None] | None = None,
    ) -> None:
        """``command``: interpreter and module. ``restart_after_s``: a sampler silent for longer is killed.

        ``rows``: see ``Hearing``; called in the link's thread.
        """
        self._command = tuple(command)
        self._options = options
        self._clock = clock
        self._listener = listener
        self._hearing = Hearing(listener, clock, requests_open, rows)
        # Wishes: written by any thread, taken by the link's.
        self._wishes = threading.Condition()
        self._plan = plan
        self._publish_s = publish_s
        self._restart_after_s = restart_after_s
        self._wanted = True
        self._hurry = False
        self._stop = False
        # The link thread's own. Others may look at _process.
        self._process: subprocess.Popen[bytes] | None = None
        self._process_plan = plan
        self._ring: Ring | None = None
        self._channel: Channel | None = None
        self._past: list[subprocess.Popen[bytes]] = []
        """Killed, and not gone yet."""
        self._started_at_s = 0.0
        self._next_start_at_s = 0.0
        self._pause_s = PAUSE_MIN_S
        self._patience = 1
        self._restarts = dict.fromkeys(catalogue.SAMPLER_RESTARTS.values, 0)
        self._complaint = ""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None

    # --- for any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the sampler and the thread that tends it."""
        self._thread = threading.Thread(target=self._run, name="sampler-link", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampler in order, or after STOP_S by force. For good."""
        with self._wishes:
            self._stop = True
        self._wake()
        if self._thread is not None:
            self._thread.join(STOP_S + KILL_S + 1.0)
        with self._wishes:
            if not (self._thread is not None and self._thread.is_alive()) and self._wake_fd >= 0:
                os.close(self._wake_fd)
                self._wake_fd = -1

    def release(self) -> None:
        """Let go of NVML (a GPU reset, a MIG change, a driver unload need that) until ``acquire``.

        Returns when the sampler has ended, or has been killed STOP_S after it was asked to.
        """
        with self._wishes:
            self._wanted = False
            self._wake()
            if self._thread is not None:
                self._wishes.wait_for(lambda: self.state == "released" or self._wanted, STOP_S + KILL_S + 1.0)

    def acquire(self) -> None:
        """Take NVML again after ``release``, without the pause that earlier failures may have earned."""
        with self._wishes:
            self._wanted = self._hurry = True
        self._wake()

    def reconfigure(self, plan: Plan, publish_s: float, restart_after_s: float) -> None:
        """Go on with another plan: a new sampler process, the same totals."""
        with self._wishes:
            self._plan = plan
            self._publish_s = publish_s
            self._restart_after_s = restart_after_s
        self._wake()

    @property
    def pid(self) -> int | None:
        """Process id of the sampler, None while there is none."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def state(self) -> str:
        """One of catalogue.NVML_STATE's values."""
        return self._hearing.state

    def _wake(self) -> None:
        with self._wishes:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    # --- the link's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            due_s = self._clock.now_s() + self._publish_s
            self._guarded(lambda: self.tend(self._clock.now_s()))
            self._listen(due_s)
        self._guarded(self._end_process)
        with self._wishes:
            self._wishes.notify_all()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # this thread's loop: a bug must not leave the node without its sampler
            if repr(error) != self._complaint:
                self._complaint = repr(error)
                log.exception("sampler-link=bug detail='said once'")

    def tend(self, at_s: float) -> None:
        """One round: start, end or replace the sampler, drain the ring, publish."""
        with self._wishes:
            wanted, plan, hurry, self._hurry = self._wanted, self._plan, self._hurry, False
        self._past = [process for process in self._past if process.poll() is None]
        if hurry:
            self._pause_s = PAUSE_MIN_S
            self._next_start_at_s = at_s
        process = self._process
        if process is not None and (status := process.poll()) is not None:
            reason = "driver" if status == EXIT_NEW_PROCESS else "exited"
            self._replace(reason, at_s, f"exit status {status}")
        elif process is not None and (not wanted or plan != self._process_plan):
            self._end_process()
        elif process is not None:
            self._look_for_life(at_s)
        if not wanted and self._process is None and self.state != "released":
            self._hearing.tell_state("released", Reason.UNAVAILABLE, "released")
        if wanted and self._process is None and at_s >= self._next_start_at_s:
            self._begin_process(at_s, plan)
        if self._ring is not None:
            self._hearing.drain(self._ring, at_s, self._fast_ttl_s)
        self._publish(at_s)
        with self._wishes:
            self._wishes.notify_all()

    def _publish(self, at_s: float) -> None:
        self._listener.put("sampler", at_s, list(self._own_samples()), 10 * self._publish_s + 5.0)

    def _listen(self, due_s: float) -> None:
        """Take messages until it is time for the next round, or somebody wakes us, or the process is gone."""
        if self._process is None:
            due_s = min(due_s, max(self._next_start_at_s, self._clock.now_s())) if self._wanted else due_s
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if self._channel is not None:
            poll.register(self._channel.fileno(), select.POLLIN)
        while not self._stop and (left_s := due_s - self._clock.now_s()) > 0:
            ready = [fd for fd, _ in poll.poll(left_s * 1000)]
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
                return
            before = self.state
            if ready and not self._hear_one():
                return
            if self._hearing.news:
                self._guarded(lambda: self._publish(self._clock.now_s()))
            if self.state != before == "starting":
                due_s = min(due_s, self._clock.now_s() + FIRST_ROWS_S)

    def _hear_one(self) -> bool:
        """Take one message; False when there is none, or will never be one."""
        channel, process = self._channel, self._process
        if channel is None or process is None:
            return False
        try:
            message = channel.receive(wait=False)
        except BlockingIOError:
            return False
        if message is None:
            try:
                process.wait(KILL_S)  # its end of the channel closed because it ends
            except subprocess.TimeoutExpired:
                process.kill()
            return False
        self._guarded(lambda: self._hearing.hear(*message))
        if self.state == "running":
            self._patience = 1
        return True

    # --- the process ----------------------------------------------------------------------------------------------

    def _begin_process(self, at_s: float, plan: Plan) -> None:
        try:
            with contextlib.ExitStack() as undo:
                ours, theirs = pair()
                undo.callback(ours.close)
                with theirs:
                    ring = Ring.create(SLOTS, max(16, int(RING_SECONDS / plan.fast_s)), len(Column))
                    undo.callback(ring.close)
                    handover = Handover(ring.fd, theirs.fileno(), plan, self._options)
                    process = subprocess.Popen(
                        [*self._command, handover.to_argument()],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=(ring.fd, theirs.fileno()),
                        env=module_environment(os.environ),
                        start_new_session=True,  # a terminal's ^C goes to the main process alone
                    )
                undo.pop_all()
        except OSError as error:
            self._put_off(at_s, f"cannot start {self._command[0]}: {error.strerror or error}")
            self._hearing.tell_state("unavailable", Reason.UNAVAILABLE, f"the sampler cannot be started: {error}")
            return
        self._ring, self._channel, self._started_at_s = ring, Channel(ours), at_s
        self._process, self._process_plan = process, plan
        self._hearing.begin(plan)
        log.info("sampler=started pid=%d", process.pid)

    def _look_for_life(self, at_s: float) -> None:
        assert self._ring is not None
        assert self._process is not None
        silent_s = at_s - max(self._ring.heartbeat_ns / 1e9, self._started_at_s)
        detail = f"no sign of life for {silent_s:.1f} s"
        stuck_after_s = self._process_plan.stuck_after_s + LATE_S
        if silent_s > self._restart_after_s * self._patience:
            self._patience = min(2 * self._patience, PATIENCE_MOST)
            self._kill(self._process)
            self._replace("stuck", at_s, detail)
        elif silent_s > stuck_after_s and self.state == "running":
            log.warning("sampler=silent detail=%r", detail)
            self._hearing.tell_state("stuck", Reason.TIMEOUT, detail)
        elif silent_s <= stuck_after_s and self.state == "stuck":
            log.info("sampler=back")
            self._hearing.tell_state("running", Reason.TIMEOUT, "")

    def _replace(self, reason: str, at_s: float, detail: str) -> None:
        self._restarts[reason] += 1
        if at_s - self._started_at_s >= STABLE_S:
            self._pause_s = PAUSE_MIN_S
        self._put_off(at_s, f"{reason}: {detail}")
        self._forget_process()
        detail = f"the sampler ended: {detail}"
        if reason == "stuck":
            self._hearing.tell_state("stuck", Reason.TIMEOUT, detail)
        elif not self._hearing.spoke:
            self._hearing.tell_state("unavailable", Reason.UNAVAILABLE, detail)
        elif self.state != "unavailable":  # else the reason has been told already
            self._hearing.tell_state("starting", Reason.UNAVAILABLE, detail)

    def _put_off(self, at_s: float, detail: str) -> None:
        self._next_start_at_s = at_s + self._pause_s
        log.warning("sampler=ended detail=%r restart_in_s=%.1f", detail, self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)

    def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("sampler=killed pid=%d detail='did not end in %g s'", process.pid, STOP_S)
            self._kill(process)
        self._forget_process()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        try:
            process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self._past.append(process)  # it hangs in the driver, and ends when the call returns

    def _forget_process(self) -> None:
        """Hear its last words, then drop what it said."""
        while self._hear_one():
            continue
        ring, channel = self._ring, self._channel
        self._ring = self._channel = None
        if ring is not None:
            self._guarded(lambda: self._hearing.drain(ring, self._clock.now_s(), self._fast_ttl_s))
            ring.close()
        if channel is not None:
            channel.close()
        self._hearing.end()
        with self._wishes:
            self._process = None

    @property
    def _fast_ttl_s(self) -> float:
        return 3 * max(self._publish_s, self._process_plan.fast_s)

    def _own_samples(self) -> Iterator[Sample]:
        for reason, count in self._restarts.items():
            yield Sample(catalogue.SAMPLER_RESTARTS, (reason,), float(count))
        yield from self._hearing.samples()
