"""Rows that were withdrawn are taken out of a repository's past as well.

Belongs here: tags, history and stored objects that still hold them, and the proof that none does.
Does not belong here: which rows are withdrawn, and the commit without them (``bring``).

A commit without the rows leaves them in every older commit, in the tags that name those, and in the
storage of objects. Each step may be done twice, so a killed withdrawal is done again.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.publishing.hub.client import Entry, Hub
from composer_pipeline.publishing.hub.trouble import Trouble

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
