"""Incidents and lost time on the screen."""

from __future__ import annotations

from typing import Any

from gpumon.top.answers import Incident, Lost
from gpumon.top.trouble import CAUSES_SHOWN, incident_lines, lost_lines
from tests.top.answered import HOSTILE, plain

AT = 1_800_000_000.0


def incident(**other: Any) -> Incident:
    said = {"id": "x", "kind": "xid", "severity": "critical", "since": AT - 125.0, "entity": {"name": "GPU 3"}}
    return Incident.model_validate(said | {"summary": "XID 79", "action": "Reset it."} | other)


def incidents(*found: Incident, width: int = 80, in_full: bool = False) -> list[str]:
    return plain(incident_lines(found, AT, width, in_full=in_full), width)


def lost(*causes: dict[str, Any], **other: Any) -> Lost:
    said = {"since": AT - 300.0, "until": AT, "requests": 100, "slow_requests": 7, "excess_seconds": 42.0}
    return Lost.model_validate(said | {"causes": causes} | other)


def cause(number: int = 0, **other: Any) -> dict[str, Any]:
    said = {"cause": "thermal_throttle", "title": f"cause {number}", "kind": "fault", "seconds": 12.0, "share": 0.25}
    return said | {"fact": "SM clock 1,185 MHz"} | other


def told(found: Lost, width: int = 80, *, in_full: bool = False) -> list[str]:
    return plain(lost_lines(found, width, in_full=in_full), width)


def test_an_incident_is_a_line_and_in_full_says_what_to_do() -> None:
    assert incidents(incident())[1].split() == ["critical", "2", "min", "5", "s", "xid", "GPU", "3", "XID", "79"]
    assert incidents(incident(), in_full=True) == [
        "Incidents",
        "critical  2 min 5 s  xid on GPU 3",
        "  XID 79",
        "  What to do: Reset it.",
    ]


def test_the_worst_comes_first_then_the_newest_and_an_unknown_severity_last() -> None:
    found = [
        incident(kind="a", severity="warning", since=AT - 9.0),
        incident(kind="b", severity="warning", since=AT - 1.0),
        incident(kind="c", severity="odd", since=AT),
        incident(kind="d", since=AT - 99.0),
    ]
    assert [line.split()[-5] for line in incidents(*found)[1:]] == ["d", "b", "a", "c"]


def test_none_is_said() -> None:
    assert incidents() == ["No incident is open."]


def test_causes_have_seconds_share_kind_and_what_shows_them() -> None:
    assert told(lost(cause())) == [
        "42 s lost in the last 5 min, by 7 of 100 requests together",
        "cause 0  ████  12 s  25 %  fault  SM clock 1,185 MHz",
    ]
    assert told(lost(cause()), in_full=True)[1:] == ["cause 0  ████  12 s  25 %  fault", "  SM clock 1,185 MHz"]


def test_a_screen_shows_some_causes_and_sums_up_the_rest() -> None:
    found = lost(*(cause(number) for number in range(CAUSES_SHOWN + 2)))
    assert len(told(found)) == CAUSES_SHOWN + 2
    assert told(found)[-1] == "2 more, 24 s together"
    assert sum("cause" in line for line in told(found, in_full=True)) == CAUSES_SHOWN + 2


def test_the_period_is_no_longer_than_what_is_known() -> None:
    assert " in the last 42 s, " in told(lost(cause(), known_since=AT - 42.0))[0]


def test_nothing_late_and_nothing_known_are_told_apart() -> None:
    assert told(lost(slow_requests=0)) == ["100 requests ended in the last 5 min, and none was late."]
    cold = "9 requests ended, and nothing is known yet of how long they usually take."
    assert told(lost(slow_requests=0, verdict=[cold])) == [cold]


def test_hostile_answers_stay_on_their_lines() -> None:
    evil = incident(
        kind=HOSTILE, severity=HOSTILE, summary=HOSTILE, action=HOSTILE, entity={"name": HOSTILE}, since=-1e300
    )
    bad = lost(
        cause(cause=HOSTILE, title=HOSTILE, kind=HOSTILE, fact=HOSTILE, seconds=1e308, share=1e308), since=-1e308
    )
    for width in (20, 60, 80, 140):
        assert len(incidents(evil, width=width)) == 2
        assert len(told(bad, width=width)) == 2
        assert incidents(evil, width=width, in_full=True)
        assert told(bad, width=width, in_full=True)
