"""What a user sees of outcomes: the command, the table, bad repositories, nights, uses."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import forget
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.states.load import load_states
from composer_pipeline.survival import repository, stage
from composer_pipeline.survival.session_edits import session_edits
from composer_pipeline.survival.stage import evaluate_outcomes, stale_outcomes
from composer_pipeline.traces.ingest import ingest_changes
from tests.survival.histories import HISTORIES
from tests.survival.script import PERSON, Script

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)


def played(tmp_path: Path, steps: Callable[[Script], None]) -> Script:
    """Play a history of a test's own."""
    (tmp_path / "work").mkdir()
    script = Script("own", tmp_path / "work")
    steps(script)
    return script


def looked(tmp_path: Path, script: Script, **options: Any) -> tuple[Lake, Any]:
    """Ingest the sessions of a history and ask git; return the lake and the report."""
    history = script.history()
    lake = Lake(str(tmp_path / "lake"))
    ingest_changes(lake, [str(history.sessions)])
    return lake, evaluate_outcomes(lake, now=options.pop("now", history.now), **options)


def insert_and_commit(script: Script) -> None:
    repo, agent = script.start("app.py")
    repo.insert(agent, "app.py")
    repo.commit("The edit of Zacharias Quillfeather")


def commit_row(lake: Lake) -> dict[str, Any]:
    (row,) = [row for row in lake.rows("outcomes") if row["horizon"] == "commit"]
    return row


