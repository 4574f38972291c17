"""XID errors in the kernel log: those that came before NVML's events were registered, or that NVML never tells.

Lines like ``NVRM: Xid (PCI:0000:3b:00): 79, pid=…``. What is found goes to a sink, not into samples: the XID ledger
counts what the kernel log and NVML both tell once. Needs what ``host.kmsg`` needs; without it the source as a whole
is DENIED or UNAVAILABLE and NVML's events remain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpumon.host.files import ReadError
from gpumon.host.kmsg import KernelLog
from gpumon.model import Item, Miss, Reason, SourceError

# Old drivers leave out "PCI:"; under MIG the instance follows the address ("GPU-I:02"). Matched from the line's
# beginning, after dmesg's time stamp if there is one: the rest of a line holds process names, which anyone chooses.
_XID = re.compile(
    r"(?:\[ *\d+\.\d+\] )?NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?"
    r"(?: [^)]{1,64})?\): (\d{1,9})(?!\d)",
    re.ASCII,
)


class KernelXid(NamedTuple):
    """One XID line."""

    pci_bus_id: str
    """As the kernel spells it: ``0000:3b:00.0``."""
    xid: int


def parse_xid(text: str) -> KernelXid | None:
    """The XID that a line of the kernel log tells, or None; any number, also one that is no XID."""
    found = _XID.match(text)
    if found is None:
        return None
    domain, bus, device, xid = found.groups()
    # The log omits the function, which is 0 for every GPU; the kernel writes a domain with at least four digits.
    return KernelXid(f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.0", int(xid))


class KernelLogSource:
    """Source ``kernel_log``; yields only misses. Should be read at least once a second.

    on_xid: takes each XID with the steady second at which it was read. The kernel's own stamps drift from that clock
    by minutes over a month, so they cannot be compared with the times of NVML's events.
    """

    name = "kernel_log"

    def __init__(self, log: KernelLog, on_xid: Callable[[KernelXid, float], None]) -> None:
        self._log = log
        self._on_xid = on_xid
        self._overruns = 0

    def read(self, at_s: float) -> Iterator[Item]:
        try:
            lines = self._log.read()
        except ReadError as err:
            hint = " (CAP_SYSLOG, kernel.dmesg_restrict)" if err.reason is Reason.DENIED else ""
            raise SourceError(err.reason, f"{err.path}: {err.detail}{hint}") from err
        for line in lines:
            xid = parse_xid(line.text)
            if xid is not None:
                self._on_xid(xid, at_s)
        if self._log.overruns != self._overruns:
            self._overruns = self._log.overruns
            yield Miss("kernel log", Reason.UNAVAILABLE, "records were overwritten before they were read")
