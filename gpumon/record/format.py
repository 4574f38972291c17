"""The file that recordings and incidents are kept in: a header and chunks, appended by one or several processes.

Layout, little endian: magic (8 bytes), version (u16), length (u32) and crc32 (u32) of the header, the header (a JSON
object in UTF-8); then chunks, each stream (u8), length of the packed payload (u32), length of the payload (u32),
crc32 of these three and the packed payload (u32), the packed payload (zlib). What streams and payloads mean is their
writer's affair.

Every chunk is one ``write(2)`` on a descriptor opened with O_APPEND, so the chunks of two processes never mix (on a
local file system; NFS does not promise it). A process that is killed leaves whole chunks. A disk that becomes full
may leave part of one at the end: a reader uses everything before it and says so.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import zlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAGIC = b"\x89gpumon\n"  # no text file begins so, and a transfer that turns line ends breaks it
VERSION = 1
MAX_HEADER_BYTES = 256 << 10
MAX_PAYLOAD_BYTES = 64 << 20
MAX_STREAM = 255

_HEAD = struct.Struct("<8sHII")
_CHUNK = struct.Struct("<BII")
_CRC = struct.Struct("<I")
_LEVEL = 1  # five times the speed of the default for a tenth more bytes, on a daemon that must not be noticed
_MAX_PACKED_BYTES = MAX_PAYLOAD_BYTES + (MAX_PAYLOAD_BYTES >> 10) + 64  # what cannot be compressed grows a little


class FormatError(Exception):
    """The file is none of gpumon's, or of a later version, or its header is damaged. One line for a person."""


class Chunk(NamedTuple):
    """One whole chunk."""

    stream: int
    payload: bytes


