from __future__ import annotations

import subprocess
from pathlib import Path

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.scale_rules import main, scale_duration, scale_expression, scale_file, scale_rules

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/rules"
COMPOSE = (
    "python -m scripts.scale_rules --by 10 --scrape-s 5 --into deploy/compose/rules deploy/prometheus/rules/*.yaml"
)


@pytest.mark.parametrize(
    ("text", "by", "divided"),
    [
        ("10m", 10, "60s"),
        ("1h", 10, "360s"),
        ("1d", 7, "12343s"),
        ("1h30m", 10, "540s"),
        ("30s", 10, "3s"),
        ("15s", 10, "1500ms"),
        ("5s", 10, "1s"),
        ("0s", 10, "0s"),
        ("5m", 1, "300s"),
    ],
)
def test_a_duration_is_divided_down_to_a_second(text: str, by: float, divided: str) -> None:
    assert scale_duration(text, by) == divided


@pytest.mark.parametrize("text", ["", "m", "5", "5 m", "5m!", "1.5h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        scale_duration(text, 10)


@pytest.mark.parametrize(
    ("expr", "divided"),
    [
        ("rate(x[5m])", "rate(x[30s])"),
        ("rate(x[1m])", "rate(x[8s])"),  # four scrapes of two seconds
        ("max_over_time(x[1h:30s])", "max_over_time(x[360s:3s])"),
        ("max_over_time(x[ 1h : 5s ])", "max_over_time(x[ 360s : 1s])"),
        ("max_over_time(x[1h:])", "max_over_time(x[360s:])"),
        ("x offset 1h", "x offset 360s"),
        ("x offset -10m", "x offset -60s"),
        ("rate(x[5m] offset 1d) > 60", "rate(x[30s] offset 8640s) > 60"),
        ("a:b:rate5m > 14.4", "a:b:rate5m > 14.4"),
        ("x{path=~\"[5m]|offset 5m\", y='[5m]', z=`[5m]`}[5m]", "x{path=~\"[5m]|offset 5m\", y='[5m]', z=`[5m]`}[30s]"),
        (r'x{path="\"[5m]"}[5m]', r'x{path="\"[5m]"}[30s]'),
        ("x  # [5m] it's\n  > rate(y[5m])", "x  # [5m] it's\n  > rate(y[30s])"),
    ],
)
def test_ranges_subqueries_and_offsets_are_divided_and_texts_are_not(expr: str, divided: str) -> None:
    assert scale_expression(expr, 10, scrape_s=2) == divided


@pytest.mark.parametrize(
    ("expr", "divided"),
    [
        ("time() - x > 300", "time() - x > 30"),
        ('(time() - max by (node) (x{a=~"<1"})) <= bool 900', '(time() - max by (node) (x{a=~"<1"})) <= bool 90'),
        ("time() - last_over_time(x[15m]) < 900 and y > 900", "time() - last_over_time(x[90s]) < 90 and y > 900"),
        ("y > 900 or time() - x < 5", "y > 900 or time() - x < 0.5"),
        ("y * time() and y > 10", "y * time() and y > 10"),
    ],
)
def test_seconds_that_an_age_is_compared_with_are_divided(expr: str, divided: str) -> None:
    assert scale_expression(expr, 10, scrape_s=2) == divided


@given(st.integers(1, 900), st.sampled_from("smhdw"), st.integers(1, 600), st.sampled_from([1.0, 2.5, 7.0, 10.0, 60.0]))
def test_a_divided_expression_is_still_promql(length: int, unit: str, step: int, by: float) -> None:
    expr = f"max_over_time(rate(x[{length}{unit}])[{length}{unit}:{step}s]) > (y offset {length}{unit})"
    promql_parser.parse(scale_expression(expr, by, scrape_s=2))


def test_a_file_keeps_all_but_its_durations() -> None:
    before = """\
# Of 5m.
groups:
  - name: g
    interval: 30s
    rules:
      # For [5m].
      - alert: A
        expr: |
          rate(x[10m]) > 0  # of [10m]
          and y

        for: 5m  # not 10m
        keep_firing_for: 10m
        labels: {severity: warning, for: 5m}
        annotations:
          description: >-
            For 5m, [5m],
            offset 5m.
  - name: h
    rules:
      - {record: "a:x:rate5m", expr: y}
      - record: a:x:rate5m
        expr: rate(x[5m])
"""
    after = before.replace("interval: 30s", "interval: 3s").replace("rate(x[10m])", "rate(x[60s])")
    after = after.replace("for: 5m  #", "for: 30s  #").replace("firing_for: 10m", "firing_for: 60s")
    after = after.replace("rate(x[5m])", "rate(x[30s])")
    assert scale_rules(before, 10, scrape_s=1) == after


def test_an_expression_in_quotes_is_refused() -> None:
    with pytest.raises(ValueError, match="in quotes of YAML"):
        scale_rules('groups: [{name: g, rules: [{record: a, expr: "rate(x[5m])"}]}]', 10, scrape_s=1)


def test_promtool_takes_the_copies_of_our_own_rules(tmp_path: Path) -> None:
    rules = sorted(RULES.glob("*.yaml"))
    assert main(["--by", "10", "--into", str(tmp_path / "fast"), *map(str, rules)]) == 0
    copies = sorted((tmp_path / "fast").iterdir())
    assert [copy.name for copy in copies] == [path.name for path in rules]
    checked = subprocess.run(["promtool", "check", "rules", *copies], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_copies_of_the_compose_demo_are_of_the_rules_as_they_are(tmp_path: Path) -> None:
    wanted = {path.name: scale_file(path, tmp_path, 10, 5).read_text() for path in RULES.glob("*.yaml")}
    there = {path.name: path.read_text() for path in (DEPLOY / "compose/rules").glob("*")}
    assert there == wanted, COMPOSE
