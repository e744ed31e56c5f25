"""The small world: recounted by readers that share no code with it."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow.dataset as ds
import pytest

from composer_pipeline.chat.convert import prompt_hash
from composer_pipeline.evaluation.states import check_disjoint, content_hash
from composer_pipeline.states.load import load_states
from composer_pipeline.training.windows import Windows
from examples.proof.toolworld.pipeline import (
    Plan,
    evaluation_states,
    make_dataset,
    recorded_sessions,
)
from examples.proof.toolworld.student import SESSIONS, WINDOW, tokenizer
from examples.proof.toolworld.world import (
    answer_all,
    everything,
    held_out_sessions,
    sessions,
    training_random,
    write_files,
    write_session,
)

#: (sessions, seed, half coverage) to states, error states and pairs, from two other generators.
COUNTS = {
    (40, 1, False): (152, 32, 30), (40, 2, False): (155, 35, 34), (40, 3, False): (156, 36, 33),
    (80, 1, True): (306, 66, 32), (80, 2, True): (309, 69, 34), (80, 3, True): (311, 71, 20),
    (80, 1, False): (306, 66, 64), (80, 2, False): (309, 69, 66), (80, 3, False): (311, 71, 66),
    (150, 0, False): (577, 127, 124),
}  # fmt: skip


@pytest.mark.parametrize(("plan", "counts"), COUNTS.items())
def test_draws_give_the_known_counts(plan, counts):
    count, seed, half = plan
    random = training_random(seed)
    drawn = sessions(random, count, everything)
    answers = answer_all(random, drawn)
    steps = [step for recorded in drawn for step in recorded.steps()]
    pairs = sum(
        answer.is_pair
        for recorded, of_session in zip(drawn, answers, strict=True)
        for answer in of_session
        if not (half and recorded.world.bug % 2)
    )
    assert (len(steps), sum(step.failed for step in steps), pairs) == counts


def read_naively(folder: Path) -> dict[str, list[dict]]:
    """Return file to its calls in order: name, input, and whether the result is an error."""
    files = {}
    for path in sorted(folder.rglob("*.jsonl")):
        calls: dict[str, dict] = {}
        for text in path.read_text().splitlines():
            content = json.loads(text).get("message", {}).get("content", "")
            for block in content if isinstance(content, list) else []:
                if block["type"] == "tool_use":
                    calls[block["id"]] = {"name": block["name"], "input": block["input"]}
                elif block["type"] == "tool_result":
                    calls[block["tool_use_id"]]["failed"] = block.get("is_error", False)
        files[path.stem] = list(calls.values())
    return files


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_files_hold_the_known_states_and_errors(tmp_path, seed):
    drawn = sessions(training_random(seed), 40, everything)
    write_files([write_session(r, f"{seed}-{i}") for i, r in enumerate(drawn)], tmp_path)
    files = read_naively(tmp_path)
    calls = [call for session in files.values() for call in session]
    assert len(files) == 40
    assert (len(calls), sum(call["failed"] for call in calls)) == COUNTS[40, seed, False][:2]
    for session in files.values():
        right = [call["name"] for call in session if not call["failed"]]
        assert right == ["Read", "Edit", "Bash"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_dataset(Plan(seed=1, count=40, coverage="half"), tmp_path_factory.mktemp("world"))


def rows_of(lake, table: str) -> list[dict]:
    return ds.dataset(f"{lake.url}/{table}", partitioning="hive").to_table().to_pylist()


@pytest.mark.slow
def test_what_was_written_is_what_states_hold(made):
    truth = {m: step.action for written in made.written for m, step in written.truth.items()}
    states = list(load_states(made.lake))
    assert {state.message_id for state in states} == set(truth)
    for state in states:
        calls = [(call.name, call.arguments) for call in state.action.tool_calls]
        assert calls == [(call.name, call.arguments) for call in truth[state.message_id].tool_calls]
        step = next(w.truth[state.message_id] for w in made.written if state.message_id in w.truth)
        assert bool(state.hint) == step.failed


def test_pairs_are_those_of_a_naive_vote(made):
    """Two of three equal replies against the recorded call, counted from the raw replies."""
    states = {row["state_id"]: json.loads(row["action"]) for row in state_rows(made)}
    votes: dict[str, Counter[str]] = {}
    for reply in rows_of(made.lake, "replies"):
        if reply["status"] == "ok":
            votes.setdefault(reply["state_id"], Counter())[told(json.loads(reply["action"]))] += 1
    against = {
        state
        for state, counted in votes.items()
        for action, count in counted.items()
        if count >= 2 and action != told(states[state])
    }
    assert against
    assert {row["state_id"] for row in rows_of(made.lake, "pairs")} == against
    assert not {state for state in votes if day_of(made, state) == "2026-11-03"}


def told(action: dict) -> str:
    return json.dumps([[c["name"], c["arguments"]] for c in action["tool_calls"]], sort_keys=True)


def state_rows(made) -> list[dict]:
    truth = {m: step for written in made.written for m, step in written.truth.items()}
    rows = rows_of(made.lake, "states")
    for row in rows:
        if row["action"] is None:  # it stands in the chain
            row["action"] = truth[row["message_id"]].action.to_json()
    return rows


def day_of(made, state_id: str) -> str:
    return next(str(r["day"]) for r in rows_of(made.lake, "states") if r["state_id"] == state_id)


def test_half_coverage_asks_even_bug_types_alone_and_costs_money(made):
    bugs = {
        int(row["prompt"][1]["content"][5])
        for row in made.lake.iter_rows("dataset_groups", split="train")
    }
    assert bugs <= {0, 2, 4}
    assert {int(r["prompt"][1]["content"][5]) for r in hints_of(made)} > bugs
    assert 0 < made.spent_usd < 1


def hints_of(made) -> list[dict]:
    return list(made.lake.iter_rows("dataset_hints", split="train"))


def test_feedback_is_truthful_and_comes_from_tools_and_from_the_user(made):
    truth = {prompt_and_action(r): r["hint"] for r in hints_of(made)}
    assert {r["source"] for r in hints_of(made)} == {
        "tool_error", "user_rejection", "exit_code", "user_correction",
    }  # fmt: skip
    for (_, action), hint in truth.items():
        name, arguments = action
        if name == "Edit":
            wrong = int(json.loads(arguments)["new_string"][1:])
            assert f"expects w{wrong - 1}" in hint
        else:
            assert "Use Read" in hint if name == "Open" else "tests/test_f" in hint


def prompt_and_action(row: dict) -> tuple:
    function = row["action"][0]["tool_calls"][0]["function"]
    return prompt_hash(row["prompt"]), (function["name"], json.dumps(function["arguments"]))


@pytest.mark.parametrize("seed", range(6))
def test_held_out_sessions_share_no_world_with_training(seed):
    held_out = {recorded.world for recorded in held_out_sessions()}
    assert len(held_out) == 120
    prompts = {world.prompt for world in held_out}
    trained = recorded_sessions(Plan(seed=seed, count=150))[0] + sessions(Random(0), SESSIONS)
    assert not prompts & {recorded.world.prompt for recorded in trained}
    # Each file and each bug type is known: what is new is that they stand together.
    assert {w.file for w in held_out} == {recorded.world.file for recorded in trained}
    assert {w.bug for w in held_out} == {recorded.world.bug for recorded in trained}


def test_held_out_states_share_no_prompt_with_the_dataset(made):
    states = evaluation_states(held_out_sessions())
    kinds = Counter(state.kind for state in states)
    assert kinds["hard_covered"] + kinds["hard_uncovered"] == 120
    assert kinds["easy"] == 240
    assert kinds["recovery"] == 120
    tables = ("dataset_pairs", "dataset_groups", "dataset_hints")
    rows = [row for table in tables for row in made.lake.iter_rows(table, split="train")]
    trained = {prompt_hash(row["prompt"]) for row in rows}
    check_disjoint(states, {written.session.session_id for written in made.written}, trained)
    assert not trained & {prompt_hash(state.messages) for state in states}
    assert content_hash(states) == content_hash(evaluation_states(held_out_sessions()))


def test_two_wrong_teachers_of_three_make_wrong_pairs():
    def wrong_pairs(wrong: int) -> tuple[int, int]:
        _drawn, answered = recorded_sessions(Plan(seed=1, count=80, wrong=wrong))
        pairs = [a for of_session in answered for a in of_session if a.is_pair]
        return len(pairs), sum(a.consensus != a.step.right for a in pairs)

    assert wrong_pairs(0)[1] == 0
    assert wrong_pairs(1)[1] == 0
    assert wrong_pairs(1)[0] < wrong_pairs(0)[0]
    total, wrong = wrong_pairs(2)
    assert wrong > 0.9 * total


def test_the_students_words_cover_every_prompt_and_action(made):
    words = tokenizer()
    windows = Windows(words, WINDOW)
    longest = 0
    for row in hints_of(made):
        window, tools = windows.window(row["prompt"], row["tools"])
        told = windows.prompt_ids(windows.hinted(window, row["hint"]), tools)
        action = windows.response_ids(window, tools, row["action"][0])
        assert words.unk_token_id not in told + action
        assert words.decode(told) == windows.render(
            windows.hinted(window, row["hint"]), tools, open_=True
        )
        longest = max(longest, len(told) + len(action))
    assert longest < WINDOW.max_prompt_tokens
