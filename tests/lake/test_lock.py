"""The lease of a lake in a bucket: one holder, taken over only from the dead."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from composer_pipeline.errors import StorageError
from composer_pipeline.lake.place import bucket_lock
from composer_pipeline.lake.store import Lake

URL = "s3://bucket/locked/lake"


def _names(s3: Any) -> list[str]:
    listed = s3.list_objects_v2(Bucket="bucket", Prefix="locked/lake/.locks")
    return [item["Key"].rpartition("/")[2] for item in listed.get("Contents", [])]


def test_only_one_holds_it_and_nothing_is_left(s3: Any) -> None:
    inside, most, gate = [0], [0], threading.Lock()

    def work() -> None:
        with Lake(URL).locked("traces"):
            with gate:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with gate:
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert _names(s3) == []


def test_a_living_holder_is_waited_for(s3: Any) -> None:
    told, entered = threading.Event(), threading.Event()

    def second() -> None:
        with bucket_lock(URL, "traces", told.set, lease_s=60):
            entered.set()

    with Lake(URL).locked("traces"):
        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(60)
        assert not entered.is_set()
    thread.join(60)
    assert entered.is_set()


def test_a_dead_holders_lease_is_taken_over(s3: Any) -> None:
    s3.put_object(Bucket="bucket", Key="locked/lake/.locks/traces", Body=b"dead")
    told: list[bool] = []
    with bucket_lock(URL, "traces", lambda: told.append(True), lease_s=1):
        assert _names(s3) == ["traces"]
    assert told == [True]
    assert _names(s3) == []


def test_who_stood_still_too_long_fails(s3: Any) -> None:
    """Another process took the lease over; this one must not say that all is well."""
    thief = partial(s3.put_object, Bucket="bucket", Key="locked/lake/.locks/other", Body=b"thief")
    with pytest.raises(StorageError, match="stalled and another one took over its lock"):
        _hold(thief)
    assert _names(s3) == ["other"], "the other's lease stays"
    s3.delete_object(Bucket="bucket", Key="locked/lake/.locks/other")  # tests run in any order


def _hold(work: Callable[[], object]) -> None:
    with bucket_lock(URL, "other", lambda: None, lease_s=60):
        work()
