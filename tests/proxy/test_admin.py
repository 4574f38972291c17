"""The proxy's own port."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpumon.export.prometheus import Exposition
from gpumon.export.scrape import ScrapeCache
from gpumon.ingest.auth import authenticated
from gpumon.ingest.web_config import WebConfig
from gpumon.proxy.admin import admin_app
from gpumon.proxy.counters import Counters
from gpumon.store import Store

TOKEN = b"0123456789abcdef"


def asked(path: str, method: str = "GET", headers: tuple[tuple[bytes, bytes], ...] = ()) -> tuple[int, bytes]:
    store = Store(max_series=1000, history_points=2)

    def refresh() -> float:
        store.put("proxy", 1.0, Counters().samples(), 5.0)
        return 1.0

    app = admin_app(ScrapeCache(store.view, Exposition().render), refresh)
    app = authenticated(app, WebConfig(tokens=(TOKEN,)), ("/-/healthy",))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    told = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    asyncio.run(app(told, receive, send))  # type: ignore[arg-type]
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % len(sent[1]["body"])
    return sent[0]["status"], sent[1]["body"]


BEARER = ((b"authorization", b"Bearer " + TOKEN),)


def test_every_counter_is_on_the_page_before_its_first_event() -> None:
    status, body = asked("/metrics", headers=BEARER)
    families = {family.name for family in text_string_to_metric_families(body.decode())}
    assert status == 200
    assert {"gpumon_proxy_requests", "gpumon_proxy_upstream_errors", "gpumon_proxy_added_seconds"} <= families


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/metrics", "GET", (), 401),
        ("/-/healthy", "GET", (), 200),
        ("/v1/models", "GET", BEARER, 404),
        ("/metrics", "POST", BEARER, 405),
    ],
)
def test_the_port_answers_for_the_proxy_alone(
    path: str, method: str, headers: tuple[tuple[bytes, bytes], ...], status: int
) -> None:
    assert asked(path, method, headers)[0] == status
