"""Every file that a commit carries is read, and what is private in one stops the commit."""

import base64
import io
import json
import secrets
import struct
import urllib.parse
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from composer_pipeline.dataset.files import CONFIGS, file_path
from composer_pipeline.dataset.splits import SPLITS
from composer_pipeline.lake.parquet import encode_parquet, table_from_rows
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.publishing.gates import PublishRefused, check_files
from composer_pipeline.redaction.scanning import Scanner, account_names

#: Drawn anew each time: no rule can have learned it.
SECRET = "ghp_" + "".join(secrets.choice("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghjkmnpqrstuvwxyz23456789")
                          for _ in range(36))  # fmt: skip
#: Without a shape: only its key tells what it is.
PASSWORD = "Xq7" + secrets.token_hex(9) + "Zr"
FORMS: dict[str, Callable[[], Any]] = {
    "plain": lambda: f"push with {SECRET} please",
    "key and value": lambda: {"arguments": {"password": PASSWORD}},
    "json in json": lambda: json.dumps({"a": json.dumps({"password": PASSWORD})}),
    "url-encoded": lambda: "see?next=" + urllib.parse.quote(f"token {SECRET}", safe=""),
    "base64": lambda: base64.b64encode(f"token {SECRET} end".encode()).decode(),
    "split line": lambda: f"token {SECRET[:20]}\n{SECRET[20:]}\n",
}
_TEXTS = [
    (config, column)
    for config, table in CONFIGS.items()
    for column in TABLES[table].schema.names
    if any(kind in str(TABLES[table].schema.field(column).type) for kind in ("string", "json"))
]


