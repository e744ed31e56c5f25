"""A store that fails is one sentence: which object, why, and what helps; after some patience."""

import errno
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from composer_pipeline.diloco import store as stores
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.store import ObjectStore, StoreFailed, purpose
from composer_pipeline.errors import InputError, StorageError
from tests.diloco.test_true_rounds import delta, joined

EXPIRED = GenericError("Generic S3 error: Client error 400: <Code>ExpiredToken</Code>\nDebug")
FORBIDDEN = PermissionDeniedError("403 Forbidden: <Code>AccessDenied</Code>")
UNREACHABLE = GenericError("Generic S3 error: error sending request\nDebug source: a page of it")


class Api:
    """Stands where obstore does: fails so often, then works."""

    def __init__(self, store: ObjectStore, error: Exception, times: int = 10**9) -> None:
        self._real, self._error, self.left, self.calls = store._api, error, times, 0
        store._api = self

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.left:
                self.left -= 1
                raise self._error
            return getattr(self._real, name)(*args, **options)

        return call


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "FIRST_PAUSE_S", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path), "runs/run")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "no"), "it is not writable: No space left on device; free some"),
        (GenericError("Unable to write (os error 28)"), "No space left on device; free some room"),
        (GenericError("<Code>XMinioStorageFull</Code>"), "the store is full; free some room"),
        (EXPIRED, "the credentials have expired; renew them"),
        (FORBIDDEN, "it is forbidden; let these credentials list, read and write"),
        (UnauthenticatedError("401"), "not accepted; set those of the store in the environment"),
        (FileNotFoundError("<Code>NoSuchBucket</Code>"), "there is no such bucket; make it"),
        (UNREACHABLE, r"cannot be reached \(Generic S3 error: error sending request\); check"),
    ],
)
def test_a_failure_names_the_objects_purpose_and_the_remedy(store, error, says) -> None:
    Api(store, error)
    full = "full" in says or "space" in says
    with pytest.raises(StorageError if full else InputError, match=says) as first:
        store.create("rounds/3/commit.json", b"{}")
    assert "the commit of round 3 (rounds/3/commit.json) cannot be written" in str(first.value)
    assert "\n" not in str(first.value)
    store.patience_s = 0.001
    with pytest.raises(StorageError if full else StoreFailed, match=says):
        store.put("rounds/3/commit.json", b"{}")


def test_a_store_that_comes_back_in_time_loses_nothing(tmp_path: Path) -> None:
    """Three failures in a row at each dangerous moment: the round is committed all the same."""
    replica = joined(tmp_path)
    for round_, error in enumerate((UNREACHABLE, FORBIDDEN, OSError(errno.ENOSPC, "full")), 1):
        api = Api(replica.log.store, error, times=3)
        assert replica.sync(delta(1), tokens=1).contributed
        assert api.left == 0
        replica.log.store._api = api._real
        commit = replica.log.commit(round_)
        assert commit is not None
        assert commit.included


def test_a_creation_whose_answer_was_lost_is_not_made_twice(store: ObjectStore) -> None:
    store.patience_s = 60.0
    real = store._api

    class Lost:
        def put(self, *args: Any, **options: Any) -> None:
            real.put(*args, **options)
            store._api = real
            raise UNREACHABLE

    store._api = Lost()
    assert store.create("rounds/1/commit.json", b"mine") is False
    assert store.get("rounds/1/commit.json") == b"mine"


@pytest.mark.parametrize("way", ["overwrites", "refuses"])
def test_a_store_without_exclusive_creation_is_refused_at_join(tmp_path, monkeypatch, way) -> None:
    def overwriting(self: ObjectStore, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True

    if way == "overwrites":
        monkeypatch.setattr(ObjectStore, "create", overwriting)
    else:
        opened = ObjectStore.__init__

        def without(self: ObjectStore, url: str, prefix: str) -> None:
            opened(self, url, prefix)
            Api(self, NotSupportedError("501 NotImplemented"))

        monkeypatch.setattr(ObjectStore, "__init__", without)
    said = rf"the store {tmp_path} has no exclusive creation \(If-None-Match\).* use a store"
    with pytest.raises(InputError, match=said):
        joined(tmp_path)
    monkeypatch.undo()
    assert OuterLog.open(str(tmp_path), "run").spec() is None


def test_what_is_missing_is_an_answer_and_not_waited_for(store: ObjectStore) -> None:
    store.patience_s = 3600.0
    assert store.get("nothing") is None
    store.delete("nothing")
    assert store.list("nowhere") == []
    assert store.create("one", b"1")
    assert not store.create("one", b"2")
    with pytest.raises(AlreadyExistsError):
        store._retrying("written", "x", lambda: (_ for _ in ()).throw(AlreadyExistsError("x")))


def test_every_kind_of_object_has_a_purpose(tmp_path: Path) -> None:
    replica = joined(tmp_path)
    replica.sync(delta(1))
    for entry in replica.log.store.list(""):
        assert purpose(entry.key).endswith(f" ({entry.key})")
