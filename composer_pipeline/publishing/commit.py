"""Commit files to a repository of the Hub, check what arrived, and purge what was withdrawn."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.publishing.hub import (
    Content,
    Entry,
    Failure,
    Hub,
    Remote,
    hashes_of,
    plan_changes,
    token_of,
)
from composer_pipeline.redaction.scanning import opened

#: Given what the repository holds, returns what it shall hold; may refuse.
Prepare = Callable[[Remote], Mapping[str, Content]]
#: Whether a path belongs to a publication, so that it is deleted where it is no longer in one.
Ours = Callable[[Remote, str], bool]


@dataclass(frozen=True)
class CommitResult:
    """What a publication did.

    ``head`` is the new commit, or the one that already held the files; ``before`` what the
    repository held before, ``files`` what it holds now; ``changes`` path to ``add``, ``replace``
    or ``delete``.
    """

    head: str
    before: Remote
    files: Mapping[str, Content]
    changes: dict[str, str]


def commit_files(
    hub: Hub, prepare: Prepare, ours: Ours, *, private: bool, dry_run: bool
) -> CommitResult:
    """Make the repository hold the files of ``prepare``, in one commit; create it where needed."""
    remote = hub.remote(private=private)
    if remote is None and not dry_run:
        prepare(Remote())  # what may not be published makes no repository either
        remote = hub.create(private=private)
    remote = remote or Remote()
    retry = hub.retry()
    while True:
        before = remote
        files = prepare(before)
        held = {path: entry.oid for path, entry in before.files.items()}
        changes = plan_changes(files, held, lambda path: ours(before, path))  # noqa: B023
        if dry_run or not changes:
            return CommitResult(before.head, before, files, changes)
        try:
            head = hub.commit(files, changes, before.head)
            if head != before.head:
                return CommitResult(head, before, files, changes)
            # The client found nothing to commit: an earlier attempt did it, and is not shown yet.
            failure = Failure("the Hub does not show its newest commit", transient=True)
        except hub.errors as error:
            # A lost answer may be a commit that was made: look again before the next attempt.
            failure = hub.failure(error)
        retry.wait(failure)
        remote = hub.remote(private=private) or Remote()


def tagged(
    hub: Hub, tag: str, files: Mapping[str, Content], ours: Ours, *, private: bool
) -> CommitResult | None:
    """Return the commit of a tag, if there is one; raise InputError if it has other files."""
    remote = hub.remote(private=private)
    head = hub.refs().get(f"refs/tags/{tag}") if remote else None
    if remote is None or head is None:
        return None
    held = {path: entry.oid for path, entry in hub.tree(head).items()}
    if plan_changes(files, held, lambda path: ours(remote, path)):
        raise InputError(f"{tag} of {hub.subject} has other files; give this version a new number")
    return CommitResult(head, remote, files, {})


#: Columns that identify the rows of a configuration; the first that exists is used.
_IDS = ("pair_id", "reply_id", "state_id")


def check_published(hub: Hub, head: str, files: Mapping[str, Content]) -> dict[str, int]:
    """Compare a commit with what was sent, by hash; return the rows of each Parquet file in it."""
    tree = hub.tree(head, just_made=True)
    rows = {}
    for path, content in files.items():
        entry = tree.get(path)
        if entry is None or entry.oid not in hashes_of(content):
            raise ComposerError(
                f"{hub.subject}: {path} of commit {head[:8]} is not what was sent; publish again"
            )
        if path.endswith(".parquet"):
            rows[path] = _row_count(hub, path, head, entry)
            sent = pq.read_metadata(opened(content)).num_rows
            if rows[path] != sent:
                raise ComposerError(
                    f"{hub.subject}: {path} of commit {head[:8]} has {rows[path]} rows instead of"
                    f" {sent}; publish again"
                )
    return rows


def by_split(by_path: Mapping[str, int]) -> dict[str, int]:
    """Add up numbers by configuration and split, from paths ``data/pairs/train….parquet``."""
    total: Counter[str] = Counter()
    for path, number in by_path.items():
        parts = path.removesuffix(".parquet").split("/")
        total[f"{parts[-2]}/{parts[-1].split('-')[0]}" if len(parts) > 1 else path] += number
    return dict(total)


def row_changes(hub: Hub, done: CommitResult) -> dict[str, tuple[int, int]]:
    """Return how many rows a commit adds to and removes from each Parquet file, by path.

    Rows are identified by their id; a row of which only other columns differ counts as neither.
    """
    found = {}
    for path in (path for path in done.changes if path.endswith(".parquet")):
        new, old = Counter[str](), Counter[str]()
        if path in done.files:
            new = _ids(opened(done.files[path]))
        if entry := done.before.files.get(path):
            with suppress(pa.ArrowInvalid):  # somebody else's file, which is replaced
                old = hub.read_ranges(path, done.before.head, entry.size, _ids)
        found[path] = ((new - old).total(), (old - new).total())
    return found


def _row_count(hub: Hub, path: str, revision: str, entry: Entry) -> int:
    rows = hub.read_ranges(path, revision, entry.size, lambda f: pq.read_metadata(f).num_rows)
    return int(rows)


def _ids(source: Any) -> Counter[str]:
    file = pq.ParquetFile(source, buffer_size=1 << 16)
    names = [name for name in _IDS if name in file.schema_arrow.names][:1]
    counted: Counter[str] = Counter()
    # One thread: no thread of Arrow's may hold a Python file when the process ends.
    for batch in file.iter_batches(columns=names, use_threads=False) if names else ():
        counted.update(str(value) for value in batch.column(0).to_pylist())
    return counted


# -- withdrawals -------------------------------------------------------------------

#: Seconds for which a change may be invisible.
_INVISIBLE_S = 30.0
_MAIN = "refs/heads/main"


@dataclass(frozen=True)
class Purged:
    """What was removed, and the current head of main."""

    head: str
    tags: int = 0
    objects: int = 0


def purge(hub: Hub, head: str) -> Purged:
    """Leave only the files of ``head`` in the repository and its history, and verify that.

    Tags whose files differ from the head's are deleted, the history of main becomes one commit,
    and stored objects that no file of the head uses are deleted for good.
    """
    api, kind = hub.api, hub.repo_type
    wanted = hub.tree(head, just_made=True)
    tags = [
        ref.removeprefix("refs/tags/")
        for ref, commit in hub.refs().items()
        if ref.startswith("refs/tags/") and _differs(hub.tree(commit), wanted)
    ]
    for tag in tags:
        hub.call(lambda tag=tag: _delete_tag(hub, tag))  # type: ignore[misc]
    if _commits(hub) > 1:
        hub.call(
            lambda: api.super_squash_history(
                hub.repo, repo_type=kind, commit_message="Publish, without what was withdrawn"
            )
        )
    orphans = _orphans(hub, wanted)
    if orphans:
        hub.call(
            lambda: api.permanently_delete_lfs_files(
                hub.repo, orphans, repo_type=kind, rewrite_history=True
            )
        )
    return Purged(_verify_purge(hub, wanted), len(tags), len(orphans))


def _verify_purge(hub: Hub, wanted: Mapping[str, Entry]) -> str:
    """Return the head of main once no ref, commit or object has other files than ``wanted``."""
    retry = hub.retry()
    while True:
        refs = hub.refs()
        bad = [
            f"{ref.removeprefix('refs/heads/').removeprefix('refs/tags/')} still holds other files"
            for ref, commit in refs.items()
            if _differs(hub.tree(commit, just_made=True), wanted)
        ]
        if (commits := _commits(hub)) > 1:
            bad.append(f"main still has {commits} commits")
        if orphans := _orphans(hub, wanted):
            bad.append(f"{len(orphans)} deleted objects are still stored")
        if not bad:
            return refs[_MAIN]
        retry.wait(Failure("; ".join(bad), transient=retry.waited_s < _INVISIBLE_S))


def _differs(tree: Mapping[str, Entry], wanted: Mapping[str, Entry]) -> bool:
    return any(wanted.get(path) != entry for path, entry in tree.items() if path[0] != ".")


def _delete_tag(hub: Hub, tag: str) -> None:
    with suppress(hub.hub.errors.RevisionNotFoundError):  # an answer was lost: it is gone
        hub.api.delete_tag(hub.repo, tag=tag, repo_type=hub.repo_type)


def _commits(hub: Hub) -> int:
    found = hub.call(lambda: hub.api.list_repo_commits(hub.repo, repo_type=hub.repo_type))
    return len(found)


def _orphans(hub: Hub, wanted: Mapping[str, Entry]) -> list[Any]:
    """Return the stored objects that no file of the head uses."""
    kept = {entry.oid for entry in wanted.values() if entry.lfs}
    found = hub.call(lambda: list(hub.api.list_lfs_files(hub.repo, repo_type=hub.repo_type)))
    return [entry for entry in found if entry.file_oid not in kept]


# -- what is published -------------------------------------------------------------


def published_refs(repo: str, *, endpoint: str | None = None) -> dict[str, str]:
    """Return every ref of a dataset repository to its commit."""
    with _dataset(repo, endpoint) as hub:
        return hub.refs()


def published_rows(repo: str, commit: str, *, endpoint: str | None = None) -> dict[str, int]:
    """Return the rows of each configuration and split of a commit, from its Parquet footers."""
    with _dataset(repo, endpoint) as hub:
        files = [(path, e) for path, e in hub.tree(commit).items() if path.endswith(".parquet")]
        return by_split({path: _row_count(hub, path, commit, entry) for path, entry in files})


def first_rows(repo: str, commit: str) -> dict[str, list[str]]:
    """Return the columns of each configuration and split, as ``datasets`` streams its first row.

    ``datasets`` uses the Hub that ``HF_ENDPOINT`` names.
    """
    from datasets import get_dataset_config_names, load_dataset

    token = token_of("HF_TOKEN", dry_run=False)
    found = {}
    for config in get_dataset_config_names(repo, revision=commit, token=token):
        for split, rows in load_dataset(
            repo, config, revision=commit, token=token, streaming=True
        ).items():
            found[f"{config}/{split}"] = sorted(next(iter(rows)))
    return found


def _dataset(repo: str, endpoint: str | None) -> Hub:
    return Hub(repo, token_of("HF_TOKEN", dry_run=False), endpoint, "dataset")
