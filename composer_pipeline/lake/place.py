"""Where a lake is: its file system, whether a lake is there, and its locks."""

import contextlib
import glob
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import fsspec

from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.files import create_file, make_folder, take_lock, writing
from composer_pipeline.lake.schema import TABLES

#: Written by ``init``: a lake without a table is recognised by it.
MARKER = "lake.json"
#: Written last by a build of the dataset.
BUILD = "dataset.json"
#: Holds the rows of an unfinished build of the dataset.
UNFINISHED = ".dataset-build"
_SIGNS = frozenset({*TABLES, MARKER, "archive", "ledger.db"})


def address(url: str) -> tuple[str, bool]:
    """Return a lake's URL, or its absolute path on a local disk, and whether it is on one."""
    if _protocol(url) != "file":
        return url, False
    return str(Path(url.removeprefix("file://")).expanduser().absolute()), True


def _protocol(url: str) -> str:
    return url.split("://", 1)[0] if "://" in url else "file"


def file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the file system of an :func:`address` and the root in it, without a final slash."""
    if _protocol(url) in ("s3", "gs", "az"):
        register_obstore()
        # The default keeps a wrong endpoint waiting for three minutes.
        patient = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
        options = {"retry_config": patient, **options}
    if url.partition("://")[2] == "" and "://" in url:
        raise InputError(f"lake {url} names no bucket")
    with reaching(url):
        try:
            fs, root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise InputError(f"lake {url}: {_line(error)}") from error
    return fs, str(root).rstrip("/")


def register_obstore() -> None:
    """Let fsspec open buckets through obstore."""
    try:
        from obstore.fsspec import register
    except ImportError as error:
        raise InputError(
            "a bucket as lake needs: pip install 'composer-pipeline[cloud]'"
        ) from error
    register(["s3", "gs", "az"])


def holds_lake(fs: Any, root: str, url: str) -> bool:
    """Return True if there is a table, an archive, a ledger, or what ``init`` writes."""
    with reaching(url):
        try:
            found = fs.ls(root, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return not _SIGNS.isdisjoint(str(path).rstrip("/").rpartition("/")[2] for path in found)


def partition_folders(fs: Any, table: str, levels: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the ``key=value`` folder names of each partition that has its file."""
    if "file" not in fs.protocol:
        pattern = "/".join([glob.escape(table), *levels, "part.parquet"])
        for path in fs.glob(pattern):
            yield tuple(str(path).split("/")[-len(levels) - 1 : -1])
        return
    # Twenty times as fast as a glob, which matters with years of days.
    found: list[tuple[str, ...]] = [()]
    for level in levels:
        key = level.removesuffix("*")
        found = [
            (*above, name)
            for above in found
            for name in ([level] if key == level else _names("/".join([table, *above])))
            if name.startswith(key)
        ]
    yield from (
        parts
        for parts in found
        if os.path.exists("/".join([table, *parts, "part.parquet"]))  # noqa: PTH110  quicker
    )


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  quicker than a Path an entry
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Turn what a file system raises into one sentence: the lake cannot be reached."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, InputError):
        raise
    except _bucket_or_os() as error:
        raise InputError(f"lake {url} cannot be reached: {_line(error)}") from error


def _bucket_or_os() -> tuple[type[Exception], ...]:
    return (OSError, *bucket_errors())


def bucket_errors() -> tuple[type[Exception], ...]:
    """Return the errors of obstore, if it is loaded."""
    found = sys.modules.get("obstore.exceptions")
    return (found.BaseError,) if found is not None else ()


def _line(error: Exception) -> str:
    """Return the first line of a message; obstore adds a page of debugging."""
    text = str(error).strip() or type(error).__name__
    return text.partition("\n")[0][:200]


def check_folder(folder: Path, what: str) -> None:
    """Check that a folder can be written or created, and leave nothing behind."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"{what} is not writable: {folder} is not a folder")
    probe = folder / f".probe-{uuid.uuid4().hex}"
    with writing(what):
        probe.touch()
    probe.unlink()


def check_bucket(fs: Any, root: str, what: str) -> None:
    """Check that a bucket can be written, and leave nothing behind."""
    probe = f"{root}/.probe-{uuid.uuid4().hex}"
    with writing(what):
        fs.pipe_file(probe, b"")
    fs.rm_file(probe)


def remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and those above it, up to ``root``, as long as they are empty."""
    with suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent


def safe_value(value: str) -> str:
    """Return a partition value that is safe in a folder name."""
    if not value or any(char in value for char in "/\\=*?[]") or value.startswith("."):
        raise InputError(f"{value!r} cannot be a partition value")
    return value


def is_day(text: str) -> bool:
    """Return True for a date of the form ``YYYY-MM-DD``."""
    with contextlib.suppress(ValueError):
        return date.fromisoformat(text).isoformat() == text
    return False


def check_day(day: str, what: str = "day") -> str:
    """Return a date of the form ``YYYY-MM-DD`` unchanged; raise InputError for anything else."""
    if not isinstance(day, str) or not is_day(day):
        raise InputError(f"{what} {day!r} is not a date of the form YYYY-MM-DD")
    return day


