"""What the main process hands to the sampler process when it starts it: one JSON argument and two descriptors."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass, field

from gpumon.sampler.ring import Ring
from gpumon.sampler.wire import Channel

SLOTS = 64
"""GPUs that the ring has room for: twice as many as any node has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How often what is read, in seconds."""

    fast_s: float = 0.1
    mig_s: float = 1.0
    slow_s: float = 5.0
    inventory_s: float = 60.0
    stuck_after_s: float = 5.0
    """A call that takes longer is reported as stuck."""
    retry_min_s: float = 1.0
    """Shortest pause before NVML is opened again."""
    retry_max_s: float = 60.0
    lost_retry_s: float = 5.0
    """Shortest pause before a GPU that does not answer is looked for again, up to twelve times as long."""
    refresh_s: float = 60.0
    """Shortest pause before a new generation is tried for it, up to fifteen times as long."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The argument of the sampler process."""

    ring_fd: int
    channel_fd: int
    plan: Plan = field(default_factory=Plan)
    options: dict[str, str] = field(default_factory=dict)
    """For the entry point: library and roots of the real one, the world of the simulated one."""

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> Handover:
        fields = json.loads(argument)
        return cls(fields["ring_fd"], fields["channel_fd"], Plan(**fields["plan"]), fields["options"])

    def ring(self) -> Ring:
        return Ring.attach(self.ring_fd)

    def channel(self) -> Channel:
        return Channel(socket.socket(fileno=self.channel_fd))
