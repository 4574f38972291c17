"""What is kept of one group, and how its requests are explained: the arithmetic of ``steps``, ``expected``, ``shares``
and ``first_token`` put together.

Nothing in here reads the store: conditions come from the board, load from the requests themselves. Memory: about 0.4 MB
a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.board import CELL_S, Board
from gpumon.explain.causes import INDEX, PROVEN
from gpumon.explain.explained import Account, Share, SlowGap
from gpumon.explain.first_token import BEFORE_S, Judged, Waited, judge
from gpumon.explain.group import Group, Key
from gpumon.explain.learning import OVER_S, Learning, Stretches
from gpumon.explain.lift import Slowness, weight
from gpumon.explain.load import GroupLoad, Others, Ran
from gpumon.explain.prompt_pages import KEPT, PromptPages
from gpumon.explain.shares import Array, Claims, divide, held_up
from gpumon.explain.signs import Fact
from gpumon.explain.steps import Slow, Steps, slow_of, steps_of
from gpumon.explain.usual import Usual
from gpumon.model import RequestRecord, Unit

GROWN: Final = 1.25
"""Times the usual, from where on a batch or a context has grown."""
BY_CHANCE: Final = 1.5
"""The same while no more came."""
CAME: Final = 1.3
"""Times the usual arrivals, over half a minute, from where on more come."""
CAME_BY: Final = 2.0
"""Robust standard deviations over the usual, likewise."""
SLOW_GAPS: Final = 64
_BEHIND: Final = 0.5
_FADES: Final = 0.98
_PAGE_S: Final = 15.0
"""Longest time between two readings of a server's page that matters."""
_ALONE_S: Final = 0.5
"""A gap in which one can tell whether others made tokens."""
_ALONE: Final = 8.0
_GOES_ON: Final = 0.3
_LEAST_SHARE: Final = 1e-6
_NOTHING = Account(None, 0.0, 0.0, ())


class Due(NamedTuple):
    """A request to be explained."""

    record: RequestRecord
    ran: Ran


class Accounts(NamedTuple):
    """Of one request."""

    first_token: Account
    decode: Account
    slow_gaps: tuple[SlowGap, ...]


