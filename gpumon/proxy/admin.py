"""The proxy's own port: `/metrics` and `/-/healthy`, as an ASGI application. Nothing of it is passed on."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.export.scrape import ScrapeCache
from gpumon.ingest.auth import Asgi, Receive, Scope, Send

_TEXT = (b"content-type", b"text/plain; charset=utf-8")


def admin_app(cache: ScrapeCache, refresh: Callable[[], float]) -> Asgi:
    """refresh: makes the samples anew and gives the steady time. A page is a fraction of a millisecond."""

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, [_TEXT, (b"allow", b"GET, HEAD")], b"expected GET\n")
        elif scope["path"] == "/-/healthy":
            await _answer(send, 200, [_TEXT], b"ok\n")
        elif scope["path"] == "/metrics":
            found = dict(scope["headers"])
            accept, encoding = (found.get(name) for name in (b"accept", b"accept-encoding"))
            page = cache.scrape(
                None if accept is None else accept.decode("latin-1"),
                None if encoding is None else encoding.decode("latin-1"),
                refresh(),
            )
            await _answer(send, page.status, page.headers, page.body)
        else:
            await _answer(send, 404, [_TEXT], b"there are /metrics and /-/healthy\n")

    return app


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    names = {name for name, _ in headers}
    if b"content-length" not in names:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