class Writer:
    """Appends chunks to one file. ``create`` or ``open_append``, then ``write``; ``close`` at the end.

    Not made for several threads at once.
    """

    def __init__(self, fd: int, limit_bytes: int | None = None) -> None:
        """Use ``create`` or ``open_append``."""
        self._fd: int | None = fd
        self._limit_bytes = limit_bytes

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        header: Mapping[str, object],
        *,
        overwrite: bool = False,
        limit_bytes: int | None = None,
    ) -> Writer:
        """Make the file, readable by its owner only. ``header``: JSON values, MAX_HEADER_BYTES at most.

        overwrite: a file of that name is replaced; without it FileExistsError. limit_bytes: see ``write``.
        Raises OSError, and ValueError for a header that is too large.
        """
        body = json.dumps(header, allow_nan=False, sort_keys=True).encode()
        if len(body) > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {len(body)} bytes; {MAX_HEADER_BYTES} at most")
        if overwrite:
            _unlink(path)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_whole(fd, _HEAD.pack(MAGIC, VERSION, len(body), zlib.crc32(body)) + body)
        except OSError:
            os.close(fd)
            _unlink(path)
            raise
        return cls(fd, limit_bytes)

    @classmethod
    def open_append(cls, path: str | os.PathLike[str], *, limit_bytes: int | None = None) -> Writer:
        """Go on with a file that ``create`` made, in this or another process. Raises OSError, FormatError."""
        with Path(path).open("rb") as file:
            _read_header(file, str(path))
        return cls(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), limit_bytes)

    def write(self, stream: int, payload: bytes) -> int:
        """Append one chunk, whole or not at all as far as other chunks go; its size in the file.

        stream: 0 to MAX_STREAM. payload: MAX_PAYLOAD_BYTES at most, else ValueError. Raises OSError: after one, close.
        With ``limit_bytes`` a chunk that would make the file larger is not written: OSError(EFBIG). Two processes that
        write at the same instant may go over it by one chunk.
        """
        if self._fd is None:
            raise OSError(errno.EBADF, "the file was closed")
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a chunk of {len(payload)} bytes; {MAX_PAYLOAD_BYTES} at most")
        packed = zlib.compress(payload, _LEVEL)
        head = _CHUNK.pack(stream, len(packed), len(payload))
        chunk = b"".join((head, _CRC.pack(zlib.crc32(packed, zlib.crc32(head))), packed))
        if self._limit_bytes is not None and os.fstat(self._fd).st_size + len(chunk) > self._limit_bytes:
            raise OSError(errno.EFBIG, f"the file would be larger than its limit of {self._limit_bytes} bytes")
        _write_whole(self._fd, chunk)
        return len(chunk)

    def size(self) -> int:
        """Bytes in the file now, whoever wrote them. Raises OSError."""
        if self._fd is None:
            raise OSError(errno.EBADF, "the file was closed")
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Let go of the file. Again: nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class Reader:
    """Reads one file: the header at once, chunks as they are asked for. Holds one chunk at a time.

    Opening raises OSError, or FormatError for what is no file of gpumon's.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with self._path.open("rb") as file:
            self.header: dict[str, object] = _read_header(file, str(path))
            self._start = file.tell()
        self.truncated = ""
        """Why ``chunks`` ended before the end of the file; empty where it did not (yet)."""

    def chunks(self) -> Generator[Chunk]:
        """Every whole chunk in order, from the first; each call reads anew.

        Ends at the first that is cut short or damaged, and says so in ``truncated``. Raises OSError.
        """
        self.truncated = ""
        with self._path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size  # a file that still grows is read as it is now
            at = file.seek(self._start)
            while at < end:
                chunk, size = _read_chunk(file, end - at)
                if chunk is None:
                    what = "cut short" if size == 0 else "damaged"
                    self.truncated = f"the chunk at byte {at} is {what}; {end - at} bytes from there are not used"
                    return
                yield chunk
                at += size


def _read_chunk(file: BinaryIO, left: int) -> tuple[Chunk | None, int]:
    """The chunk that begins here and its size in the file; no chunk and 0 if it is cut short, 1 if it is damaged."""
    fixed = _CHUNK.size + _CRC.size
    if left < fixed:
        return None, 0
    head = file.read(_CHUNK.size)
    crc_bytes = file.read(_CRC.size)
    if len(head) + len(crc_bytes) < fixed:
        return None, 0
    stream, packed_size, size = _CHUNK.unpack(head)
    if packed_size > _MAX_PACKED_BYTES or size > MAX_PAYLOAD_BYTES:
        return None, 1
    if packed_size > left - fixed:
        return None, 0
    packed = file.read(packed_size)
    if len(packed) < packed_size:
        return None, 0
    (crc,) = _CRC.unpack(crc_bytes)
    if zlib.crc32(packed, zlib.crc32(head)) != crc:
        return None, 1
    unpacker = zlib.decompressobj()
    try:
        payload = unpacker.decompress(packed, size + 1)  # one more tells what unpacks to more than it says
    except zlib.error:
        return None, 1
    if len(payload) != size or not unpacker.eof or unpacker.unused_data:
        return None, 1
    return Chunk(stream, payload), fixed + packed_size


def _read_header(file: BinaryIO, path: str) -> dict[str, object]:
    head = file.read(_HEAD.size)
    if not head:
        raise FormatError(f"{path}: the file is empty")
    if not head.startswith(MAGIC[: len(head)]):
        raise FormatError(f"{path}: not a file that gpumon wrote")
    if len(head) < _HEAD.size:
        raise FormatError(f"{path}: cut short in its header")
    _, version, size, crc = _HEAD.unpack(head)
    if version > VERSION:
        raise FormatError(f"{path}: written by a later gpumon (format {version}; this one reads up to {VERSION})")
    if version < 1 or size > MAX_HEADER_BYTES:
        raise FormatError(f"{path}: its header is damaged")
    body = file.read(size)
    if len(body) < size:
        raise FormatError(f"{path}: cut short in its header")
    if zlib.crc32(body) != crc:
        raise FormatError(f"{path}: its header is damaged")
    try:
        header = json.loads(body)
    except (ValueError, RecursionError) as err:
        raise FormatError(f"{path}: its header is no JSON") from err
    if not isinstance(header, dict):
        raise FormatError(f"{path}: its header is no JSON object")
    return header


def _write_whole(fd: int, data: bytes) -> None:
    """One write. Less than all of it is a full disk; the rest is not tried: it could land behind another's chunk."""
    written = os.write(fd, data)
    if written < len(data):
        raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")


def _unlink(path: str | os.PathLike[str]) -> None:
    """Remove a regular file of that name; anything else stays, and creating will say what is in the way."""
    try:
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        return
