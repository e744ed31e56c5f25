"""Who may read what is written: only its owner, unless ``COMPOSER_LAKE_MODE`` says otherwise.

Belongs here: the modes of files and folders, making them so whatever the umask is, and finding
what is more open. Does not belong here: what is written (``files``, ``lake``, ``replay.ledger``).

Sessions hold a person's whole working life; redaction hides secrets in what is derived, and the
archive has the raw bytes.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from errno import ENOTDIR
from pathlib import Path

from composer_pipeline.errors import InputError

VARIABLE = "COMPOSER_LAKE_MODE"
PRIVATE = 0o600


def file_mode() -> int:
    """Return the mode of new files: 0600, or ``COMPOSER_LAKE_MODE``.

    Raises:
        InputError: the variable is no octal mode that lets the owner read and write.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return PRIVATE
    try:
        mode = int(text, 8)
    except ValueError:
        mode = 0
    if mode & PRIVATE != PRIVATE or mode & ~0o666:
        raise InputError(f"{VARIABLE} is {text!r}; it is an octal mode of files, such as 0640")
    return mode


def folder_mode() -> int:
    """Return the mode of new folders: that of files, and entry where there is reading.

    Raises:
        InputError: as :func:`file_mode`.
    """
    mode = file_mode()
    return mode | (mode & 0o444) >> 2


def make_folder(path: Path) -> None:
    """Make a folder and the missing ones above it, with their mode; others stay as they are.

    Raises:
        InputError: as :func:`file_mode`.
        OSError: it cannot be made.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if path.is_dir():  # another process was faster
            return
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(path)) from None
    with suppress(PermissionError):  # a file system without modes; doctor says so
        path.chmod(folder_mode())


def create_file(path: Path) -> int:
    """Create a file with its mode and return its descriptor, open for writing.

    Raises:
        InputError: as :func:`file_mode`.
        OSError: it exists, or cannot be made.
    """
    mode = file_mode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with suppress(PermissionError):  # a file system without modes; doctor says so
        os.fchmod(descriptor, mode)  # the umask may have taken bits away
    return descriptor


def too_open(root: Path) -> Iterator[Path]:
    """Yield the folders and files below ``root``, itself included, that others may read or enter.

    Raises:
        InputError: as :func:`file_mode`.
    """
    for folder, names, files in os.walk(root):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            if not path.is_symlink() and _excess(path):
                yield path
        names.sort()


def close_to_others(root: Path) -> int:
    """Give what :func:`too_open` finds the mode of new files and folders; return how many.

    Raises:
        InputError: as :func:`file_mode`.
        OSError: another user owns one of them.
    """
    found = list(too_open(root))
    for path in found:
        path.chmod(folder_mode() if path.is_dir() else file_mode())
    return len(found)


def _excess(path: Path) -> int:
    allowed = folder_mode() if path.is_dir() else file_mode()
    return stat.S_IMODE(path.stat().st_mode) & 0o077 & ~allowed
