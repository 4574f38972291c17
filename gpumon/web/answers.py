"""How the JSON API answers: errors of one shape, ETags, headers, and what is large is rendered in a worker thread.

``Answers`` is the class of every route of the API but the stream's, which is ``Asked``. ``guarded`` is put around the
whole application: it refuses what is not a GET, and adds the headers that an answer has not set itself.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from gpumon.web.asgi import Asgi, Receive, Scope, Send

PROBLEM_TYPE: Final = "application/problem+json"
POLICY: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""Of answers that say nothing else: they are no pages."""
_ALLOWED: Final = "GET"
_ERRORS_MAX: Final = 20
_NAME_MAX: Final = 64
"""Characters of a parameter's name that are repeated: it may be anything."""


class Wrong(BaseModel):
    """A part of the question that cannot be answered."""

    where: str = Field(description="Name of the parameter.")
    message: str = Field(description="What was expected.")


class Problem(BaseModel):
    """Why there is no answer (RFC 9457)."""

    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="A line for a person.")
    errors: list[Wrong] = Field(description="Each parameter that is wrong; empty for other problems.")


REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    422: {"model": Problem, "description": "A parameter is wrong; errors has each, and what was expected."}
}
"""``responses`` of every route."""
NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": Problem, "description": "It is not known, or what it needs is switched off; detail says which."}
}


class Asked(APIRoute):
    """A route that refuses what it does not ask for: a filter with a slip in its name would filter nothing."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]  # as in FastAPI
        """The route's own, after a look at the names."""
        handle = super().get_route_handler()
        known = [each.alias for each in self.dependant.query_params]
        expected = f"they are {', '.join(known)}" if known else "there are none here"

        async def asked(request: Request) -> Response:
            unknown = [name for name in request.query_params if name not in known]
            if unknown:
                raise RequestValidationError(
                    [
                        {"loc": ("query", name), "msg": f"no such parameter; {expected}", "type": "unknown"}
                        for name in unknown[:_ERRORS_MAX]
                    ]
                )
            return await handle(request)

        return asked


class Answers(Asked):
    """A route whose answers are rendered where they are made, and have an ETag."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:  # noqa: ANN401 - FastAPI's
        super().__init__(path, _rendering(endpoint), **more)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]  # as in FastAPI
        """The route's own, and then the tag."""
        handle = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            response = await handle(request)
            return with_tag(response, request.headers.get("if-none-match"))

        return tagged


def _rendering(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """An endpoint that is no coroutine runs in a worker thread: there its answer becomes bytes, too."""

    @functools.wraps(endpoint)
    def rendered(*arguments: object, **named: object) -> object:
        answer = endpoint(*arguments, **named)
        if isinstance(answer, BaseModel):
            return Response(answer.model_dump_json(), media_type="application/json")
        return answer

    return rendered


def with_tag(response: Response, if_none_match: str | None) -> Response:
    """The response with an ETag; or 304, where the asker has just this."""
    if response.status_code != HTTPStatus.OK or not hasattr(response, "body"):
        return response
    tag = f'"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if if_none_match is not None and _matches(if_none_match, tag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    response.headers.update(headers)
    return response


def _matches(if_none_match: str, tag: str) -> bool:
    """By the weak comparison: whoever compresses on the way makes weak tags of ours."""
    said = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return tag in said or "*" in said


def problem(
    status: int, detail: str, errors: Sequence[Wrong] = (), headers: Mapping[str, str] | None = None
) -> Response:
    """An error."""
    said = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=[*errors])
    return Response(said.model_dump_json(), status, headers, PROBLEM_TYPE)


def tell_problems(api: FastAPI) -> None:
    """Every error of the application in one shape."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), headers=error.headers)

    async def wrong(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        errors = [Wrong(where=_place(each["loc"]), message=_printable(each["msg"])) for each in error.errors()]
        detail = "; ".join(f"{each.where}: {each.message}" for each in errors[:3])
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors[:_ERRORS_MAX])

    async def failed(_: Request, __: Exception) -> Response:
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "gpumon's own fault: its log says more")

    api.add_exception_handler(HTTPException, refused)
    api.add_exception_handler(RequestValidationError, wrong)
    api.add_exception_handler(Exception, failed)


def _place(loc: Sequence[Any]) -> str:
    return _printable(str(loc[-1]))[:_NAME_MAX] if loc else ""


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text.removeprefix("Value error, "))[:400]


def say_problems(openapi: dict[str, Any]) -> dict[str, Any]:
    """The description, with the content type that errors have: FastAPI says that of the route's answers."""
    for item in openapi["paths"].values():
        for operation in item.values():
            for status, response in operation["responses"].items():
                content = response.get("content", {})
                if status >= "400" and len(content) == 1:
                    response["content"] = {PROBLEM_TYPE: next(iter(content.values()))}
    return openapi


def guarded(app: Asgi) -> Asgi:
    """The application for GET alone, with headers on every answer that has not set them itself."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                set_already = {name.lower() for name, _ in message["headers"]}
                added = [pair for pair in _HEADERS if pair[0] not in set_already]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if scope["type"] == "http" and scope["method"] != _ALLOWED:
            refusal = problem(HTTPStatus.METHOD_NOT_ALLOWED, "the API only answers: GET", headers={"allow": _ALLOWED})
            await cast(Asgi, refusal)(scope, receive, send_with_headers)  # Starlette's types are its own
        else:
            await app(scope, receive, send_with_headers)

    return guard


_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
