"""From processes to pods: by log folders, by the API server, by what the kubelet listed; right names, or none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.files import ReadError
from gpumon.host.podresources import ContainerHolds, HeldDevices, PodHolds
from gpumon.model import GpuUuid, Miss, Pid, Reason
from gpumon.sources.cgroup import Identity, identify
from gpumon.sources.kube_names import ContainerName, Names, PodName
from gpumon.sources.pod_devices import GpuDevice
from gpumon.sources.pod_map import Listing, PodMap, map_pods
from gpumon.sources.pod_names import PodNames
from gpumon.sources.procfs import parse_cgroup
from gpumon.sources.targets import Occupant, Workload
from tests.sources.cgroup_paths import LAYOUTS, cgroup

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
DEVICES = [GpuDevice("0", A), GpuDevice("1", B)]
UID = "1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"
OTHER_UID = "2f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"
ID, OTHER_ID = "a" * 63 + "1", "b" * 63 + "2"
OLD_S, NEW_S = 100.0, 900.0
"""When processes began; the listing is of second 500."""
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


def occupant(
    *gpus: GpuUuid, uid: str | None = UID, id_: str | None = ID, began_s: float = OLD_S, pid: int = 7
) -> Occupant:
    return Occupant(Pid(pid, round(began_s * 100)), Identity(id_, uid), gpus)


def listed(*pods: tuple[str, str, tuple[str, ...]]) -> PodMap:
    """From (pod, container, ids)."""
    told = tuple(
        PodHolds("serving", pod, (ContainerHolds(container, (HeldDevices("nvidia.com/gpu", ids),)),))
        for pod, container, ids in pods
    )
    return map_pods(Listing(500.0, told), DEVICES)


def names(folder: Folder | None = None, told: Names | None = None, mapped: PodMap | None = None) -> PodNames:
    return PodNames(folder, lambda: told, lambda: mapped)


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_runtimes_containers_are_named_by_a_listing_that_leaves_one_answer(layout: str) -> None:
    process = Occupant(Pid(7, 1), identify(parse_cgroup(cgroup(layout, UID, ID))), (A,))
    assert names(mapped=listed(("vllm-0", "server", ("GPU-a",)))).lookup([process]) == [VLLM]


def test_a_pod_without_its_containers_log_has_no_containers_name() -> None:
    assert after_a_look(names(Folder([f"serving_vllm-0_{UID}"])), occupant(A)) == [Workload("serving", "vllm-0")]


def test_a_containers_log_names_its_pod_too() -> None:
    assert after_a_look(names(Folder([], [f"vllm-0_serving_server-{ID}.log"])), occupant(A, uid=None)) == [VLLM]


def test_a_container_whose_log_names_another_pod_than_its_uid_has_no_name_of_its_own() -> None:
    folder = Folder([f"serving_vllm-0_{UID}"], [f"vllm-1_serving_server-{ID}.log"])
    assert after_a_look(names(folder), occupant(A)) == [Workload("serving", "vllm-0")]


def test_the_api_server_is_trusted_before_the_folders_and_these_before_the_listing() -> None:
    told = Names({UID: PodName("serving", "from-api")}, {ID: ContainerName(PodName("serving", "from-api"), "c")})
    folder = Folder([f"serving_from-folder_{UID}"])
    mapped = listed(("from-listing", "server", ("GPU-a",)))
    assert after_a_look(names(folder, told, mapped), occupant(A)) == [Workload("serving", "from-api", "c")]
    assert after_a_look(names(folder, None, mapped), occupant(A)) == [Workload("serving", "from-folder")]
    assert names(None, None, mapped).lookup([occupant(A)]) == [Workload("serving", "from-listing", "server")]


def test_who_is_in_no_pod_has_none() -> None:
    source = names(mapped=listed(("vllm-0", "server", ("GPU-a",))))
    assert source.lookup([occupant(A, uid=None), occupant(A, uid=None, id_=None)]) == [None, None]


# --- when a listing does not leave one answer -----------------------------------------------------------------------

ALONE = listed(("vllm-0", "server", ("GPU-a",)))


@pytest.mark.parametrize(
    ("mapped", "occupants"),
    [
        (listed(("a", "c", ("GPU-a::0",)), ("b", "c", ("GPU-a::1",))), [occupant(A)]),
        (listed(), [occupant(A)]),
        (ALONE, [occupant(A, began_s=NEW_S)]),
        (ALONE, [occupant(A, B)]),
        (listed(("a", "c", ("GPU-a",)), ("b", "c", ("GPU-b",))), [occupant(A, B)]),
        (ALONE, [occupant()]),
        (ALONE, [occupant(A), occupant(A, uid=OTHER_UID, pid=8)]),
        (None, [occupant(A)]),
    ],
    ids=["shared", "held by nobody", "newer", "more than is held", "of two pods", "no gpu", "two pods there", "none"],
)
def test_where_a_listing_does_not_leave_one_answer_there_is_none(
    mapped: PodMap | None, occupants: list[Occupant]
) -> None:
    assert set(names(mapped=mapped).lookup(occupants)) == {None}


def test_a_name_that_a_certain_pod_has_is_not_given_to_another_uid() -> None:
    told = Names({OTHER_UID: PodName("serving", "vllm-0")})
    found = names(None, told, ALONE).lookup([occupant(A), occupant(B, uid=OTHER_UID, pid=8)])
    assert found == [None, Workload("serving", "vllm-0")]


def test_a_new_pod_on_the_same_gpu_does_not_inherit_the_old_ones_name() -> None:
    source = names(mapped=ALONE)
    assert source.lookup([occupant(A)]) == [VLLM]
    assert source.lookup([occupant(A, uid=OTHER_UID, began_s=NEW_S)]) == [None]
    assert source.lookup([occupant(A), occupant(A, uid=OTHER_UID, began_s=NEW_S, pid=8)]) == [None, None]


def test_a_worker_that_begins_anew_in_a_known_pod_keeps_its_name() -> None:
    source = names(mapped=ALONE)
    source.lookup([occupant(A)])
    assert source.lookup([occupant(A, began_s=NEW_S, pid=9)]) == [VLLM]


def test_a_sidecar_without_the_gpu_is_of_the_pod_but_not_of_the_container() -> None:
    sidecar = occupant(id_=OTHER_ID, pid=8)
    assert names(mapped=ALONE).lookup([occupant(A), sidecar]) == [VLLM, Workload("serving", "vllm-0")]


def test_two_containers_on_a_gpu_that_one_holds_leave_the_container_open() -> None:
    found = names(mapped=ALONE).lookup([occupant(A), occupant(A, id_=OTHER_ID, pid=8)])
    assert found == [Workload("serving", "vllm-0")] * 2


def test_a_name_from_the_listing_is_kept_while_no_listing_counts_and_goes_with_its_pod() -> None:
    current: list[PodMap | None] = [ALONE]
    source = PodNames(None, lambda: None, lambda: current[0])
    source.lookup([occupant(A)])
    current[0] = None
    assert source.lookup([occupant(A)]) == [VLLM]
    assert source.lookup([]) == []
    assert source.lookup([occupant(A)]) == [None]
    current[0] = listed(("next", "server", ("GPU-a",)), ("vllm-0", "server", ("GPU-a",)))
    assert source.lookup([occupant(A)]) == [None]


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


def test_denied_folders_are_misses_and_the_listing_still_names() -> None:
    folder = Folder([f"serving_vllm-0_{UID}"])
    folder.denied = True
    source = names(folder, None, ALONE)
    source.lookup([occupant(A)])
    missed = [item for item in source.read(0.0) if isinstance(item, Miss)]
    assert {(miss.what, miss.reason) for miss in missed} == {
        ("names in pods", Reason.DENIED),
        ("names in containers", Reason.DENIED),
    }
    assert source.lookup([occupant(A)]) == [VLLM]


# --- never a name that nothing supports -----------------------------------------------------------------------------

UIDS = [f"{n}f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6" for n in range(3)]
OCCUPANTS = st.lists(
    st.builds(
        lambda gpus, uid, id_, began_s, pid: occupant(*gpus, uid=uid, id_=id_, began_s=began_s, pid=pid),
        st.lists(st.sampled_from([A, B]), unique=True),
        st.sampled_from([*UIDS, None]),
        st.sampled_from([ID, OTHER_ID, None]),
        st.sampled_from([OLD_S, NEW_S]),
        st.integers(1, 9),
    ),
    max_size=6,
)
LISTED = st.lists(
    st.tuples(
        st.sampled_from(["p", "q", "r"]),
        st.just("c"),
        st.lists(st.sampled_from(["GPU-a", "GPU-a::0", "GPU-a::1", "GPU-b"]), max_size=2).map(tuple),
    ),
    max_size=4,
)
FOLDERS = st.lists(st.tuples(st.sampled_from(["p", "q", "s"]), st.sampled_from(UIDS)), max_size=4)


@given(st.lists(st.tuples(OCCUPANTS, LISTED), min_size=1, max_size=4), FOLDERS)
def test_every_name_is_one_that_the_inputs_support(
    passes: list[tuple[list[Occupant], list[tuple[str, str, tuple[str, ...]]]]], folders: list[tuple[str, str]]
) -> None:
    current: list[PodMap | None] = [None]
    source = PodNames(Folder([f"serving_{pod}_{uid}" for pod, uid in folders]), lambda: None, lambda: current[0])
    logged = {uid: {pod for pod, other in folders if other == uid} for uid in UIDS}
    for at_s, (occupants, pods) in enumerate(passes):
        current[0] = mapped = listed(*pods)
        source.lookup(occupants)
        source.read(1000.0 + 20 * at_s)
        for each, workload in zip(occupants, source.lookup(occupants), strict=True):
            if workload is None:
                continue
            uid = each.identity.pod_uid
            assert uid is not None
            if logged[uid]:
                assert logged[uid] == {workload.pod}
                continue
            # Only the listing can have told: everything that the pod's processes hold is this pod's alone.
            gpus = {gpu for other in occupants if other.identity.pod_uid == uid for gpu in other.gpus}
            assert gpus
            for gpu in gpus:
                owner = mapped.owner(gpu)
                assert owner is not None
                assert owner.pod == ("serving", workload.pod)
                assert {o.identity.pod_uid for o in occupants if gpu in o.gpus} - {None} == {uid}
