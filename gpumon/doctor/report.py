"""What the doctor says: checks with a status, the verdict over all of them, and the JSON that scripts read.

Exit status (``Report.exit_code``; 2 stays with wrong arguments and configuration):

- 0  everything this machine can have works. What it cannot have (``unsupported``) does not count.
- 1  something is missing or works in part, and a change would fix it: each such check says which.
- 3  the main thing does not work: no GPU can be read, or, with ``nvml.enabled`` off, not even the host's /proc/vmstat.

JSON (``as_json``), stable; keys may be added, none will go or change its meaning:

- ``gpumon``, ``exit_code``, ``verdict``: version, exit status, one sentence.
- ``process``: ``uid``, ``capabilities`` (effective, without ``CAP_``, in the kernel's order), ``container`` (bool).
- ``checks``: in the order of the terminal, each ``id`` (stable), ``section`` (gpu, host, gpumon), ``title``,
  ``status`` (ok, degraded, missing, unsupported), ``detail`` (what was found), ``fix`` (what would change it; empty
  for ok and unsupported), ``gives`` (metrics that need it).
- ``gpus``: one object per GPU that NVML counts: ``gpu`` (index), ``uuid``, ``name``, ``pci_bus_id``,
  ``architecture``, ``activity`` (gpm, utilization or empty), ``mig_mode``, ``mig_devices``, ``xid_events`` (yes, no,
  denied, failed or empty), ``fields`` (lists ``supported``, ``unsupported``, ``denied``, ``failed``: what
  gpumon_gpu_field_supported calls them), ``error`` and ``stuck`` (empty, or NVML's answer and the function inside).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from gpumon import __version__
from gpumon.doctor.facts import GpuFacts
from gpumon.model import Metric


class Status(StrEnum):
    """State of one check."""

    OK = "ok"
    DEGRADED = "degraded"  # works in part; a change would fix the rest
    MISSING = "missing"  # does not work; a change would fix it
    UNSUPPORTED = "unsupported"  # this machine does not have it, or the configuration turned it off: normal


PROBLEMS = frozenset({Status.DEGRADED, Status.MISSING})
SECTIONS = ("gpu", "host", "gpumon")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    id: str
    section: str
    title: str
    status: Status
    detail: str
    fix: str = ""
    gives: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        assert bool(self.fix) == (self.status in PROBLEMS), f"{self.id}: a problem, and only a problem, has a fix"


def checker(id_: str, section: str, title: str, gives: tuple[Metric, ...]) -> Callable[..., Check]:
    """What makes one check's outcome: ``(status, detail, fix="")``."""

    def check(status: Status, detail: str, fix: str = "") -> Check:
        return Check(id_, section, title, status, detail, fix, gives)

    return check


def listed(names: Iterable[str], separator: str = ", ", most: int = 6) -> str:
    """Names for people: the first ``most``, and how many more."""
    names = list(names)
    rest = f"{separator}and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + rest


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found."""

    checks: tuple[Check, ...]
    gpus: tuple[GpuFacts, ...]
    uid: int
    capabilities: tuple[str, ...]
    container: bool
    essential: tuple[str, ...]
    """Ids of the checks without any of which nothing useful works."""

    @property
    def problems(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status in PROBLEMS)

    @property
    def exit_code(self) -> int:
        if any(check.id in self.essential and check.status is Status.MISSING for check in self.checks):
            return 3
        return 1 if self.problems else 0

    @property
    def verdict(self) -> str:
        """One sentence for people."""
        count = len(self.problems)
        if not count:
            return "Everything that this machine can have works."
        things = f"{count} thing{'s' if count > 1 else ''} that a change would fix"
        if self.exit_code == 3:
            return f"The main thing does not work; {things}."
        return f"Works, with {things}."

    def as_json(self) -> str:
        """See the module's docstring."""
        return json.dumps(
            {
                "gpumon": __version__,
                "exit_code": self.exit_code,
                "verdict": self.verdict,
                "process": {
                    "uid": self.uid,
                    "capabilities": list(self.capabilities),
                    "container": self.container,
                },
                "checks": [
                    {
                        "id": check.id,
                        "section": check.section,
                        "title": check.title,
                        "status": str(check.status),
                        "detail": check.detail,
                        "fix": check.fix,
                        "gives": [metric.name for metric in check.gives],
                    }
                    for check in self.checks
                ],
                "gpus": [_gpu(gpu) for gpu in self.gpus],
            },
            indent=2,
        )


def _gpu(gpu: GpuFacts) -> dict[str, object]:
    fields = asdict(gpu)
    groups = {name: fields.pop(name) for name in ("supported", "unsupported", "denied", "failed")}
    error = fields.pop("error")
    return {
        "gpu": fields.pop("index"),
        **{name: value for name, value in fields.items() if name not in ("recovery_action", "processes", "pids")},
        "fields": groups,
        "error": f"{error['function']}: {error['name']}" if error else "",
    }
