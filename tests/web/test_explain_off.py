"""Where nothing is explained, the API says which key would change that."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from gpumon.web.explain_off import PATHS, off_routes
from tests.web.asking import ask


@pytest.mark.parametrize("path", PATHS)
def test_every_route_says_what_is_off(path: str) -> None:
    api = FastAPI()
    api.include_router(off_routes("otlp.enabled is off"))
    answer = ask(api, f"/api/v1/{path}", "trace_id=0")
    assert answer.status == 404
    assert answer.json == {"detail": "nothing is explained here: otlp.enabled is off"}
