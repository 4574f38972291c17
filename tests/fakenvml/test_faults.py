"""The fake library misbehaving on purpose: rules, hangs, losses, events, the log, misuse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakenvml import build
from tests.fakenvml.child import Child, RaisedError
from tests.fakenvml.controller import FakeNode

POWER = "pynvml.nvmlDeviceGetPowerUsage(h[{}])"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode.create(tmp_path / "node", "h100", 3, clock="stepped") as created:
        yield created


@pytest.fixture
def child(node: FakeNode) -> Iterator[Child]:
    with Child(node) as opened:
        yield opened
        node.close()  # before the child is waited for: nothing may hang in it


# ---- rules ----


def test_code_for_a_range_of_calls_on_one_gpu(node: FakeNode, child: Child) -> None:
    child(POWER.format(1))
    node.fail("nvmlDeviceGetPowerUsage", 999, gpu=1, from_call=2, to_call=3)
    assert [child.code(POWER.format(1)) for _ in range(5)] == [0, 999, 999, 0, 0]
    assert child.code(POWER.format(0)) == 0
    assert node.calls("nvmlDeviceGetPowerUsage", 1) == 6
    assert node.calls("nvmlDeviceGetPowerUsage") == 7
    assert node.all_calls()["nvmlDeviceGetPowerUsage"] == 7


def test_every_function_can_be_made_to_fail(node: FakeNode, child: Child) -> None:
    special = {"nvmlErrorString"}  # answers a string
    names = [n for n in build.function_names() if n not in special and not n.startswith("nvmlInit")]
    for name in names:
        node.fail(name, 4)
    # Arguments that are read before the rule applies must be readable; the others never are.
    child("lib = pynvml.nvmlLib; readable = ctypes.create_string_buffer(64); own = {}")
    child("own['nvmlGpmMetricsGet'] = readable")
    child("for how in ('UUID', 'Serial', 'PciBusId_v2'): own[f'nvmlDeviceGetHandleBy{how}'] = b'x'")
    call = "getattr(lib, n)(own.get(n, h[0]), None, None, None)"
    codes = child(f"{{n: {call} for n in {names!r}}}")
    assert {name: code for name, code in codes.items() if code != 4} == {}
    node.clear_rules()
    assert child.code(POWER.format(0)) == 0


def test_stubs_are_counted_and_not_supported(node: FakeNode, child: Child) -> None:
    assert child.code("pynvml.nvmlDeviceGetGspFirmwareMode(h[0])") == 3
    assert node.calls("nvmlDeviceGetGspFirmwareMode", 0) == 1


def test_more_rules_than_slots_is_an_error_but_used_up_ones_do_not_count(
    node: FakeNode, child: Child
) -> None:
    for _ in range(6):
        node.fail("nvmlDeviceGetPowerUsage", 10, gpu=0, to_call=1)
        assert child.code(POWER.format(0)) == 10
    for _ in range(4):
        node.fail("nvmlDeviceGetPowerUsage", 10, gpu=0)
    with pytest.raises(ValueError, match="more than 4 rules"):
        node.fail("nvmlDeviceGetPowerUsage", 10, gpu=0)
    with pytest.raises(KeyError):
        node.fail("nvmlDeviceGetNothing", 3)


def test_unsupported_outlives_cleared_rules(node: FakeNode, child: Child) -> None:
    node.unsupported("nvmlDeviceGetPowerUsage", gpu=0)
    node.clear_rules()
    assert child.code(POWER.format(0)) == 3
    node.unsupported("nvmlDeviceGetPowerUsage", gpu=0, code=0)
    assert child.code(POWER.format(0)) == 0


def test_delay_is_logged_latency(node: FakeNode, child: Child) -> None:
    node.log_calls()
    node.delay("nvmlDeviceGetPowerUsage", 3000, gpu=2)
    child(POWER.format(2))
    child(POWER.format(1))
    child("pynvml.nvmlDeviceGetPcieThroughput(h[0], 0)")
    latency = {(call.function, call.gpu): call.latency_ns for call in node.log()}
    assert latency["nvmlDeviceGetPowerUsage", 2] >= 3_000_000
    assert latency["nvmlDeviceGetPowerUsage", 1] < latency["nvmlDeviceGetPowerUsage", 2]
    assert latency["nvmlDeviceGetPcieThroughput", 0] >= 20_000_000


def test_serialised_delays_queue_up(node: FakeNode, child: Child) -> None:
    node.log_calls()
    node.serialise()
    node.delay("nvmlDeviceGetPowerUsage", 2000)
    child(
        "ts = [threading.Thread(target=pynvml.nvmlDeviceGetPowerUsage, args=(x,)) for x in h]\n"
        "for t in ts: t.start()\n"
        "for t in ts: t.join()"
    )
    ends = sorted(call.end_ns for call in node.log())
    assert all(later - sooner >= 1_900_000 for sooner, later in itertools.pairwise(ends))
    assert len({call.tid for call in node.log()}) == 3


def test_hang_until_released(node: FakeNode, child: Child) -> None:
    fn = "nvmlDeviceGetUtilizationRates"
    node.gpu(1).hang(fn)
    child.send("pynvml.nvmlDeviceGetUtilizationRates(h[1]).gpu")
    node.wait_until(lambda: node.hanging(fn) == 1)
    assert node.gpu(1).hanging(fn) == 1
    node.release(fn)
    assert child.answer() == 0
    assert node.hanging(fn) == 0


def test_closing_the_node_releases_everything(node: FakeNode, child: Child) -> None:
    node.hang("nvmlShutdown")
    child.send("pynvml.nvmlShutdown()")
    node.wait_until(lambda: node.hanging("nvmlShutdown") == 1)
    node.close()
    child.answer()


# ---- life cycle ----


def test_lost_gpu_fails_alone_and_comes_back(node: FakeNode, child: Child) -> None:
    node.gpu(1).lose()
    assert child("pynvml.nvmlDeviceGetCount()") == 3
    uuid = node.gpu(1).uuid
    for call in (
        POWER.format(1), "pynvml.nvmlDeviceGetHandleByIndex(1)", "pynvml.nvmlDeviceGetUUID(h[1])",
        f"pynvml.nvmlDeviceGetHandleByUUID({uuid!r})",
        f"pynvml.nvmlDeviceGetHandleByPciBusId({node.gpu(1).bus_id!r})",
        "pynvml.nvmlDeviceGetFieldValues(h[1], [83])", "pynvml.nvmlDeviceGetMinorNumber(h[1])",
    ):  # fmt: skip
        assert child.code(call) == 15, call
    assert child.code(POWER.format(0)) == 0
    node.gpu(1).recover(reset_counters=True)
    assert child.code(POWER.format(1)) == 0
    assert child("pynvml.nvmlDeviceGetTotalEnergyConsumption(h[1])") == 0


def test_init_fails_and_then_works(node: FakeNode) -> None:
    node.fail_init(2, 9)
    with Child(node, init=False) as fresh:
        assert [fresh.code("pynvml.nvmlInit()") for _ in range(3)] == [9, 9, 0]
        assert node.live().inits == 1
        fresh("pynvml.nvmlShutdown()")
        assert fresh.code("pynvml.nvmlShutdown()") == 1
    assert node.live().inits == 0


def test_other_ways_to_initialise(node: FakeNode) -> None:
    with Child(node, init=False) as fresh:
        fresh("pynvml.nvmlInitWithFlags(1)")
        assert fresh("[pynvml.nvmlLib.nvmlInit_v2(), pynvml.nvmlLib.nvmlInit()]") == [0, 0]
        assert fresh("[pynvml.nvmlLib.nvmlShutdown() for _ in range(4)]") == [0, 0, 0, 1]


def test_driver_unloaded_and_reloaded(node: FakeNode, child: Child) -> None:
    node.unload_driver()
    assert child.code(POWER.format(0)) == 9
    child("pynvml.nvmlShutdown()")
    assert child.code("pynvml.nvmlInit()") == 9
    node.reload_driver()
    child("pynvml.nvmlInit()")
    assert child.code(POWER.format(0)) == 2
    child("h = open_all()")
    assert child("pynvml.nvmlDeviceGetTotalEnergyConsumption(h[0])") == 0


@pytest.mark.parametrize("code", [18, 999, 1])
def test_everything_breaks_from_a_point_on(node: FakeNode, child: Child, code: int) -> None:
    node.break_everything(code, after_calls=2)
    assert [child.code(POWER.format(0)) for _ in range(3)] == [0, 0, code]
    assert child.code("pynvml.nvmlDeviceGetCount()") == code
    child("pynvml.nvmlShutdown()")
    assert child.code("pynvml.nvmlInit()") == code
    node.heal()
    assert child.code("pynvml.nvmlInit()") == 0


def test_one_function_may_be_spared(node: FakeNode, child: Child) -> None:
    node.fail("nvmlDeviceGetPowerUsage", 0)
    node.break_everything(999)
    assert child.code(POWER.format(0)) == 0
    assert child.code("pynvml.nvmlDeviceGetName(h[0])") == 999


def test_frozen_gpu_repeats_itself(node: FakeNode, child: Child) -> None:
    field = "pynvml.nvmlDeviceGetFieldValues(h[{}], [83])[0]"
    read = f"(lambda v: [v.timestamp, v.value.ullVal])({field})"
    before = [child(read.format(i)) for i in (0, 1)]
    node.gpu(0).freeze()
    node.step(5)
    after = [child(read.format(i)) for i in (0, 1)]
    assert after[0] == before[0]
    assert after[1][0] == before[1][0] + 5_000_000
    node.gpu(0).thaw()
    assert child(read.format(0))[0] == before[0][0] + 5_000_000


# ---- events ----

REGISTER = """
s = pynvml.nvmlEventSetCreate()
for x in h: pynvml.nvmlDeviceRegisterEvents(x, 8, s)
def wait(ms):
    e = pynvml.nvmlEventSetWait_v2(s, ms)
    at = [ctypes.cast(x, ctypes.c_void_p).value for x in h]
    return [at.index(ctypes.cast(e.device, ctypes.c_void_p).value), e.eventType, e.eventData,
            e.gpuInstanceId]
