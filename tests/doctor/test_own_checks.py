"""Checks of gpumon's own needs, on surroundings made up for them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpumon.config import Config, DetectConfig, OtlpConfig, StateConfig
from gpumon.doctor.own_checks import own_checks
from gpumon.doctor.report import Check, Status
from gpumon.doctor.surroundings import Surroundings, gather, writing_fails_for
from tests.fakes import FakeFiles


def receivers(config: Config, around: Surroundings) -> dict[str, Check]:
    return {check.id: check for check in own_checks(config, FakeFiles({}), around) if check.id.startswith("otlp_")}


def test_a_receiver_whose_port_is_held_names_the_flag_that_moves_it() -> None:
    around = Surroundings(otlp_listen=(("grpc", "Address already in use"),))
    checks = receivers(Config(), around)
    assert checks["otlp_grpc"].status is Status.MISSING
    assert "--otlp-grpc" in checks["otlp_grpc"].fix
    assert checks["otlp_http"].status is Status.OK


def test_ports_held_by_a_gpumon_that_runs_already_are_no_problem() -> None:
    around = Surroundings(listen="Address already in use", already_running=True, otlp_listen=(("http", "in use"),))
    assert {check.status for check in receivers(Config(), around).values()} == {Status.OK}


@pytest.mark.parametrize("otlp", [OtlpConfig(enabled=False), OtlpConfig(grpc=None, http=None)])
def test_receivers_that_are_off_are_not_looked_at(otlp: OtlpConfig) -> None:
    assert receivers(Config(otlp=otlp), Surroundings()) == {}


def test_a_held_port_is_found_by_trying() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        config = Config(otlp=OtlpConfig(grpc=f"127.0.0.1:{port}", http="127.0.0.1:0"))
        around = gather(config, FakeFiles({}), {})
    assert [protocol for protocol, _ in around.otlp_listen] == ["grpc"]


def state_folder(config: Config, around: Surroundings) -> list[Check]:
    return [check for check in own_checks(config, FakeFiles({}), around) if check.id == "state_folder"]


def test_a_state_folder_that_cannot_be_written_to_degrades_and_says_what_is_lost() -> None:
    [check] = state_folder(Config(), Surroundings(state_folder="/var/lib: Permission denied"))
    assert check.status is Status.DEGRADED
    assert "/var/lib: Permission denied" in check.detail
    assert "StateDirectory" in check.fix


def test_without_detection_or_a_folder_there_is_nothing_to_check() -> None:
    around = Surroundings(state_folder="/var/lib: Permission denied")
    assert state_folder(Config(state=StateConfig(folder=None)), around) == []
    assert state_folder(Config(detect=DetectConfig(enabled=False)), around) == []


def test_a_state_folder_is_ok_where_it_could_be_made(tmp_path: Path) -> None:
    assert writing_fails_for(tmp_path / "deep" / "state") == ""
    (tmp_path / "file").touch()
    assert writing_fails_for(tmp_path / "file" / "state") == f"{tmp_path / 'file'} is no folder"
    assert not (tmp_path / "deep").exists()
