"""/api/v1/node and /api/v1/sources: which gpumon this is, what it can see and what it cannot."""

from __future__ import annotations

import pytest

from gpumon import __version__, catalogue
from gpumon.model import Sample
from tests.web.known import OFFSET_S, START_S, Known, gpu_sample


def test_before_anything_is_known_it_says_who_it_is() -> None:
    node = Known().get("node")
    assert (node["name"], node["version"], node["demo"]) == ("node-1", __version__, False)
    assert (node["at"], node["started"], node["uptime_seconds"]) == (START_S + OFFSET_S, START_S - 10 + OFFSET_S, 10.0)
    assert node["clock_offset_seconds"] == OFFSET_S
    assert node["nvml"] == {
        "state": "off", "error": None, "driver_version": None, "nvml_version": None, "cuda_version": None,
    }  # fmt: skip
    assert node["gpus"] == {"expected": None, "present": None, "lost": None}
    assert node["off"] == [{"part": "traces", "why": "otlp.enabled is off"}]
    assert (node["healthy"], node["sources"], node["unsupported"]) == (True, [], [])


def test_the_driver_and_what_gpus_do_not_have_are_told() -> None:
    known = Known()
    known.put(
        "nvml",
        Sample(catalogue.NVML_STATE, ("unavailable",), 1.0),
        Sample(catalogue.NVML_STATE, ("running",), 0.0),
        Sample(catalogue.NVML_ERROR, ("NVML_ERROR_DRIVER_NOT_LOADED",), 1.0),
        Sample(catalogue.DRIVER_INFO, ("590.48.01", "13.590.48.01", "13.1"), 1.0),
        Sample(catalogue.GPU_COUNT, ("expected",), 8.0),
        Sample(catalogue.GPU_COUNT, ("lost",), 1.0),
        *(gpu_sample(catalogue.GPU_FIELD_SUPPORTED, 0.0, "fan", gpu=(str(n), f"GPU-{n}")) for n in (10, 2)),
        gpu_sample(catalogue.GPU_FIELD_SUPPORTED, 1.0, "power"),
    )
    node = known.get("node")
    assert (node["nvml"]["state"], node["nvml"]["error"]) == ("unavailable", "NVML_ERROR_DRIVER_NOT_LOADED")
    assert node["nvml"]["driver_version"] == "590.48.01"
    assert node["gpus"] == {"expected": 8, "present": None, "lost": 1}
    assert node["unsupported"] == [{"field": "fan", "gpus": ["2", "10"]}]


@pytest.mark.parametrize("path", ["sources", "node"])
def test_sources_are_told_with_their_errors(path: str) -> None:
    known = Known()
    known.put(
        "gpumon",
        Sample(catalogue.SOURCE_UP, ("host",), 1.0),
        Sample(catalogue.SOURCE_UP, ("numa",), 0.0),
        Sample(catalogue.SOURCE_LAST_SUCCESS, ("host",), 1.8e9),
        Sample(catalogue.SOURCE_DURATION, ("host",), 0.002),
        Sample(catalogue.SOURCE_ERRORS, ("numa", "denied"), 3.0),
        Sample(catalogue.SOURCE_ERRORS, ("gone", "denied"), 3.0),
    )
    told = known.get(path)
    if path == "node":
        assert told["healthy"] is False
        told = told["sources"]
    assert told == [
        {"source": "host", "up": True, "last_success": 1.8e9, "duration_seconds": 0.002, "errors": {}},
        {"source": "numa", "up": False, "last_success": None, "duration_seconds": None, "errors": {"denied": 3.0}},
    ]
