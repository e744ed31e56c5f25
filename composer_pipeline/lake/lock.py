"""One writer at a time where a stage reads what it then replaces.

Belongs here: the lock of a folder and the lease of a bucket. Does not belong here: which stages
need one (``traces.archive``, ``traces.parse``); a stage that replaces whole partitions from other
tables needs none.

On a local disk the kernel holds the lock and releases it when its holder dies. A bucket has an
object: created only where there is none, renewed while its holder lives, taken over by one
other process when it was not renewed for :data:`LEASE_S` by the bucket's own clock. A holder
that was stopped for longer than that and goes on has lost its lease; it fails when it ends.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.files import take_lock, writing
from composer_pipeline.modes import create_file, make_folder

FOLDER = ".locks"

#: Seconds after which a lease that nobody renewed is free; it is renewed in a quarter of that.
LEASE_S = 60.0
_LOOK_EVERY_S = 0.5


@contextmanager
def folder_lock(root: Path, name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock of a lake in a folder; wait while another process holds it.

    Args:
        root: the lake's folder; it is made where it is missing.
        name: of the lock.
        waiting: called once, where another process holds it.

    Raises:
        InputError, StorageError: the folder cannot be written.
    """
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
    """Hold a lock of a lake in a bucket; wait while another process holds it.

    Args:
        url: of the lake.
        name: of the lock.
        waiting: called once, where another process holds it.
        lease_s: seconds after which a lease that was not renewed is free.

    Raises:
        InputError: the ``cloud`` extra is missing.
        StorageError: the bucket refuses, or the lease was lost before the block ended.
    """
    lease = _Lease(url, name)
    told = False
    while not lease.take(lease_s):
        if not told:
            waiting()
            told = True
        time.sleep(_LOOK_EVERY_S)
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
            f"lake {url}: this process stood still, and another one took its lock over;"
            " run it again"
        )


class _Lease:
    """The object of a lock, with only what S3, GCS and Azure all have: conditional puts."""

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
        """Create the object, or take over one that was not renewed; say whether it is ours."""
        if self._put("create"):
            return True
        try:
            held = self._api.head(self._store, self._key)
        except FileNotFoundError:
            return False  # released just now: the next look creates it
        age = (self._now() - held["last_modified"]).total_seconds()
        return age > lease_s and self._put(_unchanged(held))

    def renew(self) -> bool:
        """Put the object again, if it is still ours; say whether it was."""
        return self._put(self._ours)

    def release(self) -> bool:
        """Remove the object if it is still ours; say whether it was."""
        # A lease renewed now is nobody else's until it is removed.
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
        """Return the bucket's time, of an object that is put and removed."""
        probe = f"{FOLDER}/.now-{self._owner}"
        self._api.put(self._store, probe, b"", use_multipart=False)
        now = self._api.head(self._store, probe)["last_modified"]
        self._api.delete(self._store, probe)
        return now


def _unchanged(known: Mapping[str, Any]) -> dict[str, str]:
    """Return the condition of a put over an object as it is known; S3 has tags, GCS versions."""
    return {name: known[name] for name in ("e_tag", "version") if known.get(name)}
