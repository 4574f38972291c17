"""The live page: ``/`` and its files, read once from the folder ``static``, and plotly's JavaScript for its plots.

The page is plain modules and one style sheet; it gets everything from the JSON API. Its policy lets nothing be loaded
from elsewhere and nothing inline run. Browsers ask again each time (ETags), so a new gpumon never meets an old page.
plotly's file is 4.8 MB and comes with the package plotly: it is read when a view with plots is first opened, kept
compressed, and 404 where the package came without it.
"""

from __future__ import annotations

import functools
import gzip
import importlib.resources
from typing import Final, NamedTuple

from fastapi import APIRouter, HTTPException, Request, Response

from gpumon.plotly_js import plotly_js
from gpumon.web.answers import with_tag

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""Of the page. Images from data: are what plotly draws on."""
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX: Final = "index.html"


class File(NamedTuple):
    """One file of the page."""

    body: bytes
    media_type: str


def page_files() -> dict[str, File]:
    """All of them by name."""
    folder = importlib.resources.files("gpumon.web") / "static"
    return {
        each.name: File(each.read_bytes(), _TYPES[suffix])
        for each in folder.iterdir()
        if (suffix := each.name.rpartition(".")[2]) in _TYPES
    }


def page_routes() -> APIRouter:
    """The page, its files, and plotly's script."""
    files = page_files()
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index(request: Request) -> Response:
        return _answer(request, files[_INDEX], {"content-security-policy": POLICY})

    # Not among the files below, and in a worker thread: it takes a quarter of a second the first time.
    @router.get("/static/plotly.js")
    def plotly(request: Request) -> Response:
        packed = plotly_packed()
        if packed is None:
            raise HTTPException(404, "the package plotly came without its JavaScript: plots cannot be drawn")
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers = {"content-encoding": "gzip", "vary": "accept-encoding"}
            return _answer(request, File(packed, _TYPES["js"]), headers)
        return _answer(request, File(gzip.decompress(packed), _TYPES["js"]), {"vary": "accept-encoding"})

    @router.get("/static/{name}")
    async def file(request: Request, name: str) -> Response:
        if name not in files or name == _INDEX:
            raise HTTPException(404, "no such file")
        return _answer(request, files[name], {})

    return router


@functools.cache
def plotly_packed() -> bytes | None:
    """plotly's JavaScript, compressed; None where there is none."""
    text = plotly_js()
    return gzip.compress(text, 6, mtime=0) if text is not None else None


def _answer(request: Request, file: File, headers: dict[str, str]) -> Response:
    response = with_tag(
        Response(file.body, media_type=file.media_type, headers=headers), request.headers.get("if-none-match")
    )
    # Of a 304, too: it is the answer's policy that holds.
    response.headers.update(headers)
    return response
