"""Windows: what fits, what stays together, spans, and what is dropped."""

import json
import sys

import pytest
from pydantic import ValidationError

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import READ, call, prompt, tiny_recipe, write_dataset
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import Data
from composer_pipeline.training.rows import (
    Pair,
    Prompt,
    TrainingData,
    build,
    loss_factors,
    pair_of,
    require_rows,
    tables_of,
)
from composer_pipeline.training.window_text import Dropped, action_message
from composer_pipeline.training.windows import Windows

build_module = sys.modules["composer_pipeline.training.rows"]


def pair(windows, row):
    return pair_of(Prompt(windows, row), row)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("smollm2-135m"))


def windows(tokenizer, **limits):
    sizes = {"max_prompt_tokens": 300, "max_completion_tokens": 80, "max_tools_tokens": 0}
    return Windows(tokenizer, Data(**(sizes | limits)))


def test_a_pair_is_the_templates_text_and_ends_its_turn(tokenizer):
    w = windows(tokenizer)
    right, wrong = call("Read", file_path="a.py"), call("Read", file_path="b.py")
    made = pair(
        w, {"pair_id": "p", "prompt": prompt(0), "chosen": [right], "rejected": [wrong],
            "tools": None},
    )  # fmt: skip
    text = tokenizer.decode(made.prompt_ids)
    assert text.startswith("<|im_start|>system\nYou are a coding agent.<|im_end|>")
    assert text.endswith("<|im_start|>assistant\n")
    assert "<tool_response>" in text
    assert tokenizer.decode(made.chosen_ids) == (
        '<tool_call>\n{"name": "Read", "arguments": {"file_path": "a.py"}}\n</tool_call><|im_end|>'
    )
    whole = w.ids(w.render([*w.window(prompt(0), [])[0], right], [], open_=False))
    assert whole[: len(made.prompt_ids) + len(made.chosen_ids)] == [
        *made.prompt_ids, *made.chosen_ids,
    ]  # fmt: skip


def test_equal_sides_are_dropped(tokenizer):
    row = {"pair_id": "p", "prompt": prompt(0), "tools": None}
    same = [call("Read", file_path="a.py")]
    with pytest.raises(Dropped, match="chosen equals rejected"):
        pair(windows(tokenizer), row | {"chosen": same, "rejected": same})


def test_too_long_a_response_is_dropped(tokenizer):
    w = windows(tokenizer)
    window, tools = w.window(prompt(0), [])
    with pytest.raises(Dropped, match="too long"):
        w.response_ids(window, tools, call("Write", file_path="a", content="word " * 200))


def test_the_span_is_the_failing_call(tokenizer):
    w = windows(tokenizer, max_completion_tokens=200)
    action = call("Read", file_path="a.py")
    for name in ("b.py", "c.py"):
        action["tool_calls"] += call("Read", file_path=name)["tool_calls"]
    window, tools = w.window(prompt(0), [])
    ids = w.response_ids(window, tools, action)
    said = []
    for index in range(3):
        start, length = w.span(window, tools, action, index)
        said.append(tokenizer.decode(ids[start : start + length]))
    for index, name in enumerate(("a.py", "b.py", "c.py")):
        assert name in said[index]
        assert sum(other in said[index] for other in ("a.py", "b.py", "c.py")) == 1
        assert said[index].count("<tool_call>") == 1
    assert w.span(window, tools, action, -1) == (0, len(ids))
    assert w.span(window, tools, action, 9) == (0, len(ids))
    action["content"] = "Three files."
    start, length = w.span(window, tools, action, 0)
    ids = w.response_ids(window, tools, action)
    assert "Three files" not in tokenizer.decode(ids[start : start + length])


