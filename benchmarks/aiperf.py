"""aiperf (PyPI, Apache-2.0), a load generator, in a virtual environment of its own: how it is had and run.

It brings 140 packages, 1.2 GB, which nothing else here needs: the first call makes ``.build/aiperf`` with pip, in about
a minute. It runs without a network: prompts are a file, tokens are counted by the server's ``usage``, and the tokenizer
that it insists on loading all the same is a stand-in, which knows no word and is never asked. Times are milliseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.daemon import ROOT

VERSION = "0.13.0"
VENV = ROOT / ".build" / "aiperf"
_PROGRAM = VENV / "bin" / "aiperf"
_READY = VENV / ".ready"
_TOKENIZER = "gpumon/words"
_WITHIN_S = 900


class MissingError(Exception):
    """It cannot be had here. ``str()``: what is missing."""


class Request(NamedTuple):
    """One request, as aiperf saw it."""

    request_id: str
    """What it sent as ``X-Request-ID``."""
    first_token_ms: float
    """From before it took a connection to when the first chunk with content had come."""
    gaps_ms: list[float]
    """Between chunks with content."""
    prompt_tokens: int
    completion_tokens: int


def install() -> None:
    """Unless it is there. Raises MissingError."""
    if _READY.exists() and _READY.read_text() == VERSION:
        return
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for what, command in (
        ("a virtual environment (Debian: python3-venv)", [sys.executable, "-m", "venv", "--clear", str(VENV)]),
        (f"aiperf {VERSION} from PyPI, 1.2 GB", [*pip, f"aiperf=={VERSION}"]),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"{what} in {VENV}: {(done.stderr or done.stdout).strip()[-1000:]}")
    _READY.write_text(VERSION)


def run(folder: Path, port: int, model: str, prompts: Sequence[str], requests: int, tokens: int) -> list[Request]:
    """Asks one request after another for ``tokens`` tokens each, after a few that do not count. Raises MissingError.

    folder: for its files. port: of a server on this host with OpenAI's chat interface and llama.cpp's extensions.
    """
    install()
    asked = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts))
    command = [
        *(str(_PROGRAM), "profile", "--url", f"http://127.0.0.1:{port}", "--model", model, "--endpoint-type", "chat"),
        *("--streaming", "--use-server-token-count", "--extra-inputs", json.dumps(asked)),
        *(
            "--input-file",
            str(folder / "prompts.jsonl"),
            "--custom-dataset-type",
            "single_turn",
            "--tokenizer",
            _TOKENIZER,
        ),
        *("--request-count", str(requests), "--warmup-request-count", str(len(prompts)), "--concurrency", "1"),
        *("--no-server-metrics", "--no-gpu-telemetry", "--ui", "none", "--artifact-dir", str(folder / "aiperf")),
    ]
    offline = {"HF_HOME": str(_hub(folder)), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_WITHIN_S,
        env=os.environ | offline,
        cwd=folder,
    )
    assert done.returncode == 0, f"aiperf ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
    exported = (folder / "aiperf" / "profile_export.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in exported]
    return [_request(record) for record in records if record["metadata"]["benchmark_phase"] == "profiling"]


def _request(record: Any) -> Request:
    metrics = record["metrics"]
    return Request(
        request_id=str(record["metadata"]["x_request_id"]),
        first_token_ms=float(metrics["time_to_first_token"]["value"]),
        gaps_ms=[float(gap) for gap in metrics["inter_chunk_latency"]["value"]],
        prompt_tokens=int(metrics["input_sequence_length"]["value"]),
        completion_tokens=int(metrics["output_sequence_length"]["value"]),
    )


def _hub(folder: Path) -> Path:
    """A cache of the hub as it would be after loading the tokenizer."""
    home = folder / "huggingface"
    cached = home / "hub" / f"models--{_TOKENIZER.replace('/', '--')}"
    snapshot = cached / "snapshots" / "0"
    for place in (snapshot, cached / "refs"):
        place.mkdir(parents=True)
    (cached / "refs" / "main").write_text("0")
    words = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    files: dict[str, object] = {
        "config.json": {},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "Whitespace"},
            "model": words,
        },
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"},
    }
    for name, content in files.items():
        (snapshot / name).write_text(json.dumps(content))
    return home
