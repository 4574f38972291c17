"""What is kept of one group, and how its requests are explained: the arithmetic of ``steps``, ``expected``, ``shares``
and ``first_token`` put together.

Nothing in here reads the store: conditions come from the board, load from the requests themselves. Memory: about 0.8 MB
a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.board import CELL_S, Board, Conditions
from gpumon.explain.causes import INDEX, PROVEN
from gpumon.explain.explained import Account, Share, SlowGap
from gpumon.explain.first_token import BEFORE_S, Judged, Waited, judge, usually
from gpumon.explain.group import Group, Key
from gpumon.explain.learning import OVER_S, Learning, Stretches
from gpumon.explain.lift import Slowness, weight
from gpumon.explain.load import GroupLoad, Moments, Others, Ran
from gpumon.explain.prompt_pages import KEPT, PromptPages
from gpumon.explain.quantiles import medians
from gpumon.explain.shares import Array, Claims, divide, held_up
from gpumon.explain.signs import Fact
from gpumon.explain.steps import Slow, Steps, slow_of, steps_of
from gpumon.explain.telling import SlowGaps, Telling, gap_rows
from gpumon.explain.usual import Usual
from gpumon.model import RequestRecord, Unit

GROWN: Final = 1.25
"""Times the usual, from where on a batch or a context has grown."""
BY_CHANCE: Final = 2.0
"""The same while no more came."""
CAME: Final = 1.4
"""Times the usual arrivals, over half a minute, from where on more come."""
CAME_BY: Final = 3.0
"""Robust standard deviations over the usual, likewise."""
SLOW_GAPS: Final = 64
_BEHIND: Final = 0.5
_WAITS: Final = 0.5
"""Evidence of ``queueing``, from where on requests wait."""
_QUEUE_S: Final = 60.0
"""How far back a queue is followed."""
_FADES: Final = 0.98
_PAGE_S: Final = 15.0
"""Longest time between two readings of a server's page that matters."""
_ALONE_S: Final = 0.5
"""A gap in which one can tell whether others made tokens."""
_ALONE: Final = 8.0
_GOES_ON: Final = 0.3
_ASTRAY_S: Final = 1.0
"""By which token times may be outside of their request."""
_GROWTH, _LONG = INDEX["batch_growth"], INDEX["long_context"]
_PREFILL, _QUEUE = INDEX["prefill_interference"], INDEX["queueing"]
_NOTHING = Account(None, 0.0, 0.0, ())


class Due(NamedTuple):
    """A request to be explained."""

    record: RequestRecord
    ran: Ran


class Accounts(NamedTuple):
    """Of one request."""

    first_token: Account
    decode: Account
    slow_gaps: Sequence[SlowGap]


class _Around(NamedTuple):
    """What is the same for all requests explained at once."""

    board: Board
    keys: list[Key]
    others: Others
    lifts: dict[int, float]
    weights: Array
    conditions: Conditions
    """From some seconds before the first of them began until the last one ended."""
    when: tuple[float, float]
    """The same stretch."""


