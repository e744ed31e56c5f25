"""The scripted histories; `python -m tests.survival.histories` compares their books with git."""

import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path

from tests.survival.script import (
    HISTORY_STEPS,
    HORIZONS,
    OTHER,
    PERSON,
    Change,
    Commit,
    History,
    Lines,
    Place,
    Repo,
    Script,
    build,
    carrier,
    history,
    home,
    lines_of,
    played,
)

# Commits.


@history
def plain_commit(s: Script) -> None:
    repo, agent = s.start("src/app.py")
    repo.insert(agent, "src/app.py")
    repo.commit("Load the invoices")
    repo.work("src/app.py", 5)


@history
def commit_by_the_session(s: Script) -> None:
    repo, agent = s.start("src/app.ts")
    repo.insert(agent, "src/app.ts")
    repo.commit("Fetch the parcels", by=agent)
    repo.insert(agent, "src/app.ts", at=14)
    repo.commit("Fetch more parcels", by=agent)


@history
def commit_with_co_author(s: Script) -> None:
    repo, agent = s.start("main.go")
    repo.insert(agent, "main.go")
    repo.commit("Open the depot\n\nCo-Authored-By: Claude <noreply@anthropic.com>")
    repo.work("main.go")


@history
def commit_names_the_session(s: Script) -> None:
    repo, agent = s.start("lib.rs")
    repo.insert(agent, "lib.rs")
    repo.commit(f"Push the pallets\n\nClaude-Session: {agent.id}")
    repo.work("lib.rs")


@history
def second_commit_has_it(s: Script) -> None:
    repo, agent = s.start("a.py", "b.py")
    repo.insert(agent, "a.py")
    repo.human_add("b.py")
    repo.commit("Another file", paths=("b.py",))
    repo.commit("The edit")
    repo.work("b.py", 2)


@history
def commit_after_ten_days(s: Script) -> None:
    repo, agent = s.start("deploy.sh")
    repo.insert(agent, "deploy.sh")
    s.advance(days=10)
    repo.commit("Deploy")


@history
def commit_after_twenty_days(s: Script) -> None:
    repo, agent = s.start("deploy.sh")
    repo.insert(agent, "deploy.sh")
    s.advance(days=20)
    repo.commit("Deploy")  # too late: nobody knows


@history
def never_committed(s: Script) -> None:
    repo, agent = s.start("a.py", "b.py")
    repo.insert(agent, "a.py")
    repo.human_add("b.py")
    repo.commit("Another file", paths=("b.py",))


@history
def discarded(s: Script) -> None:
    repo, agent = s.start("a.py")
    repo.insert(agent, "a.py")
    repo.discard("a.py")
    repo.work("a.py", 7)


# Between the edit and the commit.


@history
def refined_by_the_session(s: Script) -> None:
    repo, agent = s.start("app.py")
    first = repo.insert(agent, "app.py", 2)
    better = s.code("app.py", 2)
    repo.edit(agent, "app.py", "\n    ".join(first.lines), "\n    ".join(better))
    repo.commit("Refined")
    repo.work("app.py")


@history
def refined_in_part_by_the_session(s: Script) -> None:
    repo, agent = s.start("app.rs")
    first = repo.insert(agent, "app.rs", 4)
    repo.edit(agent, "app.rs", first.lines[1], s.code("app.rs", 1)[0])
    repo.commit("Refined")
    repo.lose("app.rs", first.lines[3])


@history
def replaced_by_another_session(s: Script) -> None:
    repo, agent = s.start("app.ts")
    first = repo.insert(agent, "app.ts", 1)
    s.advance(minutes=300)
    repo.edit(s.agent(repo), "app.ts", first.lines[0], "\n    ".join(s.code("app.ts", 3)))
    repo.commit("Another way")
    repo.work("app.ts", 2)


