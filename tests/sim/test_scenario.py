from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.sim.faults import KINDS, Target
from gpumon.sim.scenario import Scenario, ScenarioError, Wave, load_scenario, parse_length, parse_scenario

FOLDER = Path(__file__).resolve().parent.parent / "scenarios"
DEMO = Path(__file__).resolve().parent.parent.parent / "gpumon" / "sim" / "demo.yaml"

GOOD = """\
name: good
duration_s: 100
node: {model: h100, gpus: 4, numa_nodes: 1}
servers:
  - name: a
    model: some/model
    gpus: [0, 1]
    parameters_b: 8
    kv_capacity_tokens: 100000
load:
  - server: a
    arrivals: {process: bursty, per_s: 2, wave: {amplitude: 0.5, period_s: 60}}
    prompts: {8k: 3, "1500": 1, 128k: 0.5}
    cached_share: 0.25
    outputs: {mean: 100, spread: 0.3}
    tenants: {acme: 2, globex: 1}
    parameters: {temperature: [0, 0.7], max_tokens: [128]}
    evaluations: {chat: 0.8}
faults:
  - {kind: thermal_throttle, at_s: 10, for_s: 20, gpu: 1}
  - {kind: tenant_flood, at_s: 40, for_s: 10, tenant: acme, strength: 3}
"""


def test_a_scenario_says_node_servers_load_and_faults() -> None:
    scenario = parse_scenario(GOOD)
    assert (scenario.node.model, scenario.node.gpus, scenario.node.numa_nodes) == ("h100", 4, 1)
    (server,) = scenario.servers
    assert (server.name, server.gpus, server.kind, server.active_b) == ("a", (0, 1), "vllm", 8)
    (load,) = scenario.load
    assert load.arrivals.wave == Wave(amplitude=0.5, period_s=60)
    assert load.lengths == {8192: 3, 1500: 1, 131_072: 0.5}
    assert list(load.parameters["temperature"]) == [0, 0.7]
    assert [fault.kind for fault in scenario.faults] == ["thermal_throttle", "tenant_flood"]


def test_a_fault_without_strength_has_the_usual_one_of_its_kind() -> None:
    first, second = parse_scenario(GOOD).faults
    assert first.strength == KINDS["thermal_throttle"].usual
    assert second.strength == 3


def test_a_node_may_stand_idle() -> None:
    scenario = parse_scenario("name: idle\nduration_s: 10\n")
    assert (scenario.servers, scenario.load, scenario.faults, scenario.repeat) == ((), (), (), False)


