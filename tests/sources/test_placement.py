"""How well sampled placement is: against fakes with known placement, and against this process's own memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.move_pages import MovePages
from gpumon.sources.placement import PageNumbers, Placement, candidates, estimate_placement
from gpumon.sources.procfs import Vma
from tests.fakes import FakePages

PAGE = 4096
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40
Region = tuple[int, int, Callable[[int], int | None]]


def on(node: int) -> Callable[[int], int]:
    return lambda address: node


def mixed(share_of_1: float) -> Callable[[int], int]:
    """Pages of both nodes without any order, as interleaving by many threads makes it."""
    return lambda address: int((address // PAGE * 2654435761 & 0xFFFFFFFF) / 2**32 < share_of_1)


def estimate(mappings: Sequence[tuple[int, int]], regions: Sequence[Region], resident: int, seed: int) -> Placement:
    def node_of(address: int) -> int | None:
        return next((node(address) for low, high, node in regions if low <= address < high), None)

    vmas = [Vma(start, start + size, "rw-p", "") for start, size in mappings]
    pages = FakePages(node_of)
    found = estimate_placement(pages, 1, PageNumbers(vmas, PAGE), resident // PAGE, 1024, random.Random(seed))
    assert pages.asked == found.asked <= 3 * 1024 + 200
    return found


CASES: dict[str, tuple[list[tuple[int, int]], list[Region], int, float, float]] = {
    # mappings, regions, resident bytes, true share of node 1, error allowed at 95 %
    "halves": ([(16 * GIB, 8 * GIB)], [(16 * GIB, 20 * GIB, on(0)), (20 * GIB, 24 * GIB, on(1))], 8 * GIB, 0.5, 0.01),
    "no order": ([(16 * GIB, 8 * GIB)], [(16 * GIB, 24 * GIB, mixed(0.3))], 8 * GIB, 0.3, 0.05),
    "arenas touched in part": (
        [(100 * GIB + i * GIB, GIB // 5) for i in range(100)],
        [(100 * GIB + i * GIB, 100 * GIB + i * GIB + GIB * 2 // 25, on(int(i % 4 == 0))) for i in range(100)],
        100 * GIB * 2 // 25,
        0.25,
        0.05,
    ),
    "terabyte touched at its beginning": (
        [(TIB, TIB), (16 * GIB, 8 * GIB)],
        [(TIB, TIB + 2 * GIB, on(1)), (16 * GIB, 24 * GIB, on(0))],
        10 * GIB,
        0.2,
        0.03,
    ),
    "terabyte touched in its middle": (
        [(TIB, TIB), (16 * GIB, 2 * GIB)],
        [(TIB + 500 * GIB, TIB + 502 * GIB, on(1)), (16 * GIB, 18 * GIB, on(0))],
        4 * GIB,
        0.5,
        0.04,
    ),
    "terabyte hardly touched at its beginning": (
        [(TIB, TIB), (16 * GIB, 512 * MIB)],
        [(TIB, TIB + 256 * MIB, on(1)), (16 * GIB, 17 * GIB, on(0))],
        768 * MIB,
        1 / 3,
        0.02,
    ),
    "terabyte never touched": (
        [(TIB, TIB), (16 * GIB, 2 * GIB)],
        [(16 * GIB, 18 * GIB, mixed(0.3))],
        2 * GIB,
        0.3,
        0.05,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_shares_are_within_the_stated_error(name: str) -> None:
    mappings, regions, resident, truth, allowed = CASES[name]
    estimates = [estimate(mappings, regions, resident, seed) for seed in range(30)]
    assert all(sum(found.shares.values()) == pytest.approx(1.0) for found in estimates)
    # 95 of 100, so 28 of 30: a block at the edge of what the questions can find may be caught by one of them only.
    assert sum(abs(found.shares.get(1, 0.0) - truth) <= allowed for found in estimates) >= 28
    assert sum(abs(found.coverage - 1.0) <= 0.15 for found in estimates) >= 28


def test_questions_gather_where_pages_are() -> None:
    mappings, regions, resident, _, _ = CASES["terabyte touched in its middle"]
    found = [estimate(mappings, regions, resident, seed).found for seed in range(30)]
    assert sum(found) / len(found) > 150  # 70 without halving the strata that are mixed


def test_the_error_has_no_direction() -> None:
    mappings, regions, resident, truth, _ = CASES["no order"]
    errors = [estimate(mappings, regions, resident, seed).shares[1] - truth for seed in range(30)]
    assert abs(sum(errors) / len(errors)) < 0.01


def test_memory_that_cannot_be_found_shows_in_the_coverage() -> None:
    scattered: list[Region] = [(TIB + i * 100 * GIB, TIB + i * 100 * GIB + 2 * MIB, on(1)) for i in range(10)]
    found = estimate([(TIB, TIB), (16 * GIB, GIB)], [*scattered, (16 * GIB, 16 * GIB + 4 * MIB, on(0))], GIB, 1)
    assert found.coverage < 0.5


def test_the_same_seed_asks_the_same_questions() -> None:
    mappings, regions, resident, _, _ = CASES["no order"]
    assert estimate(mappings, regions, resident, 7) == estimate(mappings, regions, resident, 7)
    assert estimate(mappings, regions, resident, 7) != estimate(mappings, regions, resident, 8)


def test_thirty_thousand_small_mappings_are_one_population() -> None:
    mappings = [(16 * GIB + i * MIB, 64 * 1024) for i in range(30_000)]
    vmas = [Vma(start, start + size, "rw-p", "") for start, size in mappings]
    pages = FakePages(lambda address: (address - 16 * GIB) // MIB % 2)
    found = estimate_placement(pages, 1, PageNumbers(vmas, PAGE), 30_000 * 16, 1024, random.Random(1))
    assert found.shares[1] == pytest.approx(0.5, abs=0.06)
    assert found.coverage == pytest.approx(1.0)


def test_nothing_mapped_or_nothing_resident_is_no_share() -> None:
    assert estimate([], [], 0, 1) == Placement({}, 0.0, 0, 0)
    found = estimate([(GIB, GIB)], [], 0, 1)
    assert (found.shares, found.found, found.coverage) == ({}, 0, 0.0)


def test_reservations_devices_and_kernel_pages_are_not_asked_about() -> None:
    vmas = [
        Vma(PAGE, 2 * PAGE, "---p", ""),
        Vma(PAGE, 2 * PAGE, "r-xp", "[vdso]"),
        Vma(PAGE, 2 * PAGE, "rw-s", "/dev/nvidia-uvm"),
        Vma(PAGE, 2 * PAGE, "rw-s", "anon_inode:[perf_event]"),
    ]
    kept = [
        Vma(PAGE, 2 * PAGE, "rw-s", "/dev/shm/nccl-x"),
        Vma(PAGE, 2 * PAGE, "rw-p", "[heap]"),
        Vma(PAGE, 2 * PAGE, "r--p", "/models/weights.safetensors"),
        Vma(PAGE, 2 * PAGE, "rw-s", "/dev/zero (deleted)"),
    ]
    assert candidates([*vmas, *kept]) == kept


def test_mappings_above_what_a_process_can_have_are_not_asked_about() -> None:
    vmas = [Vma(1 << 63, (1 << 64) - PAGE, "rw-p", ""), Vma(PAGE, (1 << 64) - PAGE, "rw-p", "")]
    assert candidates(vmas) == []
    assert estimate_placement(FakePages(on(0)), 1, PageNumbers(vmas, PAGE), 10, 64, random.Random(1)).asked == 0


mapping_lists = st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 2**34)), max_size=8)


@given(mapping_lists, st.integers(0, 2**40), st.integers(1, 300), st.randoms(use_true_random=False))
def test_any_mappings_give_shares_that_add_up_and_addresses_inside(
    sizes: list[tuple[int, int]], resident: int, wanted: int, rng: random.Random
) -> None:
    vmas = []
    start = PAGE
    for gap, pages in sizes:
        start += gap * PAGE
        vmas.append(Vma(start, start + pages * PAGE, "rw-p", ""))
        start += pages * PAGE

    def node_of(address: int) -> int | None:
        assert any(vma.start <= address < vma.end for vma in vmas)
        return (address // PAGE) % 3 or None

    found = estimate_placement(FakePages(node_of), 1, PageNumbers(vmas, PAGE), resident, wanted, rng)
    assert not found.shares or sum(found.shares.values()) == pytest.approx(1.0)
    assert 0 <= found.coverage < float("inf")
    assert found.found <= found.asked <= 3 * wanted + 1000


def test_the_touched_share_of_this_processs_own_memory_is_found() -> None:
    size = 256 * MIB
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    touched = size * 2 // 5
    for offset in range(0, touched, mmap.PAGESIZE):
        memory[offset] = 1
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    numbered = PageNumbers([Vma(start, start + size, "rw-p", "")], mmap.PAGESIZE)
    found = estimate_placement(MovePages(), os.getpid(), numbered, touched // mmap.PAGESIZE, 1024, random.Random(1))
    assert found.coverage == pytest.approx(1.0, abs=0.05)
    assert sum(found.shares.values()) == pytest.approx(1.0)
