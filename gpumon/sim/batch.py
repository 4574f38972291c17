"""The requests of one simulated server: queue, KV cache, prefill and batch.

Requests wait, are admitted while batch and KV cache have room, go through chunked prefill, and then get a token in
every step until they end; when the cache runs full, the newest is preempted and computed again. All requests of a batch
get their tokens at the same moments, so a request only remembers which steps were its own. Times are seconds of the
story; those of a FinishedRequest are steady.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from gpumon.sim.accounts import Accounts
from gpumon.sim.arrivals import Request
from gpumon.sim.costs import Costs
from gpumon.sim.scenario import ServerSpec
from gpumon.sim.state import FinishedRequest
from gpumon.sim.truth import INDEX, named

_MOST_WAITING = 4_096
_PATIENCE_S = 120.0  # after which a client that waits gives up
_ADMIT_SHARE = 0.98  # of the KV cache, up to which requests are admitted
_LEAST_CHUNK = 16
_TRIM_STEPS = 256
_KV, _QUEUE = INDEX["kv_pressure"], INDEX["queueing"]


class Batch:
    """See the module."""

    def __init__(self, spec: ServerSpec, index: int, costs: Costs, accounts: Accounts, shift_s: float) -> None:
        """``shift_s``: steady time at which the story begins."""
        self.running: dict[int, Request] = {}
        """By number; the newest is the last."""
        self.prefilling: deque[Request] = deque()
        self.waiting: deque[Request] = deque()
        self.context = 0
        """Tokens in the KV cache that belong to running requests."""
        self.usable = float(spec.kv_capacity_tokens)
        """Tokens that the KV cache can hold now."""
        self.blocked = _QUEUE
        """What those that wait are waiting for: index of a cause."""
        self.finished: list[FinishedRequest] = []
        """Since the caller last emptied it."""
        self.preempted = self.generated = self.prompt = self.hit = 0
        """Counters: preemptions, tokens made, prompt tokens, and those of them found in the prefix cache."""
        self._spec = spec
        self._index = index
        self._costs = costs
        self._accounts = accounts
        self._shift_s = shift_s
        self._coming: deque[Request] = deque()
        self._number = 0
        self._held = 0  # as context, of those in prefill: their blocks are taken at admission
        self._step = 0  # number of the next step
        self._ends: list[float] = []  # of steps, steady time, from step _base on
        self._base = 0
        self._due: list[tuple[int, int]] = []  # heap: last step and number of running requests

    @property
    def live(self) -> int:
        """Tokens in the KV cache."""
        return self.context + self._held

    @property
    def next_s(self) -> float | None:
        """When the next request of this tick comes."""
        return self._coming[0].start_s if self._coming else None

    # --- the queue ----------------------------------------------------------------------------------------------------

    def expect(self, requests: Iterable[Request]) -> None:
        """Requests of the tick that begins, by time."""
        for request in requests:
            request.number = self._number
            self._number += 1
            self._coming.append(request)

    def receive(self, until_s: float) -> None:
        """Take into the queue what has come by now."""
        coming = self._coming
        while coming and coming[0].start_s <= until_s:
            request = coming.popleft()
            self._accounts.came(request)
            if len(self.waiting) < _MOST_WAITING:
                self.waiting.append(request)
            else:
                self._end(request, request.start_s, "error")

    def admit(self, at_s: float) -> None:
        """Move from the queue into prefill what fits."""
        waiting, most = self.waiting, self._spec.max_batch
        while waiting:
            request = waiting[0]
            if at_s - request.start_s > _PATIENCE_S and not request.segments:
                self._end(waiting.popleft(), at_s, "aborted")
                continue
            length = request.prompt + request.made
            if len(self.running) + len(self.prefilling) >= most:
                self.blocked = _QUEUE
                return
            if self.live + length > _ADMIT_SHARE * self.usable:
                if self.running or self.prefilling:
                    self.blocked = _KV
                    return
                # It will not fit however long it waits.
                self._end(waiting.popleft(), at_s, "error")
                continue
            waiting.popleft()
            cached = 0
            if request.made == 0:
                request.admitted_s = at_s
                cached = request.cached
                self._accounts.admitted(request)
                self.prompt += length
                self.hit += cached
            request.done, request.todo = cached, length - cached
            self._held += length
            self.prefilling.append(request)

    def give_up(self, at_s: float, patience_s: float) -> None:
        """Those who have waited longer fail."""
        while self.waiting and at_s - self.waiting[0].start_s > patience_s:
            self._end(self.waiting.popleft(), at_s, "error")

    # --- a step -------------------------------------------------------------------------------------------------------

    def fill(self) -> tuple[int, float]:
        """Give the step its share of prompts: tokens, and the sum over them of the context before each."""
        left = max(self._spec.prefill_chunk_tokens - len(self.running), _LEAST_CHUNK)
        tokens, attended, costs = 0, 0.0, self._costs
        for request in self.prefilling:
            take = min(left, request.todo)
            weighed = take * (request.done + take / 2)
            request.done += take
            request.todo -= take
            request.own_s += (take * costs.token_s + weighed * costs.attention_s) * costs.unevenness
            tokens += take
            attended += weighed
            left -= take
            if not left:
                break
        return tokens, attended

    def give(self, end_s: float) -> None:
        """The step is over: everyone in the batch has a token more."""
        step, running, due = self._step, self.running, self._due
        self._step = step + 1
        self._ends.append(end_s + self._shift_s)
        self.context += len(running)
        self.generated += len(running)
        while self.prefilling and not self.prefilling[0].todo:
            self._start(self.prefilling.popleft(), step, end_s)
        while due and due[0][0] <= step:
            last, number = heappop(due)
            request = running.get(number)
            # One that was preempted has left its old place in the heap.
            if request is not None and request.segments[-1][1] == last + 1:
                del running[number]
                self.context -= request.prompt + request.wanted
                self._end(request, end_s, "ok")
        while self.live > self.usable and len(running) > 1:
            self._preempt(running.popitem()[1], end_s)
        if not self._step % _TRIM_STEPS:
            self._trim()

    def fail(self, at_s: float) -> None:
        """The process is gone, and its requests with it."""
        for request in (*self.running.values(), *self.prefilling):
            self._end(request, max(at_s, request.first_s, request.start_s), "error")
        self.running.clear()
        self.prefilling.clear()
        self._due.clear()
        self.context = self._held = 0

    def _start(self, request: Request, step: int, end_s: float) -> None:
        """Prefill is over: the first token, or after a preemption the next one."""
        length = request.prompt + request.made
        self._held -= length
        self.context += length + 1
        self.generated += 1
        if request.made == 0:
            request.first_s = end_s
            self._accounts.first(request, end_s)
        else:
            self._accounts.resumed(request, end_s)
        last = step + request.wanted - request.made - 1
        request.segments.append((step, last + 1))
        self.running[request.number] = request
        heappush(self._due, (last, request.number))

    def _preempt(self, request: Request, end_s: float) -> None:
        first, _ = request.segments[-1]
        request.segments[-1] = (first, self._step)
        request.made += self._step - first
        self.context -= request.prompt + request.made
        self.preempted += 1
        self._accounts.preempted(request, end_s)
        self.waiting.appendleft(request)

    def _end(self, request: Request, at_s: float, outcome: str) -> None:
        shift_s, base, ends = self._shift_s, self._base, self._ends
        tokens: list[float] = []
        for first, after in request.segments:
            tokens += ends[first - base : min(after, self._step) - base]
        admitted_s = request.admitted_s if request.admitted_s >= request.start_s else at_s
        self.finished.append(
            FinishedRequest(
                server=self._index,
                number=request.number,
                start_s=request.start_s + shift_s,
                queue_s=max(0.0, admitted_s - request.start_s),
                prefill_s=max(0.0, (request.first_s if tokens else at_s) - admitted_s),
                token_s=tuple(tokens),
                end_s=tokens[-1] if outcome == "ok" else max(at_s + shift_s, *tokens[-1:], request.start_s + shift_s),
                prompt_tokens=request.prompt,
                cached_tokens=request.cached,
                outcome=outcome,
                tenant=request.tenant,
                parameters=request.parameters,
                prompt_group=request.group,
                score=request.score if outcome == "ok" else None,
                truth=named(self._accounts.total(request)) if tokens else (),
                first_truth=named(request.first_truth) if tokens else (),
            )
        )

    def _trim(self) -> None:
        """Forget the steps that no request needs any more."""
        oldest = min(
            [
                request.segments[0][0]
                for group in (self.running.values(), self.waiting, self.prefilling)
                for request in group
                if request.segments
            ],
            default=self._step,
        )
        del self._ends[: oldest - self._base]
        self._base = oldest
