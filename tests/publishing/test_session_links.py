"""Sessions that belong together: by results, first prompts and repositories."""

from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.dataset import select, splits
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.manifest import read_build
from composer_pipeline.dataset.splits import SessionLinks, remote_name
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.rules import PreferenceRules, Split
from composer_pipeline.states.load import load_states
from tests.fixtures.lake_states import write_session
from tests.publishing.test_dataset import DAY, NEXT, add_session, bash, normalise

LONG = "a line of a file that only one repository has\n" * 12


def seen(tmp_path: Path, **results: list[str]) -> SessionLinks:
    """Sessions whose one tool result each is in their second state."""
    lake = Lake(tmp_path / "lake")
    for name, texts in results.items():
        turns = [(bash(f"{name} {i}"), text) for i, text in enumerate(texts)]
        write_session(lake, name, [*turns, (bash("end"), "")], day=DAY)
    found = SessionLinks()
    for name in results:
        found.add([s for s in load_states(lake) if s.session_id == name])
    return found


def linked(found: SessionLinks, prompts: dict[str, str] | None = None) -> set[frozenset[str]]:
    by_link: dict[Any, set[str]] = {}
    for session, link in found.links(prompts or {}):
        by_link.setdefault(link, set()).add(session)
    return {frozenset(names) for names in by_link.values()}


def test_a_long_result_in_two_sessions_links_them(tmp_path: Path) -> None:
    bound = splits.LONG_RESULT
    found = seen(tmp_path, a=["x" * bound], b=["x" * bound], c=["y" * bound], d=["z" * (bound - 1)],
                 e=["z" * (bound - 1)])  # fmt: skip
    assert linked(found) == {frozenset("ab")}


def test_nearly_equal_first_prompts_link_their_sessions() -> None:
    words = (
        "Please move the settings of the billing service to the new file, give each of them a"
        " line of documentation, tell me which ones nobody reads any more, and run all its tests"
    )
    prompts = {
        "a": f"{words} now.",
        "b": f"{words.upper()} now!",
        "c": "Please write a script that counts the lines of each file in the folder of reports.",
        "short": "go on",
        "brief": "go on",
    }
    assert linked(SessionLinks(), prompts) == {frozenset("ab")}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("git@github.com:Owner/repo.git", "github.com/owner/repo"),
        ("github.com:owner/repo.git", "github.com/owner/repo"),
        ("https://user@github.com/owner/repo", "github.com/owner/repo"),
        ("ssh://git@host.example:owner/repo/", "host.example/owner/repo"),
        ("/srv/git/repo.git", ""),
        ("../repo", ""),
        ("plain", ""),
    ],
)
def test_a_remote_has_one_name(url: str, name: str) -> None:
    assert remote_name(url) == name


def repositories(found: SessionLinks, **folders: str) -> set[frozenset[str]]:
    by_name: dict[str, set[str]] = {}
    for session, name in found.repositories(folders).items():
        by_name.setdefault(name, set()).add(session)
    return {frozenset(names) for names in by_name.values()}


def test_clones_are_one_repository_by_remote_commits_or_worktree(tmp_path: Path) -> None:
    log = "commit {0}\nAuthor: x\n\ncommit {1}\nAuthor: x\n"
    one, two, three = ("1" * 40, "2" * 40, "3" * 40)
    found = seen(
        tmp_path,
        a=["origin\tgit@github.com:me/shop.git (fetch)\norigin\tgit@github.com:me/shop.git (push)"],
        b=["To https://github.com/me/shop.git\n   1..2  main -> main"],
        c=[log.format(one, two)],
        d=[f"[main {one[:7]}] a change\n 1 file changed", f"[main {two[:7]}] more"],
        e=[log.format(one, three)],
        f=["git clone https://github.com/me/shop.git"],
    )
    folders = {
        "a": "/u/a/shop", "b": "/u/b/shop", "c": "/u/c", "d": "/u/d", "e": "/u/e", "f": "/u/f",
        "g": "/u/f/.worktrees/fix", "h": "", "i": "",
    }  # fmt: skip
    assert repositories(found, **folders) == {
        frozenset("ab"), frozenset("cd"), frozenset("e"), frozenset("fg"), frozenset("h"),
        frozenset("i"),
    }  # fmt: skip
    names = found.repositories(folders)
    assert (names["a"], names["g"], names["h"]) == ("github.com/me/shop", "/u/f", "h")


# -- the build -----------------------------------------------------------------------------


def several(tmp_path: Path, count: int) -> Lake:
    """Two sessions of each repository; they have a message in common, shorter than a link."""
    lake = Lake(tmp_path / f"lake{count}")
    for repository in range(count):
        for session in range(2):
            add_session(
                lake, f"s{repository}{session}", DAY, project=f"/home/user/repo{repository}",
                listing=f"file {repository}\n" * 30,
            )  # fmt: skip
    normalise(lake, DAY)
    return lake


