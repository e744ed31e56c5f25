"""Git repositories for the bundled sessions: what a person committed of the agent's edits.

Each edit is committed half an hour after its session, but for one in five, chosen by a hash, which
a person takes back before. A day later a person adds a line to every file. The files are those that
``scripts/sample_sessions`` wrote the sessions from.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from zlib import crc32

from composer_pipeline.testing.samples import sample_sessions_dir
from scripts.sample_sessions.billfold_code import BILLFOLD
from scripts.sample_sessions.birdlog_code import BIRDLOG
from scripts.sample_sessions.calls import Project
from scripts.sample_sessions.ladle_code import LADLE
from scripts.sample_sessions.tidepage_code import TIDEPAGE

PROJECTS = (BILLFOLD, BIRDLOG, LADLE, TIDEPAGE)

#: A comment in the language of a file, by its ending.
_COMMENTS = {".py": "# {}", ".md": "<!-- {} -->", ".css": "/* {} */"}


class _Session(NamedTuple):
    folder: str
    end: datetime
    edits: list[dict[str, Any]]  # arguments of the calls that worked and were not taken back


def sample_repositories(root: Path) -> Path:
    """Make the repositories in a folder; return the file that names them."""
    shutil.rmtree(root, ignore_errors=True)
    sessions = sorted(_sessions(), key=lambda session: session.end)
    for project in PROJECTS:
        mine = [session for session in sessions if session.folder == project.cwd]
        _make(root / PurePosixPath(project.cwd).name, project, mine)
    file = root / "repositories.yaml"
    names = (f"  - {PurePosixPath(project.cwd).name}\n" for project in PROJECTS)
    file.write_text("repositories:\n" + "".join(names))
    return file


def _sessions() -> Iterator[_Session]:
    for file in sorted(sample_sessions_dir().rglob("*.jsonl")):
        records = list(_records(file.read_text(encoding="utf-8")))
        folder = next((str(r["cwd"]) for r in records if r.get("cwd")), "")
        times = [str(r["timestamp"]) for r in records if r.get("timestamp")]
        if edits := list(_edits(records)):
            yield _Session(folder, datetime.fromisoformat(max(times)), edits)


def _records(text: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a session file; one of the bundled ones has broken lines on purpose."""
    for line in text.splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


def _edits(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    calls: dict[str, dict[str, Any]] = {}
    for record in records:
        message = record.get("message") or {}
        blocks = message.get("content")
        for block in blocks if isinstance(blocks, list) else []:
            if block.get("name") in ("Edit", "Write") and crc32(block["id"].encode()) % 5:
                calls[block["id"]] = block["input"]
            if block.get("type") == "tool_result" and not block.get("is_error"):
                given = calls.pop(block["tool_use_id"], None)
                if given is not None:
                    yield given


def _make(repository: Path, project: Project, sessions: list[_Session]) -> None:
    repository.mkdir(parents=True)
    files = dict(project.files)
    first = sessions[0].end - timedelta(days=2)
    _git(repository, first, "init", "-q", "-b", "main")
    _commit(repository, files, first, "Start")
    for session in sessions:
        for given in session.edits:
            file = given["file_path"].removeprefix(project.cwd + "/")
            old = given.get("old_string")
            files[file] = (
                given["content"] if old is None
                else files.get(file, "").replace(old, given["new_string"], 1)
            )  # fmt: skip
        _commit(repository, files, session.end + timedelta(minutes=30), "Work of the day")
    more = {file: f"{text.rstrip()}\n{_comment(file)}\n" for file, text in files.items()}
    _commit(repository, more, sessions[-1].end + timedelta(days=1), "Notes")


def _comment(file: str) -> str:
    return _COMMENTS.get(PurePosixPath(file).suffix, "// {}").format("Reviewed, and kept as it is.")


def _commit(repository: Path, files: Mapping[str, str], when: datetime, message: str) -> None:
    for file, text in files.items():
        (repository / file).parent.mkdir(parents=True, exist_ok=True)
        (repository / file).write_text(text, encoding="utf-8")
    _git(repository, when, "add", "-A")
    _git(repository, when, "commit", "-q", "--allow-empty", "-m", message)


def _git(repository: Path, when: datetime, *words: str) -> None:
    person = {"NAME": "A person", "EMAIL": "person@example.org", "DATE": when.isoformat()}
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
           for key, value in person.items()}  # fmt: skip
    env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "-C", str(repository), *words], env=env, check=True)
