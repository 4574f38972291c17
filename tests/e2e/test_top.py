"""`gpumon top` beside a running gpumon: a demo, and one that wants credentials or has parts switched off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import FAST, ROOT, Daemon
from tests.e2e.traces.gateway import OTLP
from tests.e2e.waiting import eventually
from tests.stories import write_story
from tests.top.terminal import Terminal

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-sixteen-characters-and-more"


def demo(folder: Path, options: dict[str, str] | None = None) -> Daemon:
    fault = "kind: power_brake, at_s: 4, for_s: 25, gpu: 1, strength: 0.5"
    story = str(write_story(folder, fault))
    return Daemon(folder, "--scenario", story, command="demo", options=FAST | OTLP | (options or {}))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with demo(tmp_path_factory.mktemp("top")) as started:
        started.await_series("gpumon_incident_active", kind="hw_slowdown", gpu="1")
        yield started


def url(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}"


def top(*arguments: str, **environ: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gpumon", "top", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def look(daemon: Daemon) -> dict[str, Any]:
    """By --json."""
    code, out, err = top("--url", url(daemon), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_scripts_see_the_gpu_that_is_held_down_and_the_server(running: Daemon) -> None:
    def seen() -> dict[str, Any] | None:
        found = look(running)
        kinds = {each["kind"] for each in found["incidents"]}
        return found if "hw_slowdown" in kinds and found["servers"]["servers"] else None

    found = eventually(seen, "the incident and the server")
    assert found["problems"] == {}
    assert found["node"]["demo"] is True
    first, second = found["gpus"]["gpus"]
    assert first["throttled_by"] == []
    assert "hw_power_brake" in second["throttled_by"] + list(second["throttled"])
    assert found["servers"]["servers"][0]["model"] == "llama-3.1-8b"
    assert found["lost"]["requests"] >= 0


def test_a_terminal_of_80_columns_shows_every_part(running: Daemon) -> None:
    with Terminal(url(running)) as terminal:

        def whole(seen: list[str]) -> bool:
            text = "\n".join(seen)
            parts = ("W/limit", "TTFT P99", "llama-3.1-8b", "severity", "hw_slowdown", "power brake", "q quit")
            return all(part in text for part in parts)

        terminal.await_screen(whole, "every part")
        terminal.press(b"q")
        assert terminal.end() == 0


def test_a_gpumon_that_ends_is_said_on_the_screen(tmp_path: Path) -> None:
    with demo(tmp_path) as ending, Terminal(url(ending)) as terminal:
        terminal.await_shown()
        assert ending.end() == 0
        terminal.await_screen(lambda seen: "no gpumon answers at" in " ".join(seen), "it is said")
        terminal.press(b"q")
        assert terminal.end() == 0


def test_one_with_its_api_off_says_what_switches_it_on(tmp_path: Path) -> None:
    with demo(tmp_path, {"GPUMON_HTTP__UI": "false"}) as silent:
        code, out, err = top("--url", url(silent))
    assert (code, out) == (1, "")
    assert "has its JSON API off" in err
    assert "http.ui in its configuration switches it on" in err


def test_one_that_explains_nothing_shows_the_rest(tmp_path: Path) -> None:
    with demo(tmp_path, {"GPUMON_EXPLAIN__ENABLED": "false"}) as daemon:
        code, out, err = top("--url", url(daemon), "--once")
    assert (code, err) == (0, "")
    assert "No causes: nothing is explained here: " in out
    assert "W/limit" in out


def test_one_that_wants_credentials_says_so_and_takes_them(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    (tmp_path / "tokens").chmod(0o600)
    (tmp_path / "web.yml").write_text("bearer_tokens_file: tokens\n")
    with demo(tmp_path, {"GPUMON_HTTP__WEB_CONFIG": str(tmp_path / "web.yml")}) as daemon:
        code, out, err = top("--url", url(daemon))
        assert (code, out) == (1, "")
        assert "wants to know who asks (HTTP 401): GPUMON_API_USER and GPUMON_API_PASSWORD, or GPUMON_API_TOKEN" in err
        code, out, err = top("--url", url(daemon), GPUMON_API_TOKEN=TOKEN)
        assert (code, err) == (0, "")
        assert "W/limit" in out
