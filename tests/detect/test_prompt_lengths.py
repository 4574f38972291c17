"""Prompts of the newest requests, where they ran, and figures as people say them."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.prompt_lengths import REMEMBERED, PromptLengths, bucket, long, on_process
from gpumon.detect.spoken import change, duration, figure
from tests.detect.requests import request
from tests.detect.scenes import Stage, gpu


def test_prompts_are_told_apart_by_where_they_ran() -> None:
    stage, prompts = Stage(), PromptLengths()
    stage.put({(catalogue.PROCESS_GPU_MEMORY, (*gpu(0), "1", "server", "", "", "")): 1e9})
    records = [
        request(1000.0, prompt_tokens=1, pid=1),
        request(1000.0, prompt_tokens=2, gpus=[gpu(0)[1]]),
        request(1000.0, prompt_tokens=3, gpus=[gpu(1)[1]], pid=2),
        request(1000.0, prompt_tokens=4),
        request(1000.0),
        request(1000.0, prompt_tokens=-5),
    ]
    scene = stage.step(requests=records)
    prompts.feed(scene)
    assert [prompt.tokens for prompt in prompts.new] == [1, 2, 3, 4]
    assert [prompt.tokens for prompt in on_process(prompts.all(), scene, "1")] == [1, 2, 4]
    assert prompts.new[0].start_s == 1000.0
    assert prompts.new[0].end_s == pytest.approx(1000.1)
    prompts.feed(stage.step())
    assert prompts.new == []
    assert len(prompts.all()) == 4


def test_memory_is_bounded() -> None:
    stage, prompts = Stage(), PromptLengths()
    prompts.feed(stage.step(requests=[request(1000.0, prompt_tokens=1)] * (REMEMBERED + 50)))
    assert len(prompts.all()) == REMEMBERED


def test_nine_of_ten_are_no_longer_than_long() -> None:
    assert long([]) is None
    assert long([5]) == 5
    assert long([*[4096] * 19, 16_384]) == 4096
    assert long([*[4096] * 8, *[16_384] * 2]) == 16_384


def test_buckets_are_those_of_the_catalogue() -> None:
    assert [bucket(tokens) for tokens in (0, 1023, 1024, 4096, 16_384, 10**9)] == [
        "<1k",
        "<1k",
        "1k",
        "4k",
        "16k",
        "256k+",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.0072, "7.2 ms"), (0.045, "45 ms"), (0.2551, "255 ms"), (1.0, "1 s"), (10.23, "10.2 s")],
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_changes_have_a_sign() -> None:
    assert change(45.0, 255.0) == "+467 %"
    assert change(10.0, 7.4) == "-26 %"


def test_ten_times_as_much_and_more_is_told_in_times() -> None:
    assert change(1.0, 9.9) == "+890 %"
    assert change(0.1, 1.0) == "x 10"
    assert change(3.51, 5810.0) == "x 1,660"


def test_rates_are_written_out() -> None:
    assert (figure(5812.3), figure(0.514), figure(0.0)) == ("5,812", "0.514", "0")
