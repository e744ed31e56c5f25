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


#: Names that other agents give the tools, and the arguments that they call otherwise.
OTHER_AGENTS = {
    "codex": {"Bash": ("exec_command", {"command": "cmd"})},
    "pi": {
        "Bash": ("bash", {}), "Read": ("read", {"file_path": "path"}),
        "Edit": ("edit", {"file_path": "path", "old_string": "oldText", "new_string": "newText"}),
        "Write": ("write", {"file_path": "path"}), "Grep": ("grep", {}), "Glob": ("find", {}),
    },
    "opencode": {
        "Bash": ("bash", {}), "Read": ("read", {"file_path": "filePath"}),
        "Edit": ("edit", {"file_path": "filePath", "old_string": "oldString",
                          "new_string": "newString", "replace_all": "replaceAll"}),
        "Write": ("write", {"file_path": "filePath"}), "Task": ("task", {}),
        "Grep": ("grep", {"glob": "include"}), "TodoWrite": ("todowrite", {}),
    },
    "gemini": {
        "Bash": ("run_shell_command", {}), "Read": ("read_file", {}),
        "Edit": ("replace", {"replace_all": "allow_multiple"}), "Write": ("write_file", {}),
        "Grep": ("grep_search", {"path": "dir_path", "glob": "include_pattern"}),
    },
    "copilot": {
        "Bash": ("bash", {}), "Read": ("view", {"file_path": "path"}),
        "Edit": ("edit", {"file_path": "path", "old_string": "old_str", "new_string": "new_str"}),
        "Write": ("create", {"file_path": "path", "content": "file_text"}),
    },
}  # fmt: skip


def said_by(agent, value):
    """Return a value with its calls of Claude Code's tools as another agent makes them."""
    if isinstance(value, list):
        return [said_by(agent, item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("name") in OTHER_AGENTS[agent] and isinstance(value.get("arguments"), dict):
        name, names = OTHER_AGENTS[agent][value["name"]]
        given = {names.get(key, key): item for key, item in value["arguments"].items()}
        return {**value, "name": name, "arguments": given}
    return {key: said_by(agent, item) for key, item in value.items()}


@pytest.mark.parametrize("agent", OTHER_AGENTS)
def test_calls_of_other_agents_are_compared_as_claude_codes(agent):
    changed = 0
    for row in [row for name in SETS for row in rows(name)][::4]:
        mine = {key: row[key] for key in FIELDS}
        other = {**mine, "a": said_by(agent, row["a"]), "b": said_by(agent, row["b"])}
        here, there = compare(mine), compare(other)
        assert (there["level"], there["mutating"]) == (here["level"], here["mutating"])
        changed += mine != other
    assert changed > 100
