"""Parts of a growth, and when in a stretch the host waited."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.scene import Scene
from gpumon.explain.witnesses.host_parts import Part, grown_in, narrowed, parts_of, stalled_share, swapped_share
from gpumon.store import Store
from tests.detect.scenes import BEGIN_S, Stage

FAULTS = ("11", "x", "", "", "", "major")


def play(stage: Stage, amounts: list[float]) -> Scene:
    """Half a second each, of a process's faults and the host's waits for memory."""
    for amount in amounts:
        stage.grow(
            {(catalogue.PROCESS_PAGE_FAULTS, FAULTS): amount, (catalogue.HOST_PRESSURE, ("memory", "some")): amount}
        )
        scene = stage.step(0.5)
    return scene


def test_a_growth_by_its_readings() -> None:
    stage = Stage()
    play(stage, [1.0]).grown(catalogue.PROCESS_PAGE_FAULTS)
    scene = play(stage, [3.0, 5.0])
    (growth,) = scene.grown(catalogue.PROCESS_PAGE_FAULTS)
    parts = parts_of(scene, catalogue.PROCESS_PAGE_FAULTS, growth)
    assert parts == [Part(BEGIN_S + 0.5, BEGIN_S + 1.0, 3.0), Part(BEGIN_S + 1.0, BEGIN_S + 1.5, 5.0)]
    assert [part.rate for part in parts] == [6.0, 10.0]


def test_a_growth_without_history_is_one_part() -> None:
    stage = Stage()
    stage.store = Store(history_points=4, history_series=0)
    play(stage, [1.0]).grown(catalogue.PROCESS_PAGE_FAULTS)
    scene = play(stage, [3.0, 5.0])
    (growth,) = scene.grown(catalogue.PROCESS_PAGE_FAULTS)
    assert parts_of(scene, catalogue.PROCESS_PAGE_FAULTS, growth) == [Part(BEGIN_S + 0.5, BEGIN_S + 1.5, 8.0)]


@pytest.mark.parametrize(
    ("waits", "since", "until"),
    [
        ([0.0] * 10, 0.0, 5.0),
        ([0.1] * 10, 0.0, 5.0),
        ([0.0, 0.0, 0.3, 0.3, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0], 1.0, 2.5),
        ([0.0, 0.0, 0.3, 0.3, 0.3, 0.0, 0.005, 0.0, 0.0, 0.0], 1.0, 2.5),
        ([0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3], 0.0, 5.0),
        ([0.0] * 9 + [0.4], 4.5, 5.0),
    ],
)
def test_when_the_host_waited(waits: list[float], since: float, until: float) -> None:
    stage = Stage()
    play(stage, [0.0, 0.0])
    start_s = stage.at_s
    scene = play(stage, waits)
    found = narrowed(scene, "memory", start_s, start_s + 5.0)
    assert found == pytest.approx((start_s + since, start_s + until))


def test_a_host_that_does_not_tell_narrows_nothing() -> None:
    scene = play(Stage(), [0.0] * 10)
    assert narrowed(scene, "cpu", BEGIN_S, BEGIN_S + 5.0) == (BEGIN_S, BEGIN_S + 5.0)
    assert stalled_share(Stage().step(), BEGIN_S, BEGIN_S + 1.0) is None
    assert swapped_share(scene, BEGIN_S, BEGIN_S + 5.0) == 0.0
    assert grown_in(scene, catalogue.HOST_SWAP_PAGES, ("in",), BEGIN_S, BEGIN_S + 5.0) == 0.0


def test_the_largest_share_in_a_stretch() -> None:
    stage = Stage()
    scene = play(stage, [0.0, 0.0, 0.0, 0.1, 0.4, 0.0, 0.0, 0.0])
    assert stalled_share(scene, BEGIN_S + 1.5, BEGIN_S + 2.5) == pytest.approx(0.8)
    assert stalled_share(scene, BEGIN_S + 2.5, BEGIN_S + 4.0) == 0.0


@pytest.mark.parametrize(("pages", "faults", "share"), [(100.0, 0.0, 0.0), (100.0, 200.0, 0.25), (900.0, 200.0, 1.0)])
def test_share_of_the_faults_that_were_for_swapped_pages(pages: float, faults: float, share: float) -> None:
    stage = Stage()
    for _ in range(6):
        stage.grow({(catalogue.HOST_SWAP_PAGES, ("in",)): pages, (catalogue.HOST_PAGE_FAULTS, ("major",)): faults})
        scene = stage.step(0.5)
    assert swapped_share(scene, scene.at_s - 1.0, scene.at_s) == pytest.approx(share)
