"""A small client of a running gpumon's JSON API, for commands: one GET of one answer, within a deadline and a size.

The address is what the user says, ``http://`` or ``https://``; redirects are not followed and proxies of the
environment are not used. Credentials come from the environment, so that they are in no list of processes. Whatever is
wrong raises ApiError with one line for a person: nothing there, not allowed, not known, or no gpumon at all.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from gpumon.host.timed_socket import TimedSocket, TooLongError, left_s

DEFAULT_URL: Final = "http://127.0.0.1:9450"
USER: Final = "GPUMON_API_USER"
PASSWORD: Final = "GPUMON_API_PASSWORD"  # noqa: S105 - the name of a variable
TOKEN: Final = "GPUMON_API_TOKEN"  # noqa: S105 - likewise
TIMEOUT_S: Final = 30.0
LIMIT_BYTES: Final = 32 << 20
_NO_ROUTE: Final = "Not Found"
"""What FastAPI says of an address that it does not have."""
_DETAIL_MAX: Final = 400
_HEAD_BYTES: Final = 1 << 18
_Answer = TypeVar("_Answer", bound=BaseModel)


class ApiError(Exception):
    """No answer. ``str()``: one line that says why, and what to do."""


class NobodyError(ApiError):
    """Nobody listens there, or nobody can be reached."""


class NoPageError(ApiError):
    """Somebody answers, who does not have this page."""


class QuestionError(ApiError):
    """The question itself is wrong: an address, credentials, or a value that gpumon refuses."""


class Address(NamedTuple):
    """Where a gpumon listens."""

    scheme: str
    host: str
    port: int
    path: str
    """Before ``/api``; without a slash at its end."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


class Api:
    """See the module. Opens nothing before the first question."""

    def __init__(
        self,
        url: str,
        environ: Mapping[str, str],
        ca: Path | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        limit_bytes: int = LIMIT_BYTES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """ca: certificates to trust instead of the system's. timeout_s: from connecting to the answer's last byte.

        limit_bytes: largest answer. now_s: steady seconds. Raises QuestionError.
        """
        self.address = _address(url)
        self._authorization = _authorization(environ)
        self._ca = ca
        if ca is not None and self.address.scheme != "https":
            raise QuestionError("--ca is of TLS: expected an https:// address with it")
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._now_s = now_s

    def get(self, path: str, answer: type[_Answer], query: Mapping[str, str] | None = None) -> _Answer:
        """What ``/api/v1/<path>`` says. Raises ApiError."""
        status, body = self._exchange(f"{self.address.path}/api/v1/{path}" + (f"?{urlencode(query)}" if query else ""))
        if status != 200:
            self._refused(status, body)
        try:
            return answer.model_validate_json(body)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in problem["loc"])[:80]
            raise ApiError(
                f"{self.address} answers what this gpumon does not understand{f', in {where}' if where else ''}: "
                "another version, or another program"
            ) from error

    def page(self, path: str) -> bytes:
        """Another page of it as it is, such as ``/metrics``. Raises ApiError."""
        status, body = self._exchange(self.address.path + path)
        if status != 200:
            self._refused(status, body)
        return body

    def _exchange(self, target: str) -> tuple[int, bytes]:
        connection: http.client.HTTPConnection | None = None
        deadline_s = self._now_s() + self._timeout_s
        try:
            connection = self._open(deadline_s)
            connection.request("GET", target, headers=self._headers())
            with contextlib.closing(connection.getresponse()) as response:
                body = response.read(self._limit_bytes + 1)
                if len(body) > self._limit_bytes:
                    raise TooLongError
                if response.length:
                    raise http.client.IncompleteRead(b"", response.length)
                return response.status, body
        except (OSError, TooLongError, http.client.HTTPException, ValueError) as error:  # ValueError: an odd length
            raise self._failure(error) from error
        finally:
            if connection is not None:
                connection.close()

    def _open(self, deadline_s: float) -> http.client.HTTPConnection:
        timed = TimedSocket(self._connected(deadline_s), self._now_s)
        timed.deadline_s = deadline_s
        timed.bytes_left = 2 * self._limit_bytes + _HEAD_BYTES  # chunks of few bytes have as much around them
        connection = http.client.HTTPConnection(self.address.host, self.address.port)
        connection.sock = cast(socket.socket, timed)  # TLS, where there is any, is the socket's affair
        return connection

    def _connected(self, deadline_s: float) -> socket.socket:
        host, port = self.address.host, self.address.port
        failure = OSError("no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            real = socket.socket(family, kind, protocol)
            try:
                real.settimeout(left_s(deadline_s, self._now_s))
                real.connect(place)
                if self.address.scheme == "https":
                    real.settimeout(left_s(deadline_s, self._now_s))
                    return _tls(self._ca).wrap_socket(real, server_hostname=host)
                return real
            except OSError as error:
                real.close()
                failure = error
            except BaseException:
                real.close()
                raise
        raise failure

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "gpumon", "Connection": "close"}
        return headers | ({"Authorization": self._authorization} if self._authorization else {})

    def _failure(self, error: Exception) -> ApiError:
        if isinstance(error, TimeoutError):
            return ApiError(f"{self.address}: no answer within {self._timeout_s:g} s")
        if isinstance(error, TooLongError):
            return ApiError(f"{self.address} answers more than {self._limit_bytes} bytes: another program?")
        if isinstance(error, ssl.SSLCertVerificationError):
            return ApiError(f"{self.address}: {error.verify_message}; --ca names whom to trust")
        if isinstance(error, ssl.SSLError):
            return ApiError(f"{self.address}: no TLS there ({error.reason or 'it hung up'})")
        if isinstance(error, UnicodeError):
            return QuestionError(f"--url: {self.address.host[:80]!r} is no name of a host")
        if isinstance(error, ConnectionResetError | http.client.HTTPException | ValueError):
            return ApiError(f"{self.address} does not speak HTTP, or hung up: another program?")
        assert isinstance(error, OSError)
        why = error.strerror or str(error)
        return NobodyError(f"no gpumon answers at {self.address}: {why}; --url says where it listens")

    def _refused(self, status: int, body: bytes) -> NoReturn:
        detail = error_detail(body)
        if status in (401, 403):
            raise ApiError(
                f"{self.address} wants to know who asks (HTTP {status}): {USER} and {PASSWORD}, or {TOKEN}, say it"
                if not self._authorization
                else f"{self.address} does not accept these credentials (HTTP {status})"
            )
        if 300 <= status < 400:
            raise ApiError(f"{self.address} sends elsewhere (HTTP {status}), which is not followed: --url says where")
        if status == 404 and detail and detail != _NO_ROUTE:
            raise ApiError(f"{self.address}: {detail}")
        if status == 404:
            raise NoPageError(
                f"{self.address} has no such page: an older gpumon, one with http.ui off, or another program"
            )
        if status == 422 and detail:
            raise QuestionError(detail)
        raise ApiError(f"{self.address} answers HTTP {status}{f': {detail}' if detail else ''}")