@pytest.mark.parametrize("last", ["user", "tool"])
def test_a_hinted_prompt_keeps_the_response_ids(tokenizer, tmp_path, last):
    lake = Lake(tmp_path)
    history = prompt(0) if last == "tool" else prompt(0)[:1]
    row = {
        "state_id": "s", "prompt": history, "tools": [READ], "hint": "No such file.",
        "action": [call("Read", file_path="x.py")], "span_call": 0, "source": "tool_error",
    }  # fmt: skip
    lake.write("dataset_hints", [row], split="train")
    recipe = tiny_recipe("m", channels={c: {"weight": 0} for c in ("grpo", "dpo", "sft")})
    (hint,) = build(lake, tokenizer, recipe, tmp_path / "data").hints
    teacher = tokenizer.decode(hint.teacher_prompt_ids)
    assert "No such file." in teacher
    assert "No such file." not in tokenizer.decode(hint.prompt_ids)
    assert teacher.endswith("<|im_start|>assistant\n")
    assert teacher.count("<|im_start|>user") == (1 if last == "user" else 3)
    assert (hint.start, hint.length) == (0, len(hint.response_ids))


def test_groups_are_distinct_answers_with_counts_and_a_variance(tokenizer, tmp_path):
    lake = Lake(tmp_path)
    write_dataset(lake, rows=3)
    rows = lake.rows("dataset_groups", split="train")
    base = {k: rows[0][k] for k in rows[0] if k != "split"}
    right = base["consensus"][0]
    two = base | {
        "state_id": "two",
        "candidates": base["candidates"][:2],
        "sources": ["agent", "one"],
    }
    same = base | {"state_id": "same", "candidates": [right] * 4}
    late = [right] * 5 + base["candidates"][:1]
    six = base | {"state_id": "six", "candidates": late, "sources": ["agent", *"abcde"]}
    lake.write("dataset_groups", [two, same, six], split="train")
    recipe = tiny_recipe("m")
    data = build(lake, tokenizer, recipe, tmp_path / "data")
    assert [g.id for g in data.groups] == ["two", "six"]
    assert [g.counts for g in data.groups] == [[1, 1], [5, 1]]
    assert [g.rewards for g in data.groups] == [[0.5, 1.0], [1.0, 0.5]]
    said = [tokenizer.decode(ids) for ids in data.groups[1].completions]
    assert ["src/alder.py" in text for text in said] == [True, False]
    assert json.loads(data.groups[0].case)["consensus"] == action_message([right])
    assert data.dropped == {"grpo: zero-variance group": 1}
    assert data.seen["grpo"] == 3


def test_too_many_dropped_rows_and_empty_channels_fail(tokenizer, tmp_path):
    lake = Lake(tmp_path)
    with pytest.raises(InputError, match=r"channels\.grpo\.weight.*dataset_groups.*split=train"):
        require_rows(lake, tiny_recipe("m"))
    write_dataset(lake, rows=4)
    assert require_rows(lake, tiny_recipe("m")) == dict.fromkeys(("grpo", "sdpo", "dpo", "sft"), 4)
    rows = [{k: v for k, v in r.items() if k != "split"} for r in lake.rows("dataset_pairs")]
    for row in rows[:3]:
        row["rejected"] = row["chosen"]
    lake.write("dataset_pairs", rows, split="train")
    with pytest.raises(
        InputError, match=r"3 of 4 rows of dataset_pairs dropped.*max_dropped_share"
    ):
        build(lake, tokenizer, tiny_recipe("m"), tmp_path / "data")
    for row in rows:
        row["rejected"] = row["chosen"]
    lake.write("dataset_pairs", rows, split="train")
    with pytest.raises(InputError, match="none of 4 rows of dataset_pairs"):
        build(lake, tokenizer, tiny_recipe("m"), tmp_path / "other")
    with pytest.raises(InputError, match="holds no finished training data"):
        TrainingData.load(tmp_path / "data")


