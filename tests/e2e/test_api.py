"""The JSON API of `gpumon demo` as the live page uses it: every part has data, a cell leads to a request, and that to
what was under it; the stream goes on and says goodbye; and no question breaks it.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.daemon import FAST, Daemon
from tests.e2e.traces.gateway import OTLP
from tests.e2e.waiting import eventually
from tests.stories import story_text

pytestmark = pytest.mark.slow
FAULTS = ("kind: power_brake, at_s: 7, for_s: 300, gpu: 1, strength: 0.5",)
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("api")
    scenario = folder / "story.yaml"
    scenario.write_text(story_text(*FAULTS, duration_s=600))
    with Daemon(folder, "--scenario", str(scenario), command="demo", options=FAST | OTLP) as daemon:
        eventually(lambda: get(daemon, "requests")["matched"] >= 10, "requests are explained", within_s=60)
        yield daemon
        assert "Traceback" not in daemon.log


def get(demo: Daemon, path: str) -> Any:
    reply = demo.ask(f"/api/v1/{path}")
    assert reply.status == 200, reply.text
    return json.loads(reply.body, parse_constant=lambda text: pytest.fail(f"{text} in {path}"))


def test_the_node_and_its_gpus_are_told_with_their_past(demo: Daemon) -> None:
    node = get(demo, "node")
    assert (node["demo"], node["nvml"]["state"], node["gpus"]["present"]) == (True, "running", 2)
    assert {source["source"] for source in node["sources"]} >= {"gpu_fast", "traces", "detect"}
    first, second = get(demo, "gpus?history=120")["gpus"]
    assert first["sm_active"] is not None
    assert sum(first["bound"].values()) == pytest.approx(1.0, abs=0.01)
    assert first["processes"][0]["memory_bytes"] > 0
    assert {"sm_active", "dram_active", "power_watts", "sm_clock_hertz"} <= set(first["history"]["signals"])
    assert len(first["history"]["at"]) > 10
    assert "hw_power_brake" in second["throttled_by"]
    assert second["throttled"]["hw_power_brake"] > 0.1
    assert "hw_slowdown" in {incident["kind"] for incident in second["incidents"]}


def test_the_server_is_told_with_its_latencies_queue_and_gpus(demo: Daemon) -> None:
    (server,) = get(demo, "servers?history=120")["servers"]
    assert server["model"] == "llama-3.1-8b"
    assert server["inter_token"]["p99_seconds"] >= server["inter_token"]["p50_seconds"] > 0
    assert server["tokens_per_second"] > 0
    assert (server["running"], server["kv_usage"]) != (None, None)
    assert [gpu["gpu"] for gpu in server["gpus"]] == ["0", "1"]
    assert {"running", "inter_token_p95_seconds", "tokens_per_second"} <= set(server["history"]["signals"])


def test_a_cell_leads_to_its_slowest_request_and_that_to_its_tokens_and_what_was_under_them(demo: Daemon) -> None:
    for of in ("ttft", "inter_token"):
        for by in ("concurrency", "context"):
            cells = get(demo, f"heatmap?of={of}&by={by}")["cells"]
            largest = max(cells, key=lambda cell: cell["count"])
            (slowest, *_) = get(demo, f"requests?cell={quote(largest['id'])}&limit=5")["requests"]
            assert get(demo, f"explain?trace_id={slowest['trace_id']}")["requests"][0]["request_id"]
            assert get(demo, f"timeline?trace_id={slowest['trace_id']}")["requests"]
    wanted = {("sm_active", "0"), ("sm_clock", "1"), ("throttled", "1"), ("major_faults", None)}

    def later() -> Any:
        (newest,) = get(demo, "requests?sort=newest&limit=1")["requests"]
        told = get(demo, f"timeline?trace_id={newest['trace_id']}")
        return told if wanted <= {(lane["name"], lane["gpu"]) for lane in told["lanes"]} else None

    # Of the server's processes nothing is kept before its first request has ended: a later one has all lanes.
    timeline = eventually(later, "a request with all lanes")
    trace = get(demo, f"explain?trace_id={timeline['trace_id']}")
    (request,) = timeline["requests"]
    assert request["start"] == pytest.approx(trace["requests"][0]["start"], abs=0.01)
    clock = next(lane for lane in timeline["lanes"] if (lane["name"], lane["gpu"]) == ("sm_clock", "1"))
    known = [value for value in clock["values"] if value is not None]
    assert len(known) > 10
    assert clock["start"] == pytest.approx(timeline["start"], abs=0.2)


def test_activity_has_points_with_the_latency_of_that_moment(demo: Daemon) -> None:
    def coloured() -> Any:
        told = get(demo, "scatter?minutes=10")["gpus"]
        return told if told and any(told[0]["inter_token_p95_seconds"]) else None

    gpus = eventually(coloured, "a point with a latency")
    assert [gpu["gpu"] for gpu in gpus] == ["0", "1"]
    for gpu in get(demo, "bound?minutes=10")["gpus"]:
        assert {round(sum(shares), 2) for shares in zip(*gpu["shares"].values(), strict=True)} == {1.0}


def test_what_has_not_changed_is_not_sent_again(demo: Daemon) -> None:
    first = demo.ask("/openapi.json")
    assert first.status == 200
    told = demo.ask("/api/v1/correlation")
    again = demo.ask("/api/v1/correlation", headers={"If-None-Match": told.headers["etag"]})
    assert again.status in (200, 304)
    assert (again.body == b"") == (again.status == 304)


def test_the_docs_load_nothing_from_elsewhere(demo: Daemon) -> None:
    page = demo.ask("/docs")
    assert page.status == 200
    assert "script" not in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert "cdn" not in page.text.lower()


def test_the_stream_tells_of_the_node_each_second_and_says_goodbye(tmp_path: Path) -> None:
    scenario = tmp_path / "story.yaml"
    scenario.write_text(story_text(*FAULTS, duration_s=600))
    with Daemon(tmp_path, "--scenario", str(scenario), command="demo", options=FAST | OTLP) as daemon:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
        connection.request("GET", "/api/v1/stream")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
        events = _events(answer)
        names = [next(events)[0] for _ in range(3)]
        assert names == ["node"] * 3
        found = next(data for name, data in events if name == "incident")
        assert (found["kind"], found["state"]) == ("hw_slowdown", "open")
        daemon.process.terminate()
        last = [*events][-1]
        assert last == ("bye", {"reason": "ending"})
        assert daemon.process.wait(10) == 0
        connection.close()
        assert "Traceback" not in daemon.log


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := answer.readline().decode():
        if line.startswith("event: "):
            name = line.removeprefix("event: ").strip()
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_no_question_breaks_it_and_every_answer_is_as_described(demo: Daemon, tmp_path: Path) -> None:
    description = tmp_path / "openapi.json"
    description.write_bytes(demo.ask("/openapi.json").body)
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        *(str(description), "--url", f"http://127.0.0.1:{demo.port}", "--checks", CHECKS, "--no-color"),
        *("--max-examples", "25", "--workers", "1", "--seed", "1", "--exclude-path", "/api/v1/stream"),
        *("--phases", "coverage,fuzzing,stateful"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "Tested: 16" in done.stdout
