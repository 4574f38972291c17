"""plotly's JavaScript, as it comes out of its package."""

from __future__ import annotations

import importlib.resources

import pytest

from gpumon.plotly_js import plotly_js


def test_it_is_the_file_of_the_package() -> None:
    text = plotly_js()
    assert text == (importlib.resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    assert b"plotly.js v" in text[:100]


@pytest.mark.parametrize("package", ["json", "nothing_of_this_name"])
def test_a_package_that_is_not_there_or_has_none_brings_none(package: str) -> None:
    assert plotly_js(package) is None
