"""Listings that are stale or lack entries, as file shares with caches give them."""

import datetime as dt
import random
import re
from collections.abc import Iterator
from typing import Any

from composer_pipeline.diloco.store import ObjectStore


class Listings:
    """Stands where obstore does for one store; all but its listings is real.

    Args:
        store: of one process.
        stale_s: an object, or a newer version of it, is listed after so many seconds.
        drop: the share of the entries that a listing leaves out, at random.
        hidden: a pattern of keys that no listing has.
        below: a pattern of the listed folders that this is about; by default all.
    """

    def __init__(
        self, store: ObjectStore, *, stale_s: float = 0.0, drop: float = 0.0, hidden: str = "",
        below: str = "",
    ) -> None:  # fmt: skip
        self._real = store._api
        self.stale_s, self.drop, self.hidden, self.below = stale_s, drop, hidden, below
        self._versions: dict[str, list[dict[str, Any]]] = {}
        self._random = random.Random(3)
        self.left_out = 0
        store._api = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def list(self, store: Any, prefix: str) -> Iterator[list[dict[str, Any]]]:
        fresh = [meta for chunk in self._real.list(store, prefix=prefix) for meta in chunk]
        if not re.search(self.below, prefix):
            yield fresh
            return
        shown = [meta for meta in map(self._version, fresh) if meta is not None]
        self.left_out += len(fresh) - len(shown)
        yield shown

    def _version(self, meta: dict[str, Any]) -> dict[str, Any] | None:
        """Return what is listed of an object: its newest version that is old enough."""
        seen = self._versions.setdefault(meta["path"], [])
        if not seen or seen[-1]["last_modified"] != meta["last_modified"]:
            seen.append(meta)
        if self.hidden and re.search(self.hidden, meta["path"]):
            return None
        if self._random.random() < self.drop:
            return None
        limit = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=self.stale_s)
        return next((m for m in reversed(seen) if m["last_modified"] <= limit), None)
