"""What ``hf_xet`` has written into a folder, read back.

Belongs here: the layout of shards and xorbs, as far as files are put together again.
Does not belong here: chunking and uploading, which the unmodified client does.

The client's own store for tests, ``local://FOLDER``, has one file a shard (which files there are,
and of which chunks they are made) and one a xorb (chunks, one after the other). The format is
that of xet-core's ``spec/shard.md`` and ``spec/xorb.md``.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_ENTRY = 48
_END = b"\xff" * 32
_VERIFIED, _WITH_SHA = 1 << 31, 1 << 30


@dataclass(frozen=True)
class Segment:
    """Chunks ``first`` to ``last`` (exclusive) of a xorb."""

    xorb: str
    first: int
    last: int


class XetFolder:
    """The folder of a ``casUrl``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = folder / "xet" / "xorbs"

    def get(self, sha256: str) -> bytes | None:
        """Return the bytes of a file that was uploaded whole, else ``None``."""
        for shard in sorted((self._store / "shards").glob("*.mdb")):
            for found, segments in _files(shard.read_bytes()):
                if found == sha256:
                    data = b"".join(self._chunks(segments))
                    return data if hashlib.sha256(data).hexdigest() == sha256 else None
        return None

    def stored_bytes(self) -> int:
        """Return how many bytes of xorbs there are: what was sent over the wire."""
        found = (self._store / "xorbs").glob("default.*")
        return sum(path.stat().st_size for path in found if path.suffix != ".tagset")

    def _chunks(self, segments: list[Segment]) -> Iterator[bytes]:
        for segment in segments:
            path = self._store / "xorbs" / f"default.{segment.xorb}"
            if not path.is_file():  # so the bytes will not have their digest
                return
            yield from _chunks_of(path.read_bytes(), segment.first, segment.last)


def _hex(raw: bytes) -> str:
    """Return a hash as xet writes it: four little-endian numbers."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))


def _files(shard: bytes) -> Iterator[tuple[str, list[Segment]]]:
    at = _ENTRY  # behind the header
    while shard[at : at + 32] not in (_END, b""):
        flags, count = struct.unpack("<32xII", shard[at : at + 40])
        at += _ENTRY
        segments = []
        for _ in range(count):
            xorb, first, last = struct.unpack("<32s8xII", shard[at : at + _ENTRY])
            segments.append(Segment(_hex(xorb), first, last))
            at += _ENTRY
        if flags & _VERIFIED:
            at += _ENTRY * count
        if flags & _WITH_SHA:
            yield _hex(shard[at : at + 32]), segments
            at += _ENTRY


def _chunks_of(xorb: bytes, first: int, last: int) -> Iterator[bytes]:
    at = 0
    for number in range(last):
        packed = int.from_bytes(xorb[at + 1 : at + 4], "little")
        scheme = xorb[at + 4]
        size = int.from_bytes(xorb[at + 5 : at + 8], "little")
        if number >= first:
            data = xorb[at + 8 : at + 8 + packed]
            yield data if scheme == 0 else _unpack(scheme, data, size)
        at += 8 + packed


def _unpack(scheme: int, data: bytes, size: int) -> bytes:
    plain: bytes = pa.Codec("lz4").decompress(data, size, asbytes=True)
    if scheme == 1:
        return plain
    out, at = bytearray(size), 0  # 2: bytes grouped by their place modulo 4
    for place in range(4):
        length = len(range(place, size, 4))
        out[place::4] = plain[at : at + length]
        at += length
    return bytes(out)
