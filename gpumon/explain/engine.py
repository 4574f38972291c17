"""Explains requests some seconds after their end, when what ran beside them has ended too and counters have been read.

Looks at the same scene as the detectors, right after them: hands it to the witnesses, whose signs go on the board;
adds the requests that ended to the load of their groups; and explains those that ended ``delay_s`` ago. Every request
is explained once, and counted once. A witness that fails loses its own signs and nothing else.

Bounded: 32 groups, at most 8 of them bound to nothing, of which one unseen for five minutes makes room for another;
16,384 requests that wait, of four million tokens together; details of some (``details``). What does not fit is
counted as ``dropped``.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.detect.concerned import TENANTS_MAX
from gpumon.detect.detector import Severity
from gpumon.detect.incident import Incident
from gpumon.detect.scene import Scene
from gpumon.detect.touched import keys_of as incident_keys
from gpumon.explain.board import KEPT_S, Board
from gpumon.explain.correlations import Correlations
from gpumon.explain.details import Details
from gpumon.explain.dimensions import DIMENSIONS, Dimensions
from gpumon.explain.explained import Account, Explained, without_times
from gpumon.explain.group import Group, Key, group_of, holders_by_gpu, keys_of, pids_of
from gpumon.explain.group_state import Accounts, Due, GroupState
from gpumon.explain.latency_tracks import LatencyTracks
from gpumon.explain.learning import Stretches
from gpumon.explain.request_log import RequestLog
from gpumon.explain.signs import Witness
from gpumon.explain.steps import ran_of
from gpumon.explain.token_times import token_times
from gpumon.model import RequestRecord, Sample
from gpumon.requests.tenants import OTHER

log = logging.getLogger(__name__)

DELAY_S: Final = 8.0
GROUPS_MAX: Final = 32
UNBOUND_MAX: Final = 8
"""Of them, groups whose requests are bound to nothing."""
IDLE_S: Final = 300.0
ANEW_S: Final = 60.0
"""For so long after a process is new on its GPUs, a request that is bound to none may be its."""
WAITING_MAX: Final = 16_384
WAITING_TOKENS: Final = 4_000_000
"""Token times in memory of requests that wait, 8 bytes each."""
PASS: Final = 32_768
"""Tokens that are explained at once: what bounds the memory of it, about 150 bytes a token."""
SETTLED_S: Final = 900.0
"""An incident that lasts longer is the new normal."""
_EDGE_S: Final = 2.0
_HARMLESS: Final = frozenset(
    ("context_cliff", "kv_mismatch", "allocator_gap", "row_remap", "ecc", "driver_mismatch", "quality_drop")
)
"""Kinds of incidents that do not make a step longer while they hold: what is usual can be learned meanwhile."""
_AT_ONCE: Final = 256
"""Requests whose token times are looked at together."""
_ERRORS_TOLD: Final = 64
_ENGINES: Final = 256
_UNKNOWN = Accounts(Account(None, 0.0, 0.0, ()), Account(None, 0.0, 0.0, ()), ())


class _Waiting(NamedTuple):
    due_s: float
    group: Group
    due: Due


class _Entities(NamedTuple):
    """What a group runs on now."""

    keys: list[Key]
    known: frozenset[Key]
    """The same as incidents name it."""


class _Processes(NamedTuple):
    """Of the GPUs of a group."""

    pids: list[str]
    """Of those that hold them now."""
    changed_s: float
    """When others did."""


class Explanation:
    """``look`` from one thread; the rest from any."""

    def __init__(self, witnesses: Sequence[Witness], *, delay_s: float = DELAY_S, models: int = 8) -> None:
        """delay_s: from a request's end, or from when it became known, to its explanation. models: (server, model)
        pairs counted apart; the rest counts as model ``other``."""
        self._witnesses = tuple(witnesses)
        self._delay_s = delay_s
        self._models = models
        self._board = Board()
        self._groups: dict[Group, GroupState] = {}
        self._engines: OrderedDict[tuple[str, str, str], Group] = OrderedDict()
        """Group of a process or container that requests on GPUs were bound to, by server, model and its name."""
        self._processes: dict[Group, _Processes] = {}
        self._waiting: deque[_Waiting] = deque()
        self._tokens_waiting = 0
        self._lock = threading.Lock()
        """Over the counters, which others read."""
        self._seconds: dict[tuple[str, str], NDArray[np.float64]] = {}
        """By server and model: (phases, CAUSES)."""
        self._outcomes: dict[tuple[str, str], Counter[str]] = {}
        self._dropped_s: deque[float] = deque(maxlen=WAITING_MAX)
        """When requests arrived that were not explained for want of room."""
        self._incident_causes: dict[str, Counter[str]] = {}
        self._incident_tenants: dict[str, dict[str, float]] = {}
        self._failures: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()
        self.details = Details()
        """Of requests; from any thread."""
        self.log = RequestLog(n_signals=len(DIMENSIONS), is_wanted=self.details.holds)
        self.dimensions = Dimensions()
        self.latencies = LatencyTracks()
        self.correlations = Correlations(self.dimensions, self.latencies)
        self.listeners: list[Callable[[Sequence[Explained]], None]] = []
        """Told of what was explained, in the thread that looks."""

    @property
    def failures(self) -> int:
        """Looks in which a witness failed."""
        return self._failures.total()

    # --- what others ask ----------------------------------------------------------------------------------------------

    def of_span(self, trace_id: bytes, span_id: bytes) -> Explained | None:
        """What is known of the request that this span is of; None for other spans."""
        return self.details.of_span(trace_id, span_id)

    def find(self, trace_id: str) -> list[Explained]:
        """What is known of the requests of a trace (32 hex digits), the earliest first."""
        return self.details.find(trace_id)

    def newest(self) -> list[Explained]:
        """Requests that were slow, the newest first."""
        return self.details.slow()

    def dropped(self, since_s: float) -> int:
        """Requests that arrived since then and were not explained for want of room; of the newest 16,384 such."""
        with self._lock:
            return sum([at_s >= since_s for at_s in self._dropped_s])

    # --- a step -------------------------------------------------------------------------------------------------------

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> list[Sample]:
        """One step. incidents: those that are open, or closed in the last minutes; their causes are filled in."""
        at_s = scene.at_s
        for witness in self._witnesses:
            self._ask(witness, scene, incidents)
        self._take(scene)
        entities = self._entities(scene)
        self._read_pages(scene)
        self.dimensions.feed(scene, list(self._groups))
        due: dict[Group, list[Due]] = {}
        while self._waiting and self._waiting[0].due_s <= at_s:
            waiting = self._waiting.popleft()
            self._tokens_waiting -= _tokens(waiting.due.record)
            due.setdefault(waiting.group, []).append(waiting.due)
        explained: list[Explained] = []
        for group, requests in due.items():
            if group in self._groups:
                for part in _passes(requests):
                    explained += self._explain(group, part, entities[group], scene, incidents)
            else:  # it had to make room for another
                self._count([each.record for each in requests], "dropped")
        self.details.name(incidents)
        self.correlations.step(at_s)
        if explained:
            for listener in self.listeners:
                listener(explained)
        kept = {incident.id for incident in incidents}
        for gone in self._incident_causes.keys() - kept:
            del self._incident_causes[gone], self._incident_tenants[gone]
        return self._samples()

    def _ask(self, witness: Witness, scene: Scene, incidents: Sequence[Incident]) -> None:
        try:
            self._board.put(witness.look(scene, incidents), scene.at_s)
        except Exception as error:
            name = f"explain_{witness.causes[0]}"
            self._failures[name] += 1
            what = (name, repr(error)[:200])
            if what not in self._told and len(self._told) < _ERRORS_TOLD:
                self._told.add(what)
                log.error("witness=%s state=bug detail='said once, counted always'", name, exc_info=error)

    def _take(self, scene: Scene) -> None:
        """Requests that ended since the last step."""
        at_s = scene.at_s
        by_group: dict[Group, list[RequestRecord]] = {}
        for record in scene.requests:
            by_group.setdefault(self._group(record, at_s), []).append(record)
        for group, records in by_group.items():
            state = self._groups.get(group) or self._make(group, at_s)
            if state is None:
                self._count(records, "dropped")
                continue
            state.seen_s = at_s
            self.latencies.add(group, records, scene)
            # Moments of servers' clocks are a fixed time away from ours, at one step.
            epoch_s = scene.to_steady(0)
            runs, times_ns, begun = [], [], []
            for record in records:
                # A clock ahead of ours would put its tokens into the future: it has ended now.
                start_s = record.start_ns / 1e9 + epoch_s
                start_s -= max(0.0, record.end_ns / 1e9 + epoch_s - at_s)
                ran = ran_of(record, start_s)
                if ran is None or at_s - ran.end_s > KEPT_S:
                    self._count((record,), "untimed")
                elif len(self._waiting) >= WAITING_MAX or self._tokens_waiting > WAITING_TOKENS:
                    self._count((record,), "dropped")
                else:
                    runs.append(ran)
                    if record.token_ns is not None and len(record.token_ns):
                        times_ns.append(record.token_ns)
                        begun.append((record.start_ns, start_s))
                    self._tokens_waiting += _tokens(record)
                    self._waiting.append(_Waiting(at_s + self._delay_s, group, Due(record, ran)))
            state.load.add(runs, at_s)
            starts_ns = np.array([start_ns for start_ns, _ in begun], dtype=np.int64)
            starts_s = np.array([start_s for _, start_s in begun])
            for first in range(0, len(begun), _AT_ONCE):
                part = slice(first, first + _AT_ONCE)
                state.load.add_tokens(token_times(times_ns[part], starts_ns[part], starts_s[part]).made_s)

    def _read_pages(self, scene: Scene) -> None:
        """Prompt tokens that servers' pages counted, and requests in their batches: to the one group of each model."""
        tokens = [growth for growth in scene.grown(catalogue.SERVER_TOKENS) if growth.labels[-1] == "prompt"]
        pages = Counter(labels[1] for labels in scene.values(catalogue.SERVER_TOKENS) if labels[-1] == "prompt")
        for growth in tokens:
            if (state := self._only(growth.labels[1], pages)) is not None:
                state.pages.add(growth.at_s - growth.dt_s, growth.at_s, growth.amount)
        running = scene.read(catalogue.SERVER_RUNNING)
        pages = Counter(reading.labels[1] for reading in running)
        for reading in running:
            if (state := self._only(reading.labels[1], pages)) is not None:
                state.load.add_running(reading.at_s, reading.value)

    def _only(self, model: str, pages: Mapping[str, int]) -> GroupState | None:
        """The group of a model that has one, and one page."""
        groups = [group for group in self._groups if group.model == model and group.gpus]
        return self._groups[groups[0]] if pages[model] == 1 and len(groups) == 1 else None

    def _group(self, record: RequestRecord, at_s: float) -> Group:
        """Its group. A process or container some of whose GPUs cannot be told now (lost, or the driver is) is
        the engine it was."""
        group, binding = group_of(record), record.binding
        names = [str(binding.pid)] if binding.pid is not None else []
        names += [binding.container_id] if binding.container_id is not None else []
        for name in names:
            key = (record.server, record.model, name)
            known = self._engines.get(key)
            if known is not None and set(binding.gpus) < set(known.gpus):
                group = known
                continue
            self._engines[key] = group
            self._engines.move_to_end(key)
            if len(self._engines) > _ENGINES:
                self._engines.popitem(last=False)
        return group if group.gpus else self._restarted(group, at_s)

    def _restarted(self, group: Group, at_s: float) -> Group:
        """The one engine of the same model whose processes are new, or not known just now, instead of one without GPUs:
        it has been started anew, answers already, and is found some seconds later."""
        of = [each for each in self._processes if (each.server, each.model) == (group.server, group.model)]
        if len(of) != 1 or of[0] not in self._groups:
            return group
        found = self._processes[of[0]]
        return of[0] if at_s - found.changed_s < (ANEW_S if found.pids else IDLE_S) else group

    def _make(self, group: Group, at_s: float) -> GroupState | None:
        if len(self._groups) >= GROUPS_MAX or (not _is_bound(group) and self._unbound() >= UNBOUND_MAX):
            # Names that nobody can place come in any number: an engine of this node does not stand back for them.
            weak = [state for state in self._groups.values() if not _is_bound(state.group)]
            oldest = min(weak or self._groups.values(), key=lambda state: state.seen_s)
            gives_way = _is_bound(group) and not _is_bound(oldest.group)
            if not gives_way and at_s - oldest.seen_s < IDLE_S:
                return None
            del self._groups[oldest.group]
        state = self._groups[group] = GroupState(group)
        return state

    def _unbound(self) -> int:
        return sum([not _is_bound(group) for group in self._groups])

    def _entities(self, scene: Scene) -> dict[Group, _Entities]:
        held = {labels[2] for labels in scene.values(catalogue.PROCESS_GPU_MEMORY)}
        by_gpu = holders_by_gpu(sorted(held), scene.holders)
        found = {}
        self._processes = {group: known for group, known in self._processes.items() if group in self._groups}
        for group in self._groups:
            pids = pids_of(group, lambda uuid: by_gpu.get(uuid, ()))
            known = self._processes.get(group)
            if pids and known is None:
                self._processes[group] = _Processes(pids, -math.inf)
            elif known is not None and known.pids != pids:
                self._processes[group] = _Processes(pids, scene.at_s)
            keys = keys_of(group, pids)
            names = {*keys, ("server", group.name), ("model", group.model)}
            found[group] = _Entities(keys, frozenset(names))
        return found

    def _explain(
        self,
        group: Group,
        due: Sequence[Due],
        entities: _Entities,
        scene: Scene,
        incidents: Sequence[Incident],
    ) -> list[Explained]:
        """Of one group."""
        concerned = [
            incident
            for incident in incidents
            if not entities.known.isdisjoint(incident_keys(incident.entity, scene.holders))
        ]
        touched = _touched(concerned, scene.at_s)
        found = self._groups[group].explain(due, self._board, entities.keys, touched, scene.at_s)
        signals = self.dimensions.means_of(group, [(each.ran.start_s, each.ran.end_s) for each in due])
        told = found if found is not None else [_UNKNOWN] * len(due)
        explained = [
            Explained(without_times(record), group, ran.start_s, ran.end_s, *accounts, token_s, means)
            for (record, ran), accounts, token_s, means in zip(due, told, _token_s(due), signals, strict=True)
        ]
        self._keep(explained, cold=found is None)
        for incident in concerned:
            self._blame(incident, explained, scene.at_s)
        return explained

    def _keep(self, explained: Sequence[Explained], *, cold: bool) -> None:
        with self._lock:
            self._count_all(explained, cold=cold)
        self.details.keep(explained)
        self.log.extend(explained)

    def _blame(self, incident: Incident, explained: Iterable[Explained], at_s: float) -> None:
        """What the requests say that ran while an incident held."""
        until_s = incident.seen_s if incident.closed_s is not None else at_s
        sums = self._incident_causes.setdefault(incident.id, Counter())
        tenants = self._incident_tenants.setdefault(incident.id, {})
        for each in explained:
            if each.start_s <= until_s and each.end_s >= incident.since_s:
                incident.explained += 1
                sums.update(each.by_cause())
                if each.excess_s > 0 and (tenant := each.record.tenant):
                    name = tenant if tenant in tenants or len(tenants) < TENANTS_MAX else OTHER
                    tenants[name] = tenants.get(name, 0.0) + each.excess_s
        incident.causes = _largest_first(sums)
        incident.late_by_tenant = _largest_first(tenants)

    # --- counters -----------------------------------------------------------------------------------------------------

    def _pair(self, server: str, model: str, *, opens: bool = True) -> tuple[str, str]:
        """Under which labels a request counts. opens: whether it may be the first of its model."""
        pair = (server, model)
        if pair in self._outcomes:
            return pair
        if not opens or len(self._outcomes) >= self._models or len(model) > _NAME_MAX:
            pair = (server, "other")
        if pair not in self._outcomes:
            self._outcomes[pair] = Counter()
            self._seconds[pair] = np.zeros((len(catalogue.PHASES), len(catalogue.CAUSES)))
        return pair

    def _count(self, records: Iterable[RequestRecord], outcome: str) -> None:
        with self._lock:
            for record in records:
                self._outcomes[self._pair(record.server, record.model, opens=outcome != "dropped")][outcome] += 1
                if outcome == "dropped":
                    self._dropped_s.append(record.arrived_s)

    def _count_all(self, explained: Sequence[Explained], *, cold: bool) -> None:
        """Requests of one group."""
        pair = self._pair(explained[0].group.server, explained[0].group.model)
        sums: tuple[dict[str, float], ...] = ({}, {})
        for each in explained:
            self._outcomes[pair]["cold" if cold else "slow" if each.excess_s > 0 else "on_time"] += 1
            for by_cause, account in zip(sums, (each.first_token, each.decode), strict=True):
                for share in account.shares:
                    by_cause[share.cause] = by_cause.get(share.cause, 0.0) + share.seconds
        for phase, by_cause in enumerate(sums):
            for cause, seconds in by_cause.items():
                self._seconds[pair][phase, _CAUSE[cause]] += seconds

    def _samples(self) -> list[Sample]:
        with self._lock:
            found = []
            for pair, outcomes in self._outcomes.items():
                for outcome in catalogue.EXPLAINED_REQUESTS.values:
                    labels = (*pair, outcome)
                    found.append(Sample(catalogue.EXPLAINED_REQUESTS, labels, float(outcomes[outcome])))
                for phase, row in zip(catalogue.PHASES, self._seconds[pair].tolist(), strict=True):
                    found.append(Sample(catalogue.TOKEN_EXCESS, (*pair, phase), float(sum(row))))
                    for cause, seconds in zip(catalogue.CAUSES, row, strict=True):
                        found.append(Sample(catalogue.SLOW_TOKEN_SECONDS, (*pair, phase, cause), seconds))
        failures = [
            Sample(catalogue.DETECTOR_FAILURES, (name,), float(count)) for name, count in self._failures.items()
        ]
        return [*found, *failures, *self.correlations.samples()]


