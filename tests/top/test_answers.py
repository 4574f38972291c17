"""What is read of answers: names that the API has, and whatever an older or newer daemon leaves out or adds."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gpumon.explain.diagnosis import model
from gpumon.top import answers
from gpumon.web import gpus, incidents, node_state, servers
from tests.top.answered import answers as recorded

PAIRS: list[tuple[type[BaseModel], type[BaseModel]]] = [
    (answers.Node, node_state.Node),
    (answers.Nvml, node_state.Nvml),
    (answers.GpuCount, node_state.GpuCount),
    (answers.Source, node_state.SourceHealth),
    (answers.Gpus, gpus.Gpus),
    (answers.Gpu, gpus.Gpu),
    (answers.OpenIncident, gpus.OpenIncident),
    (answers.GpuProcess, gpus.GpuProcess),
    (answers.Mig, gpus.Mig),
    (answers.Servers, servers.Servers),
    (answers.Server, servers.Server),
    (answers.Latency, servers.Latency),
    (answers.Page, servers.Page),
    (answers.ServerGpu, servers.ServerGpu),
    (answers.Incident, incidents.Incident),
    (answers.Entity, incidents.Entity),
    (answers.Lost, model.Diagnosis),
    (answers.CauseLost, model.CauseLost),
]


@pytest.mark.parametrize(("read", "told"), PAIRS)
def test_every_field_that_is_read_is_told_by_the_api(read: type[BaseModel], told: type[BaseModel]) -> None:
    assert set(read.model_fields) <= set(told.model_fields)


def test_what_a_newer_daemon_adds_is_not_minded() -> None:
    said = recorded()
    said["gpus"]["gpus"][0]["flux"] = {"capacitor": 88}
    assert answers.Gpus.model_validate(said["gpus"]).gpus[0].gpu == "0"


def test_what_an_older_daemon_does_not_tell_is_not_known() -> None:
    gpu = answers.Gpus.model_validate({"at": 1.0, "gpus": [{"gpu": "0", "uuid": "GPU-1"}]}).gpus[0]
    assert gpu.sm_active is None
    assert gpu.throttled_by is None
    server = answers.Servers.model_validate({"at": 1.0, "servers": [{"server": "vllm", "model": ""}]}).servers[0]
    assert server.inter_token.p99_seconds is None


@pytest.mark.parametrize("wrong", [{"at": "soon"}, {"gpus": {}}, {"gpus": [{"gpu": 0}]}, {"at": float("nan")}])
def test_what_is_malformed_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        answers.Gpus.model_validate({"at": 1.0, "gpus": []} | wrong)
