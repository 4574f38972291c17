"""The driver's own ring of GPU utilization samples: every value of about 7 a second, however rarely we look.

nvmlDeviceGetSamples(GPU_UTIL), percent, timestamps in us. The ring holds about 10 s, so it wants a
reading every 5 s. Feeds the busy-time integral, weighted by the time between samples, and the histogram of samples.
Not there under MIG; where it never is, the fast samples integrate instead: whoever does asks
``capabilities.supported(RING)``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumon.catalogue import GPU_BUSY_SECONDS, GPU_UTILIZATION_SAMPLES
from gpumon.host.nvml import Device, Nvml, UtilizationSample
from gpumon.model import Item, Reason, Rejection, Sample
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu_state import Cursor, GpuState

RING = "utilization_samples"
"""Capability key: supported() is True where the ring integrates busy time, False where the fast samples must."""

QUIET_S = 30.0
"""The ring moves several times a second; half a minute without is a clock that went back."""
LONGEST_SAMPLE_S = 2.0
"""NVML's sample period is 1/6 to 1 s: after a gap, one sample does not speak for all of it."""


class UtilizationRing:
    """Reads the ring of one GPU in one generation; totals live in the state."""

    def __init__(
        self, nvml: Nvml, device: Device, labels: tuple[str, str], capabilities: Capabilities, state: GpuState
    ) -> None:
        self._nvml = nvml
        self._device = device
        self._labels = labels
        self._capabilities = capabilities
        self._state = state
        self._cursor = Cursor(QUIET_S)

    def read(self, at_s: float) -> list[Item]:
        """Totals so far; nothing where the ring cannot be read, since a standing counter would say idle."""
        since_us = self._cursor.since(at_s)
        ring = self._capabilities.ask(at_s, RING, self._nvml.utilization_samples, self._device, since_us)
        if ring is None:
            return []
        items = self._take(at_s, since_us, ring)
        items.append(Sample(GPU_BUSY_SECONDS, self._labels, self._state.busy_s))
        items.append(Sample(GPU_UTILIZATION_SAMPLES, self._labels, self._state.utilization.distribution()))
        return items

    def _take(self, at_s: float, since_us: int, ring: Sequence[UtilizationSample]) -> list[Item]:
        items: list[Item] = []
        newest_us = since_us
        for timestamp_us, percent in sorted(ring):
            if timestamp_us <= newest_us:  # known, twice the same, or a placeholder at 0
                continue
            if not 0 <= percent <= 100:
                items.append(Rejection(RING, Reason.OUT_OF_RANGE))
                continue
            if since_us:  # else it is from before we began, or from a clock that went back
                busy = percent / 100
                self._state.utilization.observe(busy)
                self._state.busy_s += busy * min((timestamp_us - newest_us) / 1e6, LONGEST_SAMPLE_S)
            newest_us = timestamp_us
        self._cursor.advance(at_s, newest_us)
        return items
