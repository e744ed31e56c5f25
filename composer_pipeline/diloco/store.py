"""A bucket or a folder, as the few operations that the outer log needs, through obstore. No torch.

Only operations that every backend has: a folder has no compare-and-swap, so nothing relies on it.
Credentials come from the backend's own environment variables.
"""

import datetime as dt
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from composer_pipeline.errors import ComposerError, InputError, StorageError
from composer_pipeline.files import replacing

#: Purposes of objects by the beginning of their keys.
_PURPOSES = (
    (r"spec\.json", "the run's spec"),
    (r"probe\.json", "the probe for exclusive creation"),
    (r"inputs\.json", "the list of what replicas need"),
    (r"inputs/", "what replicas need"),
    (r"slots", "the claim of a slot"),
    (r"clock", "the store's clock"),
    (r"members", "the heartbeat of a replica"),
    (r"rounds/(\d+)/delta/", "a replica's change in round {}"),
    (r"rounds/(\d+)/contrib", "a contribution to round {}"),
    (r"rounds/(\d+)/commit", "the commit of round {}"),
    (r"state/(\d+)-", "the state after round {}"),
    (r"events", "the events of a replica"),
    (r"channels", "the state of a replica's channels"),
)
#: Kinds of failures: a pattern of their type and text, the reason, and the remedy.
_KINDS = (
    (
        r"quotaexceeded|storagefull|insufficientstorage|\b507\b",
        "the store is full",
        "free some room and start again",
    ),
    (
        r"expiredtoken|tokenexpired|requestexpired|token.{0,20}expired|expired.{0,20}token",
        "the credentials have expired",
        "renew them in the environment and start again",
    ),
    (
        r"nosuchbucket|bucketnotfound|containernotfound",
        "there is no such bucket",
        "make it, or name another as diloco.log",
    ),
    (
        r"unauthenticated|invalidaccesskeyid|signaturedoesnotmatch|\b401\b",
        "the credentials are not accepted",
        "set those of the store in the environment (for S3: AWS_ACCESS_KEY_ID,"
        " AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL)",
    ),
    (
        r"permission|accessdenied|forbidden|\b403\b|\(os error 13\)",
        "it is forbidden",
        "let these credentials list, read and write below it",
    ),
    (
        r"stale listing",
        "the store's listing is stale, it lacks this object though it was written",
        "mount a file share without caching of folders (NFS: actimeo=0), or use a bucket",
    ),
)


class StoreFailed(ComposerError):
    """A store kept failing for longer than a run waits for it."""


def purpose(key: str) -> str:
    """Return what an object is for, with its key."""
    for pattern, text in _PURPOSES:
        if found := re.match(pattern, key):
            return f"{text.format(*found.groups())} ({key})"
    return key or "its objects"


def no_exclusive_creation(url: str) -> InputError:
    """Return the error for a store in which a round could have two commits."""
    return InputError(
        f"the store {url} has no exclusive creation (If-None-Match), which DiLoCo's outer log"
        " needs; use a store that has it, such as S3, Google Cloud Storage, Azure or a folder"
    )


def failure_of(error: Exception, url: str, key: str, verb: str, *, first: bool) -> ComposerError:
    """Return the error to raise for a library's; ``first``: nothing has worked yet."""
    what = f"the outer log {url}: {purpose(key)} cannot be {verb}"
    if full := _disk_is_full(error):
        return StorageError(f"{what}, it is not writable: {full}; free some room and start again")
    kind: type[ComposerError] = InputError if first else StoreFailed
    text = f"{type(error).__name__} {error}".lower()
    for pattern, reason, remedy in _KINDS:
        if re.search(pattern, text):
            kind = StorageError if reason.endswith("full") else kind
            return kind(f"{what}: {reason}; {remedy}")
    if isinstance(error, FileNotFoundError):
        return kind(f"{what}: it is not there; check whether the place was emptied")
    reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    return kind(
        f"{what}: the store cannot be reached ({reason}); check the network and the endpoint"
    )


def _disk_is_full(error: Exception) -> str:
    """Return the system's message for a full or read-only disk, else nothing."""
    number = error.errno if isinstance(error, OSError) else None
    hidden = re.search(r"\(os error (\d+)\)", str(error))
    number = int(hidden[1]) if number is None and hidden else number
    return os.strerror(number) if number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) else ""


