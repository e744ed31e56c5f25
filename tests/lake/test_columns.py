"""Columns built from buffers equal those that pyarrow builds, without pandas."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.lake.parquet import column, constant, numbers, rows_from_table, utf8
from composer_pipeline.lake.schema import TIMESTAMP

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
_MOMENT = st.datetimes(datetime(1902, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
_KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), _TEXT),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (TIMESTAMP, _MOMENT),
    (pa.list_(pa.string()), st.lists(_TEXT, max_size=3)),
    (pa.list_(pa.int32()), st.lists(st.integers(0, 99), max_size=3)),
    (pa.list_(pa.bool_()), st.lists(st.booleans(), max_size=3)),
    (pa.binary(), st.binary(max_size=5)),
]


@pytest.mark.parametrize(("kind", "values"), _KINDS, ids=[str(kind) for kind, _ in _KINDS])
def test_columns_equal_those_of_pyarrow(kind: pa.DataType, values: Any) -> None:
    @settings(max_examples=40)
    @given(st.lists(st.none() | values, max_size=20))
    def check(rows: list[Any]) -> None:
        found = column(rows, kind)
        found.validate(full=True)
        assert found.equals(pa.array(rows, kind))
        assert found.null_count == rows.count(None)

    check()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.none() | _MOMENT, st.none() | st.integers(0, 9)), max_size=9))
def test_rows_with_times_are_those_of_pyarrow(rows: list[tuple[Any, Any]]) -> None:
    table = pa.table(
        {
            "at": column([at for at, _ in rows], TIMESTAMP),
            "n": column([n for _, n in rows], pa.int64()),
        }
    )
    assert rows_from_table(table) == table.to_pylist()
    assert [list(row) for row in rows_from_table(table)] == [["at", "n"]] * len(rows)


def test_lone_surrogates_become_replacement_characters() -> None:
    assert column(["a\ud800b", "ok", None], pa.string()).to_pylist() == ["a\ufffdb", "ok", None]


def test_encoded_text_is_checked() -> None:
    assert utf8([b"a", "ä".encode(), b""]).to_pylist() == ["a", "ä", ""]
    with pytest.raises(pa.ArrowInvalid):
        utf8([b"a", b"\xff"])


def test_simple_columns() -> None:
    assert constant("x", 3).to_pylist() == ["x"] * 3
    assert numbers([1, 2], pa.int32()).equals(pa.array([1, 2], pa.int32()))
    with pytest.raises(OverflowError):
        numbers([2**31], pa.int32())


def test_writing_and_reading_a_lake_does_not_import_pandas(tmp_path: Path) -> None:
    """It is half a second and 50 MB that pyarrow asks for when it is given a list."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from composer_pipeline.lake.store import Lake\n"
        "from composer_pipeline.testing.samples import sample_sessions_dir\n"
        "from composer_pipeline.traces.ingest import ingest\n"
        "lake = Lake(sys.argv[1])\n"
        "assert ingest(lake, [sample_sessions_dir()]).totals['states']\n"
        "assert lake.rows('states')\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lake")], check=True, timeout=600)