def message(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def row(number: int, split: str = "train", **changes: Any) -> dict[str, Any]:
    """A row that has what any configuration asks for; a table takes its own columns."""
    made = {
        "pair_id": f"p{number}", "state_id": f"s{number}", "session_id": f"session-{split}",
        "group_id": f"group-{split}", "prompt": [message(f"task {number}")],
        "chosen": [message("a")], "rejected": [message("b")], "action": [message("c")],
    }  # fmt: skip
    return {**made, **changes}


def parquet(config: str, rows: list[dict[str, Any]]) -> bytes:
    spec = TABLES[CONFIGS[config]]
    mine = [{k: v for k, v in row.items() if k in spec.schema.names} for row in rows]
    return encode_parquet(table_from_rows(spec, mine))


def files(**rows: list[dict[str, Any]]) -> dict[str, bytes]:
    """Files of a dataset; ``pairs_train=[...]`` names configuration and split."""
    found = {}
    for name, part in rows.items():
        config, split = name.rsplit("_", 1)
        found[file_path(config, split)] = parquet(config, part)
    return found


@pytest.mark.parametrize(("config", "column"), _TEXTS)
def test_no_form_of_a_secret_passes_in_any_column(config: str, column: str) -> None:
    kind = TABLES[CONFIGS[config]].schema.field(column).type
    for form, make in FORMS.items():
        value = make()
        if "json" in str(kind) or not isinstance(value, str):
            value = json.dumps(value)
        cell = [value] if pa.types.is_list(kind) else value
        rows = [row(0), {**row(1), column: cell}]
        with pytest.raises(PublishRefused) as caught:
            check_files(files(**{f"{config}_validation": rows}))
        assert f"{config}/validation: row 1" in str(caught.value), form
        assert f", column {column} holds" in str(caught.value), form
        assert SECRET not in str(caught.value)
        assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_file_of_the_dataset_is_scanned(config: str, split: str) -> None:
    every = {f"{c}_{s}": [row(number, s)] for number, c in enumerate(CONFIGS) for s in SPLITS}
    for number, rows in enumerate(every.values()):
        rows[0]["prompt"] = [message(f"another {number}")]
    check_files(files(**every))
    columns = {"prompt": [message(SECRET)], "answer_text": SECRET, "value": SECRET}
    column = next(name for name in columns if name in TABLES[CONFIGS[config]].schema.names)
    every[f"{config}_{split}"] = [row(7, split, **{column: columns[column]})]
    with pytest.raises(PublishRefused) as caught:
        check_files(files(**every))
    said = str(caught.value)
    assert said.startswith(
        f"{config}/{split}: row 0, session session-{split}, column {column} holds"
    )
    assert f"composer-pipeline withdraw --session session-{split} takes" in said
    assert "composer-pipeline reparse" in said


def test_a_row_far_down_is_named_by_its_number() -> None:
    rows = [row(number) for number in range(700)]
    rows[613]["prompt"] = [message("fine"), message(SECRET)]
    buffer = io.BytesIO()
    table = pq.read_table(io.BytesIO(parquet("pairs", rows)))
    pq.write_table(table, buffer, row_group_size=100)
    with pytest.raises(PublishRefused, match="pairs/train: row 613, session session-train"):
        check_files({file_path("pairs", "train"): buffer.getvalue()})


def test_the_users_own_rules_and_names_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "redaction.yaml"
    rules.write_text(
        "names: [quillon]\npatterns: [{kind: ACME, pattern: 'acme-[0-9]{6}', literal: acme-}]\n"
    )
    texts = {"acme-123456": "ACME", "see ~quillon/notes": "USER", "/srv/marwood/x": "USER"}
    monkeypatch.setenv("HOME", "/home/marwood")
    for text, kind in texts.items():
        monkeypatch.setenv("COMPOSER_REDACTION", str(rules))
        with pytest.raises(PublishRefused, match=f"column prompt holds {kind}"):
            check_files(files(pairs_train=[row(0, prompt=[message(text)])]))
        monkeypatch.delenv("COMPOSER_REDACTION")
        if kind == "ACME":
            check_files(files(pairs_train=[row(0, prompt=[message(text)])]))


def test_an_account_that_is_called_like_a_folder_names_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/dev")
    assert account_names() == set()
    check_files(files(pairs_train=[row(0, prompt=[message("make 2>/dev/null")])]))


# -- other files --------------------------------------------------------------------------


def picture(*chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    body = [chunk(b"IHDR", head), *(chunk(*c) for c in chunks)]
    end = [chunk(b"IDAT", zlib.compress(b"\0\0")), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join([*body, *end])


_PRIVATE = {
    "README.md": f"# Card\n\nexport TOKEN={SECRET}\n".encode(),
    "manifest.json": json.dumps({"password": PASSWORD}).encode(),
    "traces/one.jsonl": b'{"type":"session","id":"session-9"}\n{"password":"%s"}\n'
    % PASSWORD.encode(),
    "assets/tEXt.png": picture((b"tEXt", b"Comment\0" + SECRET.encode())),
    "assets/zTXt.png": picture((b"zTXt", b"Comment\0\0" + zlib.compress(SECRET.encode()))),
    "assets/iTXt.png": picture((b"iTXt", b"Comment\0\1\0en\0\0" + zlib.compress(SECRET.encode()))),
    "assets/tail.png": picture() + SECRET.encode(),
    "assets/cut.png": picture()[:-12] + b"\0\0\xff\0tEXt" + SECRET.encode(),
    f"notes/{SECRET}.txt": b"nothing",
    "stats/plain.parquet": encode_parquet(pa.table({"note": ["", SECRET]})),
    "LICENSE": b"(c) someone@privatecompany.io\n",
}


# The number of a case, not its name, which holds the secret of this run.
@pytest.mark.parametrize("name", _PRIVATE, ids=range(len(_PRIVATE)))
def test_every_kind_of_file_is_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(PublishRefused, match="holds") as caught:
        check_files({name: _PRIVATE[name]})
    assert SECRET not in str(caught.value)
    path = tmp_path / "content"
    path.write_bytes(_PRIVATE[name])
    with pytest.raises(PublishRefused, match="holds"):
        check_files({name: path})


def test_where_it_is_in_a_trace() -> None:
    with pytest.raises(PublishRefused, match=r"one\.jsonl: line 2, session session-9 holds"):
        check_files({"traces/one.jsonl": _PRIVATE["traces/one.jsonl"]})


def test_metadata_and_names_of_columns_are_read() -> None:
    for table in (
        pa.table({"note": ["x"]}).replace_schema_metadata({"author": SECRET}),
        pa.table({SECRET: ["x"]}),
    ):
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        with pytest.raises(PublishRefused, match="its schema holds"):
            check_files({"stats/plain.parquet": buffer.getvalue()})


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("data/pairs/train.parquet", b"PAR1 is not enough"),
        ("manifest.json", b"{not json"),
        ("traces/a.jsonl", b"{not json\n"),
        ("archive.zip", b"PK\x03\x04\xff\xfe"),
        ("assets/a.png", picture((b"zTXt", b"Comment\0\0not deflated"))),
        ("data/unheard/train.parquet", parquet("pairs", [row(0)])),
    ],
)
def test_what_cannot_be_read_does_not_leave(name: str, data: bytes) -> None:
    with pytest.raises(PublishRefused):
        check_files({name: data})


def test_a_message_that_is_no_json_does_not_leave() -> None:
    broken = files(pairs_train=[row(0, prompt=["{not json"])])
    with pytest.raises(PublishRefused, match="column prompt holds what is not JSON"):
        check_files(broken)


def test_the_contact_may_stand_in_the_card_alone() -> None:
    contact = "withdraw@privatecompany.io"
    card = f"Write to {contact}.\n".encode()
    check_files({"README.md": card}, Scanner(allow=[contact]))
    with pytest.raises(PublishRefused, match=r"README\.md holds EMAIL"):
        check_files({"README.md": card + b"or to me@privatecompany.io\n"}, Scanner(allow=[contact]))
    with pytest.raises(PublishRefused, match=r"NOTES\.md holds EMAIL"):
        check_files({"NOTES.md": card}, Scanner(allow=[contact]))


# -- rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group_id": "group-train"}, r"1 group\(s\) are in both splits"),
        ({"session_id": "session-train"}, r"1 session\(s\)"),
        ({"prompt": [message("task 0")]}, r"1 prompt\(s\)"),
    ],
)
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_is_in_two_splits_of_any_configuration(
    config: str, changes: dict[str, Any], words: str
) -> None:
    rows = [row(9, "validation", **changes)]
    having = [c for c, table in CONFIGS.items() if set(changes) <= {*TABLES[table].schema.names}]
    for other in having if config in having else ():
        with pytest.raises(PublishRefused, match=words):
            check_files(files(**{f"{other}_train": [row(0)], f"{config}_validation": rows}))
    check_files(
        files(**{f"{config}_train": [row(0)], f"{config}_validation": [row(9, "validation")]})
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chosen": []}, "pair p1 has an empty side"),
        ({"rejected": []}, "pair p1 has an empty side"),
        ({"rejected": [message("a")]}, "chosen equal to rejected"),
        ({"pair_id": "p0"}, "a pair_id occurs twice"),
    ],
)
def test_sides_of_a_pair(changes: dict[str, Any], words: str) -> None:
    for split in SPLITS:
        with pytest.raises(PublishRefused, match=words):
            check_files(files(**{f"pairs_{split}": [row(0), row(1, **changes)]}))


@pytest.mark.parametrize("config", CONFIGS)
def test_columns_are_those_of_the_table(config: str) -> None:
    table = pq.read_table(io.BytesIO(parquet(config, [row(0)])))
    name = table.column_names[-1]
    for other in (
        table.drop_columns([name]),
        table.append_column("extra", pa.array(["x"])),
        table.set_column(len(table.column_names) - 1, name, pa.array([1.5])),
    ):
        with pytest.raises(PublishRefused, match="columns are not those of"):
            check_files({file_path(config, "train"): encode_parquet(other)})


def test_a_barred_session_is_refused() -> None:
    rows = files(pairs_train=[row(0)], hints_train=[row(1)])
    check_files(rows, barred=lambda name: "withdrawn" if name == "another" else "")
    with pytest.raises(PublishRefused, match="rows of session session-train: withdrawn; run"):
        check_files(rows, barred=lambda _: "withdrawn")
