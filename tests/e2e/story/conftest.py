"""The story, told once for all tests, also where pytest-xdist shares them out among processes."""

from __future__ import annotations

import fcntl
import os
import pickle

import pytest

from tests.e2e.story.story import Outcome, tell


@pytest.fixture(scope="session")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Of the whole story: the first process that needs it tells it, the others wait for it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all processes of this run
    kept = shared / "story.pickle"
    with (shared / "story.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(tell(tmp_path_factory.mktemp("story"))))
    told = pickle.loads(kept.read_bytes())
    assert isinstance(told, Outcome)
    return told
