"""``gpumon explain`` and ``diagnose``: what they ask of a running gpumon or a recording, and how they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumon.web.explanation import trace
from tests.command_line import Invoke
from tests.diagnoses import full
from tests.explained import TRACE, explained, to_unix
from tests.host.test_http_client import Peer
from tests.test_api_client import reply

TOLD = trace(TRACE, [explained()], to_unix).model_dump_json()


@pytest.fixture
def peer() -> Iterator[Peer]:
    """Stands where a running gpumon stands."""
    made = Peer()
    yield made
    made.stop()


def url_of(peer: Peer) -> str:
    return peer.url.removesuffix("/metrics")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain"], "Missing argument 'TRACE_ID'"),
        (["explain", "0af7"], "TRACE_ID: '0af7': expected 32 hexadecimal digits"),
        (["explain", "g" * 32], f"'{'g' * 32}': expected 32 hexadecimal digits"),
        (["explain", "\N{FULLWIDTH DIGIT ONE}" * 32], "expected 32 hexadecimal digits"),
        (["diagnose", "--since", "yesterday"], "--since: 'yesterday': expected a time such as 90s, 30m or 2h"),
        (["diagnose", "--since", "0"], "--since: '0': expected a time"),
        (["diagnose", "--since", "-5m"], "--since: '-5m': expected a time"),
        (["diagnose", "--since", "1e9"], "--since: '1e9': expected a time"),
        (["diagnose", "--since", "nan"], "--since: 'nan': expected a time"),
        (["diagnose", "--since", "9" * 50], "--since: '9999999999999999999999999999999999999999': expected a time"),
        (["diagnose", "--since", "3h"], "--since: 3h: a running gpumon knows at most 2h"),
        (["diagnose", "--quantile", "1"], "'--quantile': 1.0 is not in the range"),
        (["diagnose", "--quantile", "nan"], "'--quantile': nan is not in the range"),
        (["diagnose", "--html", "/tmp"], "'/tmp' is a directory"),
        (["diagnose", "/tmp"], "'/tmp' is a directory"),
        (["diagnose", "--folder", "x"], "--folder means nothing with no --incident"),
        (["diagnose", "x.rec", "--url", "http://x"], "--url means nothing with a FILE"),
        (["diagnose", "x.rec", "--incident", "latest"], "FILE means nothing with --incident"),
        (["diagnose", "--incident", "latest", "--html", "x"], "--html means nothing with --incident"),
        (["diagnose", "--incident", "latest", "--since", "5m"], "--since means nothing with --incident"),
        (["diagnose", "--url", "nowhere"], "--url: 'nowhere': expected such as http://127.0.0.1:9450"),
        (["diagnose", "--ca", "x.pem"], "--ca is of TLS: expected an https:// address with it"),
    ],
)
def test_wrong_values_of_arguments_are_exit_code_2(invoke: Invoke, arguments: list[str], said: str) -> None:
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_diagnose_without_recordings_is_one_line_and_exit_code_1(invoke: Invoke, tmp_path: Path) -> None:
    code, out, err = invoke("diagnose", "--incident", "latest", "--folder", str(tmp_path))
    assert (code, out, err) == (1, "", f"gpumon: {tmp_path}: there are no recordings\n")


def test_explain_tells_what_the_running_gpumon_knows(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(200, TOLD.encode()))
    code, out, err = invoke("explain", f" {TRACE.upper()}", "--url", url_of(peer))
    assert (code, err) == (0, "")
    assert out.startswith("llama-70b on vllm, tenant acme\n")
    assert "\x1b" not in out
    assert peer.requests[0].startswith(f"GET /api/v1/explain?trace_id={TRACE} ".encode())


def test_explain_takes_the_beginning_of_a_trace_id(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(200, TOLD.encode()))
    assert invoke("explain", TRACE[:8].upper(), "--url", url_of(peer))[0] == 0
    assert peer.requests[0].startswith(f"GET /api/v1/explain?trace_id={TRACE[:8]} ".encode())


def test_a_beginning_of_several_is_refused_with_what_gpumon_says(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(422, b'{"detail": "trace_id: 2 traces begin with it: a, b"}'))
    assert invoke("explain", TRACE[:8], "--url", url_of(peer)) == (
        2,
        "",
        "gpumon: trace_id: 2 traces begin with it: a, b\n",
    )


def test_explain_as_json_is_what_was_answered(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(200, TOLD.encode()))
    code, out, _ = invoke("explain", TRACE, "--url", url_of(peer), "--json")
    assert (code, json.loads(out)) == (0, json.loads(TOLD))


def test_a_trace_that_is_not_known_is_one_line_and_exit_code_1(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(404, b'{"detail": "nothing is known of this trace"}'))
    assert invoke("explain", TRACE, "--url", url_of(peer)) == (
        1,
        "",
        f"gpumon: {url_of(peer)}: nothing is known of this trace\n",
    )


@pytest.mark.parametrize("command", [["explain", TRACE], ["diagnose"]])
def test_no_gpumon_there_is_one_line_and_exit_code_1(invoke: Invoke, peer: Peer, command: list[str]) -> None:
    url = url_of(peer)
    peer.stop()
    code, out, err = invoke(*command, "--url", url)
    assert (code, out) == (1, "")
    assert err == f"gpumon: no gpumon answers at {url}: Connection refused; --url says where it listens\n"


@pytest.mark.parametrize("command", [["explain", TRACE], ["diagnose"]])
def test_credentials_of_the_environment_are_for_the_running_gpumon(
    invoke: Invoke, peer: Peer, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("GPUMON_API_TOKEN", "s3cret")
    peer.answers.append(reply(401, b""))
    code, out, err = invoke(*command, "--url", url_of(peer))
    assert (code, out) == (1, "")
    assert err == f"gpumon: {url_of(peer)} does not accept these credentials (HTTP 401)\n"
    assert b"Authorization: Bearer s3cret\r\n" in peer.requests[0]
    assert invoke("config")[0] == 0


def test_diagnose_tells_what_the_running_gpumon_found(invoke: Invoke, peer: Peer, tmp_path: Path) -> None:
    peer.answers.append(reply(200, full().model_dump_json().encode()))
    page = tmp_path / "report.html"
    options = ["--since", "15m", "--model", "llama-70b", "--x", "tenant", "--quantile", "0.5", "--html", str(page)]
    code, out, err = invoke("diagnose", "--url", url_of(peer), *options)
    assert (code, err) == (0, f"The report is in {page}.\n")
    assert out.startswith("gpu-box-17: 30 min from 2027-01-15 08:00:00 UTC on\n")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    asked = "/api/v1/diagnose?since=900&model=llama-70b&x=tenant&quantile=0.5"
    assert peer.requests[0].startswith(f"GET {asked} ".encode())


def test_diagnose_as_json_is_what_was_answered(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(200, full().model_dump_json().encode()))
    code, out, _ = invoke("diagnose", "--url", url_of(peer), "--json")
    assert (code, json.loads(out)) == (0, full().model_dump(mode="json"))


def test_an_attribute_that_there_is_not_is_exit_code_2(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(422, b'{"detail": "no attribute \'colour\' of requests"}'))
    assert invoke("diagnose", "--url", url_of(peer), "--x", "colour") == (
        2,
        "",
        "gpumon: no attribute 'colour' of requests\n",
    )


def test_a_report_that_cannot_be_written_is_said_before_anything_is_asked(
    invoke: Invoke, peer: Peer, tmp_path: Path
) -> None:
    page = tmp_path / "no" / "report.html"
    assert invoke("diagnose", "--url", url_of(peer), "--html", str(page)) == (
        1,
        "",
        f"gpumon: {page}: there is no such folder\n",
    )
    assert peer.requests == []


def test_diagnose_tells_what_a_recording_holds(invoke: Invoke, recorded: Path) -> None:
    code, out, err = invoke("diagnose", str(recorded), "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["requests"] > 0
    assert told["until"] - told["since"] == pytest.approx(12, abs=0.5)
