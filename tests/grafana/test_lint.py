"""The lint of dashboards: what its rules leave alone, what holds between dashboards, exclusions, the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from grafana import lint as cli
from grafana.lint import FOLDER, Exclusion, Finding, lint, lint_folder, load_exclusions, without
from grafana.lint_dashboard import MOST_BYTES
from grafana.lint_model import read
from grafana.promql_names import Recording
from tests.grafana.lint_board import (
    CHOSEN,
    FAILED,
    asking,
    board_of,
    defaults,
    good,
    graph,
    linking,
    mapped,
    query,
    rules_found,
    variable,
)


def test_nothing_is_wrong_with_a_right_dashboard() -> None:
    board = board_of(good())
    assert list(lint(board, {})) == []
    assert list(lint_folder([board])) == []


def test_dashboard_that_is_too_large_is_found() -> None:
    assert not list(lint(board_of(good(), MOST_BYTES - 1), {}))
    assert [finding.rule for finding in lint(board_of(good(), MOST_BYTES), {})] == ["dashboard-size"]


def test_query_that_cannot_be_read_is_the_only_finding_about_it() -> None:
    raw = good()
    asking("sum(", "{{gpu}}")(raw)
    assert rules_found(raw) == {"target-promql"}


def test_arm_that_tells_why_stands_for_the_text_of_an_empty_panel() -> None:
    raw = good()
    mapped(raw, "")
    assert rules_found(raw) == set()


def test_whole_range_may_be_asked_at_once() -> None:
    raw = good()
    asking(FAILED.replace("$__rate_interval", "$__range"), "{{source}}", instant=True, range=False)(raw)
    assert rules_found(raw) == set()


def test_unit_of_an_override_is_for_the_series_that_it_names() -> None:
    raw = good()
    failures = graph(raw)
    failures["targets"].append(query(f"max by (node) (gpumon_gpu_power_watts{{{CHOSEN}}})", "{{node}} power", "B"))
    assert rules_found(raw) == {"target-unit"}
    for matcher in (
        {"id": "byRegexp", "options": "/power$/"},
        {"id": "byRegexp", "options": "power"},
        {"id": "byFrameRefID", "options": "B"},
        {"id": "byName", "options": "node power"},
    ):
        override = {"matcher": matcher, "properties": [{"id": "unit", "value": "watt"}]}
        failures["fieldConfig"]["overrides"] = [override]
        assert rules_found(raw) == set(), matcher
    failures["fieldConfig"]["overrides"][0]["matcher"] = {"id": "byRegexp", "options": "/^power$/"}
    assert rules_found(raw) == {"target-unit"}


def test_recorded_series_are_asked_by_the_labels_that_they_have() -> None:
    raw = good()
    recorded = {"cluster:watts:sum": Recording(("sum by (cluster) (gpumon_gpu_power_watts)",), {})}
    asking('cluster:watts:sum{cluster=~"$cluster"}', "{{cluster}}")(raw)
    defaults(graph(raw))["unit"] = "watt"
    assert not list(lint(board_of(raw), recorded))


def test_panel_may_mix_data_sources_if_its_queries_take_the_variable() -> None:
    raw = good()
    graph(raw)["datasource"] = {"uid": "-- Mixed --"}
    assert rules_found(raw) == set()


def test_variable_is_used_by_what_repeats_for_it() -> None:
    raw = good()
    raw["templating"]["list"].append(variable("model") | {"query": "label_values(gpumon_requests_open, model)"})
    assert rules_found(raw) == {"variables-used"}
    graph(raw)["repeat"] = "model"
    assert rules_found(raw) == set()


@pytest.mark.parametrize(
    ("rule", "key", "value"),
    [("unique-uid", "uid", "board"), ("unique-title", "title", "Board"), ("unique-uid", "uid", "")],
)
def test_dashboards_have_names_of_their_own(rule: str, key: str, value: str) -> None:
    other = good() | {"uid": "other", "title": "Other", key: value}
    findings = lint_folder([board_of(good()), board_of(other, file="other.json")])
    assert ("other.json", rule) in {(finding.file, finding.rule) for finding in findings}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/d/nowhere?${__all_variables}", "there is no dashboard nowhere"),
        ("/d/board/name?var-gpu=${__value.raw}", "dashboard board has no variable gpu"),
        ("/d/board?${datasource:queryparam}&${model:queryparam}", "dashboard board has no variable model"),
    ],
)
def test_link_leads_to_a_dashboard_that_takes_what_it_gives(url: str, words: str) -> None:
    raw = good()
    linking(url)(raw)
    assert [finding.text for finding in lint_folder([board_of(raw)])] == [words]


def test_link_to_elsewhere_is_nobodys_business() -> None:
    raw = good()
    linking("https://example.org/d/nowhere")(raw)
    assert not list(lint(board_of(raw), {}))
    assert not list(lint_folder([board_of(raw)]))


FINDING = Finding("board.json", "Failures", "target-unit", "query A gives s, shown as 'm'")


@pytest.mark.parametrize(
    ("exclusion", "covers"),
    [
        (Exclusion("target-unit", "why"), True),
        (Exclusion("target-unit", "why", "board.json", "Failures", "shown as 'm'"), True),
        (Exclusion("target-legend", "why"), False),
        (Exclusion("target-unit", "why", "other.json"), False),
        (Exclusion("target-unit", "why", panel="Other"), False),
        (Exclusion("target-unit", "why", text="query B"), False),
    ],
)
def test_exclusion_is_for_what_it_says(exclusion: Exclusion, covers: bool) -> None:
    left = without([FINDING], [exclusion])
    assert left == [] if covers else [finding.rule for finding in left] == ["target-unit", "exclusion-used"]


@pytest.mark.parametrize("text", ["- rule: panel-units", "- {rule: a, reason: b, why: c}"])
def test_exclusion_without_a_reason_or_with_another_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(TypeError):
        load_exclusions(tmp_path / "x.yaml")


def test_every_exclusion_of_the_repository_has_a_reason() -> None:
    assert all(exclusion.reason.strip() for exclusion in load_exclusions())
    assert yaml.safe_load(cli.EXCLUSIONS.read_text())


def test_command_prints_findings_and_says_whether_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = good()
    right = tmp_path / "right.json"
    right.write_text(json.dumps(raw))
    assert cli.main([str(right)]) == 0
    assert capsys.readouterr().out == ""
    defaults(graph(raw))["unit"] = "s"
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(raw))
    assert cli.main([str(wrong)]) == 1
    assert capsys.readouterr().out.startswith("wrong.json: Failures: target-unit: query A gives s^-1, shown as 's'")


def test_committed_dashboards_have_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(FOLDER / "gpumon-node.json").uid == "gpumon-node"
    assert cli.main([]) == 0, capsys.readouterr().out
