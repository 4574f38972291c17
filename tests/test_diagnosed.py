"""Where a diagnosis comes from: a running gpumon, or a recording that is gone through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumon.api_client import ApiError
from gpumon.config import Config, DetectConfig, ExplainConfig
from gpumon.diagnosed import AskError, Form, WrongAttributeError, diagnosis_of, of_daemon, of_recording
from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.record.format import FormatError
from gpumon.replayed import Replay
from gpumon.web.questions import DiagnoseQuery
from tests.diagnoses import TRACE, full, nothing
from tests.host.test_http_client import Peer
from tests.recorded import STARTED_S, record
from tests.stories import write_story
from tests.test_api_client import address, detail, reply

LENGTH_S = 12.0
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diagnosed")
    path = folder / "quick.rec"
    record(path, write_story(folder), LENGTH_S)
    return path


class Asked:
    """Stands where the explanation of a node stands: notes what is asked of it at the end."""

    def __init__(self) -> None:
        self.queries: list[DiagnoseQuery] = []
        self.at_s = 0.0

    def __call__(self, replay: Replay, query: DiagnoseQuery) -> Diagnosis:
        self.queries.append(query)
        self.at_s = replay.clock.now_s()
        return full()


# --- of a running gpumon ----------------------------------------------------------------------------------------------


def test_a_running_gpumon_is_asked_for_what_was_asked_for(peer: Peer, capsys: Captured) -> None:
    peer.answers.append(reply(200, full().model_dump_json().encode()))
    of_daemon(address(peer), {}, None, DiagnoseQuery(90.5, "vllm", "a b", "tenant", "", 0.99), Form())
    line = b"GET /api/v1/diagnose?since=90.5&server=vllm&model=a+b&x=tenant&quantile=0.99 HTTP/1.1"
    assert peer.requests[0].split(b"\r\n")[0] == line
    out = capsys.readouterr().out
    assert out.startswith("gpu-box-17: ")
    assert f"gpumon explain --url {address(peer)} {TRACE}" in out


def test_what_was_answered_is_told_as_json_in_full(peer: Peer, capsys: Captured) -> None:
    peer.answers.append(reply(200, full().model_dump_json().encode()))
    of_daemon(address(peer), {}, None, DiagnoseQuery(), Form(json_output=True))
    assert Diagnosis.model_validate_json(capsys.readouterr().out) == full()


def test_a_report_is_written_beside_what_is_told(peer: Peer, capsys: Captured, tmp_path: Path) -> None:
    peer.answers.append(reply(200, nothing().model_dump_json().encode()))
    page = tmp_path / "r.html"
    of_daemon(address(peer), {}, None, DiagnoseQuery(), Form(html=page))
    printed = capsys.readouterr()
    assert "No requests ended in this time." in printed.out
    assert printed.err == f"The report is in {page}.\n"
    assert "No requests ended in this time." in page.read_text("utf-8")


def test_a_report_that_cannot_be_written_is_an_error_with_its_name(peer: Peer, tmp_path: Path) -> None:
    peer.answers.append(reply(200, nothing().model_dump_json().encode()))
    with pytest.raises(OSError, match="No such file") as caught:
        of_daemon(address(peer), {}, None, DiagnoseQuery(), Form(html=tmp_path / "no" / "r.html"))
    assert caught.value.filename is not None


@pytest.mark.parametrize(
    ("query", "is_told"),
    [
        (DiagnoseQuery(), False),
        (DiagnoseQuery(x="tenant"), True),
        (DiagnoseQuery(y="tenant"), True),
        (DiagnoseQuery(quantile=0.5), True),
    ],
)
def test_the_response_surface_is_told_where_it_was_asked_for(
    peer: Peer, capsys: Captured, query: DiagnoseQuery, is_told: bool
) -> None:
    peer.answers.append(reply(200, full().model_dump_json().encode()))
    of_daemon(address(peer), {}, None, query, Form())
    assert ("Response surface" in capsys.readouterr().out) == is_told


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        json.dumps(json.loads(full().model_dump_json()) | {"of_a_later_version": 1}).encode(),
        full().model_dump_json().replace('"requests":1234', '"requests":"many"').encode(),
        full().model_dump_json().replace('"excess_seconds":310.0', '"excess_seconds":NaN').encode(),
    ],
)
def test_an_answer_that_is_no_diagnosis_is_not_half_understood(peer: Peer, body: bytes) -> None:
    peer.answers.append(reply(200, body))
    with pytest.raises(ApiError, match="what this gpumon does not understand"):
        of_daemon(address(peer), {}, None, DiagnoseQuery(), Form())


def test_what_gpumon_refuses_is_said_in_its_words(peer: Peer) -> None:
    peer.answers.append(detail(422, "no attribute 'colour' of requests; there are tenant"))
    with pytest.raises(ApiError, match="no attribute 'colour' of requests; there are tenant"):
        of_daemon(address(peer), {}, None, DiagnoseQuery(x="colour"), Form())


# --- of a recording ---------------------------------------------------------------------------------------------------


def test_a_recording_is_gone_through_and_asked_once_its_last_requests_are_explained(recorded: Path) -> None:
    asked = Asked()
    config = Config(explain=ExplainConfig(delay_s=5.0))
    assert diagnosis_of(recorded, config, None, DiagnoseQuery(model="a"), asked) == full()
    assert asked.at_s >= STARTED_S + LENGTH_S + 5.0
    (query,) = asked.queries
    assert query.model == "a"
    assert query.since_s == pytest.approx(LENGTH_S, abs=1.0)


@pytest.mark.parametrize(("since_s", "from_end_s"), [(4.0, 4.0), (1e6, LENGTH_S)])
def test_the_end_of_a_recording_can_be_asked_for_alone(recorded: Path, since_s: float, from_end_s: float) -> None:
    asked = Asked()
    diagnosis_of(recorded, Config(), since_s, DiagnoseQuery(), asked)
    assert asked.queries[0].since_s == pytest.approx(from_end_s, abs=1.0)


def test_a_recording_is_diagnosed_as_it_would_have_been_then(recorded: Path, capsys: Captured) -> None:
    of_recording(recorded, Config(), None, DiagnoseQuery(), Form(json_output=True))
    told = Diagnosis.model_validate_json(capsys.readouterr().out)
    assert told.requests > 0
    assert told.known_since is None
    assert not any("explained some seconds after their end" in note for note in told.notes)
    of_recording(recorded, Config(), None, DiagnoseQuery(), Form(json_output=True))
    assert Diagnosis.model_validate_json(capsys.readouterr().out) == told


def test_of_a_recording_one_server_may_be_asked_for_alone(recorded: Path, capsys: Captured) -> None:
    counts = []
    for server in ("", "gpumon"):
        of_recording(recorded, Config(), None, DiagnoseQuery(server=server), Form(json_output=True))
        counts.append(json.loads(capsys.readouterr().out)["requests"])
    assert counts[0] == counts[1] > 0
    with pytest.raises(AskError, match="no request of server 'vllm' ended in this time; requests ended of gpumon/"):
        of_recording(recorded, Config(), None, DiagnoseQuery(server="vllm"), Form())


def test_a_model_of_a_recording_is_asked_for_as_it_is_printed_and_a_wrong_name_is_refused(
    recorded: Path, capsys: Captured
) -> None:
    of_recording(recorded, Config(), None, DiagnoseQuery(), Form(json_output=True))
    engines = json.loads(capsys.readouterr().out)["engines"]
    name = next(f"{each['server']}/{each['model']}" for each in engines if each["model"])
    of_recording(recorded, Config(), None, DiagnoseQuery(model=name), Form(json_output=True))
    told = json.loads(capsys.readouterr().out)["engines"]
    assert {f"{each['server']}/{each['model']}" for each in told} == {name}
    with pytest.raises(AskError, match=f"no request of model 'nothing' ended in this time.*{name}") as caught:
        of_recording(recorded, Config(), None, DiagnoseQuery(model="nothing"), Form())
    assert caught.value.exit_code == 1


def test_requests_of_a_recording_come_without_a_command(recorded: Path, capsys: Captured) -> None:
    of_recording(recorded, Config(), None, DiagnoseQuery(), Form())
    assert "gpumon explain" not in capsys.readouterr().out


def test_a_recording_that_was_cut_is_told_of_and_diagnosed(recorded: Path, tmp_path: Path, capsys: Captured) -> None:
    cut = tmp_path / "cut.rec"
    cut.write_bytes(recorded.read_bytes()[:-4000])
    diagnosis_of(cut, Config(), None, DiagnoseQuery(), Asked())
    assert capsys.readouterr().err.startswith(f"gpumon: {cut}: the end is left out: ")


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.rec").write_text("hello")
    with pytest.raises(FormatError, match="not a file that gpumon wrote"):
        diagnosis_of(tmp_path / "x.rec", Config(), None, DiagnoseQuery(), Asked())


def test_an_attribute_that_there_is_not_is_refused_with_those_there_are(recorded: Path) -> None:
    with pytest.raises(WrongAttributeError, match=r"no attribute 'colour' of requests; there are prompt_tokens"):
        of_recording(recorded, Config(), None, DiagnoseQuery(x="colour"), Form())


@pytest.mark.parametrize(
    "config", [Config(explain=ExplainConfig(enabled=False)), Config(detect=DetectConfig(enabled=False))]
)
def test_where_nothing_is_explained_it_says_so(recorded: Path, config: Config) -> None:
    with pytest.raises(AskError, match="explain"):
        of_recording(recorded, config, None, DiagnoseQuery(), Form())
