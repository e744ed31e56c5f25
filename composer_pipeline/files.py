"""A file replaced atomically: readers see the old one or the new one, whole.

Belongs here: the temporary name beside a file, making it durable, the rename, and which
failures of a disk are the user's mistake. Does not belong here: what is written.
"""

import errno
import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.modes import create_file, make_folder


class Replacement:
    """The new content of a file, beside it until :meth:`commit`.

    The folder is made where it is missing. Modes are those of ``modes``, whatever the umask.

    Raises:
        OSError: here and in every method, the file cannot be written; it is as it was.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        self.stream = os.fdopen(create_file(self._temporary), "wb")

    def commit(self) -> None:
        """Make the new content durable, then visible."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        self._temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else a power cut can undo the rename
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Drop what was written and not committed."""
        try:
            self.stream.close()
        finally:
            self._temporary.unlink(missing_ok=True)


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Say in one sentence why a place cannot be written.

    Args:
        what: the place, for example ``lake s3://bucket/lake``.

    Raises:
        InputError: it cannot be the place at all: a file stands where a folder must.
        StorageError: it is full, read-only or gone.
    """
    try:
        yield
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise InputError(f"{what} is not writable: {reason(error)}") from error
    except OSError as error:
        raise StorageError(f"{what} is not writable: {reason(error)}") from error


@contextmanager
def out_of_space(what: str, *also: type[Exception]) -> Iterator[None]:
    """Say in one sentence that a disk is full or read-only; other failures pass as they are.

    For a block that does more than write: :func:`writing` would blame the place for all.

    Args:
        what: the place.
        also: errors of libraries that hide the system's number in their message.

    Raises:
        StorageError: nothing more can be written there.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except kinds as error:
        number = error.errno if isinstance(error, OSError) else None
        hidden = re.search(r"\(os error (\d+)\)", str(error))
        number = int(hidden[1]) if number is None and hidden else number
        if number not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise StorageError(f"{what} is not writable: {os.strerror(number)}") from error


@contextmanager
def replacing(path: Path, what: str = "") -> Iterator[IO[bytes]]:
    """Yield a stream whose bytes are the file's once the block has ended well.

    Args:
        path: the file.
        what: what the file is called in errors; its path when empty.

    Raises:
        InputError, StorageError: as :func:`writing`; the file is as it was.
    """
    with writing(what or str(path)):
        new = Replacement(path)
        try:
            yield new.stream
            new.commit()
        finally:
            new.discard()


def replace(path: Path, data: bytes | str, what: str = "") -> None:
    """Replace a file's content as :func:`replacing`; text is written as UTF-8."""
    with replacing(path, what) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)


def take_lock(file: IO[Any], busy: Callable[[], None] = lambda: None) -> None:
    """Lock an open file for this process until it is closed; the kernel frees it at a kill.

    Args:
        file: whose lock; every process opens it for itself.
        busy: called once where another process holds the lock, before waiting for it; it may
            raise instead.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        busy()
        fcntl.flock(file, fcntl.LOCK_EX)


def reason(error: OSError) -> str:
    """One line of why a write failed; a bucket's own message has a page of debugging."""
    return error.strerror or str(error).partition("\n")[0][:200] or type(error).__name__
