"""Bring a repository to hold certain files, in one commit.

Belongs here: look, plan, commit, and again where somebody was faster. Does not belong here: the
requests (``client``), what a change is (``publishing.changes``) and what is checked afterwards
(``check``).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.hub import (
    Content,
    Entry,
    Hub,
    Remote,
    RemoteFile,
    Trouble,
    hashes_of,
    plan_changes,
    token_of,
)

#: What the repository shall hold, seen what it holds; may refuse.
Prepare = Callable[[Remote], Mapping[str, Content]]
#: Whether a path is one that a publication replaces, so that it is deleted where it is no more.
Ours = Callable[[Remote, str], bool]


@dataclass(frozen=True)
class Brought:
    """What a publication did.

    ``head`` is the new commit, or the one that already held the files; ``before`` what there
    was; ``files`` what is there now; ``changes`` path to ``add``, ``replace`` or ``delete``.
    """

    head: str
    before: Remote
    files: Mapping[str, Content]
    changes: dict[str, str]


def bring(hub: Hub, prepare: Prepare, ours: Ours, *, private: bool, dry_run: bool) -> Brought:
    """Make the repository hold the files that ``prepare`` names; it is created where needed.

    Raises:
        InputError: it is public and ``private`` asks for a private one, or the other way round,
            or the environment keeps the Hub out of reach.
        ComposerError: the Hub refused, or trouble did not pass in two minutes.
    """
    remote = hub.look(private=private)
    if remote is None and not dry_run:
        prepare(Remote())  # what may not be published makes no repository either
        remote = hub.create(private=private)
    remote = remote or Remote()
    patience = hub.patience()
    while True:
        seen = remote
        files = prepare(seen)
        held = {path: entry.oid for path, entry in seen.files.items()}
        changes = plan_changes(files, held, lambda path: ours(seen, path))  # noqa: B023
        if dry_run or not changes:
            return Brought(seen.head, seen, files, changes)
        try:
            return Brought(hub.commit(files, changes, seen.head), seen, files, changes)
        except hub.errors as error:
            # A lost answer may be a commit that was made: look again before the next attempt.
            patience.bear(hub.trouble(error))
            remote = hub.look(private=private) or Remote()


#: Columns that tell one row of a configuration from another, the first that there is.
_IDS = ("pair_id", "reply_id", "state_id")
_BUFFER = 1 << 16


def check_published(hub: Hub, head: str, files: Mapping[str, Content]) -> dict[str, int]:
    """Compare a commit with what was sent; return the rows of each Parquet file in it.

    Each file is known by its hash, and each Parquet file is opened through the Hub.

    Raises:
        ComposerError: something is missing or another.
    """
    tree = hub.tree(head, made=True)
    rows = {}
    for path, content in files.items():
        entry = tree.get(path)
        if entry is None or entry.oid not in hashes_of(content):
            raise ComposerError(
                f"{hub.subject}: {path} of commit {head[:8]} is not what was sent; publish again"
            )
        if path.endswith(".parquet"):
            rows[path] = _remote(hub, path, head, entry).metadata.num_rows
            sent = pq.read_metadata(_local(content)).num_rows
            if rows[path] != sent:
                raise ComposerError(
                    f"{hub.subject}: {path} of commit {head[:8]} has {rows[path]} rows in place of"
                    f" {sent}; publish again"
                )
    return rows


def rows_at(hub: Hub, revision: str) -> dict[str, int]:
    """Return the rows of each configuration and split at a revision, from the files' footers."""
    return by_split(
        {
            path: _remote(hub, path, revision, entry).metadata.num_rows
            for path, entry in hub.tree(revision).items()
            if path.endswith(".parquet")
        }
    )


def by_split(by_path: Mapping[str, int]) -> dict[str, int]:
    """Add up numbers by configuration and split, from paths ``data/pairs/train….parquet``."""
    total: dict[str, int] = {}
    for path, number in by_path.items():
        parts = path.removesuffix(".parquet").split("/")
        name = f"{parts[-2]}/{parts[-1].split('-')[0]}" if len(parts) > 1 else path
        total[name] = total.get(name, 0) + number
    return total


