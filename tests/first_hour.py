"""Writes docs/first-hour.md: ``python -m tests.first_hour > docs/first-hour.md``.

Runs each command in a new home folder, whose ``~/.claude/projects`` are the sample sessions, with
teachers on this machine. What a terminal of 80 columns shows is written down as it is, with the
home folder as ``~``; where a listing is long, the middle is left out and said.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.samples import sample_sessions_dir
from examples.demo.profile import loopback
from tests.places import ROOT

LONGEST = 48
#: What a command says of its progress every ten seconds: how often depends on the machine.
PROGRESS = re.compile(r"[^:]+: [\d,]+(?: of [\d,]+)?, .*\b\d+ m?s(?:; stopped: .*)?")
HEAD = """# The first hour

From an empty folder to a dataset that passed its gates, and one that did not. Every output
below is what the command printed when this page was written (`python -m tests.first_hour >
docs/first-hour.md`): the sessions are the sample sessions, put at `~/.claude/projects`, and
the teachers are scripted ones on the same machine, so the dollars are simulated. With
`OPENROUTER_API_KEY` set and without `--teachers`, the same commands ask real teachers.

Installing is not recorded: `uv tool install .` in a checkout (the README says which extra brings
what; none is needed here).
"""
CANNED = """
teachers:
  - {name: one, family: sim-alpha, model: loopback/flaky-20261101, licence: simulated,
     max_price: {prompt: "0.10", completion: "0.40"}}
  - {name: two, family: sim-beta, model: loopback/flaky-20261101, licence: simulated,
     max_price: {prompt: "0.10", completion: "0.40"}}
"""
REFUSED = "dataset --lake canned"
STEPS = (
    ("Say where things are. `.env` in this folder remembers it.", "init --max-usd 0.50"),
    ("Archive and parse what agents wrote here. Nothing leaves the machine.", "ingest"),
    ("Again: only what is new is read.", "ingest"),
    ("What is there, and what comes next.", "status"),
    ("The sessions, then the states of one project.", "sessions"),
    ("", "states --project ladle --until 2026-11-16"),
    (
        "What asking teachers about the first day would cost, and what a cent would buy, before it"
        " costs anything.",
        "plan --max-usd 0.01 --teachers demo.yaml --until 2026-11-16",
    ),
    ("Ask, under a ceiling.", "replay --teachers demo.yaml --until 2026-11-16"),
    ("Where teachers of different families agree against the agent.", "pairs"),
    ("One pair, side by side.", "pair {pair}"),
    (
        "The other days as well: what was paid for is not asked again.",
        "replay --teachers demo.yaml",
    ),
    ("", "pairs"),
    (
        "Rows without content filters (`--recipe default` runs data-juicer's), then the dataset:"
        " split by session, behind gates that read every pair.",
        "normalize --recipe none",
    ),
    ("", "dataset"),
    (
        "Gates that refuse nothing would say nothing. `canned.yaml` names one scripted model"
        " twice, under two families: it answers anything with the same few commands, so that both"
        " always agree, and every pair is gold.",
        "ingest --lake canned",
    ),
    ("", "replay --teachers canned.yaml --lake canned"),
    ("", "pairs --lake canned"),
    ("", "normalize --recipe none --lake canned"),
    ("Three gates refuse it, and the command ends with exit code 1.", "dataset --lake canned"),
    ("Is everything still what it was?", "verify"),
    ("And if a session should not have been there:", "forget --session {session} --dry-run"),
)


def main() -> None:
    """Run the steps and write the page to standard output."""
    out = [HEAD]
    # Always below /tmp: how long the path is decides where tables cut it, and the size of receipts.
    with TemporaryDirectory(dir="/tmp") as place, loopback():
        home = Path(place)
        shutil.copytree(sample_sessions_dir(), home / ".claude" / "projects")
        work = home / "training-data"
        work.mkdir()
        teachers = (recipes_dir() / "teachers" / "demo.yaml").read_text(encoding="utf-8")
        (work / "demo.yaml").write_text(teachers, encoding="utf-8")
        canned = teachers.partition("\nteachers:")[0] + CANNED
        (work / "canned.yaml").write_text(canned, encoding="utf-8")
        for text, step in STEPS:
            command = step.format(**_ids(work / "lake"))
            out.append(f"{text}\n" if text else "")
            out.append(f"```\n$ composer-pipeline {command}\n{_shown(command, home, work)}\n```\n")
    sys.stdout.write("\n".join(part for part in out if part))


def _ids(folder: Path) -> dict[str, str]:
    if not (folder / "pairs").is_dir():
        return {}
    row = Lake(folder).rows("pairs", columns=["pair_id", "session_id"])[0]
    return {"pair": row["pair_id"][:12], "session": row["session_id"][:8]}


def _shown(command: str, home: Path, work: Path) -> str:
    """Run a command; return what a person sees of it."""
    env = {name: value for name, value in os.environ.items() if name != "COMPOSER_ENV_FILE"}
    env |= {"HOME": str(home), "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "composer_pipeline.cli", *command.split()]
    words = [word.replace("~/", f"{home}/") for word in words]
    done = subprocess.run(words, cwd=work, env=env, capture_output=True, text=True, check=False)
    if done.returncode != (command == REFUSED):
        raise SystemExit(f"{command}: {done.stderr}")
    text = (done.stdout + done.stderr).rstrip()
    said = [line for line in text.splitlines() if not PROGRESS.fullmatch(line)]
    lines = [_with_tilde(line, str(home)).rstrip() for line in said]
    if len(lines) > LONGEST:
        left = len(lines) - LONGEST
        lines = [*lines[: LONGEST - 6], f"… {left} lines …", *lines[-6:]]
    return "\n".join(lines)


def _with_tilde(line: str, home: str) -> str:
    """Return a line with the home folder as ``~``; a cell of a table keeps its width."""
    room = " " * (len(home) - 1) * line.count(home)
    line = line.replace(home, "~")
    return f"{line[:-1]}{room}{line[-1]}" if line.endswith("│") else line


if __name__ == "__main__":
    main()
