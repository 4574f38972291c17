from __future__ import annotations

import asyncio
import base64
import http.client
import ssl
from pathlib import Path
from typing import Any

import bcrypt
import grpc
import pytest
import trustme
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from gpumon.ingest import auth
from gpumon.ingest.auth import Gate, authenticated, gate
from gpumon.ingest.web_config import WebConfig, WebConfigError, grpc_credentials, load_web_config, ssl_context
from tests.ingest.receiving import PROTOBUF, Receiving
from tests.ingest.sdk import export, sdk_spans
from tests.ingest.spans import body

TOKEN = "a-token-of-more-than-sixteen"
HASH = "$2b$04$DWqyp97wWRHnDq0X3YIdFOmCEbThhIX9nTVSSNEExOsRVx33fayUG"  # of "correct horse"


def write(folder: Path, content: str, tokens: str | None = None) -> Path:
    if tokens is not None:
        (folder / "tokens").write_text(tokens)
    path = folder / "web.yml"
    path.write_text(content)
    return path


def basic(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


class Certificates:
    """A CA, a server's certificate and a client's, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.server = self._issue(folder, "server", "localhost", "127.0.0.1")
        self.client = self._issue(folder, "client", "client.example")

    def _issue(self, folder: Path, name: str, *identities: str) -> tuple[Path, Path]:
        issued = self.authority.issue_cert(*identities)
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


# --- the file -------------------------------------------------------------------------------------------------------


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    assert load_web_config(write(tmp_path, "")) == WebConfig()


def test_everything_is_read_and_paths_begin_at_the_file(tmp_path: Path) -> None:
    content = f"""
tls_server_config:
  cert_file: server.crt
  key_file: /etc/keys/server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  min_version: TLS13
  max_version: TLS13
http_server_config:
  http2: false
  headers:
    Strict-Transport-Security: max-age=1
    X-Frame-Options: ""
basic_auth_users:
  alice: {HASH}
bearer_tokens_file: tokens
"""
    config = load_web_config(write(tmp_path, content, f"# for vllm\n\n{TOKEN}\n  another-token-long-enough==\n"))
    assert config.tls is not None
    assert (config.tls.cert_file, config.tls.key_file) == (tmp_path / "server.crt", Path("/etc/keys/server.key"))
    assert config.tls.client_ca_file == tmp_path / "ca.crt"
    assert config.tls.client_auth is ssl.CERT_REQUIRED
    assert config.tls.min_version is config.tls.max_version is ssl.TLSVersion.TLSv1_3
    assert config.users == {"alice": HASH.encode()}
    assert config.tokens == (TOKEN.encode(), b"another-token-long-enough==")
    assert config.headers == ((b"strict-transport-security", b"max-age=1"),)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("- a list", "web.yml:1: expected keys and values"),
        ("tls_config: {}", "web.yml:1: tls_config: unknown key; there are tls_server_config"),
        ("rate_limit: {burst: 1}", "web.yml:1: rate_limit: gpumon does not support this setting"),
        ("\ntls_server_config: {cert_file: a}", "web.yml:2: tls_server_config: key_file is missing"),
        ("tls_server_config: {cert_file: a, key_file: b, cipher_suites: []}", "cipher_suites: gpumon does not support"),
        ("tls_server_config: {cert_file: a, key_file: b, client_allowed_sans: [x]}", "does not support"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "min_version: expected one of TLS12"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS13, max_version: TLS12}", "above max_version"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}", "expected one of"),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}",
            "client_auth_type without client_ca_file",
        ),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "client_ca_file without"),
        ("tls_server_config: {cert_file: 7, key_file: b}", "tls_server_config.cert_file: expected text"),
        ("basic_auth_users: {alice: opensesame}", "basic_auth_users.alice: expected a bcrypt hash"),
        ("basic_auth_users: {alice: $2y$17$" + "a" * 53 + "}", "cost is not between 4 and 16"),
        ("basic_auth_users: {'al:ice': " + HASH + "}", "no colon"),
        ("http_server_config: {http2: maybe}", "http_server_config.http2: expected true or false"),
        ("http_server_config: {headers: {X-Mine: a}}", "unknown header; there are Content-Security-Policy"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "printable ASCII"),
        ("bearer_tokens_file: nowhere", "nowhere: No such file or directory"),
        ("{", "web.yml:"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_its_place(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(WebConfigError) as raised:
        load_web_config(write(tmp_path, content))
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "opensesame" not in str(raised.value)


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ("", "there is no token"),
        ("# none\n", "there is no token"),
        (f"{TOKEN}\nhunter2\n", "tokens:2: expected a token of at least 16"),
        ("two words in a long line\n", "tokens:1: expected a token"),
        ("a" * 70_000, "larger than"),
    ],
)
def test_token_files_that_cannot_be_taken_are_refused(tmp_path: Path, tokens: str, complaint: str) -> None:
    with pytest.raises(WebConfigError) as raised:
        load_web_config(write(tmp_path, "bearer_tokens_file: tokens", tokens))
    assert complaint in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(WebConfigError, match=r"none\.yml: No such file"):
        load_web_config(tmp_path / "none.yml")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    config = load_web_config(
        write(tmp_path, f"basic_auth_users: {{a: {HASH}}}\nbearer_tokens_file: tokens", f"{TOKEN}\n")
    )
    assert HASH not in repr(config)
    assert TOKEN not in repr(config)


# --- credentials ----------------------------------------------------------------------------------------------------


def admits(keeper: Gate, *headers: bytes | None) -> list[bool]:
    async def ask() -> list[bool]:
        return [await keeper.admits(header) for header in headers]

    return asyncio.run(ask())


def test_the_right_credentials_are_admitted_and_no_others() -> None:
    keeper = Gate({"alice": HASH.encode()}, [TOKEN.encode()])
    right = [basic("alice", "correct horse"), f"Bearer {TOKEN}".encode(), f"bearer  {TOKEN}".encode()]
    wrong = [
        None,
        b"",
        b"Basic",
        b"Basic !!!",
        b"Basic " + base64.b64encode(b"alice"),
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("bob", "correct horse"),
        basic("alice", "correct horse\0"),
        basic("alice", "x" * 100),
        b"Bearer",
        b"Bearer " + TOKEN.encode()[:-1],
        f"Bearer {TOKEN}x".encode(),
        f"Digest {TOKEN}".encode(),
        TOKEN.encode(),
    ]
    assert admits(keeper, *right) == [True] * len(right)
    assert admits(keeper, *wrong) == [False] * len(wrong)


def test_hashes_of_htpasswd_and_long_passwords_work() -> None:
    long = "y" * 80
    hash_ = bcrypt.hashpw(long.encode()[:72], bcrypt.gensalt(4)).replace(b"$2b$", b"$2y$")
    assert admits(Gate({"alice": hash_}, []), basic("alice", long)) == [True]


def test_a_password_is_checked_once_and_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Gate({"alice": HASH.encode()}, [])
    checked: list[bytes] = []
    real = auth._matches

    def counted(password: bytes, hash_: bytes) -> bool:
        checked.append(password)
        return real(password, hash_)

    monkeypatch.setattr(auth, "_matches", counted)
    right = basic("alice", "correct horse")
    assert admits(keeper, right, right, right) == [True] * 3
    assert len(checked) == 1
    admits(keeper, *(basic("alice", str(number)) for number in range(auth.REMEMBERED + 10)))
    assert admits(keeper, right, basic("alice", "5"), basic("alice", "130")) == [True, False, False]
    assert len(checked) == 1 + auth.REMEMBERED + 10 + 1  # the right one is not pushed out; the oldest wrong one is


def test_the_challenge_names_what_is_configured() -> None:
    assert Gate({"a": HASH.encode()}, []).challenge == b'Basic realm="gpumon"'
    assert Gate({}, [b"t"]).challenge == b'Bearer realm="gpumon"'
    assert Gate({"a": HASH.encode()}, [b"t"]).challenge == b'Basic realm="gpumon", Bearer realm="gpumon"'
    assert gate(WebConfig()) is None


# --- the middleware -------------------------------------------------------------------------------------------------


async def page(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def ask(app: Any, path: str, *headers: tuple[bytes, bytes], kind: str = "http") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    asyncio.run(app({"type": kind, "path": path, "headers": list(headers)}, receive, send))
    return sent


def test_pages_ask_for_credentials_except_the_open_ones() -> None:
    app = authenticated(page, WebConfig(tokens=(TOKEN.encode(),)), {"/-/healthy"})
    right = (b"authorization", f"Bearer {TOKEN}".encode())
    assert ask(app, "/metrics", right)[0]["status"] == 200
    assert ask(app, "/-/healthy")[0]["status"] == 200
    denied = ask(app, "/metrics")[0]
    assert denied["status"] == 401
    assert (b"www-authenticate", b'Bearer realm="gpumon"') in denied["headers"]
    assert ask(app, "/metrics", right, right)[0]["status"] == 401  # which of them would the application read?
    assert ask(app, "/-/healthy/../../metrics")[0]["status"] == 401
    assert ask(app, "/metrics", right, kind="websocket") == []


def test_headers_are_added_to_every_answer() -> None:
    extra = (b"x-frame-options", b"deny")
    with_token = authenticated(page, WebConfig(tokens=(TOKEN.encode(),), headers=(extra,)))
    assert extra in ask(with_token, "/")[0]["headers"]
    assert extra in ask(authenticated(page, WebConfig(headers=(extra,))), "/")[0]["headers"]
    assert authenticated(page, WebConfig()) is page


# --- on the ports ---------------------------------------------------------------------------------------------------


def test_both_ports_ask_for_the_token() -> None:
    with Receiving(web=WebConfig(tokens=(TOKEN.encode(),))) as receiving:
        denied = receiving.post("/v1/traces", body())
        assert (denied.status, denied.headers["content-type"]) == (401, PROTOBUF)
        assert denied.headers["www-authenticate"] == 'Bearer realm="gpumon"'
        assert receiving.post("/v1/traces", body(), headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
        address = f"127.0.0.1:{receiving.grpc_port}"
        for headers, result in (
            ({}, SpanExportResult.FAILURE),
            ({"authorization": f"Bearer {TOKEN}"}, SpanExportResult.SUCCESS),
        ):
            exporter = OTLPSpanExporter(address, insecure=True, headers=headers)
            assert export(exporter, sdk_spans(1)) is result
        assert receiving.counts()["otlp_requests", "grpc", "traces", "unauthorized"] == 1
        assert receiving.counts()["otlp_requests", "http", "traces", "unauthorized"] == 1


def test_both_ports_speak_tls(tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # they would win over the exporter's own argument
        monkeypatch.delenv(variable, raising=False)
    web = load_web_config(write(tmp_path, "tls_server_config: {cert_file: server.pem, key_file: server.key}"))
    with Receiving(web=web) as receiving:
        endpoint = f"https://127.0.0.1:{receiving.http_port}/v1/traces"
        over_http = HttpSpanExporter(endpoint=endpoint, certificate_file=str(certificates.ca))
        assert export(over_http, sdk_spans(1)) is SpanExportResult.SUCCESS
        trusted = grpc.ssl_channel_credentials(certificates.ca.read_bytes())
        over_grpc = OTLPSpanExporter(f"localhost:{receiving.grpc_port}", credentials=trusted)
        assert export(over_grpc, sdk_spans(1)) is SpanExportResult.SUCCESS
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            receiving.post("/v1/traces", body())
        assert len(receiving.taken) == 2


def test_client_certificates_are_required(tmp_path: Path, certificates: Certificates) -> None:
    content = """tls_server_config:
  cert_file: server.pem
  key_file: server.key
  client_ca_file: ca.pem
  client_auth_type: RequireAndVerifyClientCert
"""
    web = load_web_config(write(tmp_path, content))
    certificate, key = certificates.client
    with Receiving(web=web) as receiving:
        context = ssl.create_default_context(cafile=str(certificates.ca))
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            post_over(context, receiving.http_port)
        context.load_cert_chain(certificate, key)
        assert post_over(context, receiving.http_port) == 200
        root = certificates.ca.read_bytes()
        anonymous = grpc.ssl_channel_credentials(root)
        known = grpc.ssl_channel_credentials(root, key.read_bytes(), certificate.read_bytes())
        for credentials, works in ((known, True), (anonymous, False)):
            exporter = OTLPSpanExporter(f"localhost:{receiving.grpc_port}", credentials=credentials, timeout=2)
            assert (export(exporter, sdk_spans(1)) is SpanExportResult.SUCCESS) == works


def test_old_tls_is_refused(tmp_path: Path, certificates: Certificates) -> None:
    content = "tls_server_config: {cert_file: server.pem, key_file: server.key, min_version: TLS13}"
    tls = load_web_config(write(tmp_path, content)).tls
    assert tls is not None
    assert ssl_context(tls).minimum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(WebConfigError, match="min_version"):
        grpc_credentials(tls)


@pytest.mark.parametrize("broken", ["server.pem", "server.key", "ca.pem"])
def test_files_that_are_no_certificates_are_named(tmp_path: Path, certificates: Certificates, broken: str) -> None:
    content = """tls_server_config:
  cert_file: server.pem
  key_file: server.key
  client_ca_file: ca.pem
  client_auth_type: VerifyClientCertIfGiven
"""
    tls = load_web_config(write(tmp_path, content)).tls
    assert tls is not None
    (tmp_path / broken).write_text("nothing")
    for build in (ssl_context, grpc_credentials):
        with pytest.raises(WebConfigError, match=broken.replace(".", r"\.")):
            build(tls)
    (tmp_path / broken).unlink()
    for build in (ssl_context, grpc_credentials):
        with pytest.raises(WebConfigError, match=broken.replace(".", r"\.")):
            build(tls)


def post_over(context: ssl.SSLContext, port: int) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
    try:
        connection.request("POST", "/v1/traces", body(), {"Content-Type": PROTOBUF})
        return connection.getresponse().status
    finally:
        connection.close()
