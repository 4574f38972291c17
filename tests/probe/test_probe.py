"""``gpumon probe`` as it is called, against a server on a real socket whose every delay is known."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpumon import cli
from gpumon.commands import loading
from gpumon.probe.endpoint import KEY
from gpumon.probe.model import Report
from tests.e2e.waiting import eventually
from tests.probe.gpumon import Gpumon, late
from tests.probe.server import STREAM, Request, Server, answer, chunk, event, pause
from tests.probe.test_watching import page

ROOT = Path(__file__).resolve().parents[2]
Probe = Callable[..., tuple[int, str, str]]
BUDGET = ("--budget-tokens", "1000000")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture
def gpumon() -> Iterator[Gpumon]:
    with Gpumon() as made:
        yield made


@pytest.fixture
def probe(server: Server, gpumon: Gpumon, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Run the program in this process; gives exit code, standard output, standard error."""
    for variable in [name for name in os.environ if name.startswith("GPUMON_")]:
        monkeypatch.delenv(variable)

    def run(*arguments: str, endpoint: str = "") -> tuple[int, str, str]:
        whom = ("--endpoint", endpoint or server.url, "--gpumon", gpumon.url)
        code = cli.main(["probe", *whom, *arguments])
        return code, *capfd.readouterr()

    return run


def told(ran: tuple[int, str, str], code: int = 0) -> Report:
    """Of a run with --json."""
    assert ran[0] == code, ran
    return Report.model_validate_json(ran[1])


# --- what is measured -------------------------------------------------------------------------------------------------


def test_a_server_that_is_linear_in_the_prompt_does_not_collapse(server: Server, probe: Probe) -> None:
    server.prefill_s = lambda words: 4e-4 * words
    said = told(probe("--ladder", "128..512", "--repetitions", "3", "--max-tokens", "4", "--json", *BUDGET))
    assert [rung.state for rung in said.rungs] == ["measured"] * 3
    assert [rung.prompt_tokens for rung in said.rungs] == [128, 256, 512]
    assert said.collapses == []
    assert (said.ended, said.lengths_from, said.tokens_from) == ("done", "usage", "usage")
    assert said.budget.spent_tokens == sum(len(r.prompt.split()) + r.body["max_tokens"] for r in server.requests)


def test_a_collapse_is_found_at_its_rung_with_what_gpu_and_host_did_there(
    server: Server, gpumon: Gpumon, probe: Probe, tmp_path: Path
) -> None:
    def prefill_s(words: int) -> float:
        return 2e-4 * words * (6 if words >= 400 else 1)

    def metrics() -> str:
        at = sum(prefill_s(request.words) for request in server.timed())
        slow = sum(request.words >= 400 for request in server.timed())
        return page(at, sm=0.5 * at, dram=0.3 * at, major=1000.0 * slow, kv=0.99 if slow else 0.2)

    server.prefill_s, gpumon.page = prefill_s, metrics

    def slow_traces() -> list[str]:
        return [request.headers["traceparent"].split("-")[1] for request in server.timed() if request.words >= 400]

    def explains(trace_id: str) -> bool:
        gpumon.late = [late(each, page_faults=0.4) for each in slow_traces()]
        return True

    gpumon.known = explains
    html = tmp_path / "page.html"
    options = ("--ladder", "100,200,400,800", "--repetitions", "2", "--max-tokens", "3", "--html", str(html), "--json")
    said = told(probe(*options, *BUDGET))
    (found,) = said.collapses
    assert (found.before_tokens, found.beyond_tokens, found.measure) == (200, 400, "time_to_first_token")
    assert 6 < found.growth < 20
    assert found.few
    changes = {each.name: (each.before, each.beyond) for each in found.changes}
    assert changes["kv_usage"] == (0.2, 0.99)
    assert changes["process_major_faults"][0] == 0
    assert (changes["process_major_faults"][1] or 0) > 100
    assert said.rungs[2].conditions is not None
    assert said.rungs[2].conditions.gpus[0].sm_active == pytest.approx(0.5)
    assert [each.causes[0].seconds if each.causes else None for each in said.rungs] == [None, None, 0.8, 0.8]
    assert {each.trace_id for each in said.slowest[:4]} == set(slow_traces())
    assert "Collapse from 200 to 400 tokens" in html.read_text()


