"""Requests whose prefill and decode were done by two servers: two request spans that become one record.

The decode half is the request as its client saw it and gives times and tokens; the prefill half gives the phases that
ran there. Each duration is of one host's clock, none is taken between the two. A half whose partner does not come
within ``wait_s`` (its server reports to another gpumon, or decodes for longer) is handed out alone.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gpumon.model import RequestRecord

_WORST = ("incomplete", "aborted", "error")


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    kind: str
    record: RequestRecord
    until_s: float


class Halves:
    """Halves that wait for each other, by what they have in common. size: most of them; the oldest go alone."""

    def __init__(self, wait_s: float, size: int = 4096) -> None:
        self._wait_s = wait_s
        self._size = size
        self._waiting: OrderedDict[str, _Half] = OrderedDict()

    def add(self, kind: str, room: str, record: RequestRecord, at_s: float) -> list[RequestRecord]:
        """Take a half; the records that are ready with it."""
        other = self._waiting.pop(room, None)
        if other is not None and other.kind != kind:
            decode, prefill = (record, other.record) if kind == "decode" else (other.record, record)
            return [_joined(decode, prefill)]
        ready = [other.record] if other is not None else []
        self._waiting[room] = _Half(kind, record, at_s + self._wait_s)
        if len(self._waiting) > self._size:
            ready.append(self._waiting.popitem(last=False)[1].record)
        return ready

    def expire(self, at_s: float) -> list[RequestRecord]:
        """Halves that waited long enough."""
        alone = []
        while self._waiting and next(iter(self._waiting.values())).until_s <= at_s:
            alone.append(self._waiting.popitem(last=False)[1].record)
        return alone


def _joined(decode: RequestRecord, prefill: RequestRecord) -> RequestRecord:
    decode.queue_s = prefill.queue_s if prefill.queue_s is not None else decode.queue_s
    decode.prefill_s = prefill.prefill_s if prefill.prefill_s is not None else decode.prefill_s
    # What the decode server waited for the cache is what delayed the token; the sender's view stands in for it.
    decode.kv_sync_s = decode.kv_sync_s if decode.kv_sync_s is not None else prefill.kv_sync_s
    decode.prompt_tokens = decode.prompt_tokens if decode.prompt_tokens is not None else prefill.prompt_tokens
    decode.cached_tokens = prefill.cached_tokens if prefill.cached_tokens is not None else decode.cached_tokens
    decode.model = decode.model or prefill.model
    decode.tenant = decode.tenant or prefill.tenant
    decode.inference_id = decode.inference_id or prefill.inference_id
    decode.prompt_hash = decode.prompt_hash or prefill.prompt_hash
    decode.parameters = prefill.parameters | decode.parameters
    for outcome in _WORST:
        if outcome in (decode.outcome, prefill.outcome):
            decode.outcome = outcome
    decode.arrived_s = max(decode.arrived_s, prefill.arrived_s)
    return decode
