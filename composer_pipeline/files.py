"""Files: private modes, atomic replacement, locks, and reading values of JSON."""

import errno
import fcntl
import json
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import ENOTDIR
from pathlib import Path
from typing import IO, Any

from composer_pipeline.errors import InputError, StorageError

VARIABLE = "COMPOSER_LAKE_MODE"
PRIVATE = 0o600


def file_mode() -> int:
    """Return the mode of new files: 0600, or ``COMPOSER_LAKE_MODE``."""
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
    """Return the mode of new folders: that of files, executable where it is readable."""
    mode = file_mode()
    return mode | (mode & 0o444) >> 2


def cache_dir() -> Path:
    """Return the cache folder: ``$COMPOSER_CACHE`` or ``~/.cache/composer-pipeline``."""
    configured = os.environ.get("COMPOSER_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "composer-pipeline"


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents with the mode of new folders."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if path.is_dir():  # another process was faster
            return
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(path)) from None
    with suppress(PermissionError):  # a file system without modes; doctor reports it
        path.chmod(folder_mode())


def create_file(path: Path) -> int:
    """Create a file with its mode and return its descriptor, open for writing."""
    mode = file_mode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with suppress(PermissionError):  # a file system without modes; doctor reports it
        os.fchmod(descriptor, mode)  # the umask may have taken bits away
    return descriptor


def too_open(root: Path) -> Iterator[Path]:
    """Yield the paths from ``root`` down that others may read or enter."""
    for folder, names, files in os.walk(root):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            if not path.is_symlink() and _excess(path):
                yield path
        names.sort()


def close_to_others(root: Path) -> int:
    """Give what :func:`too_open` finds the mode of new files and folders; return how many."""
    found = list(too_open(root))
    for path in found:
        path.chmod(folder_mode() if path.is_dir() else file_mode())
    return len(found)


def _excess(path: Path) -> int:
    allowed = folder_mode() if path.is_dir() else file_mode()
    return stat.S_IMODE(path.stat().st_mode) & 0o077 & ~allowed


class Replacement:
    """The new content of a file, beside it until :meth:`commit`."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a rename would remove it
            raise InputError(f"{path} is a device or a pipe, not a file")
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
    """Turn a failed write into one sentence."""
    try:
        yield
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise InputError(f"{what} is not writable: {reason(error)}") from error
    except OSError as error:
        raise StorageError(f"{what} is not writable: {reason(error)}") from error


@contextmanager
def out_of_space(what: str, *also: type[Exception]) -> Iterator[None]:
    """Turn a full or read-only disk into one sentence; other errors pass unchanged."""
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
    """Yield a stream whose bytes replace the file's when the block succeeds."""
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
    """Lock an open file until it is closed; the kernel frees the lock of a killed process."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        busy()
        fcntl.flock(file, fcntl.LOCK_EX)


def reason(error: OSError) -> str:
    """Return one line of why a write failed; obstore's message has a page of debugging."""
    return error.strerror or str(error).partition("\n")[0][:200] or type(error).__name__


def json_objects(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each line of ``text`` that is not blank."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON: {error.msg}") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: not a JSON object")
        yield number, row


def mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def mapping_at(value: Any, key: str) -> dict[str, Any]:
    """Return the object at a key of an object, else an empty one."""
    return mapping(mapping(value).get(key))


def mappings(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; none for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any) -> str | None:
    """Return the value if it is text."""
    return value if isinstance(value, str) else None


def integer(value: Any) -> int | None:
    """Return the value if it is an integer and not a bool."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(value: Any) -> bool | None:
    """Return the value if it is true or false."""
    return value if isinstance(value, bool) else None


def strings(value: Any) -> Iterator[str]:
    """Yield every text inside a JSON value, in order, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