def row_changes(
    hub: Hub | None,
    revision: str,
    there: Mapping[str, Entry],
    files: Mapping[str, Content],
    changes: Mapping[str, str],
) -> dict[str, dict[str, int]]:
    """Return how many rows are ``added`` and ``removed`` in each file of a plan, by path.

    Rows are told apart by their id; a row whose other columns alone differ is neither.

    Args:
        hub: asked for the ids of files that were there; ``None`` where nothing was.
        revision: at which they were.
        there: the files at that revision.
        files: what the repository shall hold.
        changes: path to ``add``, ``replace`` or ``delete``.
    """
    found = {}
    for path in (path for path in changes if path.endswith(".parquet")):
        new = _ids(pq.ParquetFile(_local(files[path]))) if path in files else Counter[str]()
        old = Counter[str]()
        if hub and path in there:
            try:
                old = _ids(_remote(hub, path, revision, there[path]))
            except pa.ArrowInvalid:  # somebody's file, which goes
                old = Counter()
        added, removed = (new - old).total(), (old - new).total()
        found[path] = {"added": added, "removed": removed}
    return found


def _local(content: Content) -> pa.NativeFile:
    return pa.OSFile(str(content)) if isinstance(content, Path) else pa.BufferReader(content)


def _remote(hub: Hub, path: str, revision: str, entry: Entry) -> pq.ParquetFile:
    file = RemoteFile(hub, path, revision, entry.size)
    return pq.ParquetFile(pa.PythonFile(file, mode="r"), buffer_size=_BUFFER)


def _ids(file: pq.ParquetFile) -> Counter[str]:
    names = [name for name in _IDS if name in file.schema_arrow.names][:1]
    counted: Counter[str] = Counter()
    # One thread: one of Arrow's must not hold a file of Python's when the process ends.
    for batch in file.iter_batches(columns=names, use_threads=False) if names else ():
        counted.update(str(value) for value in batch.column(0).to_pylist())
    return counted


#: Seconds for which what was changed a moment ago may be unseen.
UNSEEN_S = 30.0
MAIN = "refs/heads/main"


@dataclass(frozen=True)
class Purged:
    """What was removed, and where main is now."""

    head: str
    tags: list[str] = field(default_factory=list)
    objects: int = 0


def purge(hub: Hub, head: str) -> Purged:
    """Leave nothing in the repository but what its head holds; prove it.

    Tags whose files differ from the head's are deleted, the history of main becomes one commit,
    and objects that no file of it has are deleted for good.

    Args:
        hub: whose token may write.
        head: the commit of main without the rows.

    Raises:
        ComposerError: the Hub refused, or a ref or object still holds other files; it is named.
    """
    api, kind = hub.api, hub.repo_type
    wanted = hub.tree(head, made=True)
    tags = [
        ref.removeprefix("refs/tags/")
        for ref, commit in hub.refs().items()
        if ref.startswith("refs/tags/") and _other(hub.tree(commit), wanted)
    ]
    for tag in tags:
        hub.call(lambda tag=tag: _untag(hub, tag))  # type: ignore[misc]
    if len(_commits(hub)) > 1:
        hub.call(
            lambda: api.super_squash_history(
                hub.repo, repo_type=kind, commit_message="Publish, without what was withdrawn"
            )
        )
    orphans = _orphans(hub, wanted)
    if orphans:
        hub.call(
            lambda: api.permanently_delete_lfs_files(
                hub.repo, orphans.values(), repo_type=kind, rewrite_history=True
            )
        )
    return Purged(prove(hub, wanted), tags, len(orphans))