@pytest.mark.parametrize(
    ("source", "rows"), [("consensus", (4, 0)), ("successes", (0, 4)), ("both", (4, 4))]
)
def test_what_sft_repeats_is_as_its_source_says(tokenizer, tmp_path, source, rows):
    lake = Lake(tmp_path)
    write_dataset(lake, rows=4)
    recipe = tiny_recipe("m", channels={
        "sft": {"source": source}, **{c: {"weight": 0} for c in ("grpo", "dpo", "sdpo")}
    })  # fmt: skip
    made = build(lake, tokenizer, recipe, tmp_path / "data")
    own = [row for row in made.demonstrations if row.id.startswith("own-")]
    assert (len(made.demonstrations) - len(own), len(own)) == rows
    assert made.seen == require_rows(lake, recipe) == {"sft": sum(rows)}
    for row in own:
        assert "<tool_call>" in tokenizer.decode(row.response_ids)
        assert "Show me the" in tokenizer.decode(row.prompt_ids)
    lake.write("dataset_successes", [], split="train")
    if source == "successes":
        with pytest.raises(InputError, match="table dataset_successes of lake"):
            require_rows(lake, recipe)
    else:
        assert require_rows(lake, recipe) == {"sft": 4}


def test_the_target_is_the_consensus_unless_it_is_the_failing_action(tokenizer, tmp_path):
    lake = Lake(tmp_path)
    write_dataset(lake, rows=3)
    rows = [{k: v for k, v in r.items() if k != "split"} for r in lake.rows("dataset_groups")]
    told = [{k: v for k, v in r.items() if k != "split"} for r in lake.rows("dataset_hints")]
    rows[1]["consensus"] = told[1]["action"]
    lake.write("dataset_groups", rows[:2], split="train")  # no teacher was asked about the others
    told.append({**told[2], "state_id": "own", "recovery": [call("Read", file_path="own.py")]})
    told[0]["recovery"] = told[3]["recovery"]  # the consensus goes first
    lake.write("dataset_hints", told, split="train")
    recipe = tiny_recipe("m", channels={c: {"weight": 0} for c in ("grpo", "dpo", "sft")})
    hints = build(lake, tokenizer, recipe, tmp_path / "data").hints
    assert ["src/alder.py" in tokenizer.decode(h.target_ids) for h in hints] == [True, *[False] * 3]
    assert [len(h.target_ids) for h in hints[1:3]] == [0, 0]
    assert "own.py" in tokenizer.decode(hints[3].target_ids)
    groups = build(lake, tokenizer, tiny_recipe("m"), tmp_path / "other").groups
    assert hints[0].target_ids in groups[0].completions


def test_loss_factors_have_mean_one_and_equal_weights_are_exactly_one(tokenizer):
    def factors(*weights):
        return list(
            loss_factors([Pair(str(n), [], [], [], w) for n, w in enumerate(weights)]).values()
        )

    assert factors(0.5, 1.5) == [0.5, 1.5]
    assert factors(1.0, 1.0, 4.0) == [0.5, 0.5, 2.0]
    assert factors(0.7, 0.7, 0.7) == [1.0, 1.0, 1.0]
    assert factors() == []
    many = factors(*(0.1 + 0.37 * (n % 7) for n in range(50)))
    assert sum(many) / 50 == pytest.approx(1.0)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="pair 1: weight must be above 0"):
            factors(1.0, bad)
    row = {"pair_id": "p", "prompt": prompt(0), "tools": None}
    sides = {"chosen": [call("Read", file_path="a.py")], "rejected": [call("Read", file_path="b")]}
    w = windows(tokenizer)
    assert pair(w, row | sides | {"weight": 1.5}).weight == 1.5
    assert pair(w, row | sides | {"weight": None}).weight == pair(w, row | sides).weight == 1.0


def test_a_build_clears_what_a_killed_one_left_and_begins_again(tokenizer, tmp_path):
    lake = Lake(tmp_path / "lake")
    write_dataset(lake, rows=3)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / ".pairs.arrow.1f.tmp").write_bytes(b"half a file")
    (folder / "pairs.arrow").write_bytes(b"of another time")
    assert not TrainingData.is_complete(folder)
    data = build(lake, tokenizer, tiny_recipe("m"), folder)
    assert data.counts() == dict.fromkeys(("grpo", "sdpo", "dpo", "sft"), 3)
    assert sorted(path.name for path in folder.iterdir()) == [
        "data.json", "demonstrations.arrow", "groups.arrow", "hints.arrow", "pairs.arrow",
    ]  # fmt: skip


