"""Matrices by group: made in time, from aligned samples, exported when strong."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gpumon import catalogue
from gpumon.explain.correlations import EVERY_S, LAGS, PER_STEP, SAMPLES, Correlations, Matrix, _samples
from gpumon.explain.dimensions import DIMENSIONS, Dimensions
from gpumon.explain.fast_signals import NAMES
from gpumon.explain.group import Group, group_of
from gpumon.explain.latency_tracks import FAST_SIGNALS, SIGNALS, LatencyTracks
from gpumon.model import Kind, RequestRecord
from gpumon.sampler.ring import Row
from gpumon.sources.gpu_fast import Column
from gpumon.store import Store
from tests.detect.requests import request
from tests.detect.scenes import BEGIN_S, Stage, gpu

UUID = gpu(0)[1]
GROUP = Group("vllm", "m", (UUID,), "", "")
RANDOM = np.random.default_rng(7)
STORY = RANDOM.random(1200)
"""What the GPU's clock does in each second: random, so that lags can be told apart."""


def share(at_s: float) -> float:
    """By which the clock is lower in a second."""
    return float(STORY[int(at_s - BEGIN_S) % len(STORY)])


class Node:
    """A GPU whose heat holds it down, and a server whose gaps follow."""

    def __init__(self, *, lag_s: float = 0.0, model: str = "m") -> None:
        self.stage = Stage()
        self.dimensions, self.latencies = Dimensions(), LatencyTracks()
        self.correlations = Correlations(self.dimensions, self.latencies)
        self.lag_s = lag_s
        self.model = model
        self.asked = 0

    def request(self, uuid: str = UUID) -> RequestRecord:
        """It ends now and lasted two seconds; its gaps are longer the more its GPU was held down."""
        at_s, gaps = self.stage.at_s - 1.0, []
        while at_s < self.stage.at_s + 1.0:
            gaps.append(0.02 * (1.0 + share(at_s - self.lag_s)))
            at_s += gaps[-1]
        return request(self.stage.at_s - 1.1, first_s=0.1, gap_s=gaps[:-1], gpus=(uuid,), model=self.model)

    def run(self, seconds: int, *, each: Callable[[], object] = lambda: None, asks: bool = True) -> None:
        for _ in range(seconds):
            self.stage.grow({(catalogue.GPU_THROTTLED_SECONDS, (*gpu(0), "sw_thermal")): share(self.stage.at_s)})
            records = [self.request()] if asks else []
            each()
            scene = self.stage.step(1.0, records)
            self.dimensions.feed(scene, [GROUP._replace(model=self.model)])
            for record in records:
                self.latencies.add(group_of(record), [record], scene)
            self.correlations.step(scene.at_s)

    def matrix(self, *, fast: bool = False) -> Matrix:
        (found,) = [matrix for matrix in self.correlations.matrices() if matrix.is_fast == fast]
        return found


def cell(matrix: Matrix, x: str, y: str) -> tuple[float, float, bool]:
    """r, lag and whether it is strong."""
    at = matrix.x.index(x), matrix.y.index(y)
    return float(matrix.r[at]), float(matrix.lag_s[at]), bool(matrix.strong[at])


def test_heat_and_gaps_that_follow_it_are_found_strong_without_a_lag() -> None:
    node = Node()
    node.run(150)
    matrix = node.matrix()
    r, lag_s, strong = cell(matrix, "thermal_throttled", "inter_token_p95")
    assert (r > 0.9, lag_s, strong) == (True, 0.0, True)
    assert cell(matrix, "thermal_throttled", "tokens_per_second")[0] < -0.7
    assert (matrix.x, matrix.y) == (tuple(dimension.name for dimension in DIMENSIONS), SIGNALS)
    assert matrix.r.shape == (len(DIMENSIONS), len(SIGNALS))
    assert np.isnan(cell(matrix, "sm_active", "inter_token_p95")[0]), "no such reading"


@pytest.mark.parametrize("lag_s", [-4.0, 3.0])
def test_gaps_that_follow_later_or_came_before_tell_their_lag(lag_s: float) -> None:
    node = Node(lag_s=lag_s)
    node.run(150)
    r, lag, strong = cell(node.matrix(), "thermal_throttled", "inter_token_p95")
    assert (r > 0.9, lag, strong) == (True, lag_s, True)


