"""The Hub on the loopback, asked by the real clients: what it takes, hides and refuses."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from composer_pipeline.testing.hub.repository import Repo
from composer_pipeline.testing.hub.server import Fault, LoopbackHub, RateLimit

REPO = "someone/rows"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def api(hub: LoopbackHub) -> Any:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    api.create_repo(REPO, repo_type="dataset", private=True)
    return api


def commit(api: Any, **files: bytes) -> str:
    """Commit files; ``_`` in a name stands for a dot."""
    from huggingface_hub import CommitOperationAdd

    adds = [CommitOperationAdd(name.replace("_", "."), data) for name, data in files.items()]
    made = api.create_commit(REPO, adds, commit_message="rows", repo_type="dataset")
    return str(made.oid)


def raw(hub: LoopbackHub, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {hub.token}"}
    return httpx.request(method, hub.endpoint + path, headers=headers, **more)


def test_commit_ids_depend_on_content_and_parent(hub: LoopbackHub, api: Any) -> None:
    first = commit(api, a_txt=b"one")
    other = Repo(private=True)
    other.add("initial commit", hub.repos[REPO].commits[0].files)
    assert other.add("rows", {**other.head.files, "a.txt": b"two"}).oid != first
    assert hub.repos[REPO].head.parent == hub.repos[REPO].commits[0].oid


def test_bytes_that_were_not_announced_are_refused(hub: LoopbackHub, api: Any) -> None:
    assert raw(hub, "PUT", f"/lfs/{'0' * 64}", content=b"other bytes").status_code == 400
    assert hub.blobs == {}


@pytest.mark.parametrize("size", [3, 4])
def test_an_object_that_never_arrived_is_not_committed(
    hub: LoopbackHub, api: Any, size: int
) -> None:
    line = '{"key": "header", "value": {"summary": "x"}}\n{"key": "lfsFile", "value": '
    entry = f'{{"path": "a.parquet", "algo": "sha256", "oid": "{"1" * 64}", "size": {size}}}}}\n'
    before = hub.repos[REPO].head.oid
    if size == 4:  # it arrived, with another size
        hub.blobs["1" * 64] = b"abc"
    done = raw(hub, "POST", f"/api/datasets/{REPO}/commit/main", content=line + entry)
    assert (done.status_code, "never arrived" in done.text) == (400, True)
    assert hub.repos[REPO].head.oid == before


@pytest.mark.parametrize(
    "path", ["", "/tree/main", "/refs", "/commits/main", "/lfs-files", "/xet-read-token/main"]
)
def test_a_private_repository_is_hidden_from_others(hub: LoopbackHub, api: Any, path: str) -> None:
    commit(api, a_txt=b"one")
    answer = httpx.get(f"{hub.endpoint}/api/datasets/{REPO}{path}")
    assert (answer.status_code, answer.headers["X-Error-Code"]) == (401, "RepoNotFound")
    file = f"{hub.endpoint}/datasets/{REPO}/resolve/main/a.txt"
    assert httpx.get(file).status_code == 401
    assert httpx.get(file, headers={"Authorization": "Bearer hf_other"}).status_code == 401
    assert raw(hub, "GET", f"/datasets/{REPO}/resolve/main/a.txt").content == b"one"


def test_what_the_unmodified_xet_client_uploads_is_read_back(
    hub: LoopbackHub, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    noise = os.urandom(300_000)
    numbers = b"".join(i.to_bytes(4, "little") for i in range(100_000))  # grouped bytes pack best
    commit(api, a_parquet=noise + b"abc" * 50_000, b_parquet=numbers, c_txt=b"plain")
    files = hub.repos[REPO].head.files
    assert files["a.parquet"] == noise + b"abc" * 50_000
    assert files["b.parquet"] == numbers
    assert "xet-token" in hub.kinds
    assert "put" not in hub.kinds
    sent = hub.xet.stored_bytes()
    commit(api, a_parquet=noise + b"abd" * 10)
    assert hub.repos[REPO].head.files["a.parquet"] == noise + b"abd" * 10
    assert hub.xet.stored_bytes() - sent < 150_000, "known chunks are not sent again"


def test_what_xet_did_not_upload_whole_is_not_committed(
    hub: LoopbackHub, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)

    def damage(_: Repo) -> None:
        (xorb,) = (p for p in hub.xet.folder.rglob("default.*") if p.suffix != ".tagset")
        data = bytearray(xorb.read_bytes())
        data[1000] ^= 1
        xorb.chmod(0o600)
        xorb.write_bytes(data)

    hub.before_commit = damage
    with pytest.raises(HfHubHTTPError, match="never arrived"):
        commit(api, a_parquet=os.urandom(5000))
    assert len(hub.repos[REPO].commits) == 1


def test_a_squash_and_a_deletion_leave_nothing(hub: LoopbackHub, api: Any) -> None:
    old = commit(api, a_parquet=b"secret")
    api.create_tag(REPO, tag="v1", repo_type="dataset")
    new = commit(api, a_parquet=b"public", b_txt=b"x")
    repo = hub.repos[REPO]
    assert [tag.name for tag in api.list_repo_refs(REPO, repo_type="dataset").tags] == ["v1"]
    api.super_squash_history(REPO, repo_type="dataset")
    assert len(repo.commits) == 1
    assert repo.find(old), "the tag keeps it"
    assert repo.find(new) is None
    listed = {f.file_oid: f for f in api.list_lfs_files(REPO, repo_type="dataset")}
    assert len(listed) == 2, "a squash frees no storage"
    kept = {e.lfs.sha256 for e in api.list_repo_tree(REPO, repo_type="dataset") if e.lfs}
    orphans = [entry for oid, entry in listed.items() if oid not in kept]
    api.permanently_delete_lfs_files(REPO, orphans, repo_type="dataset")
    assert [f.file_oid for f in api.list_lfs_files(REPO, repo_type="dataset")] == list(kept)
    assert b"secret" not in hub.blobs.values()
    found = repo.find("v1")
    assert found
    assert "a.parquet" not in found.files
    api.delete_tag(REPO, tag="v1", repo_type="dataset")
    assert repo.others == []
    assert len(api.list_repo_commits(REPO, repo_type="dataset")) == 1


def test_branches(hub: LoopbackHub, api: Any) -> None:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import BadRequestError, HfHubHTTPError, RevisionNotFoundError

    def change(branch: str, *operations: Any) -> str:
        more = {"commit_message": "x", "repo_type": "dataset", "revision": branch}
        return str(api.create_commit(REPO, operations, **more).oid)

    make = partial(api.create_branch, REPO, repo_type="dataset")
    first, head = hub.repos[REPO].head.oid, commit(api, a_txt=b"one")
    add = CommitOperationAdd("b.parquet", b"two")
    with pytest.raises(RevisionNotFoundError):
        change("other", add)
    make(branch="other")
    made = change("other", add, CommitOperationDelete("a.txt"))
    api.create_tag(REPO, tag="v1", revision="other", repo_type="dataset")
    make(branch="old/one", revision=first)
    make(branch="other", revision=first, exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="409"):
        make(branch="main")
    with pytest.raises(RevisionNotFoundError):
        make(branch="new", revision="nothing")
    with pytest.raises(BadRequestError, match="Invalid reference for a branch"):
        make(branch="refs/pr/1")
    refs = api.list_repo_refs(REPO, repo_type="dataset")
    found = {ref.name: ref.target_commit for ref in [*refs.branches, *refs.tags]}
    assert found == {"main": head, "other": made, "old/one": first, "v1": made}
    listed = partial(api.list_repo_files, REPO, repo_type="dataset")
    assert sorted(listed(revision="other")) == [".gitattributes", "b.parquet"]
    assert sorted(listed()) == [".gitattributes", "a.txt"]
    history = api.list_repo_commits(REPO, repo_type="dataset", revision="other")
    assert [entry.commit_id for entry in history] == [made, head, first]


def test_settings_and_names(hub: LoopbackHub, api: Any) -> None:
    api.update_repo_settings(REPO, private=False, repo_type="dataset")
    assert not hub.repos[REPO].private
    hub.moved["someone/former"] = REPO
    assert api.repo_info("someone/former", repo_type="dataset").id == REPO


def test_tokens_that_may_not_write(hub: LoopbackHub, api: Any) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    hub.tokens = {"hf_r": "read", "hf_pr": "pull-requests"}
    for token, said in (("hf_r", "only read"), ("hf_pr", "create_pr=1")):
        other = HfApi(endpoint=hub.endpoint, token=token)
        assert other.repo_info(REPO, repo_type="dataset").private
        with pytest.raises(HfHubHTTPError, match=said):
            commit(other, a_txt=b"one")
    assert len(hub.repos[REPO].commits) == 1


def test_bad_days(hub: LoopbackHub, api: Any) -> None:
    now = [hub.clock()]
    hub.clock = lambda: now[0]
    hub.limits["info"] = RateLimit(requests=1, window_s=60)
    path = f"/api/datasets/{REPO}"
    assert raw(hub, "GET", path).status_code == 200
    refused = raw(hub, "GET", path)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    now[0] += 60.0
    assert raw(hub, "GET", path).status_code == 200
    hub.limits.clear()

    hub.lag_s = 5.0
    first = hub.repos[REPO].head.oid
    assert commit(api, a_txt=b"one") != first
    assert raw(hub, "GET", path).json()["sha"] == first
    now[0] += 5.0
    assert raw(hub, "GET", path).json()["sha"] == hub.repos[REPO].head.oid
    hub.lag_s = 0.0

    hub.faults = [("info", "reset"), ("info", Fault(503, retry_after=2))]
    with pytest.raises(httpx.TransportError):
        raw(hub, "GET", path)
    assert raw(hub, "GET", path).headers["Retry-After"] == "2"
    hub.faults = [("tag", "lost")]
    with pytest.raises(httpx.TransportError):
        raw(hub, "POST", f"{path}/tag/main", json={"tag": "v1"})
    assert set(hub.repos[REPO].tags) == {"v1"}


def test_it_is_served_until_it_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "composer_pipeline.testing.hub", "--token", "hf_mine"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout
        endpoint = served.stdout.readline().strip().removeprefix("HF_ENDPOINT=")
        assert served.stdout.readline().strip() == "HF_TOKEN=hf_mine"
        assert httpx.get(f"{endpoint}/api/datasets/a/b").status_code == 401
        served.send_signal(signal.SIGTERM)
        assert served.wait(30) == 0
