"""A small writer of session files, and the corpus where a checkout has one."""

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.traces.graph.turns import Trajectory
from composer_pipeline.traces.reading.records import LineStats, read_records

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"


class Script:
    """Builds the records of one session; every method returns the new record's uuid."""

    def __init__(self, session: str = "s1", day: str = "2026-11-16", cwd: str = "/srv/p") -> None:
        self.session, self.day, self.cwd = session, day, cwd
        self.lines: list[str] = []
        self.leaf: str | None = None

    def add(self, kind: str, *, parent: Any = "leaf", **fields: Any) -> str:
        number = len(self.lines) + 1
        uuid = f"{self.session}-{number}"
        record = {
            "parentUuid": self.leaf if parent == "leaf" else parent,
            "isSidechain": False,
            "type": kind,
            "uuid": uuid,
            "timestamp": f"{self.day}T10:{number // 60:02d}:{number % 60:02d}.000Z",
            "cwd": self.cwd,
            "sessionId": self.session,
            "version": "2.1.300",
        }
        record.update(fields)
        self.lines.append(json.dumps(record))
        self.leaf = uuid
        return uuid

    def user(self, text: Any, **fields: Any) -> str:
        return self.add("user", message={"role": "user", "content": text}, **fields)

    def result(self, call: str, text: Any, *, error: bool = False, **fields: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": call, "content": text}
        if error:
            block["is_error"] = True
        return self.user([block], **fields)

    def say(self, message: str, text: str, **fields: Any) -> str:
        return self.block(message, {"type": "text", "text": text}, **fields)

    def call(self, message: str, call: str, name: str = "Bash", /, **rest: Any) -> str:
        fields = rest.pop("fields", {})
        block = {"type": "tool_use", "id": call, "name": name, "input": rest or {"command": "ls"}}
        return self.block(message, block, **fields)

    def block(self, message: str, block: dict[str, Any], **fields: Any) -> str:
        body = {
            "id": message,
            "role": "assistant",
            "model": fields.pop("model", "claude-test"),
            "content": [block],
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 3},
        }
        return self.add("assistant", message=body, **fields)

    @property
    def data(self) -> bytes:
        return "".join(line + "\n" for line in self.lines).encode()

    def write(self, folder: Path, name: str | None = None) -> Path:
        path = folder / (name or f"{self.session}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def graph_of(data: bytes) -> tuple[Trajectory, LineStats]:
    stats = LineStats()
    return Trajectory(read_records(data.splitlines(keepends=True), stats)), stats


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="session")
def script() -> type[Script]:
    return Script


@pytest.fixture(scope="session")
def graph() -> Any:
    return graph_of


@pytest.fixture(scope="session")
def files_of() -> Any:
    return tree


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    folder = tmp_path / "projects"
    folder.mkdir()
    return folder


def _corpus() -> Path:
    if not CORPUS.is_dir():
        if "corpus" in os.environ.get("COMPOSER_REQUIRE", "").split(","):
            pytest.fail(f"corpus is required: {CORPUS} is missing")
        pytest.skip("corpus is missing: ../shared/corpus")
    return CORPUS


@pytest.fixture(scope="session")
def corpus() -> Path:
    return _corpus()


@pytest.fixture(scope="session")
def unpacked(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("claude-code-sessions", "claude-code-subagents"):
        with tarfile.open(corpus / f"{name}.tar.xz", "r:xz") as archive:
            archive.extractall(folder, filter="data")
    return folder
