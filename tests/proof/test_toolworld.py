"""The small world: read back by readers that share no code with it."""

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
    families,
    make_dataset,
    recorded_sessions,
)
from examples.proof.toolworld.student import SESSIONS, WINDOW, tokenizer
from examples.proof.toolworld.world import (
    NOISE,
    for_development,
    for_test,
    for_training,
    held_out_sessions,
    sessions,
    training_random,
    write_files,
    write_session,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_dataset(Plan(seed=1, count=40), tmp_path_factory.mktemp("world"))


def rows_of(lake, table: str) -> list[dict]:
    return ds.dataset(f"{lake.url}/{table}", partitioning="hive").to_table().to_pylist()


def hints_of(made) -> list[dict]:
    return list(made.lake.iter_rows("dataset_hints", split="train"))


def read_naively(folder: Path) -> list[list[dict]]:
    """Return the calls of each file: name, input, result, and whether that is an error."""
    files = []
    for path in sorted(folder.rglob("*.jsonl")):
        calls: dict[str, dict] = {}
        for text in path.read_text().splitlines():
            content = json.loads(text).get("message", {}).get("content", "")
            for block in content if isinstance(content, list) else []:
                if block["type"] == "tool_use":
                    calls[block["id"]] = {"name": block["name"], "input": block["input"]}
                elif block["type"] == "tool_result":
                    failed = block.get("is_error", False)
                    calls[block["tool_use_id"]] |= {"failed": failed, "said": block["content"]}
        files.append(list(calls.values()))
    return files


def test_a_session_ends_with_its_bug_fixed_and_checked(tmp_path):
    """Where the text of the file is followed by hand, the last edit has written the right word."""
    drawn = sessions(training_random(3), 80)
    write_files([write_session(r, f"{i:03}") for i, r in enumerate(drawn)], tmp_path)
    later = 0
    for calls in read_naively(tmp_path):
        text, failed = "", [call["failed"] for call in calls]
        for call in calls:
            if call["name"] == "Read" and not call["failed"]:
                text = call["said"].partition("→")[2]
            if call["name"] == "Edit" and not call["failed"]:
                assert call["input"]["old_string"] == text
                text = call["input"]["new_string"]
        assert text[0] == "w"
        done = [call["input"]["command"].split()[0] for call in calls if call["name"] == "Bash"]
        assert done[-1] == "mypy"
        assert not failed[-1]
        assert sum(failed) <= 1
        later += any(call["failed"] and "error: The line must be" in call["said"] for call in calls)
    assert later > 10


@pytest.mark.slow
def test_what_was_written_is_what_states_hold(made):
    truth = {m: step for written in made.written for m, step in written.truth.items()}
    states = list(load_states(made.lake))
    assert {state.message_id for state in states} == set(truth)
    for state in states:
        step = truth[state.message_id]
        assert state.action.tool_calls[0].name == step.action.tool_calls[0].name
        assert state.action.tool_calls[0].arguments == step.action.tool_calls[0].arguments
        assert bool(state.hint) == step.refused


def test_each_mistake_has_its_hint_where_it_was_made_and_an_edit_that_failed_later_its_fix(made):
    truth = {m: (w, step) for w in made.written for m, step in w.truth.items()}
    of = {s.state_id: truth[s.message_id] for s in load_states(made.lake)}
    mistakes = {name for name, (_, step) in of.items() if step.failed}
    assert {row["state_id"] for row in made.lake.rows("hints")} == mistakes
    fixed = {r["state_id"]: r for r in made.lake.rows("pairs") if r["source"] == "fixup"}
    late = {name for name in mistakes if of[name][0].recorded.world.family == "later"}
    assert {name for name in late if name in fixed} | asked_of(made) >= late
    for name, row in fixed.items():
        (call,) = row["chosen"][0]["tool_calls"]
        right = of[name][1].right.tool_calls[0]
        given = call["function"]["arguments"]
        given = json.loads(given) if isinstance(given, str) else given
        assert given == right.arguments


def asked_of(made) -> set[str]:
    return {reply["state_id"] for reply in rows_of(made.lake, "replies")}


def test_what_is_said_is_wrong_at_the_stated_rate(tmp_path):
    drawn = [r for r in sessions(training_random(5), 600) if r.mistaken]
    noisy = 0
    for each in drawn:
        right = each.world.right(each.world.hard_step)
        noisy += each.world.told(wrong=each.noisy) != right
        assert each.world.told() == right
        assert each.world.feedback() != each.world.feedback(wrong=True)
    assert abs(noisy / len(drawn) - NOISE) < 0.06


def test_pairs_of_teachers_are_those_of_a_naive_vote(made):
    """Two of three equal replies against the recorded call, counted from the raw replies."""
    truth = {m: step for w in made.written for m, step in w.truth.items()}
    of = {s.state_id: truth[s.message_id] for s in load_states(made.lake)}
    votes: dict[str, Counter[str]] = {}
    for reply in rows_of(made.lake, "replies"):
        if reply["status"] == "ok":
            votes.setdefault(reply["state_id"], Counter())[told(json.loads(reply["action"]))] += 1
    against = {
        state
        for state, counted in votes.items()
        for action, count in counted.items()
        if count >= 2 and action != told(json.loads(of[state].action.to_json()))
    }
    assert against
    pairs = {r["state_id"] for r in made.lake.rows("pairs") if r["n_teachers"]}
    assert pairs == against
    assert 0 < made.spent_usd < 1
    days = {r["state_id"]: str(r["day"]) for r in rows_of(made.lake, "states")}
    assert {days[state] for state in votes} == {"2026-11-02"}  # half coverage


def told(action: dict) -> str:
    return json.dumps([[c["name"], c["arguments"]] for c in action["tool_calls"]], sort_keys=True)


def test_a_shared_misconception_is_a_wrong_consensus():
    def wrong(shared: int) -> tuple[int, int]:
        _drawn, answered = recorded_sessions(Plan(seed=1, count=300, shared=shared))
        hard = [a for of in answered for a in of if a.step.kind == "hard" and a.consensus]
        return len(hard), sum(a.consensus != a.step.right for a in hard)

    assert wrong(0)[1] <= 2  # two that err alone may say the same
    total, misled = wrong(25)
    assert 0.17 < misled / total < 0.33
    assert wrong(60)[1] > 2 * misled * 0.8


@pytest.mark.parametrize("seed", [0, 77])
def test_training_development_and_test_share_no_world(seed):
    kept = {
        name: held_out_sessions(240, seed=seed, accept=accept)
        for name, accept in (("development", for_development), ("test", for_test))
    }
    trained = recorded_sessions(Plan(seed=seed, count=150))[0] + sessions(Random(0), SESSIONS)
    prompts = {name: {r.world.prompt for r in some} for name, some in kept.items()}
    prompts["training"] = {r.world.prompt for r in trained}
    assert not prompts["development"] & prompts["test"]
    assert not (prompts["development"] | prompts["test"]) & prompts["training"]
    for some in kept.values():
        assert len({r.world for r in some}) == 240
        # Each file and each bug is known: what is new is that they stand together.
        assert {r.world.file for r in some} <= {r.world.file for r in trained}
        assert {r.world.bug for r in some} == {r.world.bug for r in trained}
        assert all(not for_training(r.world) and r.mistaken and not r.noisy for r in some)


def test_held_out_states_share_no_prompt_with_the_dataset(made):
    kept = held_out_sessions(60, seed=3, accept=for_test)
    states = evaluation_states(kept)
    kinds = Counter(state.kind for state in states)
    assert kinds["hard_covered"] + kinds["hard_uncovered"] == kinds["recovery"] == 60
    tables = ("dataset_pairs", "dataset_groups", "dataset_hints")
    rows = [row for table in tables for row in made.lake.iter_rows(table, split="train")]
    trained = {prompt_hash(row["prompt"]) for row in rows}
    check_disjoint(states, {written.session.session_id for written in made.written}, trained)
    assert content_hash(states) == content_hash(evaluation_states(kept))
    assert content_hash(states) != content_hash(evaluation_states(held_out_sessions(60, seed=4)))
    found, tools = families(kept), {"tool": "Read", "path": "Read", "test": "Bash"}
    assert set(found) == {state.session_id for state in states}
    for state in states:
        if state.wrong:
            family = found[state.session_id]
            assert state.right.tool_calls[0].name == tools.get(family, "Edit")
            # What is seen later is not said at the mistake.
            assert (family == "later") == (state.hint is None)


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
