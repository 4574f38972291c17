"""The language of --inject: what each rule means, and what is refused in which words."""

from __future__ import annotations

import random
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.proxy.inject_rules import LONGEST_NS, Delay, Rule, RuleError, Where, parse_rule

MS = 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token:20ms", Rule("", Where.TOKEN, Delay(20 * MS, 20 * MS))),
        ("first:500us", Rule("", Where.FIRST, Delay(500_000, 500_000))),
        ("request:1.5s", Rule("", Where.REQUEST, Delay(1500 * MS, 1500 * MS))),
        ("token:10ms..30ms", Rule("", Where.TOKEN, Delay(10 * MS, 30 * MS))),
        ("first:lognormal(200ms,0.8)", Rule("", Where.FIRST, Delay(200 * MS, 200 * MS, 0.8))),
        ("token:20ms,p=0.1", Rule("", Where.TOKEN, Delay(20 * MS, 20 * MS), 0.1)),
        (
            "token:lognormal(1ms,1),header=X-Tenant-Id:blue:7,p=1",
            Rule("", Where.TOKEN, Delay(MS, MS, 1.0), header=(b"x-tenant-id", b"blue:7")),
        ),
        (
            "token:20ms,every=30s,for=5s",
            Rule("", Where.TOKEN, Delay(20 * MS, 20 * MS), every_ns=30_000 * MS, for_ns=5000 * MS),
        ),
    ],
)
def test_rules_mean_what_they_say(text: str, expected: Rule) -> None:
    found = parse_rule(text)
    assert found.text == text
    assert [getattr(found, name) for name in Rule.__slots__[1:]] == [
        getattr(expected, name) for name in Rule.__slots__[1:]
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected request:, first: or token:"),
        ("20ms", "expected request:, first: or token:"),
        ("tokens:20ms", "expected request:, first: or token:"),
        ("token:", "'' is no time such as 500us, 20ms or 1.5s"),
        ("token:20", "'20' is no time"),
        ("token:-20ms", "'-20ms' is no time"),
        ("token:601s", "at most 600s"),
        ("token:nans", "'nans' is no time"),
        ("token:30ms..10ms", "30ms is above 10ms"),
        ("token:10ms...30ms", "is no time"),
        ("token:lognormal(20ms)", "is no time"),
        ("token:lognormal(20ms,0)", "expected lognormal(MEDIAN,SIGMA)"),
        ("token:lognormal(20ms,9)", "at most 4"),
        ("token:20ms,p=0", "p=0 is no probability"),
        ("token:20ms,p=1.5", "p=1.5 is no probability"),
        ("token:20ms,p=0.5,p=0.5", "p= is said twice"),
        ("token:20ms,often", "'often' is none of p=, header=, every=, for="),
        ("token:20ms,", "'' is none of"),
        ("token:20ms,header=x", "expected header=NAME:VALUE"),
        ("token:20ms,header=x:", "expected header=NAME:VALUE"),
        ("token:20ms,header=Authorization:x", "no header with credentials"),
        ("token:20ms,header=x-api-key:x", "no header with credentials"),
        ("token:20ms,every=5s", "every= and for= go together"),
        ("token:20ms,every=5s,for=5s", "for= is above 0 and below every="),
        ("token:20ms,every=5s,for=0s", "for= is above 0 and below every="),
        ("token:20ms\r\nX: y", "printable ASCII"),
        ("token:" + "1" * 300, "at most 200"),
    ],
)
def test_what_is_no_rule_says_what_was_expected(text: str, words: str) -> None:
    with pytest.raises(RuleError, match=re.escape(words)):
        parse_rule(text)


@given(st.text(max_size=60) | st.from_regex(r"(token|first|request):[0-9a-z.,=()]{0,30}", fullmatch=True))
def test_any_text_is_a_rule_or_says_why_not(text: str) -> None:
    try:
        rule = parse_rule(text)
    except RuleError as error:
        message = str(error)
        assert "\n" not in message
    else:
        assert 0 <= rule.delay.draw_ns(random.Random(1)) <= LONGEST_NS
        assert 0 < rule.probability <= 1


def test_the_delays_are_distributed_as_the_rule_says() -> None:
    chance = random.Random(7)
    constant, even, skewed = (
        parse_rule(f"token:{text}").delay for text in ("5ms", "10ms..30ms", "lognormal(20ms,0.5)")
    )
    assert {constant.draw_ns(chance) for _ in range(10)} == {5 * MS}
    drawn = [even.draw_ns(chance) / MS for _ in range(4000)]
    assert 10 <= min(drawn) < 11
    assert 29 < max(drawn) <= 30
    assert statistics.mean(drawn) == pytest.approx(20, abs=0.5)
    drawn = sorted(skewed.draw_ns(chance) / MS for _ in range(4000))
    assert drawn[2000] == pytest.approx(20, rel=0.05)
    assert drawn[3365] == pytest.approx(20 * 1.6487, rel=0.08)  # a sigma above the median: exp(0.5)


def test_a_lognormal_delay_has_an_end() -> None:
    assert max(Delay(600 * 10**9, 600 * 10**9, 4.0).draw_ns(random.Random(n)) for n in range(50)) == LONGEST_NS


def test_bursts_come_and_go() -> None:
    rule = parse_rule("token:1ms,every=30s,for=5s")
    seconds = [at for at in range(70) if rule.holds(at * 10**9)]
    assert seconds == [*range(5), *range(30, 35), *range(60, 65)]


@pytest.mark.parametrize("name", ["authorization", "Cookie", "api-key", "X-API-Key", "x-auth-token", "apikey"])
@pytest.mark.parametrize("text", ["token:1ms,header={}:sk-1", "token:x,header={}:sk-1", "y:1ms,p=9,header= {} : sk-1"])
def test_a_credential_in_a_rule_is_not_repeated_whatever_else_is_wrong_with_it(text: str, name: str) -> None:
    with pytest.raises(RuleError, match="no header with credentials") as caught:
        parse_rule(text.format(name))
    assert "sk-1" not in str(caught.value)
