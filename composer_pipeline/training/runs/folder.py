"""Who may write a run folder: its lock, and moving a run aside.

Belongs here: one process at a time in a folder, and a new start that deletes nothing. Does not
belong here: what the files of a run say. The kernel releases the lock when its holder dies.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer_pipeline.errors import ComposerError
from composer_pipeline.files import take_lock, writing

LOCK = ".lock"


@contextmanager
def alone(run_dir: Path) -> Iterator[None]:
    """Hold the folder's lock; the folder must exist.

    Raises:
        ComposerError: another process trains there, or has moved the folder meanwhile.
    """

    def busy() -> None:
        raise ComposerError(f"another process is training in {run_dir}; wait for it, or end it")

    with writing(f"run folder {run_dir}"):
        file = (run_dir / LOCK).open("w")
    with file:
        take_lock(file, busy)
        if not _same_file(file.fileno(), run_dir / LOCK):
            raise ComposerError(f"{run_dir} was moved aside by another process; start again")
        yield


def set_aside(run_dir: Path) -> Path | None:
    """Rename a run's folder to the first free ``<name>.<n>`` and return it.

    Nothing is deleted. ``None`` where there is no such folder.

    Raises:
        ComposerError: another process trains in the folder.
    """
    if not run_dir.is_dir():
        return None
    with alone(run_dir):
        number = 1
        while (old := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
            number += 1
        with writing(f"run folder {run_dir.parent}"):
            run_dir.rename(old)
        return old


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file: a lock on a moved file locks another folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
