"""A table of wrong inputs over all commands: one sentence, exit 2, and a lake as it was."""

import gzip
import hashlib
import json
import re
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.parquet import FROM_ARCHIVE
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.samples import sample_sessions_dir
from tests.cli.bad_inputs import DAMAGED, LEFT_OUT, NO_LAKES, ON_A_LAKE, WRONG


def rows(text: str) -> list[tuple[str, str]]:
    out = []
    for line in text.strip().splitlines():
        left, _, right = line.rpartition("|")
        out.append((left.strip(), right.strip()))
    return out


def content(folder: Path) -> dict[str, str]:
    """The hash of every file; of a ledger, of its rows but the heartbeats.

    A stage before the one that fails may note its equal inputs again, which a copy has made newer.
    """
    return {
        str(path.relative_to(folder)): hashed(path, path.stat().st_mtime_ns, path.stat().st_ino)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


@cache
def hashed(path: Path, *written: int) -> str:
    if "made" in path.parts and path.suffix == ".json":
        note = json.loads(path.read_bytes())
        note["inputs"] = {name: digest for name, (_, digest) in note["inputs"].items()}
        return json.dumps(note)
    if path.suffix != ".db":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    with closing(sqlite3.connect(path)) as db:
        lines = [line for line in db.iterdump() if '"owner"' not in line]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.fixture(scope="module")
def lake(whole_lake: Path) -> Path:
    return whole_lake


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, lake: Path) -> dict[str, str]:
    """Files and folders that are wrong in one way each."""
    tmp = tmp_path_factory.mktemp("places")
    demo = (recipes_dir() / "teachers" / "demo.yaml").read_text()
    lines = b'{"type": "user"}\n' * 200
    first, _, entries = demo.partition("teachers:\n")
    filters = (recipes_dir() / "normalize" / "default.yaml").read_text()
    files: dict[str, tuple[str, str | bytes]] = {
        "file": ("file.txt", "dear diary: [\n"),
        "notes": ("notes.jsonl", "dear diary\nnothing to parse here\n"),
        "binary": ("binary.jsonl", bytes(range(256)) * 8),
        "void": ("void.jsonl", ""),
        "numbers": ("numbers.jsonl", "1\n2\n"),
        "halfpair": ("halfpair.jsonl", '{"a": {"text": "x"}}\n'),
        "cutgz": ("cut.jsonl.gz", gzip.compress(lines)[:30]),
        "notgz": ("not.jsonl.gz", b"plain text, not gzip\n"),
        "cutzst": ("cut.jsonl.zst", zstandard.compress(lines)[:20]),
        "cutparquet": ("cut.parquet", b"PAR1 and then nothing"),
        "list": ("list.yaml", "- one\n- two\n"),
        "yaml": ("yaml.yaml", "a: [1\nb: {\n"),
        "noteachers": ("noteachers.yaml", "teachers: []\n"),
        "badfield": ("badfield.yaml", demo.replace("  temperature: 0.0", "  temperatur: 0.0")),
        "noprojects": ("noprojects.yaml", f"projects: {{allow: []}}\n{demo}"),
        "twice": ("twice.yaml", f"{first}teachers:\n{entries}{entries}"),
        "badrules": ("badrules.yaml", "max_pair_per_session: 3\n"),
        "badrecipe": ("badrecipe.yaml", filters.replace("text_length", "no_such")),
        "badtrain": ("badtrain.yaml", "learning_rat: 1\n"),
    }
    out = {
        "tmp": str(tmp),
        "out": str(tmp / "out.parquet"),
        "sessions": str(sample_sessions_dir()),
        "teachers": str(recipes_dir() / "teachers" / "demo.yaml"),
        "trainer": str(recipes_dir() / "train" / "demo.yaml"),
    }
    for name in ("empty", "other"):
        (tmp / name).mkdir()
        out[name] = str(tmp / name)
    (tmp / "other" / "photo.jpg").write_bytes(b"\xff\xd8")
    for name, (file, data) in files.items():
        path = tmp / file
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        out[name] = str(path)
    stored = Lake(lake)
    first = stored.days("states")[0]
    out["state"] = stored.rows("states", days=[first], columns=["state_id"])[0]["state_id"]
    ids = sorted(row["state_id"] for row in stored.rows("states", columns=["state_id"]))
    out["two"] = next(a[:1] for a, b in pairwise(ids) if a[0] == b[0])
    return out


AGENT_FOLDERS = """
    CLAUDE_CONFIG_DIR CODEX_HOME COPILOT_HOME GEMINI_CLI_HOME PI_CODING_AGENT_DIR XDG_DATA_HOME
""".split()  # noqa: SIM905


