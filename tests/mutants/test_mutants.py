"""The tables of changes keep up with the code, and the runner tells a kill from a survivor."""

import ast
from pathlib import Path

import pytest

from tests.mutants import run_mutants, table, verdicts


@pytest.mark.parametrize("room", table.rooms())
def test_every_change_still_applies(room: str) -> None:
    rows = table.mutants(room)
    assert len({(m.file, m.old, m.new) for m in rows}) == len(rows)
    assert [m.file + ": " + m.loses for m in rows if m.stale or m.old == m.new or not m.loses] == []


@pytest.mark.parametrize("room", table.rooms())
def test_every_change_can_be_read_as_code(room: str) -> None:
    """A file that does not parse is noticed by every test, and says nothing of them."""
    for row in table.mutants(room):
        if row.file.endswith(".py"):
            text = (table.ROOT / row.file).read_text(encoding="utf-8")
            ast.parse(text.replace(row.old, row.new), filename=f"{row.file}: {row.loses}")


@pytest.mark.parametrize("room", table.rooms())
def test_every_changed_file_has_tests(room: str) -> None:
    assert [m.file for m in table.mutants(room) if not table.tests_of(m)] == []


def test_a_change_is_killed_or_survives_and_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "double.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_double.py").write_text(
        "from double import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
    )
    monkeypatch.setattr(run_mutants, "tests_of", lambda mutant: ["test_double.py"])
    monkeypatch.setattr(run_mutants, "stages", lambda mutant: [["test_double.py"]])
    spent: dict[str, float] = {}

    def verdict(new: str) -> str:
        mutant = table.Mutant("double.py", "2 * x", new, "a factor")
        return run_mutants.judge(mutant, tmp_path, spent)

    assert verdict("3 * x") == "killed: test_double.py::test_double"
    assert list(spent) == ["test_double.py::test_double"]
    assert verdict("x ** 2") == "survived"
    assert (tmp_path / "double.py").read_text().endswith("return 2 * x\n")


def test_a_verdict_stays_with_its_change_and_is_counted(tmp_path: Path) -> None:
    room = next(name for name in table.rooms() if table.mutants(name)[0].accepted == "")
    killed, survived, *left = table.mutants(room)
    found = {
        killed.key: verdicts.verdict_now("killed: tests/test_x.py::test_y"),
        survived.key: verdicts.verdict_now("survived"),
        "of a row that left": verdicts.verdict_now("survived"),
    }
    kept, page = tmp_path / "verdicts.json", tmp_path / "mutants.md"
    verdicts.save(found, kept, page)
    again = verdicts.load(kept)
    assert again == {killed.key: found[killed.key], survived.key: found[survived.key]}
    assert again[killed.key]["by"] == "tests/test_x.py::test_y"
    rows = len(left) + 2
    line = next(row for row in page.read_text().splitlines() if row.startswith(f"| {room} "))
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    argued = 1 if survived.accepted else 0
    assert cells[:6] == [str(n) for n in (rows, 2, 1, argued, 1 - argued, rows - 2)]