def test_a_killed_build_goes_on_with_the_missing_parts(tokenizer, tmp_path, monkeypatch):
    lake = Lake(tmp_path / "lake")
    write_dataset(lake, rows=8)
    recipe = tiny_recipe("smollm2-135m")
    whole = build(lake, tokenizer, recipe, tmp_path / "whole")
    assert sorted(p.name for p in (tmp_path / "whole").iterdir()) == [
        "data.json", "demonstrations.arrow", "groups.arrow", "hints.arrow", "pairs.arrow",
    ]  # fmt: skip
    monkeypatch.setattr(build_module, "PART", 3)
    seen: list[str] = []
    honest = build_module.Prompt

    def watched(windows, row):
        seen.append(row["state_id"])
        if len(seen) == 14:
            raise KeyboardInterrupt
        return honest(windows, row)

    monkeypatch.setattr(build_module, "Prompt", watched)
    with pytest.raises(KeyboardInterrupt):
        build(lake, tokenizer, recipe, tmp_path / "again")
    assert not TrainingData.is_complete(tmp_path / "again")
    killed = len(seen)
    again = build(lake, tokenizer, recipe, tmp_path / "again")
    # Of 24 rows of three tables, 11 were in whole parts: 8 of groups, 3 of hints.
    assert len(seen) - killed == 24 - 11
    assert (again.seen, again.dropped, again.statistics) == (
        whole.seen, whole.dropped, whole.statistics,
    )  # fmt: skip
    for name in ("groups", "pairs", "hints", "demonstrations"):
        assert list(getattr(again, name)) == list(getattr(whole, name))
    assert sorted(p.name for p in (tmp_path / "again").iterdir()) == sorted(
        p.name for p in (tmp_path / "whole").iterdir()
    )


def test_a_tally_of_parts_is_that_of_the_whole():
    whole = build_module.Tally()
    for seen, longest in ((3, 7), (5, 4)):
        part = build_module.Tally(seen=seen, kept=2, cut=1, tokens=10, longest=longest)
        part.dropped["lost file"] = 1
        whole.add(part)
    assert (whole.seen, whole.dropped["lost file"]) == (8, 2)
    assert whole.statistics() == {
        "rows": 4, "cut_share": 0.5, "prompt_tokens_mean": 5, "prompt_tokens_max": 7,
        "lost_file": 2,
    }  # fmt: skip


OFF = {channel: {"weight": 0} for channel in ("sdpo", "dpo", "sft")}


def test_the_recipe_weighs_the_parts_of_the_reward(tokenizer, tmp_path):
    lake = Lake(tmp_path)
    write_dataset(lake, rows=2)  # every group's state is an error turn of the agent too

    def rewards(number, parts):
        recipe = tiny_recipe("m", channels={"grpo": {"rewards": parts}})
        group = build(lake, tokenizer, recipe, tmp_path / f"data{number}").groups[0]
        return dict(zip(map(tuple, group.completions), group.rewards, strict=True)), group

    plain, group = rewards(0, {"match": 1})
    weighed, _ = rewards(1, {"match": 2, "outcome": 1})
    wrong = tuple(group.completions[0])  # the agent's, which comes first
    assert weighed[wrong] == pytest.approx(2 * plain[wrong] - 0.5)
    for answer in plain.keys() - {wrong}:
        assert weighed[answer] == pytest.approx(2 * plain[answer])
    voted, _ = rewards(2, {"votes": 1})
    assert voted != plain
    assert max(voted.values()) == 1


def test_a_reward_from_the_trace_reads_the_error_turns_too():
    def tables(parts):
        return tables_of(tiny_recipe("m", channels={**OFF, "grpo": {"rewards": parts}}).channels)

    assert tables({"match": 1}) == ["dataset_groups"]
    assert tables({"outcome": 1}) == ["dataset_groups", "dataset_hints"]


@pytest.mark.parametrize("parts", [{}, {"match": 0}, {"match": -1}, {"tests": 1}])
def test_a_reward_that_is_none_is_refused(parts):
    with pytest.raises(ValidationError, match=r"channels\.grpo\.rewards"):
        tiny_recipe("m", channels={"grpo": {"rewards": parts}})