def prove(hub: Hub, wanted: Mapping[str, Entry]) -> str:
    """Return the head of main, once no ref, commit or object has other files than ``wanted``.

    What was changed a moment ago may be unseen for some seconds, so it is asked again for a while.

    Raises:
        ComposerError: something still has them; it is named.
    """
    patience = hub.patience()
    while True:
        refs = hub.refs()
        bad = [
            f"{ref.removeprefix('refs/heads/').removeprefix('refs/tags/')} still holds other files"
            for ref, commit in refs.items()
            if _other(hub.tree(commit, made=True), wanted)
        ]
        if (commits := len(_commits(hub))) > 1:
            bad.append(f"main still has {commits} commits")
        if orphans := _orphans(hub, wanted):
            bad.append(f"{len(orphans)} deleted objects are still stored")
        if not bad:
            return refs[MAIN]
        patience.bear(Trouble("; ".join(bad), passing=patience.waited_s < UNSEEN_S))


def _other(tree: Mapping[str, Entry], wanted: Mapping[str, Entry]) -> bool:
    """Say whether a tree has a file that is not one of the head's."""
    return any(wanted.get(path) != entry for path, entry in tree.items() if path[0] != ".")


def _untag(hub: Hub, tag: str) -> None:
    with suppress(hub.hub.errors.RevisionNotFoundError):  # an answer was lost: it is gone
        hub.api.delete_tag(hub.repo, tag=tag, repo_type=hub.repo_type)


def _commits(hub: Hub) -> list[str]:
    found = hub.call(lambda: hub.api.list_repo_commits(hub.repo, repo_type=hub.repo_type))
    return [commit.commit_id for commit in found]


def _orphans(hub: Hub, wanted: Mapping[str, Entry]) -> dict[str, Any]:
    """Return the stored objects that no file of the head has, by id."""
    kept = {entry.oid for entry in wanted.values() if entry.lfs}
    found = hub.call(lambda: list(hub.api.list_lfs_files(hub.repo, repo_type=hub.repo_type)))
    return {entry.file_oid: entry for entry in found if entry.file_oid not in kept}


def published_refs(repo: str, *, endpoint: str | None = None) -> dict[str, str]:
    """Return every ref of a dataset repository to its commit."""
    with _asked(repo, endpoint) as hub:
        return hub.refs()


def published_rows(repo: str, commit: str, *, endpoint: str | None = None) -> dict[str, int]:
    """Return the rows of each configuration and split of a commit, from its Parquet footers."""
    with _asked(repo, endpoint) as hub:
        return rows_at(hub, commit)


def first_rows(repo: str, commit: str) -> dict[str, list[str]]:
    """Return the columns of the first row of each configuration and split, as ``datasets`` has it.

    It streams, so little is loaded. ``datasets`` asks the Hub that ``HF_ENDPOINT`` names.
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


def _asked(repo: str, endpoint: str | None) -> Hub:
    return Hub(repo, token_of("HF_TOKEN", dry_run=False), endpoint, "dataset")


FILE = "publications.json"


class Publication(msgspec.Struct, frozen=True):
    """The newest publication of a repository.

    ``commit`` is its id, ``tag`` its name, ``withdrawn`` the withdrawals that nothing in the
    repository's past holds any more.
    """

    commit: str
    tag: str = ""
    withdrawn: list[str] = []


def publications(lake: Lake) -> dict[str, Publication]:
    """Return the newest publication of each repository, ``owner/name``.

    Raises:
        InputError: the record is damaged.
    """
    if not lake.exists(FILE):
        return {}
    try:
        return msgspec.json.decode(lake.get_bytes(FILE), type=dict[str, Publication])
    except msgspec.DecodeError as error:
        raise InputError(
            f"lake {lake.url}: {FILE} is damaged ({error}); remove it and publish again"
        ) from error


def remember_publication(lake: Lake, repo: str, publication: Publication) -> None:
    """Replace the record of a repository; nothing is written where nothing changed."""
    known = publications(lake)
    if known.get(repo) != publication:
        data = msgspec.json.encode({**known, repo: publication}, order="sorted")
        lake.put_bytes(FILE, msgspec.json.format(data, indent=1))
