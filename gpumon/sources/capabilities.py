"""What one GPU answers for, remembered for one generation, so that nothing is asked in vain at every tick.

Wraps every optional NVML question of one device. It decides from the return code alone:

- NOT_SUPPORTED and the like: never asked again (a refusal costs 2-9 us of exceptions each time);
- INVALID_ARGUMENT to the first asking: the same, because older chips say it where they mean NOT_SUPPORTED; after
  an answer it is a failure like any other;
- NO_PERMISSION: asked again slowly, since a capability may be granted while gpumon runs;
- GPU or driver gone: raised, because whoever owns the device must act;
- anything else: a Miss, asked again at the next pass.

One object per device and generation, used by the device's thread. Holds no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeVar, TypeVarTuple

from gpumon.catalogue import GPU_FIELD_SUPPORTED
from gpumon.host.nvml import DEVICE_GONE, DRIVER_GONE, NEVER, Code, NvmlError, code_name
from gpumon.model import Miss, Reason, Sample

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GONE = DEVICE_GONE | DRIVER_GONE
"""Codes that no reading may swallow."""

_ANSWERED = -math.inf
_UNASKED = -1.0
_NEVER = math.inf


class Capabilities:
    """Memory of one device. Keys are ``field`` or ``field:part``; a field is supported when any part of it is."""

    def __init__(self, subject: str, denied_retry_s: float = 60.0) -> None:
        """``subject``: how misses name the device, such as ``gpu 3``. ``denied_retry_s``: pause after a denial."""
        self._subject = subject
        self._denied_retry_s = denied_retry_s
        # Steady second from which the key may be asked, -inf once it answered, inf when it never will: one look-up
        # and one comparison decide.
        self._ask_from: dict[str, float] = {}
        # By key, so that a caller that never takes them holds one per key and no more.
        self._misses: dict[str, Miss] = {}

    def ask(self, at_s: float, key: str, function: Callable[[*Ts], T], *args: *Ts) -> T | None:
        """Answer of ``function(*args)``; None where it is not asked or fails.

        Raises NvmlError with a code of GONE only.
        """
        ask_from = self._ask_from.get(key, _UNASKED)
        if at_s < ask_from:
            return None
        try:
            value = function(*args)
        except NvmlError as error:
            if error.code in GONE:
                raise
            self._failed(at_s, key, error.code)
            return None
        if ask_from != _ANSWERED:
            self._ask_from[key] = _ANSWERED
        return value

    def note(self, at_s: float, key: str, code: int) -> bool:
        """Take down a return code that came inside another answer (one field of a batch); True for SUCCESS.

        Raises NvmlError with a code of GONE only.
        """
        if code == Code.SUCCESS:
            if self._ask_from.get(key) != _ANSWERED:
                self._ask_from[key] = _ANSWERED
            return True
        if code in GONE:
            raise NvmlError(code, key)
        if at_s >= self._ask_from.get(key, _UNASKED):
            self._failed(at_s, key, code)
        return False

    def wanted(self, at_s: float, key: str) -> bool:
        """Whether the key would be asked now."""
        return at_s >= self._ask_from.get(key, _UNASKED)

    def supported(self, key: str) -> bool | None:
        """True once the key answered, False once it said never, None while neither (denied, or only failures)."""
        ask_from = self._ask_from.get(key)
        if ask_from == _ANSWERED:
            return True
        return False if ask_from == _NEVER else None

    def forget(self) -> None:
        """Ask everything again: after a change of MIG mode, which changes what the GPU answers for."""
        self._ask_from.clear()

    def take(self) -> list[Miss]:
        """What failed since the last taking: what is unsupported once, what is denied at each retry."""
        misses = list(self._misses.values())
        self._misses.clear()
        return misses

    def samples(self, labels: tuple[str, str]) -> Iterator[Sample]:
        """``gpumon_gpu_field_supported`` of every field that answered or said never. ``labels``: gpu, uuid."""
        fields: dict[str, bool] = {}
        for key, ask_from in self._ask_from.items():
            if ask_from in (_ANSWERED, _NEVER):
                field = key.partition(":")[0]
                fields[field] = fields.get(field, False) or ask_from == _ANSWERED
        for field, answered in fields.items():
            yield Sample(GPU_FIELD_SUPPORTED, (*labels, field), float(answered))

    def _failed(self, at_s: float, key: str, code: int) -> None:
        never = code in NEVER or (code == Code.INVALID_ARGUMENT and self._ask_from.get(key) != _ANSWERED)
        if never:
            self._ask_from[key] = _NEVER
            reason = Reason.UNSUPPORTED
        elif code == Code.NO_PERMISSION:
            self._ask_from[key] = at_s + self._denied_retry_s
            reason = Reason.DENIED
        else:
            reason = Reason.UNAVAILABLE
        self._misses[key] = Miss(f"{self._subject} {key}", reason, code_name(code))