def _address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise QuestionError(f"--url: {url[:80]!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise QuestionError(f"--url: {url[:80]!r}: expected such as {DEFAULT_URL}")
    if parts.username is not None:
        raise QuestionError(f"--url: credentials in it would be seen by others: expected them in {USER} and {PASSWORD}")
    if parts.query or parts.fragment or not parts.path.isascii() or any(c <= " " for c in url):
        raise QuestionError(f"--url: {url[:80]!r}: expected an address alone, such as {DEFAULT_URL}")
    port = port if port is not None else 443 if parts.scheme == "https" else 80
    return Address(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


def _authorization(environ: Mapping[str, str]) -> str:
    """The header; empty where the environment has no credentials."""
    token, user, password = (environ.get(name, "") for name in (TOKEN, USER, PASSWORD))
    if token and (user or password):
        raise QuestionError(f"expected either {TOKEN}, or {USER} and {PASSWORD}")
    if token:
        if not token.isascii() or not token.isprintable() or " " in token:
            raise QuestionError(f"{TOKEN}: expected printable ASCII without spaces")
        return f"Bearer {token}"
    if not user and not password:
        return ""
    if not user or ":" in user:
        raise QuestionError(f"{USER}: expected a name without a colon with {PASSWORD}")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogateescape")).decode()


def _tls(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise QuestionError(f"--ca: {ca}: no certificates in it") from error
    except OSError as error:
        raise QuestionError(f"--ca: {ca}: {error.strerror}") from error


def error_detail(body: bytes) -> str:
    """What FastAPI says is wrong, as one printable line; empty where it is something else's words."""
    try:
        said = json.loads(body[: 1 << 20])
    except (ValueError, RecursionError):
        return ""
    detail = said.get("detail") if isinstance(said, dict) else None
    if isinstance(detail, list):
        detail = "; ".join(_problem(each) for each in detail[:3])
    return "".join(c if c.isprintable() else " " for c in detail)[:_DETAIL_MAX] if isinstance(detail, str) else ""


def _problem(problem: object) -> str:
    if not isinstance(problem, dict):
        return ""
    where = problem.get("loc")
    name = where[-1] if isinstance(where, list) and where else ""
    return f"{name}: {problem.get('msg')}"
