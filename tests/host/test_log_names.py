"""Names in the kubelet's log folders: listed, bounded, and why they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumon.host import log_names
from gpumon.host.files import ReadError
from gpumon.host.log_names import CONTAINERS, PODS, LogFolder
from gpumon.model import Reason


def test_names_are_those_of_the_folder_links_that_lead_nowhere_among_them(tmp_path: Path) -> None:
    (tmp_path / "pods" / "serving_vllm-0_uid").mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / "vllm-0_serving_server-1.log").symlink_to(tmp_path / "gone")
    folder = LogFolder(str(tmp_path))
    assert folder.names(PODS) == ["serving_vllm-0_uid"]
    assert folder.names(CONTAINERS) == ["vllm-0_serving_server-1.log"]


def test_a_folder_is_there_with_either_of_the_two(tmp_path: Path) -> None:
    assert not LogFolder(str(tmp_path)).is_there
    assert not LogFolder(str(tmp_path / "nowhere")).is_there
    (tmp_path / "containers").mkdir()
    assert LogFolder(str(tmp_path)).is_there


def test_a_folder_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ReadError) as caught:
        LogFolder(str(tmp_path)).names(PODS)
    assert caught.value.reason is Reason.UNAVAILABLE


def test_more_names_than_any_node_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_names, "MAX_NAMES", 3)
    for number in range(4):
        (tmp_path / "pods" / str(number)).mkdir(parents=True)
    with pytest.raises(ReadError) as caught:
        LogFolder(str(tmp_path)).names(PODS)
    assert caught.value.reason is Reason.MALFORMED
