"""Explain compares like with like, and points at commands and addresses that exist."""

from __future__ import annotations

import json
import re
from typing import Any

import click
import pytest

from gpumon.catalogue import CAUSES, INCIDENT_KINDS
from gpumon.cli import commands
from gpumon.config import ExplainConfig
from gpumon.explain.latency_tracks import SIGNALS as LATENCIES
from gpumon.web.api import make_api
from gpumon.web.correlation import correlation_routes
from gpumon.web.explain import diagnose_routes, explain_routes
from gpumon.web.incidents import Telling, incident_routes
from gpumon.web.questions import DiagnoseQuery
from grafana.boards import explain, explain_basis, explain_signals, explain_words


def panels() -> dict[str, dict[str, Any]]:
    made = json.loads(explain.board().text())
    return {panel["title"]: panel for panel in made["panels"]}


def exprs(title: str) -> list[str]:
    return [target["expr"] for target in panels()[title]["targets"]]


# --- before and now -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("signal", explain_signals.SIGNALS, ids=lambda signal: signal.name)
def test_every_selector_of_a_signal_looks_at_the_time_shown_and_no_other(signal: explain_signals.Signal) -> None:
    after = re.findall(r"\}(.{10})", signal.expr)
    assert after
    assert all(text.startswith("[$__range]") for text in after)


def test_before_moves_every_selector_of_now() -> None:
    now, before = explain_signals.now(), explain_signals.before()
    assert before.count("[$__range] offset $__range") == now.count("[$__range]")
    assert before.replace(" offset $__range", "") == now


def test_no_two_signals_make_the_same_row() -> None:
    rows = [(signal.of, signal.name, signal.unit) for signal in explain_signals.SIGNALS]
    assert len(set(rows)) == len(rows)


# --- causes ---------------------------------------------------------------------------------------------------------
def test_each_cause_is_a_fault_or_load_or_unexplained_and_only_one_of_them() -> None:
    named = [
        cause
        for expr in exprs("Broken, busy, or unexplained")
        for given in re.findall(r'cause=~?"([^"]+)"', expr)
        for cause in given.split("|")
    ]
    assert sorted(named) == sorted(CAUSES)


def test_every_cause_and_every_kind_of_incident_has_words() -> None:
    assert set(explain_words.MEANINGS) == set(explain_words.ACTIONS) == set(CAUSES)
    assert set(explain_words.INCIDENTS) == set(INCIDENT_KINDS)


def test_the_column_of_what_to_do_has_the_words_of_every_cause() -> None:
    overrides = panels()["Causes, the dearest first"]["fieldConfig"]["overrides"]
    mapped = [
        each["value"][0]["options"]
        for override in overrides
        if override["matcher"]["options"] == "What to do"
        for each in override["properties"]
        if each["id"] == "mappings"
    ]
    assert [sorted(options) for options in mapped] == [sorted(CAUSES)]


def test_tokens_are_counted_as_long_ago_as_their_lateness() -> None:
    assert f"{ExplainConfig().delay_s:.0f}s" == explain_basis.EXPLAINED_LATER


def test_each_latency_and_rate_that_is_correlated_is_in_one_of_the_two_tables() -> None:
    patterns = [
        pattern.replace("${model}", ".*")
        for title in ("What goes with latency", "What goes with tokens per second")
        for pattern in set(re.findall(r'y=~"([^"]+)"', " ".join(exprs(title))))
    ]
    assert len(patterns) == 2
    for latency in LATENCIES:
        assert [bool(re.fullmatch(pattern, f"a-model:{latency}")) for pattern in patterns].count(True) == 1


# --- what to do next ------------------------------------------------------------------------------------------------
def test_every_command_that_is_named_exists_with_its_options() -> None:
    named = re.findall(r"`gpumon ([a-z]+)([^`]*)`", explain_words.NEXT)
    assert len(named) == 5
    for name, arguments in named:
        command = commands.commands[name]
        known = {option for each in command.params if isinstance(each, click.Option) for option in each.opts}
        assert set(re.findall(r"--[a-z]+", arguments)) <= known


def _nothing(query: DiagnoseQuery) -> Any:
    raise AssertionError(query)


def test_every_address_that_is_named_exists_and_knows_its_parameters() -> None:
    app = make_api(
        explain_routes(lambda trace_id: [], lambda beginning: [], list, lambda at_s: at_s),
        diagnose_routes(_nothing),
        correlation_routes(list),
        incident_routes(Telling(list, lambda: 0.0, lambda at_s: at_s)),
    )
    paths = app.openapi()["paths"]
    named = re.findall(r"`(/api/v1/[a-z]+)(?:\?([^`]*))?`", explain_words.NEXT)
    assert len(named) == 7
    for path, query in named:
        known = {parameter["name"] for parameter in paths[path]["get"].get("parameters", [])}
        assert {pair.split("=")[0] for pair in query.split("&") if pair} <= known
