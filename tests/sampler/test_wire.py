"""Messages between the two processes: whole, bounded, counted when lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.catalogue import METRICS
from gpumon.model import Distribution, Kind, Miss, Reason, Rejection, Sample
from gpumon.sampler.wire import MAX_MESSAGE, Batch, Channel, pack_batch, pair, send_batch, unpack_batch


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = (Channel(end) for end in pair())
    yield left, right
    left.close()
    right.close()


def heard(channel: Channel) -> tuple[str, int, tuple[Any, ...]]:
    message = channel.receive(wait=False)
    assert message is not None
    return message


TEXT = st.text(max_size=20)
SAMPLES = st.builds(
    lambda metric, label, value, counts: Sample(
        metric,
        tuple(label for _ in metric.labels),
        Distribution(tuple(counts), value) if metric.kind is Kind.HISTOGRAM else value,
    ),
    st.sampled_from(METRICS),
    TEXT,
    st.floats(allow_nan=False) | st.integers(-(2**63), 2**63),
    st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
)
BATCHES = st.builds(
    Batch,
    TEXT,
    TEXT,
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
    st.none() | st.floats(allow_nan=False),
    st.lists(SAMPLES, max_size=8),
    st.lists(st.builds(Miss, TEXT, st.sampled_from(Reason), TEXT), max_size=4),
    st.lists(st.builds(Rejection, TEXT, st.sampled_from(Reason)), max_size=4),
)


@given(batch=BATCHES)
def test_a_batch_comes_out_as_it_went_in(batch: Batch) -> None:
    left, right = (Channel(end) for end in pair())
    assert left.send("batch", *pack_batch(batch))
    kind, dropped, body = heard(right)
    assert (kind, dropped) == ("batch", 0)
    got = unpack_batch(body)
    assert got == batch
    assert [sample.metric for sample in got.samples] == [sample.metric for sample in batch.samples]
    assert [type(miss.reason) for miss in got.misses] == [Reason] * len(batch.misses)
    left.close()
    right.close()


def test_a_pass_is_sorted_and_believed_for_three_cadences(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    sample = Sample(catalogue.GPU_PRESENT, ("0", "GPU-1"), 1.0)
    miss, rejection = Miss("gpu 0 fan", Reason.DENIED), Rejection("power", Reason.OUT_OF_RANGE)
    send_batch(left, "gpu_slow", "gpu_slow/00/GPU-1", 10.0, 5.0, 0.25, [miss, sample, rejection])
    batch = unpack_batch(heard(right)[2])
    assert batch == Batch("gpu_slow", "gpu_slow/00/GPU-1", 10.0, 15.0, 0.25, [sample], [miss], [rejection])


def test_what_does_not_fit_is_dropped_and_the_count_is_the_next_messages(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    sent = 0
    while left.send("log", "x" * 10_000):
        sent += 1
    assert sent > 3
    assert not left.send("log", "x" * 10_000)
    assert [heard(right)[1] for _ in range(sent)] == [0] * sent
    with pytest.raises(BlockingIOError):
        right.receive(wait=False)
    assert left.send("log", "after")
    assert heard(right) == ("log", 2, ("after",))
    assert left.send("log", "and again")
    assert heard(right)[1] == 0


def test_a_message_that_is_too_long_is_dropped_and_counted_and_takes_nothing_along(
    ends: tuple[Channel, Channel],
) -> None:
    left, right = ends
    assert not left.send("log", "x" * (MAX_MESSAGE + 1))
    assert left.send("log", "short")
    assert heard(right) == ("log", 1, ("short",))


def test_the_longest_message_that_is_sent_is_received_whole(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    length = MAX_MESSAGE
    while not left.send("log", "x" * length):  # how much the kernel takes is the machine's affair
        length //= 2
    assert heard(right)[2] == ("x" * length,)


def test_drops_of_many_threads_are_all_counted(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    taken = [0] * 4
    tried = 400

    def send(number: int) -> None:
        for _ in range(tried):
            taken[number] += left.send("log", "x" * 5_000)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < sum(taken) < 4 * tried
    dropped = sum(heard(right)[1] for _ in range(sum(taken)))
    assert left.send("log", "last")
    assert dropped + heard(right)[1] == 4 * tried - sum(taken)


def test_an_end_that_is_gone_is_told_apart_from_one_that_is_slow(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    assert left.send("log", "last words")
    left.close()
    assert heard(right)[2] == ("last words",)
    assert right.receive() is None
    with pytest.raises(BrokenPipeError):
        right.send("log", "anyone?")


def test_nothing_of_the_pair_is_left_to_other_children(ends: tuple[Channel, Channel]) -> None:
    left, right = (end for end in pair())
    assert (left.get_inheritable(), right.get_inheritable()) == (False, False)
    left.close()
    right.close()
