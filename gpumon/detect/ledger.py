"""From findings to incidents: opens, updates, merges and closes them, and counts.

One incident per kind and entity; of what is no GPU, whichever GPU is told with it: the first one known is kept. It
opens with the first finding, stays open while findings come and for its kind's ``hold_s`` after the last, and closes
then, or at once with a finding that says it is ``over``. What begins anew within ``hold_s`` is the same incident. A
finding that says ``over`` of what is not open opens and closes an incident, for a short one may have come and gone
between two steps; of one that has closed already it brings the final figures.

Summary and evidence are those of the heaviest finding so far (``Finding.weight``): what remains of a closed incident is
what happened, not its calm end. A finding that says ``over`` has the final say.

Bounded: 256 open incidents, beyond which new ones are counted and left out, and the newest 512 closed ones. What was
open when gpumon ended (``detect.state_file``) and is found again within five minutes of when it last held is the same
incident, and not counted again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from gpumon import catalogue
from gpumon.detect.concerned import Knowing
from gpumon.detect.detector import Entity, Finding, IncidentKind, Severity
from gpumon.detect.findings import RANK, Key, incident_id, key_of, merged
from gpumon.detect.incident import Incident, IncidentListener
from gpumon.detect.scene import Scene
from gpumon.detect.state_file import Memory, Remembered
from gpumon.detect.touched import Touched
from gpumon.model import Sample

log = logging.getLogger(__name__)

OPEN_MAX: Final = 256
CLOSED_MAX: Final = 512
RESTORE_S: Final = 300.0
"""How long after it last held what was open in an earlier life of gpumon is the same incident when found again."""
STATE_S: Final = 60.0
"""Between two states kept while incidents are open, so that after a kill it is known when they last held."""


class State(Protocol):
    """What outlives gpumon: ``state_file.StateFile``."""

    def load(self) -> Memory:
        """What was kept in an earlier life; empty where there is nothing to be read. Never raises."""
        ...

    def keep(self, memory: Memory) -> None:
        """This is to outlive gpumon from now on. Returns at once."""
        ...


class Ledger:
    """``step`` and ``close`` from one thread; ``incidents`` and ``samples`` from any."""

    def __init__(
        self,
        kinds: Iterable[IncidentKind],
        to_unix: Callable[[float], float],
        listeners: Sequence[IncidentListener] = (),
        state: State | None = None,
    ) -> None:
        """kinds: those that are looked for; findings of others are left out. to_unix: of steady seconds.

        state: loaded by the first step; None: nothing outlives gpumon.
        """
        self._kinds = {kind.name: kind for kind in kinds}
        self._to_unix = to_unix
        self._listeners = tuple(listeners)
        self._state = state
        self._loaded = state is None
        self._kept_s = 0.0
        self._lock = threading.Lock()
        self._open: dict[Key, Incident] = {}
        self._closed: OrderedDict[str, Incident] = OrderedDict()
        """By id, in the order of closing."""
        self._last: dict[Key, Incident] = {}
        """The newest closed one of each."""
        self._remembered: dict[Key, Remembered] = {}
        """Open in an earlier life and not found again yet."""
        self._touched = Touched()
        self._knowing = Knowing()
        self._refused: set[Key] = set()
        self._dropped = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._active: dict[tuple[str, str, str], None] = {}
        """Series of gpumon_incident_active: of all kinds, and of GPUs that had one."""
        for kind in self._kinds.values():
            self._active[kind.name, "", ""] = None
            for severity in kind.severities:
                self._counts[kind.name, severity.value] = 0

    def step(self, findings: Iterable[Finding], scene: Scene) -> None:
        """Take what was found at this moment, made ``findings.clean``, and what ran meanwhile."""
        at_s = scene.at_s
        self._load(at_s)
        found = merged(findings, self._kinds)
        with self._lock:
            before = list(self._open.values())
            counted = self._counts.total()
            opened, over = self._take(found, at_s)
            self._touched.add(scene.requests, scene.to_steady)
            self._knowing.look(scene, scene.collectives)
            self._touched.opened(opened, scene.holders, self._knowing)
            self._touched.went_on(before, scene.holders, self._knowing)
            for incident in (*opened, *before):
                of = incident.entity
                incident.concerned = self._knowing.of(incident.concerned, of.scope, of.name, of.uuid, of.gpu)
            closed = self._close(over, at_s)
            changed = bool(opened or closed) or self._counts.total() != counted
        for incident in opened:
            _log_opening(incident)
            for listener in self._listeners:
                listener.opened(incident, at_s)
        for incident in closed:
            _log_closing(incident)
            for listener in self._listeners:
                listener.closed(incident, at_s)
        if changed or (self._open and at_s - self._kept_s >= STATE_S):
            self._keep(at_s)

    def close(self, at_s: float) -> None:
        """gpumon ends: what is open stays so, to be found again."""
        if self._loaded:
            self._keep(at_s)

    def incidents(self) -> list[Incident]:
        """Copies of those kept, the newest opening first."""
        with self._lock:
            copies = [replace(incident) for incident in (*self._closed.values(), *self._open.values())]
        return sorted(copies, key=lambda incident: (incident.opened_s, incident.id), reverse=True)

    def recent(self, since_s: float) -> list[Incident]:
        """The incidents themselves that are open or closed since then: for the thread that calls ``step``."""
        closed = []
        for incident in reversed(self._closed.values()):
            if incident.closed_s is None or incident.closed_s < since_s:
                break  # they are in the order of closing
            closed.append(incident)
        return [*reversed(closed), *self._open.values()]

    def samples(self) -> Iterator[Sample]:
        """gpumon_incident_active, gpumon_incidents_total, and the incidents left out."""
        with self._lock:
            active = Counter(_row(incident) for incident in self._open.values())
            rows, counts, dropped = list(self._active), dict(self._counts), self._dropped
        for row in rows:
            yield Sample(catalogue.INCIDENT_ACTIVE, row, float(active[row]))
        for labels, count in counts.items():
            yield Sample(catalogue.INCIDENTS, labels, float(count))
        yield Sample(catalogue.DETECTION_DROPPED, ("incidents",), float(dropped))

    # --- opening ------------------------------------------------------------------------------------------------

    def _take(self, found: dict[Key, Finding], at_s: float) -> tuple[list[Incident], list[Key]]:
        """Incidents that open now, and those of all open ones that are over."""
        opened: list[Incident] = []
        over: list[Key] = []
        refused: set[Key] = set()
        for key, finding in found.items():
            incident = self._open.get(key)
            last = self._last.get(key)
            if incident is not None:
                self._update(incident, finding, at_s)
            elif last is not None and finding.over and finding.since_s <= last.seen_s:
                self._update(last, finding, last.seen_s)
                continue
            elif len(self._open) >= OPEN_MAX:
                refused.add(key)
                continue
            elif last is not None and at_s - last.seen_s < self._kinds[finding.kind].hold_s:
                self._reopen(key, last)
                self._update(last, finding, at_s)
            else:
                opened.append(self._open_new(key, finding, at_s))
            if finding.over:
                over.append(key)
        self._dropped += len(refused - self._refused)  # once for each, however long it goes on
        self._refused = refused
        return opened, over

    def _open_new(self, key: Key, finding: Finding, at_s: float) -> Incident:
        remembered = self._recall(key, at_s)
        if remembered is None:
            unix_s = self._to_unix(at_s)
            known = {incident.id for incident in self._open.values()}.union(
                self._closed, (each.id for each in self._remembered.values())
            )
            incident = self._made(incident_id(unix_s, finding.kind, finding.entity, known), finding, at_s)
            self._counts[finding.kind, finding.severity.value] += 1
        else:
            offset_s = self._to_unix(at_s) - at_s
            incident = self._made(remembered.id, finding, at_s)
            incident.restored = True
            incident.severity = Severity(remembered.severity)
            incident.since_s = min(finding.since_s, remembered.since_unix_s - offset_s)
            incident.opened_s = min(at_s, remembered.opened_unix_s - offset_s)
            if remembered.uuid and not incident.entity.uuid:
                incident.entity = incident.entity._replace(gpu=remembered.gpu, uuid=remembered.uuid)
            self._worsen(incident, finding.severity)
        self._open[key] = incident
        self._show(incident)
        return incident

    def _made(self, id_: str, finding: Finding, at_s: float) -> Incident:
        return Incident(
            id=id_,
            kind=finding.kind,
            entity=finding.entity,
            severity=finding.severity,
            since_s=finding.since_s,
            opened_s=at_s,
            seen_s=at_s,
            summary=finding.summary,
            evidence=finding.evidence,
            action=self._kinds[finding.kind].action,
            weight=finding.weight,
        )

    def _reopen(self, key: Key, incident: Incident) -> None:
        del self._closed[incident.id]
        incident.closed_s = None
        self._open[key] = incident

    def _update(self, incident: Incident, finding: Finding, seen_s: float) -> None:
        incident.seen_s = seen_s
        incident.since_s = min(incident.since_s, finding.since_s)
        if finding.over or finding.weight >= incident.weight:
            incident.summary, incident.evidence, incident.weight = finding.summary, finding.evidence, finding.weight
        if finding.entity.uuid and not incident.entity.uuid:
            incident.entity = finding.entity
            self._show(incident)
        self._worsen(incident, finding.severity)

    def _worsen(self, incident: Incident, severity: Severity) -> None:
        if RANK[severity] > RANK[incident.severity]:
            incident.severity = severity
            self._counts[incident.kind, severity.value] += 1
            log.log(_level(incident), "incident=worse id=%s severity=%s", incident.id, severity)

    def _show(self, incident: Incident) -> None:
        """Have a series for the entity's GPU; of GPUs that are gone for long the rows without an incident leave."""
        row = _row(incident)
        self._active.pop(row, None)
        self._active[row] = None
        if len(self._active) > catalogue.INCIDENT_ACTIVE.budget:
            shown = {row, *(_row(other) for other in self._open.values())}
            spare = next(row for row in self._active if row not in shown and row[1:] != ("", ""))
            del self._active[spare]

    # --- closing ------------------------------------------------------------------------------------------------

    def _close(self, over: Iterable[Key], at_s: float) -> list[Incident]:
        ended = dict.fromkeys(over)
        for key, incident in self._open.items():
            if at_s - incident.seen_s >= self._kinds[incident.kind].hold_s:
                ended[key] = None
        closed: list[Incident] = []
        for key in ended:
            incident = self._open.pop(key)
            incident.closed_s = at_s
            self._closed[incident.id] = self._last[key] = incident
            closed.append(incident)
        while len(self._closed) > CLOSED_MAX:
            _, oldest = self._closed.popitem(last=False)
            key = key_of(oldest.kind, oldest.entity)
            if self._last.get(key) is oldest:
                del self._last[key]
        return closed

    # --- over restarts --------------------------------------------------------------------------------------------

    def _load(self, at_s: float) -> None:
        if self._loaded or self._state is None:
            return
        memory = self._state.load()
        with self._lock:
            self._loaded = True
            for kind, counts in memory.counts.items():
                for severity, count in counts.items():
                    self._counts[kind, severity] += count
            self._remembered = {
                key_of(each.kind, Entity(each.scope, each.name, each.gpu, each.uuid)): each
                for each in memory.open
                if each.kind in self._kinds
            }
        self._keep(at_s)  # so that it is known from the beginning whether it can be kept

    def _recall(self, key: Key, at_s: float) -> Remembered | None:
        remembered = self._remembered.pop(key, None)
        return remembered if remembered is not None and self._is_recent(remembered, at_s) else None

    def _is_recent(self, remembered: Remembered, at_s: float) -> bool:
        # Either way: the wall clock may have been set back since.
        return abs(self._to_unix(at_s) - remembered.seen_unix_s) <= RESTORE_S

    def _keep(self, at_s: float) -> None:
        if self._state is None:
            return
        self._kept_s = at_s
        with self._lock:
            self._remembered = {key: each for key, each in self._remembered.items() if self._is_recent(each, at_s)}
            counts: dict[str, dict[str, int]] = {}
            for (kind, severity), count in self._counts.items():
                if count:
                    counts.setdefault(kind, {})[severity] = count
            open_ = [self._remember(incident) for incident in self._open.values()]
            memory = Memory(counts, [*open_, *self._remembered.values()][:OPEN_MAX])
        self._state.keep(memory)

    def _remember(self, incident: Incident) -> Remembered:
        entity = incident.entity
        return Remembered(
            incident.id,
            incident.kind,
            incident.severity.value,
            *(entity.scope, entity.name, entity.gpu, entity.uuid),
            since_unix_s=self._to_unix(incident.since_s),
            opened_unix_s=self._to_unix(incident.opened_s),
            seen_unix_s=self._to_unix(incident.seen_s),
        )


def _row(incident: Incident) -> tuple[str, str, str]:
    """Labels of its series of gpumon_incident_active."""
    return incident.kind, incident.entity.gpu, incident.entity.uuid


def _level(incident: Incident) -> int:
    return logging.INFO if incident.severity is Severity.INFO else logging.WARNING


def _log_opening(incident: Incident) -> None:
    log.log(
        _level(incident),
        "incident=%s id=%s kind=%s severity=%s entity=%r summary=%r action=%r",
        "restored" if incident.restored else "opened",
        incident.id,
        incident.kind,
        incident.severity,
        incident.entity.name,
        incident.summary,
        incident.action,
    )


def _log_closing(incident: Incident) -> None:
    log.info(
        "incident=closed id=%s kind=%s severity=%s entity=%r duration_s=%.1f recovery_s=%.1f requests=%d summary=%r",
        incident.id,
        incident.kind,
        incident.severity,
        incident.entity.name,
        incident.seen_s - incident.since_s,
        incident.recovery_s,
        incident.requests,
        incident.summary,
    )
