"""``gpumon probe`` on a real llama.cpp, with a real gpumon beside it: real lengths, times, and end of context."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpumon.probe.model import Report
from tests.e2e.daemon import ROOT, Daemon
from tests.e2e.waiting import eventually
from tests.live.alone import alone, disk_folder
from tests.live.server import LlamaServer
from tests.live.server_main import COMM
from tests.live.story import REAL

pytestmark = pytest.mark.slow
TOKENS = 8
CONTEXT = 2048
"""Of the server, as ``server_main`` starts it."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A small ladder, beyond the end of the server's context. Not while the faults' story is told: it would disturb
    it."""
    with alone(tmp_path_factory), disk_folder() as folder:
        return _probed(folder)


def _probed(folder: Path) -> Report:
    with LlamaServer(folder) as server:
        options = {
            "GPUMON_PROCESSES__SERVERS": json.dumps([COMM]),
            "GPUMON_SERVERS__TARGETS": json.dumps([server.metrics_url]),
        }
        with Daemon(folder, *REAL, options=options) as daemon:
            daemon.await_ready()
            eventually(lambda: daemon.page().select("gpumon_process_page_faults_total"), "the server's page faults")
            whom = ("--endpoint", f"http://127.0.0.1:{server.port}", "--gpumon", f"http://127.0.0.1:{daemon.port}")
            how = ("--ladder", "64,128,512,4k", "--repetitions", "2", "--max-tokens", str(TOKENS), "--ignore-eos")
            done = subprocess.run(
                [sys.executable, "-m", "gpumon", "probe", *whom, *how, "--budget-tokens", "20000", "--json"],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
                cwd=ROOT,
            )
    assert done.returncode == 0, done.stderr
    return Report.model_validate_json(done.stdout)


def test_every_rung_that_fits_is_measured_and_the_end_of_the_context_is_found(said: Report) -> None:
    assert [rung.state for rung in said.rungs] == ["measured", "measured", "measured", "context_too_long"], said
    assert said.ended == "done"
    assert all(rung.errors == {} for rung in said.rungs)


def test_prompts_are_as_long_as_was_aimed_at_by_the_servers_own_count(said: Report) -> None:
    assert said.lengths_from == said.tokens_from == "usage"
    for rung in said.rungs[:3]:
        assert rung.prompt_tokens == pytest.approx(rung.aim_tokens, rel=0.1)
        assert rung.completion_tokens == 2 * TOKENS


def test_longer_prompts_take_longer_and_nothing_is_from_the_prefix_cache(said: Report) -> None:
    firsts = [rung.time_to_first_token.p50 for rung in said.rungs[:3] if rung.time_to_first_token is not None]
    assert len(firsts) == 3
    assert firsts[2] > firsts[0]
    for rung in said.rungs[:3]:
        assert rung.inter_token is not None
        assert rung.inter_token.observations >= 2 * (TOKENS - 2)  # a token may be no text of its own
        assert (rung.cached_share or 0.0) < 0.05


def test_the_gpumon_beside_it_says_what_the_host_did(said: Report) -> None:
    conditions = said.rungs[2].conditions
    assert conditions is not None
    assert conditions.looks >= 2
    assert conditions.process_major_faults is not None
    assert conditions.host_major_faults is not None
    assert any("nothing is explained here" in note for note in said.notes)
