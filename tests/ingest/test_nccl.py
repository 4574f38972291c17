"""NCCL Inspector's lines and files, and spans of collectives, to per-rank records and counters."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.ingest.assembly import Assembler
from gpumon.ingest.inspector import MAX_BEHIND, InspectorSource
from gpumon.ingest.nccl import MAX_COMMS, CollectiveRecord, Collectives, LineError, parse_line
from gpumon.model import Miss, Reason, Sample, SourceError
from tests.ingest.senders import MS, NOW_S, T0, Sender, decode, to_steady

NAME = "n1-pid4242.log"


def line(rank: int = 3, sequence: int = 1207, *, exec_us: Any = 412, **perf: Any) -> str:
    return json.dumps(
        {
            "header": {"id": "0x9e1f2a", "comm_name": "tp", "rank": rank, "n_ranks": 8, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": 1795953600000000,
                "hostname": "n1",
                "pid": 4242,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": sequence,
                "coll_msg_size_bytes": 1048576,
                "coll_exec_time_us": exec_us,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 2.5,
                "coll_busbw_gbs": 4.4,
                **perf,
            },
        }
    )


def test_a_line_says_who_what_and_how_long() -> None:
    assert parse_line(line().encode()) == CollectiveRecord(
        comm_id="0x9e1f2a",
        comm_name="tp",
        rank=3,
        n_ranks=8,
        collective="AllReduce",
        sequence=1207,
        size_bytes=1048576,
        exec_s=0.000412,
        timing="kernel_gpu",
        host="n1",
        pid=4242,
    )


def test_a_verbose_line_says_when() -> None:
    stamps = {"coll_start_ts": 1795953600000100, "coll_stop_ts": 1795953600000512, "kernel_events": []}
    record = parse_line(line(event_trace_ts=stamps).encode())
    assert (record.start_ns, record.stop_ns) == (1795953600000100000, 1795953600000512000)


def test_point_to_point() -> None:
    whole = json.loads(line())
    del whole["coll_perf"]
    whole["p2p_perf"] = {
        "p2p": "Send",
        "p2p_sn": 9,
        "p2p_peer": 2,
        "p2p_msg_size_bytes": 4096,
        "p2p_exec_time_us": 7,
        "p2p_timing_source": "kernel_cpu",
    }
    record = parse_line(json.dumps(whole).encode())
    assert (record.collective, record.sequence, record.size_bytes) == ("Send", 9, 4096)
    assert (record.exec_s, record.timing) == (7e-6, "kernel_cpu")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "malformed"),
        (b"{", "malformed"),
        (b"[]", "malformed"),
        (b"7", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 60_000, "malformed"),
        (b'{"header": {}, "metadata": {}}', "malformed"),
        (line(exec_us=None).encode(), "malformed"),
        (line(rank=8).encode(), "out_of_range"),
        (line(exec_us=-1).encode(), "out_of_range"),
        (line(exec_us=float("nan")).encode(), "out_of_range"),
        (line(exec_us=1e13).encode(), "out_of_range"),
        (line(event_trace_ts={"coll_start_ts": 10, "coll_stop_ts": 9}).encode(), "out_of_range"),
        (b" " * 70_000, "oversize"),
    ],
)
def test_bad_lines_are_refused_with_their_reason(bad: bytes, reason: str) -> None:
    with pytest.raises(LineError, match=f"^{reason}$"):
        parse_line(bad)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON, JSON, JSON)
def test_any_json_is_a_record_or_a_line_error(rank: Any, sequence: Any, exec_us: Any, more: Any) -> None:
    whole = json.loads(line())
    whole["header"]["rank"], whole["coll_perf"]["coll_sn"] = rank, sequence
    whole["coll_perf"]["coll_exec_time_us"], whole["coll_perf"]["event_trace_ts"] = exec_us, more
    try:
        record = parse_line(json.dumps(whole).encode())
    except LineError:
        return
    assert 0 <= record.rank < record.n_ranks
    assert 0 <= record.exec_s <= 3600


def totals(collectives: Collectives) -> dict[tuple[str, tuple[str, ...]], Any]:
    return {(s.metric.name, s.labels): s.value for s in collectives.samples() if s.value}


def test_counters_by_rank_hide_no_straggler_and_are_bounded() -> None:
    records: list[CollectiveRecord] = []
    collectives = Collectives(records.append)
    for rank in range(8):
        collectives.add_line(line(rank, exec_us=100 if rank == 5 else 900).encode())
    assert len(records) == 8
    told = totals(collectives)
    assert told["gpumon_collective_seconds_total", ("tp", "AllReduce", "5")] == pytest.approx(0.0001)
    assert told["gpumon_collective_seconds_total", ("tp", "AllReduce", "4")] == pytest.approx(0.0009)
    assert told["gpumon_collective_message_bytes_total", ("tp", "AllReduce", "5")] == 1048576
    for i in range(50):
        whole = json.loads(line())
        whole["header"]["comm_name"], whole["coll_perf"]["coll"] = f"comm{i}", f"Custom{i}"
        collectives.add_line(json.dumps(whole).encode())
    names = {s.labels[0] for s in collectives.samples() if s.metric.name == "gpumon_collectives_total"}
    assert len(names) == MAX_COMMS + 1
    assert "other" in names
    assert totals(collectives)["gpumon_collectives_total", ("other", "other", "3")] == 50 - (MAX_COMMS - 1)


def test_ranks_beyond_the_bound_are_dropped_and_counted() -> None:
    collectives = Collectives()
    whole = json.loads(line())
    whole["header"] |= {"rank": 256, "n_ranks": 1024}
    collectives.add_line(json.dumps(whole).encode())
    assert totals(collectives) == {("gpumon_collective_records_dropped_total", ("out_of_range",)): 1}


def test_spans_of_collectives_are_records_and_copies_are_not() -> None:
    records: list[CollectiveRecord] = []
    sender = Sender("nccl", {"host.name": "n1", "process.pid": 7})
    attributes = {
        "nccl.collective": "AllGather",
        "nccl.comm.id": "0x1",
        "nccl.comm.name": "dp",
        "nccl.rank": 1,
        "nccl.n_ranks": 2,
        "nccl.sequence": 40,
        "nccl.size_bytes": 512,
    }
    sender.span("nccl.collective", T0, T0 + 3 * MS, attributes=attributes)
    sender.span("nccl.collective", T0, T0 + 3 * MS)
    collectives = Collectives(records.append)
    assembler = Assembler(collectives=collectives)
    for _ in range(2):
        assembler.add(decode(sender.spans), "peer", NOW_S, to_steady)
    [record] = records
    assert (record.collective, record.comm_name, record.rank, record.sequence) == ("AllGather", "dp", 1, 40)
    assert (record.exec_s, record.start_ns, record.host, record.pid) == (0.003, T0, "n1", 7)
    assert totals(collectives)["gpumon_collective_records_dropped_total", ("malformed",)] == 1


class Follower:
    """The source on a folder, and what it found."""

    def __init__(self, folder: Path) -> None:
        self.found: list[int] = []
        self.source = InspectorSource(str(folder), Collectives(lambda record: self.found.append(record.sequence)))

    def read(self) -> list[int]:
        """Sequence numbers found by one more look."""
        before = len(self.found)
        self.items = list(self.source.read(0.0))
        return self.found[before:]

    def dropped(self) -> dict[str, float]:
        return {
            item.labels[0]: float(item.value)  # type: ignore[arg-type]
            for item in self.items
            if isinstance(item, Sample) and item.metric.name == "gpumon_collective_records_dropped_total" and item.value
        }


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_follows_from_the_end_and_new_files_from_their_beginning(tmp_path: Path) -> None:
    append(tmp_path / NAME, line(sequence=1) + "\n")
    follower = Follower(tmp_path)
    assert follower.read() == []
    append(tmp_path / NAME, line(sequence=2) + "\n" + line(sequence=3) + "\n")
    append(tmp_path / "n1-pid77.log", line(sequence=10) + "\n")
    append(tmp_path / "notes.txt", "not ours\n")
    assert sorted(follower.read()) == [2, 3, 10]
    assert follower.read() == []
    assert follower.dropped() == {}


def test_a_last_line_in_the_making_waits_for_its_newline(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    follower.read()
    whole = line(sequence=5) + "\n"
    for part in (whole[:40], whole[40:-1]):
        append(tmp_path / NAME, part)
        assert follower.read() == []
    append(tmp_path / NAME, whole[-1:])
    assert follower.read() == [5]


def test_starting_in_the_middle_of_a_line_passes_over_its_rest(tmp_path: Path) -> None:
    append(tmp_path / NAME, line(sequence=1)[:50])
    follower = Follower(tmp_path)
    follower.read()
    append(tmp_path / NAME, line(sequence=1)[50:] + "\n" + line(sequence=2) + "\n")
    assert follower.read() == [2]
    assert follower.dropped() == {}


def test_a_file_replaced_or_cut_is_read_anew(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    follower.read()
    append(tmp_path / NAME, line(sequence=1) + "\n" + line(sequence=2) + "\n")
    assert follower.read() == [1, 2]
    (tmp_path / NAME).rename(tmp_path / "old")
    append(tmp_path / NAME, line(sequence=3) + "\n" + line(sequence=4) + "\n" + line(sequence=5) + "\n")
    assert follower.read() == [3, 4, 5]
    os.truncate(tmp_path / NAME, 0)
    append(tmp_path / NAME, line(sequence=6) + "\n")
    assert follower.read() == [6]


def test_a_line_without_end_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    follower.read()
    append(tmp_path / NAME, line(sequence=1) + "\n" + "x" * 3_000_000)
    assert follower.read() == [1]
    for _ in range(4):
        assert follower.read() == []
    append(tmp_path / NAME, "x\n" + line(sequence=2) + "\n")
    assert follower.read() == [2]
    assert follower.dropped() == {"oversize": 1}


def test_a_large_backlog_is_skipped_to_its_newest_part(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    follower.read()
    filler = line(sequence=1) + "\n"
    append(tmp_path / NAME, filler * (MAX_BEHIND // len(filler) + 2) + line(sequence=2) + "\n")
    found = follower.read()
    assert found[-1] == 2
    assert len(found) < 4000
    assert follower.dropped() == {"skipped": 1}


def test_a_link_is_not_followed_and_its_neighbours_are_read(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    follower.read()
    (tmp_path / "a-pid1.log").symlink_to("/etc/passwd")
    (tmp_path / "b-pid1.log").mkdir()
    append(tmp_path / NAME, line(sequence=1) + "\n")
    assert follower.read() == [1]
    assert [item.what for item in follower.items if isinstance(item, Miss)] == ["nccl inspector file"]


def test_no_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        list(InspectorSource(str(tmp_path / "none"), Collectives()).read(0.0))
    assert caught.value.reason is Reason.UNAVAILABLE


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_in_a_file_are_counted_and_harm_nothing(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("nccl")
    follower = Follower(folder)
    follower.read()
    for part in parts:
        with (folder / NAME).open("ab") as file:
            file.write(part)
        follower.read()
    with (folder / NAME).open("ab") as file:
        file.write(b"\n" + line(sequence=9).encode() + b"\n")
    assert follower.read() == [9]
