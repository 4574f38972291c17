from __future__ import annotations

import errno
import json
import multiprocessing
import os
import stat
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.record import format as form
from gpumon.record.format import Chunk, FormatError, Reader, Writer

CHUNKS = [Chunk(0, b"first"), Chunk(1, b""), Chunk(255, b"third" * 10)]


def written(path: Path, chunks: list[Chunk] = CHUNKS) -> bytes:
    writer = Writer.create(path, {"kind": "test"}, overwrite=True)
    for chunk in chunks:
        writer.write(chunk.stream, chunk.payload)
    writer.close()
    return path.read_bytes()


def header_size(data: bytes) -> int:
    return int(struct.calcsize("<8sHII") + struct.unpack_from("<I", data, 10)[0])


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=5000)), max_size=8))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, chunks: list[tuple[int, bytes]]) -> None:
    path = tmp_path_factory.mktemp("format") / "file"
    written(path, [Chunk(*chunk) for chunk in chunks])
    reader = Reader(path)
    assert reader.header == {"kind": "test"}
    assert [tuple(chunk) for chunk in reader.chunks()] == chunks
    assert [tuple(chunk) for chunk in reader.chunks()] == chunks, "each call reads anew"
    assert reader.truncated == ""


def test_a_file_cut_anywhere_gives_its_whole_chunks_or_one_clear_line(tmp_path: Path) -> None:
    data = written(tmp_path / "whole")
    ends = [header_size(data)]
    for chunk in CHUNKS:
        ends.append(ends[-1] + 13 + len(zlib.compress(chunk.payload, 1)))
    assert ends[-1] == len(data)
    path = tmp_path / "cut"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size < ends[0]:
            with pytest.raises(FormatError) as error:
                Reader(path)
            assert str(error.value).startswith(f"{path}: ")
            assert "\n" not in str(error.value)
            continue
        reader = Reader(path)
        whole = sum(end <= size for end in ends[1:])
        assert list(reader.chunks()) == CHUNKS[:whole]
        assert bool(reader.truncated) == (size not in ends)
        assert "\n" not in reader.truncated


def test_a_changed_byte_anywhere_never_passes_for_content(tmp_path: Path) -> None:
    data = written(tmp_path / "whole")
    path = tmp_path / "damaged"
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        try:
            reader = Reader(path)
        except FormatError:
            continue
        found = list(reader.chunks())
        assert found == CHUNKS[: len(found)]
        assert len(found) < len(CHUNKS)
        assert reader.truncated


def test_foreign_newer_and_empty_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, said in [
        (b"", "empty"),
        (b"{}\n", "not a file that gpumon wrote"),
        (b"\x89gpumon\r\n" + bytes(20), "not a file that gpumon wrote"),
        (b"\x89gpu", "cut short"),
        (struct.pack("<8sHII", form.MAGIC, 2, 2, 0) + b"{}", "a later gpumon (format 2; this one reads up to 1)"),
        (struct.pack("<8sHII", form.MAGIC, 0, 2, 0) + b"{}", "damaged"),
        (struct.pack("<8sHII", form.MAGIC, 1, 1 << 30, 0), "damaged"),
        (struct.pack("<8sHII", form.MAGIC, 1, 2, 7) + b"{}", "damaged"),
        (struct.pack("<8sHII", form.MAGIC, 1, 2, zlib.crc32(b"[]")) + b"[]", "no JSON object"),
        (struct.pack("<8sHII", form.MAGIC, 1, 2, zlib.crc32(b"{x")) + b"{x", "no JSON"),
    ]:
        path.write_bytes(content)
        with pytest.raises(FormatError) as error:
            Reader(path)
        assert said in str(error.value)
        with pytest.raises(FormatError):
            Writer.open_append(path)


def test_a_file_that_is_not_there_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        Writer.open_append(tmp_path / "none")


@pytest.mark.parametrize("claimed", [5, form.MAX_PAYLOAD_BYTES, form.MAX_PAYLOAD_BYTES + 1])
def test_a_chunk_that_unpacks_to_more_than_it_says_is_damaged(tmp_path: Path, claimed: int) -> None:
    path = tmp_path / "bomb"
    packed = zlib.compress(bytes(form.MAX_PAYLOAD_BYTES + 100), 9)
    head = struct.pack("<BII", 0, len(packed), claimed)
    chunk = head + struct.pack("<I", zlib.crc32(packed, zlib.crc32(head))) + packed
    path.write_bytes(written(path, CHUNKS[:1]) + chunk)
    reader = Reader(path)
    assert list(reader.chunks()) == CHUNKS[:1]
    assert "damaged" in reader.truncated


def test_a_chunk_that_is_not_zlib_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    head = struct.pack("<BII", 0, 4, 4)
    path.write_bytes(written(path, []) + head + struct.pack("<I", zlib.crc32(b"abcd", zlib.crc32(head))) + b"abcd")
    reader = Reader(path)
    assert list(reader.chunks()) == []
    assert "damaged" in reader.truncated


def test_the_file_is_its_owners_alone_and_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        Writer.create(path, {})
    path.chmod(0o644)
    Writer.create(path, {"new": 1}, overwrite=True).close()
    assert Reader(path).header == {"new": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_a_regular_file_is_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(FileExistsError):
        Writer.create(link, {}, overwrite=True)
    assert target.read_text() == "mine"


def test_the_limit_ends_the_writing_before_it_is_passed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writer = Writer.create(path, {}, limit_bytes=2000)
    for _ in range(6):
        writer.write(0, os.urandom(300))
    size = writer.size()
    with pytest.raises(OSError, match="limit of 2000 bytes") as error:
        writer.write(0, os.urandom(300))
    assert error.value.errno == errno.EFBIG
    assert writer.size() == size <= 2000
    writer.close()
    reader = Reader(path)
    assert len(list(reader.chunks())) == 6
    assert reader.truncated == ""


def test_a_full_disk_is_an_oserror() -> None:
    writer = Writer(os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(OSError, match="No space left"):
        writer.write(0, b"x")
    writer.close()
    writer.close()
    with pytest.raises(OSError, match="closed"):
        writer.write(0, b"x")
    with pytest.raises(OSError, match="closed"):
        writer.size()


def test_what_would_be_too_large_to_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="header"):
        Writer.create(tmp_path / "file", {"long": "x" * form.MAX_HEADER_BYTES})
    assert not (tmp_path / "file").exists()
    writer = Writer.create(tmp_path / "file", {})
    with pytest.raises(ValueError, match="chunk"):
        writer.write(0, bytes(form.MAX_PAYLOAD_BYTES + 1))
    writer.close()


def _append(path: str, stream: int, count: int) -> None:
    writer = Writer.open_append(path)
    for number in range(count):
        writer.write(stream, json.dumps([stream, number]).encode() * 50)
    writer.close()


def test_two_processes_append_whole_chunks_in_their_own_order(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written(path, [])
    start = multiprocessing.get_context("spawn").Process
    processes = [start(target=_append, args=(str(path), stream, 300)) for stream in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    reader = Reader(path)
    chunks = list(reader.chunks())
    assert reader.truncated == ""
    for stream in (1, 2):
        mine = [chunk.payload for chunk in chunks if chunk.stream == stream]
        assert mine == [json.dumps([stream, number]).encode() * 50 for number in range(300)]
