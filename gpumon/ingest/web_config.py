"""Reads the web configuration: TLS and credentials of every port, in the format of Prometheus' exporter-toolkit.

Supported: ``tls_server_config`` with ``cert_file``, ``key_file``, ``client_auth_type``, ``client_ca_file``,
``min_version``, ``max_version``; ``basic_auth_users`` (bcrypt); ``http_server_config`` with ``headers``, and ``http2``,
which changes nothing, since gpumon's HTTP ports speak HTTP/1.1. And one key of gpumon's own, ``bearer_tokens_file``: a
file with one token a line, ``#`` begins a comment line. Paths are relative to the file's folder.

Whatever else the toolkit knows is refused, not ignored: half a security setting is none. Read once, at start. What
cannot be taken raises WebConfigError.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpumon.yamlfile import Value, YamlError, read_yaml

_T = TypeVar("_T")

if TYPE_CHECKING:  # a daemon without gRPC never loads it
    import grpc

COST_LIMIT = 16
"""Of a bcrypt hash: checking one of cost 16 takes seconds."""
TOKENS_BYTES = 64 << 10
TOKEN_CHARACTERS = 16
"""Least of a bearer token: it can be guessed at without limit."""

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HEADERS = {
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
}
_TOOLKIT_ONLY = {
    "cert",
    "key",
    "client_ca",
    "client_allowed_sans",
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
    "rate_limit",
}
_BCRYPT = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]+")  # RFC 6750


class WebConfigError(Exception):
    """The web configuration cannot be taken. ``str()``: one line, with file and key; never a secret."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Files and rules of TLS."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3


