"""Texts of a server without the key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.probe.masking import PART, masked, shown

KEY = "sk-ABCDEFGH-1234"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (KEY, "***"),
        (f"a {KEY} b {KEY} c", "a *** b *** c"),
        (f"{KEY}{KEY}", "******"),
        ("key sk-abcdefgh-1234!", "key ***!"),
        ("ABCDEFGH", "***"),
        ("ABCDEFG", "ABCDEFG"),
        ("xxABCDEFGH-1xx", "xx***xx"),
        ("\u0130 ABCDEFGH \u0130", "\u0130 *** \u0130"),
        ("nothing of it", "nothing of it"),
        ("", ""),
    ],
)
def test_every_part_of_eight_characters_is_masked(text: str, said: str) -> None:
    assert masked(text, KEY) == said


def test_a_short_key_is_masked_as_a_whole_and_no_key_masks_nothing() -> None:
    assert masked("the key abc, ab and ABC", "abc") == "the key ***, ab and ***"
    assert masked("anything", "") == "anything"


def test_what_is_cut_and_what_is_not_printable_is_masked_first() -> None:
    assert shown(f"{KEY} and\n more", KEY, 9) == "*** and\N{REPLACEMENT CHARACTER}…"


@given(st.text("abc", min_size=PART, max_size=20), st.text("abc", max_size=60))
def test_no_part_of_the_key_is_left_and_nothing_else_goes(key: str, text: str) -> None:
    said = masked(text, key)
    assert not [at for at in range(len(key) - PART + 1) if key[at : at + PART] in said]
    assert said != text or not [at for at in range(len(key) - PART + 1) if key[at : at + PART] in text]
    rest = iter(text)
    assert all(each in rest for each in said.replace("***", "")), "what is left is of the text, in its order"
