"""One look at a gpumon: all of it, some of it, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpumon import __version__
from gpumon.api_client import Api, ApiError
from gpumon.top.asking import LOST_EVERY_S, Asking
from tests.top.stage import BUILD, Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


class Clock:
    """Stepped."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


def asking(stage: Stage, clock: Clock | None = None) -> Asking:
    return Asking(Api(stage.url, {}, timeout_s=5.0), clock or Clock())


def failure(stage: Stage, **environ: str) -> str:
    with pytest.raises(ApiError) as caught:
        Asking(Api(stage.url, environ, timeout_s=5.0)).look()
    text = str(caught.value)
    assert text.isprintable()
    return text


def test_a_look_has_every_part(stage: Stage) -> None:
    seen = asking(stage).look()
    assert (seen.url, seen.node.name, seen.problems) == (stage.url, "gpu-1", {})
    assert seen.gpus is not None
    assert len(seen.gpus.gpus) == 8
    assert seen.servers is not None
    assert seen.incidents is not None
    assert [each.kind for each in seen.incidents.root] == ["thermal_throttle"]
    assert seen.lost is not None
    assert "/api/v1/incidents?state=open" in stage.asked
    assert "/api/v1/diagnose?since=300" in stage.asked


def test_the_diagnosis_is_asked_for_less_often_than_the_rest(stage: Stage) -> None:
    clock = Clock()
    ask = asking(stage, clock)
    for _ in range(5):
        seen = ask.look()
        assert seen.lost is not None
        clock.at_s += LOST_EVERY_S / 4
    assert (stage.count("gpus"), stage.count("diagnose")) == (5, 2)


def test_why_there_is_no_diagnosis_is_kept_until_it_is_asked_for_again(stage: Stage) -> None:
    clock = Clock()
    ask = asking(stage, clock)
    kept = stage.answers["/api/v1/diagnose"]
    stage.put("diagnose", (404, "nothing is explained here: explain.enabled is off"))
    first = ask.look().problems["lost"]
    assert first.endswith("nothing is explained here: explain.enabled is off")
    stage.put("diagnose", kept)
    assert ask.look().problems == {"lost": first}
    clock.at_s += LOST_EVERY_S
    assert ask.look().problems == {}


@pytest.mark.parametrize(
    ("path", "name"), [("gpus", "gpus"), ("servers", "servers"), ("incidents", "incidents"), ("diagnose", "lost")]
)
@pytest.mark.parametrize("answer", [(404, None), (500, "gpumon's own fault"), "no JSON", {"at": "x"}, [{"id": 7}]])
def test_one_part_that_fails_loses_no_other(stage: Stage, path: str, name: str, answer: object) -> None:
    stage.put(path, answer)
    seen = asking(stage).look()
    assert list(seen.problems) == [name]
    assert [each for each in ("gpus", "servers", "incidents", "lost") if getattr(seen, each) is None] == [name]


def test_what_another_version_says_and_is_not_understood_names_the_versions(stage: Stage) -> None:
    stage.node["version"] = "99.1"
    stage.put("gpus", {"at": 1.0, "gpus": [{"index": 0}]})
    assert asking(stage).look().problems["gpus"].endswith(f"(gpumon 99.1 there, {__version__} here)")


def test_nobody_there_is_said_with_what_starts_one() -> None:
    with Stage() as stage:
        pass
    said = failure(stage)
    assert said.startswith(f"no gpumon answers at {stage.url}: Connection refused; --url says where it listens")
    assert said.endswith("; `gpumon run` starts one, `gpumon demo` a simulated one")


def test_whoever_must_say_who_they_are_is_told_how(stage: Stage) -> None:
    stage.put("node", (401, "who are you"))
    assert "GPUMON_API_USER and GPUMON_API_PASSWORD, or GPUMON_API_TOKEN" in failure(stage)
    assert "does not accept these credentials" in failure(stage, GPUMON_API_TOKEN="wrong")


def test_a_gpumon_without_its_api_is_told_apart_from_an_older_one_and_from_another_program(stage: Stage) -> None:
    stage.answers = {"/metrics": BUILD}
    assert "the gpumon 0.0.9 at" in failure(stage)
    assert "http.ui in its configuration switches it on" in failure(stage)
    stage.answers["/openapi.json"] = {"paths": {}}
    said = failure(stage)
    assert f"is older than this one ({__version__})" in said
    assert said.endswith("update it")
    stage.answers = {"/metrics": "node_load1 0.5\n"}
    assert "is no gpumon: another program answers there" in failure(stage)
    stage.answers = {}
    assert "is no gpumon: another program answers there" in failure(stage)


@pytest.mark.parametrize(
    "answer", ["", "null", "[]", '{"name": 1}', '{"name": "a", "version": "1", "at": NaN}', "{" * 9999]
)
def test_a_node_that_is_none_is_said(stage: Stage, answer: str) -> None:
    stage.put("node", answer)
    assert "answers what this gpumon does not understand" in failure(stage)
