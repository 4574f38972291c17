"""What is read of a request's body, and that nothing else is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.proxy.request_body import NOTHING, asking_for_usage, read_body

SALT = b"0123456789abcdef"
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(
    ["model", "stream", "temperature", "n", "max_tokens", "messages", "prompt", "input", "stream_options", "seed", "x"]
)


def body(**told: object) -> bytes:
    return json.dumps(told).encode()


def test_model_stream_parameters_and_id_are_read() -> None:
    asked = read_body(
        body(
            model="llama",
            stream=True,
            temperature=0.5,
            top_p=1,
            max_completion_tokens=100,
            n=2,
            frequency_penalty=-0.5,
            inference_id="inf-1",
            messages=[],
        ),
        SALT,
    )
    assert (asked.model, asked.stream, asked.inference_id) == ("llama", True, "inf-1")
    assert asked.parameters == {
        "temperature": 0.5,
        "top_p": 1.0,
        "max_tokens": 100.0,
        "n": 2.0,
        "frequency_penalty": -0.5,
    }


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"1", b'"x"', b"{", b"\xff\xfe", b"[" * 100_000, b'{"model": "a"} {"model": "b"}']
)
def test_what_is_no_object_tells_nothing(data: bytes) -> None:
    assert read_body(data, SALT) == NOTHING


@pytest.mark.parametrize("value", ["1", None, [1], {"a": 1}, True, "x" * 10_000])
def test_a_parameter_that_is_no_number_is_none_and_the_others_are_there(value: object) -> None:
    asked = read_body(body(temperature=value, top_p=0.5, model="m"), SALT)
    assert (asked.parameters, asked.model) == ({"top_p": 0.5}, "m")


@pytest.mark.parametrize("text", [b"1e999", b"NaN", b"Infinity"])
def test_a_number_that_is_not_finite_is_none(text: bytes) -> None:
    assert read_body(b'{"temperature": ' + text + b"}", SALT).parameters == {}


def test_names_are_cut_and_those_that_are_no_texts_are_none() -> None:
    assert len(read_body(body(model="m" * 500), SALT).model) == 128
    assert read_body(body(model="m" * 100_000), SALT).model == ""
    assert read_body(body(model=["m"], inference_id=7), SALT) == read_body(body(), SALT)


def test_equal_prompts_have_equal_hashes_under_one_salt_alone() -> None:
    def hash_of(salt: bytes = SALT, **told: object) -> str:
        return read_body(body(**told), salt).prompt_hash

    first = hash_of(messages=[{"role": "user", "content": "hello"}], temperature=1)
    assert first == hash_of(model="other", messages=[{"role": "user", "content": "hello"}])
    assert first != hash_of(messages=[{"role": "user", "content": "hello!"}])
    assert first != hash_of(b"another salt....", messages=[{"role": "user", "content": "hello"}])
    assert hash_of(prompt="a", input="b") != hash_of(prompt="b", input="a")
    assert hash_of(prompt='a"') != hash_of(input='a"')
    assert hash_of(model="m") == ""
    assert len(first) == 16


@given(st.dictionaries(KEYS, JSON, max_size=8))
def test_any_object_is_read_or_tells_nothing(told: dict[str, object]) -> None:
    asked = read_body(body(**told), SALT)
    assert asked.stream is (told.get("stream") is True)
    if isinstance(told.get("model"), str):
        assert asked.model == told["model"]


@given(st.dictionaries(KEYS, JSON, max_size=8), st.sampled_from([None, 2]))
def test_asking_for_usage_adds_that_alone(told: dict[str, object], indent: int | None) -> None:
    told["stream"] = True
    data = json.dumps(told, indent=indent).encode() + b"\n"
    changed = asking_for_usage(data)
    if told.get("stream_options") is None:
        assert changed is not None
        assert json.loads(changed) == {**told, "stream_options": {"include_usage": True}}
    else:
        assert changed is None


@given(st.binary(max_size=100))
def test_what_is_no_request_is_never_changed(data: bytes) -> None:
    assert asking_for_usage(data) is None