def test_with_five_repositories_none_is_in_both_splits(tmp_path: Path) -> None:
    lake = several(tmp_path, 5)
    report = build_dataset(lake, validation_share=0.5)
    assert (report.split_by, report.repositories, report.groups) == ("repository", 5, 10)
    assert all(report.splits.values()), "choose a share for which there are both"
    assert (report.repository_in_train, report.verbatim_in_train) == (0.0, 0.0)
    split = read_build(lake).figures["split"]
    assert (split["by"], split["repository_in_train"]) == ("repository", 0.0)
    assert split["validation_rows"] == report.splits["validation"]
    sides: dict[str, set[str]] = {}
    for table in ("pairs", "groups", "hints", "sft", "replies"):
        for row in lake.rows(f"dataset_{table}"):
            sides.setdefault(row["repository"], set()).add(row["split"])
    assert len(sides) == 5
    assert all(len(splits) == 1 for splits in sides.values())
    assert all("repo" not in name for name in sides), "a hash stands for the path"


def test_with_four_sessions_are_split_and_the_overlap_is_measured(tmp_path: Path) -> None:
    lake = several(tmp_path, 4)
    report = build_dataset(lake, validation_share=0.5)
    assert (report.split_by, report.repositories) == ("session", 4)
    names = {split: {r["repository"] for r in lake.rows("dataset_pairs", split=split)}
             for split in ("train", "validation")}  # fmt: skip
    both = names["train"] & names["validation"]
    assert both, "choose a share for which a repository is in both"
    rows = lake.rows("dataset_pairs", split="validation")
    assert report.repository_in_train == sum(r["repository"] in both for r in rows) / len(rows)
    # Each second state has the listing in its prompt.
    seconds = [r for r in rows if r["repository"] in both and len(r["prompt"]) > 2]
    assert report.verbatim_in_train == len(seconds) / len(rows) > 0


def test_a_split_by_session_is_taken_if_asked_and_its_leak_is_measured(tmp_path: Path) -> None:
    lake = several(tmp_path, 5)
    report = build_dataset(lake, validation_share=0.5, split_by="session")
    assert (report.split_by, report.repositories) == ("session", 5)
    assert report.repository_in_train > 0
    assert read_build(lake).figures["split"]["by"] == "session"
    rules = PreferenceRules(split=Split(validation_share=0.5, by="session"))
    assert build_dataset(lake, rules=rules).build == report.build
    other = build_dataset(lake, rules=rules, validation_share=0.0, split_by="repository")
    assert (other.splits["validation"], other.split_by) == (0, "repository")
    with pytest.raises(InputError, match="split_by must be repository or session, not 'day'"):
        build_dataset(lake, split_by="day")


def test_a_share_below_half_of_what_was_asked_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = several(tmp_path, 5)
    seen: dict[str, str] = {}  # the first repository alone, a fifth of the pairs
    monkeypatch.setattr(
        select, "split_of",
        lambda unit, _: seen.setdefault(unit, "train" if seen else "validation"),
    )  # fmt: skip
    assert build_dataset(lake, validation_share=0.4).warning == ""
    assert build_dataset(lake, validation_share=0.5).warning == (
        "20.0% of the pairs are in validation, where 50% was asked: a hash puts 1 of 5"
        " repositories there; --split-by session comes closer, with repositories in both splits"
    )


def test_sessions_that_move_are_named(tmp_path: Path) -> None:
    """The fifth repository makes repositories the unit, and some sessions change sides."""
    lake = several(tmp_path, 4)
    build_dataset(lake, validation_share=0.5)
    before = {row["session_id"]: row["split"] for row in lake.rows("dataset_pairs")}
    assert build_dataset(lake, validation_share=0.5).moved == {}
    for session in range(2):
        add_session(lake, f"t{session}", NEXT, project="/home/user/repo9", prompt=f"New {session}")
    normalise(lake, NEXT)
    report = build_dataset(lake, validation_share=0.5)
    assert report.split_by == "repository"
    now = {row["session_id"]: row["split"] for row in lake.rows("dataset_pairs")}
    expected = {
        name: f"{before[name]} to {now[name]}" for name in before if before[name] != now[name]
    }
    assert report.moved == expected != {}


def test_sessions_that_read_the_same_file_are_in_one_group(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for name in "abc":
        add_session(lake, name, DAY, listing=LONG if name != "c" else "c.py")
    normalise(lake, DAY)
    assert build_dataset(lake).groups == 2
    groups = {row["session_id"]: row["group_id"] for row in lake.rows("dataset_pairs")}
    assert groups["a"] == groups["b"] != groups["c"]


def test_two_clones_of_one_remote_are_one_repository() -> None:
    """One of them has a second remote, whose name comes first."""
    found = SessionLinks()
    found.remotes |= {"a": {"host/fork", "host/origin"}, "b": {"host/origin"}}
    names = found.repositories({"a": "/srv/one", "b": "/srv/two", "c": "/srv/three"})
    assert names == {"a": "host/fork", "b": "host/fork", "c": "/srv/three"}
