"""A batch of NVML fields that shrinks to what the GPU answers for.

One ``nvmlDeviceGetFieldValues`` per read. Every field has its own return code; one that says never is left out of
the next batch. When the call as a whole says never (a driver older than field values), all its fields are
unsupported, and callers use their single calls.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpumon.host.nvml import Code, Device, Field, FieldBatch, Nvml
from gpumon.sources.capabilities import Capabilities


class FieldSet:
    """Fields of one device under capability keys. Built at the first read."""

    def __init__(
        self, nvml: Nvml, device: Device, capabilities: Capabilities, key: str, fields: Mapping[str, Field]
    ) -> None:
        """``key``: capability of the batch as a whole. ``fields``: by the capability key of each."""
        self._nvml = nvml
        self._device = device
        self._capabilities = capabilities
        self._key = key
        self._fields = dict(fields)
        self._batch: FieldBatch | None = None

    def read(self, at_s: float) -> dict[str, int | float]:
        """Raw values by capability key, of the fields that answered. Raises NvmlError with a code of GONE only."""
        if not self._fields:
            return {}
        answer = self._capabilities.ask(at_s, self._key, self._read_batch)
        if answer is None:
            if self._capabilities.supported(self._key) is False:
                for key in self._fields:
                    self._capabilities.note(at_s, key, Code.NOT_SUPPORTED)
                self._fields.clear()
            return {}
        values, codes = answer
        answers: dict[str, int | float] = {}
        for key, value, code in zip(tuple(self._fields), values, codes, strict=True):
            if self._capabilities.note(at_s, key, code):
                if value is not None:
                    answers[key] = value
            elif self._capabilities.supported(key) is False:
                del self._fields[key]
                self._batch = None
        return answers

    def drop(self, at_s: float, key: str) -> None:
        """Leave a field out from now on and call it unsupported: it answers, and means nothing."""
        if self._fields.pop(key, None) is not None:
            self._batch = None
            self._capabilities.note(at_s, key, Code.NOT_SUPPORTED)

    def _read_batch(self) -> tuple[list[int | float | None], list[int]]:
        batch = self._batch
        if batch is None:
            batch = self._batch = self._nvml.fields(self._device, tuple(self._fields.values()))
        return batch.read(), batch.codes()
