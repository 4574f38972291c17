"""All requests whose details are known: the newest (``recent``), and those that are held for later (``held``)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from gpumon.detect.incident import Incident
from gpumon.explain.explained import Explained, Key
from gpumon.explain.held import Held
from gpumon.explain.recent import Recent


class Details:
    """One thread keeps; any may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Over ``held``."""
        self._recent = Recent()
        self._held = Held()

    def keep(self, explained: Sequence[Explained]) -> None:
        """Those that ended, the newest last. One that is told again is known as it was told last."""
        self._recent.keep(explained)
        with self._lock:
            self._held.offer(explained)

    def name(self, incidents: Iterable[Incident]) -> None:
        """Hold the requests that incidents name, as far as they are known."""
        for incident in incidents:
            if incident.traces:
                self._name(incident.id, [*zip(incident.traces, incident.spans, strict=True)])

    def _name(self, incident_id: str, keys: Sequence[Key]) -> None:
        with self._lock:
            named = self._held.named(incident_id)
            missing = [(key, self._recent.get(key) or self._held.get(key)) for key in keys if key not in named]
            found = [(key, each) for key, each in missing if each is not None]
            if found:
                self._held.name(incident_id, keys, found)

    # --- what others ask ----------------------------------------------------------------------------------------------

    def find(self, trace_id: str) -> list[Explained]:
        """What is known of the requests of a trace (32 hex digits), the earliest first."""
        found = self._recent.find(trace_id)
        with self._lock:
            for key in [key for key in self._held.all_keys() if key[0] == trace_id]:
                if key not in found and (each := self._held.get(key)) is not None:
                    found[key] = each
        return sorted(found.values(), key=lambda each: each.start_s)

    def of_span(self, trace_id: bytes, span_id: bytes) -> Explained | None:
        """What is known of the request that this span is of; None for other spans."""
        key = (trace_id.hex(), span_id.hex())
        found = self._recent.get(key)
        if found is None:
            with self._lock:
                found = self._held.get(key)
        return found

    def knows(self, trace_id: str, span_id: str) -> bool:
        """Whether the details of a request are known. span_id: empty where it has none."""
        key = (trace_id, span_id)
        if key in self._recent:
            return True
        with self._lock:
            return key in self._held

    def holds(self, trace_id: str, span_id: str) -> bool:
        """Whether they are held for later."""
        with self._lock:
            return (trace_id, span_id) in self._held

    def traces(self, beginning: str) -> list[str]:
        """Ids of traces of which something is known that begin with these hex digits, in order."""
        found = {key[0] for key in self._recent.all_keys() if key[0].startswith(beginning)}
        with self._lock:
            found.update(key[0] for key in self._held.all_keys() if key[0].startswith(beginning))
        return sorted(found)

    def slow(self) -> list[Explained]:
        """The newest requests that were slow, the newest first."""
        return self._recent.slow()
