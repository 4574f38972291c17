"""Who may come in: basic and bearer credentials of the web configuration, checked in constant time.

bcrypt takes a tenth of a second of CPU by design, so a password is checked in a thread, one at a time, and what came
out is remembered for a bounded number of credentials, as keyed hashes. Neither headers nor names of users are logged.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from gpumon.ingest.web_config import WebConfig

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

REMEMBERED = 128
"""Credentials whose check is remembered, right and wrong ones each."""
PASSWORD_BYTES = 72
"""bcrypt reads no further."""


class Gate:
    """Checks the value of an ``Authorization`` header (or gRPC metadata)."""

    def __init__(self, users: Mapping[str, bytes], tokens: Iterable[bytes]) -> None:
        """``users``: bcrypt hash by name; ``tokens``: bearer tokens. Either admits."""
        self._users = {name.encode(): hash_ for name, hash_ in users.items()}
        # An unknown user takes as long as a wrong password.
        self._decoy = next(iter(self._users.values()), b"")
        self._key = secrets.token_bytes(32)
        self._tokens = [self._digest(token) for token in tokens]
        self._known: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        self._one_at_a_time = asyncio.Lock()

    @property
    def challenge(self) -> bytes:
        """Value of ``WWW-Authenticate``."""
        schemes = [b'Basic realm="gpumon"'] if self._users else []
        return b", ".join([*schemes, b'Bearer realm="gpumon"'] if self._tokens else schemes)

    async def admits(self, authorization: bytes | None) -> bool:
        """Whether the one who sent this header may come in. None: sent none."""
        if authorization is None:
            return False
        scheme, _, credentials = authorization.partition(b" ")
        credentials = credentials.strip()
        if scheme.lower() == b"bearer":
            return self._has_token(credentials)
        if scheme.lower() == b"basic" and self._users:
            return await self._has_password(credentials)
        return False

    def _has_token(self, token: bytes) -> bool:
        digest = self._digest(token)
        # Every one is compared, so that the time does not tell which of them matched.
        return sum(hmac.compare_digest(digest, known) for known in self._tokens) > 0

    async def _has_password(self, credentials: bytes) -> bool:
        try:
            user, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
        except binascii.Error:
            return False
        if not colon:
            return False
        digest = self._digest(credentials)
        known = self._recall(digest)
        if known is None:
            async with self._one_at_a_time:
                known = self._recall(digest)  # while we waited, another may have asked the same
                if known is None:
                    right = await asyncio.to_thread(_matches, password, self._users.get(user, self._decoy))
                    known = right and user in self._users
                    self._remember(digest, known)
        return known

    def _recall(self, digest: bytes) -> bool | None:
        return next((answer for answer, digests in self._known.items() if digest in digests), None)

    def _remember(self, digest: bytes, answer: bool) -> None:
        digests = self._known[answer]
        if len(digests) >= REMEMBERED:
            del digests[next(iter(digests))]
        digests[digest] = None

    def _digest(self, secret: bytes) -> bytes:
        return hmac.digest(self._key, secret, hashlib.sha256)


def gate(config: WebConfig) -> Gate | None:
    """The gate of a web configuration; None where it names neither users nor tokens."""
    return Gate(config.users, config.tokens) if config.users or config.tokens else None


def authorization(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The ``authorization`` among ASGI headers; None where there is none, or more than one."""
    values = [value for name, value in headers if name == b"authorization"]
    return values[0] if len(values) == 1 else None


def authenticated(app: Asgi, config: WebConfig, open_paths: Collection[str] = ()) -> Asgi:
    """``app`` behind the web configuration: credentials asked for, its headers added to every answer.

    ``open_paths`` need no credentials (probes of an orchestrator). The app itself where there is nothing to do.
    """
    keeper = gate(config)
    if keeper is None and not config.headers:
        return app

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *config.headers]}
            await send(message)

        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        elif scope["type"] == "http":
            admitted = keeper is None or scope["path"] in open_paths
            if admitted or (keeper is not None and await keeper.admits(authorization(scope["headers"]))):
                await app(scope, receive, send_with_headers)
            elif keeper is not None:
                await _unauthorized(send_with_headers, keeper.challenge)

    return guarded


async def _unauthorized(send: Send, challenge: bytes) -> None:
    body = b"missing or wrong credentials\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"www-authenticate", challenge),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _matches(password: bytes, hash_: bytes) -> bool:
    import bcrypt

    return bcrypt.checkpw(password[:PASSWORD_BYTES], hash_)
