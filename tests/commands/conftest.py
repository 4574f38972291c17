"""What tests of several commands share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.command_line import App
from tests.recorded import Studio
from tests.stories import write_story


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    import gpumon

    app = App()
    monkeypatch.setitem(sys.modules, "gpumon.app", app)
    monkeypatch.setattr(gpumon, "app", app, raising=False)
    return app


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of twelve seconds."""
    folder = tmp_path_factory.mktemp("cli")
    studio = Studio(folder / "quick.rec", write_story(folder))
    studio.advance(12)
    studio.close()
    return folder / "quick.rec"