class Pieces:
    """``size`` bytes in pieces, made anew for each pass: to hash, to send, to send again."""

    def __init__(self, size: int, make: Callable[[], Iterator[bytes | memoryview]]) -> None:
        self._size, self._make = size, make

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return self._make()

    def __bytes__(self) -> bytes:
        return b"".join(self)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the bytes as hex."""
        digest = hashlib.sha256()
        for piece in self:
            digest.update(piece)
        return digest.hexdigest()


T = TypeVar("T")
#: Pauses between two tries: the first, the factor, the longest.
FIRST_PAUSE_S, PAUSE_FACTOR, LONGEST_PAUSE_S = 0.2, 2.0, 10.0
#: Bytes that are read at a time: less than what glibc maps anew for each.
CHUNK = 2**18
#: Objects above this go up in parts of ``PART``, a few at a time; a bucket takes 5 GB in one.
PARTS_ABOVE, PART, AT_A_TIME = 16 * 2**20, 8 * 2**20, 2
#: A bucket takes 10 000 parts of an object at most.
MOST_PARTS = 9_000
#: obstore's own retries are few and short, because ours go on for longer.
REQUEST_TRIES, TRYING_S = 2, 15
#: Seconds for which a stale listing is repeated at least: the store answers, so waiting may help.
STALE_S = 10.0


class Entry(NamedTuple):
    """One listed object; ``last_modified`` is by the store's own clock."""

    key: str
    last_modified: dt.datetime
    size: int


