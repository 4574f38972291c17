"""What a span is told of why its tokens were late."""

from __future__ import annotations

import pytest

from gpumon.explain.explained import Account, Explained, Share
from gpumon.explain.signs import Fact
from gpumon.export.annotate import Annotator
from gpumon.export.annotate_cause import cause_attributes
from gpumon.export.forward_edit import AttributeValue
from gpumon.model import Binding, GpuUuid, Unit
from gpumon.store import Store
from tests.explained import CLOCK, ON_TIME, PREFILL, THERMAL, UNKNOWN, explained

NOT_KNOWN = Account(None, 0.4, 0.0, ())


def told(each: Explained) -> dict[str, AttributeValue]:
    attributes = cause_attributes(each)
    assert len({name for name, _ in attributes}) == len(attributes)
    return dict(attributes)


def figures(each: Explained) -> list[list[str | float]]:
    """Words of each line of evidence, its numbers as such."""
    lines = told(each)["gpumon.cause.evidence"]
    assert isinstance(lines, tuple)
    return [[float(word) if word[0].isdigit() else word for word in line.replace(")", "").split()] for line in lines]


HOT_LINE = ["thermal_throttle:", "sm_clock", 1.005e9, "hertz", "(usually", 1.41e9]
PREFILL_LINE = ["prefill_interference:", "prefill_tokens_of_others", 8192.0]


def account(*shares: Share) -> Account:
    return Account(1.0, 1.0, sum(share.seconds for share in shares), shares)


def test_a_late_request_is_told_by_how_much_why_and_by_which_figures() -> None:
    attributes = told(explained())
    assert figures(explained()) == [HOT_LINE, PREFILL_LINE]
    assert attributes.pop("gpumon.cause.evidence")
    assert attributes == {
        "gpumon.excess_ms": 900.0,
        "gpumon.cause": "thermal_throttle",
        "gpumon.cause.shares": (
            "thermal_throttle=500.0",
            "prefill_interference=200.0",
            "queueing=100.0",
            "unexplained=100.0",
        ),
    }


def test_the_shares_add_up_to_the_excess() -> None:
    attributes = told(explained())
    shares = attributes["gpumon.cause.shares"]
    assert isinstance(shares, tuple)
    assert sum(float(share.partition("=")[2]) for share in shares) == attributes["gpumon.excess_ms"]


def test_a_request_on_time_is_told_so() -> None:
    assert told(explained(first_token=ON_TIME, decode=ON_TIME)) == {"gpumon.excess_ms": 0.0}


def test_a_request_of_which_nothing_was_expected_is_told_nothing() -> None:
    assert told(explained(first_token=NOT_KNOWN, decode=NOT_KNOWN)) == {}


@pytest.mark.parametrize("first", [True, False])
def test_where_one_phase_was_expected_the_other_counts_for_nothing(first: bool) -> None:
    late = account(THERMAL)
    each = explained(first_token=late if first else NOT_KNOWN, decode=NOT_KNOWN if first else late)
    assert told(each)["gpumon.excess_ms"] == 500.0


def test_a_cause_of_both_phases_is_summed_and_has_the_figure_of_the_phase_in_which_it_cost_more() -> None:
    waited = Share("thermal_throttle", 0.7, 0.9, None, Fact("sm_clock", 9e8, Unit.HERTZ))
    each = explained(first_token=account(waited), decode=account(THERMAL, PREFILL))
    assert told(each)["gpumon.cause.shares"] == ("thermal_throttle=1200.0", "prefill_interference=200.0")
    assert figures(each) == [["thermal_throttle:", "sm_clock", 9e8, "hertz"], PREFILL_LINE]


def test_a_figure_of_the_other_phase_does_where_the_larger_one_has_none() -> None:
    waited = Share("thermal_throttle", 0.7, 0.9, None)
    assert figures(explained(first_token=account(waited), decode=account(THERMAL))) == [HOT_LINE]


def test_without_figures_there_is_no_evidence() -> None:
    assert "gpumon.cause.evidence" not in told(explained(first_token=ON_TIME, decode=account(UNKNOWN)))


def test_the_unexplained_is_a_cause_in_its_place() -> None:
    most = UNKNOWN._replace(seconds=2.0)
    assert told(explained(first_token=ON_TIME, decode=account(most, THERMAL)))["gpumon.cause"] == "unexplained"


def test_what_is_told_is_bounded_and_the_largest_come_first() -> None:
    causes = ("pcie", "nvlink", "page_faults", "numa_remote", "straggler", "moe_imbalance", "gpu_error", "queueing")
    shares = [
        Share(cause, 1.0 + n, 0.9, None, CLOCK) for n, cause in enumerate((*causes, "kv_pressure", "hw_slowdown"))
    ]
    attributes = told(explained(first_token=account(*shares[:5]), decode=account(*shares[5:])))
    assert attributes["gpumon.cause"] == "hw_slowdown"
    listed = attributes["gpumon.cause.shares"]
    assert isinstance(listed, tuple)
    assert 5 <= len(listed) <= 10
    seconds = [float(each.partition("=")[2]) for each in listed]
    assert seconds == sorted(seconds, reverse=True)


def test_hardly_any_excess_is_told_without_an_exponent() -> None:
    attributes = told(explained(first_token=ON_TIME, decode=account(THERMAL._replace(seconds=1e-7))))
    assert attributes["gpumon.excess_ms"] == pytest.approx(0.0001, abs=0.001)
    assert attributes["gpumon.cause.shares"] == ("thermal_throttle=0.0",)


def test_the_annotator_adds_them_to_the_requests_own_span_whatever_else_is_known() -> None:
    store, known = Store(), {(b"t" * 16, b"s" * 8): explained()}
    binding: list[Binding | None] = [None]
    annotator = Annotator(
        lambda: store.view(100.0),
        lambda trace, span: binding[0],
        lambda ns: ns / 1e9,
        lambda trace, span: known.get((trace, span)),
    )
    own = dict(annotator(b"t" * 16, b"s" * 8, 1, 2))
    assert own["gpumon.cause"] == "thermal_throttle"
    assert dict(annotator(b"t" * 16, b"c" * 8, 1, 2)) == {}, "another span of the trace"
    binding[0] = Binding("resource", gpus=(GpuUuid("GPU-a"),))
    both = dict(annotator(b"t" * 16, b"s" * 8, 1, 2))
    assert (both["gpumon.gpu.uuids"], both["gpumon.excess_ms"]) == (("GPU-a",), 900.0)
    assert "gpumon.cause" not in dict(annotator(b"t" * 16, b"c" * 8, 1, 2))
