"""From processes to pods: by log folders, by the API server, by nothing else; right names, or none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.files import ReadError
from gpumon.model import GpuUuid, Miss, Pid, Reason
from gpumon.sources.cgroup import Identity, identify
from gpumon.sources.kube_names import ContainerName, Names, PodName
from gpumon.sources.pod_names import PodNames
from gpumon.sources.procfs import parse_cgroup
from gpumon.sources.targets import Occupant, Workload
from tests.sources.cgroup_paths import LAYOUTS, cgroup

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
UID = "1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"
OTHER_UID = "2f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"
ID, OTHER_ID = "a" * 63 + "1", "b" * 63 + "2"
VLLM = Workload("serving", "vllm-0", "server")


class Folder:
    """``LogNames``."""

    def __init__(self, pods: Sequence[str] = (), containers: Sequence[str] = ()) -> None:
        self.pods = list(pods)
        self.containers = list(containers)
        self.denied = False
        self.listed = 0

    def names(self, folder: str) -> list[str]:
        self.listed += 1
        if self.denied:
            raise ReadError(folder, Reason.DENIED, "as told")
        return self.pods if folder == "pods" else self.containers


def occupant(*gpus: GpuUuid, uid: str | None = UID, id_: str | None = ID, pid: int = 7) -> Occupant:
    return Occupant(Pid(pid, 10_000), Identity(id_, uid), gpus)


def names(folder: Folder | None = None, told: Names | None = None) -> PodNames:
    return PodNames(folder, lambda: told)


def after_a_look(source: PodNames, *occupants: Occupant, at_s: float = 1000.0) -> list[Workload | None]:
    source.lookup(occupants)
    assert list(source.read(at_s)) == []
    return source.lookup(occupants)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_runtimes_containers_have_the_names_in_the_log_folders(layout: str) -> None:
    folder = Folder(
        [f"serving_vllm-0_{UID}", f"other_x_{OTHER_UID}"],
        [f"vllm-0_serving_server-{ID}.log", f"x_other_y-{OTHER_ID}.log"],
    )
    identity = identify(parse_cgroup(cgroup(layout, UID, ID)))
    assert (identity.container_id, identity.pod_uid) == (ID, UID)
    process = Occupant(Pid(7, 1), identity, (A,))
    assert after_a_look(names(folder), process) == [VLLM]


def test_a_pod_without_its_containers_log_has_no_containers_name() -> None:
    assert after_a_look(names(Folder([f"serving_vllm-0_{UID}"])), occupant(A)) == [Workload("serving", "vllm-0")]


def test_a_containers_log_names_its_pod_too() -> None:
    assert after_a_look(names(Folder([], [f"vllm-0_serving_server-{ID}.log"])), occupant(A)) == [VLLM]


def test_a_container_is_nobodys_where_the_path_names_no_pod() -> None:
    folder = Folder([f"serving_vllm-0_{UID}"], [f"vllm-0_serving_server-{ID}.log"])
    assert after_a_look(names(folder), occupant(A), occupant(A, uid=None, pid=8)) == [VLLM, None]


def test_a_container_whose_log_names_another_pod_than_its_uid_has_no_name_of_its_own() -> None:
    folder = Folder([f"serving_vllm-0_{UID}"], [f"vllm-1_serving_server-{ID}.log"])
    assert after_a_look(names(folder), occupant(A)) == [Workload("serving", "vllm-0")]


def test_the_api_server_is_trusted_before_the_folders() -> None:
    told = Names({UID: PodName("serving", "from-api")}, {ID: ContainerName(PodName("serving", "from-api"), "c")})
    folder = Folder([f"serving_from-folder_{UID}"])
    assert after_a_look(names(folder, told), occupant(A)) == [Workload("serving", "from-api", "c")]
    assert after_a_look(names(folder), occupant(A)) == [Workload("serving", "from-folder")]


def test_who_was_not_looked_for_yet_has_no_name_and_gets_it_at_the_next_look() -> None:
    source = names(Folder([f"serving_vllm-0_{UID}"], [f"vllm-0_serving_server-{ID}.log"]))
    assert source.lookup([occupant(A)]) == [None]
    assert after_a_look(source, occupant(A)) == [VLLM]


def test_an_init_and_a_debug_container_have_their_own_names_or_none() -> None:
    folder = Folder([f"serving_vllm-0_{UID}"], [f"vllm-0_serving_fetch-{OTHER_ID}.log"])
    found = after_a_look(names(folder), occupant(A, id_=OTHER_ID), occupant(A, pid=8))
    assert found == [Workload("serving", "vllm-0", "fetch"), Workload("serving", "vllm-0")]


def test_a_container_that_names_itself_as_another_pods_keeps_its_own_name() -> None:
    folder = Folder(
        [f"serving_vllm-0_{UID}", f"other_x_{OTHER_UID}"],
        [f"vllm-0_serving_server-{ID}.log", f"x_other_y-{OTHER_ID}.log"],
    )
    own = f"0::/kubepods/burstable/pod{UID}/{ID}"
    for made in ("", f"/{OTHER_ID}", f"/pod{OTHER_UID}/{OTHER_ID}", f"/kubepods/pod{OTHER_UID}/{OTHER_ID}"):
        process = Occupant(Pid(7, 1), identify(parse_cgroup(f"{own}{made}\n".encode())), (A,))
        assert after_a_look(names(folder), process) == [VLLM]


def test_without_folders_and_api_server_nobody_has_a_name() -> None:
    assert names().lookup([occupant(A), occupant(A, B, uid=OTHER_UID, pid=8)]) == [None, None]


# --- looking through the folders ------------------------------------------------------------------------------------


def test_folders_are_listed_only_while_somebody_is_not_known() -> None:
    folder = Folder([f"serving_vllm-0_{UID}"], [f"vllm-0_serving_server-{ID}.log"])
    source = names(folder)
    assert source.read(0.0) == []
    assert folder.listed == 0
    after_a_look(source, occupant(A), at_s=2.0)
    source.read(4.0)
    assert folder.listed == 2


def test_those_who_were_not_found_are_looked_for_every_ten_seconds_and_new_ones_at_once() -> None:
    folder = Folder()
    source = names(folder)
    source.lookup([occupant(A)])
    for at_s in range(0, 20, 2):
        source.read(float(at_s))
    assert folder.listed == 4
    source.lookup([occupant(A), occupant(A, uid=OTHER_UID, pid=8)])
    source.read(20.0)
    assert folder.listed == 6


def test_a_name_outlives_its_folder_while_the_process_is_there() -> None:
    folder = Folder([f"serving_vllm-0_{UID}"])
    source = names(folder)
    after_a_look(source, occupant(A))
    folder.pods = []
    source.lookup([occupant(A), occupant(A, uid=OTHER_UID, pid=8)])
    source.read(2000.0)
    assert source.lookup([occupant(A)])[0] == Workload("serving", "vllm-0")


def test_denied_folders_are_misses_and_the_api_server_still_names() -> None:
    folder = Folder([f"serving_from-folder_{UID}"])
    folder.denied = True
    source = names(folder, Names({UID: PodName("serving", "vllm-0")}))
    source.lookup([occupant(A), occupant(A, uid=OTHER_UID, pid=8)])
    missed = [item for item in source.read(0.0) if isinstance(item, Miss)]
    assert {(miss.what, miss.reason) for miss in missed} == {
        ("names in pods", Reason.DENIED),
        ("names in containers", Reason.DENIED),
    }
    assert source.lookup([occupant(A)]) == [Workload("serving", "vllm-0")]


# --- never a name that nothing supports -----------------------------------------------------------------------------

UIDS = [f"{n}f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6" for n in range(3)]
IDS = [ID, OTHER_ID]
OCCUPANTS = st.lists(
    st.builds(
        lambda gpus, uid, id_, pid: occupant(*gpus, uid=uid, id_=id_, pid=pid),
        st.lists(st.sampled_from([A, B]), unique=True),
        st.sampled_from([*UIDS, None]),
        st.sampled_from([*IDS, None]),
        st.integers(1, 9),
    ),
    max_size=6,
)
FOLDERS = st.lists(st.tuples(st.sampled_from(["p", "q", "s"]), st.sampled_from(UIDS)), max_size=4)
LOGS = st.lists(st.tuples(st.sampled_from(["p", "q"]), st.sampled_from(["c", "d"]), st.sampled_from(IDS)), max_size=3)


@given(st.lists(OCCUPANTS, min_size=1, max_size=4), FOLDERS, LOGS)
def test_every_name_is_the_only_one_that_the_folders_tell(
    passes: list[list[Occupant]], folders: list[tuple[str, str]], logs: list[tuple[str, str, str]]
) -> None:
    source = names(
        Folder(
            [f"serving_{pod}_{uid}" for pod, uid in folders],
            [f"{pod}_serving_{container}-{id_}.log" for pod, container, id_ in logs],
        )
    )
    for at_s, occupants in enumerate(passes):
        source.lookup(occupants)
        source.read(1000.0 + 20 * at_s)
        for each, workload in zip(occupants, source.lookup(occupants), strict=True):
            if workload is None:
                continue
            assert each.identity.pod_uid is not None
            pods = {pod for pod, uid in folders if uid == each.identity.pod_uid}
            told = {(pod, container) for pod, container, id_ in logs if id_ == each.identity.container_id}
            if len(pods) == 1:
                assert {workload.pod} == pods
            else:
                assert told == {(workload.pod, workload.container)}
            if workload.container:
                assert told == {(workload.pod, workload.container)}
