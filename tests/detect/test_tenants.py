"""``tenant_interference``: who takes from whom, and loads that merely change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpumon.detect.detector import Finding
from gpumon.detect.tenants import TenantInterference
from tests.detect.load import OF_TIME, Server, always, play
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence

FLOOD_S = 150.0
END_S = 200.0


def flood(at_s: float) -> bool:
    return FLOOD_S <= at_s < END_S


def shares(**usual: float) -> Callable[[float, float], str]:
    """Tenants by weight; during the flood initech makes 9 of 10 requests."""

    def tenant(at_s: float, luck: float) -> str:
        if flood(at_s) and luck < 0.9:
            return "initech"
        for name, share in usual.items():
            luck -= share
            if luck < 0:
                return name
        return name

    return tenant


USUAL = shares(acme=0.4, globex=0.4, initech=0.2)


def flooded(per_s: float = 2.0, times: float = 12.0, **more: object) -> Server:
    rate: OF_TIME = lambda at_s: per_s * (times if flood(at_s) else 1.0)  # noqa: E731
    return Server(per_s=rate, tenants=USUAL, batch=24, **more)  # type: ignore[arg-type]


def told(found: list[tuple[float, Finding]]) -> list[Finding]:
    return [finding for _, finding in found]


def test_described() -> None:
    check_described(TenantInterference)


@pytest.mark.parametrize("seed", range(3))
def test_a_tenant_that_floods_a_server_is_named(seed: int) -> None:
    found = play(TenantInterference(), flooded(seed=seed), for_s=260)
    assert FLOOD_S < found[0][0] < FLOOD_S + 20
    first = found[0][1]
    assert first.entity == ("tenant", "initech", "", "")
    assert first.since_s == pytest.approx(BEGIN_S + FLOOD_S, abs=10)
    share = evidence(first, "share_of_requests")
    assert share.baseline == pytest.approx(0.2, abs=0.1)
    assert share.observed > 0.6
    got = evidence(found[-1][1], "others_tokens_per_second")
    assert got.baseline is not None
    assert got.observed < 0.7 * got.baseline
    assert evidence(first, "correlation").observed < -0.5
    assert first.summary.startswith("initech makes ")
    assert "requests to vllm/m (" in first.summary


def test_it_is_over_when_the_others_are_served_again() -> None:
    found = play(TenantInterference(), flooded(times=6.0, seed=1), for_s=420)
    assert [finding.over for finding in told(found)].count(True) == 1
    assert found[-1][1].over


@pytest.mark.parametrize("seed", range(2))
def test_a_surge_of_all_is_nobodys_fault(seed: int) -> None:
    server = Server(
        per_s=lambda at_s: 24.0 if flood(at_s) else 2.0,
        tenants=lambda at_s, luck: ("acme", "globex", "initech")[int(luck * 3)],
        seed=seed,
    )
    assert play(TenantInterference(), server, for_s=260) == []


def test_a_tenant_that_a_server_can_bear_is_none() -> None:
    server = Server(per_s=lambda at_s: 2.5 if flood(at_s) else 1.0, tenants=USUAL, seed=1)
    assert play(TenantInterference(), server, for_s=260) == []


def test_others_who_ask_for_less_lose_nothing() -> None:
    def tenant(at_s: float, luck: float) -> str:
        return "initech" if flood(at_s) or luck < 0.2 else "acme" if luck < 0.6 else "globex"

    assert play(TenantInterference(), Server(tenants=tenant, seed=1), for_s=260) == []


def test_a_server_that_slows_down_for_another_reason_names_nobody() -> None:
    server = Server(
        slower=lambda at_s: 4.0 if flood(at_s) else 1.0, tenants=lambda at_s, luck: "ab"[int(luck * 2)], seed=1
    )
    assert play(TenantInterference(), server, for_s=260) == []


@pytest.mark.parametrize("tenants", [lambda at_s, luck: "", lambda at_s, luck: "one"], ids=["untold", "one"])
def test_without_tenants_there_is_nobody_to_name(tenants: Callable[[float, float], str]) -> None:
    server = Server(per_s=lambda at_s: 24.0 if flood(at_s) else 2.0, tenants=tenants, seed=1)
    assert play(TenantInterference(), server, for_s=220) == []


@pytest.mark.parametrize("seed", range(4))
def test_healthy_tenants_are_silent(seed: int) -> None:
    server = Server(
        per_s=lambda at_s: 6.0 if at_s % 60 < 10 else 1.5,
        tenants=lambda at_s, luck: "acme" if luck < 0.6 else "globex" if luck < 0.9 else "initech",
        seed=seed,
    )
    assert play(TenantInterference(), server, for_s=900) == []


def test_slower_steps_find_the_same() -> None:
    found = play(TenantInterference(), flooded(seed=1), for_s=260, step_s=5.0)
    assert {finding.entity.name for finding in told(found)} == {"initech"}


def test_what_is_gone_is_forgotten() -> None:
    detector = TenantInterference()
    assert play(detector, flooded(seed=1), for_s=190)
    assert list(detector.step(Stage().step())) == []
    assert detector._open == {}
    assert detector._looked == {}


def test_a_quiet_server_is_silent() -> None:
    assert play(TenantInterference(), Server(per_s=always(0.1), tenants=USUAL, seed=1), for_s=260) == []