@pytest.fixture
def tell(
    places: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Return a function that runs a command and returns its one sentence."""
    monkeypatch.chdir(places["empty"])
    for name in AGENT_FOLDERS:  # no agent's sessions
        monkeypatch.setenv(name, places["empty"])

    def run(command: str, lake: str = "") -> str:
        if lake:
            monkeypatch.setenv("COMPOSER_LAKE", lake)
        with pytest.raises(SystemExit) as left:
            main([part.format(**places) for part in shlex.split(command)])
        out, err = capsys.readouterr()
        assert (left.value.code, out) == (2, ""), err
        assert err.startswith("composer-pipeline: ")
        assert err.count("\n") == 1, err
        return err

    yield run
    assert not list(Path(places["empty"]).iterdir())


@pytest.mark.parametrize(("command", "said"), rows(WRONG))
def test_one_wrong_thing(
    tell: Any, lake: Path, places: dict[str, str], command: str, said: str
) -> None:
    before = content(lake)
    assert said in tell(command, str(lake))
    assert content(lake) == before
    assert not Path(places["out"]).exists()


@pytest.mark.parametrize("kind", NO_LAKES)
@pytest.mark.parametrize("command", ON_A_LAKE.strip().splitlines())
def test_a_wrong_lake_is_not_an_empty_one(
    tell: Any, places: dict[str, str], command: str, kind: str
) -> None:
    place, said = NO_LAKES[kind]
    before = content(Path(places["tmp"]))
    assert said in tell(f"{command} --lake {place}")
    assert content(Path(places["tmp"])) == before


@pytest.mark.parametrize(("table", "command"), rows(DAMAGED))
def test_a_file_cut_short_is_named(
    tell: Any, lake: Path, tmp_path: Path, table: str, command: str
) -> None:
    damaged, file = cut(lake, tmp_path, table)
    before = content(damaged)
    assert f"{file} is damaged" in tell(command, str(damaged))
    assert content(damaged) == before


def cut(lake: Path, tmp_path: Path, table: str) -> tuple[Path, str]:
    """Copy the lake and cut a table's first file short."""
    damaged = tmp_path / "lake"
    shutil.copytree(lake, damaged)
    file = sorted((damaged / table).rglob("part.parquet"))[0]
    file.write_bytes(file.read_bytes()[:-7])
    return damaged, str(file.relative_to(damaged))


@pytest.mark.parametrize(("table", "command"), rows(LEFT_OUT))
def test_a_damaged_day_is_left_out_and_named(
    lake: Path,
    places: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    table: str,
    command: str,
) -> None:
    damaged, file = cut(lake, tmp_path, table)
    before = content(damaged)
    out, err = {}, {}
    for place in (lake, damaged):
        with pytest.raises(SystemExit) as left:
            main([*(p.format(**places) for p in command.split()), "--json", "--lake", str(place)])
        out[place], err[place] = capsys.readouterr()
        assert not left.value.code, err[place]
    day = re.findall(r"\d{4}-\d\d-\d\d", file)[0]
    assert err[damaged] == (
        f"warning: day {day} is left out: {file} is damaged; run composer-pipeline"
        f" reparse --day {day}\n"
    )
    assert err[lake] == ""
    if command in ("states", "sessions"):
        assert set(out[damaged].splitlines()) < set(out[lake].splitlines())
    if table == "states":
        assert content(damaged) == before


@pytest.mark.parametrize("repair", ["reparse", "reparse --day {day}", "ingest {sessions}"])
@pytest.mark.parametrize("table", FROM_ARCHIVE)
def test_a_damaged_day_is_repaired_from_the_archive(
    lake: Path, places: dict[str, str], tmp_path: Path, table: str, repair: str
) -> None:
    damaged, file = cut(lake, tmp_path, table)
    day = re.findall(r"\d{4}-\d\d-\d\d", file)[0]
    words = [part.format(day=day, **places) for part in repair.split()]
    with pytest.raises(SystemExit) as left:
        main([*words, "--lake", str(damaged)])
    assert not left.value.code
    now = {n: h for n, h in content(damaged).items() if not n.startswith("receipts/")}
    assert now == content(lake)


def test_a_bucket_that_nobody_serves(tell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    assert "s3://bucket/lake cannot be reached" in tell("states", "s3://bucket/lake")


def test_the_table_is_long_enough() -> None:
    count = len(rows(WRONG)) + len(rows(DAMAGED))
    assert count + len(NO_LAKES) * len(ON_A_LAKE.strip().splitlines()) >= 200
