"""Hand-labelled pairs: precision and recall of "same", accuracy of the level.

The labels in ``labelled/*.jsonl`` follow the conventions of the levels and were written before
the code ran on them; ``held_out.jsonl`` was written after the code was finished, and
``held_out_second.jsonl`` after what the first had shown was mended. Rows marked
``stretch`` can be read in two ways and count in no rate.
"""

import json
from pathlib import Path

import pytest

from composer_pipeline.preferences.vote_rows import compare

FOLDER = Path(__file__).parent / "labelled"
SETS = ["development", "held_out", "held_out_second"]
SAME = {"L0", "L1"}
FIELDS = ("a", "b", "cwd", "home", "context")


def rows(name):
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def judged(name):
    for row in rows(name):
        if not row.get("stretch"):
            yield row, compare({key: row[key] for key in FIELDS})


@pytest.mark.parametrize("name", SETS)
def test_bars(name):
    found = list(judged(name))
    same = [row["level"] in SAME for row, _ in found]
    said = [got["level"] in SAME for _, got in found]
    hits = sum(s and t for s, t in zip(same, said, strict=True))
    assert hits / sum(said) >= 0.98
    assert hits / sum(same) >= 0.90
    # Where the canonical form and a rule both make two actions equal, L0 and L1 are one.
    right = [
        (row["level"] in SAME and got["level"] in SAME) or row["level"] == got["level"]
        for row, got in found
    ]
    assert sum(right) / len(right) >= 0.90


@pytest.mark.parametrize("name", SETS)
def test_no_mutating_pair_is_falsely_the_same(name):
    false = [
        row["reason"]
        for row, got in judged(name)
        if (row["mutating"] or got["mutating"])
        and got["level"] in SAME
        and row["level"] not in SAME
    ]
    assert not false


@pytest.mark.parametrize("name", SETS)
def test_symmetric(name):
    for row in rows(name):
        there = compare({key: row[key] for key in FIELDS})
        back = compare({**{key: row[key] for key in FIELDS}, "a": row["b"], "b": row["a"]})
        assert (there["level"], there["mutating"]) == (back["level"], back["mutating"])


def test_mutating_is_told():
    found = [(row["mutating"], got["mutating"]) for name in SETS for row, got in judged(name)]
    assert sum(a == b for a, b in found) / len(found) >= 0.97


def test_the_set_is_large_and_covers_the_tools():
    every = [row for name in SETS for row in rows(name)]
    assert len(every) >= 600
    assert all(row["reason"] for row in every)
    tools = {call["name"] for row in every for side in "ab" for call in row[side]["tool_calls"]}
    assert tools >= {
        "Bash", "Edit", "MultiEdit", "Write", "NotebookEdit", "Read", "Grep", "Glob", "LS",
        "WebFetch", "WebSearch", "Task", "Agent", "TodoWrite", "AskUserQuestion", "ExitPlanMode",
    }  # fmt: skip
    assert any(name.startswith("mcp__") for name in tools)
    bash = [r for r in every if any(c["name"] == "Bash" for s in "ab" for c in r[s]["tool_calls"])]
    assert len(bash) >= 200
    keys = [json.dumps([row["a"], row["b"], row["context"]], sort_keys=True) for row in every]
    assert len(set(keys)) == len(keys)
