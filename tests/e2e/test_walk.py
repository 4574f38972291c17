"""docs/FROM_ALERT_TO_CAUSE.md, click by click, on a running demo: what the page promises is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from playwright.sync_api import Browser, expect

from tests.e2e.browsers import chromium, demo_of
from tests.e2e.daemon import Daemon, run_to_end
from tests.e2e.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/FROM_ALERT_TO_CAUSE.md").read_text("utf-8")
HOME = "https://github.com/gpumon/gpumon/blob/main/docs/"
LATE_MS = 30_000


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("demo")
    with demo_of(folder, '"cause":"thermal_throttle"', "/api/v1/diagnose") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


def alerts() -> list[dict[str, object]]:
    """Those that the page names."""
    rules = [rule for path in (ROOT / "deploy/prometheus/rules").glob("*.yaml") for rule in rules_of(path)]
    return [rule for rule in rules if f"#{str(rule.get('alert')).lower()})" in TEXT]


def rules_of(path: Path) -> list[dict[str, object]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def test_the_alerts_it_begins_with_carry_the_links_that_it_tells_of() -> None:
    named = {str(rule["alert"]): rule["annotations"] for rule in alerts()}
    assert {"ServingInterTokenBudgetBurn", "ServingTimeToFirstTokenBudgetBurn", "ServingLatencyShift"} <= set(named)
    runbooks = (ROOT / "docs/RUNBOOKS.md").read_text("utf-8")
    for name, told in named.items():
        assert isinstance(told, dict)
        assert told["runbook_url"] == f"{HOME}RUNBOOKS.md#{name.lower()}"
        assert f"\n## {name}\n" in runbooks
        assert told["dashboard"] in TEXT
    quoted = named["ServingInterTokenBudgetBurn"]
    assert isinstance(quoted, dict)
    assert quoted["runbook_url"] in TEXT
    assert "Tokens of llama-3.1-70b-instruct in cluster prod come too slowly for the objective" in TEXT


def bright(demo: Daemon) -> str | None:
    """The cell with the highest P99 of those that have requests which were slow by heat."""
    cells = json.loads(demo.ask("/api/v1/heatmap").body)["cells"]
    for cell in sorted(cells, key=lambda each: each["p99_seconds"], reverse=True):
        told = json.loads(demo.ask(f"/api/v1/requests?cell={quote(cell['id'])}&limit=20").body)
        if any(each["cause"] == "thermal_throttle" for each in told["requests"]):
            return str(cell["id"])
    return None


@pytest.mark.slow
def test_each_click_leads_on_and_the_last_one_to_the_cause(browser: Browser, demo: Daemon) -> None:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(LATE_MS)
    begin = re.search(r"<http://127\.0\.0\.1:9450/(#/latency)>", TEXT)
    assert begin is not None
    page.goto(f"http://127.0.0.1:{demo.port}/{begin[1]}")
    page.locator(f".heat button[data-cell='{eventually(lambda: bright(demo), 'a cell with slow requests')}']").click()
    hot = page.locator("tbody tr", has_text="GPU too hot")
    expect(hot.first.locator("td").first).to_contain_text(re.compile("[0-9a-f]{12}"))
    hot.locator("a").first.click()
    expect(page).to_have_url(re.compile("#/request/[0-9a-f]{32}"))
    causes = page.locator("section", has_text="Late by").locator("tbody")
    expect(causes).to_contain_text("GPU too hot")
    expect(causes).to_contain_text(re.compile(r"SM clock 1,\d{3} MHz, usually 1,980 MHz; GPU 3 "))
    expect(page.locator("section", has_text="Slow gaps").locator("tbody tr").first).to_be_visible()
    meanwhile = page.locator("section", has=page.get_by_role("heading", name="Incidents meanwhile"))
    meanwhile.get_by_role("link", name=re.compile("^GPU too hot, gpu 3")).first.click()
    card = page.locator(".incident", has_text="GPU too hot: gpu 3").first
    expect(card).to_contain_text("What to do")
    expect(card).to_contain_text("fans")
    expect(card.locator("tbody").first).to_be_visible()
    page.context.close()


@pytest.mark.slow
def test_the_terminal_leads_to_the_same_cause(demo: Daemon) -> None:
    where = ["--url", f"http://127.0.0.1:{demo.port}"]
    asked = [line.removeprefix("$ gpumon ").split() for line in TEXT.splitlines() if line.startswith("$ gpumon ")]
    assert [words[0] for words in asked] == ["top", "diagnose", "explain"]
    look, period, one = asked
    seen = run_to_end([*look, *where])
    assert (seen.returncode, seen.stderr) == (0, "")
    assert "thermal_throttle" in seen.stdout

    def slow_by_heat() -> str | None:
        told = run_to_end([*period, *where])
        assert told.returncode == 0
        slow = r"GPU\s+too\s+hot\s+\d+\s+%(?:(?!late by).){0,120}"
        found = re.search(slow + r"gpumon explain\b.{0,80}?\b([0-9a-f]{32})\b", told.stdout, re.DOTALL)
        return found[1] if found is not None else None

    # Requests are explained some seconds after they ended, and the first that are hot are not late by much.
    trace_id = eventually(slow_by_heat, "a request that is slow by heat", every_s=2.0)
    assert one[1] == "TRACE_ID"
    explained = run_to_end(["explain", trace_id, *where])
    assert explained.returncode == 0
    assert "GPU too hot" in explained.stdout