def check_days(days: Iterable[str]) -> list[str]:
    """Return days sorted, each once; raise InputError for one string or what is no date."""
    if isinstance(days, str) or not isinstance(days, Iterable):
        raise InputError(f"days {days!r} is no list of days, such as ['2026-11-16']")
    return sorted({check_day(day) for day in days})


#: What a lake holds besides its tables: files, and folders with whatever is below them.
_FILES = frozenset(
    {
        *("lake.json", "dataset.json", "exports.json", "vault.json", "forgotten.json"),
        *("withdrawn.json", "publications.json", "forget.json", "consent.yaml"),
        *("ledger.db", "ledger.db-wal", "ledger.db-shm"),
    }
)
_FOLDERS = frozenset(
    {
        *("archive", "catalogue", "checks", "made", "models", "nights", "receipts", "reports"),
        *("runs", "second_look", "tool_schemas"),
    }
)


def is_known(name: str) -> bool:
    """Return True if a file, by its path below the root, is one that a lake holds."""
    parts = name.split("/")
    if any(part.startswith(".") for part in parts):  # locks, and what a killed writer left
        return True
    if parts[0] not in TABLES:
        return name in _FILES or parts[0] in _FOLDERS
    keys = TABLES[parts[0]].partition_keys
    values = [part.partition("=") for part in parts[1:-1]]
    return (
        parts[-1] == "part.parquet"
        and tuple(key for key, _, _ in values) == tuple(keys)
        and all(key != "day" or is_day(value) for key, _, value in values)
    )


FOLDER = ".locks"

#: Seconds after which a lease that was not renewed expires; it is renewed four times as often.
LEASE_S = 60.0
_POLL_S = 0.5


@contextmanager
def folder_lock(root: Path, name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock of a lake in a folder; wait while another process holds it."""
    path = root / FOLDER / name
    with writing(f"lake {root}"):
        make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            os.close(create_file(path))
        file = path.open("ab")
    with file:
        take_lock(file, waiting)
        yield


@contextmanager
def bucket_lock(
    url: str, name: str, waiting: Callable[[], None], *, lease_s: float = LEASE_S
) -> Iterator[None]:
    """Hold a lock of a lake in a bucket; wait while another process holds it."""
    lease = _Lease(url, name)
    if not lease.take(lease_s):
        waiting()
        while not lease.take(lease_s):
            time.sleep(_POLL_S)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease_s / 4) and lease.renew():
            pass

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        ours = lease.release()
    if not ours:
        raise StorageError(
            f"lake {url}: this process stalled and another one took over its lock; run it again"
        )


class _Lease:
    """A lock object, made of what S3, GCS and Azure all have: conditional puts."""

    def __init__(self, url: str, name: str) -> None:
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
            from obstore.store import from_url
        except ModuleNotFoundError:
            raise InputError(
                "a bucket as lake needs: pip install 'composer-pipeline[cloud]'"
            ) from None
        self._api: Any = obstore
        self._taken = (AlreadyExistsError, PreconditionError)
        self._error = BaseError
        self._url, self._key = url, f"{FOLDER}/{name}"
        self._owner = uuid.uuid4().hex
        self._store: Any = from_url(url)
        self._ours: dict[str, str] = {}

    def take(self, lease_s: float) -> bool:
        """Create the object or take over an expired one; return True if it is ours."""
        if self._put("create"):
            return True
        try:
            held = self._api.head(self._store, self._key)
        except FileNotFoundError:
            return False  # released just now: the next attempt creates it
        age = (self._now() - held["last_modified"]).total_seconds()
        return age > lease_s and self._put(_unchanged(held))

    def renew(self) -> bool:
        """Put the object again if it is still ours; return True if it was."""
        return self._put(self._ours)

    def release(self) -> bool:
        """Remove the object if it is still ours; return True if it was."""
        # Renewed first, so that it cannot expire before it is removed.
        if not self.renew():
            return False
        self._api.delete(self._store, self._key)
        return True

    def _put(self, mode: Any) -> bool:
        try:
            put = self._api.put(
                self._store, self._key, self._owner.encode(), mode=mode, use_multipart=False
            )
        except self._taken:
            return False
        except self._error as error:
            reason = str(error).partition("\n")[0][:200]
            raise StorageError(f"lake {self._url} cannot be locked: {reason}") from error
        self._ours = _unchanged(put)
        return True

    def _now(self) -> Any:
        """Return the bucket's time, from an object that is put and removed."""
        probe = f"{FOLDER}/.now-{self._owner}"
        self._api.put(self._store, probe, b"", use_multipart=False)
        now = self._api.head(self._store, probe)["last_modified"]
        self._api.delete(self._store, probe)
        return now


def _unchanged(known: Mapping[str, Any]) -> dict[str, str]:
    """Return the condition for replacing an object: S3 has tags, GCS versions."""
    return {name: known[name] for name in ("e_tag", "version") if known.get(name)}
