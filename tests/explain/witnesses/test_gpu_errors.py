"""Signs of errors that end work on a GPU, of GPUs that are gone, and of servers that start anew."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpumon import catalogue as c
from gpumon.explain.signs import Sign
from gpumon.explain.witnesses.gpu_errors import GpuErrors
from gpumon.model import RequestRecord
from tests.detect.requests import request
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.gpu_incidents import gpu_incident
from tests.explain.witnesses.looks import Looks

KEY = ("gpu", gpu()[1])
SERVER = ("41403", "VLLM::Worker_TP")
NEXT = ("41427", "VLLM::Worker_TP")
NAMELESS = ("41403", "")


class Node:
    """One GPU and what holds it, told every second."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.looks = Looks(GpuErrors())
        self.put(present=1.0, busy=0.9, holder=SERVER)
        self.state("running")
        self.stage.put({(c.GPU_XID_ERRORS, (*gpu(), xid)): 0.0 for xid in ("31", "63", "94")})
        self.stage.put({(c.HOST_OOM_KILLS, ()): 0.0})

    def put(
        self,
        *,
        present: float | None = None,
        busy: float | None = None,
        holder: tuple[str, str] | None = None,
        used: float = 120e9,
    ) -> None:
        if present is not None:
            self.stage.put({(c.GPU_PRESENT, gpu()): present})
        if busy is not None:
            self.stage.put({(c.GPU_UTILIZATION, gpu()): busy})
        if holder is not None:
            self.stage.drop(c.PROCESS_GPU_MEMORY)
            self.stage.put({(c.PROCESS_GPU_MEMORY, (*gpu(), *holder, "", "", "")): used})

    def state(self, state: str, error: str = "") -> None:
        self.stage.drop(c.NVML_STATE, c.NVML_ERROR)
        self.stage.put({(c.NVML_STATE, (state,)): 1.0})
        if error:
            self.stage.put({(c.NVML_ERROR, (error,)): 1.0})

    def xid(self, number: str) -> None:
        self.stage.grow({(c.GPU_XID_ERRORS, (*gpu(), number)): 1.0})

    def run(self, seconds: int, requests: Sequence[RequestRecord] = ()) -> list[Sign]:
        for _ in range(seconds):
            self.looks.step(self.stage.step(requests=requests))
        return self.looks.take()


def serving() -> Node:
    node = Node()
    assert node.run(20) == []
    return node


def evidences(signs: Sequence[Sign]) -> list[float]:
    assert {sign.key for sign in signs} <= {KEY}
    assert {sign.cap for sign in signs} <= {1.0}
    return [sign.evidence for sign in signs]


def test_an_xid_that_ends_the_process_lasts_until_another_serves() -> None:
    node = serving()
    began_s = node.stage.at_s
    node.xid("31")
    node.put(busy=0.0, holder=NAMELESS)
    signs = node.run(1)
    assert evidences(signs) == [0.9]
    assert (signs[0].start_s, signs[0].end_s) == (began_s, began_s + 1.0)
    assert signs[0].fact is not None
    assert (signs[0].fact.name, signs[0].fact.observed) == ("xid", 31.0)
    node.stage.drop(c.PROCESS_GPU_MEMORY)
    assert evidences(node.run(5)) == [0.9] * 5
    node.put(busy=0.05, holder=NEXT, used=5e9)  # loading weights
    assert evidences(node.run(10)) == [0.9] * 10
    node.put(busy=0.85)
    assert evidences(node.run(10)) == [0.9]


def test_an_xid_that_stops_the_work_of_a_process_that_stays_is_one() -> None:
    node = serving()
    node.xid("94")
    assert evidences(node.run(1)) == [0.5]
    node.put(busy=0.0)
    assert evidences(node.run(10)) == [0.9] * 10
    node.put(busy=0.9)
    node.run(1)
    assert node.run(5) == []


def test_an_xid_that_changes_nothing_is_soon_forgotten() -> None:
    node = serving()
    node.xid("31")
    assert evidences(node.run(10)) == [0.5] * 4


@pytest.mark.parametrize("number", ["63", "64", "92", "bogus"])
def test_xids_that_touch_no_work_are_none(number: str) -> None:
    node = serving()
    node.xid(number)
    assert node.run(5) == []


def test_an_uncommon_xid_is_born_with_its_first_error() -> None:
    node = serving()
    node.xid("137")
    assert evidences(node.run(1)) == [0.5]


def test_what_was_counted_before_is_no_sign() -> None:
    node = Node()
    node.stage.put({(c.GPU_XID_ERRORS, (*gpu(), "31")): 7.0})
    assert node.run(10) == []


