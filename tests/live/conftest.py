"""The story, told once for all tests: of several workers by the one that comes first."""

from __future__ import annotations

import pickle

import pytest

from tests.live.alone import alone, disk_folder
from tests.live.story import CAUSES, Story, tell
from tests.live.summary import summary


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """What happened, and what gpumon said of it."""
    with alone(tmp_path_factory) as shared:
        kept = shared / "live-story.pickle"
        if not kept.exists():
            with disk_folder() as folder:
                told = tell(folder)
            print(summary(told))
            kept.write_bytes(pickle.dumps(told))
        found = pickle.loads(kept.read_bytes())
    assert isinstance(found, Story)
    return found


@pytest.fixture(params=CAUSES)
def fault(story: Story, request: pytest.FixtureRequest) -> str:
    """Each fault that was done."""
    name = str(request.param)
    if name in story.forbidden:
        pytest.skip(f"this user may not do the fault {name}: {story.forbidden[name]}")
    return name
