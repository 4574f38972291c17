"""The page that dcgm-exporter would give of the same GPUs, so that its dashboards and alerts go on working.

Made from a view by the table in dcgm_names. A GPU whose identity is not known yet is left out: its series would have
other labels a minute later. namespace, pod and container are there where exactly one pod holds the GPU or instance,
and nowhere else: a shared GPU's values are nobody's alone. With MIG on, the instances come beside their GPU, told
apart by GPU_I_PROFILE and GPU_I_ID as there. Never OpenMetrics: several names are counters without ``_total``, which
that format forbids.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from gpumon.catalogue import GPU_INFO, GPU_POD, GPU_XID_LAST, MIG_INFO
from gpumon.export.dcgm_names import XID_MESSAGES, Field, NameSet, Take
from gpumon.export.text import Page, head, series
from gpumon.model import Metric, Sample
from gpumon.store import View

RATE_WINDOW_S = 15.0
RATE_MIN_S = 1.0
"""A rate needs at least this much time between its first point and its last."""

POD_LABELS = ("container", "namespace", "pod")
Pairs = tuple[tuple[str, str], ...]


class DcgmExposition:
    """Renders views under another exporter's names. Holds nothing between pages."""

    def __init__(self, names: NameSet, hostname: str) -> None:
        """hostname: what the host label says on every series."""
        self._names = names
        self._hostname = hostname

    def render(self, view: View) -> Page:
        """The page of this view; to be sent as text 0.0.4."""
        entities = self._entities(view)
        families = []
        for field in self._names.fields:
            lines = list(_lines(field, view, entities))
            if lines:
                families.append((head(field.name, field.name, field.kind, "", field.help), lines))
        return Page(families)

    def _entities(self, view: View) -> dict[str, tuple[Pairs, Pairs]]:
        """By UUID of a GPU or MIG instance: the labels before and after those of a field."""
        entities: dict[str, tuple[Pairs, Pairs]] = {}
        pods = {pod["uuid"]: pod for pod in map(_named, view.family(GPU_POD))}
        for sample in view.family(GPU_INFO):
            gpu = _named(sample)
            entities[gpu["uuid"]] = (
                (
                    ("gpu", gpu["gpu"]),
                    ("UUID", gpu["uuid"]),
                    ("pci_bus_id", gpu["pci_bus_id"].upper().rjust(len("00000000:00:00.0"), "0")),
                    ("device", f"nvidia{gpu['gpu']}"),
                    ("modelName", gpu["name"]),
                ),
                (
                    (self._names.host_label, self._hostname),
                    (self._names.driver_label, gpu["driver_version"]),
                    *_of_pod(pods.get(gpu["uuid"])),
                ),
            )
        for sample in view.family(MIG_INFO):
            instance = _named(sample)
            parent = entities.get(instance["parent_uuid"])
            if parent is not None:
                ids = (("GPU_I_PROFILE", instance["profile"]), ("GPU_I_ID", instance["gpu_instance"]))
                of_gpu = tuple(pair for pair in parent[1] if pair[0] not in POD_LABELS)
                entities[instance["uuid"]] = ((*parent[0], *ids), (*of_gpu, *_of_pod(pods.get(instance["uuid"]))))
        return entities


def _of_pod(pod: dict[str, str] | None) -> Pairs:
    """Labels of the one pod; a label that would be empty is none."""
    return tuple((label, pod[label]) for label in POD_LABELS if pod[label]) if pod is not None else ()


def _lines(field: Field, view: View, entities: dict[str, tuple[Pairs, Pairs]]) -> Iterator[bytes]:
    written: set[Pairs] = set()
    values = _last_xids(field.metric, view) if field.take is Take.LAST_XID else _values(field, field.metric, view)
    if field.mig is not None:
        values = chain(values, _values(field, field.mig, view))
    for uuid, value in values:
        known = entities.get(uuid)
        # Compute instances of one GPU instance are one entity there: the first stands for all.
        if known is None or known[0] in written:
            continue
        written.add(known[0])
        pairs = (*known[0], *known[1])
        if field.take is Take.LAST_XID:
            message = XID_MESSAGES.get(int(value), "Unknown Error")
            pairs = (*pairs, ("err_code", f"{value:.0f}"), ("err_msg", message))
        yield f"{series(field.name, pairs)}{_number(field, value)}\n".encode()


def _values(field: Field, metric: Metric, view: View) -> Iterator[tuple[str, float]]:
    """UUID and value in our unit, for every GPU or instance that has all that the field is made of."""
    parts: dict[str, list[float | None]] = {}
    for sample in view.family(metric):
        named = _named(sample)
        if all(named[label] == value for label, value in field.where):
            part = _rate(view, sample) if field.take is Take.RATE else sample.value
            parts.setdefault(named["uuid"], []).append(part if isinstance(part, float) else None)
    for uuid, numbers in parts.items():
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            yield uuid, sum(known)


def _rate(view: View, sample: Sample) -> float | None:
    times, values = view.window(sample.metric, sample.labels, view.at_s - RATE_WINDOW_S)
    falls = np.flatnonzero(np.diff(values) < 0)
    if len(falls):  # the counter began anew: only what came after counts
        times, values = times[falls[-1] + 1 :], values[falls[-1] + 1 :]
    if len(times) < 2 or times[-1] - times[0] < RATE_MIN_S:
        return None
    return float((values[-1] - values[0]) / (times[-1] - times[0]))


def _last_xids(watched: Metric, view: View) -> Iterator[tuple[str, float]]:
    """UUID and code of the newest XID, 0 for GPUs that are watched and had none."""
    newest: dict[str, tuple[float, float]] = {}
    for sample in view.family(GPU_XID_LAST):
        named = _named(sample)
        if isinstance(sample.value, float) and named["xid"].isdecimal():
            seen = (sample.value, float(named["xid"]))
            newest[named["uuid"]] = max(seen, newest.get(named["uuid"], seen))
    for uuid in dict.fromkeys(_named(sample)["uuid"] for sample in view.family(watched)):
        yield uuid, newest[uuid][1] if uuid in newest else 0.0


def _number(field: Field, value: float) -> str:
    return f"{value * field.factor:.0f}" if field.whole else f"{value * field.factor:.6f}"


def _named(sample: Sample) -> dict[str, str]:
    return dict(zip(sample.metric.labels, sample.labels, strict=True))
