"""Which series a request counts in: its server and model, and its tenant, each of bounded number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gpumon import catalogue
from gpumon.model import Sample
from gpumon.requests.tenants import OTHER, UNKNOWN, BoundedLabels, Place, clean

MAX_SERVERS = 8
"""Kinds of server, which come from a closed list of that length."""
_SEPARATOR = "\x00"


class Series:
    """Slots of (server, model) pairs: those told apart, then ``other`` of each server, then (other, other)."""

    def __init__(self, max_models: int, idle_s: float) -> None:
        self._max_models = max_models
        self._servers = BoundedLabels(MAX_SERVERS, float("inf"))
        self._pairs = BoundedLabels(max_models, idle_s)
        self._others: dict[int, str] = {}
        """Server by slot, of the ``other`` slots in use."""
        self.folded = {"server": 0, "model": 0}
        """Requests counted under ``other``."""

    @property
    def slots(self) -> int:
        return self._max_models + MAX_SERVERS + 1

    def find(self, server: str, model: str, at_s: float) -> Place:
        """The pair's slot."""
        kind = clean(server)
        place = None if kind is None or kind == OTHER else self._servers.find(kind, at_s)
        if place is None or kind is None:
            self.folded["server"] += server != OTHER
            return self._other(MAX_SERVERS, OTHER)
        name = clean(model)
        if name != OTHER:
            found = None if name is None else self._pairs.find(f"{kind}{_SEPARATOR}{name}", at_s)
            if found is not None:
                return found
            self.folded["model"] += 1
        return self._other(place.slot, kind)

    def named(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Pairs in use, and their slots."""
        for pair, slot in self._pairs.named():
            server, _, model = pair.partition(_SEPARATOR)
            yield (server, model), slot
        for slot, server in sorted(self._others.items()):
            yield (server, OTHER), slot

    def _other(self, position: int, server: str) -> Place:
        slot = self._max_models + position
        self._others[slot] = server
        return Place(slot, reused=False)


class Tenants:
    """Requests and tokens by tenant; nothing where none are told apart."""

    def __init__(self, max_tenants: int, idle_s: float) -> None:
        self._on = max_tenants > 0
        self._labels = BoundedLabels(max_tenants, idle_s)
        self._counts: dict[str, Counter[str]] = {}
        self.folded = 0
        """Requests counted under ``other``."""

    def count(self, tenant: str, tokens: Mapping[str, int], at_s: float) -> None:
        """A request of a tenant ("" where nobody told), and its tokens by kind."""
        if not self._on:
            return
        label = self._label(tenant, at_s)
        known = self._counts.get(label)
        if known is None:
            known = self._counts[label] = Counter()
        known["requests"] += 1
        for kind, count in tokens.items():
            known[kind] += count

    def samples(self) -> Iterator[Sample]:
        for tenant, counts in self._counts.items():
            yield Sample(catalogue.TENANT_REQUESTS, (tenant,), float(counts["requests"]))
            for kind in catalogue.TENANT_TOKENS.values:
                yield Sample(catalogue.TENANT_TOKENS, (tenant, kind), float(counts[kind]))

    def _label(self, tenant: str, at_s: float) -> str:
        if tenant in ("", UNKNOWN):
            return UNKNOWN
        if tenant == OTHER:
            return OTHER
        name = clean(tenant)
        place = None if name is None else self._labels.find(name, at_s)
        if place is None or name is None:
            self.folded += 1
            return OTHER
        if place.reused:
            kept = {value for value, _ in self._labels.named()} | {UNKNOWN, OTHER}
            self._counts = {value: counts for value, counts in self._counts.items() if value in kept}
        return name
