"""A withdrawal reaches the Hub: no revision, tag or object holds the rows afterwards."""

import copy
import io
import re
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import add_withdrawal, publications
from composer_pipeline.publishing.gates import PublishRefused
from composer_pipeline.testing.hub.repository import is_lfs, oid_of
from composer_pipeline.testing.hub.server import Fault, LoopbackHub, Planned
from tests.publishing.conftest import REPO, fill, row, send

SECRET = "the words of the session that was taken back"


def rows(*, withdrawn: bool) -> list[dict[str, Any]]:
    """Return training rows, with or without those of a session."""
    taken = [
        row(i, "train", session_id="taken", prompt=[{"role": "user", "content": f"{SECRET} {i}"}])
        for i in (20, 21)
    ]
    return [row(i, "train") for i in range(5)] + ([] if withdrawn else taken)


@pytest.fixture
def history(tmp_path: Path, hub: LoopbackHub) -> Lake:
    """A lake that was published twice with the session, and then withdrew it."""
    lake = Lake(tmp_path / "history")
    for validation in (7, 8):
        fill(lake, rows(withdrawn=False), [row(validation, "validation")])
        send(lake, hub)
    add_withdrawal(lake, "session", "taken", ["taken"])
    return lake


def held(hub: LoopbackHub) -> list[str]:
    """Return where the words still are: by file of each reachable commit, and by object."""

    def has(data: bytes) -> bool:
        if data[:4] == b"PAR1":
            return SECRET in str(pq.read_table(io.BytesIO(data)).to_pylist())
        return SECRET.encode() in data

    repo = hub.repos[REPO]
    files = [
        f"{commit.oid} {path}"
        for commit in repo.every
        for path, data in commit.files.items()
        if has(data)
    ]
    stored = [oid for oid in repo.pushed if oid in hub.blobs and has(hub.blobs[oid])]
    return files + stored


def test_afterwards_nothing_holds_the_rows(history: Lake, hub: LoopbackHub) -> None:
    repo = hub.repos[REPO]
    assert len(repo.commits) == 3
    assert len(repo.tags) == 2
    assert held(hub)
    with pytest.raises(PublishRefused, match="withdrawn"):
        send(history, hub)
    fill(history, rows(withdrawn=True), [row(8, "validation")])
    report = send(history, hub)
    assert held(hub) == []
    assert len(repo.every) == 1
    assert repo.tags == {report.tag: repo.head.oid}
    assert report.commit == repo.head.oid
    assert report.removed["pairs/train"] == 2
    assert report.purged["tags"] == 2
    assert report.purged["objects"] > 2
    kept = {oid_of(path, data) for path, data in repo.head.files.items() if is_lfs(path)}
    assert set(repo.pushed) == kept, "no object is stored that no file has"


def test_it_is_done_once_for_each_withdrawal(history: Lake, hub: LoopbackHub) -> None:
    fill(history, rows(withdrawn=True), [row(8, "validation")])
    first = send(history, hub)
    assert len(publications(history)[REPO].withdrawn) == 1
    hub.kinds.clear()
    again = send(history, hub)
    assert (again.commit, again.purged) == (first.commit, {"tags": 0, "objects": 0})
    assert not {"squash", "lfs-delete", "commits"} & set(hub.kinds)
    fill(history, rows(withdrawn=True)[1:], [row(8, "validation")])
    send(history, hub)
    assert len(hub.repos[REPO].commits) == 2, "history goes on"
    add_withdrawal(history, "session", "another", ["another"])
    send(history, hub)
    assert len(hub.repos[REPO].commits) == 1


@pytest.mark.slow
def test_faults_delay_it(history: Lake, hub: LoopbackHub) -> None:
    fill(history, rows(withdrawn=True), [row(8, "validation")])
    before, blobs = copy.deepcopy(hub.repos), dict(hub.blobs)
    note = history.get_bytes("publications.json")
    for kind in ("squash", "lfs-list", "lfs-delete", "tag", "refs", "commits"):
        for fault in (503, "lost", "reset"):
            hub.repos, hub.blobs = copy.deepcopy(before), dict(blobs)
            history.put_bytes("publications.json", note)
            hub.faults = [(kind, cast("Planned", fault))]
            send(history, hub)
            assert (kind, fault, hub.faults, held(hub)) == (kind, fault, [], [])
            assert len(hub.repos[REPO].tags) == 1


@pytest.mark.parametrize("kind", ["squash", "lfs-delete"])
def test_one_that_ends_early_is_done_by_the_next(
    history: Lake, hub: LoopbackHub, kind: str
) -> None:
    fill(history, rows(withdrawn=True), [row(8, "validation")])
    hub.faults = [(kind, 403)]
    with pytest.raises(ComposerError, match="the token may not write there"):
        send(history, hub)
    assert publications(history)[REPO].withdrawn == []
    send(history, hub)
    assert held(hub) == []
    assert len(publications(history)[REPO].withdrawn) == 1


@pytest.mark.parametrize("where", ["branches", "pulls"])
def test_a_branch_of_somebody_that_still_has_them_is_named(
    history: Lake, hub: LoopbackHub, where: str
) -> None:
    repo = hub.repos[REPO]
    name = {"branches": "mine", "pulls": "refs/pr/1"}[where]
    getattr(repo, where)[name] = repo.commits[1].oid
    fill(history, rows(withdrawn=True), [row(8, "validation")])
    with pytest.raises(ComposerError, match=rf"{name} still holds other files"):
        send(history, hub)
    assert publications(history)[REPO].withdrawn == []
    getattr(repo, where).clear()
    repo.forget_unreachable()
    send(history, hub)
    assert held(hub) == []


def test_a_head_that_lags_is_no_proof(history: Lake, hub: LoopbackHub) -> None:
    hub.lag_s = 5.0
    fill(history, rows(withdrawn=True), [row(8, "validation")])
    report = send(history, hub)
    assert held(hub) == []
    assert report.commit == hub.repos[REPO].head.oid


def test_a_new_repository_has_no_past(history: Lake, hub: LoopbackHub) -> None:
    hub.repos.clear()
    fill(history, rows(withdrawn=True), [row(8, "validation")])
    hub.kinds.clear()
    assert send(history, hub).purged == {"tags": 0, "objects": 0}
    assert "squash" not in hub.kinds


def test_a_rate_limit_in_the_middle(history: Lake, hub: LoopbackHub) -> None:
    fill(history, rows(withdrawn=True), [row(8, "validation")])
    hub.faults = [("squash", Fault(429, retry_after=40)), ("lfs-delete", Fault(429, retry_after=9))]
    send(history, hub)
    assert hub.clock() >= 49
    assert re.fullmatch("v2026.11.16-[0-9a-f]{8}", next(iter(hub.repos[REPO].tags)))
