"""The first page links to what this gpumon serves, and to nothing else."""

from __future__ import annotations

import re

from fastapi import APIRouter

from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.store import Store
from gpumon.web.api import make_api
from gpumon.web.correlation import correlation_routes
from gpumon.web.explain import diagnose_routes, explain_routes
from gpumon.web.questions import DiagnoseQuery
from tests.web.asking import ask

EXPLAINED = {"/api/v1/diagnose", "/api/v1/explained", "/api/v1/correlation"}


def links(*routes: APIRouter) -> set[str]:
    app = make_api(lambda: Store().view(0.0), *routes)
    return set(re.findall('href="([^"]+)"', ask(app, "/").body.decode()))


def nothing(query: DiagnoseQuery) -> Diagnosis:
    raise AssertionError(query)


def test_without_explanation_there_are_no_links_to_it() -> None:
    found = links()
    assert {"/metrics", "/api/v1/gpus", "/api/v1/sources", "/docs"} <= found
    assert not found & EXPLAINED
    assert "/api/v1/incidents" not in found


def test_with_explanation_there_are() -> None:
    routes = (
        explain_routes(lambda trace_id: [], list, lambda at_s: at_s),
        diagnose_routes(nothing),
        correlation_routes(list),
    )
    assert links(*routes) >= EXPLAINED


def test_what_needs_an_argument_or_enough_requests_is_named_and_not_linked() -> None:
    found = links(diagnose_routes(nothing), explain_routes(lambda trace_id: [], list, lambda at_s: at_s))
    assert not {"/api/v1/explain", "/api/v1/surface"} & found
