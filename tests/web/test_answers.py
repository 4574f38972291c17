"""What holds for every answer of the API: errors of one shape, ETags, headers, GET alone; and its docs page."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fastapi import APIRouter, Response

from gpumon.web.answers import POLICY, Answers, Problem, with_tag
from gpumon.web.api import make_api, make_asgi
from gpumon.web.docs_page import docs_page
from tests.web.asking import Answer, ask, ask_asgi
from tests.web.known import Known


def routes() -> APIRouter:
    router = APIRouter(prefix="/api/v1", route_class=Answers)

    @router.get("/constant")
    def constant() -> Problem:
        """Always the same."""
        return Problem(title="t", status=1, detail="d", errors=[])

    @router.get("/listed")
    def listed() -> list[int]:
        return [1, 2]

    @router.get("/broken")
    def broken() -> Problem:
        raise RuntimeError

    return router


def answer(path: str, method: str = "GET", **headers: str) -> Answer:
    return ask_asgi(make_asgi(routes()), f"/api/v1/{path}", method=method, headers=headers)


@pytest.mark.parametrize("path", ["constant", "listed"])
def test_an_answer_has_a_tag_and_who_has_it_already_gets_none(path: str) -> None:
    first = answer(path)
    tag = first.headers["etag"]
    assert (first.status, first.headers["cache-control"]) == (200, "private, no-cache")
    assert answer(path).headers["etag"] == tag
    for said in (tag, f'"x", W/{tag}', "*"):
        again = answer(path, **{"if-none-match": said})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    for said in ("", '"x"', tag.strip('"'), tag[:-2]):
        assert answer(path, **{"if-none-match": said}).status == 200


def test_tags_tell_bodies_apart() -> None:
    tags = {with_tag(Response(body), None).headers["etag"] for body in ("a", "b", "c")}
    assert len(tags) == 3


def test_errors_have_no_tag() -> None:
    assert "etag" not in with_tag(Response("x", 404), "*").headers


@pytest.mark.parametrize("path", ["constant", "nothing", "../../docs"])
def test_every_answer_has_the_headers_that_keep_it_where_it_belongs(path: str) -> None:
    headers = answer(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] == POLICY
    assert "cache-control" in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["constant", "nothing"])
def test_anything_but_get_is_refused(method: str, path: str) -> None:
    reply = answer(path, method)
    assert (reply.status, reply.headers["allow"], reply.json["status"]) == (405, "GET", 405)


def test_what_is_not_there_and_what_fails_is_told_in_the_same_shape() -> None:
    missing = answer("nothing")
    assert (missing.status, missing.headers["content-type"]) == (404, "application/problem+json")
    assert Problem.model_validate(missing.json) == Problem(title="Not Found", status=404, detail="Not Found", errors=[])
    with pytest.raises(RuntimeError):  # for the server's log
        answer("broken")


def test_a_wrong_question_names_each_parameter_in_words() -> None:
    reply = Known().ask("heatmap", "minutes=0&of=x&by=\x00")
    said = Problem.model_validate(reply.json)
    assert [each.where for each in said.errors] == ["of", "by", "minutes"]
    assert said.detail.startswith("of: Input should be 'ttft' or 'inter_token'; by: ")


@pytest.mark.parametrize(
    ("path", "query", "where"),
    [
        ("heatmap", "minuts=5", ["minuts"]),
        ("requests", "modle=m&limit=5&sort=newest", ["modle"]),
        ("requests", "modle=m&Server=&x=1", ["modle", "Server", "x"]),
        ("node", "_=1", ["_"]),
        ("stream", "every=5", ["every"]),
    ],
)
def test_a_parameter_that_there_is_not_is_named(path: str, query: str, where: list[str]) -> None:
    reply = Known().ask(path, query)
    said = Problem.model_validate(reply.json)
    assert (reply.status, [each.where for each in said.errors]) == (422, where)
    assert "no such parameter; the" in said.detail


def test_the_names_that_there_are_are_told_and_hostile_ones_are_cut() -> None:
    said = Problem.model_validate(Known().ask("scatter", "%0a" + "x" * 5000 + "=1").json)
    assert said.errors[0].message == "no such parameter; they are uuid, minutes"
    assert said.errors[0].where == " " + "x" * 63
    many = Known().ask("gpus", "&".join(f"n{number}=1" for number in range(500)))
    assert (many.status, len(many.json["errors"])) == (422, 20)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_the_description_has_a_tag_and_does_not_mind_parameters(path: str) -> None:
    app = make_asgi(routes())
    first = ask_asgi(app, path, "v=1")
    assert (first.status, first.headers["cache-control"]) == (200, "private, no-cache")
    again = ask_asgi(app, path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/api/v1/constant/", "/docs/", "/openapi.json/", "/static", "/static/page.js/", "//evil.example/", "//"]
)
def test_nobody_is_sent_elsewhere(path: str) -> None:
    reply = ask_asgi(make_asgi(routes()), path, headers={"host": "evil.example"})
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    assert "location" not in reply.headers
    assert b"evil" not in reply.body


# --- the description --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def openapi() -> Any:
    return ask(Known().app, "/openapi.json").json


def test_every_field_and_parameter_says_what_it_is_or_its_name_does(openapi: Any) -> None:
    said = ("seconds", "bytes", "watts", "hertz", "celsius", "per_second", "tokens", "count")
    unsaid = []
    for name, model in openapi["components"]["schemas"].items():
        assert model.get("description"), name
        for field, of in model.get("properties", {}).items():
            if of.get("type") == "number" and not of.get("description") and not field.endswith(said):
                unsaid.append(f"{name}.{field}")
    assert unsaid == []


def test_errors_are_described_with_their_content_type(openapi: Any) -> None:
    for path, item in openapi["paths"].items():
        for status, response in item["get"]["responses"].items():
            if status >= "400":
                assert list(response["content"]) == ["application/problem+json"], path


def test_everything_has_a_description_and_only_gets(openapi: Any) -> None:
    for path, item in openapi["paths"].items():
        assert list(item) == ["get"], path
        assert item["get"]["description"], path


def test_the_description_is_made_once() -> None:
    app = Known().app
    assert app.openapi() is app.openapi()
    assert "application/problem+json" in json.dumps(app.openapi())


def test_docs_has_every_address_parameter_and_model_and_loads_nothing(openapi: Any) -> None:
    page = docs_page(openapi)
    for path, item in openapi["paths"].items():
        assert f"<code>{path}</code>" in page
        for parameter in item["get"].get("parameters", ()):
            assert f"<td><code>{parameter['name']}</code></td>" in page
    anchors = set(re.findall(r'id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= anchors
    assert {f"model-{name}" for name in openapi["components"]["schemas"]} <= anchors
    assert not re.search(r"<script|src=|https?://(?!localhost)|@import|url\(", page)


def test_docs_is_served_with_a_policy_that_allows_no_scripts() -> None:
    reply = ask_asgi(make_asgi(routes()), "/docs")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "script-src" not in reply.headers["content-security-policy"]
    assert reply.headers["content-security-policy"].startswith("default-src 'none'; style-src")


def test_hostile_words_in_the_description_are_text() -> None:
    hostile = "<script>alert(1)</script>"
    schema = {
        "type": "object",
        "description": hostile,
        "properties": {hostile: {"type": hostile, "description": hostile}},
    }
    get = {
        "description": hostile,
        "responses": {},
        "parameters": [{"name": hostile, "in": "query", "schema": {"default": hostile}}],
    }
    document = {
        "info": {"title": hostile, "version": "1"},
        "paths": {f"/{hostile}": {"get": get}},
        "components": {"schemas": {hostile: schema}},
    }
    assert "<script" not in docs_page(document)


def test_without_routes_the_docs_are_a_page() -> None:
    assert "</html>" in docs_page(make_api().openapi())