@history
def human_rewrites_all(s: Script) -> None:
    repo, agent = s.start("app.go")
    added = repo.insert(agent, "app.go")
    repo.human_rewrite("app.go", *added.lines)
    repo.commit("By hand")
    repo.work("app.go", 5)


@history
def human_rewrites_some(s: Script) -> None:
    repo, agent = s.start("app.go")
    added = repo.insert(agent, "app.go", 5)
    repo.human_rewrite("app.go", *added.lines[1:3])
    repo.commit("Half by hand")
    repo.work("app.go")


@history
def human_changes_a_name(s: Script) -> None:
    # No formatter changes a name, so the changed lines are a person's.
    repo, agent = s.start("app.py")
    new = ["deadline = start + timedelta(hours=36)", "owner = directory.lookup(request.user)"]
    old = repo.text("app.py").split("\n")[5]
    repo.edit(agent, "app.py", old, "\n    ".join([old, *new]))
    repo.human_edit("app.py", "directory.lookup(request.user)", "directory.lookup(request.team)")
    repo.commit("Owners are teams")
    repo.human_edit("app.py", "timedelta(hours=36)", "timedelta(hours=48)")
    repo.commit("Longer")


@history
def others_commits_between(s: Script) -> None:
    repo, agent = s.start("app.py")
    clone = s.clone(repo, "bo")
    repo.insert(agent, "app.py", at=6)
    clone.human_add("app.py", 2, at=18)
    clone.commit("Bo was here", who=OTHER)
    clone.work("app.py", 2, who=OTHER)
    repo.stash()
    repo.pull(clone)
    repo.pop()
    repo.commit("The edit, after Bo")
    repo.work("app.py")


@history
def others_commits_on_another_branch(s: Script) -> None:
    repo, agent = s.start("app.py")
    clone = s.clone(repo, "bo")
    clone.switch("bo/other", new=True)
    clone.work("app.py", 6, who=OTHER)
    repo.insert(agent, "app.py", at=6)
    repo.commit("The edit")
    repo.git("remote", "add", "bo", str(clone.root))
    repo.git("fetch", "-q", "bo")
    repo.work("app.py")
    clone.work("app.py", 3, who=OTHER)
    repo.git("fetch", "-q", "bo")


@history
def other_person_removes_half(s: Script) -> None:
    repo, agent = s.start("app.sh")
    added = repo.insert(agent, "app.sh", 4)
    repo.commit("The edit")
    clone = s.clone(repo, "bo")
    s.advance(days=3)
    clone.lose("app.sh", *added.lines[:2], who=OTHER)
    repo.pull(clone)
    repo.work("app.sh")


# Several agents.


@history
def two_agents_interleaved(s: Script) -> None:
    repo, agent = s.start("app.py")
    other = s.agent(repo)
    first = repo.insert(agent, "app.py", 3, at=5)
    second = repo.insert(other, "app.py", 3, at=21)
    repo.commit("Of the first agent", hunks="yn", left_out=second.lines)
    repo.commit("Of the second agent")
    repo.insert(agent, "app.py", 2, at=16)
    repo.commit("More of the first agent", by=agent)
    gone, *rest = first.lines
    repo.edit(other, "app.py", "    " + gone + "\n", "    " + s.code("app.py", 1)[0] + "\n")
    repo.commit("The second agent replaces a line of the first", by=other)
    repo.lose("app.py", rest[0], second.lines[2])


@history
def two_agents_one_commit(s: Script) -> None:
    repo, agent = s.start("app.md")
    first = repo.insert(agent, "app.md", 2, at=5)
    second = repo.insert(s.agent(repo), "app.md", 2, at=6)  # within the lines of the first
    repo.commit("Both")
    repo.lose("app.md", first.lines[0], second.lines[1])


@history
def one_session_two_repositories(s: Script) -> None:
    repo, agent = s.start("app.py")
    other = s.repository("library", "lib.py")
    repo.insert(agent, "app.py")
    other.insert(agent, "lib.py")
    other.commit("The library's part")
    repo.commit("The project's part")
    other.work("lib.py", 2)


