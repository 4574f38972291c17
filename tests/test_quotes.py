"""What README.md and docs/EXPLAINING.md quote is what gpumon says.

In tests/golden/quotes are answers of `gpumon demo` a minute and a half after its start (``/api/v1/diagnose?since=70``
and ``/api/v1/explain`` of one of its requests), and three minutes after it (``since=40&model=qwen3-235b-a22b``), less
the parts that nobody quotes. They are told here as then. Sentences of the verdict come from where requests are; so
those of the answers are compared with those that are made of requests like them, figures aside.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpumon import diagnosis_text, explained_text
from gpumon.explain.diagnosis.build import diagnose
from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.explain.guide import INTRO
from gpumon.explain.signs import Fact
from gpumon.model import Unit
from gpumon.terminal import console_for
from gpumon.tracing import SETTLE_S
from gpumon.web.explanation import Trace
from tests.explain.diagnosis.requests import inputs, request

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = ROOT / "tests" / "golden" / "quotes"
README = (ROOT / "README.md").read_text("utf-8")
LEFT_OUT = "…"


def answer(name: str) -> str:
    return (ANSWERS / f"{name}.json").read_text("utf-8")


def told(name: str) -> list[str]:
    """Lines of a report in a pipe."""
    stream = io.StringIO()
    if name == "explanation":
        explained_text.render(console_for(stream), Trace.model_validate_json(answer(name)))
    else:
        diagnosis_text.render(console_for(stream), Diagnosis.model_validate_json(answer(name)), "gpumon explain")
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def block(text: str, begin: str) -> list[str]:
    """Lines after this one, to the next command or the end of the block."""
    lines = text.split(begin + "\n", 1)[1].split("```", 1)[0].splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    return lines[: ends[0]] if ends else lines


QUOTES = {
    "README, diagnose": ("diagnosis", block(README, "$ gpumon diagnose --since 70s")),
    "README, explain": ("explanation", block(README, "$ gpumon explain e9115635ac15946dfb1d6b3f1f027d4a")),
    "EXPLAINING": (
        "explanation",
        block(
            INTRO, "Of a request of `gpumon demo`, while one of its model's four GPUs was too hot; shortened:\n\n```"
        ),
    ),
}


@pytest.mark.parametrize("quote", QUOTES)
def test_every_quoted_line_is_told_in_this_order(quote: str) -> None:
    name, quoted = QUOTES[quote]
    lines = iter(told(name))
    assert len([line for line in quoted if line and line != LEFT_OUT]) > 5
    for line in quoted:
        assert line in (LEFT_OUT, "") or line in lines, line


def test_the_sentence_within_the_text_is_of_the_verdict() -> None:
    (quoted,) = re.findall(r'\*"(Why: memory on the wrong socket.*?)"\*', " ".join(README.split()))
    assert quoted in Diagnosis.model_validate_json(answer("wrong_socket")).verdict


def bones(sentences: Iterable[str]) -> list[str]:
    """Sentences without figures and names."""
    names = r"gpumon/\S+ on GPUs [\d, ]+\d|vllm/m on GPU \d"
    found = []
    for sentence in sentences:
        bare = re.sub(r"\d[\d,.:]*", "#", re.sub(names, "ENGINE", sentence))
        bare = re.sub(r"<?# %", "SHARE", bare)
        found.append(re.sub(r"#( (h|min|s|ms|µs)\b( # (min|s))?)+", "TIME", bare).replace("#s", "#"))
    return found


CLOCK = Fact("sm_clock", 1.185e9, Unit.HERTZ, 1.98e9)
PAGES = Fact("local_pages", 0.146, Unit.RATIO, 0.983)
BATCH = Fact("requests_decoding", 6.25, Unit.NONE, 3.0)


def test_the_verdict_of_the_hot_gpu_is_worded_as_now() -> None:
    calm = [request(float(at), 2.0, slow={"prefill_interference": 0.02}) for at in range(300)]
    hot = [
        request(float(at), 3.0, slow={"thermal_throttle": 1.0, "prefill_interference": 0.02}, fact=CLOCK)
        for at in range(300, 590)
    ]
    said = diagnose(inputs([*calm, *hot], is_live=True, gpu_names={"GPU-0": "3"}))
    quoted = Diagnosis.model_validate_json(answer("diagnosis"))
    assert bones(quoted.verdict[:3]) == bones(said.verdict[:3])
    assert bones(quoted.notes) == bones(note for note in said.notes if note.startswith("The newest"))


def test_the_verdict_of_the_wrong_socket_is_worded_as_now() -> None:
    requests = [request(float(at), 2.0) for at in range(300)]
    requests += [request(float(at), 3.0, slow={"numa_remote": 0.8}, fact=PAGES) for at in range(300, 590)]
    requests += [request(float(at), 3.0, slow={"batch_growth": 0.3}, fact=BATCH) for at in range(300, 590)]
    said = diagnose(inputs(requests, is_live=True, gpu_names={"GPU-0": "3"}))
    assert bones(Diagnosis.model_validate_json(answer("wrong_socket")).verdict[:3]) == bones(said.verdict[:3])


def test_how_long_forwarded_spans_wait_is_told_as_it_is() -> None:
    text = " ".join(INTRO.split())
    assert text.count(f"`explain.delay_s` + {SETTLE_S:g} s") == 2
    assert f"({8 + SETTLE_S:g} s) after they came" in text
