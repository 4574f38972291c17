"""The live page as it is served: its policy, its files, nothing from elsewhere, and nothing at all where it is off."""

from __future__ import annotations

import asyncio
import gzip
import re
import subprocess
import sys
from typing import Any

import pytest

from gpumon.web.api import make_asgi
from gpumon.web.asgi import Dispatcher
from gpumon.web.pages import POLICY, page_files
from tests.web.asking import Answer, ask_asgi

FILES = page_files()
TEXTS = {name: file.body.decode() for name, file in FILES.items()}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}


def get(path: str, **headers: str) -> Answer:
    return ask_asgi(make_asgi(), path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_the_page_is_served_under_a_policy_that_lets_only_its_own_files_run() -> None:
    page = get("/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in POLICY
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/static/page.css", "/static/plotly.js"])
def test_browsers_ask_each_time_and_are_told_that_nothing_changed(path: str) -> None:
    first = get(path)
    assert first.headers["cache-control"] == "private, no-cache"
    again = get(path, if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


@pytest.mark.parametrize("name", [name for name in FILES if name != "index.html"])
def test_every_file_is_served_as_what_it_is(name: str) -> None:
    answer = get(f"/static/{name}")
    assert (answer.status, answer.body) == (200, FILES[name].body)
    assert answer.headers["content-type"] == FILES[name].media_type


@pytest.mark.parametrize("name", ["", "nothing.js", "index.html", "../api.py", "..%2fapi.py", "%00", "a" * 5000])
def test_nothing_else_is_served(name: str) -> None:
    assert get(f"/static/{name}").status == 404


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_file_refers_to_anything_elsewhere(name: str) -> None:
    # The namespace of SVG is a name, no address.
    text = TEXTS[name].replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"""(?:[a-z]+:)?//[a-z0-9.-]+\.[a-z]{2,}|url\(|@import""", text) == []


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_no_script_makes_markup_or_code_of_text(name: str) -> None:
    # A template keeps a style sheet from being one; it is never shown.
    forbidden = r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function\(|srcdoc|setHTMLUnsafe)\b"
    assert re.findall(forbidden, SCRIPTS[name]) == []


def test_the_page_has_nothing_inline_that_the_policy_would_refuse() -> None:
    page = TEXTS["index.html"]
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=", page) == []


def test_every_file_that_is_asked_for_is_there_and_every_file_is_asked_for() -> None:
    asked = set(re.findall(r'(?:href|src)="static/([^"]+)"', TEXTS["index.html"]))
    for text in SCRIPTS.values():
        asked |= set(re.findall(r'from "\./([^"]+)"', text)) | set(re.findall(r'"static/([^"]+)"', text))
    views = set(re.findall(r'\["([a-z]+)", "[A-Z][a-z]+"\]', TEXTS["page.js"])) | {"request"}
    asked |= {f"{view}.js" for view in views}
    assert len(views) == 5
    assert asked - {"plotly.js"} == set(FILES) - {"index.html"}


def test_plots_are_drawn_by_the_script_that_the_package_plotly_brings() -> None:
    packed = get("/static/plotly.js", accept_encoding="br, gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"
    plain = get("/static/plotly.js")
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(packed.body) == plain.body
    assert b"plotly.js v" in plain.body[:100]
    assert len(packed.body) < 2_000_000
    # What plotly would write into the page is in plots.css, under this name.
    assert b'"plotly.js-style-"' in plain.body
    assert b".no-inline-styles" in plain.body
    assert 'id="plotly.js-style-global" class="no-inline-styles"' in TEXTS["index.html"]


def test_where_the_api_is_off_there_is_no_page() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "path": "/", "method": "GET", "headers": [], "query_string": b""}
    asyncio.run(Dispatcher({}, lambda: 0.0, list, None, None)(scope, receive, send))
    assert sent[0]["status"] == 404


def test_the_page_and_fastapi_are_loaded_when_they_are_first_asked_for() -> None:
    code = "import sys, gpumon.app; print({'gpumon.web.pages', 'fastapi'} & set(sys.modules) or 'neither')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "neither"
