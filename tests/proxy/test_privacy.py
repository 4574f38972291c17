"""What people say to a model, and what it answers, is in nothing that the proxy keeps, logs, counts or sends."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from gpumon.config_proxy import ProxyConfig
from gpumon.proxy.run import make_settings
from tests.e2e.waiting import eventually
from tests.proxy.process import ProxyProcess
from tests.proxy.rig import DONE, LAST, SSE_HEAD, answers, chunked, event, post, rig, run

CANARY = "canary-7f3a"
WORDS = [f"{CANARY}-{where}" for where in ("prompt", "answer", "key", "cookie", "query", "error", "tool", "trailer")]


class _Collector(BaseHTTPRequestHandler):
    bodies: list[bytes] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.connection.setblocking(True)
        if b"fail" in body:
            told = json.dumps({"error": {"message": WORDS[5], "type": WORDS[5]}}).encode()
            self.send_response(400)
            self.send_header("Content-Type", "application/json")
        elif b"break" in body:
            self.wfile.write(SSE_HEAD + chunked(event(WORDS[1]), b"data: {" + WORDS[1].encode() + b"\n\n") + b"zz\r\n")
            self.close_connection = True
            return
        else:
            tool = json.dumps({"choices": [{"delta": {"tool_calls": [{"function": {"name": WORDS[6]}}]}}]})
            told = event(WORDS[1]) + f"data: {tool}\n\n".encode() + DONE
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: object) -> None:
        pass


def ask(port: int, text: str) -> bytes:
    body = {
        "model": "llama",
        "stream": True,
        "messages": [{"role": "user", "content": WORDS[0]}],
        "metadata": {"x": text},
        "user": WORDS[0],
    }
    headers = {
        "Authorization": f"Bearer {WORDS[2]}",
        "Cookie": WORDS[3],
        "x-api-key": WORDS[2],
        "Content-Type": "application/json",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", f"/v1/chat/completions?key={WORDS[4]}", json.dumps(body), headers)
        return connection.getresponse().read()
    except http.client.IncompleteRead as error:
        return error.partial
    finally:
        connection.close()


def test_nothing_of_it_is_in_traces_logs_and_metrics(tmp_path: Path) -> None:
    collector, server = HTTPServer(("127.0.0.1", 0), _Collector), HTTPServer(("127.0.0.1", 0), _Server)
    for each in (collector, server):
        Thread(target=each.serve_forever, daemon=True).start()
    otlp = f"http://127.0.0.1:{collector.server_port}"
    arguments = ("--otlp", otlp, "--log-level", "debug", "--inject", "first:1ms", "--inject", "token:1ms,p=0.5")
    with ProxyProcess(tmp_path, server.server_port, *arguments) as proxy:
        assert WORDS[1].encode() in ask(proxy.port, "")
        assert WORDS[5].encode() in ask(proxy.port, "fail")
        assert WORDS[1].encode() in ask(proxy.port, "break")
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
        connection.putrequest("POST", f"http://{WORDS[4]}/", skip_host=True)
        connection.putheader("Host", WORDS[4])
        connection.endheaders()
        refusal = connection.getresponse().read()
        connection.close()
        eventually(lambda: "gpumon_proxy_traces_total 3" in proxy.page(), "three traces")
        page = proxy.page()
        assert proxy.end() == 0
        log = proxy.log
    for each in (collector, server):
        each.shutdown()
        each.server_close()
    sent = b"".join(_Collector.bodies)
    assert b"llama" in sent
    assert b"upstream_malformed" in sent
    assert "upstream=failing reason=malformed" in log
    for left in (sent, log.encode(), page.encode(), refusal):
        assert CANARY.encode() not in left


def test_the_hash_of_a_prompt_is_another_one_at_each_start_unless_the_salt_is_told(tmp_path: Path) -> None:
    upstream = ProxyConfig(upstream="http://127.0.0.1:1")
    assert make_settings(upstream).salt != make_settings(upstream).salt
    (tmp_path / "salt").write_text("shared by all proxies\n")
    shared = upstream.model_copy(update={"prompt_salt_file": tmp_path / "salt"})
    assert make_settings(shared).salt == make_settings(shared).salt == b"shared by all proxies"
    assert "shared by" not in repr(make_settings(shared))


def test_trailers_and_unread_bodies_leave_nothing_in_a_trace() -> None:
    body = b'{"stream":true,"messages":"' + WORDS[0].encode() * 100_000 + b'"}'
    ending = f"0\r\nX-Last: {WORDS[7]}\r\n\r\n".encode()

    async def through() -> None:
        async with rig(answers(SSE_HEAD + chunked(event(WORDS[1])) + ending)) as one:
            assert (await one.ask(post(body))).endswith(ending)
            assert await asyncio.to_thread(one.spans)
            assert all(CANARY.encode() not in sent for sent in one.receiver.bodies)

    run(through())
    assert ending != LAST
