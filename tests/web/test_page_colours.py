"""The page's colours: one for each cause, told apart by those who see colours otherwise too, and none of them a GPU's.

How colours are seen without one kind of cones: Machado, Oliveira and Fernandes 2009, severity 1. How far apart two are:
OKLab, in which 0.02 is about as little as is noticed.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.web.pages import page_files

TEXT = page_files()["colours.js"].body.decode()
APART = 0.06
SEEN_BY = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no long ones": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no middle ones": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "no short ones": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
CONES = np.array(
    (
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
)
LAB = np.array(
    (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
)


def block(begin: str) -> str:
    return TEXT.partition(begin)[2].partition(";\n")[0]


OF_CAUSES = dict(re.findall(r'(\w+): "(#[0-9a-f]{6})"', block("export const CAUSES = ")))
OF_GPUS = re.findall(r'"(#[0-9a-f]{6})"', block("const LINES = "))


def seen(colour: str, by: str) -> NDArray[np.float64]:
    """In OKLab."""
    coded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    return np.asarray(LAB @ np.cbrt(CONES @ np.clip(np.array(SEEN_BY[by]) @ linear, 0.0, 1.0)), dtype=np.float64)


def test_every_cause_has_a_colour() -> None:
    assert sorted(OF_CAUSES) == sorted(CAUSES)


@pytest.mark.parametrize("by", SEEN_BY)
def test_any_two_causes_are_told_apart(by: str) -> None:
    near = [
        (one, other)
        for (one, first), (other, second) in itertools.combinations(OF_CAUSES.items(), 2)
        if np.linalg.norm(seen(first, by) - seen(second, by)) < APART
    ]
    assert near == []


@pytest.mark.parametrize("by", SEEN_BY)
def test_no_gpu_is_taken_for_a_cause_or_for_another_gpu(by: str) -> None:
    assert len(OF_GPUS) >= 4
    lines = {f"GPU {n}": colour for n, colour in enumerate(OF_GPUS)}
    near = [
        (one, other)
        for (one, first), (other, second) in itertools.combinations((lines | OF_CAUSES).items(), 2)
        if one in lines and np.linalg.norm(seen(first, by) - seen(second, by)) < APART
    ]
    assert near == []
