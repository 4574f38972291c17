"""Signs of uneven experts: the balance against what is usual for the server."""

from __future__ import annotations

import pytest

from gpumon import catalogue as c
from gpumon.explain.witnesses.moe import CAUSE, UnevenExperts
from gpumon.model import Unit
from tests.detect.scenes import Stage
from tests.explain.witnesses.looks import Looks, incident

PAGE = ("sglang", "moe-235b", "127.0.0.1:8001")
KEY = ("server", "moe-235b")


class Page:
    """A server's page, read every 2 s."""

    def __init__(self, page: tuple[str, ...] = PAGE) -> None:
        self.page = page
        self.stage = Stage()
        self.looks = Looks(UnevenExperts())

    def run(self, seconds: int, balance: float | None, running: float | None = 8.0) -> None:
        self.stage.drop(c.SERVER_EXPERT_BALANCE, c.SERVER_RUNNING)
        if balance is not None:
            self.stage.put({(c.SERVER_EXPERT_BALANCE, self.page): balance}, owner="page")
        if running is not None:
            self.stage.put({(c.SERVER_RUNNING, self.page): running}, owner="page")
        for step in range(seconds):
            self.stage.silent = set() if step % 2 == 0 else {"page"}
            self.looks.step(self.stage.step())


def serving(balance: float = 0.82) -> Page:
    page = Page()
    page.run(30, balance)
    assert page.looks.take() == []
    return page


def test_a_balance_that_fell_is_a_sign_of_the_server() -> None:
    page = serving()
    began_s = page.stage.at_s
    page.run(10, 0.41)
    signs = page.looks.take()
    assert {sign.key for sign in signs} == {KEY}
    assert {sign.evidence for sign in signs} == {1.0}
    assert signs[0].cap == pytest.approx(0.5)
    assert signs[0].fact == ("expert_balance", 0.41, Unit.RATIO, 0.82)
    assert (signs[0].start_s, signs[0].end_s) == (began_s - 1.0, began_s + 1.0)
    page.run(10, 0.82)
    assert len(page.looks.take()) == 1  # until it was read anew


def test_what_prompts_change_is_none() -> None:
    page = serving()
    for balance in (0.78, 0.75, 0.85, 0.72):
        page.run(10, balance)
    assert page.looks.take() == []


def test_a_server_that_was_always_uneven_has_no_sign() -> None:
    page = Page()
    page.run(60, 0.3)
    assert page.looks.take() == []


def test_what_lasts_does_not_become_usual() -> None:
    page = serving()
    page.run(600, 0.4)
    page.looks.take()
    page.run(2, 0.4)
    assert [sign.evidence for sign in page.looks.take()] == [1.0]


def test_a_server_that_runs_nothing_tells_an_old_balance() -> None:
    page = serving()
    page.run(10, 0.3, running=0.0)
    assert page.looks.take() == []
    page.run(10, 0.3, running=None)  # nobody tells how many run
    assert page.looks.take()


def test_a_page_without_a_model_is_known_by_its_kind() -> None:
    page = Page(("sglang", "", "127.0.0.1:8001"))
    page.run(30, 0.82)
    page.run(10, 0.4)
    assert page.looks.keys() == [("server", "sglang/")]


def test_a_page_that_is_not_read_for_a_while_leaves_a_short_stretch() -> None:
    page = serving()
    page.stage.silent = {"page"}
    for _ in range(20):
        page.looks.step(page.stage.step())
    page.run(1, 0.4)
    (sign,) = page.looks.take()
    assert sign.end_s - sign.start_s == 6.0


def test_an_open_incident_makes_a_weak_sign_sure() -> None:
    page = serving()
    page.run(4, 0.66)
    assert 0.1 < max(sign.evidence for sign in page.looks.take()) < 0.5
    page.looks.incidents = [incident(CAUSE, "server", "sglang/moe-235b at 127.0.0.1:8001")]
    page.run(4, 0.66)
    assert max(sign.evidence for sign in page.looks.take()) == 0.8


@pytest.mark.parametrize("balance", [0.0, -1.0, 7.0, 1e300])
def test_impossible_balances_are_left_out(balance: float) -> None:
    page = serving()
    page.run(10, balance)
    assert page.looks.take() == []
    page.run(10, 0.82)
    assert page.looks.take() == []


def test_without_a_balance_nothing_is_said() -> None:
    page = Page()
    page.run(10, None)
    assert page.looks.take() == []


def test_servers_that_come_and_go_are_forgotten() -> None:
    stage, witness = Stage(), UnevenExperts()
    for index in range(200):
        stage.drop(c.SERVER_EXPERT_BALANCE)
        stage.put({(c.SERVER_EXPERT_BALANCE, ("sglang", f"m{index}", "")): 0.5})
        list(witness.look(stage.step(), ()))
    assert len(witness._servers) <= 64