def test_times_are_those_at_which_the_server_wrote(server: Server, probe: Probe) -> None:
    server.prefill_s, server.gap_s = lambda words: 0.03, lambda words: 0.02
    said = told(probe("--ladder", "64", "--max-tokens", "5", "--json", *BUDGET))
    wrote = {request.headers["traceparent"].split("-")[1]: request for request in server.timed()}
    firsts, wholes = [], []
    for slow in said.slowest:
        request = wrote[slow.trace_id]
        firsts.append(slow.time_to_first_token - (request.token_ns[0] - request.came_ns) / 1e9)
        wholes.append(slow.response_time - (request.token_ns[-1] - request.came_ns) / 1e9)
    assert len(firsts) == 5
    for differences in (firsts, wholes):  # what the sockets take, and whoever else has the CPU just then
        assert -0.001 < min(differences) < 0.02
    (rung,) = said.rungs
    assert rung.inter_token is not None
    assert rung.inter_token.observations == 20
    assert rung.inter_token.p50 > 0.019


def test_as_many_requests_are_under_way_as_was_said(server: Server, probe: Probe) -> None:
    server.prefill_s = lambda words: 0.05
    code, _, err = probe(
        "--ladder", "64,128", "--concurrency", "4,2", "--repetitions", "2", "--max-tokens", "2", *BUDGET
    )
    assert code == 0
    assert server.open_most == 4
    assert len(server.timed()) == 2 * (2 * 2 + 4 * 2)
    assert "2 and 4 at a time" in err


def test_the_chat_interface_and_a_server_that_counts_nothing(server: Server, probe: Probe) -> None:
    server.counts = False
    said = told(probe("--ladder", "64", "--chat", "--max-tokens", "3", "--json", *BUDGET))
    assert {request.path for request in server.requests} == {"/v1/chat/completions"}
    assert (said.lengths_from, said.tokens_from, said.interface) == ("aim", "chunks", "chat")
    assert said.rungs[0].prompt_tokens is None
    assert said.rungs[0].completion_tokens == 15


def test_prompts_are_as_long_as_the_servers_tokenizer_has_it(server: Server, probe: Probe) -> None:
    server.tokens_per_word = 1.6
    said = told(probe("--ladder", "200..800", "--repetitions", "1", "--max-tokens", "2", "--json", *BUDGET))
    for rung in said.rungs:
        assert rung.prompt_tokens == pytest.approx(rung.aim_tokens, rel=0.02)


def test_prompts_in_the_prefix_cache_are_all_alike(server: Server, probe: Probe) -> None:
    said = told(probe("--ladder", "64,128", "--cached", "--max-tokens", "2", "--json", *BUDGET))
    prompts = [request.prompt for request in server.requests]
    assert [len(set(prompts[at : at + 6])) for at in (2, 8)] == [1, 1]
    assert said.cached


# --- when it is enough ------------------------------------------------------------------------------------------------


def test_the_budget_of_tokens_is_obeyed_and_what_there_is_is_told(server: Server, probe: Probe) -> None:
    code, out, err = probe("--ladder", "100..800", "--repetitions", "2", "--max-tokens", "5", "--budget-tokens", "1200")
    assert code == 0
    assert sum(request.words + request.body["max_tokens"] for request in server.requests) <= 1200
    assert "the budget of 1,200 tokens ends in rung 400, 1 at a time" in err
    assert out.startswith("The budget of tokens is used up")
    assert "\n800: not tried\n" in out


def test_the_budget_of_time_ends_it_in_the_middle_of_an_answer(server: Server, probe: Probe) -> None:
    server.gap_s = lambda words: 0.0 if words < 100 else 60.0
    said = told(probe("--ladder", "64,128", "--max-tokens", "3", "--budget-s", "1.5", "--json"))
    assert said.ended == "budget_s"
    assert [rung.state for rung in said.rungs] == ["measured", "partial"]
    assert said.rungs[1].cut == 1
    assert 1.4 < said.duration_seconds < 10


