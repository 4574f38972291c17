"""The JSON API's application: its routes put together, the live page and its docs. FastAPI; imported when first asked
for."""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from gpumon import __version__
from gpumon.web.answers import guarded, say_problems, tell_problems, with_tag
from gpumon.web.asgi import Asgi
from gpumon.web.docs_page import POLICY, docs_page
from gpumon.web.pages import page_routes


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Made once."""
        return say_problems(super().openapi()) if self.openapi_schema is None else self.openapi_schema


def make_api(*routes: APIRouter) -> FastAPI:
    """The application, without what ``make_asgi`` puts around it."""
    api = _Api(
        title="gpumon",
        version=__version__,
        summary="Tells you why a token was slow.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # below, with a tag
        redirect_slashes=False,  # they would lead to whatever host the question names
        # What the models say is what is sent; there is one of each, in and out.
        separate_input_output_schemas=False,
    )
    tell_problems(api)

    @api.get("/openapi.json", include_in_schema=False)
    def description(request: Request) -> Response:
        return with_tag(JSONResponse(api.openapi()), request.headers.get("if-none-match"))

    @api.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs(request: Request) -> Response:
        response = with_tag(HTMLResponse(docs_page(api.openapi())), request.headers.get("if-none-match"))
        response.headers["content-security-policy"] = POLICY  # of a 304, too
        return response

    for router in (*routes, page_routes()):
        api.include_router(router)
    return api


def make_asgi(*routes: APIRouter) -> Asgi:
    """The application as it is served."""
    return guarded(cast(Asgi, make_api(*routes)))  # FastAPI's types are its own