def _largest_first(sums: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


_CAUSE = {cause: position for position, cause in enumerate(catalogue.CAUSES)}
_NAME_MAX: Final = 256


def _tokens(record: RequestRecord) -> int:
    return 0 if record.token_ns is None else len(record.token_ns)


def _passes(due: Sequence[Due]) -> Iterator[list[Due]]:
    """In lists of at most ``PASS`` tokens, or of one request."""
    chosen: list[Due] = []
    tokens = 0
    for each in due:
        count = _tokens(each.record)
        if chosen and tokens + count > PASS:
            yield chosen
            chosen, tokens = [], 0
        chosen.append(each)
        tokens += count
    if chosen:
        yield chosen


def _is_bound(group: Group) -> bool:
    """Whether it is known where on this node it runs."""
    return bool(group.gpus or group.pid or group.container)


def _touched(incidents: Iterable[Incident], at_s: float) -> Stretches:
    """When what is usual cannot be learned."""
    return [
        (incident.since_s - _EDGE_S, incident.seen_s + _EDGE_S if incident.closed_s is not None else at_s)
        for incident in incidents
        if incident.severity is not Severity.INFO
        and incident.kind not in _HARMLESS
        and at_s - incident.since_s < SETTLED_S
    ]


def _token_s(due: Sequence[Due]) -> list[NDArray[np.float64] | None]:
    """Token times of each, steady; None where they are not told."""
    found = [None if each.record.token_ns is None else np.empty(0) for each in due]
    timed = [(row, times) for row, each in enumerate(due) if (times := each.record.token_ns) is not None and len(times)]
    if timed:
        starts_ns = np.array([due[row].record.start_ns for row, _ in timed], dtype=np.int64)
        starts_s = np.array([due[row].ran.start_s for row, _ in timed])
        made = token_times([times for _, times in timed], starts_ns, starts_s)
        begin = 0
        for (row, _), length in zip(timed, made.lengths.tolist(), strict=True):
            found[row] = made.made_s[begin : begin + length].copy()  # not all of them for as long as one is kept
            begin += length
    return found