# Formatters.

LONG = 'report = build_report(customer_name, invoice_rows, currency="EUR", locale=user_locale)'
WRAPPED = """report = build_report(
        customer_name,
        invoice_rows,
        currency="EUR",
        locale=user_locale,
    )"""


def edited(s: Script, path: str, new: str) -> Repo:
    """A repository in which an agent has added this text to a file."""
    repo, agent = s.start(path)
    anchor = repo.text(path).split("\n")[9]
    repo.edit(agent, path, anchor, f"{anchor}\n    {new}")
    return repo


@history
def formatter_indents(s: Script) -> None:
    repo, agent = s.start("app.ts")
    added = repo.insert(agent, "app.ts", 4)
    repo.reindent("app.ts")
    repo.commit("Formatted")
    repo.lose("app.ts", added.lines[0])


@history
def formatter_wraps(s: Script) -> None:
    repo = edited(s, "app.py", LONG + "\n    archive(report, retention_days=90)")
    repo.reformat("app.py", LONG, WRAPPED)
    repo.commit("Wrapped")
    repo.work("app.py")


@history
def formatter_joins(s: Script) -> None:
    repo = edited(s, "app.py", WRAPPED)
    repo.reformat("app.py", WRAPPED, LONG)
    repo.commit("Joined")
    repo.work("app.py")
    repo.lose("app.py", LONG)


@history
def formatter_changes_quotes(s: Script) -> None:
    old = "labels = {'open': 'Open orders', 'late': 'Late orders'}"
    repo = edited(s, "app.py", old + "\n    default = labels['open']")
    repo.reformat("app.py", old, old.replace("'", '"'))
    repo.reformat("app.py", "default = labels['open']", 'default = labels["open"]')
    repo.commit("Quoted")
    repo.work("app.py")


@history
def formatter_adds_commas(s: Script) -> None:
    old = "colours = [\n        palette.primary,\n        palette.secondary\n    ]"
    repo = edited(s, "app.ts", old)
    repo.reformat("app.ts", "palette.secondary\n", "palette.secondary,\n")
    repo.commit("With a comma")
    repo.work("app.ts")


@history
def style_commit_later(s: Script) -> None:
    repo = edited(s, "app.py", LONG + "\n    archive(report, retention_days=90)")
    repo.commit("The edit")
    repo.reformat("app.py", LONG, WRAPPED)
    repo.reindent("app.py")
    repo.commit("Style")
    repo.work("app.py", 4)


# Parts of a commit, and commits made again.


@history
def staged_in_two_commits(s: Script) -> None:
    repo, agent = s.start("app.py")
    added = repo.insert_twice(agent, "app.py")
    repo.commit("One half", hunks="yn", left_out=added.lines[2:])
    repo.commit("The other half")
    repo.work("app.py")


@history
def staged_in_part_rest_discarded(s: Script) -> None:
    repo, agent = s.start("app.py")
    added = repo.insert_twice(agent, "app.py")
    repo.commit("One half", hunks="ny", left_out=added.lines[:2])
    repo.discard("app.py")
    repo.work("app.py")


@history
def amended_with_a_second_edit(s: Script) -> None:
    repo, agent = s.start("app.rs")
    repo.insert(agent, "app.rs", 2, at=5)
    repo.commit("Edit", by=agent)
    repo.insert(agent, "app.rs", 2, at=15)
    repo.amend()
    repo.work("app.rs")


@history
def amended_without_changes(s: Script) -> None:
    repo, agent = s.start("app.rs")
    repo.insert(agent, "app.rs")
    repo.commit("Edit", by=agent)
    repo.amend()
    repo.work("app.rs")


@history
def amended_dropping_a_part(s: Script) -> None:
    repo, agent = s.start("app.rs")
    added = repo.insert(agent, "app.rs", 4)
    repo.commit("Edit")
    repo.human_drop("app.rs", *added.lines[:2])
    repo.amend()
    repo.work("app.rs")


