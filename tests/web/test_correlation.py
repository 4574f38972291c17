"""/api/v1/correlation: the whole matrix of every group, filters, and questions that cannot be answered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fastapi import FastAPI

from gpumon.explain.correlations import Matrix
from gpumon.explain.group import Group
from gpumon.web.api import make_api
from gpumon.web.correlation import correlation_routes
from tests.web.asking import ask

R = np.array([[0.5, -0.9], [math.nan, 0.95]])


def matrix(server: str = "vllm", model: str = "m", *, is_fast: bool = False) -> Matrix:
    known = ~np.isnan(R)
    return Matrix(
        group=Group(server, model, ("GPU-1",), "", ""),
        is_fast=is_fast,
        at_s=1000.0,
        step_s=0.1 if is_fast else 1.0,
        x=("sm_clock", "temperature"),
        y=("inter_token_p95", "tokens_per_second"),
        r=R,
        lag_s=np.array([[0.0, -2.0], [0.0, 3.0]]),
        n=np.where(known, 500, 0),
        n_eff=np.where(known, 50.5, 0.0),
        p=np.where(known, 0.001, 1.0),
        strong=np.abs(np.nan_to_num(R)) > 0.7,
    )


def app(*matrices: Matrix) -> FastAPI:
    return make_api(correlation_routes(lambda: matrices))


@pytest.fixture
def busy() -> FastAPI:
    return app(matrix(), matrix("sglang"), matrix(model="n"), matrix(is_fast=True))


def test_nothing_known_is_an_empty_list() -> None:
    reply = ask(app(), "/api/v1/correlation")
    assert (reply.status, reply.json) == (200, [])


def test_a_matrix_is_told_in_full_and_what_is_not_known_is_null() -> None:
    (told,) = ask(app(matrix()), "/api/v1/correlation").json
    pairs = told.pop("pairs")
    assert told == {
        "server": "vllm",
        "model": "m",
        "gpus": ["GPU-1"],
        "fast": False,
        "step_seconds": 1.0,
        "x": ["sm_clock", "temperature"],
        "y": ["inter_token_p95", "tokens_per_second"],
    }
    assert [(pair["x"], pair["y"], pair["r"]) for pair in pairs] == [
        ("sm_clock", "inter_token_p95", 0.5),
        ("sm_clock", "tokens_per_second", -0.9),
        ("temperature", "inter_token_p95", None),
        ("temperature", "tokens_per_second", 0.95),
    ]
    assert pairs[1] == {
        "x": "sm_clock",
        "y": "tokens_per_second",
        "r": -0.9,
        "lag_seconds": -2.0,
        "n": 500,
        "n_eff": 50.5,
        "p": 0.001,
        "strong": True,
    }
    assert (pairs[2]["n"], pairs[2]["p"], pairs[2]["strong"]) == (0, 1.0, False)


def test_only_strong_pairs_come_the_strongest_first() -> None:
    (told,) = ask(app(matrix()), "/api/v1/correlation", "strong_only=true").json
    assert [pair["r"] for pair in told["pairs"]] == [0.95, -0.9]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", [("vllm", "m"), ("sglang", "m"), ("vllm", "n")]),
        ("model=m", [("vllm", "m"), ("sglang", "m")]),
        ("server=vllm", [("vllm", "m"), ("vllm", "n")]),
        ("server=sglang&model=n", []),
        ("fast=true", [("vllm", "m")]),
        ("model=", []),
    ],
)
def test_filters_choose(busy: FastAPI, query: str, told: list[tuple[str, str]]) -> None:
    reply = ask(busy, "/api/v1/correlation", query)
    assert reply.status == 200
    assert [(each["server"], each["model"]) for each in reply.json] == told
    assert {each["fast"] for each in reply.json} <= {query == "fast=true"}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("fast=perhaps", "valid boolean"),
        ("strong_only=2", "valid boolean"),
        ("model=" + "x" * 257, "at most 256 characters"),
        ("server=" + "x" * 65, "at most 64 characters"),
    ],
)
def test_a_question_that_cannot_be_answered_says_what_was_expected(busy: FastAPI, query: str, said: str) -> None:
    reply = ask(busy, "/api/v1/correlation", query)
    assert reply.status == 422
    assert said in reply.json["detail"]


def test_hostile_names_are_json() -> None:
    (told,) = ask(app(matrix(model='"<script>\x00\u2028')), "/api/v1/correlation").json
    assert told["model"] == '"<script>\x00\u2028'


def test_the_api_describes_it(busy: FastAPI) -> None:
    schema = ask(busy, "/openapi.json").json
    assert "/api/v1/correlation" in schema["paths"]
