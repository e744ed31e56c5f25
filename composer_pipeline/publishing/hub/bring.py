"""Bring a repository to hold certain files, in one commit.

Belongs here: look, plan, commit, and again where somebody was faster. Does not belong here: the
requests (``client``), what a change is (``publishing.changes``) and what is checked afterwards
(``check``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from composer_pipeline.publishing.changes import Content, plan_changes
from composer_pipeline.publishing.hub.client import Hub, Remote

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
