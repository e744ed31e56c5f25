"""The tables of changes keep up with the code, and the runner tells a kill from a survivor."""

from pathlib import Path

import pytest

from tests.mutants import run_mutants


@pytest.mark.parametrize("room", run_mutants.rooms())
def test_every_change_still_applies(room: str) -> None:
    rows = run_mutants.mutants(room)
    assert len({(m.file, m.old, m.new) for m in rows}) == len(rows)
    assert [m.file + ": " + m.loses for m in rows if m.stale or m.old == m.new or not m.loses] == []


@pytest.mark.parametrize("room", run_mutants.rooms())
def test_every_changed_file_has_tests(room: str) -> None:
    assert [m.file for m in run_mutants.mutants(room) if not run_mutants.tests_of(m)] == []


def test_a_change_is_killed_or_survives_and_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "double.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_double.py").write_text(
        "from double import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
    )
    monkeypatch.setattr(run_mutants, "tests_of", lambda mutant: ["test_double.py"])

    def verdict(new: str) -> str:
        mutant = run_mutants.Mutant("double.py", "2 * x", new, "a factor")
        return run_mutants.judge(mutant, tmp_path)

    assert verdict("3 * x").startswith("killed: FAILED test_double.py::test_double")
    assert verdict("x ** 2") == "survived"
    assert (tmp_path / "double.py").read_text().endswith("return 2 * x\n")
