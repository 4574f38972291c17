"""The shape of the page of each kind of GPU, in golden files: a family or label that goes or changes shows as a diff.

Values that stand still on an idle node are compared as well; those that move are written as a dot. gpumon's accounts
of itself are there by name alone: what they hold depends on the moment.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumon.catalogue import BUILD_INFO, GROUPS, INCIDENT_ACTIVE, METRICS
from gpumon.model import Kind, Metric, Unit
from tests.e2e import nodes
from tests.e2e.daemon import FAST, Daemon
from tests.e2e.page import Page
from tests.e2e.waiting import eventually
from tests.golden_file import golden

OWN = {*GROUPS["gpumon itself"], *GROUPS["incidents"], BUILD_INFO} - {INCIDENT_ACTIVE}
"""That no incident is open on a node that stands still is part of its shape."""
MOVING = {Unit.SECONDS, Unit.TIMESTAMP}


@pytest.mark.parametrize("profile", ["h200", "a100-mig", "l40s", "t4", "gb10"])
def test_the_page_has_the_shape_it_had(profile: str, tmp_path: Path) -> None:
    host = nodes.HOSTS.get(profile, "h200")
    options = FAST | {
        "GPUMON_NUMA__ENABLED": "false"
    }  # it would ask this machine's kernel about the fixture's processes
    with (
        nodes.make(tmp_path, profile, 1) as node,
        Daemon(tmp_path, env=node.env(), host=host, options=options) as daemon,
    ):
        daemon.await_ready()
        daemon.await_series("gpumon_nvml_call_seconds_count", call="nvmlDeviceGetUtilizationRates")
        shapes: list[str] = []

        def still() -> str | None:
            """The shape once it is twice the same: by then everything has been read."""
            shapes.append(shape(daemon.page()))
            return shapes[-1] if len(shapes) > 1 and shapes[-1] == shapes[-2] else None

        found = eventually(still, "the page has settled", every_s=1.5)
    golden(f"e2e/{profile}.txt", found.encode())


def shape(page: Page) -> str:
    """A line for every series: a histogram is one line, and so is a family of gpumon's own."""
    lines: list[str] = []
    for metric in METRICS:
        if metric.name not in page.names():
            continue
        if metric in OWN:
            lines.append(metric.name)
            continue
        name = f"{metric.name}_count" if metric.kind is Kind.HISTOGRAM else metric.name
        told = sorted(page.samples.get(name, {}).items(), key=lambda item: sorted(item[0]))
        for labels, value in told:
            ordered = dict(labels)
            pairs = ",".join(f'{label}="{ordered.pop(label)}"' for label in metric.labels)
            assert ordered == {}
            lines.append(f"{name}{{{pairs}}} {_shown(metric, value)}")
    return "\n".join(lines) + "\n"


def _shown(metric: Metric, value: float) -> str:
    moves = metric.kind in (Kind.HISTOGRAM, Kind.COUNTER) or metric.unit in MOVING
    return "." if moves else f"{value:.6g}"
