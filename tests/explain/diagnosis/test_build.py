"""A whole diagnosis: never raises, is JSON and comes back from it, and its parts agree with one another."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpumon.catalogue import CAUSES
from gpumon.explain.diagnosis.build import diagnose
from gpumon.explain.diagnosis.inputs import Inputs, Track
from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.explain.explained import Account, Explained, Share
from gpumon.explain.group import Group
from gpumon.explain.signs import Fact
from gpumon.model import Unit
from tests.explain.diagnosis.requests import Signal, inputs, request
from tests.explain.diagnosis.test_incidents import incident


class Pair(NamedTuple):
    """A strong pair."""

    x: str
    y: str
    r: float
    lag_s: float
    n_eff: float
    p: float


DIMENSIONS = (
    Signal("a", bound=0.5, healthy="< 0.5"),
    Signal("b", bound=0.5, healthy="> 0.5", high_is_bad=False),
    Signal("c"),
)
FIGURES = st.floats(0.0, 1e6) | st.sampled_from([0.0, 1e-9, 3e38, 1e300])
SIGNALS = st.floats(width=32)
NAMES = st.sampled_from(["", "a", "b", "other", "\x00", "‮x", "x" * 300])


@st.composite
def accounts(draw: st.DrawFn) -> Account:
    shares = draw(
        st.lists(
            st.builds(
                Share,
                st.sampled_from(CAUSES),
                FIGURES,
                st.floats(0.0, 1.0),
                st.none() | st.floats(0.0, 100.0),
                st.none() | st.builds(Fact, st.just("x"), st.floats(), st.sampled_from(Unit), st.none() | st.floats()),
            ),
            max_size=3,
        )
    )
    excess = draw(st.sampled_from([sum(share.seconds for share in shares), 1.0]))
    return Account(draw(st.none() | FIGURES), draw(FIGURES), excess if shares else 0.0, tuple(shares))


@st.composite
def requests(draw: st.DrawFn) -> Explained:
    gaps = draw(st.none() | st.lists(st.floats(0.0, 10.0), max_size=5))
    made = request(
        draw(st.floats(-100.0, 700.0)),
        draw(st.floats(0.0, 300.0)),
        first_s=draw(st.none() | st.floats(0.0, 100.0)),
        tokens=draw(st.none() | st.integers(0, 2**40)),
        prompt=draw(st.none() | st.integers(-1, 2**40)),
        gpus=draw(st.sampled_from([(), ("GPU-0",), ("GPU-1",)])),
        gaps_s=gaps,
        signals=draw(st.lists(SIGNALS, min_size=3, max_size=3)),
        model=draw(st.sampled_from(["", "m", "n"])),
        tenant=draw(NAMES),
        prompt_hash=draw(NAMES),
        concurrency=draw(st.integers(0, 2**40)),
        outcome=draw(st.sampled_from(["ok", "error", "what"])),
        parameters=draw(st.dictionaries(NAMES, st.floats(), max_size=3)),
        evaluations=draw(st.dictionaries(NAMES, st.floats(), max_size=3)),
    )
    return made._replace(first_token=draw(accounts()), decode=draw(accounts()))


@given(st.lists(requests(), max_size=8), st.integers(1, 8))
@settings(max_examples=40)
def test_whatever_comes_a_diagnosis_is_made_and_survives_json(some: list[Explained], times: int) -> None:
    many = some * times  # enough for correlations
    track = Track(np.arange(0, 600, 7), np.full((3, 86), math.nan))
    tracks = {some[0].group: track} if some else {}
    given_inputs = inputs(many, dimensions=DIMENSIONS, tracks=tracks, incidents=[incident("a")])
    told = diagnose(given_inputs)
    text = told.model_dump_json()
    assert Diagnosis.model_validate_json(text) == told
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert diagnose(given_inputs).model_dump_json() == text
    assert 1 <= len(told.verdict) <= 5
    assert not told.causes or sum(each.share for each in told.causes) == pytest.approx(1.0)
    for each in told.causes:
        assert each.seconds == pytest.approx(each.first_token_seconds + each.decode_seconds)
    if told.timeline is not None:
        assert sum(told.timeline.requests) == sum(each.end_s <= 600.0 for each in many if each.end_s >= 0.0)
        lengths = {len(values) for values in (told.timeline.excess, told.timeline.response_p95)}
        assert lengths == {len(told.timeline.requests)}
    if told.surface is not None:
        assert len(told.surface.counts) == len(told.surface.values) == len(told.surface.y.labels)
        assert {len(row) for row in told.surface.counts} == {len(told.surface.x.labels)}
    assert sum(each.requests for each in told.engines) == told.requests


def test_the_figures_of_a_small_story_agree_with_one_another() -> None:
    some = [
        request(float(i), 2.0, slow={"pcie": 0.5} if i % 4 == 0 else {}, signals=[float(i % 4 == 0), 1.0, 0.0])
        for i in range(100)
    ]
    told = diagnose(inputs(some, dimensions=DIMENSIONS))
    assert (told.version, told.node) == ("1.2.3", "node-a")
    assert (told.since, told.until) == (1_800_000_000.0, 1_800_000_600.0)
    assert (told.requests, told.slow_requests, told.token_seconds, told.excess_seconds) == (100, 25, 200.0, 12.5)
    assert told.unexplained_share == 0.0
    assert told.causes[0].seconds == told.excess_seconds
    assert told.engines[0].excess_seconds == told.excess_seconds
    assert told.matrix[0].dimension == "a"
    assert told.matrix[0].verdict == "bad"


def test_requests_outside_of_the_period_are_left_out() -> None:
    some = [request(at, 1.0) for at in (-50.0, 100.0, 600.5)]
    assert diagnose(inputs(some)).requests == 1


def test_what_ran_in_a_period_that_has_passed_counts_although_it_ended_later() -> None:
    """The same cells as of a longer period: what was lost in a stretch does not depend on how it is looked at."""
    some = [request(float(at), 90.0, slow={"pcie": 30.0}) for at in range(0, 500, 10)]
    whole = diagnose(inputs(some)).timeline
    part = diagnose(inputs(some, from_s=200.0, to_s=260.0))
    assert whole is not None
    assert part.timeline is not None
    assert part.requests == sum(each.start_s <= 260.0 and each.end_s >= 200.0 for each in some)
    assert part.timeline.step_seconds == 1.0
    assert sum(part.timeline.excess) == pytest.approx(sum(whole.excess[20:26]))
    assert sum(part.timeline.requests) == 7


def test_only_strong_pairs_are_told_the_strongest_first_and_bounded() -> None:
    group = Group("vllm", "m", ("GPU-0",), "", "")
    pairs = [Pair(f"x{i}", "y", 0.7 + i / 1000, float(i % 3), 50.0, 1e-4) for i in range(40)]
    told = diagnose(inputs([], correlations={group: [(1.0, pair) for pair in pairs]})).correlations
    assert len(told) == 30
    assert (told[0].x, told[0].server, told[0].lag_seconds, told[0].step_seconds) == ("x39", "vllm", 0.0, 1.0)


def test_a_pair_in_seconds_and_in_tenths_is_told_once_by_its_stronger_one() -> None:
    group = Group("vllm", "m", ("GPU-0",), "", "")
    pairs = [(1.0, Pair("x", "y", 0.8, 0.0, 50.0, 1e-4)), (0.1, Pair("x", "y", -0.9, 0.1, 50.0, 1e-4))]
    (told,) = diagnose(inputs([], correlations={group: pairs})).correlations
    assert (told.r, told.step_seconds) == (-0.9, 0.1)


@pytest.mark.parametrize("field", ["requests", "token_seconds", "verdict", "matrix"])
def test_what_is_missing_or_not_described_is_refused_on_reading(field: str) -> None:
    told = json.loads(diagnose(inputs([request()])).model_dump_json())
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Diagnosis.model_validate_json(json.dumps(told | {"more": 1}))
    del told[field]
    with pytest.raises(ValidationError, match="missing"):
        Diagnosis.model_validate_json(json.dumps(told))


@pytest.mark.parametrize("value", ["1", None, True, math.nan])
def test_a_count_that_is_none_is_refused(value: Any) -> None:
    told = json.loads(diagnose(inputs([])).model_dump_json())
    with pytest.raises(ValidationError):
        Diagnosis.model_validate_json(json.dumps(told | {"requests": value}))


def test_an_unknown_attribute_of_the_surface_is_refused() -> None:
    with pytest.raises(ValueError, match="no attribute 'colour'"):
        diagnose(inputs([request()], surface_x="colour"))


def test_the_surface_asked_for_is_made() -> None:
    some = [request(float(i), 1.0, prompt=1000 + i % 2, tenant=f"{i % 2}") for i in range(40)]
    told = diagnose(inputs(some, surface_x="concurrency", surface_y="tenant", quantile=0.5)).surface
    assert told is not None
    assert (told.x.name, told.y.name, told.quantile) == ("concurrency", "tenant", 0.5)


def test_a_full_log_of_a_busy_node_is_diagnosed_with_every_part() -> None:
    some = [
        request(
            i * 0.1,
            1.0,
            slow={"pcie": 0.3} if 2000 <= i < 2500 else {},
            prompt=100 * (1 + i % 200),
            tenant=f"t{i % 5}",
            prompt_hash=f"h{i % 7 if i % 10 else i}",
            evaluations={"e": i % 9 / 9},
            parameters={"temperature": i % 3 / 3},
            concurrency=1 + i % 30,
            gaps_s=[0.01, 0.02],
            signals=[i % 11 / 11, 0.3, 0.0],
            number=i,
        )
        for i in range(5000)
    ]
    told: Inputs = inputs(some, dimensions=DIMENSIONS)
    made = diagnose(told)
    assert made.requests == 5000
    for part in ("causes", "actions", "matrix", "engines", "slowest", "tenants", "batches", "contexts", "quality"):
        assert getattr(made, part), part
    assert made.surface is not None
    assert made.before_during is not None
    assert len(made.model_dump_json()) < 200_000
