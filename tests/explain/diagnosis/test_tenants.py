"""Tenants that slow one another down, and tenants that do not."""

from __future__ import annotations

import pytest

from gpumon.explain.diagnosis.tenants import interference
from gpumon.explain.explained import Explained
from tests.explain.diagnosis.requests import request, seen


def shared(per_s: dict[int, float], *, cells: int = 60) -> list[Explained]:
    """One request a tenant and cell of ten seconds; in turn one, two and three tenants are active, and each of their
    requests makes so many tokens a second."""
    return [
        request(10.0 * cell, 10.0, tenant=f"t{tenant}", tokens=round(10 * per_s[active]))
        for cell in range(cells)
        for active in (1 + cell % 3,)
        for tenant in range(active)
    ]


def test_tenants_that_share_a_fixed_rate_are_correlated_with_their_number() -> None:
    told = interference(seen(shared({1: 60.0, 2: 40.0, 3: 20.0})))
    assert len(told) == 1
    assert (told[0].server, told[0].model, told[0].cell_seconds) == ("vllm", "m", 10.0)
    assert (told[0].active_mean, told[0].active_most) == (2.0, 3)
    first = next(each for each in told[0].tenants if each.tenant == "t0")
    assert (first.requests, first.n) == (60, 60)
    assert (first.tokens_per_second, first.r, first.slope) == pytest.approx((40.0, -1.0, -20.0))
    assert first.verdict == "bad"


def test_the_tenant_that_loses_most_comes_first() -> None:
    told = interference(seen(shared({1: 60.0, 2: 40.0, 3: 20.0})))
    # t1 has 40 and 20 tokens/s at two and three tenants: two thirds of its mean for each one more.
    assert told[0].tenants[0].tenant == "t1"


def test_tenants_that_do_not_touch_one_another_are_ok() -> None:
    requests = [
        request(10.0 * cell, 10.0, tenant=f"t{tenant}", tokens=400 + 20 * (cell // 3 % 2))
        for cell in range(60)
        for tenant in range(1 + cell % 3)
    ]
    assert {each.verdict for each in interference(seen(requests))[0].tenants if each.tenant != "t2"} == {"ok"}


def test_a_small_loss_is_not_bad_however_regular() -> None:
    told = interference(seen(shared({1: 60.0, 2: 59.0, 3: 58.0})))
    assert next(each for each in told[0].tenants if each.tenant == "t0").verdict == "suspect"


def test_a_tenant_that_is_always_alone_or_seen_too_rarely_is_unknown() -> None:
    told = interference(seen(shared({1: 60.0, 2: 40.0, 3: 20.0}, cells=6)))
    assert {each.verdict for each in told[0].tenants} == {"unknown"}
    assert {each.r for each in told[0].tenants} == {None}


def test_one_number_of_tenants_nearly_all_the_time_tells_nothing() -> None:
    requests = [
        request(10.0 * cell, 10.0, tenant=f"t{tenant}", tokens=200 if cell > 2 else 900)
        for cell in range(60)
        for tenant in range(2 if cell > 2 else 1)
    ]
    told = {each.tenant: each for each in interference(seen(requests))[0].tenants}
    assert (told["t0"].n, told["t0"].r, told["t0"].verdict) == (60, None, "unknown")


def test_rates_are_those_of_one_request_not_of_all_that_a_tenant_asks_for() -> None:
    both = [request(10.0 * i, 10.0, tenant="two", tokens=100) for i in range(30) for _ in range(2)]
    one = [request(10.0 * i, 10.0, tenant="one", tokens=100) for i in range(30)]
    assert [each.tokens_per_second for each in interference(seen([*both, *one]))[0].tenants] == pytest.approx([10, 10])


def test_one_tenant_alone_or_no_tokens_have_no_interference() -> None:
    assert interference(seen([request(tenant="a"), request(tenant="a")])) == ()
    assert interference(seen([request(tenant="a", tokens=None), request(tenant="b", tokens=None)])) == ()
    assert interference(seen([])) == ()
