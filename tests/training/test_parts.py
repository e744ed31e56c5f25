"""The parts of the reward on small traces, and policies that try to cheat them."""

from typing import get_args

import pytest

from composer_pipeline.testing.training import call
from composer_pipeline.training.recipe import RewardPart
from composer_pipeline.training.rewards import (
    PARTS,
    Case,
    Grader,
    case_of,
    failed_calls,
    known_files,
)

SOURCE = "import os\n\n\ndef size(path):\n    return os.stat(path).st_size\n"
SHOWN = "".join(f"{n:>6}→{line}\n" for n, line in enumerate(SOURCE.splitlines(), 1))
FIX = {"old_string": "st_size", "new_string": "st_size or 0"}


def tool(name, **kinds):
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": list(kinds)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    tool("Read", file_path="string"),
    tool("Edit", file_path="string", old_string="string", new_string="string"),
    tool("Bash", command="string"),
]


def asked(n, name, **arguments):
    message = call(name, **arguments)
    message["tool_calls"][0]["id"] = f"c{n}"
    return message


def told(n, text):
    return {"role": "tool", "tool_call_id": f"c{n}", "content": text}


READ = [asked(1, "Read", file_path="/p/a.py"), told(1, SHOWN)]
FAILED = [asked(2, "Bash", command="pyest"), told(2, "[tool error] command not found")]


def edit(**arguments):
    return call("Edit", file_path="/p/a.py", **arguments)


def case(prompt, consensus, answers=(), failed=None, tools=TOOLS):
    row = {"prompt": [{"role": "user", "content": "go"}, *prompt], "tools": tools}
    made = case_of(PARTS, consensus, answers, row, failed)
    assert Case.from_json(made.to_json()) == made
    return made


def value(part, answer, case):
    said = PARTS[part](answer, case)
    return None if said is None else said.value


def test_a_recipe_can_name_every_part_and_no_other():
    assert set(get_args(RewardPart)) == set(PARTS)


def test_validity_knows_the_offered_tools_and_their_schemas():
    at = case([], call("Bash", command="ls"))
    assert value("validity", call("Bash", command="ls"), at) == 0
    assert value("validity", call("Bash", command=3), at) == -1
    assert value("validity", call("Bash"), at) == -1
    assert value("validity", call("Grep", pattern="x"), at) == -1
    broken = call("Bash", command="ls")
    broken["tool_calls"][0]["function"]["arguments"] = "{not json"
    assert value("validity", broken, at) == -1
    assert value("validity", {"role": "assistant", "content": "Done."}, at) is None
    two = call("Bash", command="ls")
    two["tool_calls"] = [*two["tool_calls"], *call("Grep", pattern="x")["tool_calls"]]
    assert value("validity", two, at) == -1
    assert value("validity", call("Grep", pattern="x"), case([], FIX_ALL, tools=[])) is None


FIX_ALL = edit(**FIX)


def test_a_schema_that_is_none_refuses_nothing():
    odd = [{"type": "function", "function": {"name": "Odd", "parameters": {"type": "strange"}}}]
    for tools in (odd, [{"type": "function", "function": {"name": "Odd"}}]):
        assert value("validity", call("Odd", x=1), case([], FIX_ALL, tools=tools)) == 0


def test_votes_count_the_teachers_and_never_the_agent():
    one, two = call("Bash", command="pytest -q"), call("Read", file_path="a")
    answers = [("agent", call("Grep", pattern="x")), ("a", one), ("b", two), ("c", one)]
    at = case([], one, answers)
    assert value("votes", one, at) == 1
    assert value("votes", two, at) == pytest.approx(0.5)
    assert value("votes", call("Grep", pattern="x"), at) == 0
    assert value("votes", call("Read", file_path="b"), at) == pytest.approx((0.2 + 0.3) * 0.5)
    assert value("votes", one, case([], one, [("agent", one)])) is None


def test_an_edit_is_measured_on_the_file_that_the_prompt_shows():
    at = case(READ, FIX_ALL)
    assert value("edit", FIX_ALL, at) == 1
    other = edit(old_string="    return os.stat(path).st_size", new_string=(
        "    return os.stat(path).st_size or 0"))  # fmt: skip
    assert value("edit", other, at) == 1  # other words, the same text afterwards
    comment = edit(old_string="import os", new_string="import os  # size")
    assert 0 <= value("edit", comment, at) < 0.7
    assert value("edit", edit(old_string="st_sise", new_string="x"), at) == -1
    assert value("edit", edit(old_string="", new_string=""), at) == -1
    assert value("edit", call("Read", file_path="/p/a.py"), at) == 0
    elsewhere = call("Edit", file_path="/p/b.py", **FIX)
    assert value("edit", elsewhere, at) == 0


def test_another_edit_of_a_long_file_is_far_from_the_right_one():
    wrote = asked(1, "Write", file_path="/p/a.py", content="".join(f"x{n}\n" for n in range(300)))
    right = edit(old_string="x150\n", new_string="y\n")
    at = case([wrote, told(1, "ok")], right)
    assert value("edit", right, at) == 1
    assert value("edit", edit(old_string="x20\n", new_string="z\n"), at) < 0.2


