"""What is refused before anything is asked of anybody, and what is said of the cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpumon.probe.endpoint import KEY
from gpumon.probe.wish import Wish, WishError, announcement, plan

WISH = Wish("http://127.0.0.1:8000", "8k..32k", budget_tokens=10**9)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"budget_tokens": None}, "expected --budget-tokens, --budget-s, or both"),
        ({"endpoint": "127.0.0.1"}, "--endpoint: "),
        ({"ladder": "x"}, "--ladder: 'x': expected a length such as 8k"),
        ({"weights": "1,2"}, "a weight for each of the 3 rungs"),
        ({"weights": "1,x,1"}, "weight 'x'"),
        ({"weights": "1,-1,1"}, "weight '-1'"),
        ({"weights": "1,nan,1"}, "weight 'nan'"),
        ({"concurrency": "1,0"}, "concurrency '0'"),
        ({"concurrency": "x"}, "concurrency 'x'"),
        ({"concurrency": "9999999999999"}, "concurrency '9999999999999'"),
        ({"ca": Path("ca.pem")}, "--ca is of TLS"),
        ({"html": Path("/nonexistent/folder/page.html")}, "there is no such folder"),
        ({"repetitions": 10_000}, "at most 20,000 requests"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(changed: dict[str, object], said: str) -> None:
    with pytest.raises(WishError) as caught:
        plan(replace(WISH, **changed), {})  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_cost_is_said_beforehand() -> None:
    wish = replace(WISH, concurrency="1,4")
    (line,) = announcement(plan(wish, {}), wish)
    tokens = 25 * (8192 + 16384 + 32768 + 3 * 64) + (64 + 1) + (1024 + 1)
    assert line == (
        f"3 rungs from 8k to 32k tokens, 1 and 4 at a time: 77 requests, at most {tokens:,} tokens, 4,802 of them to "
        "be made, by http://127.0.0.1:8000/v1"
    )


def test_a_budget_that_does_not_suffice_says_where_it_ends() -> None:
    wish = replace(WISH, budget_tokens=5 * (8192 + 64) + 1090, budget_s=60.0)
    lines = announcement(plan(wish, {}), wish)
    assert lines[1] == "the budget of 42,370 tokens ends in rung 16k, 1 at a time"
    assert lines[2] == "it ends after 60 s, wherever it is then"
    less = replace(wish, budget_tokens=5 * (8192 + 64) + 1089)
    assert announcement(plan(less, {}), less)[1] == "the budget of 42,369 tokens ends in rung 8k, 1 at a time"
    enough = replace(WISH, budget_tokens=5 * (8192 + 16384 + 32768 + 3 * 64) + 1090)
    assert len(announcement(plan(enough, {}), enough)) == 1


def test_prompts_that_the_server_sees_before_they_are_timed_are_in_the_cost() -> None:
    cached = replace(WISH, is_cached=True)
    assert plan(cached, {}).cost.tokens == plan(WISH, {}).cost.tokens + 8192 + 16384 + 32768 + 3
    short = replace(cached, budget_tokens=5 * (8192 + 64) + 1090)
    assert announcement(plan(short, {}), short)[1] == "the budget of 42,370 tokens ends in rung 8k, 1 at a time"


@pytest.mark.parametrize(
    ("endpoint", "warned"), [("http://127.0.0.1", False), ("https://h", False), ("http://h", True)]
)
def test_a_key_in_the_clear_is_warned_of_and_never_shown(endpoint: str, warned: bool) -> None:
    wish = replace(WISH, endpoint=endpoint)
    lines = announcement(plan(wish, {KEY: "sk-secret"}), wish)
    assert any("in the clear" in line for line in lines) is warned
    assert "secret" not in " ".join(lines)