def test_a_process_that_is_replaced_without_an_error_is_a_restart_from_when_it_was_last_seen() -> None:
    node = serving()
    seen_s = node.stage.at_s
    node.stage.silent = {"stage"}
    node.run(2)
    node.stage.silent = set()
    node.put(busy=0.02, holder=NEXT, used=3e9)
    signs = node.run(3)
    assert evidences(signs) == [0.9] * 3
    assert signs[0].start_s == seen_s
    node.put(busy=0.9)
    assert evidences(node.run(5)) == [0.9]


def test_a_request_that_had_its_first_token_since_ends_it() -> None:
    node = serving()
    node.put(busy=0.02, holder=NEXT)
    node.run(5)
    early = request(node.stage.at_s - 20.0, first_s=1.0, gpus=[gpu()[1]], end_s=node.stage.at_s)
    assert evidences(node.run(2, [early])) == [0.9] * 2
    served = request(node.stage.at_s - 1.0, first_s=0.5, gpus=[gpu()[1]], end_s=node.stage.at_s)
    assert evidences(node.run(5, [served])) == [0.9]


def test_a_gpu_that_is_lost_is_one_until_it_serves_again() -> None:
    node = serving()
    node.put(present=0.0)
    node.stage.drop(c.GPU_UTILIZATION, c.PROCESS_GPU_MEMORY)
    assert evidences(node.run(10)) == [1.0] * 10
    node.put(present=1.0, busy=0.0)
    assert evidences(node.run(5)) == [1.0] * 5
    node.put(busy=0.9, holder=NEXT)
    assert evidences(node.run(5)) == [1.0]


@pytest.mark.parametrize(
    ("state", "error", "evidence"),
    [
        ("unavailable", "DRIVER_NOT_LOADED", 0.8),
        ("stuck", "", 0.8),
        ("unavailable", "LIB_RM_VERSION_MISMATCH", None),
        ("released", "", None),
        ("starting", "", None),
    ],
)
def test_a_driver_that_is_gone_is_one_but_not_where_work_goes_on(
    state: str, error: str, evidence: float | None
) -> None:
    node = serving()
    node.state(state, error)
    node.put(present=0.0)
    node.stage.drop(c.GPU_UTILIZATION, c.PROCESS_GPU_MEMORY)
    assert evidences(node.run(5)) == ([] if evidence is None else [evidence] * 5)


def test_a_process_killed_for_memory_is_another_cause() -> None:
    node = serving()
    node.stage.grow({(c.HOST_OOM_KILLS, ()): 1.0})
    node.put(busy=0.0, holder=NAMELESS)
    assert max(evidences(node.run(10))) < 0.2


def test_processes_that_are_not_told_for_a_while_have_not_ended() -> None:
    node = serving()
    node.stage.drop(c.PROCESS_GPU_MEMORY)
    assert node.run(10) == []
    node.put(holder=SERVER)
    assert node.run(10) == []


def test_a_small_neighbour_that_comes_and_goes_is_none() -> None:
    node = serving()
    job = (c.PROCESS_GPU_MEMORY, (*gpu(), "61000", "python3", "", "", ""))
    node.stage.put({job: 6e9})
    assert node.run(5) == []
    node.put(holder=SERVER)
    assert node.run(5) == []


def test_without_process_names_the_pid_tells() -> None:
    node = Node()
    node.put(holder=("41403", ""))
    assert node.run(20) == []
    node.put(busy=0.0, holder=("41427", ""))
    assert evidences(node.run(2)) == [0.9] * 2


def test_where_nobody_tells_how_busy_it_is_the_process_does() -> None:
    node = Node()
    node.stage.drop(c.GPU_UTILIZATION)
    assert node.run(20) == []
    node.put(holder=NEXT)
    assert evidences(node.run(5)) == [0.9]


def test_a_server_that_does_not_come_back_is_given_up() -> None:
    node = serving()
    node.put(busy=0.0, holder=NAMELESS)
    signs = node.run(700)
    assert 590 <= len(signs) <= 610


def test_an_open_incident_makes_an_xid_sure() -> None:
    node = serving()
    node.looks.incidents = [gpu_incident("xid")]
    node.xid("31")
    assert evidences(node.run(1)) == [0.8]
    node.run(10)
    assert node.run(5) == []


@pytest.mark.parametrize("value", [-1.0, 1e300])
def test_impossible_figures_do_no_harm(value: float) -> None:
    node = serving()
    node.stage.put({(c.GPU_XID_ERRORS, (*gpu(), "9" * 400)): value, (c.GPU_XID_ERRORS, (*gpu(), "-1")): value})
    node.put(present=value, busy=value, holder=("", ""), used=value)
    node.run(5)
    node.put(present=1.0, busy=0.9, holder=SERVER)
    node.run(20)


def test_gpus_that_come_and_go_are_forgotten() -> None:
    stage, witness = Stage(), GpuErrors()
    for index in range(300):
        stage.drop(c.GPU_PRESENT)
        stage.put({(c.GPU_PRESENT, gpu(index)): 1.0})
        list(witness.look(stage.step(), ()))
    assert len(witness._gpus) <= 64
