"""The true account of one server: what made its steps, queue and prefills longer, and longer than what.

What hardware and host take is exact: the factors are known. What load takes is measured against the server's steady
reference: batch, context, prefill and waits as they are while nothing is wrong, a slow mean that stands still while
something is, and until the server has recovered. A batch or a context counts as grown only then, a prefill among the
decoding always. What grows because the hardware is slow counts for what made it slow. Seconds; causes are indices into
CAUSES.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpumon.sim.arrivals import Request
from gpumon.sim.costs import Costs
from gpumon.sim.effects import ServerEffects
from gpumon.sim.faults import CAUSES
from gpumon.sim.physics import TICK_S
from gpumon.sim.truth import INDEX, Ledger, between

_GROWN = 1.25  # times its reference, from where on a batch or a context counts as grown
_LONG = 1.5  # the same of a request's own prefill, and of what it waits for others' in its midst
_SLOWLY = 0.005  # per tick: the reference follows within twenty seconds
_BLAMED_SHARE = 0.05  # of a tick's time, from where on slow hardware is blamed for queues
_CALM_TICKS = 20
_GIVEN_UP_TICKS = 600  # what has not gone by then is the new normal
_LEAST_S = 0.01

_KV, _BATCH, _PREFILL, _CONTEXT, _QUEUE = (
    INDEX[cause] for cause in ("kv_pressure", "batch_growth", "prefill_interference", "long_context", "queueing")
)
_OF_LOAD = frozenset((_KV, _BATCH, _PREFILL, _CONTEXT, _QUEUE))
_OF_HARDWARE = tuple([index for index in range(len(CAUSES)) if index not in _OF_LOAD])


class Accounts:
    """See the module."""

    def __init__(self, costs: Costs) -> None:
        self.ledger = Ledger()
        self._costs = costs
        self._waits = [0.0] * len(CAUSES)  # time in which anything waited, by cause
        # The reference.
        self._batch = 1.0
        self._context = 0.0  # per running request
        self._prefill_s = 0.0  # per step
        self._step_s = 0.02
        self._wait_s = 0.0
        self._own_s = 0.0
        self._rest_s = 0.0
        self._ticks = 0
        self._first_tokens = 0
        # This tick.
        self._steps = 0
        self._sum_batch = self._sum_context = 0
        self._sum_prefill_s = self._sum_gpu_s = 0.0
        self._hard_s = self._worst_s = 0.0
        self._worst = _QUEUE
        # Whether something is wrong.
        self._disturbed = False
        self._grows = False  # its batch or contexts, by a fault
        self._calm = 0
        self._blame: int | None = None

    # --- steps --------------------------------------------------------------------------------------------------------

    def load(self, batch: int, context: int, tokens: int, gpu_s: float, moved_s: float) -> None:
        """A step begins: requests decoding, tokens of their context, prompt tokens, GPU time on healthy hardware.

        moved_s: what reducing and copying the prompt tokens takes on top, likewise.
        """
        self._steps += 1
        self._sum_batch += batch
        self._sum_context += context
        self._sum_gpu_s += gpu_s
        if not batch:
            return
        sums = self.ledger.sums
        if tokens:
            prefill_s = gpu_s - self._decode_s(batch, context) + moved_s
            self._sum_prefill_s += prefill_s
            if prefill_s > self._prefill_s:
                sums[_PREFILL] += prefill_s - self._prefill_s
        if not self._grows:
            return
        usual = self._context
        blame = self._blame
        # Behind slow hardware a batch grows by little, and every bit of it is known: counted up and down.
        if blame is not None or batch > _GROWN * self._batch + 1:
            each = min(usual, context / batch)
            grown_s = self._decode_s(batch, each * batch) - self._decode_s(self._batch, each * self._batch)
            sums[_BATCH if blame is None else blame] += grown_s
        if context > _GROWN * usual * batch:
            sums[_CONTEXT] += self._decode_s(batch, context) - self._decode_s(batch, usual * batch)

    def slow(self, shares: Iterable[tuple[int, float]], seconds: float) -> None:
        """Part of the step took longer, through several causes at once."""
        for cause, share in shares:
            self.late(cause, share * seconds)

    def late(self, cause: int, seconds: float) -> None:
        """The step took longer, through one cause."""
        self.ledger.sums[cause] += seconds
        self._hard_s += seconds
        if seconds > self._worst_s:
            self._worst_s, self._worst = seconds, cause

    def wait(self, cause: int, seconds: float) -> None:
        """Requests waited in the queue; ``cause`` counts unless slow hardware is to blame."""
        if self._blame is not None and cause in _OF_LOAD:
            cause = self._blame
        self._waits[cause] += seconds

    def gone(self, cause: int) -> None:
        """A tick without the process; what waits, waits for its return."""
        self._waits[cause] += TICK_S
        self._disturbed, self._grows, self._calm, self._blame = True, False, 0, None

    def close(self, effects: ServerEffects, running: int, waiting: int) -> None:
        """A tick is over."""
        hard = self._hard_s > 0
        if effects.load_fault or hard:
            self._disturbed, self._calm = True, 0
            if effects.load_fault:
                self._grows, self._blame = True, None
            elif self._hard_s > _BLAMED_SHARE * TICK_S:
                self._grows, self._blame = True, self._worst
        elif self._disturbed:
            self._calm += 1
            recovered = self._calm >= _CALM_TICKS and not waiting and running <= _GROWN * self._batch + 1
            if recovered or self._calm >= _GIVEN_UP_TICKS:
                self._disturbed, self._grows, self._blame = False, False, None
        if self._steps and not self._disturbed:
            self._follow()
        self._steps = self._sum_batch = self._sum_context = 0
        self._sum_prefill_s = self._sum_gpu_s = self._hard_s = self._worst_s = 0.0

    def _follow(self) -> None:
        self._ticks += 1
        share = max(_SLOWLY, 1 / self._ticks)
        steps = self._steps
        self._batch += share * (self._sum_batch / steps - self._batch)
        self._prefill_s += share * (self._sum_prefill_s / steps - self._prefill_s)
        self._step_s += share * (self._sum_gpu_s / steps - self._step_s)
        if self._sum_batch:
            self._context += share * (self._sum_context / self._sum_batch - self._context)

    def _decode_s(self, batch: float, context: float) -> float:
        costs = self._costs
        read_s = costs.weights_s[int(batch + 0.5)] + context * costs.context_s
        compute_s = batch * costs.token_s
        return (read_s if read_s > compute_s else compute_s) * costs.unevenness

    # --- requests -----------------------------------------------------------------------------------------------------

    def came(self, request: Request) -> None:
        """A request joins the queue."""
        request.wait_mark = self._waits.copy()

    def admitted(self, request: Request) -> None:
        """It leaves the queue for the first time."""
        request.mark = self.ledger.snapshot()
        request.waits = between(request.wait_mark, self._waits)

    def first(self, request: Request, end_s: float) -> None:
        """It gets its first token."""
        now = self.ledger.snapshot()
        truth = [0.0] * len(CAUSES)
        wait_s = request.admitted_s - request.start_s
        over_s = wait_s - self._wait_s - 2 * self._step_s
        waits = request.waits
        if over_s > 0 and (whole_s := sum(waits)) > 0:
            truth = [over_s * part / whole_s for part in waits]
        hardware_s = 0.0
        for cause in _OF_HARDWARE:
            part_s = now[cause] - request.mark[cause]
            truth[cause] += part_s
            hardware_s += part_s
        own_s = request.own_s
        if own_s > _LONG * self._own_s:
            truth[_CONTEXT] += own_s - self._own_s
        rest_s = end_s - request.admitted_s - own_s - hardware_s
        if rest_s > _LONG * self._rest_s + _LEAST_S:
            truth[_PREFILL] += rest_s - self._rest_s
        request.first_truth = truth
        request.mark = now
        if not self._disturbed:
            self._first_tokens += 1
            share = max(0.02, 1 / self._first_tokens)
            self._wait_s += share * (wait_s - self._wait_s)
            self._own_s += share * (own_s - self._own_s)
            self._rest_s += share * (rest_s - self._rest_s)

    def preempted(self, request: Request, at_s: float) -> None:
        """Its blocks are taken away."""
        self._keep(request)
        request.paused_s = at_s

    def resumed(self, request: Request, end_s: float) -> None:
        """It gets its first token after that."""
        assert request.alone is not None
        assert request.paused_s is not None
        request.alone[_KV] += max(0.0, end_s - request.paused_s - self._step_s)
        request.paused_s = None
        request.mark = self.ledger.snapshot()

    def total(self, request: Request) -> list[float]:
        """True excess over its gaps, up to now; of a request that has had a token."""
        if request.paused_s is None:
            self._keep(request)
        return request.alone or []

    def _keep(self, request: Request) -> None:
        found = between(request.mark, self.ledger.sums)
        alone = request.alone
        request.alone = found if alone is None else [old + new for old, new in zip(alone, found, strict=True)]