def test_an_edit_of_a_file_that_is_not_known_is_not_measured():
    assert value("edit", FIX_ALL, case([], FIX_ALL)) is None
    wrong = edit(old_string="st_sise", new_string="x")
    assert value("edit", FIX_ALL, case(READ, wrong)) is None
    assert value("edit", FIX_ALL, case(READ, call("Bash", command="ls"))) is None


def test_files_are_known_until_something_may_have_changed_them():
    def known(*messages):
        return known_files([*READ, *messages])

    assert known() == {"/p/a.py": SOURCE}
    assert known(asked(2, "Edit", file_path="/p/a.py", **FIX), told(2, "ok")) == {
        "/p/a.py": SOURCE.replace("st_size", "st_size or 0")
    }
    failing = asked(2, "Edit", file_path="/p/a.py", **FIX), told(2, "[tool error] no such text")
    assert known(*failing) == {"/p/a.py": SOURCE}
    missing = asked(2, "Edit", file_path="/p/a.py", old_string="no", new_string="x")
    assert known(missing, told(2, "ok")) == {}
    assert known(*FAILED) == {}
    assert known(asked(2, "Task", prompt="x"), told(2, "done")) == {}
    assert known(asked(2, "Edit", file_path="/p/b.py", **FIX), told(2, "ok")).keys() == {"/p/a.py"}
    wrote = asked(2, "Write", file_path="/p/b.py", content="x\n"), told(2, "ok")
    assert known(*wrote) == {"/p/a.py": SOURCE, "/p/b.py": "x\n"}
    part = asked(2, "Read", file_path="/p/c.py", offset=4), told(2, "     4→x\n")
    assert known(*part) == {"/p/a.py": SOURCE}
    assert known(asked(2, "Bash", command="rm a.py")) == {"/p/a.py": SOURCE}  # has no result yet


def test_the_outcome_counts_for_the_recorded_action_alone():
    did, right = call("Bash", command="pyest"), call("Bash", command="pytest")
    answers = [("agent", did), ("a", right)]
    assert value("outcome", did, case([], right, answers, failed=True)) == -0.5
    assert value("outcome", did, case([], right, answers, failed=False)) == 0.2
    assert value("outcome", right, case([], right, answers, failed=True)) is None
    assert value("outcome", did, case([], right, answers)) is None
    text = {"role": "assistant", "content": "Done."}
    assert value("outcome", text, case([], right, [("agent", text)], failed=True)) is None


def test_a_call_that_failed_before_costs_and_one_that_worked_does_not():
    at = case([*READ, *FAILED], call("Bash", command="pytest"))
    assert value("repeat", call("Bash", command="pyest"), at) == -0.5
    assert value("repeat", call("Bash", command="pytest"), at) is None
    assert value("repeat", call("Read", file_path="/p/a.py"), at) is None
    assert len(failed_calls([*FAILED, *FAILED])) == 1


def test_the_gate_stands_before_every_other_part():
    at = case([*READ, *FAILED], call("Bash", command="pytest"))
    grader = Grader({"match": 1.0, "repeat": 2.0, "validity": 3.0})
    surplus = grader.grade(call("Bash", command="pytest", timeout="x"), at)
    assert surplus.value == pytest.approx(0.2 + 0.15 + 0.25)  # an argument that nobody forbids
    refused = grader.grade(call("Grep", pattern="pytest"), at)
    assert refused.value == -3
    assert refused.parts.keys() == {"validity"}
    again = grader.grade(call("Bash", command="pyest"), at)
    assert again.value == pytest.approx(0.5 + 2 * -0.5)
    assert again.parts["repeat"].reason == "a call that failed before"
    assert grader.grade(call("Bash", command="pytest"), at).value == 1


def test_what_the_parts_do_not_ask_for_is_not_kept():
    row = {"prompt": [*READ, *FAILED], "tools": TOOLS}
    made = case_of({"match"}, FIX_ALL, [("agent", FIX_ALL), ("a", FIX_ALL)], row, True)
    assert made == Case(FIX_ALL)


def test_cheating_policies_score_below_the_recorded_agent():
    """A constant tool, the last command again and an empty edit, over all parts together."""
    grader = Grader(dict.fromkeys(PARTS, 1.0))
    last = call("Bash", command="pyest")
    history = [  # what came before, what the agent did, the consensus
        ([*READ, *FAILED], call("Bash", command="pytest tests"), call("Bash", command="pytest")),
        ([*FAILED, *READ], edit(old_string="st_size", new_string="st_size or 1"), FIX_ALL),
        (FAILED, call("Read", file_path="/p/b.py"), call("Read", file_path="/p/a.py")),
    ]
    total = dict.fromkeys(["agent", "constant", "last", "empty"], 0.0)
    for prompt, did, right in history:
        at = case(prompt, right, [("agent", did), ("a", right), ("b", right)], failed=True)
        policies = {
            "agent": did, "constant": call("Bash", command="ls"), "last": last,
            "empty": edit(old_string="", new_string=""),
        }  # fmt: skip
        for name, answer in policies.items():
            total[name] += grader.grade(answer, at).value
    assert total["agent"] > 1
    assert max(total[name] for name in ("constant", "last", "empty")) < total["agent"] / 2