def git(folder: Path, *words: str, **more: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **more}
    done = subprocess.run(
        ["git", "-C", str(folder), *words], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


# -- bad repositories -------------------------------------------------------------


def test_without_git_everything_is_unknown_and_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = played(tmp_path, insert_and_commit)
    monkeypatch.setenv("PATH", "")
    lake, report = looked(tmp_path, script)
    assert report.problems == ["git is not installed"]
    assert commit_row(lake)["why"] == "no_git"


def test_a_bare_repository_is_read_like_another(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    root = script.repos[0].root
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "-q", "--bare", str(root), str(bare))
    shutil.rmtree(root)
    lake, report = looked(tmp_path, script, repositories=[str(bare)])
    row = commit_row(lake)
    assert (row["status"], row["alive"], row["lines"], report.problems) == ("known", 3, 3, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user_is_left_alone(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    for path in (script.repos[0].root, *script.repos[0].root.rglob("*")):
        os.chown(path, 12345, 12345)
    lake, report = looked(tmp_path, script)
    (problem,) = report.problems
    assert "belongs to another user" in problem
    assert commit_row(lake)["why"] == "other_user"


def test_a_binary_and_a_huge_file_are_unknown_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py", "big.py", "odd.py")
        for path in ("app.py", "big.py", "odd.py"):
            repo.insert(agent, path)
        repo.put("big.py", repo.text("big.py") + "x = 1\n" * 9000)
        repo.put("odd.py", "\0" + repo.text("odd.py"))
        repo.commit("All three")

    script = played(tmp_path, steps)
    monkeypatch.setattr(repository, "MAX_BYTES", 20_000)
    lake, _ = looked(tmp_path, script)
    rows = [row for row in lake.rows("outcomes") if row["horizon"] == "commit"]
    assert sorted((row["status"], row["why"] or "") for row in rows) == [
        ("known", ""), ("unknown", "binary"), ("unknown", "too_large"),
    ]  # fmt: skip


def test_a_file_of_repositories_that_is_wrong_is_named(tmp_path: Path, capsys: Any) -> None:
    script = played(tmp_path, insert_and_commit)
    lake, _ = looked(tmp_path, script)
    file = tmp_path / "repositories.yaml"
    for text, said in (("repositories: [nowhere]", "nowhere"), ("folders: [.]", "folders")):
        file.write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["outcomes", "--repositories", str(file), "--lake", lake.url])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
    with pytest.raises(InputError, match="no git repository is there"):
        evaluate_outcomes(lake, repositories=[str(tmp_path)])


def test_a_repository_with_a_damaged_object_is_unknown_and_named(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    root = script.repos[0].root
    commit = git(root, "rev-parse", "HEAD~0^").strip()
    (root / ".git" / "objects" / commit[:2] / commit[2:]).unlink()
    lake, report = looked(tmp_path, script)
    (problem,) = report.problems
    assert "git log fails there" in problem
    assert commit_row(lake)["why"] == "damaged"


def test_a_partial_clone_fetches_nothing(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    root = script.repos[0].root
    git(root, "config", "uploadpack.allowFilter", "true")
    whole = root.rename(tmp_path / "whole")
    git(
        tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{whole}", str(root)
    )
    before = git(root, "count-objects", "-v")
    lake, _ = looked(tmp_path, script)
    assert git(root, "count-objects", "-v") == before
    assert commit_row(lake)["why"] in ("missing", "damaged")


def test_variables_of_a_hook_do_not_lead_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = played(tmp_path, insert_and_commit)
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    lake, _ = looked(tmp_path, script)
    assert commit_row(lake)["alive"] == 3


def test_the_trunk_is_the_remotes_default_branch(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        repo.insert(agent, "app.py")
        repo.commit("Work")
        repo.switch("fix/main", new=True)
        repo.lose("app.py", *script.written[0].lines)

    script = played(tmp_path, steps)
    root = script.repos[0].root
    lake, _ = looked(tmp_path, script)
    today = next(row for row in lake.rows("outcomes") if row["horizon"] == "today")
    assert today["alive"] == 3, "fix/main is not main"
    git(root, "update-ref", "refs/remotes/origin/dev", git(root, "rev-parse", "fix/main").strip())
    git(root, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/dev")
    evaluate_outcomes(lake, now=script.now)
    today = next(row for row in lake.rows("outcomes") if row["horizon"] == "today")
    assert today["alive"] == 0


def test_a_checkpoint_of_entire_ties_a_commit_to_its_session(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        repo.insert(agent, "app.py")
        repo.commit("Work\n\nEntire-Checkpoint: a1b2c3d4e5f6")

    script = played(tmp_path, steps)
    root, (session,) = script.repos[0].root, {agent.id for agent in script.agents}
    lake, _ = looked(tmp_path, script)
    assert commit_row(lake)["how"] == "lines"
    store = tmp_path / "store"
    (store / "a1" / "b2c3d4e5f6" / "0").mkdir(parents=True)
    text = json.dumps({"session_id": session})
    (store / "a1" / "b2c3d4e5f6" / "0" / "metadata.json").write_text(text)
    git(store, "init", "-q", "-b", "entire/checkpoints/v1")
    git(store, "add", "-A")
    git(store, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "Checkpoint")
    git(root, "fetch", "-q", str(store), "entire/checkpoints/v1:entire/checkpoints/v1")
    evaluate_outcomes(lake, now=NOW)
    assert commit_row(lake)["how"] == "trailer"


# -- histories that a tired colleague would get wrong -------------------------------


def alive_of(lake: Lake, message: str) -> dict[str, int | None]:
    """Return horizon to the lines alive of a response."""
    (state,) = (r["state_id"] for r in lake.rows("states") if r["message_id"] == message)
    rows = [row for row in lake.rows("outcomes") if row["state_id"] == state]
    return {row["horizon"]: row["alive"] for row in rows}


def test_a_squashed_branch_that_goes_on_is_followed_on_the_trunk(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        repo.switch("feature", new=True)
        repo.insert(agent, "app.py")
        repo.commit("Work")
        repo.switch("main")
        repo.squash("feature")
        repo.switch("feature")
        repo.lose("app.py", *script.written[0].lines)
        repo.switch("main")

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    assert alive_of(lake, script.written[0].message)["today"] == 3


def test_lines_that_another_session_wrote_again_are_its_own(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        first = repo.insert(agent, "app.py")
        text = "\n".join(first.lines)
        repo.human_drop("app.py", *first.lines)
        repo.human_add("app.py")
        repo.commit("Other work")
        above = repo.text("app.py").split("\n")[3]
        repo.edit(script.agent(repo), "app.py", above, f"{above}\n{text}")
        repo.commit("Again")

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    first, second = script.written
    assert alive_of(lake, first.message)["commit"] == 0
    assert alive_of(lake, second.message)["commit"] == 3


def test_a_rebase_of_older_commits_takes_nothing_out(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py", "other.py")
        repo.switch("feature", new=True)
        repo.work("app.py")
        repo.switch("main")
        repo.work("other.py")
        repo.switch("feature")
        repo.insert(agent, "app.py")
        repo.stash()
        repo.rebase("main")

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    assert (commit_row(lake)["why"], commit_row(lake)["alive"]) == ("not_committed", None)


def test_lines_that_came_with_a_merge_are_alive(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py", "other.py")
        repo.switch("feature", new=True)
        repo.work("other.py")
        repo.switch("main")
        repo.work("app.py")
        who = {f"GIT_{role}_{name}": "x" for role in ("AUTHOR", "COMMITTER")
               for name in ("NAME", "EMAIL")}  # fmt: skip
        git(repo.root, "merge", "-q", "--no-ff", "--no-commit", "feature", **who)
        repo.insert(agent, "app.py")
        script.advance()
        when = {f"GIT_{role}_DATE": script.now.isoformat() for role in ("AUTHOR", "COMMITTER")}
        git(repo.root, "commit", "-qam", "Merge, with a change of its own", **who, **when)
        repo.work("app.py")

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    alive = alive_of(lake, script.written[0].message)
    assert (alive["commit"], alive["today"]) == (3, 3)


def test_a_line_that_grew_is_gone(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        above = repo.text("app.py").split("\n")[3]
        line = "grand_total = price + tax"
        repo.edit(agent, "app.py", above, f"{above}\n{line}")
        repo.human_edit("app.py", line, f"{line} + tip_of_the_day")
        repo.commit("With a tip")

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    assert alive_of(lake, script.written[0].message)["commit"] == 0


def test_a_tools_snapshot_of_the_working_tree_is_no_commit(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        first = repo.insert(agent, "app.py")
        git(repo.root, "add", "-A")
        tree = git(repo.root, "write-tree").strip()
        when = f"@{int(script.now.timestamp())} +0000"
        who = {"NAME": "Tool", "EMAIL": "tool@example.org", "DATE": when}
        env = {f"GIT_{role}_{name}": text for role in ("AUTHOR", "COMMITTER")
               for name, text in who.items()}  # fmt: skip
        snapshot = git(repo.root, "commit-tree", "-m", "Snapshot", tree, **env)
        git(repo.root, "branch", "entire/1a2b3c4", snapshot.strip())
        git(repo.root, "stash", "store", "-m", "WIP on main", snapshot.strip())
        git(repo.root, "reset", "-q")
        repo.human_rewrite("app.py", *first.lines)
        repo.commit("Otherwise")

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    assert alive_of(lake, script.written[0].message)["commit"] == 0


def test_a_branch_that_is_merged_late_counts_its_days_from_the_commit(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py", "other.py")
        repo.switch("feature", new=True)
        repo.insert(agent, "app.py")
        repo.commit("Work")
        repo.switch("main")
        script.advance(days=5)
        repo.work("other.py")
        script.advance(days=5)
        repo.merge("feature")
        script.advance(days=1)

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    assert alive_of(lake, script.written[0].message)["7d"] == 3


def test_each_repository_that_is_named_is_tried(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        for name in ("first", "second"):
            repo = script.repository(name, "README.md")
            repo.insert(script.agent(repo), "README.md")
            repo.commit("Work")

    script = played(tmp_path, steps)
    moved = [repo.root.rename(tmp_path / f"moved-{repo.root.name}") for repo in script.repos]
    lake, _ = looked(tmp_path, script, repositories=list(map(str, moved)))
    assert [alive_of(lake, it.message)["commit"] for it in script.written] == [3, 3]


def test_a_new_file_is_not_taken_for_another_of_its_name(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("index.py")
        (repo.root / ".git" / "info" / "exclude").write_text("inner/\n")
        lines = script.code("index.py", 3)
        repo.write(agent, "inner/index.py", "\n".join(lines) + "\n")
        repo.work("index.py")

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    row = commit_row(lake)
    assert (row["why"], row["alive"]) == ("not_committed", None)


@pytest.mark.parametrize("form", ["tool", "words", "command"])
def test_the_patches_of_codex_are_followed(form: str, tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    repo, when = script.repos[0], script.now
    above = repo.text("app.py").split("\n")[2]
    line = "names_of_the_week = sorted(week)"
    patch = f"*** Begin Patch\n*** Update File: app.py\n@@\n {above}\n+{line}\n*** End Patch"
    repo.put("app.py", repo.text("app.py").replace(above, f"{above}\n{line}", 1))
    script.advance(minutes=5)
    git(repo.root, "add", "-A")
    stamps = {f"GIT_{role}_DATE": script.now.isoformat() for role in ("AUTHOR", "COMMITTER")}
    git(repo.root, "-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x", **stamps)
    call: dict[str, Any] = {"call_id": "c1", "type": "function_call", "name": "shell"}
    if form == "tool":
        call |= {"type": "custom_tool_call", "name": "apply_patch", "input": patch}
    elif form == "words":
        call["arguments"] = json.dumps({"command": ["apply_patch", patch]})
    else:
        command = f"apply_patch <<'EOF'\n{patch}\nEOF"
        call["arguments"] = json.dumps({"command": ["bash", "-lc", command]})
    output = {"type": f"{call['type']}_output", "call_id": "c1", "output": "Success."}
    meta = {"id": "0199aaaa-0000-7000-8000-000000000001", "cwd": str(repo.root)}
    lines = [("session_meta", meta), ("response_item", call), ("response_item", output)]
    (tmp_path / "codex").mkdir()
    (tmp_path / "codex" / "rollout.jsonl").write_text("".join(
        json.dumps({"timestamp": when.isoformat(), "type": kind, "payload": payload}) + "\n"
        for kind, payload in lines
    ))  # fmt: skip
    lake = Lake(str(tmp_path / "lake"))
    ingest_changes(lake, [str(tmp_path / "codex")])
    evaluate_outcomes(lake, now=script.now)
    row = commit_row(lake)
    assert (row["lines"], row["alive"]) == (1, 1)


def test_an_edit_that_a_compaction_keeps_is_one_edit() -> None:
    """And its summary is no prompt."""

    def entry(number: int, **fields: Any) -> dict[str, Any]:
        link = {"id": f"e{number}", "parentId": f"e{number - 1}" if number > 1 else None}
        return {"type": "message", "timestamp": f"2026-11-18T11:00:0{number}Z", **link, **fields}

    texts = [{"oldText": "a = 1", "newText": "the_answer_of_all = 42"}]
    call = {
        "type": "toolCall",
        "id": "c",
        "name": "edit",
        "arguments": {"path": "x", "edits": texts},
    }
    ask = {"role": "user", "content": [{"type": "text", "text": "go"}]}
    done = {"role": "toolResult", "toolCallId": "c", "toolName": "edit", "content": []}
    said = [
        {
            "type": "session",
            "version": 3,
            "id": "s",
            "timestamp": "2026-11-18T11:00:00Z",
            "cwd": "/",
        },
        entry(1, message=ask),
        entry(2, message={"role": "assistant", "content": [call]}),
        entry(3, message=done),
        {**entry(4, summary="so far", firstKeptEntryId="e2"), "type": "compaction"},
        entry(5, message=ask),
    ]
    found = session_edits([json.dumps(line).encode() + b"\n" for line in said], "s")
    assert (len(found.edits), len(found.prompts)) == (1, 2)


# -- nights -------------------------------------------------------------------------


def test_a_day_is_stale_when_its_repository_changes_and_settles_with_age(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    now = script.now
    lake, _ = looked(tmp_path, script, now=now)
    assert stale_outcomes(lake, now=now) == {}
    script.repos[0].work("app.py")
    assert list(stale_outcomes(lake, now=now)) == lake.days("states")
    evaluate_outcomes(lake, now=now)
    assert stale_outcomes(lake, now=now) == {}
    for days in (16, 47):  # the time for a commit is over, then that for the last horizon
        later = now + timedelta(days=days)
        assert stale_outcomes(lake, now=later)
        evaluate_outcomes(lake, now=later)
        assert stale_outcomes(lake, now=later) == {}
    script.repos[0].work("app.py")
    assert stale_outcomes(lake, now=now + timedelta(days=60)) == {}, "a settled day asks nobody"


def test_what_was_known_stays_known_when_the_clone_is_gone(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    lake, _ = looked(tmp_path, script)
    before = [row for row in lake.rows("outcomes") if row["status"] == "known"]
    shutil.rmtree(script.repos[0].root)
    evaluate_outcomes(lake, now=script.now + timedelta(days=1))
    assert before
    assert [row for row in lake.rows("outcomes") if row["status"] == "known"] == before


def test_a_deleted_clone_is_never_gone_in_another_repository(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        mine, agent = script.start("app.py")
        mine.insert(agent, "app.py")
        mine.commit("Work")
        other = script.repository("other", "app.py")
        other.work("app.py")

    script = played(tmp_path, steps)
    mine, other = script.repos
    shutil.rmtree(mine.root)
    lake, _ = looked(tmp_path, script, repositories=[str(other.root)])
    row = commit_row(lake)
    assert (row["status"], row["alive"]) == ("unknown", None)


def test_a_look_that_finds_nothing_new_writes_the_same_bytes(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    lake, _ = looked(tmp_path, script, now=script.now)
    (day,) = lake.days("outcomes")
    before = Path(lake.path("outcomes", day=day)).read_bytes()
    evaluate_outcomes(lake, now=script.now + timedelta(minutes=5))
    assert Path(lake.path("outcomes", day=day)).read_bytes() == before


# -- privacy -----------------------------------------------------------------------


def rewritten_with(text: str) -> Callable[[Script], None]:
    """Return a history whose person commits another text in the place of the agent's."""

    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        repo.insert(agent, "app.py", count=1)
        (line,) = script.written[-1].lines
        repo.human_edit("app.py", line, text)
        repo.commit("The edit of Zacharias Quillfeather")

    return steps


def hidden_in(lake: Lake, *words: str) -> None:
    """Check that no file of a lake but its archive holds a word."""
    for path in Path(lake.root).rglob("*"):
        if path.is_file() and "archive" not in path.parts:
            data = path.read_bytes()
            assert not [word for word in words if word.encode() in data], path
    for table in lake.tables():
        shown = json.dumps(lake.rows(table), default=str)
        assert not [word for word in words if word in shown], table


def test_no_name_no_message_and_no_secret_of_a_commit_is_stored(tmp_path: Path) -> None:
    secret = "ghp_" + "a8Fq" * 9
    script = played(tmp_path, rewritten_with(f'token_of_the_bot = "{secret}"'))
    lake, _ = looked(tmp_path, script)
    action = commit_row(lake)["committed_action"]
    assert "token_of_the_bot" in action
    assert "[SECRET_" in action
    hidden_in(lake, secret, "Zacharias", "Quillfeather", PERSON[0], PERSON[1])


def test_forget_removes_the_outcomes_of_a_session(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    lake, _ = looked(tmp_path, script)
    session = commit_row(lake)["session_id"]
    forget(lake, session=session)
    assert not lake.rows("outcomes")


# -- uses --------------------------------------------------------------------------


def test_an_edit_that_was_committed_otherwise_makes_a_hindsight_pair(tmp_path: Path) -> None:
    script = played(tmp_path, rewritten_with("    total = sum(prices) + shipping_cost"))
    lake, _ = looked(tmp_path, script)
    build_pairs(lake)
    (pair,) = lake.rows("pairs")
    assert (pair["source"], pair["tier"], pair["kept"]) == ("hindsight", "hindsight", 0.0)
    sides = [
        pair[side][0]["tool_calls"][0]["function"]["arguments"] for side in ("chosen", "rejected")
    ]
    assert "shipping_cost" in sides[0]["new_string"]
    assert sides[0]["old_string"] == sides[1]["old_string"]
    assert script.written[0].lines[0] in sides[1]["new_string"]


def test_where_the_lines_around_it_are_not_unique_there_is_no_hindsight_pair(
    tmp_path: Path,
) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        repo.insert(agent, "app.py", count=1)
        (line,) = script.written[-1].lines
        text = repo.text("app.py").replace(line, "    total = sum(prices) + shipping_cost")
        repo.put("app.py", text + text)
        repo.dirty.add("app.py")
        repo.commit("Twice")

    script = played(tmp_path, steps)
    lake, _ = looked(tmp_path, script)
    assert commit_row(lake)["alive"] == 0
    assert commit_row(lake)["committed_action"] is None


def test_a_record_that_a_file_repeats_counts_once(tmp_path: Path) -> None:
    script = played(tmp_path, insert_and_commit)
    history = script.history()
    (file,) = history.sessions.glob("*.jsonl")
    file.write_text(file.read_text() * 2)
    lake = Lake(str(tmp_path / "lake"))
    ingest_changes(lake, [str(history.sessions)])
    evaluate_outcomes(lake, now=history.now)
    assert commit_row(lake)["lines"] == 3


def test_after_the_user_said_more_there_is_no_hindsight_pair(tmp_path: Path) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        repo.insert(agent, "app.py", count=1)
        (line,) = script.written[-1].lines
        agent.record("user", {"role": "user", "content": "No, add the shipping cost."})
        script.advance()
        repo.human_edit("app.py", line, "    total = sum(prices) + shipping_cost")
        repo.commit("Other")

    lake, _ = looked(tmp_path, played(tmp_path, steps))
    build_pairs(lake)
    assert not lake.rows("pairs")


def test_states_carry_their_fate(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    history = HISTORIES["lost_at_known_commits"](tmp_path / "work")
    lake = Lake(str(tmp_path / "lake"))
    ingest_changes(lake, [str(history.sessions)])
    (plain,) = [s for s in load_states(lake) if s.action.tool_calls]
    assert (plain.fate, plain.kept, plain.survival) == (None, None, None)
    evaluate_outcomes(lake, now=history.now)
    (state,) = [s for s in load_states(lake) if s.action.tool_calls]
    assert (state.fate, state.kept, state.survival) == ("committed", 1.0, 0.25)


def test_the_command_prints_what_became_of_the_edits(tmp_path: Path, capsys: Any) -> None:
    script = played(tmp_path, insert_and_commit)
    lake = Lake(str(tmp_path / "lake"))
    ingest_changes(lake, [str(script.history().sessions)])
    main_done(["outcomes", "--lake", lake.url, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["looked"]["known"] == 1
    assert report["alive"]["commit"]["value"] == 1.0
    main_done(["outcomes", "--lake", lake.url])
    shown = capsys.readouterr().out
    assert "What became of the edits" in shown
    assert "the commit" in shown
    main_done(["outcomes", "--lake", lake.url, "--json"])
    assert json.loads(capsys.readouterr().out)["looked"]["days"] == [], "nothing is new"


def main_done(words: list[str]) -> None:
    """Run a command that must end well."""
    try:
        main(words)
    except SystemExit as ended:
        if ended.code:
            raise


def test_contested_pairs_are_flagged_or_dropped() -> None:
    assert PreferenceRules().contested == "flag"
    from composer_pipeline.preferences.pairs import select

    row = {"pair_id": "p", "state_id": "s", "session_id": "t", "weight": 1.0, "tier": "gold",
           "margin": 1.0, "contested": True, "survival": 1.0}  # fmt: skip
    kept, drops = select([row], {}, PreferenceRules())
    assert kept == [row]
    kept, drops = select([row], {}, PreferenceRules(contested="drop"))
    assert not kept
    assert drops[0]["op"] == "contested"


def test_a_kill_between_days_leaves_whole_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(script: Script) -> None:
        repo, agent = script.start("app.py")
        repo.insert(agent, "app.py")
        repo.commit("First")
        script.advance(days=2)
        repo.insert(script.agent(repo), "app.py", at=15)
        repo.commit("Second")

    script = played(tmp_path, steps)
    history = script.history()
    lake = Lake(str(tmp_path / "lake"))
    ingest_changes(lake, [str(history.sessions)])
    assert len(lake.days("states")) == 2
    real = stage._write_day
    done: list[str] = []

    def killed(lake: Lake, day: str, *given: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(day)
        return real(lake, day, *given)

    monkeypatch.setattr(stage, "_write_day", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate_outcomes(lake, now=history.now)
    monkeypatch.undo()
    assert list(stale_outcomes(lake, now=history.now)) == lake.days("states")[1:]
    evaluate_outcomes(lake, days=stale_outcomes(lake, now=history.now), now=history.now)
    assert {row["status"] for row in lake.rows("outcomes") if row["horizon"] == "commit"} == {
        "known"
    }
