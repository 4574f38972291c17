from __future__ import annotations

import pytest

from gpumon.catalogue import GPU_FIELD_SUPPORTED
from gpumon.host.nvml import DEVICE_GONE, DRIVER_GONE, NEVER, Code, NvmlError
from gpumon.model import Miss, Reason, Sample
from gpumon.sources.capabilities import GONE, Capabilities

TRANSIENT = sorted(set(Code) - GONE - NEVER - {Code.SUCCESS, Code.INVALID_ARGUMENT, Code.NO_PERMISSION})


class Question:
    """Answers 7, or fails with the code that is set; counts how often it was asked."""

    def __init__(self, code: int = Code.SUCCESS) -> None:
        self.code = code
        self.asked = 0

    def __call__(self, *args: int) -> int:
        self.asked += 1
        if self.code:
            raise NvmlError(self.code, "nvmlQuestion")
        return 7


def test_answer_is_passed_on_and_arguments_reach_the_question() -> None:
    capabilities = Capabilities("gpu 0")
    assert capabilities.ask(1.0, "sum", lambda a, b: a + b, 3, 4) == 7
    assert capabilities.supported("sum") is True
    assert capabilities.take() == []


def test_an_answer_of_none_is_an_answer() -> None:
    capabilities = Capabilities("gpu 0")
    assert capabilities.ask(1.0, "gpm", lambda: None) is None
    assert capabilities.supported("gpm") is True


@pytest.mark.parametrize("code", sorted(NEVER))
def test_never_is_asked_once_and_reported_once(code: int) -> None:
    capabilities = Capabilities("gpu 3")
    question = Question(code)
    for at_s in (1.0, 2.0, 1e9):
        assert capabilities.ask(at_s, "fan", question) is None
    assert question.asked == 1
    assert capabilities.supported("fan") is False
    assert [(miss.what, miss.reason) for miss in capabilities.take()] == [("gpu 3 fan", Reason.UNSUPPORTED)]
    assert capabilities.take() == []


def test_invalid_argument_at_first_means_never() -> None:
    capabilities = Capabilities("gpu 0")
    question = Question(Code.INVALID_ARGUMENT)
    capabilities.ask(1.0, "field", question)
    capabilities.ask(2.0, "field", question)
    assert question.asked == 1
    assert capabilities.supported("field") is False


def test_invalid_argument_after_an_answer_is_a_failure_that_passes() -> None:
    capabilities = Capabilities("gpu 0")
    question = Question()
    assert capabilities.ask(1.0, "field", question) == 7
    question.code = Code.INVALID_ARGUMENT
    assert capabilities.ask(2.0, "field", question) is None
    assert capabilities.supported("field") is True
    assert capabilities.take() == [Miss("gpu 0 field", Reason.UNAVAILABLE, "INVALID_ARGUMENT")]
    question.code = Code.SUCCESS
    assert capabilities.ask(3.0, "field", question) == 7


def test_never_after_an_answer_is_believed() -> None:
    capabilities = Capabilities("gpu 0")
    question = Question()
    capabilities.ask(1.0, "utilization", question)
    question.code = Code.NOT_SUPPORTED
    capabilities.ask(2.0, "utilization", question)
    capabilities.ask(3.0, "utilization", question)
    assert question.asked == 2
    assert capabilities.supported("utilization") is False


def test_denied_is_asked_again_after_the_pause_only() -> None:
    capabilities = Capabilities("gpu 0", denied_retry_s=60.0)
    question = Question(Code.NO_PERMISSION)
    for at_s in (100.0, 100.1, 159.9):
        assert capabilities.ask(at_s, "gpm", question) is None
    assert question.asked == 1
    assert not capabilities.wanted(159.9, "gpm")
    assert capabilities.supported("gpm") is None
    question.code = Code.SUCCESS
    assert capabilities.ask(160.0, "gpm", question) == 7
    assert capabilities.supported("gpm") is True
    assert [miss.reason for miss in capabilities.take()] == [Reason.DENIED]


