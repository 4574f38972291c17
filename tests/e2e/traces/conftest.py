"""gpumon with its receivers open, for all tests of a module or for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.daemon import FAST, Daemon
from tests.e2e.traces.gateway import OTLP, Gateway
from tests.stories import write_silent

Demo = Callable[..., Gateway]
"""``demo(options={...})``: a demo of its own that receives traces; ends with the test."""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with ExitStack() as stack:

        def begin(options: dict[str, str] | None = None) -> Gateway:
            folder = tmp_path / f"demo-{len(list(tmp_path.glob('demo-*')))}"
            folder.mkdir()
            silent = ("--scenario", str(write_silent(folder)))  # all traces are the test's own
            daemon = Daemon(folder, *silent, command="demo", options=FAST | OTLP | (options or {}))
            return Gateway(stack.enter_context(daemon))

        yield begin