@dataclass(frozen=True, slots=True)
class WebConfig:
    """A web configuration; the empty one asks for nothing."""

    tls: TlsConfig | None = None
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """bcrypt hash by name."""
    tokens: tuple[bytes, ...] = field(default=(), repr=False)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Added to every answer of the HTTP ports."""


def load_web_config(path: Path) -> WebConfig:
    """The file at ``path``. An empty file asks for nothing. Raises WebConfigError."""
    try:
        document = read_yaml(path)
    except YamlError as err:
        raise WebConfigError(str(err)) from err
    root = _Section(document, str(path), "")
    known = root.take(("tls_server_config", "http_server_config", "basic_auth_users", "bearer_tokens_file"))
    tokens_file = known.get("bearer_tokens_file")
    return WebConfig(
        tls=_tls(known["tls_server_config"], path.parent) if "tls_server_config" in known else None,
        users=_users(known["basic_auth_users"]) if "basic_auth_users" in known else {},
        tokens=_tokens(path.parent / tokens_file.text()) if tokens_file is not None else (),
        headers=tuple(_http_headers(known["http_server_config"])) if "http_server_config" in known else (),
    )


def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """For a server on asyncio (uvicorn's ``Config.ssl``). Raises WebConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = tls.min_version
    context.maximum_version = tls.max_version
    context.set_alpn_protocols(["http/1.1"])
    try:
        # The password keeps OpenSSL from asking the terminal for one.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    except (OSError, ValueError) as err:
        raise WebConfigError(
            f"{tls.cert_file}, {tls.key_file}: not a certificate and its plain key: {_why(err)}"
        ) from err
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except (OSError, ValueError) as err:
            raise WebConfigError(f"{tls.client_ca_file}: not certificates: {_why(err)}") from err
    context.verify_mode = tls.client_auth
    return context


def grpc_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """For a gRPC server. Raises WebConfigError, also for what gRPC cannot promise."""
    import grpc

    ssl_context(tls)  # gRPC tells neither what is wrong nor which file
    if tls.min_version is not ssl.TLSVersion.TLSv1_2 or tls.max_version is not ssl.TLSVersion.TLSv1_3:
        raise WebConfigError("tls_server_config: for the gRPC port min_version must be TLS12 and max_version TLS13")
    required = tls.client_auth is ssl.CERT_REQUIRED
    try:
        authority = tls.client_ca_file.read_bytes() if required and tls.client_ca_file is not None else None
        pair = (tls.key_file.read_bytes(), tls.cert_file.read_bytes())
    except OSError as err:
        raise WebConfigError(f"{err.filename}: {err.strerror}") from err
    return grpc.ssl_server_credentials([pair], root_certificates=authority, require_client_auth=required)


class _Section(NamedTuple):
    """A value of the file and its name, for errors."""

    value: Value
    file: str
    path: str

    def error(self, what: str) -> WebConfigError:
        place = f"{self.file}:{self.value.line}"
        return WebConfigError(f"{place}: {self.path}: {what}" if self.path else f"{place}: {what}")

    def entries(self) -> Iterator[tuple[str, _Section]]:
        if self.value.data is None:
            return
        if not isinstance(self.value.data, dict):
            raise self.error("expected keys and values")
        for key, value in self.value.data.items():
            shown = key if re.fullmatch(r"[\w.-]{1,60}", key) else "…"
            yield key, _Section(value, self.file, f"{self.path}.{shown}" if self.path else shown)

    def take(self, known: tuple[str, ...]) -> dict[str, _Section]:
        """The entries, all of them known."""
        found = {}
        for key, section in self.entries():
            if key not in known:
                why = "gpumon does not support this setting" if key in _TOOLKIT_ONLY else "unknown key"
                raise section.error(f"{why}; there are {', '.join(known)}")
            found[key] = section
        return found

    def text(self) -> str:
        if not isinstance(self.value.data, str) or not self.value.data or "\0" in self.value.data:
            raise self.error("expected text")
        return self.value.data

    def one_of(self, choices: Mapping[str, _T]) -> _T:
        choice = self.value.data
        if not isinstance(choice, str) or choice not in choices:
            raise self.error(f"expected one of {', '.join(choices)}")
        return choices[choice]


def _tls(section: _Section, folder: Path) -> TlsConfig:
    known = section.take(("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version"))
    for key in ("cert_file", "key_file"):
        if key not in known:
            raise section.error(f"{key} is missing")
    client_ca = known.get("client_ca_file")
    tls = TlsConfig(
        cert_file=folder / known["cert_file"].text(),
        key_file=folder / known["key_file"].text(),
        client_ca_file=None if client_ca is None else folder / client_ca.text(),
        client_auth=known["client_auth_type"].one_of(_CLIENT_AUTH) if "client_auth_type" in known else ssl.CERT_NONE,
        min_version=known["min_version"].one_of(_VERSIONS) if "min_version" in known else ssl.TLSVersion.TLSv1_2,
        max_version=known["max_version"].one_of(_VERSIONS) if "max_version" in known else ssl.TLSVersion.TLSv1_3,
    )
    if tls.client_auth is ssl.CERT_NONE and client_ca is not None:
        raise section.error("client_ca_file without client_auth_type: RequireAndVerifyClientCert")
    if tls.client_auth is not ssl.CERT_NONE and client_ca is None:
        raise section.error("client_auth_type without client_ca_file")
    if tls.min_version > tls.max_version:
        raise section.error("min_version is above max_version")
    return tls


def _users(section: _Section) -> dict[str, bytes]:
    import bcrypt

    users = {}
    for name, entry in section.entries():
        hash_ = entry.value.data
        match = _BCRYPT.fullmatch(hash_) if isinstance(hash_, str) else None
        if match is None or not isinstance(hash_, str):
            raise entry.error("expected a bcrypt hash such as `htpasswd -nBC 10 user` prints after the colon")
        if not 4 <= int(match[1]) <= COST_LIMIT:
            raise entry.error(f"the hash's cost is not between 4 and {COST_LIMIT}")
        if not name or ":" in name:
            raise entry.error("a user's name has no colon and is not empty")
        try:
            bcrypt.hashpw(b"", b"$2b$04$" + hash_[7:29].encode())  # the cheapest use of its salt
        except ValueError as err:
            raise entry.error("not a bcrypt hash: its salt is damaged") from err
        users[name] = hash_.encode()
    return users


def _http_headers(section: _Section) -> Iterator[tuple[bytes, bytes]]:
    known = section.take(("http2", "headers"))
    if "http2" in known and not isinstance(known["http2"].value.data, bool):
        raise known["http2"].error("expected true or false")
    for name, entry in known["headers"].entries() if "headers" in known else ():
        if name not in _HEADERS:
            raise entry.error(f"unknown header; there are {', '.join(sorted(_HEADERS))}")
        value = entry.value.data
        if not isinstance(value, str) or not re.fullmatch(r"[\x20-\x7e]*", value):
            raise entry.error("expected printable ASCII text")
        if value:
            yield name.lower().encode(), value.encode()


def _tokens(path: Path) -> tuple[bytes, ...]:
    try:
        with path.open("rb") as file:
            content = file.read(TOKENS_BYTES + 1)
    except OSError as err:
        raise WebConfigError(f"{path}: {err.strerror}") from err
    if len(content) > TOKENS_BYTES:
        raise WebConfigError(f"{path}: larger than {TOKENS_BYTES} bytes")
    tokens = []
    for number, line in enumerate(content.splitlines(), 1):
        token = line.strip()
        if not token or token.startswith(b"#"):
            continue
        if len(token) < TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
            raise WebConfigError(
                f"{path}:{number}: expected a token of at least {TOKEN_CHARACTERS} letters, digits or any of ._~+/=-"
            )
        tokens.append(token)
    if not tokens:  # else an emptied file would open the ports
        raise WebConfigError(f"{path}: there is no token")
    return tuple(tokens)


def _why(err: Exception) -> str:
    return getattr(err, "strerror", None) or getattr(err, "reason", None) or str(err)
