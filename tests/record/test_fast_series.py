"""``gpumon.record.fast_series``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpumon.record.fast_series import fast_series
from gpumon.record.flight_reader import Flight, IncidentRecord
from gpumon.sources.gpu_fast import Column
from tests.record.flights import row


def flight(**fast: list[dict[str, float]]) -> Flight:
    """Readings by UUID, each a tenth of a second after the one before."""
    found = Flight(Path("x"), "1", 0.0, 0.0, [column.name.lower() for column in Column])
    for uuid, readings in fast.items():
        rows = [[number / 10, *row(0.0, **values).values] for number, values in enumerate(readings)]
        found.fast[uuid] = np.array(rows)
    return found


def incident(uuid: str, gpu: str) -> IncidentRecord:
    return IncidentRecord("i", "xid", "gpu", "gpu", gpu, uuid, "warning", 0.0, 0.0, 0.0, None, "", [], "", [], 0)


def test_the_columns_that_matter_of_the_incidents_gpu_are_signals_at_the_full_rate() -> None:
    readings = [{"CLOCK_SM": 1980e6, "POWER_INSTANT": 500.0, "ENERGY": 5.0}, {"CLOCK_SM": 1005e6}]
    found = fast_series(flight(a=readings, b=readings), incident("a", "3"))
    assert [(one.name, one.unit, one.times.tolist(), one.values.tolist()) for one in found] == [
        ("fast sm_clock", "hertz", [0.0, 0.1], [1980e6, 1005e6]),
        ("fast power", "watts", [0.0], [500.0]),
    ]
    assert found[0].labels == (("gpu", "3"), ("uuid", "a"))


def test_an_incident_without_a_gpu_has_those_of_all() -> None:
    found = fast_series(flight(a=[{"SM_ACTIVE": 0.5}], b=[{"SM_ACTIVE": 0.1}]), incident("", ""))
    assert [dict(one.labels)["uuid"] for one in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("mask", "is_throttled"),
    [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (4.0, 1.0), (0x21, 1.0), (0x100, 1.0)],
)
def test_throttling_is_any_reason_but_idleness_and_configured_clocks(mask: float, is_throttled: float) -> None:
    (series,) = fast_series(flight(a=[{"REASONS": mask}]), incident("a", "3"))
    assert (series.name, series.values.tolist()) == ("fast throttled", [is_throttled])


@pytest.mark.parametrize("mask", [float("nan"), float("inf"), -1.0, 1e300])
def test_what_is_no_mask_is_no_reading(mask: float) -> None:
    assert fast_series(flight(a=[{"REASONS": mask}]), incident("a", "3")) == []


def test_columns_of_another_version_are_passed_over() -> None:
    found = flight(a=[{"SM_ACTIVE": 0.5}])
    found.columns = ["x"] * len(Column)
    assert fast_series(found, incident("a", "3")) == []