def test_a_mixture_of_experts_uses_an_eighth_of_its_parameters_unless_told() -> None:
    text = GOOD.replace("parameters_b: 8", "parameters_b: 80\n    experts: 64\n    kv_bytes_per_token: 1000")
    assert parse_scenario(text.replace("[0, 1]", "[0, 1, 2]")).servers[0].active_b == 10


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("name: good", "title: good", "name: Field required"),
        ("duration_s: 100", "duration_s: 0.5", ":2: duration_s: "),
        ("duration_s: 100", "duration_s: .nan", ":2: duration_s: "),
        ("duration_s: 100", "duration_s: yes", ":2: duration_s: "),
        ("model: h100", "model: b200", ":3: node.model: "),
        ("gpus: 4", "gpus: 9", ":3: node.gpus: "),
        ("numa_nodes: 1", "numa_nodes: 1, sockets: 2", ":3: node.sockets: "),
        ("name: a", "name: A/B", ":5: servers[0].name: "),
        ("parameters_b: 8", 'parameters_b: "8"', ":8: servers[0].parameters_b: "),
        ("parameters_b: 8", "parameters_b: 70", "servers[0]: weights and KV cache take"),
        ("parameters_b: 8", "parameters_b: 8\n    active_parameters_b: 9", "active_parameters_b is above parameters_b"),
        ("[0, 1]", "[0, 0]", "the same GPU stands twice"),
        ("[0, 1]", "[0, 4]", "servers[0].gpus: the node has GPUs 0 to 3"),
        ("[0, 1]", "[]", ":7: servers[0].gpus: "),
        ("server: a", "server: b", "load[0].server = 'b': there is no such server"),
        ("per_s: 2", "per_s: 0", ":12: load[0].arrivals.per_s: "),
        ("8k: 3", "8m: 3", ":13: load[0].prompts: '8m' is no length in tokens"),
        ("8k: 3", "8k: 0", ":13: load[0].prompts.8k: "),
        ("cached_share: 0.25", "cached_share: 1.5", ":14: load[0].cached_share: "),
        ("[128]", "[]", ":17: load[0].parameters.max_tokens: "),
        ("chat: 0.8", "chat: 8", ":18: load[0].evaluations.chat: "),
        ("thermal_throttle", "heat_wave", ":20: faults[0].kind: no such fault"),
        ("for_s: 20, gpu: 1", "for_s: 20, server: a", ":20: faults[0]: thermal_throttle strikes a GPU"),
        ("for_s: 20, gpu: 1", "for_s: 20", ":20: faults[0]: thermal_throttle strikes a GPU"),
        ("for_s: 20, gpu: 1", "for_s: 20, gpu: 7", "faults[0].gpu = 7: the node has GPUs 0 to 3"),
        ("for_s: 20, gpu: 1", "for_s: 95, gpu: 1", "faults[0]: ends after the story, at 105 s"),
        (
            "for_s: 20, gpu: 1",
            "for_s: 20, gpu: 1, strength: 1.5",
            ":20: faults[0]: strength = 1.5: expected 0.02 to 0.8",
        ),
        ("tenant: acme", "tenant: nobody", "faults[1].tenant = 'nobody': no load has such a tenant"),
        ("at_s: 10", "at_s: -1", ":20: faults[0].at_s: "),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_key(old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD.replace(old, new, 1), "file.yaml")
    assert complaint in str(caught.value)
    assert all(line.startswith("file.yaml:") for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("servers", "complaint"),
    [
        (
            "[{name: a, model: m, gpus: [0], parameters_b: 1}, {name: a, model: m, gpus: [1], parameters_b: 1}]",
            "a name",
        ),
        ("[{name: job, model: m, gpus: [0], parameters_b: 1}]", "not `job`"),
        (
            "[{name: a, model: m, gpus: [0], parameters_b: 1}, {name: b, model: m, gpus: [0], parameters_b: 1}]",
            "one server",
        ),
    ],
)
def test_servers_share_neither_names_nor_gpus(servers: str, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        parse_scenario(f"name: x\nduration_s: 10\nservers: {servers}\n")


def test_every_problem_is_named() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD.replace("per_s: 2", "per_s: 0").replace("mean: 100", "mean: 0"))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("text", ["", "[]", "name: [", "- 1", "name: *a", "name: x\nname: y\nduration_s: 5"])
def test_what_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        parse_scenario(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml"):
        load_scenario(tmp_path / "none.yaml")


@given(st.text(max_size=200))
def test_any_text_gives_a_scenario_or_the_one_error(text: str) -> None:
    try:
        scenario = parse_scenario(text)
    except ScenarioError:
        return
    assert isinstance(scenario, Scenario)


@given(
    st.dictionaries(
        st.sampled_from(["kind", "at_s", "for_s", "gpu", "server", "tenant", "strength", "color"]),
        st.one_of(st.sampled_from([*KINDS]), st.integers(), st.floats(), st.none(), st.text(max_size=5)),
    )
)
def test_any_fault_is_taken_whole_or_refused(fault: dict[str, object]) -> None:
    words = ", ".join(f"{key}: {value!r}" for key, value in fault.items())
    try:
        scenario = parse_scenario(GOOD[: GOOD.index("faults:")] + f"faults: [{{{words}}}]\n")
    except ScenarioError:
        return
    (taken,) = scenario.faults
    row = KINDS[taken.kind]
    assert row.low <= taken.strength <= row.high
    assert taken.at_s + taken.for_s <= scenario.duration_s
    assert [target for target in Target if getattr(taken, target, None) is not None] == (
        [] if row.target is Target.NODE else [row.target]
    )


@given(st.integers(1, 1024))
def test_lengths_are_tokens_or_kilotokens(length: int) -> None:
    assert parse_length(str(length)) == length
    assert parse_length(f"{length}k") == 1024 * length


@pytest.mark.parametrize("text", ["", "k", "0", "0k", "-1", "1.5k", "1025k", "1048577", "8K", "٣", "1 k", "99999999"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="length"):
        parse_length(text)


def test_all_scenarios_that_come_along_can_be_taken() -> None:
    paths = [DEMO, *sorted(FOLDER.glob("*.yaml"))]
    assert len(paths) > 10
    for path in paths:
        assert load_scenario(path).duration_s > 0


def test_the_demo_leaves_quiet_between_its_faults() -> None:
    scenario = load_scenario(DEMO)
    assert scenario.repeat
    assert scenario.duration_s == 300
    kinds = [fault.kind for fault in scenario.faults]
    assert kinds == [
        *("thermal_throttle", "context_jump", "page_faults", "numa_remote", "queue_surge", "straggler", "xid")
    ]
    # The page faults belong to the context jump; all others stand alone.
    alone = [fault for fault in scenario.faults if fault.kind != "page_faults"]
    assert alone[0].at_s >= 40
    for before, after in pairwise(alone):
        assert after.at_s - (before.at_s + before.for_s) >= 15
    assert alone[-1].at_s + 20 <= scenario.duration_s