@pytest.mark.parametrize("code", TRANSIENT)
def test_what_passes_is_asked_at_every_pass(code: int) -> None:
    capabilities = Capabilities("gpu 0")
    question = Question(code)
    for at_s in (1.0, 2.0, 3.0):
        assert capabilities.ask(at_s, "power", question) is None
        assert [miss.reason for miss in capabilities.take()] == [Reason.UNAVAILABLE]
    assert question.asked == 3
    assert capabilities.supported("power") is None


@pytest.mark.parametrize("code", [31, 12345, -1])
def test_a_code_nobody_knows_is_a_failure_that_passes(code: int) -> None:
    capabilities = Capabilities("gpu 0")
    assert capabilities.ask(1.0, "power", Question(code)) is None
    assert capabilities.take() == [Miss("gpu 0 power", Reason.UNAVAILABLE, f"code {code}")]


@pytest.mark.parametrize("code", sorted(DEVICE_GONE | DRIVER_GONE))
def test_gone_is_raised_and_not_remembered(code: int) -> None:
    capabilities = Capabilities("gpu 0")
    with pytest.raises(NvmlError) as raised:
        capabilities.ask(1.0, "power", Question(code))
    assert raised.value.code == code
    with pytest.raises(NvmlError):
        capabilities.note(1.0, "power", code)
    assert capabilities.wanted(1.0, "power")
    assert capabilities.take() == []


def test_misses_that_nobody_takes_are_one_per_key() -> None:
    capabilities = Capabilities("gpu 0")
    question = Question(Code.TIMEOUT)
    for tick in range(1000):
        capabilities.ask(float(tick), f"key {tick % 3}", question)
    assert len(capabilities.take()) == 3


def test_noted_codes_count_as_if_asked() -> None:
    capabilities = Capabilities("gpu 0")
    assert capabilities.note(1.0, "a", Code.SUCCESS)
    assert not capabilities.note(1.0, "b", Code.INVALID_ARGUMENT)
    assert not capabilities.note(2.0, "a", Code.INVALID_ARGUMENT)
    assert (capabilities.supported("a"), capabilities.supported("b")) == (True, False)
    assert [miss.reason for miss in capabilities.take()] == [Reason.UNSUPPORTED, Reason.UNAVAILABLE]


def test_a_field_denied_in_every_batch_is_reported_at_each_retry_only() -> None:
    capabilities = Capabilities("gpu 0", denied_retry_s=60.0)
    reported = 0
    for tick in range(1000):
        capabilities.note(0.1 * tick, "energy", Code.NO_PERMISSION)
        reported += len(capabilities.take())
    assert reported == 2


def test_support_is_told_per_field_by_its_best_part_and_not_for_what_is_open() -> None:
    capabilities = Capabilities("gpu 0")
    capabilities.note(1.0, "fan:0", Code.SUCCESS)
    capabilities.note(1.0, "fan:1", Code.NOT_SUPPORTED)
    capabilities.note(1.0, "bar1", Code.NOT_SUPPORTED)
    capabilities.note(1.0, "gpm", Code.NO_PERMISSION)
    capabilities.note(1.0, "power", Code.TIMEOUT)
    assert list(capabilities.samples(("0", "GPU-a"))) == [
        Sample(GPU_FIELD_SUPPORTED, ("0", "GPU-a", "fan"), 1.0),
        Sample(GPU_FIELD_SUPPORTED, ("0", "GPU-a", "bar1"), 0.0),
    ]


def test_forgetting_asks_everything_again() -> None:
    capabilities = Capabilities("gpu 0")
    question = Question(Code.NOT_SUPPORTED)
    capabilities.ask(1.0, "utilization", question)
    capabilities.forget()
    question.code = Code.SUCCESS
    assert capabilities.ask(2.0, "utilization", question) == 7
