"""Findings made fit, and the names of incidents: foreign text, figures that are none, bounds."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.catalogue import INCIDENT_KINDS
from gpumon.detect.detector import Entity, Evidence, Severity
from gpumon.detect.findings import EVIDENCE_MAX, NAME_MAX, SUMMARY_MAX, clean, incident_id, merged
from gpumon.model import Unit
from tests.detect.findings import GPU3, finding

UNIX_S = 1_795_972_247.9
"""2026-11-29T17:10:47.9Z."""


def test_an_id_is_the_time_the_kind_and_the_entity() -> None:
    assert incident_id(UNIX_S, "thermal_throttle", GPU3, ()) == "20261129T171047Z-thermal_throttle-gpu-3"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("vllm/meta-llama/Llama-3.1-70B", "vllm-meta-llama-Llama-3-1-70B"),
        ("../../etc/passwd", "etc-passwd"),
        ("pid 7 a\x00b\nc\x1b[2J", "pid-7-a-b-c-2J"),
        ("グラフィックス", "unnamed"),
        ("", "unnamed"),
        ("--", "unnamed"),
        ("\udcff", "unnamed"),
    ],
)
def test_foreign_names_cannot_leave_the_alphabet(name: str, shown: str) -> None:
    id_ = incident_id(UNIX_S, "xid", Entity("process", name), ())
    assert id_ == f"20261129T171047Z-xid-{shown}"


def test_a_taken_id_gets_a_number_that_is_not_cut_off() -> None:
    entity = Entity("process", "x" * 500)
    first = incident_id(UNIX_S, "xid", entity, ())
    second = incident_id(UNIX_S, "xid", entity, {first})
    third = incident_id(UNIX_S, "xid", entity, {first, second})
    assert len(first) == len(second) == len(third) == 120
    assert second.endswith("x-2")
    assert third.endswith("x-3")


@given(st.sampled_from(INCIDENT_KINDS), st.text(max_size=300), st.integers(0, 3))
def test_every_id_is_safe_in_a_path_and_a_url_and_new(kind: str, name: str, collisions: int) -> None:
    taken: set[str] = set()
    for _ in range(collisions + 1):
        id_ = incident_id(UNIX_S, kind, Entity("process", name), taken)
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,120}", id_, re.ASCII)
        assert id_ not in taken
        taken.add(id_)


@pytest.mark.parametrize("observed", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_left_out_and_its_neighbours_are_not(observed: float) -> None:
    bad = Evidence("bad", observed, Unit.RATIO)
    good = Evidence("good", 1, Unit.RATIO, observed)
    cleaned = clean(replace(finding(), evidence=(bad, good)), 1001.0)
    assert cleaned.evidence == (Evidence("good", 1.0, Unit.RATIO, None),)
    assert type(cleaned.evidence[0].observed) is float


@pytest.mark.parametrize(
    ("since_s", "kept"), [(990.0, 990.0), (1002.0, 1001.0), (math.nan, 1001.0), (-math.inf, 1001.0)]
)
def test_an_effect_began_at_a_known_time_and_not_in_the_future(since_s: float, kept: float) -> None:
    assert clean(finding(since_s=since_s), 1001.0).since_s == kept


def test_text_is_cut_and_can_be_written_in_any_format() -> None:
    hostile = finding(entity=Entity("process", "pid 7 \udcff" + "n" * 10_000), summary="s" * 10_000 + "\udcff")
    cleaned = clean(hostile, 1001.0)
    assert cleaned.entity.name.startswith("pid 7 ?n")
    assert len(cleaned.entity.name) == NAME_MAX
    assert len(cleaned.summary) == SUMMARY_MAX
    assert (cleaned.entity.name + cleaned.summary).encode()


def test_evidence_is_bounded() -> None:
    figures = tuple(Evidence(f"f{number}", 1.0, Unit.NONE) for number in range(500))
    assert len(clean(replace(finding(), evidence=figures), 1001.0).evidence) == EVIDENCE_MAX


@pytest.mark.parametrize(
    "wrong",
    [
        replace(finding(), severity="bad"),  # type: ignore[arg-type]
        replace(finding(), since_s=None),  # type: ignore[arg-type]
        replace(finding(), entity=Entity("gpu", None)),  # type: ignore[arg-type]
        replace(finding(), evidence=(Evidence("f", None, Unit.NONE),)),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_typed_as_it_should_be_raises_here_and_not_later(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        clean(wrong, 1001.0)  # type: ignore[arg-type]


def test_the_order_of_findings_is_kept_and_only_the_same_are_joined() -> None:
    other = Entity("gpu", "gpu 3", "3", "GPU-replaced")
    found = merged([finding("xid"), finding(entity=other), finding(), finding("xid"), finding("ecc")], INCIDENT_KINDS)
    assert list(found) == [
        ("xid", GPU3),
        ("thermal_throttle", other),
        ("thermal_throttle", GPU3),
        ("ecc", GPU3),
    ]


def test_two_that_are_over_are_over() -> None:
    assert merged([finding(over=True), finding(over=True)], INCIDENT_KINDS)["thermal_throttle", GPU3].over
    assert not merged([finding(), finding(over=True)], INCIDENT_KINDS)["thermal_throttle", GPU3].over


def test_the_newer_of_two_alike_speaks() -> None:
    joined = merged([finding(summary="old", clock=1.0), finding(summary="new", clock=2.0)], INCIDENT_KINDS)
    only = joined["thermal_throttle", GPU3]
    assert (only.summary, only.evidence[0].observed, only.severity) == ("new", 2.0, Severity.WARNING)
