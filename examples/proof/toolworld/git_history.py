"""A git history of the small world: what a person made of each edit before the commit.

The sessions follow one another in one repository. A person writes the ticket's line, the agent
edits it, and the person commits it as it is or corrected; a mistaken edit mostly, a right one
rarely. A mistaken edit that nothing in its session shows is applied, and the work goes on.
"""

import datetime as dt
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.survival.stage import evaluate_outcomes
from composer_pipeline.traces.ingest import ingest
from examples.proof.toolworld.pipeline import Plan, recorded_sessions
from examples.proof.toolworld.world import (
    PROJECT,
    Recorded,
    Written,
    write_files,
    write_session,
)

BEGIN = dt.datetime(2026, 11, 2, 6, tzinfo=dt.UTC)
EVERY, LOOK = dt.timedelta(minutes=20), dt.timedelta(days=8)
#: Probability that a person corrects an edit before the commit: a mistaken one, and a right one.
CORRECTED, SPOILED = 0.85, 0.05


class Label(NamedTuple):
    """A label of the dataset, the planted one, and whether the edit was right."""

    label: bool
    planted: bool
    right: bool


class History:
    """A repository of the world's files, and the person who commits to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.texts = folder, dict[str, str]()
        folder.mkdir(parents=True)
        self._git("init", "-q", "-b", "main")
        self.commit("README.md", "The small world.\n", BEGIN)
        # The folder of the sessions is a worktree that this machine does not have.
        self._git("worktree", "add", "-q", "-b", "agent", str(folder.with_name("agent")))
        (folder / ".git/worktrees/agent/gitdir").write_text(f"{PROJECT.cwd}/.git\n")

    def commit(self, name: str, text: str, when: dt.datetime) -> None:
        """Commit a file as it shall be."""
        self.texts[name] = text
        (self.folder / name).write_text(text)
        self._git("add", name, when=when)
        self._git("commit", "-q", "--allow-empty", "-m", f"Change {name}", when=when)

    def _git(self, *words: str, when: dt.datetime = BEGIN) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1"}
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
        for role in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{role}_NAME": "Ada", f"GIT_{role}_EMAIL": "ada@example.org"}
            env[f"GIT_{role}_DATE"] = when.isoformat()
        subprocess.run(["git", "-c", "gc.auto=0", *words], cwd=self.folder, env=env, check=True)


@dataclass(frozen=True)
class Planted:
    """A lake with the sessions, their repository, when it is looked at, and the truth."""

    lake: Lake
    history: History
    now: dt.datetime
    kept: dict[str, bool]  # message id to whether the person committed the edit as it was
    right: dict[str, bool]  # and whether it was right


def plant(plan: Plan, folder: Path, *, unseen: float = 1.0) -> Planted:
    """Record sessions one after the other, and commit what a person makes of each edit.

    ``unseen`` is the share of mistaken edits that nothing in the session shows.
    """
    random = Random(900 + plan.seed)  # noqa: S311  nothing here is a secret
    history = History(folder / "repository")
    written, kept, right, at = [], dict[str, bool](), dict[str, bool](), BEGIN
    for number, recorded in enumerate(recorded_sessions(plan)[0]):
        at += EVERY
        name, symbol = f"f{recorded.world.file}.py", recorded.world.line
        # A line as short as the world's is not followed: in git it has a name before it.
        ask = f"answer_of_ticket_{number} = "
        before = history.texts.get(name, "") + f"{ask}{symbol}\n"
        history.commit(name, before, at - EVERY / 4)
        session = _session(recorded, f"{plan.seed}-{number}", at, random, unseen)
        message, fix = _applied(session, before)
        right[message] = fix == recorded.world.word()
        kept[message] = random.random() >= (SPOILED if right[message] else CORRECTED)
        other = recorded.world.word(3 if right[message] else 0)
        wanted = fix if kept[message] else other
        history.commit(name, before.replace(symbol, wanted), at + EVERY / 2)
        written.append(session)
    for name, text in sorted(history.texts.items()):
        history.commit(name, f"# Looked through.\n{text}", at + EVERY)
    write_files(written, folder / "projects")
    lake = Lake(str(folder / "lake"))
    ingest(lake, [folder / "projects"])
    return Planted(lake, history, at + LOOK, kept, right)


def _session(
    recorded: Recorded, slug: str, at: dt.datetime, random: Random, unseen: float
) -> Written:
    if recorded.world.hard_step == 1 and recorded.mistaken:
        if random.random() < unseen:
            recorded = replace(recorded, seen=False)
        elif recorded.world.family == "later":  # applied, so that git would see it all the same
            recorded = replace(recorded, mistaken=False)
    return write_session(recorded, f"kto-{slug}", f"{at:%Y-%m-%dT%H:%M}")


def _applied(session: Written, before: str) -> tuple[str, str]:
    """Return the message of the edit that was applied and what it wrote; record the file before."""
    message, fix = next(
        (message, str(step.action.tool_calls[0].arguments["new_string"]))
        for message, step in session.truth.items()
        if step.number == 1 and not step.refused
    )
    call = session.session.recorded[message].tool_calls[0].id
    for record in session.session.main.records:
        content = record.get("message", {}).get("content")
        block = content[0] if isinstance(content, list) else {}
        if block.get("tool_use_id") == call:
            record["toolUseResult"] = {"originalFile": before}  # as Claude Code has it
    return message, fix


def make_dataset(lake: Lake) -> None:
    """Run the stages from states to the dataset; no teacher is asked."""
    build_hints(lake)
    build_pairs(lake, rules=PreferenceRules(own_pairs=False))
    normalize(lake, recipes_dir() / "normalize" / "default.yaml")
    build_dataset(lake, validation_share=0.0)


def look(planted: Planted) -> None:
    """Ask git what became of the edits, with the product's stage."""
    repositories = [str(planted.history.folder)]
    evaluate_outcomes(planted.lake, repositories=repositories, now=planted.now)


def labels(planted: Planted) -> list[Label]:
    """Return the labels of the dataset beside the planted ones."""
    columns = ["state_id", "message_id"]
    message = {r["state_id"]: r["message_id"] for r in planted.lake.rows("states", columns=columns)}
    rows = planted.lake.iter_rows("dataset_kto", columns=["state_id", "label"], split="train")
    found = ((row["label"], message[row["state_id"]]) for row in rows)
    return [Label(label, planted.kept[m], planted.right[m]) for label, m in found]