class GroupState:
    """Of one group. Not thread-safe."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.seen_s = 0.0
        self.load = GroupLoad()
        self._learning = Learning(self.load)
        self.usual = self._learning.usual
        self.expected = self._learning.expected
        self.slowness = Slowness()
        self.pages = PromptPages()
        self._learned_s = -np.inf
        """The step of detection at which it was last learned."""
        self._prompts = self._computed = 0.0
        """Tokens of prompts, and those of them that were computed; the older, the less."""

    def explain(
        self, due: Sequence[Due], board: Board, keys: list[Key], touched: Stretches, at_s: float
    ) -> list[Accounts] | None:
        """Accounts of requests that ended some seconds ago; None while too little is known to expect anything.

        keys: of what the group runs on. touched: stretches (steady seconds) in which an incident held on any of that.
        at_s: now. Learns what is usual from these same requests.
        """
        runs = [each.ran for each in due]
        steps = steps_of([each.record for each in due], runs)
        begin_s, end_s = min(ran.start_s for ran in runs), max(ran.end_s for ran in runs)
        others = self.load.others(begin_s - _PAGE_S, end_s + _PAGE_S)
        moments = self.load.moments((steps.starts_s + steps.ends_s) / 2)
        if at_s > self._learned_s:  # of more than are explained at once the first ones do
            self._learned_s = at_s
            self._prompts = _FADES * self._prompts + sum([ran.prompt for ran in runs])
            self._computed = _FADES * self._computed + sum([ran.computed for ran in runs])
            running, context = moments.running[moments.where], moments.context[moments.where]
            self._learning.steps(steps, running, context, others, at_s)
            self._learning.requests(runs, others, at_s)
            self._learning.settle(touched, at_s)
        if not self.expected.is_known:
            return None
        lifts = self.slowness.lifts(board, keys)
        weights = np.array([1.0 if cause in PROVEN else weight(lifts.get(INDEX[cause])) for cause in CAUSES])
        when = max(0.0, begin_s - BEFORE_S - _QUEUE_S), end_s + _ASTRAY_S
        around = _Around(board, keys, others, lifts, weights, board.conditions(keys, *when), when)
        decode = self._decode(due, steps, moments, around)
        first = self._first_tokens(due, around)
        return [Accounts(one, *two) for one, two in zip(first, decode, strict=True)]

    # --- between tokens -----------------------------------------------------------------------------------------------

    def _decode(
        self, due: Sequence[Due], steps: Steps, moments: Moments, around: _Around
    ) -> list[tuple[Account, Sequence[SlowGap]]]:
        expected = self._expected(steps, moments, around)
        whole_s, expected_s = expected.whole_s, expected.expected_s
        slow = slow_of(steps, expected_s)
        inside = np.flatnonzero(slow.members >= 0)
        which, where = slow.members[inside], moments.where[inside]
        running, mean = moments.running[where], (moments.context / moments.running)[where]
        count = len(slow.owners)
        load_s = np.zeros((count, len(CAUSES)))
        shorter_s, behind_s = expected.shorter_s(inside), expected.behind_s[inside]
        for cause, more_s in (
            ("batch_growth", shorter_s - expected_s[inside] - behind_s),
            ("long_context", whole_s[inside] - shorter_s),
        ):
            load_s[:, INDEX[cause]] = np.bincount(which, np.maximum(more_s, 0.0), count)[:count]
        tokens, lengths = around.others.between(steps.starts_s[inside], steps.ends_s[inside])
        cost_s = self.usual.token_s.at(np.maximum(lengths, 1.0))
        if cost_s is None:
            # Requests that are bound to nothing may be of many engines: their own prompts prove nothing of others.
            known = bool(self.group.gpus or self.group.pid or self.group.container)
            cost_s = np.full(len(tokens), self._learning.own_cost_s() if known else 0.0)
        # Whoever tells of its decoding as a whole has the usual prompts of others in what is expected of it.
        # As long as nobody knows how many those are, all of them are taken for usual.
        brought = self.usual.brought.value()
        usual = (brought if brought is not None else np.inf) * (steps.ends_s[inside] - steps.starts_s[inside])
        tokens = np.where(steps.counts[inside] > 1, np.maximum(tokens - usual, 0.0), tokens)
        prompts_s = np.bincount(which, tokens * cost_s, count)[:count]
        load_s[:, INDEX["prefill_interference"]] = prompts_s
        guess_s, longer_s = self.expected.guesses(running, running * mean, whole_s[inside])
        longer_s[_at_most(mean, self.usual.context, 0.0, grown=True) == mean] = 0.0
        evidence, lost, lost_s = self._conditions(slow.starts_s, slow.ends_s, around)
        excess_s = slow.excess_s
        # A full KV cache takes a request out of the batch. What all of them wait for is something else.
        evidence[~self._alone(slow), INDEX["kv_pressure"]] = 0.0
        shares_s = divide(
            Claims(
                excess_s=excess_s,
                expected_s=slow.expected_s,
                load_s=load_s,
                spare_s=self._unknown_prompts_s(slow, around),
                evidence=evidence,
                before=self._before(slow.ends_s, around),
                lost=lost,
                lost_s=lost_s,
                weights=around.weights,
                grown=self._grown(slow.ends_s),
                behind_s=_sums(which, behind_s, count),
                guess_s=_sums(which, guess_s, count),
                longer_s=_sums(which, longer_s, count),
            )
        )
        self._note_slowness(steps, whole_s, slow, inside, shares_s)
        usual_running, usual_context = self.usual.running.value(), self.usual.context.value()
        load = {
            _GROWTH: Fact("requests_decoding", 0.0, Unit.NONE, usual_running),
            _LONG: Fact("context_tokens", 0.0, Unit.NONE, usual_context),
            _PREFILL: Fact("prompt_tokens_of_others", 0.0, Unit.NONE),
        }
        telling = Telling.of(shares_s, load, around.lifts, around.board, around.keys, around.when)
        columns = (slow.starts_s, slow.ends_s, slow.tokens, slow.expected_s, excess_s)
        rows = gap_rows((*columns, *_figures(which, count, running, mean, tokens)), shares_s, evidence, telling)
        figures = np.stack(_figures(steps.owners[inside], len(due), running, mean, tokens), axis=1).tolist()
        edges = np.searchsorted(slow.owners, np.arange(len(due) + 1))
        shares = _by_request(np.add, shares_s[:, telling.causes], edges).tolist()
        greatest = _by_request(np.maximum, evidence[:, telling.causes], edges).tolist()
        sums_s = np.bincount(steps.owners, steps.lengths_s, len(due)).tolist()
        sums_expected_s = np.bincount(steps.owners, expected_s, len(due)).tolist()
        found: list[tuple[Account, Sequence[SlowGap]]] = []
        begin = 0
        for position, end in enumerate(edges[1:].tolist()):
            ran = due[position].ran
            told: tuple[Share, ...] = ()
            gaps: Sequence[SlowGap] = ()
            if end > begin:
                when = (ran.first_s, ran.end_s)
                told = telling.shares(shares[position], greatest[position], when, figures[position])
                gaps = SlowGaps(_slowest(rows[begin:end]), telling)
            found.append((_account(sums_expected_s[position], sums_s[position], told), gaps))
            begin = end
        return found

    def _unknown_prompts_s(self, slow: Slow, around: _Around) -> Array:
        """Of each slow stretch, what prompts of requests that still run can have cost it, beyond the known ones.

        All stretches of a request in one reading of the page share what that reading left.
        """
        share = self._computed / self._prompts if self._prompts else 1.0
        tokens, readings = self.pages.unknown(slow.ends_s, around.others, share)
        length = self.usual.computed.mean()
        cost_s = self.usual.token_s.at(np.array([max(length or 1.0, 1.0)]))
        if cost_s is None:
            return np.zeros(len(tokens))
        worth_s = tokens * float(cost_s[0])
        wanted_s = np.minimum(slow.excess_s, worth_s)
        _, places = np.unique(slow.owners * (KEPT + 1) + readings + 1, return_inverse=True)
        sums_s = np.bincount(places, wanted_s, 1)[places] if len(places) else wanted_s
        fits = np.divide(worth_s, sums_s, out=np.ones(len(sums_s)), where=sums_s > worth_s)
        return np.asarray(wanted_s * fits)

    def _expected(self, steps: Steps, moments: Moments, around: _Around) -> _Expected:
        """Worked out for each quarter of a second, of which there are few, and not for each step."""
        where, running, context = moments
        mean = context / running
        grown, behind, cells = self._moments(steps, around)
        whole_s = self.expected.gaps(running, context)
        shorter, expected = [], []
        for has_grown in (False, True):
            less_running = _at_most(running, self.usual.running, 1.0, grown=has_grown)
            less_mean = _at_most(mean, self.usual.context, 0.0, grown=has_grown)
            shorter.append(self.expected.gaps(running, running * less_mean))
            expected.append(np.minimum(self.expected.gaps(less_running, less_running * less_mean), whole_s))
        rows = 2 * where + grown[cells]
        found_s, every_s = np.stack(expected, axis=1).reshape(-1)[rows], whole_s[where]
        shorter_s = np.stack(shorter, axis=1).reshape(-1)
        behind_s = np.zeros(len(rows))
        # Behind a fault, what the batch has grown by is the fault's; else only what is more than usual counts.
        late = np.flatnonzero(behind[cells])
        if len(late):
            each_s = steps.lengths_s[late] / steps.counts[late]
            more = grown[cells[late]]
            means = [_at_most(mean, self.usual.context, 0.0, grown=has_grown) for has_grown in (False, True)]
            context_each = np.where(more, means[True][where[late]], means[False][where[late]])
            less = self._undisturbed(steps.owners[late], where[late], each_s, running, mean)
            less_s = self.expected.gaps(less, less * context_each)
            # A batch that is large still, once the fault is over, waited behind it; where more came, it is load.
            usual = _at_most(less, self.usual.running, 1.0, grown=True)
            usual_s = np.minimum(self.expected.gaps(usual, usual * context_each), less_s)
            found_s[late] = np.minimum(usual_s, every_s[late])
            faults_s = shorter_s[rows[late]] - np.maximum(less_s, found_s[late])
            behind_s[late] = np.where(more, np.maximum(faults_s, 0.0), 0.0)
        counts = steps.counts if len(steps.counts) and steps.counts.max() > 1 else None
        return _Expected(
            _times(every_s, counts), _times(found_s, counts), _times(behind_s, counts), shorter_s, rows, counts
        )

    def _undisturbed(
        self,
        owners: NDArray[np.intp],
        where: NDArray[np.intp],
        took_s: Array,
        running: Array,
        mean: Array,
    ) -> Array:
        """Of each step the batch as it would be without what slows it: by Little's law, smaller by the same factor.

        As many requests come, and each stays as much shorter as its steps are. By how much they are slower is the
        median over the steps of a request; since a smaller batch is faster, it takes a second look. where: of each step
        its place in running and mean.
        """
        # Steps of a request in the same quarter of a second are alike.
        fresh = np.diff(owners, prepend=-1) != 0
        firsts = np.flatnonzero(fresh | (np.diff(where, prepend=-1) != 0))
        times, at = np.diff(firsts, append=len(owners)), where[firsts]
        sizes = np.diff(np.flatnonzero(fresh), append=len(owners))
        request = np.cumsum(fresh)[firsts] - 1
        found = running[at]
        for _ in range(2):
            ratios = took_s / np.repeat(self.expected.gaps(found, found * mean[at]), times)
            found = np.maximum(running[at] / np.maximum(medians(ratios, sizes)[request], 1.0), 1.0)
        return np.repeat(found, times)

    def _note_slowness(
        self, steps: Steps, expected_s: Array, slow: Slow, inside: NDArray[np.intp], shares_s: Array
    ) -> None:
        """By how much steps are slower than they are under that very load, for the lift of conditions.

        Without what prompts of others explain. expected_s: of each step, with the batch and context that it had.
        inside: those of slow stretches.
        """
        lengths_s = steps.lengths_s
        over_s = lengths_s - expected_s
        prompts = np.divide(
            shares_s[:, INDEX["prefill_interference"]],
            slow.actual_s,
            out=np.zeros(len(slow.actual_s)),
            where=slow.actual_s > 0,
        )
        over_s[inside] -= lengths_s[inside] * prompts[slow.members[inside]]
        self.slowness.add(steps.ends_s, over_s, expected_s)

    # --- first tokens -------------------------------------------------------------------------------------------------

    def _first_tokens(self, due: Sequence[Due], around: _Around) -> list[Account]:
        chosen = [position for position, each in enumerate(due) if each.ran.first_s > each.ran.start_s]
        accounts = [_NOTHING] * len(due)
        if not chosen:
            return accounts
        starts, admitted, firsts, _, _, computed, _ = np.array([due[position].ran for position in chosen]).T
        step_s = self.expected.gaps(*self.load.at(admitted))
        usual = usually(admitted - starts, firsts - admitted, computed, step_s, self.usual)
        if usual is None:
            return accounts
        lasted_s = (firsts - starts).tolist()
        for row, (position, expected_s) in enumerate(zip(chosen, usual.expected_s.tolist(), strict=True)):
            accounts[position] = Account(expected_s, lasted_s[row], 0.0, ())
        late = np.flatnonzero(usual.may_be_late)
        if len(late):
            columns = _Firsts(starts[late], admitted[late], firsts[late], computed[late], step_s[late])
            for row, account in zip(late.tolist(), self._late_firsts(columns, around), strict=True):
                accounts[chosen[row]] = account
        return accounts

    def _late_firsts(self, of: _Firsts, around: _Around) -> list[Account]:
        """Accounts of those that may be late."""
        starts, admitted, firsts, computed, step_s = of
        beside, lengths = around.others.between(admitted, firsts)
        wait_tokens, wait_length = around.others.between(starts, admitted)
        wait_evidence, _, wait_lost_s = self._conditions(starts, np.maximum(admitted, starts), around)
        before_evidence, _, _ = self._conditions(np.maximum(starts - BEFORE_S, 0.0), admitted, around)
        evidence, lost, lost_s = self._conditions(admitted, firsts, around)
        judged: Judged | None = judge(
            Waited(
                wait_s=admitted - starts,
                prompt_s=firsts - admitted,
                computed=computed,
                beside=np.maximum(beside - computed, 0.0),
                beside_length=lengths,
                step_s=step_s,
                grown=self._grown(admitted),
                wait_evidence=wait_evidence,
                wait_lost_s=wait_lost_s,
                before_evidence=before_evidence,
                wait_tokens=wait_tokens,
                wait_length=wait_length,
                prompt_evidence=evidence,
                prompt_lost=lost,
                prompt_lost_s=lost_s,
            ),
            self.usual,
            around.weights,
        )
        assert judged is not None  # as much is known as was a moment ago
        load = {
            _LONG: Fact("prompt_tokens", 0.0, Unit.NONE, self.usual.computed.mean()),
            _PREFILL: Fact("prompt_tokens_of_others", 0.0, Unit.NONE),
            _QUEUE: Fact("queue", 0.0, Unit.SECONDS, self.usual.queue_s.value()),
        }
        telling = Telling.of(judged.shares_s, load, around.lifts, around.board, around.keys, around.when)
        most = np.maximum(np.maximum(wait_evidence, evidence), before_evidence)[:, telling.causes].tolist()
        shares = judged.shares_s[:, telling.causes].tolist()
        figures = (computed, wait_tokens + np.maximum(beside - computed, 0.0), admitted - starts)
        told = zip(shares, most, np.stack(figures, axis=1).tolist(), strict=True)
        return [
            _account(expected_s, first_s - start_s, telling.shares(seconds, held, (start_s, first_s), behind))
            for expected_s, start_s, first_s, (seconds, held, behind) in zip(
                judged.expected_s.tolist(), starts.tolist(), firsts.tolist(), told, strict=True
            )
        ]

    # --- common -------------------------------------------------------------------------------------------------------

    def _conditions(self, starts_s: Array, ends_s: Array, around: _Around) -> tuple[Array, Array, Array]:
        """Of each stretch by cause: evidence, lost share of time, and lost time of the cells touched; (n, CAUSES)."""
        evidence, lost, lost_s = np.zeros((3, len(starts_s), len(CAUSES)))
        conditions = around.conditions
        if len(starts_s) and conditions.causes:
            columns = list(conditions.causes)
            held, share = conditions.within(starts_s, ends_s)
            cells = np.floor(ends_s / CELL_S) - np.floor(starts_s / CELL_S) + 1
            evidence[:, columns], lost[:, columns] = held, share
            lost_s[:, columns] = share * (CELL_S * cells)[:, None]
        return evidence, lost, lost_s

    def _before(self, moments_s: Array, around: _Around) -> Array:
        """Greatest evidence at each moment and in the ``BEFORE_S`` before it, by cause: (n, CAUSES).

        Where requests wait at that moment: since as long before they began to."""
        begun_s = np.minimum(moments_s, self._waits_since(moments_s, around.conditions))
        evidence, _, _ = self._conditions(np.maximum(begun_s - BEFORE_S, 0.0), moments_s, around)
        return evidence

    @staticmethod
    def _waits_since(moments_s: Array, conditions: Conditions) -> Array:
        """When the queue that there is at each moment began; the moment itself where there is none."""
        if _QUEUE not in conditions.causes:
            return moments_s
        waits = conditions.evidence[conditions.causes.index(_QUEUE)] >= _WAITS
        places = np.arange(len(waits))
        # The last cell before each one in which nobody waited.
        calm = np.maximum.accumulate(np.where(waits, -1, places))
        at = np.clip((moments_s / CELL_S).astype(np.intp) - conditions.first, 0, len(waits) - 1)
        return np.where(waits[at], (calm[at] + 1 + conditions.first) * CELL_S, moments_s)

    def _alone(self, slow: Slow) -> NDArray[np.bool_]:
        """Of every slow stretch, whether the request waited for a token while the others went on as always."""
        lengths_s = slow.ends_s - slow.starts_s
        found = np.zeros(len(lengths_s), dtype=bool)
        for row in np.flatnonzero((lengths_s > _ALONE_S) & (slow.actual_s > _ALONE * slow.expected_s)).tolist():
            start_s, end_s = float(slow.starts_s[row]), float(slow.ends_s[row])
            usual = 1.0 / max(float(slow.expected_s[row]), 1e-6)  # one other request would make so many a second
            found[row] = self.load.made(start_s, end_s) > _GOES_ON * usual
        return found

    def _moments(self, steps: Steps, around: _Around) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.intp]]:
        """Of every half second, whether more came than usual, and whether something surely held it up. Of every step,
        in which of these it ended."""
        if not len(steps.owners):
            return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), np.zeros(0, dtype=np.intp)
        cells = (steps.ends_s / CELL_S).astype(np.intp)
        first, last = int(float(steps.starts_s.min()) / CELL_S), int(cells.max())
        moments: Array = np.arange(first, last + 1, dtype=np.float64) * CELL_S
        evidence = self._before(moments, around)
        # Prompts that are longer than usual make no batch larger: here it is requests that count.
        grown = self._grown(moments, prompts=False)
        # A queue makes a batch grow only where it is no more requests that made the queue.
        behind = held_up(evidence, around.weights) > _BEHIND
        behind &= ~grown | (held_up(evidence, around.weights, queueing=False) > _BEHIND)
        cells -= first
        return grown, behind, cells

    def _grown(self, moments_s: Array, *, prompts: bool = True) -> NDArray[np.bool_]:
        """Whether more came than usual, in the half minute before each moment: requests, or tokens of prompts."""
        usual, brought = self.usual.arrivals.above(CAME, CAME_BY), self.usual.brought.above(CAME, CAME_BY)
        if usual is None or brought is None:
            return np.zeros(len(moments_s), dtype=bool)
        seconds, places = np.unique(np.floor(moments_s).astype(np.int64), return_inverse=True)
        known = []
        for second in seconds.tolist():
            came, tokens = self.load.arrived(second - OVER_S, second)
            known.append(came > usual or (prompts and tokens > max(brought, 1.0)))
        return np.array(known, dtype=bool)[places]


def _figures(of: NDArray[np.intp], count: int, running: Array, context: Array, tokens: Array) -> tuple[Array, ...]:
    """What stands behind the causes that are load, of each request or stretch: over its slow steps."""
    steps = np.maximum(np.bincount(of, minlength=count), 1)
    return (
        np.bincount(of, running, count)[:count] / steps[:count],
        np.bincount(of, context, count)[:count] / steps[:count],
        np.bincount(of, tokens, count)[:count].astype(np.float64),
    )


class _Expected(NamedTuple):
    """Of every step, what it takes under its own load, and what under the usual one."""

    whole_s: Array
    expected_s: Array
    behind_s: Array
    """Where more came than usual as well: what of the batch is a fault's nevertheless."""
    shorter_by_row: Array
    """With the context that is usual alone: seconds of one step by quarter of a second, and whether more came."""
    rows: NDArray[np.intp]
    """Of every step, its place in that."""
    counts: Array | None
    """Steps that each stands for; None: one each."""

    def shorter_s(self, chosen: NDArray[np.intp]) -> Array:
        """Of some of the steps."""
        return _times(self.shorter_by_row[self.rows[chosen]], None if self.counts is None else self.counts[chosen])