def interrupted(server: Server, gpumon: Gpumon, ladder: str, when: Callable[[], bool]) -> tuple[int, Report]:
    """A process of its own that gets a Ctrl-C as soon as ``when``."""
    command = ["probe", "--endpoint", server.url, "--gpumon", gpumon.url, "--ladder", ladder, "--max-tokens", "3"]
    running = subprocess.Popen(
        [sys.executable, "-m", "gpumon", *command, "--json", *BUDGET],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    )
    try:
        eventually(when, "the moment to interrupt")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    finally:
        running.kill()
    assert "Traceback" not in err
    assert "\x1b" not in err  # no bar without a terminal
    return running.returncode, Report.model_validate_json(out)


def test_ctrl_c_tells_what_there_is(server: Server, gpumon: Gpumon) -> None:
    server.gap_s = lambda words: 0.0 if words < 100 else 60.0
    code, said = interrupted(
        server, gpumon, "64,128", lambda: any(request.words >= 100 and request.token_ns for request in server.timed())
    )
    assert (code, said.ended) == (1, "interrupted")
    assert [rung.requests for rung in said.rungs] == [5, 0]


def test_ctrl_c_while_gpumon_is_waited_for_tells_all_but_why(server: Server, gpumon: Gpumon) -> None:
    gpumon.known = lambda trace_id: False
    code, said = interrupted(server, gpumon, "64", lambda: any("explain?" in target for target in gpumon.asked))
    assert (code, said.ended, said.rungs[0].requests) == (0, "done", 5)
    assert "interrupted before gpumon had explained them" in said.notes[0]


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_prompts_that_do_not_fit_are_no_error(server: Server, probe: Probe) -> None:
    server.context = 300
    said = told(probe("--ladder", "128..1k", "--repetitions", "2", "--max-tokens", "4", "--json", *BUDGET))
    assert [rung.state for rung in said.rungs] == ["measured", "measured", "context_too_long", "context_too_long"]
    assert all(rung.errors == {} for rung in said.rungs)
    assert len(server.timed()) == 5


def test_errors_are_counted_by_reason(server: Server, probe: Probe) -> None:
    answered = server._answer

    async def flaky(request: Request, writer: asyncio.StreamWriter) -> None:
        number = len(server.timed())
        if number in (2, 4):
            writer.write(answer(503, b'{"error": "overloaded"}'))
        elif number == 3:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 10\r\n\r\ndata: {x\n\n"
            )
        else:
            await answered(request, writer)

    server.other = flaky
    code, out, _ = probe("--ladder", "64", "--max-tokens", "2", *BUDGET)
    assert code == 0
    assert "\n64: 2 http_503, 1 malformed\n" in out
    assert "http_503: overloaded" in out


