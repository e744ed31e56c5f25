"""What publishing would refuse is said before: by `verify`, `dataset` and `export`, all at once."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from composer_pipeline.cli.__main__ import main
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.manifest import inputs_of, read_build, write_manifest
from composer_pipeline.errors import ComposerError
from composer_pipeline.exporting.columns import export
from composer_pipeline.exporting.sessions import export_sessions
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import Publication, digest_of, remember_publication
from composer_pipeline.maintenance.forget import reparse, withdraw
from composer_pipeline.maintenance.verify import verify
from composer_pipeline.preferences.quality import write_statistics
from composer_pipeline.publishing.gates import PublishRefused
from composer_pipeline.publishing.publish import publish
from composer_pipeline.redaction.secrets import Literal
from composer_pipeline.redaction.vault import HASHED, HashedValues
from tests.fixtures.whole_lake import DAY

#: Known to the lake by its hash alone: another session revealed it.
BARE = "q7Zt2mWv9Lx4Rk8Ns3Hd6Bf1"
PLANTS = {
    "account_sid": json.dumps(
        {"role": "user", "content": '{"account_sid": "AC' + "0f3b" * 8 + '"}'}
    ),
    "bare": json.dumps({"role": "user", "content": f"and then {BARE} again"}),
    "mail": json.dumps({"role": "user", "content": "ask mira.jones@privatecompany.io"}),
    "keyed": json.dumps({"role": "user", "content": [{"type": "x", "password": "hunter23!"}]}),
}


@pytest.fixture
def lake(lake: Lake) -> Lake:
    values = HashedValues(lake.get_bytes(HASHED) if lake.exists(HASHED) else b"")
    values.add([Literal("API_KEY", BARE)])
    lake.put_bytes(HASHED, values.to_json())
    return lake


def plant(lake: Lake, table: str, column: str, value: Any, at: int = 0, **keys: str) -> str:
    """Write a value into a cell of a Parquet file by hand; return the session of its row."""
    path = Path(lake.path(table, **keys))
    rows = pq.read_table(path)
    cells = rows[column].to_pylist()
    cells[at] = [value] if isinstance(cells[at], list) else value
    number = rows.column_names.index(column)
    field = rows.schema.field(column)
    storage = pa.array(cells, _plain(field.type))
    rows = rows.set_column(number, field, storage.cast(field.type))
    pq.write_table(rows, path)
    return str(rows["session_id"][at].as_py()) if "session_id" in rows.column_names else ""


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.string()) if pa.types.is_list(kind) else kind


def said(lake: Lake) -> str:
    return "\n".join(verify(lake, ledger=Path(lake.root) / "ledger.db").problems)


def published(lake: Lake) -> str:
    """Publish without a token, which changes nothing; return the refusal."""
    try:
        publish(lake, "a/b", dry_run=True, allow_simulated=True, token_env="NO_SUCH_TOKEN")
    except PublishRefused as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def test_a_lake_that_verify_passes_publishes_at_the_first_try(lake: Lake) -> None:
    assert said(lake) == ""
    assert published(lake) == ""


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("stage", ["pairs", "normalized_pairs", "messages", "replies"])
def test_what_is_planted_in_a_stage_is_named_by_verify(kind: str, stage: str, lake: Lake) -> None:
    """Published or not: nobody learns of it one row at a time, by publishing refusing."""
    keys = {"teacher": "steady", "day": DAY} if stage == "replies" else {"day": DAY}
    column = {"messages": "json", "replies": "raw"}.get(stage, "prompt")
    value = zstandard.compress(PLANTS[kind].encode()) if stage == "replies" else PLANTS[kind]
    session = plant(lake, stage, column, value, 0, **keys)
    found = said(lake)
    assert f"column {column} holds" in found
    assert session in found
    assert not any(word in found for word in (BARE, "0f3b", "mira.jones", "hunter23"))
    assert "composer-pipeline reparse, then pairs, normalize and dataset" in found
    assert "COMPOSER_REDACTION" in found
    assert "composer-pipeline withdraw --session" in found


@pytest.mark.parametrize("kind", PLANTS)
def test_dataset_refuses_what_publishing_would_and_keeps_the_former(kind: str, lake: Lake) -> None:
    tables = {p: p.read_bytes() for p in Path(lake.root).glob("dataset_*/*/part.parquet")}
    sessions = {
        plant(lake, "normalized_pairs", "prompt", PLANTS[kind], at, day=DAY) for at in (0, -1)
    }
    with pytest.raises(ComposerError) as caught:
        build_dataset(lake)
    text = str(caught.value)
    assert all(f"session {session}, column prompt holds" in text for session in sessions)
    assert {p: p.read_bytes() for p in tables} == tables
    assert lake.exists(Lake.BUILD)


def test_all_findings_are_listed_by_table_column_and_session_with_counts(lake: Lake) -> None:
    for at in range(3):
        plant(
            lake,
            "dataset_pairs",
            "task",
            "write to mira.jones@privatecompany.io",
            at,
            split="train",
        )
    plant(
        lake, "dataset_pairs", "chosen_text", "or host build7.corp.internal:8443", 1, split="train"
    )
    lines = [line for line in said(lake).splitlines() if line.startswith("dataset_pairs/train")]
    assert [line for line in lines if "column task holds EMAIL" in line]
    assert sum(int(line.partition(", in ")[2].partition(" ")[0] or 1) for line in lines) >= 3


def test_publishing_lists_what_verify_lists(lake: Lake) -> None:
    """The same places with the same kinds, whichever command looks."""
    build_dataset(lake)
    figures = read_build(lake).figures
    for name, (table, split) in zip(
        PLANTS,
        (("pairs", "train"), ("groups", "train"), ("hints", "train"), ("replies", "train")),
        strict=True,
    ):
        column = "answer" if table == "replies" else "prompt"
        plant(lake, f"dataset_{table}", column, PLANTS[name], split=split)
    write_manifest(lake, inputs_of(lake), figures)  # as somebody would who plants them
    write_statistics(lake)
    mine = [line for line in said(lake).splitlines() if line.startswith("dataset_")]
    theirs = [line for line in published(lake).splitlines() if " holds " in line]
    assert len(theirs) == 4
    assert [line.removeprefix("dataset_") for line in mine] == theirs


@pytest.mark.parametrize("form", ["dpo", "sharegpt", "atif", "pi"])
def test_an_export_holds_nothing_that_publishing_would_refuse(
    form: str, lake: Lake, tmp_path: Path
) -> None:
    plant(lake, "dataset_pairs", "prompt", PLANTS["mail"], split="train")
    for at in range(len(lake.rows("messages", days=[DAY]))):
        if lake.rows("messages", days=[DAY])[at]["json"].startswith('{"role":"user"'):
            plant(lake, "messages", "json", PLANTS["mail"].replace(", ", ","), at, day=DAY)
            break
    whole = form in ("atif", "pi")
    out = tmp_path / "out"
    write = export_sessions if whole else export
    with pytest.raises(ComposerError, match="holds EMAIL"):
        write(lake, form, out)
    assert not any("privatecompany" in path.read_text("latin-1") for path in _files(out))
    if not whole:
        assert not _files(out)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def test_verify_reads_the_exports_too(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "pairs.parquet"
    export(lake, "dpo", out)
    rows = pq.read_table(out)
    mail = pa.array(["ask mira.jones@privatecompany.io"] * len(rows))
    pq.write_table(rows.set_column(rows.column_names.index("tier"), "tier", mail), out)
    assert f"{out}: row 0, session" in said(lake)


# -- what new rules would change, and where it is -----------------------------------------


@pytest.fixture
def new_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def write() -> None:
        file = tmp_path / "redaction.yaml"
        file.write_text("patterns: [{kind: ACME_NAME, pattern: tidepage, literal: tidepage}]\n")
        monkeypatch.setenv("COMPOSER_REDACTION", str(file))

    return write


def holding(lake: Lake, word: str) -> Iterator[str]:
    for row in lake.rows("messages"):
        if word in row["json"]:
            yield row["day"]


def test_a_dry_run_says_what_new_rules_would_change_and_where_it_is(
    lake: Lake, new_rules: Callable[[], None], tmp_path: Path
) -> None:
    out = tmp_path / "pi"
    export_sessions(lake, "pi", out)
    sessions = {row["session_id"] for row in lake.rows("sessions")}
    released = dict.fromkeys(map(digest_of, sessions), "v2026.11.16-0a0b0c0d")
    remember_publication(lake, "a/all", Publication("c" * 40, "v2026.11.20-1", [], released))
    remember_publication(lake, "a/other", Publication("d" * 40, "v1", [], {digest_of("no"): "v1"}))
    new_rules()
    before = {p: p.read_bytes() for p in Path(lake.root).rglob("*") if p.is_file()}
    report = reparse(lake, dry_run=True)
    assert {p: p.read_bytes() for p in Path(lake.root).rglob("*") if p.is_file()} == before
    days = list(holding(lake, "tidepage"))
    assert {day: found["messages"] for day, found in report.changed.items()} == {
        day: days.count(day) for day in set(days)
    }
    assert all(found["ACME_NAME"] >= found["messages"] for found in report.changed.values())
    assert report.exports
    assert {Path(name).parent for name in report.exports} == {out}
    assert report.releases == {"a/all": "v2026.11.16-0a0b0c0d"}
    assert report.next[-1] == "composer-pipeline publish --repo a/all"
    assert any(command.startswith("composer-pipeline withdraw") for command in report.next)
    # Redacting says the same, and there is nothing left to change.
    done = reparse(lake)
    assert (done.changed, done.exports, done.releases) == (
        report.changed, report.exports, report.releases,
    )  # fmt: skip
    again = reparse(lake, dry_run=True)
    assert (again.changed, again.exports, again.releases) == ({}, [], {})


def test_the_command_prints_it(
    lake: Lake, new_rules: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    new_rules()
    with pytest.raises(SystemExit) as ended:
        main(["reparse", "--dry-run", "--lake", lake.url, "--json"])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["changed"][DAY]["ACME_NAME"] >= 1
    assert list(holding(lake, "tidepage"))  # nothing was written


def test_a_withdrawal_names_the_releases(lake: Lake, victim: str) -> None:
    remember_publication(lake, "a/b", Publication("c" * 40, "v2", [], {digest_of(victim): "v1"}))
    remember_publication(lake, "a/c", Publication("d" * 40, "v9", [], {digest_of("other"): "v9"}))
    report = withdraw(lake, session=victim, dry_run=True)
    assert report.forgotten is not None
    assert report.forgotten.releases == {"a/b": "v1"}
    assert report.next == ["composer-pipeline dataset", "composer-pipeline publish --repo a/b"]


def test_every_table_with_texts_is_read(lake: Lake) -> None:
    """A table that verify passed over would be refused later, by whoever reads it."""
    for table, spec in TABLES.items():
        parts = [p for p in lake.partitions(table) if lake.rows(table, **_days(p))]
        column = next((f.name for f in spec.schema if f.type == pa.string()), None)
        if parts and column and table not in ("raw_files", "chains"):
            at = len(lake.rows(table, **_days(parts[0]))) - 1
            plant(lake, table, column, "ask mira.jones@privatecompany.io", at, **parts[0])
            where = "/".join([table, *parts[0].values()])
            assert any(line.startswith(where) for line in said(lake).splitlines()), table
            break


def _days(part: dict[str, str]) -> dict[str, Any]:
    rest = {key: value for key, value in part.items() if key != "day"}
    return {**rest, "days": [part["day"]]} if "day" in part else rest