class ObjectStore:
    """Objects below ``prefix`` of one folder or bucket URL.

    Every method raises ``InputError``, ``StorageError`` or ``StoreFailed`` with one sentence:
    at once while ``patience_s`` is 0, as it is at first, later once retries have failed for that
    long.

    Args:
        url: a folder path, or any URL that ``obstore.store.from_url`` knows (``s3://…``).
        prefix: key prefix of every object, without slashes at the ends.

    Raises:
        InputError: obstore is missing, the URL is unknown, or the folder cannot be made.
    """

    def __init__(self, url: str, prefix: str) -> None:
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError
            from obstore.store import LocalStore, from_url
        except ModuleNotFoundError:
            raise InputError(
                "DiLoCo needs the package obstore: pip install 'composer-pipeline[train]'"
            ) from None
        self.url, self.prefix, self.patience_s = url, prefix, 0.0
        self._api: Any = obstore
        self._exists, self._unsupported = AlreadyExistsError, NotSupportedError
        self._errors: tuple[type[Exception], ...] = (OSError, BaseError)
        self._folder: Path | None = None
        try:
            if "://" in url:
                seconds = dt.timedelta(seconds=TRYING_S)
                self._store: Any = from_url(
                    url, retry_config={"max_retries": REQUEST_TRIES, "retry_timeout": seconds}
                )
            else:
                self._folder = Path(url).expanduser().absolute()
                self._store = LocalStore(self._folder, mkdir=True)
        except (OSError, BaseError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"the outer log {url} cannot be opened: {reason}") from None

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}".lstrip("/")

    def _retrying(self, verb: str, key: str, call: Callable[[], T]) -> T:
        """Return what ``call`` does, retried for ``patience_s``; it may succeed twice."""
        begun, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                return call()
            except self._exists:
                raise
            except self._errors as error:
                stale = getattr(error, "errno", None) == errno.ESTALE
                if time.monotonic() - begun >= max(self.patience_s, STALE_S * stale):
                    first = not self.patience_s and not stale
                    raise failure_of(error, self.url, key, verb, first=first) from error
            time.sleep(pause)
            pause = min(pause * PAUSE_FACTOR, LONGEST_PAUSE_S)

    def _read(self, key: str, use: Callable[[int, Iterable[Any]], T]) -> T | None:
        """Return what ``use`` makes of an object's size and chunks, or None where there is none."""

        def call() -> T | None:
            try:
                if self._folder is None:
                    answer = self._api.get(self._store, self._key(key))
                    return use(answer.meta["size"], answer.stream(min_chunk_size=CHUNK))
                # obstore would read a file in pieces of 8 KiB, each as a task of its own.
                with (self._folder / self._key(key)).open("rb", buffering=0) as file:
                    size = os.fstat(file.fileno()).st_size
                    return use(size, iter(partial(file.read, CHUNK), b""))
            except FileNotFoundError:
                return None

        return self._retrying("read", key, call)

    def put(self, key: str, data: bytes | Pieces) -> None:
        """Write an object, replacing it; readers see the old bytes or the new ones.

        Large ones go up in parts: those of a killed writer stay invisible, and a bucket's
        rule for unfinished uploads removes them.
        """
        parts, part = len(data) > PARTS_ABOVE, max(PART, -(-len(data) // MOST_PARTS))

        def call() -> None:
            # An iterator is read once, so each try has its own.
            source = iter(data) if parts and isinstance(data, Pieces) else bytes(data)
            self._api.put(
                self._store, self._key(key), source,
                use_multipart=parts, chunk_size=part, max_concurrency=AT_A_TIME,
            )  # fmt: skip

        self._retrying("written", key, call)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object only if the key is free; return whether this call wrote it.

        Also False where an earlier try of it succeeded and its answer was lost.
        """

        def call() -> None:
            try:
                self._api.put(self._store, self._key(key), data, mode="create", use_multipart=False)
            except self._unsupported:
                raise no_exclusive_creation(self.url) from None

        try:
            self._retrying("written", key, call)
        except self._exists:
            return False
        return True

    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object, or None where there is none."""
        return self._read(key, lambda size, chunks: b"".join(chunks))

    def modified(self, key: str) -> dt.datetime | None:
        """Return when an object was written, by the store's clock, or None where there is none."""

        def call() -> dt.datetime | None:
            try:
                found: dt.datetime = self._api.head(self._store, self._key(key))["last_modified"]
            except FileNotFoundError:
                return None
            return found

        return self._retrying("read", key, call)

    def fetch(self, key: str) -> bytearray | None:
        """Return the bytes of a large object, held once, or None where there is none."""

        def use(size: int, chunks: Iterable[Any]) -> bytearray:
            data, at = bytearray(size), 0
            for chunk in chunks:
                view = memoryview(chunk)
                data[at : at + len(view)] = view
                at += len(view)
            del data[at:]  # of an object that became shorter meanwhile
            return data

        return self._read(key, use)

    def digest(self, key: str) -> tuple[int, str] | None:
        """Return size and SHA-256 of an object, read in pieces, or None where there is none."""

        def use(_: int, chunks: Iterable[Any]) -> tuple[int, str]:
            size, digest = 0, hashlib.sha256()
            for chunk in chunks:
                digest.update(chunk)
                size += len(memoryview(chunk))
            return size, digest.hexdigest()

        return self._read(key, use)

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""

        def call() -> None:
            with suppress(FileNotFoundError):
                self._api.delete(self._store, self._key(key))

        self._retrying("removed", key, call)

    def list(self, folder: str, having: str = "") -> list[Entry]:
        """Return all objects below ``folder``, at any depth, sorted by key.

        ``having`` is the key of one that was written before: a listing without it is repeated.
        """
        start = len(self.prefix) + 1 if self.prefix else 0
        prefix = self._key(folder).strip("/")

        def call() -> list[Entry]:
            found = sorted(
                Entry(meta["path"][start:], meta["last_modified"], meta["size"])
                for chunk in self._api.list(self._store, prefix=prefix)
                for meta in chunk
            )
            if having and all(entry.key != having for entry in found):
                self._api.head(self._store, self._key(having))  # it may have been removed
                raise OSError(errno.ESTALE, "stale listing")
            return found

        return self._retrying("listed", having or folder, call)

    def upload(self, key: str, path: Path) -> None:
        """Write a file's bytes as an object, in parts where it is large."""
        self._retrying("written", key, lambda: self._api.put(self._store, self._key(key), path))

    def download(self, key: str, path: Path) -> str:
        """Write an object's bytes to a file, whole or not at all; return their SHA-256."""

        def call() -> str:
            digest = hashlib.sha256()
            chunks = self._api.get(self._store, self._key(key)).stream(min_chunk_size=2**22)
            with replacing(path) as out:
                for chunk in chunks:
                    digest.update(chunk)
                    out.write(chunk)
            return digest.hexdigest()

        return self._retrying("read", key, call)