@history
def reverted(s: Script) -> None:
    repo, agent = s.start("app.sql")
    repo.insert(agent, "app.sql")
    repo.revert(repo.commit("Edit"))
    repo.work("app.sql", 2)


@history
def reverted_and_applied_again(s: Script) -> None:
    repo, agent = s.start("app.sql")
    repo.insert(agent, "app.sql")
    repo.revert(repo.revert(repo.commit("Edit")))
    repo.work("app.sql", 4)


# Branches.


@history
def squash_merge(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    repo.switch("feature", new=True)
    repo.insert(agent, "app.py", 2, at=5)
    repo.commit("Step one")
    added = repo.insert(agent, "app.py", 3, at=15)
    repo.commit("Step two")
    repo.switch("main")
    repo.work("b.py")
    repo.squash("feature")
    repo.drop_branch("feature")
    repo.lose("app.py", added.lines[1])


@history
def squash_merge_with_one_undone(s: Script) -> None:
    # The undone edit has no copy on main: its own commit carries it, and it is gone at the next.
    repo, agent = s.start("app.py", "b.py")
    repo.switch("feature", new=True)
    repo.insert(agent, "app.py", 2, at=5)
    repo.commit("Step one")
    undone = repo.insert(agent, "app.py", 2, at=12)
    repo.commit("Step two")
    repo.lose("app.py", *undone.lines)
    repo.insert(agent, "app.py", 2, at=18)
    repo.commit("Step three")
    repo.switch("main")
    repo.squash("feature")
    repo.drop_branch("feature")
    repo.work("app.py", 2)


@history
def rebased_onto_main(s: Script) -> None:
    repo, agent = s.start("app.ts")
    repo.switch("feature", new=True)
    first = repo.insert(agent, "app.ts", 3, at=5)
    repo.commit("Step one", by=agent)
    repo.insert(agent, "app.ts", 2, at=12)
    repo.commit("Step two", by=agent)
    repo.switch("main")
    repo.work("app.ts", 2)
    repo.switch("feature")
    repo.rebase("main")
    repo.switch("main")
    repo.merge("feature")
    repo.drop_branch("feature")
    repo.lose("app.ts", first.lines[0])


@history
def cherry_picked(s: Script) -> None:
    repo, agent = s.start("app.go")
    repo.switch("feature", new=True)
    added = repo.insert(agent, "app.go", 4, at=6)
    original = repo.commit("Edit")
    repo.lose("app.go", *added.lines[:3])  # on the branch only
    repo.switch("main")
    repo.work("app.go")
    repo.cherry_pick(original)
    repo.lose("app.go", added.lines[3])


@history
def merge_commit(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.switch("feature", new=True)
    added = repo.insert(agent, "app.py", 3, at=6)
    repo.commit("Edit")
    repo.insert(agent, "app.py", 2, at=14)
    repo.commit("Another edit")
    repo.switch("main")
    repo.work("app.py", 3)  # these do not come after the edit
    repo.merge("feature")
    repo.lose("app.py", added.lines[2])
    repo.work("app.py", 3)


@history
def branch_never_merged(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.switch("feature", new=True)
    added = repo.insert(agent, "app.py", 3, at=6)
    repo.commit("Edit")
    repo.lose("app.py", added.lines[0])
    repo.switch("main")
    repo.work("app.py", 6)


@history
def detached_and_then_a_branch(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.detach()
    added = repo.insert(agent, "app.py")
    repo.commit("Edit")
    repo.switch("rescue", new=True)
    repo.lose("app.py", added.lines[1])
    repo.switch("main")


@history
def stashed_and_popped(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    repo.insert(agent, "app.py")
    repo.stash()
    repo.work("b.py", 2)
    repo.pop()
    repo.commit("Edit")
    repo.work("app.py")


@history
def stashed_for_ever(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    repo.insert(agent, "app.py")
    repo.stash()
    repo.work("b.py", 2)


# Files that move.


@history
def renamed_after_the_commit(s: Script) -> None:
    repo, agent = s.start("src/old.py")
    added = repo.insert(agent, "src/old.py")
    repo.commit("Edit")
    repo.rename("src/old.py", "src/parts/new.py")
    repo.commit("Move")
    repo.lose("src/parts/new.py", added.lines[0])
    repo.work("src/parts/new.py", 3)


@history
def renamed_with_changes(s: Script) -> None:
    repo, agent = s.start("old.ts")
    added = repo.insert(agent, "old.ts", 4)
    repo.commit("Edit")
    repo.rename("old.ts", "new.ts")
    repo.human_drop("new.ts", added.lines[3])
    repo.human_add("new.ts")
    repo.commit("Move and change")
    repo.work("new.ts", 4)


@history
def renamed_before_the_commit(s: Script) -> None:
    repo, agent = s.start("old.go")
    added = repo.insert(agent, "old.go")
    repo.rename("old.go", "new.go")
    repo.commit("Edit and move")
    repo.lose("new.go", added.lines[0])


@history
def deleted_later(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    repo.insert(agent, "app.py")
    repo.commit("Edit")
    repo.work("app.py")
    repo.delete("app.py")
    repo.commit("No longer needed")
    repo.work("b.py")


@history
def repository_moved(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.insert(agent, "app.py")
    repo.commit("Edit")
    repo.move("archive/2026/project")
    repo.work("app.py", 2)
    s.named.append(repo.root)


# Time.


@history
def lost_at_known_commits(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    added = repo.insert(agent, "app.py", 8)
    repo.commit("Edit")
    for count in range(1, 26):
        s.advance(days=0.5)
        repo.work("b.py", 1 if count % 3 else 0)
        gone = {1: 0, 4: 1, 5: 2, 6: 3, 18: 4, 22: 5}.get(count)
        repo.human_add("app.py")
        repo.human_drop("app.py", *([] if gone is None else [added.lines[gone]]))
        repo.commit(f"Commit {count}", who=OTHER if count % 2 else PERSON)


@history
def lost_after_forty_days(s: Script) -> None:
    repo, agent = s.start("app.py")
    added = repo.insert(agent, "app.py")
    repo.commit("Edit")
    s.advance(days=20)
    repo.lose("app.py", added.lines[0])
    s.advance(days=20)
    repo.lose("app.py", *added.lines[1:])


@history
def young(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.insert(agent, "app.py")
    repo.commit("Edit")
    s.wait = timedelta(days=2)


# Where the file and the repository are.


@history
def file_outside_the_repository(s: Script) -> None:
    repo, agent = s.start("app.py")
    Place(s, s.folder / "elsewhere").write(agent, "notes.md", "\n".join(s.code("a.md", 3)))
    repo.insert(agent, "app.py")
    repo.commit("Edit")


@history
def no_repository(s: Script) -> None:
    place = Place(s, s.folder / "scratch")
    place.create("app.py")
    place.insert(s.agent(place), "app.py")


@history
def session_outside_the_repository(s: Script) -> None:
    repo = s.repository("project", "app.py")
    repo.insert(s.agent(Place(s, s.folder)), "app.py")
    repo.commit("Edit")
    repo.work("app.py")


@history
def repository_without_commits(s: Script) -> None:
    repo = s.repository("project")
    repo.create("app.py")
    repo.insert(s.agent(repo), "app.py")


@history
def clone_deleted(s: Script) -> None:
    repo, _ = s.start("app.py")
    clone = s.clone(repo, "clone")
    written = clone.insert(s.agent(clone), "app.py")
    clone.commit("Edit")
    clone.remove()
    s.unknown.add(written.message)


def in_a_worktree(s: Script, root: str) -> tuple[Repo, Repo]:
    """An edit committed in a worktree, merged to main; the repository and the worktree."""
    repo, _ = s.start("app.py")
    worktree = repo.worktree(s.folder / root, "feature")
    added = worktree.insert(s.agent(worktree), "app.py")
    worktree.commit("Edit")
    repo.human_add("app.py")
    repo.commit("Meanwhile")
    repo.merge("feature")
    repo.lose("app.py", added.lines[1])
    return repo, worktree


@history
def worktree_alive(s: Script) -> None:
    in_a_worktree(s, "worktree")


@history
def worktree_deleted(s: Script) -> None:
    repo, worktree = in_a_worktree(s, "worktrees/feature")
    repo.remove_worktree(worktree)
    s.named.append(repo.root)


@history
def worktree_within_deleted(s: Script) -> None:
    repo, _ = s.start("app.py")
    exclude = repo.root / ".git/info/exclude"
    exclude.write_text(".worktrees/\n")
    worktree = repo.worktree(repo.root / ".worktrees/feature", "feature")
    worktree.insert(s.agent(worktree), "app.py")
    worktree.commit("Edit", by=s.agents[-1])
    repo.merge("feature")
    repo.remove_worktree(worktree)
    repo.drop_branch("feature")
    repo.work("app.py")


@history
def shallow_clone(s: Script) -> None:
    origin, _ = s.start("app.py")
    clone = s.clone(origin, "clone")
    before = clone.insert(s.agent(clone), "app.py", at=5)
    clone.commit("Edit")
    origin.pull(clone)
    clone.remove()
    s.advance(days=2)
    origin.work("app.py", 3)
    s.advance(days=2)
    clone = s.clone(origin, "clone", "--depth", "1")
    after = clone.insert(s.agent(clone), "app.py", at=15)
    clone.commit("Another edit")
    clone.lose("app.py", after.lines[0])
    s.unknown.add(before.message)  # its commit is beyond the boundary


@history
def submodule(s: Script) -> None:
    outer, _ = s.start("app.py")
    library = s.repository("library", "lib.py")
    outer.git(
        "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.root), "lib"
    )
    outer.git("commit", "-q", "-m", "A submodule")
    inner = Repo(s, outer.root / "lib", library.commits, {"main": library.branches["main"]})
    inner.files = dict(inner.tip.tree)
    added = inner.insert(s.agent(outer), "lib.py")
    inner.commit("Edit")
    outer.git("commit", "-q", "-a", "-m", "The new library")
    inner.lose("lib.py", added.lines[2])


@history
def tags_and_remotes(s: Script) -> None:
    repo, agent = s.start("app.py")
    first, second = s.clone(repo, "first"), s.clone(repo, "second")
    for clone in (first, second):
        repo.git("remote", "add", clone.root.name, str(clone.root))
        clone.switch("experiment", new=True)
        clone.work("app.py", 2, who=OTHER)
    repo.git("tag", "v1.0")
    added = repo.insert(agent, "app.py", at=6)
    repo.commit("Edit")
    repo.git("tag", "-a", "v1.1", "-m", "Second")
    repo.git("push", "-q", "--tags", "first", "main:published")
    repo.git("fetch", "-q", "--all")
    repo.lose("app.py", added.lines[0])
    repo.git("push", "-q", "second", "main:published")


@history
def session_in_a_subfolder(s: Script) -> None:
    repo = s.repository("project", "packages/web/src/index.ts", "packages/api/index.ts")
    agent = s.agent(repo, "packages/web")
    repo.insert(agent, "packages/web/src/index.ts")
    repo.insert(agent, "packages/api/index.ts")
    repo.commit("Edit")
    repo.work("packages/web/src/index.ts")


# Calls.


@history
def failing_edit(s: Script) -> None:
    repo, agent = s.start("app.py")
    missing, new = s.code("app.py", 2)
    fails = Change("Edit", "app.py", ((missing, new),), fails=True)
    repo.respond(agent, fails)
    works = Change("Edit", "app.py", (repo.insertion("app.py", 2, 7),))
    repo.respond(agent, fails, works)
    repo.commit("Edit")


@history
def two_calls_in_a_response(s: Script) -> None:
    repo, agent = s.start("app.py")
    places = ((3, 5), (2, 15))
    pairs = [repo.insertion("app.py", count, at) for count, at in places]
    added = repo.respond(agent, *(Change("Edit", "app.py", (pair,)) for pair in pairs))
    repo.commit("Edit")
    repo.lose("app.py", added.lines[0], added.lines[4])


@history
def multi_edit(s: Script) -> None:
    repo, agent = s.start("app.py")
    added = repo.insert_twice(agent, "app.py")
    repo.commit("Edit")
    repo.lose("app.py", added.lines[0])


@history
def write_a_new_file(s: Script) -> None:
    repo, agent = s.start("app.py")
    written = repo.write(agent, "docs/guide.md", "\n".join(s.code("guide.md", 12)) + "\n")
    repo.commit("Write the guide")
    repo.lose("docs/guide.md", *written.lines[:6])


def written_over(s: Script, originals: bool) -> None:
    repo = s.repository("project", "app.py")
    agent = s.agent(repo, originals=originals)
    kept = repo.text("app.py").split("\n")[:12]
    written = repo.write(agent, "app.py", "\n".join([*kept, *s.code("app.py", 6)]) + "\n")
    assert len(written.lines) == 6
    repo.commit("Write it again")
    repo.lose("app.py", written.lines[5], kept[3].strip())


@history
def write_over_a_file(s: Script) -> None:
    written_over(s, originals=True)


@history
def write_over_a_file_without_original(s: Script) -> None:
    written_over(s, originals=False)


@history
def edit_without_original(s: Script) -> None:
    repo = s.repository("project", "app.rs")
    added = repo.insert(s.agent(repo, originals=False), "app.rs")
    repo.commit("Edit")
    repo.lose("app.rs", added.lines[1])


@history
def replace_all(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.human_edit("app.py", repo.text("app.py").split("\n")[3], "    total = old_rate * hours")
    repo.human_edit("app.py", repo.text("app.py").split("\n")[9], "    bonus = old_rate + premium")
    repo.human_edit("app.py", repo.text("app.py").split("\n")[19], "    print(old_rate, premium)")
    repo.commit("Rates")
    added = repo.edit(agent, "app.py", "old_rate", "hourly_rate", everywhere=True)
    repo.commit("A clearer name")
    repo.lose("app.py", added.lines[1])


@history
def only_short_lines(s: Script) -> None:
    repo, agent = s.start("app.ts")
    anchor = repo.text("app.ts").split("\n")[5]
    repo.edit(agent, "app.ts", anchor, anchor + "\n    a = 1;\n    }\n    ----------------;")
    repo.insert(agent, "app.ts", at=15)
    repo.commit("Edit")


# Files.


@history
def binary_file_beside(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.insert(agent, "app.py")
    (repo.root / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00" + bytes(range(256)) * 8)
    repo.commit("Edit, and a picture")
    repo.work("app.py")


@history
def windows_line_ends(s: Script) -> None:
    repo = s.repository("project")
    (repo.root / "app.py").write_bytes(b"import decimal\r\n")
    repo.put("app.py", "\n".join(s.code("app.py", 24)) + "\n")
    repo.commit("Begin")
    added = repo.insert(s.agent(repo), "app.py")
    repo.commit("Edit")
    repo.lose("app.py", added.lines[0])


@history
def unicode_and_spaces(s: Script) -> None:
    path = "Größe und Maß/日本 «file».py"
    repo, agent = s.start(path)
    added = repo.edit(agent, path, *repo.insertion(path, 2, 9))
    greeting = f"    {added.lines[0]}\n    gruß = 'Grüße aus Köln, 京都 und Łódź'"
    repo.edit(agent, path, f"    {added.lines[0]}", greeting)
    repo.commit("Edit")
    repo.lose(path, added.lines[1])


@history
def very_long_file(s: Script) -> None:
    repo = s.repository("project", "app.py", size=5000)
    added = repo.insert(s.agent(repo), "app.py", 4, at=2500)
    repo.commit("Edit")
    repo.lose("app.py", added.lines[3])


HISTORIES: Mapping[str, Callable[[Path], History]] = {
    name: partial(build, name) for name in HISTORY_STEPS
}


# The books against git.


def compare(script: Script) -> int:
    """Compare every commit in the books with git; how many were compared."""
    checked = 0
    for repo in script.repos:
        known = repo.root.exists() and repo.git("rev-parse", "--is-shallow-repository") == "false\n"
        for commit in repo.commits.values() if known else ():
            if repo.git("cat-file", "--batch-check", stdin=commit.hash).endswith("missing\n"):
                continue  # of another clone
            compare_commit(script, repo, commit)
            checked += 1
    return checked


def compare_commit(script: Script, repo: Repo, commit: Commit) -> None:
    """Compare the parents, the date, the touched files and all lines of a commit."""
    for path, lines in commit.tree.items():
        shown = lines_of(repo.git("show", f"{commit.hash}:{path}"))
        assert shown == lines, (script.name, commit.hash, path, shown ^ lines)
    parents, date = (
        repo.git("show", "-s", "--format=%P|%ct", commit.hash).split("\n")[-2].split("|")
    )
    assert tuple(parents.split()) == commit.parents, (script.name, commit)
    assert int(date) == int(commit.when.timestamp()), (script.name, commit)
    if len(commit.parents) < 2:
        names = repo.git(
            "diff-tree", "--root", "--no-commit-id", "--name-only", "-r", "-z", commit.hash
        )
        touched = set(names.split("\0")) - {"", "logo.png"}
        assert touched == commit.touched, (script.name, commit.hash, touched ^ commit.touched)


def compare_truth(script: Script, made: History) -> None:
    """Compare each truth with the commit that carries the lines, and with all files of today."""
    for it in script.written:
        truth, repo = made.truth.get(it.message), it.place
        if truth is None or truth.unknown or not isinstance(repo, Repo):
            continue
        original, brought = carrier(script, repo, it)
        assert original, it
        _, tip = home(repo, original)
        here = repo if repo.root.exists() else script.repos[0]
        held = held_by(here, original.hash, truth.lines)
        assert held_by(here, tip, truth.lines) == truth.alive["today"], it
        alive = truth.alive["commit"]
        # What was staged later is in a later commit.
        later_half = frozenset(it.lines[2:]) if script.name == "staged_in_two_commits" else set()
        assert held == (alive or frozenset()) - later_half, it
        assert bool(alive) == brought, it


def held_by(repo: Repo, commit: str, lines: Lines) -> Lines:
    """The lines that are in any text file of a commit, however formatted."""
    text = letters(repo.git("grep", "-hI", "", commit, "--", "."))
    return frozenset(line for line in lines if letters(line) in text)


def letters(text: str) -> str:
    """The letters and digits of a text, which no formatter changes."""
    return "".join(filter(str.isalnum, text))


def main() -> None:
    """Play all histories, compare the books with git, and print the truth in numbers."""
    for name in HISTORY_STEPS:
        with tempfile.TemporaryDirectory() as folder:
            script = played(name, Path(folder))
            made = script.history()
            checked = compare(script)
            compare_truth(script, made)
        print(f"{name} ({checked} commits compared)")
        for truth in made.truth.values():
            counts = (truth.alive[it] for it in HORIZONS)
            cells = ["-" if it is None else str(len(it)) for it in counts]
            print(f"    {len(truth.lines)} lines: {' '.join(cells)}  {truth.commit}")


if __name__ == "__main__":
    main()
