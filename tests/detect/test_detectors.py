"""The list of all detectors, and what the configuration may say about them."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from gpumon.catalogue import INCIDENT_KINDS, SEVERITIES
from gpumon.config import DetectConfig
from gpumon.detect.detector import Detector, IncidentKind
from gpumon.detect.detectors import DETECTORS, DetectConfigError, build_detectors, thresholds_of
from tests.detect.findings import POWER, QUEUE, THERMAL, Scripted
from tests.detect.scenes import Stage

each_detector = pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.__name__)


class Throttling(Scripted):
    """Two kinds, two thresholds."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (THERMAL, POWER)
    thresholds: ClassVar[Mapping[str, str]] = {"share": "of an interval, ratio", "least": "intervals"}

    def __init__(self, *, share: float = 0.05, least: int = 2) -> None:
        super().__init__()
        if share > 1:
            raise ValueError(f"share = {share}: expected at most 1")
        self.share = share
        self.least = least


class Queue(Scripted):
    """One kind, no thresholds."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (QUEUE,)


CLASSES: tuple[type[Detector], ...] = (Throttling, Queue)


def problems(**told: Any) -> tuple[str, ...]:
    with pytest.raises(DetectConfigError) as caught:
        build_detectors(DetectConfig(**told), CLASSES)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


# --- the list ---------------------------------------------------------------------------------------------------------


def test_every_kind_of_the_catalogue_is_of_exactly_one_detector() -> None:
    kinds = Counter(kind.name for detector in DETECTORS for kind in detector.kinds)
    assert kinds == Counter(INCIDENT_KINDS)


@each_detector
def test_every_threshold_is_a_keyword_with_a_number_as_default(detector: type[Detector]) -> None:
    parameters = inspect.signature(detector).parameters
    assert set(parameters) == set(detector.thresholds)
    for parameter in parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    for threshold in thresholds_of(detector):
        assert type(threshold.default) in (int, float), threshold.name
        assert math.isfinite(threshold.default)
        assert threshold.default >= 0
        assert threshold.meaning


@each_detector
def test_every_kind_is_told_in_full(detector: type[Detector]) -> None:
    assert detector.kinds
    for kind in detector.kinds:
        assert kind.fires_when
        assert kind.action.endswith(".")
        assert "`" not in kind.action  # it is told on terminals and pages as it is
        assert kind.severities
        assert len(set(kind.severities)) == len(kind.severities)
        assert {severity.value for severity in kind.severities} <= set(SEVERITIES)
        assert kind.hold_s > 0


@each_detector
def test_nothing_is_found_where_nothing_is_known(detector: type[Detector]) -> None:
    stage = Stage()
    made = detector()
    assert [finding for _ in range(30) for finding in made.step(stage.step())] == []


def test_by_default_all_look() -> None:
    built = build_detectors(DetectConfig())
    assert tuple(type(detector) for detector in built.detectors) == DETECTORS
    assert {kind.name for kind in built.kinds} == set(INCIDENT_KINDS)


# --- the configuration ------------------------------------------------------------------------------------------------


def test_a_detector_is_left_out_when_all_its_kinds_are_off() -> None:
    built = build_detectors(DetectConfig(off=("thermal_throttle",)), CLASSES)
    assert [type(detector) for detector in built.detectors] == [Throttling, Queue]
    assert [kind.name for kind in built.kinds] == ["power_throttle", "queue_buildup"]
    built = build_detectors(DetectConfig(off=("thermal_throttle", "power_throttle")), CLASSES)
    assert [type(detector) for detector in built.detectors] == [Queue]
    assert [kind.name for kind in built.kinds] == ["queue_buildup"]


@pytest.mark.parametrize("kind", ["thermal_throttle", "power_throttle"])
def test_thresholds_are_taken_under_any_kind_of_their_detector(kind: str) -> None:
    built = build_detectors(DetectConfig(thresholds={kind: {"share": 0.2, "least": 3.0}}), CLASSES)
    made = built.detectors[0]
    assert isinstance(made, Throttling)
    assert (made.share, made.least) == (0.2, 3)
    assert type(made.least) is int


def test_the_same_threshold_under_two_kinds_must_be_the_same() -> None:
    same = {"thermal_throttle": {"share": 0.2}, "power_throttle": {"share": 0.2}}
    built = build_detectors(DetectConfig(thresholds=same), CLASSES)
    assert isinstance(built.detectors[0], Throttling)
    assert problems(thresholds={"thermal_throttle": {"share": 0.2}, "power_throttle": {"share": 0.3}}) == (
        "detect.thresholds[power_throttle][share] = 0.3: expected 0.2 as for thermal_throttle, which shares its "
        "thresholds",
    )


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {"off": ("thermal_throtle",)},
            'detect.off[0] = "thermal_throtle": expected a kind of incident; did you mean thermal_throttle?',
        ),
        (
            {"off": ("queue_buildup", "")},
            'detect.off[1] = "": expected a kind of incident; known are thermal_throttle, power_throttle, '
            "queue_buildup",
        ),
        (
            {"thresholds": {"queue_build": {"share": 1.0}}},
            'detect.thresholds["queue_build"]: expected a kind of incident; did you mean queue_buildup?',
        ),
        (
            {"thresholds": {"power_throttle": {"shar": 0.1}}},
            'detect.thresholds[power_throttle]["shar"]: expected the name of a threshold; did you mean share?',
        ),
        (
            {"thresholds": {"queue_buildup": {"share": 0.1}}},
            'detect.thresholds[queue_buildup]["share"]: expected the name of a threshold; known are none',
        ),
        (
            {"thresholds": {"power_throttle": {"share": -0.1}}},
            "detect.thresholds[power_throttle][share] = -0.1: expected a number from 0",
        ),
        (
            {"thresholds": {"power_throttle": {"least": 2.5}}},
            "detect.thresholds[power_throttle][least] = 2.5: expected a whole number",
        ),
        (
            {"thresholds": {"power_throttle": {"share": 2.0}}},
            "detect.thresholds[thermal_throttle]: share = 2.0: expected at most 1",
        ),
    ],
)
def test_what_is_wrong_is_told_with_key_value_and_what_was_expected(told: dict[str, Any], said: str) -> None:
    assert problems(**told) == (said,)


@pytest.mark.parametrize("value", [math.nan, math.inf, "much", None])
def test_the_configuration_itself_refuses_what_is_no_finite_number(value: object) -> None:
    with pytest.raises(ValidationError):
        DetectConfig.model_validate({"thresholds": {"power_throttle": {"share": value}}})


def test_every_problem_is_told_and_hostile_names_are_on_one_line() -> None:
    told = problems(
        off=("x\ny",),
        thresholds={"power_throttle": {"a\nb" * 100: 1.0, "share": -1.0}, "\x1b[2J": {}},
    )
    assert len(told) == 4
    assert all(line.isprintable() and len(line) < 200 for line in told)