def test_a_server_that_goes_away_ends_it_with_what_there_is(server: Server, probe: Probe) -> None:
    async def dies(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.words >= 128:
            server.gone()
            writer.transport.abort()
        else:
            await server._answer(request, writer)

    server.other = dies
    said = told(probe("--ladder", "64..256", "--repetitions", "9", "--max-tokens", "2", "--json", *BUDGET), code=1)
    assert said.ended == "server_gone"
    assert said.failure.startswith("connect")
    assert [rung.state for rung in said.rungs] == ["measured", "partial", "not_tried"]
    assert said.rungs[1].errors == {"closed": 1, "connect": 4}


def test_a_server_that_is_silent_has_its_time(server: Server, probe: Probe) -> None:
    async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.body["max_tokens"] == 1:
            await server._answer(request, writer)
        else:
            await pause(60)

    server.other = silent
    said = told(
        probe("--ladder", "64,128", "--repetitions", "2", "--timeout", "0.3", "--max-tokens", "2", "--json", *BUDGET),
        code=1,
    )
    assert said.rungs[0].errors == {"timeout": 2}
    assert [rung.state for rung in said.rungs] == ["failed", "not_tried"]


def test_a_redirect_is_not_followed(server: Server, probe: Probe) -> None:
    with Server() as other:

        async def elsewhere(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(answer(307, b"", b"Location: " + f"{other.url}/v1/completions".encode()))

        server.other = elsewhere
        code, out, _ = probe("--ladder", "64", *BUDGET)
        assert (code, other.requests) == (1, [])
        assert out.startswith("The server refuses (redirect: ")


def test_the_key_is_sent_and_in_no_output(
    server: Server, probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(KEY, "sk-very-secret")

    async def refuses(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(
            answer(401, json.dumps({"error": {"message": f"bad: {request.headers['authorization']}"}}).encode())
        )

    server.other = refuses
    html = tmp_path / "page.html"
    code, out, err = probe("--ladder", "64", "--html", str(html), *BUDGET)
    assert code == 1
    assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert "The server refuses (http_401: bad: Bearer ***)." in " ".join(out.split())
    assert "secret" not in out + err + html.read_text()


@pytest.mark.parametrize("name", ["m-sk-very-secret", "m-SK-VERY-SECRET", "m-y-secret", "m-sk-very-"])
def test_a_model_that_is_called_like_the_key_is_shown_without_it(
    server: Server, probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(KEY, "sk-very-secret")
    html = tmp_path / "page.html"
    options = ("--ladder", "64", "--repetitions", "1", "--max-tokens", "2", "--html", str(html), *BUDGET)
    server.models = [name]
    shown = [*probe(*options)[1:], html.read_text(), *probe(*options, "--json")[1:], html.read_text()]
    assert {request.body["model"] for request in server.requests} == {name}
    server.models = [name, "another"]
    shown += probe(*options)[1:]
    assert not [each for each in shown if "y-secret" in each.lower() or "sk-very-" in each.lower()]
    assert all("m-***" in each for each in (shown[0], shown[2], shown[-1]))


def test_a_server_that_does_not_end_its_answers_is_cut_off_and_told(server: Server, probe: Probe) -> None:
    wrote = 0

    async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal wrote
        if request.body["max_tokens"] == 1 and not is_always:
            await server._answer(request, writer)
            return
        writer.write(STREAM)
        while True:
            writer.write(event({"choices": [{"text": "word"}]}))
            wrote += 1
            await writer.drain()
            await asyncio.sleep(0.0001)

    server.other = endless
    is_always = False
    code, out, _ = probe("--ladder", "64", "--repetitions", "9", "--max-tokens", "5", "--budget-tokens", "360")
    assert code == 1
    assert "The budget of tokens is used up" in out
    assert "over_max_tokens" in out
    assert "came where 5 were asked for: cut off there" in out
    said = told(probe("--ladder", "64", "--max-tokens", "5", "--json", "--budget-tokens", "360"), code=1)
    assert said.budget.spent_tokens <= 361
    is_always = True
    code, out, _ = probe("--ladder", "64", "--max-tokens", "5", *BUDGET)
    assert code == 1
    line = "The server makes more tokens than it is asked for (over_max_tokens: 18 tokens came where 1 were asked for"
    assert " ".join(out.split()).startswith(line)


@pytest.mark.parametrize("count", [0, -5, 1e300, 7.5, 10**18, "x", None])
def test_nothing_that_a_server_counts_loses_the_report(
    server: Server, probe: Probe, tmp_path: Path, count: object
) -> None:
    async def counts(request: Request, writer: asyncio.StreamWriter) -> None:
        usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), count)
        more = {"prompt_tokens_details": {"cached_tokens": count}}
        token = event({"choices": [{"text": "word"}]})
        writer.write(STREAM + token + token + event({"choices": [], "usage": usage | more}))
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    server.other = counts
    html = tmp_path / "page.html"
    said = told(probe("--ladder", "64,128", "--max-tokens", "2", "--html", str(html), "--json", *BUDGET))
    assert [rung.requests for rung in said.rungs] == [5, 5]
    assert (said.lengths_from, said.tokens_from) == ("aim", "chunks")
    assert said.rungs[0].completion_tokens == 10
    assert "</html>" in html.read_text()


@pytest.mark.parametrize("name", ["\ud800", "a\x1b[2J", "\u202eevil", "<script>", "x" * 1024])
def test_no_name_of_a_model_loses_the_report(server: Server, probe: Probe, tmp_path: Path, name: str) -> None:
    server.models = [name]
    html = tmp_path / "page.html"
    options = ("--ladder", "64", "--repetitions", "1", "--max-tokens", "2", "--html", str(html))
    said = told(probe(*options, "--json", *BUDGET))
    assert said.model.isprintable()
    assert len(said.model) <= 256
    assert probe(*options, *BUDGET)[0] == 0
    assert "<script></title>" not in html.read_text()


def test_the_key_is_no_configuration_of_other_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-very-secret")
    assert loading.PROBE_KEY == KEY
    assert cli.main(["config"]) == 0


@pytest.mark.parametrize(("models", "said"), [([], "has 0 models (none)"), (["a", "b"], "has 2 models (a, b)")])
def test_without_one_model_somebody_must_say_which(server: Server, probe: Probe, models: list[str], said: str) -> None:
    server.models = models
    code, out, err = probe("--ladder", "64", *BUDGET)
    assert (code, out, server.requests) == (1, "", [])
    assert said in err
    assert probe("--ladder", "64", "--model", "b", "--repetitions", "1", "--max-tokens", "2", *BUDGET)[0] == 0
    assert {request.body["model"] for request in server.requests} == {"b"}


def test_nobody_there_is_one_line(probe: Probe) -> None:
    code, out, err = probe("--ladder", "64", *BUDGET, endpoint="http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "gpumon: http://127.0.0.1:1/v1/models: connect: " in err


def test_a_gpumon_that_was_named_must_be_there_before_anything_is_spent(server: Server, probe: Probe) -> None:
    code, _, err = probe("--ladder", "64", "--gpumon", "http://127.0.0.1:1", *BUDGET)
    assert (code, server.requests) == (1, [])
    assert "gpumon: no gpumon answers at http://127.0.0.1:1" in err
    assert probe("--ladder", "64", "--gpumon", "nonsense", *BUDGET)[0] == 2


# --- what is not done at all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ladder", "64"], "a probe costs time and tokens: expected --budget-tokens, --budget-s, or both"),
        (["--ladder", "x", *BUDGET], "--ladder: 'x': expected a length such as 8k"),
        (["--ladder", "64", "--budget-tokens", "0"], "--budget-tokens"),
        (["--ladder", "64", "--budget-s", "nan"], "--budget-s"),
        (BUDGET, "--ladder"),
    ],
)
def test_wrong_arguments_are_refused_and_nobody_is_asked(
    server: Server, gpumon: Gpumon, probe: Probe, arguments: list[str], said: str
) -> None:
    code, out, err = probe(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert (server.requests, gpumon.asked) == ([], [])


def test_without_an_endpoint_nothing_is_done() -> None:
    assert cli.main(["probe", "--ladder", "64", *BUDGET]) == 2


def test_another_machine_is_asked_only_by_somebody_who_says_so(gpumon: Gpumon, probe: Probe) -> None:
    code, out, err = probe("--ladder", "64", *BUDGET, endpoint="http://192.0.2.1:8000")
    assert (code, out, gpumon.asked) == (2, "", [])
    assert "http://192.0.2.1:8000/v1 is not this machine: --yes says" in err
    assert "at most 710 tokens" in err


@pytest.mark.parametrize(("reply", "code"), [(b"n\n", 1), (b"\n", 1)])
def test_on_a_terminal_it_asks(reply: bytes, code: int) -> None:
    ours, theirs = pty.openpty()
    command = ["probe", "--endpoint", "http://192.0.2.1:8000", "--ladder", "64", *BUDGET]
    try:
        running = subprocess.Popen(
            [sys.executable, "-m", "gpumon", *command], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT
        )
        os.close(theirs)
        seen = b""
        while b"Go on? [y/N]" not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, reply)
        assert running.wait(30) == code
        assert b"at most 710 tokens" in seen
    finally:
        running.kill()
        running.wait()
        os.close(ours)


def test_progress_is_silent_without_a_terminal(probe: Probe) -> None:
    _, _, err = probe("--ladder", "64", "--repetitions", "1", "--max-tokens", "2", *BUDGET)
    assert [line.split(":")[0] for line in err.splitlines()] == ["gpumon"]


def test_a_page_that_cannot_be_written_costs_the_page_alone(probe: Probe) -> None:
    arguments = ("--ladder", "64", "--repetitions", "1", "--max-tokens", "2", "--html", "/dev/full")
    code, out, err = probe(*arguments, *BUDGET)
    assert code == 1
    assert out.startswith("One rung alone")
    assert "No space left on device" in err


def test_explain_is_told_with_the_gpumon_that_was_asked(gpumon: Gpumon, probe: Probe) -> None:
    _, out, _ = probe("--ladder", "64", "--repetitions", "1", "--max-tokens", "2", *BUDGET)
    assert f"gpumon explain --url {gpumon.url} " in out
