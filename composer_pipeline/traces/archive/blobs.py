"""Raw bytes in the archive, by their hash.

Belongs here: names of blobs and reading them. Does not belong here: which blobs make a
file (``traces.archive.versions``).
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake

Row = dict[str, Any]
BUFFER = 1 << 20


def blob_name(sha256: str) -> str:
    """Return the name of a blob below the lake's root."""
    return f"archive/{sha256[:2]}/{sha256}.jsonl.zst"


def read_blob(lake: Lake, sha256: str) -> bytes:
    """Return raw session bytes from the archive.

    Raises:
        InputError: the archive does not hold them.
    """
    try:
        data = lake.get_bytes(blob_name(sha256))
    except FileNotFoundError as error:
        raise InputError(f"lake {lake.url} has no archived file {sha256}") from error
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


@contextmanager
def open_archived(lake: Lake, row: Row) -> Iterator[Iterable[bytes]]:
    """Open the raw bytes of a manifest row, as lines; only a part is in memory at a time.

    Raises:
        InputError: the archive does not hold them, or not all of them.
    """
    with ExitStack() as stack:
        streams = []
        for sha256 in row.get("pieces") or [row["sha256"]]:
            try:
                file = stack.enter_context(lake.open(blob_name(sha256)))
            except FileNotFoundError as error:
                raise InputError(f"lake {lake.url} has no archived file {sha256}") from error
            decompress = zstandard.ZstdDecompressor()
            streams.append(decompress.stream_reader(file, read_across_frames=True))
        try:
            yield io.BufferedReader(_Joined(streams, row["size"]), BUFFER)
        except (zstandard.ZstdError, EOFError) as error:
            raise InputError(
                f"lake {lake.url}: archived file {row['sha256']} of day {row['day']} is damaged"
                f" ({error}); run composer-pipeline verify"
            ) from error


class _Joined(io.RawIOBase):
    """Pieces of a file, one after the other; a line may go over their ends.

    A stream that was cut short ends as a whole one does, so the bytes are counted.
    """

    def __init__(self, streams: list[Any], size: int) -> None:
        self._left = streams[::-1]
        self._missing = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._left:
            if count := self._left[-1].readinto(buffer):
                self._missing -= count
                return int(count)
            self._left.pop()
        if self._missing:
            raise EOFError(f"{self._missing} bytes are missing")
        return 0