class _Around(NamedTuple):
    """What is the same for all requests explained at once."""

    board: Board
    keys: list[Key]
    others: Others
    lifts: dict[int, float]
    weights: Array


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
        self._prompts = _FADES * self._prompts + sum([ran.prompt for ran in runs])
        self._computed = _FADES * self._computed + sum([ran.computed for ran in runs])
        others = self.load.others(begin_s - _PAGE_S, end_s + _PAGE_S)
        running, context = self.load.at((steps.starts_s + steps.ends_s) / 2)
        self._learning.steps(steps, running, context, others, at_s)
        self._learning.requests(runs, others, at_s)
        self._learning.settle(touched, at_s)
        if not self.expected.is_known:
            return None
        lifts = self.slowness.lifts(board, keys)
        weights = np.array([1.0 if cause in PROVEN else weight(lifts.get(INDEX[cause])) for cause in CAUSES])
        around = _Around(board, keys, others, lifts, weights)
        decode = self._decode(due, steps, running, context, around)
        first = self._first_tokens(due, around)
        return [Accounts(one, *two) for one, two in zip(first, decode, strict=True)]

    # --- between tokens -----------------------------------------------------------------------------------------------

    def _decode(
        self, due: Sequence[Due], steps: Steps, running: Array, context: Array, around: _Around
    ) -> list[tuple[Account, tuple[SlowGap, ...]]]:
        mean = context / running
        # Behind a fault, what the batch has grown by is the fault's; else only what is more than usual counts.
        grown, behind = self._moments(steps, around)
        less_running = _at_most(running, self.usual.running, 1.0, grown)
        less_running = np.where(behind, self._undisturbed(steps, running, mean, behind), less_running)
        less_mean = _at_most(mean, self.usual.context, 0.0, grown)
        whole_s = self.expected.gaps(running, context) * steps.counts
        shorter_s = self.expected.gaps(running, running * less_mean) * steps.counts
        expected_s = np.minimum(self.expected.gaps(less_running, less_running * less_mean) * steps.counts, whole_s)
        slow = slow_of(steps, expected_s)
        inside = slow.members >= 0
        which = slow.members[inside]
        count = len(slow.owners)
        load_s = np.zeros((count, len(CAUSES)))
        for cause, more_s in (("batch_growth", shorter_s - expected_s), ("long_context", whole_s - shorter_s)):
            load_s[:, INDEX[cause]] = np.bincount(which, np.maximum(more_s[inside], 0.0), count)[:count]
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
            )
        )
        self._note_slowness(steps, whole_s, slow, shares_s)
        facts = self._load_facts(len(due), steps.owners[inside], running[inside], mean[inside], tokens)
        own_facts = self._load_facts(count, which, running[inside], mean[inside], tokens)
        sums_s = np.bincount(steps.owners, steps.lengths_s, len(due))
        sums_expected_s = np.bincount(steps.owners, expected_s, len(due))
        edges = np.searchsorted(slow.owners, np.arange(len(due) + 1))
        found = []
        for position in range(len(due)):
            rows = slice(int(edges[position]), int(edges[position + 1]))
            found.append(
                (
                    self._account(
                        float(sums_expected_s[position]),
                        float(sums_s[position]),
                        shares_s[rows].sum(axis=0),
                        evidence[rows].max(axis=0, initial=0.0),
                        (due[position].ran.first_s, due[position].ran.end_s),
                        around,
                        facts[position],
                    ),
                    self._slow_gaps(slow, shares_s, excess_s, evidence, rows, around, own_facts),
                )
            )
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

    def _load_facts(
        self, count: int, owners: NDArray[np.intp], running: Array, context: Array, tokens: Array
    ) -> list[dict[int, Fact]]:
        """What stands behind the causes that are load, of each request: over its slow steps."""
        steps = np.maximum(np.bincount(owners, minlength=count), 1)
        columns = (
            np.bincount(owners, running, count) / steps,
            np.bincount(owners, context, count) / steps,
            np.bincount(owners, tokens, count),
        )
        usual_running, usual_context = self.usual.running.value(), self.usual.context.value()
        return [
            {
                INDEX["batch_growth"]: Fact("requests_decoding", batch, Unit.NONE, usual_running),
                INDEX["long_context"]: Fact("context_tokens", length, Unit.NONE, usual_context),
                INDEX["prefill_interference"]: Fact("prompt_tokens_of_others", others, Unit.NONE),
            }
            for batch, length, others in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _slow_gaps(
        self,
        slow: Slow,
        shares_s: Array,
        excess_s: Array,
        evidence: Array,
        rows: slice,
        around: _Around,
        facts: Sequence[dict[int, Fact]],
    ) -> tuple[SlowGap, ...]:
        """The slowest of a request, by time. facts: of every stretch."""
        numbers = np.arange(rows.start, rows.stop)
        if len(numbers) > SLOW_GAPS:
            numbers = np.sort(numbers[np.argsort(-excess_s[rows], kind="stable")[:SLOW_GAPS]])
        return tuple(
            SlowGap(
                start_s=float(slow.starts_s[row]),
                end_s=float(slow.ends_s[row]),
                tokens=round(float(slow.tokens[row])),
                expected_s=float(slow.expected_s[row]),
                excess_s=float(excess_s[row]),
                shares=self._shares(
                    shares_s[row],
                    evidence[row],
                    (float(slow.starts_s[row]), float(slow.ends_s[row])),
                    around,
                    facts[row],
                ),
            )
            for row in numbers.tolist()
        )

    def _note_slowness(self, steps: Steps, expected_s: Array, slow: Slow, shares_s: Array) -> None:
        """By how much steps are slower than they are under that very load, for the lift of conditions.

        Without what prompts of others explain. expected_s: of each step, with the batch and context that it had.
        """
        over_s = steps.lengths_s - expected_s
        inside = slow.members >= 0
        prompts = np.divide(
            shares_s[:, INDEX["prefill_interference"]],
            slow.actual_s,
            out=np.zeros(len(slow.actual_s)),
            where=slow.actual_s > 0,
        )
        over_s[inside] -= steps.lengths_s[inside] * prompts[slow.members[inside]]
        self.slowness.add(steps.ends_s, over_s, expected_s)

    # --- first tokens -------------------------------------------------------------------------------------------------

    def _first_tokens(self, due: Sequence[Due], around: _Around) -> list[Account]:
        chosen = [position for position, each in enumerate(due) if each.ran.first_s > each.ran.start_s]
        accounts = [_NOTHING] * len(due)
        if not chosen:
            return accounts
        runs = [due[position].ran for position in chosen]
        starts, admitted = np.array([ran.start_s for ran in runs]), np.array([ran.admitted_s for ran in runs])
        firsts = np.array([ran.first_s for ran in runs])
        computed = np.array([float(ran.computed) for ran in runs])
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
                step_s=self.expected.gaps(*self.load.at(admitted)),
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
        if judged is None:
            return accounts
        most = np.maximum(np.maximum(wait_evidence, evidence), before_evidence)
        facts = {
            INDEX["long_context"]: Fact("prompt_tokens", _mean(computed), Unit.NONE, self.usual.computed.mean()),
            INDEX["prefill_interference"]: Fact("prompt_tokens_of_others", _mean(beside), Unit.NONE),
            INDEX["queueing"]: Fact("queue", _mean(admitted - starts), Unit.SECONDS, self.usual.queue_s.value()),
        }
        for row, position in enumerate(chosen):
            own = dict(facts)
            own[INDEX["long_context"]] = facts[INDEX["long_context"]]._replace(observed=float(computed[row]))
            others = float(wait_tokens[row] + max(0.0, beside[row] - computed[row]))
            own[INDEX["prefill_interference"]] = Fact("prompt_tokens_of_others", others, Unit.NONE)
            own[INDEX["queueing"]] = facts[INDEX["queueing"]]._replace(observed=float(admitted[row] - starts[row]))
            accounts[position] = self._account(
                float(judged.expected_s[row]),
                float(firsts[row] - starts[row]),
                judged.shares_s[row],
                most[row],
                (float(starts[row]), float(firsts[row])),
                around,
                own,
            )
        return accounts

    # --- common -------------------------------------------------------------------------------------------------------

    def _account(
        self,
        expected_s: float,
        actual_s: float,
        shares_s: Array,
        evidence: Array,
        when: tuple[float, float],
        around: _Around,
        facts: dict[int, Fact],
    ) -> Account:
        shares = self._shares(shares_s, evidence, when, around, facts)
        return Account(expected_s, actual_s, sum([share.seconds for share in shares]), shares)

    def _shares(
        self,
        shares_s: Array,
        evidence: Array,
        when: tuple[float, float],
        around: _Around,
        facts: dict[int, Fact],
    ) -> tuple[Share, ...]:
        # Twenty numbers, many times a second: lists are a few times as fast as arrays for that.
        values: list[float] = shares_s.tolist()
        whole = sum(values)
        if whole <= 0:
            return ()
        # Crumbs go to the largest, so that the sum stays what it is.
        rows = [row for row, value in enumerate(values) if value > _LEAST_SHARE * whole]
        rows.sort(key=lambda row: -values[row])
        crumbs = whole - sum([values[row] for row in rows])
        found = []
        for place, row in enumerate(rows):
            fact = facts.get(row) or around.board.fact(around.keys, CAUSES[row], *when)
            seconds = values[row] + (crumbs if place == 0 else 0.0)
            found.append(Share(CAUSES[row], seconds, float(evidence[row]), around.lifts.get(row), fact))
        return tuple(found)

    def _conditions(self, starts_s: Array, ends_s: Array, around: _Around) -> tuple[Array, Array, Array]:
        """Of each stretch by cause: evidence, lost share of time, and lost time of the cells touched; (n, CAUSES)."""
        shape = (len(starts_s), len(CAUSES))
        evidence, lost = np.zeros(shape), np.zeros(shape)
        if len(starts_s):
            conditions = around.board.conditions(around.keys, max(0.0, float(starts_s.min())), float(ends_s.max()))
            if conditions.causes:
                columns = list(conditions.causes)
                evidence[:, columns], lost[:, columns] = conditions.within(starts_s, ends_s)
        cells = np.floor(ends_s / CELL_S) - np.floor(starts_s / CELL_S) + 1
        return evidence, lost, lost * (CELL_S * cells)[:, None]

    def _before(self, moments_s: Array, around: _Around) -> Array:
        """Greatest evidence at each moment and in the ``BEFORE_S`` before it, by cause: (n, CAUSES)."""
        evidence = np.zeros((len(moments_s), len(CAUSES)))
        if len(moments_s):
            begin_s = max(0.0, float(moments_s.min()) - BEFORE_S)
            conditions = around.board.conditions(around.keys, begin_s, float(moments_s.max()))
            if conditions.causes:
                width = round(BEFORE_S / CELL_S)
                padded = np.pad(conditions.evidence, ((0, 0), (width, 0)))
                newest = np.lib.stride_tricks.sliding_window_view(padded, width + 1, axis=1).max(axis=2)
                cells = (moments_s / CELL_S).astype(np.intp) - conditions.first
                evidence[:, list(conditions.causes)] = newest[:, cells].T
        return evidence

    def _alone(self, slow: Slow) -> NDArray[np.bool_]:
        """Of every slow stretch, whether the request waited for a token while the others went on as always."""
        lengths_s = slow.ends_s - slow.starts_s
        found = np.zeros(len(lengths_s), dtype=bool)
        for row in np.flatnonzero((lengths_s > _ALONE_S) & (slow.actual_s > _ALONE * slow.expected_s)).tolist():
            start_s, end_s = float(slow.starts_s[row]), float(slow.ends_s[row])
            usual = 1.0 / max(float(slow.expected_s[row]), 1e-6)  # one other request would make so many a second
            found[row] = self.load.made(start_s, end_s) > _GOES_ON * usual
        return found

    def _undisturbed(self, steps: Steps, running: Array, mean: Array, behind: NDArray[np.bool_]) -> Array:
        """The batch of each step as it would be without what slows it: by Little's law, smaller by the same factor.

        As many requests come, and each stays as much shorter as its steps are. By how much they are slower is the
        median over the steps of a request; since a smaller batch is faster, it takes a second look.
        """
        found = running.copy()
        if not behind.any():
            return found
        owners, took_s = steps.owners[behind], steps.lengths_s[behind] / steps.counts[behind]
        edges = np.flatnonzero(np.diff(owners, prepend=-1))
        for _ in range(2):
            ratios = took_s / self.expected.gaps(found[behind], found[behind] * mean[behind])
            slower = np.array([np.median(part) for part in np.split(ratios, edges[1:])])
            sizes = np.diff(np.append(edges, len(owners)))
            found[behind] = np.maximum(running[behind] / np.maximum(np.repeat(slower, sizes), 1.0), 1.0)
        return found

    def _moments(self, steps: Steps, around: _Around) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Of every step, whether more came than usual; and whether none did and yet something surely held it up."""
        if not len(steps.owners):
            return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
        begin_s, end_s = float(steps.starts_s.min()), float(steps.ends_s.max())
        moments: Array = np.arange(int(begin_s / CELL_S), int(end_s / CELL_S) + 1, dtype=np.float64) * CELL_S
        evidence = self._before(moments, around)
        # Prompts that are longer than usual make no batch larger: here it is requests that count.
        grown = self._grown(moments, prompts=False)
        behind = (held_up(evidence, around.weights) > _BEHIND) & ~grown
        cells = (steps.ends_s / CELL_S).astype(np.intp) - int(begin_s / CELL_S)
        return grown[cells], behind[cells]

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


def _at_most(values: Array, usual: Usual, room: float, grown: NDArray[np.bool_]) -> Array:
    """Those that have grown brought back to the median. Where more came than usual, less is more than chance."""
    median, more = usual.value(), usual.above(GROWN, 1.0, room)
    by_chance = usual.above(BY_CHANCE, 4.0, room)
    if median is None or more is None or by_chance is None:
        return values
    return np.where(values > np.where(grown, more, by_chance), median, values)


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else 0.0
