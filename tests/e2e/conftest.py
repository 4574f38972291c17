"""What the end-to-end tests share: a fake node, and gpumon on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.e2e.daemon import FAST, Daemon
from tests.fakenvml.controller import FakeNode


class Start(Protocol):
    """``start(node, *arguments, options={...})``: gpumon on the node, with quick slow passes."""

    def __call__(
        self, node: FakeNode, *arguments: str, options: dict[str, str] | None = None, **more: Any
    ) -> Daemon: ...


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """Eight H200; whatever hangs in it is let go at the end."""
    with FakeNode.create(tmp_path / "node", profile="h200", count=8) as fake:
        yield fake


@pytest.fixture
def start(tmp_path: Path, node: FakeNode) -> Iterator[Start]:
    """Starts any number of them, which end with the test."""
    with ExitStack() as stack:

        def begin(node: FakeNode, *arguments: str, options: dict[str, str] | None = None, **more: Any) -> Daemon:
            folder = tmp_path / f"gpumon-{len(list(tmp_path.glob('gpumon-*')))}"
            folder.mkdir()
            daemon = Daemon(folder, *arguments, env=node.env(), options=FAST | (options or {}), **more)
            return stack.enter_context(daemon)

        yield begin
        node.close()  # what hangs in the driver is let go before gpumon is asked to end