def test_matrices_are_made_every_ten_seconds() -> None:
    node = Node()
    times: list[float] = []
    node.run(60, each=lambda: times.extend(matrix.at_s for matrix in node.correlations.matrices()))
    made = sorted(set(times))
    assert np.diff(made).tolist() == [EVERY_S] * (len(made) - 1)
    assert len(made) >= 4


def test_groups_take_turns() -> None:
    node = Node()
    groups = [GROUP._replace(gpus=(gpu(number)[1],)) for number in range(PER_STEP + 2)]
    for _ in range(40):
        records = [node.request(group.gpus[0]) for group in groups]
        scene = node.stage.step(1.0, records)
        node.dimensions.feed(scene, groups)
        for record in records:
            node.latencies.add(group_of(record), [record], scene)
        node.correlations.step(scene.at_s)
    made = [matrix.at_s for matrix in node.correlations.matrices()]
    assert len(made) == len(groups)
    assert set(made[:PER_STEP]) != set(made[PER_STEP:])
    assert min(made) > node.stage.at_s - EVERY_S - 2


def test_a_group_without_latencies_has_no_matrix() -> None:
    node = Node()
    node.run(40, asks=False)
    assert node.correlations.matrices() == []
    assert node.correlations.samples() == []


def test_a_group_that_made_room_is_gone() -> None:
    node = Node()
    node.run(80)
    assert node.correlations.samples()
    others = [Group("vllm", str(number), (), "", "") for number in range(40)]
    node.dimensions.feed(node.stage.step(1.0), others[:31])
    node.dimensions.feed(node.stage.step(400.0), others)
    node.correlations.step(node.stage.at_s)
    assert node.correlations.matrices() == []
    assert node.correlations.samples() == []


def test_what_stopped_is_not_told_for_ever() -> None:
    node = Node()
    node.run(100)
    assert node.correlations.samples()
    node.run(700, asks=False)
    assert node.correlations.samples() == []


def test_strong_pairs_are_exported_the_strongest_first_and_fit_their_families() -> None:
    node = Node()
    node.run(150)
    samples = node.correlations.samples()
    correlations = [sample for sample in samples if sample.metric is catalogue.CORRELATION]
    lags = [sample for sample in samples if sample.metric is catalogue.CORRELATION_LAG]
    assert ("thermal_throttled", "m:inter_token_p95") in [sample.labels for sample in correlations]
    assert [sample.labels for sample in correlations] == [sample.labels for sample in lags]
    sizes = [abs(sample.value) for sample in correlations if isinstance(sample.value, float)]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0.7
    store = Store()
    store.put("explain", node.stage.at_s, samples, 10.0)
    assert len([*store.view(node.stage.at_s)]) == len(samples)
    assert catalogue.CORRELATION.kind is Kind.GAUGE


def test_there_are_no_more_pairs_than_the_family_may_have() -> None:
    shape = (len(DIMENSIONS), len(SIGNALS))
    r = np.linspace(-0.99, -0.75, math.prod(shape)).reshape(shape)
    names = tuple(dimension.name for dimension in DIMENSIONS)
    many, ones = np.full(shape, 600), np.ones(shape)
    matrix = Matrix(GROUP, False, 0.0, 1.0, names, SIGNALS, r, 0 * ones, many, 60 * ones, 0 * ones, ones > 0)
    samples = _samples([matrix, matrix._replace(group=GROUP._replace(server="tgi"))])
    told = [sample.value for sample in samples if sample.metric is catalogue.CORRELATION]
    assert told == r.ravel()[: catalogue.CORRELATION_PAIRS].tolist()
    assert len(samples) == 2 * catalogue.CORRELATION_PAIRS


@pytest.mark.parametrize(
    ("model", "label"), [("", "vllm"), ("x" * 300, "other"), ("ünï\ud800code", "ünï?code"), ('a"b\n', 'a"b\n')]
)
def test_names_from_outside_become_labels(model: str, label: str) -> None:
    node = Node(model=model)
    node.run(120)
    labels = {sample.labels for sample in node.correlations.samples()}
    assert ("thermal_throttled", f"{label}:inter_token_p95") in labels