"""
LONG_MS = 60_000


def test_only_events_after_registration_arrive_in_order(node: FakeNode, child: Child) -> None:
    node.gpu(0).push_xid(13)
    child(REGISTER)
    assert child.code("wait(0)") == 10
    node.gpu(2).push_xid(79)
    node.gpu(0).push_event(1, 5)  # a type nobody registered
    node.gpu(0).push_event(8, 31, gpu_instance=4)
    assert child("wait(0)") == [2, 8, 79, 2**32 - 1]
    assert child("wait(0)") == [0, 8, 31, 4]
    assert child.code("wait(0)") == 10


def test_a_blocked_wait_is_woken(node: FakeNode, child: Child) -> None:
    child(REGISTER)
    child.send(f"wait({LONG_MS})")
    node.wait_until(lambda: node.live().waiters == 1)
    node.gpu(1).push_xid(48)
    assert child.answer() == [1, 8, 48, 2**32 - 1]


def test_wait_may_return_early(node: FakeNode, child: Child) -> None:
    child(REGISTER)
    child.send(f"pynvml.nvmlEventSetWait_v2(s, {LONG_MS})")
    node.wait_until(lambda: node.live().waiters == 1)
    node.wake_waiters()
    with pytest.raises(RaisedError, match="10"):
        child.answer()


def test_lost_gpu_makes_the_wait_spin_after_its_last_event(node: FakeNode, child: Child) -> None:
    child(REGISTER)
    node.gpu(1).push_xid(79)
    node.gpu(1).lose()
    assert child("wait(0)")[2] == 79
    assert [child.code(f"wait({LONG_MS})") for _ in range(3)] == [15] * 3
    child("pynvml.nvmlEventSetFree(s); s = pynvml.nvmlEventSetCreate()")
    child("[pynvml.nvmlDeviceRegisterEvents(h[i], 8, s) for i in (0, 2)] and None")
    assert child.code("wait(0)") == 10


def test_registering_what_is_not_supported(node: FakeNode, child: Child) -> None:
    child("s = pynvml.nvmlEventSetCreate()")
    types = child("pynvml.nvmlDeviceGetSupportedEventTypes(h[0])")
    assert types & 8
    assert child.code(f"pynvml.nvmlDeviceRegisterEvents(h[0], {1 << 40}, s)") == 3
    node.gpu(0).fail("nvmlDeviceRegisterEvents", 999)
    assert child.code("pynvml.nvmlDeviceRegisterEvents(h[0], 8, s)") == 999
    assert child.code("pynvml.nvmlDeviceRegisterEvents(h[1], 8, s)") == 0


# ---- the log and misuse ----


def test_log_names_caller_device_and_result(node: FakeNode, child: Child) -> None:
    node.log_calls()
    pid = child("__import__('os').getpid()")
    child(POWER.format(2))
    node.fail("nvmlDeviceGetPowerUsage", 999, gpu=0)
    child.code(POWER.format(0))
    first, second = [c for c in node.log() if c.function == "nvmlDeviceGetPowerUsage"]
    assert (first.gpu, first.rc, first.pid) == (2, 0, pid)
    assert (second.gpu, second.rc) == (0, 999)
    node.forget_log()
    assert node.log() == []


def test_calls_before_init_and_after_shutdown_are_noticed(node: FakeNode) -> None:
    with Child(node, init=False) as fresh:
        assert fresh.code("pynvml.nvmlInit() or pynvml.nvmlShutdown()") == 0
        assert fresh.code("pynvml.nvmlDeviceGetCount()") == 1
    assert node.misuse().call_after_shutdown == 1


def test_freeing_a_set_under_a_waiter_is_noticed(node: FakeNode, child: Child) -> None:
    child(REGISTER)
    node.log_calls()
    child(
        "def bg():\n"
        "    try: wait(60000)\n"
        "    except pynvml.NVMLError: pass\n"
        "t = threading.Thread(target=bg); t.start()"
    )
    node.wait_until(lambda: node.live().waiters == 1)
    child("pynvml.nvmlEventSetFree(s)")
    node.scenario.wake()
    child("t.join()")
    assert node.misuse().set_freed_while_waiting == 1
    calls = {call.function: call for call in node.log()}
    free, wait = calls["nvmlEventSetFree"], calls["nvmlEventSetWait_v2"]
    assert wait.start_ns < free.start_ns < wait.end_ns


def test_a_tidy_program_leaves_no_trace(node: FakeNode, child: Child) -> None:
    child(REGISTER)
    child("g = pynvml.nvmlGpmSampleAlloc(); pynvml.nvmlGpmSampleGet(h[0], g)")
    assert (node.live().event_sets, node.live().gpm_samples) == (1, 1)
    child("pynvml.nvmlGpmSampleFree(g); pynvml.nvmlEventSetFree(s); pynvml.nvmlShutdown()")
    misuse = node.misuse()
    assert not any(getattr(misuse, name) for name in misuse.__dataclass_fields__)