class _Firsts(NamedTuple):
    """Requests whose first token may be late, as columns."""

    starts_s: Array
    admitted_s: Array
    firsts_s: Array
    computed: Array
    step_s: Array


def _times(each: Array, counts: Array | None) -> Array:
    return each if counts is None else np.asarray(each * counts, dtype=np.float64)


def _account(expected_s: float, actual_s: float, shares: tuple[Share, ...]) -> Account:
    return Account(expected_s, actual_s, sum([share.seconds for share in shares]), shares)


def _slowest(rows: Array) -> Array:
    """The slowest of a request, by time: a copy."""
    if len(rows) <= SLOW_GAPS:
        return rows.copy()
    return np.asarray(rows[np.sort(np.argsort(-rows[:, 4], kind="stable")[:SLOW_GAPS])])


def _by_request(of: np.ufunc, rows: Array, edges: NDArray[np.intp]) -> Array:
    """Sums or maxima over the rows of each request: from one edge to the next. 0 where it has none."""
    found = np.zeros((len(edges) - 1, rows.shape[1]))
    some = edges[1:] > edges[:-1]
    if some.any():
        found[some] = of.reduceat(rows, edges[:-1][some], axis=0)
    return found


def _at_most(values: Array, usual: Usual, room: float, *, grown: bool) -> Array:
    """Those that have grown brought back to the median. Where more came than usual, less is more than chance."""
    middle, more = usual.value(), usual.above(GROWN, 1.0, room)
    by_chance = usual.above(BY_CHANCE, 4.0, room)
    if middle is None or more is None or by_chance is None:
        return values
    return np.where(values > (more if grown else by_chance), middle, values)


def _sums(of: NDArray[np.intp], values: Array, count: int) -> Array:
    """Of each of so many."""
    return np.asarray(np.bincount(of, values, count)[:count], dtype=np.float64)