def test_replicas_of_a_model_have_one_series_each() -> None:
    node = Node()
    twin = GROUP._replace(gpus=(UUID, "GPU-other"))

    def other() -> None:
        record = node.request()
        bound = record.binding
        record.binding = type(bound)("resource", gpus=(*bound.gpus, type(bound.gpus[0])("GPU-other")))
        scene = node.stage.step(0.0, [record])
        node.dimensions.feed(scene, [twin])
        node.latencies.add(twin, [record], scene)

    node.run(150, each=other)
    assert len(node.correlations.matrices()) == 2
    labels = [sample.labels for sample in node.correlations.samples() if sample.metric is catalogue.CORRELATION]
    assert len(labels) == len(set(labels)) > 0


def test_matrices_cannot_be_written_to() -> None:
    node = Node()
    node.run(60)
    matrix = node.matrix()
    for array in (matrix.r, matrix.lag_s, matrix.n, matrix.n_eff, matrix.p, matrix.strong):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


def test_pairs_are_told_in_the_order_of_their_strength() -> None:
    node = Node()
    node.run(150)
    matrix = node.matrix()
    pairs, strong = matrix.pairs(strong_only=False), matrix.pairs(strong_only=True)
    assert ("thermal_throttled", "inter_token_p95") in [(pair.x, pair.y) for pair in strong]
    assert {*strong} <= {*pairs}
    assert all(math.isfinite(value) for pair in pairs for value in pair[2:])
    assert [abs(pair.r) for pair in pairs] == sorted((abs(pair.r) for pair in pairs), reverse=True)


def fast_rows(at_s: float, held: Callable[[float], float]) -> list[Row]:
    """The ten rows of the second before."""
    rows = []
    for number in range(10):
        row_s = at_s - 1.0 + 0.1 * number + 0.05
        values = [math.nan] * len(Column)
        values[Column.CLOCK_SM] = 1.98e9 * (1.0 - 0.4 * held(row_s))
        rows.append(Row(round((row_s + 0.05) * 1e9), tuple(values)))
    return rows


@pytest.mark.parametrize("lag_s", [0.0, 0.3])
def test_tenths_of_a_second_are_correlated_where_fast_rows_come(lag_s: float) -> None:
    node = Node()
    story = np.random.default_rng(3).random(2000)

    def held(at_s: float) -> float:
        return float(story[int(round((at_s - BEGIN_S) * 10, 3)) % len(story)])

    def one(begin_s: float) -> RequestRecord:
        at_s, gaps = begin_s, []
        while at_s < begin_s + 2.0:
            gaps.append(0.02 * (1.0 + held(at_s - lag_s)))
            at_s += gaps[-1]
        return request(begin_s - 0.1, first_s=0.1, gap_s=gaps, gpus=(UUID,))

    for _ in range(90):
        record = one(node.stage.at_s - 1.5)
        scene = node.stage.step(1.0, [record])
        node.correlations.add_rows(UUID, fast_rows(scene.at_s, held))
        node.correlations.add_rows("GPU-else", fast_rows(scene.at_s, lambda at_s: 0.5))
        node.dimensions.feed(scene, [GROUP])
        node.latencies.add(GROUP, [record], scene)
        node.correlations.step(scene.at_s)
    matrix = node.matrix(fast=True)
    assert (matrix.x, matrix.y, matrix.step_s) == (NAMES, FAST_SIGNALS, 0.1)
    r, lag, strong = cell(matrix, "sm_clock", "inter_token_mean")
    assert (r < -0.7, lag, strong) == (True, lag_s, True)
    assert int(matrix.n.max()) <= SAMPLES + LAGS
    exported = {sample.labels[0] for sample in node.correlations.samples()}
    assert "sm_clock" not in exported, "only those of ten minutes are"


def test_without_fast_rows_there_is_no_fast_matrix() -> None:
    node = Node()
    node.run(60)
    assert [matrix.is_fast for matrix in node.correlations.matrices()] == [False]


def test_the_same_input_gives_the_same_output() -> None:
    def told() -> list[bytes]:
        node = Node()
        node.run(60)
        return [array.tobytes() for array in node.matrix()[6:]] + [repr(node.correlations.samples()).encode()]

    assert told() == told()
