"""Rows in Arrow files: what goes in comes out, one row at a time, whole or not at all."""

import pickle
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.training import rows as arrow_rows
from composer_pipeline.training.rows import (
    ArrowRows,
    Demonstration,
    Group,
    Hint,
    Pair,
    SomeRows,
    TrainingData,
    column_of,
    item_lengths_of,
    loss_factors,
    writing_rows,
)

ROWS: dict[type[Any], list[Any]] = {
    Group: [
        Group("a", [1, 2], [[3], [], [4, 5]], [2, 1, 1], [1.0, 0.25, -1.0], '{"role": "ü"}'),
        Group("b", [], [[7, 8]], [1], [0.0], "{}"),
    ],
    Pair: [Pair(f"p{n}", [n] * n, [n, n + 1], [2**31 - 1], 0.5 + n) for n in range(40)],
    Hint: [Hint("h", [1], [1, 2], [3, 4], 0, 2, [9]), Hint("i", [1], [2], [3], 0, 1)],
    Demonstration: [Demonstration("d", [1, 2, 3], [4])],
}


@pytest.fixture(params=[1, 3, 1 << 18], ids="batches of {}".format)
def small_batches(request, monkeypatch):
    monkeypatch.setattr(arrow_rows, "BATCH_NUMBERS", 4 * request.param)
    monkeypatch.setattr(arrow_rows, "BATCH_ROWS", request.param)


def test_lengths_of_answers_need_no_answer(tmp_path, small_batches):
    rows = ROWS[Group]
    with writing_rows(tmp_path / "rows.arrow", Group) as out:
        for row in rows:
            out.append(row)
    read = ArrowRows(tmp_path / "rows.arrow", Group)
    assert item_lengths_of(read, "completions") == item_lengths_of(rows, "completions")
    assert item_lengths_of(rows, "completions") == [1, 0, 2, 2]


def test_some_rows_are_read_when_they_are_asked_for():
    asked: list[int] = []

    class Watched(list[Any]):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    some: SomeRows[Any] = SomeRows(Watched("abcdef"), [1, 4, 5])
    assert len(some) == 3
    assert asked == []
    assert some[1] == "e"
    assert asked == [4]
    assert some[-1] == "f"
    assert some[:2] == ["b", "e"]
    assert list(some) == ["b", "e", "f"]


@pytest.mark.parametrize("kind", ROWS)
def test_rows_come_back_equal_in_every_way_of_asking(kind, small_batches, tmp_path):
    path, rows = tmp_path / "rows.arrow", ROWS[kind]
    with writing_rows(path, kind) as out:
        for row in rows:
            out.append(row)
    read = ArrowRows(path, kind)
    assert len(read) == len(rows)
    assert list(read) == rows
    assert [read[i] for i in range(len(rows))] == rows
    assert read[-1] == rows[-1]
    assert read[1:7:2] == rows[1:7:2]
    assert read.column("id") == [row.id for row in rows]
    assert column_of(read, "id") == column_of(rows, "id") == [row.id for row in rows]
    assert list(pickle.loads(pickle.dumps(read))) == rows
    for value in msgspec.structs.astuple(read[0]):
        assert type(value) in (str, int, float, list)
    with pytest.raises(IndexError):
        read[len(rows)]


def test_files_are_joined_without_decoding_their_rows(tmp_path, small_batches):
    class Lists(msgspec.Struct):
        id: str
        values: list[list[float]]

    rows = [Lists("a", [[0.1, -3.0], []]), Lists("b", []), Lists("c", [[1e300]])]
    for name, some in (("one", rows[:2]), ("two", rows[2:])):
        with writing_rows(tmp_path / name, Lists) as out:
            for row in some:
                out.append(row)
    with writing_rows(tmp_path / "all", Lists) as out:
        out.copy(tmp_path / "one")
        out.append(rows[0])
        out.copy(tmp_path / "two")
    assert list(ArrowRows(tmp_path / "all", Lists)) == [*rows[:2], rows[0], rows[2]]


def test_weights_are_read_without_the_tokens(tmp_path):
    with writing_rows(tmp_path / "pairs.arrow", Pair) as out:
        for row in ROWS[Pair]:
            out.append(row)
    assert loss_factors(ArrowRows(tmp_path / "pairs.arrow", Pair)) == loss_factors(ROWS[Pair])


def test_a_killed_writer_leaves_no_file(tmp_path):
    program = (
        "import os, pathlib, sys\n"
        "from composer_pipeline.training.rows import Pair, writing_rows\n"
        "import composer_pipeline.training.rows as arrow_rows\n"
        "arrow_rows.BATCH_ROWS = 1\n"
        f"with writing_rows(pathlib.Path({str(tmp_path / 'pairs.arrow')!r}), Pair) as out:\n"
        "    for n in range(100):\n"
        "        out.append(Pair(str(n), [1] * 1000, [2], [3]))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    assert not (tmp_path / "pairs.arrow").exists()
    assert len(list(tmp_path.glob(".pairs.arrow.*.tmp"))) == 1


def test_missing_damaged_and_foreign_files_are_one_sentence(tmp_path):
    with pytest.raises(InputError, match="holds no finished training data"):
        TrainingData.load(tmp_path)
    (tmp_path / "data.json").write_text('{"seen": {}, "dropped": {}, "statistics": {}}')
    with pytest.raises(InputError, match=r"groups\.arrow is missing"):
        TrainingData.load(tmp_path)
    path = tmp_path / "rows.arrow"
    with writing_rows(path, Pair) as out:
        out.append(ROWS[Pair][1])
    with pytest.raises(InputError, match="another version"):
        ArrowRows(path, Hint)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="damaged"):
        ArrowRows(path, Pair)
