"""A bucket or a folder, as the few operations that the outer log needs.

Belongs here: create-exclusive, overwrite, read, list, over obstore. Does not belong
here: key names and what the objects mean (``log``). No torch.

Only operations that every backend has: a folder has no compare-and-swap, so nothing
relies on it. Credentials come from the backend's own environment variables.
"""

import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple

from composer_pipeline.errors import InputError
from composer_pipeline.files import out_of_space


class Entry(NamedTuple):
    """One listed object; ``last_modified`` is by the store's own clock."""

    key: str
    last_modified: dt.datetime
    size: int


class ObjectStore:
    """Objects below ``prefix`` of one folder or bucket URL.

    Args:
        url: a folder path, or any URL that ``obstore.store.from_url`` knows (``s3://…``).
        prefix: key prefix of every object, without slashes at the ends.

    Raises:
        InputError: obstore is missing, the URL is unknown, or the folder cannot be made.
    """

    def __init__(self, url: str, prefix: str) -> None:
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError
            from obstore.store import LocalStore, from_url
        except ModuleNotFoundError:
            raise InputError(
                "DiLoCo needs the package obstore: pip install 'composer-pipeline[train]'"
            ) from None
        self.url, self.prefix = url, prefix
        self._api: Any = obstore
        self._exists, self._error = AlreadyExistsError, BaseError
        try:
            if "://" in url:
                self._store: Any = from_url(url)
            else:
                folder = Path(url).expanduser().absolute()
                self._store = LocalStore(folder, mkdir=True)
        except (OSError, BaseError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"the outer log {url} cannot be opened: {reason}") from None

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}"

    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing it; readers see the old bytes or the new ones.

        Raises:
            StorageError: the disk is full or read-only.
        """
        with out_of_space(f"the outer log {self.url}", self._error):
            self._api.put(self._store, self._key(key), data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object only if the key is free; return whether this call wrote it.

        Raises:
            StorageError: the disk is full or read-only.
        """
        try:
            with out_of_space(f"the outer log {self.url}", self._error):
                self._api.put(self._store, self._key(key), data, mode="create", use_multipart=False)
        except self._exists:
            return False
        return True

    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object, or None where there is none."""
        try:
            return bytes(self._api.get(self._store, self._key(key)).bytes())
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> list[Entry]:
        """Return all objects below ``folder``, at any depth, sorted by key."""
        start = len(self.prefix) + 1
        found = [
            Entry(meta["path"][start:], meta["last_modified"], meta["size"])
            for chunk in self._api.list(self._store, prefix=self._key(folder))
            for meta in chunk
        ]
        return sorted(found)
