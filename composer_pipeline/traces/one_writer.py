"""One harvest or parse of a lake at a time.

Belongs here: the lock that both stages take, and how waiting is told. Does not belong here: how a
lock is held (``lake.lock``).

A harvest reads the manifest and replaces whole days of it; a parse reads the manifest and
replaces the tables of whole days. Two at once would each undo what the other wrote.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from composer_pipeline.lake import Lake
from composer_pipeline.reports import Progress

WAITING = "wait for another ingest"


@contextmanager
def one_writer(lake: Lake, progress: Progress | None) -> Iterator[None]:
    """Be the only process that harvests or parses this lake, for a block.

    Args:
        lake: the lake.
        progress: called with ``(WAITING, 0, 0)`` where another one has to end first.

    Raises:
        InputError, StorageError: the lake is not writable.
    """

    def waiting() -> None:
        if progress is not None:
            progress(WAITING, 0, 0)

    with lake.locked("traces", waiting):
        yield
