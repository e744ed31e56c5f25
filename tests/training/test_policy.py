"""What of a long prompt stays, and that nothing of it depends on the action to come."""

import itertools

import pytest
import yaml

from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import BASH, READ, call, prompt, tiny_recipe
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import Data
from composer_pipeline.training.window_text import Dropped, action_message, names_lost_file
from composer_pipeline.training.windows import Windows, window_messages
from composer_pipeline.window import CUT, TOUCHED_TURNS


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("smollm2-135m"))


def windows(tokenizer, tokens=300, **limits):
    sizes = {"max_prompt_tokens": tokens, "max_completion_tokens": 80, "max_tools_tokens": 0}
    return Windows(tokenizer, Data(**(sizes | limits)))


def result(name, content):
    return {"role": "tool", "tool_call_id": "call_1", "name": name, "content": content}


def read(path, content):
    return [call("Read", file_path=path), result("Read", content)]


def run(number, lines=1):
    text = f"result {number} begins\n" + "and so on\n" * 20 * lines + f"result {number} ends"
    return [call("Bash", command=f"make step{number}"), result("Bash", text)]


TASK = {"role": "user", "content": "Find the error in src/cart.py and mend it."}


def said(messages):
    return "\n".join(str(message) for message in messages)


def test_a_prompt_that_fits_stays_as_it_is(tokenizer):
    history = [TASK, *read("src/cart.py", "x = 1\n" * 10)]
    kept, _ = windows(tokenizer).window(history, [])
    assert [m["content"] for m in kept[1:]] == [m["content"] for m in history]


def test_task_and_last_turn_stay_and_a_mark_says_what_is_missing(tokenizer):
    history = [TASK, *(m for n in range(60) for m in run(n))]
    w = windows(tokenizer)
    kept, _ = w.window(history, [])
    assert len(w.prompt_ids(kept, [])) <= 300
    assert kept[1]["content"].startswith(TASK["content"])
    assert "earlier turns are left out here]" in kept[1]["content"]
    assert "step59" in said(kept)
    assert "step1'" not in said(kept)
    missing = int(kept[1]["content"].split("[")[1].split()[0])
    assert missing + sum("tool_calls" in m for m in kept) == 60


def test_calls_and_their_results_stay_together_and_roles_alternate(tokenizer):
    history = [m for i in range(30) for m in prompt(i)]
    for tokens in (200, 300, 600, 1200):
        kept, _ = windows(tokenizer, tokens).window(history, [])
        for before, message in itertools.pairwise(kept):
            assert (message["role"] == "tool") == bool(before.get("tool_calls"))
            assert (before["role"], message["role"]) != ("user", "user")


def test_old_results_are_shortened_before_turns_are_left_out(tokenizer):
    history = [TASK, *(m for n in range(12) for m in run(n, 4))]
    kept, _ = windows(tokenizer, 1600).window(history, [])
    results = [m["content"] for m in kept if m["role"] == "tool"]
    assert len(results) == 12
    for number, text in enumerate(results):
        assert text.startswith(f"result {number} b")
        assert text.endswith("ends")
    assert CUT in results[0]
    assert len(results[-1]) > 4 * len(results[0])


@pytest.mark.parametrize("turns", [20, 60])
def test_the_latest_read_of_a_touched_file_stays_wherever_it_stands(tokenizer, turns):
    old = read("src/cart.py", "OLD = 1")
    latest = read("src/cart.py", "LATEST = 2")
    other = read("src/other.py", "OTHER = 3")
    edit = call("Edit", file_path="src/cart.py", old_string="1", new_string="2")
    history = [TASK, *old, *latest, *other, *(m for n in range(turns) for m in run(n))]
    history += [edit, result("Edit", "done")]
    kept, _ = windows(tokenizer, 400).window(history, [])
    assert "LATEST = 2" in said(kept)
    assert "OLD = 1" not in said(kept)
    assert "OTHER = 3" not in said(kept)
    away = [*history, *(m for n in range(TOUCHED_TURNS) for m in run(n))]
    assert "LATEST = 2" not in said(windows(tokenizer, 400).window(away, [])[0])


def test_a_huge_last_result_is_cut_in_its_middle(tokenizer):
    history = prompt(0)
    history[-1] = {**history[-1], "content": "first " + "noise " * 3000 + "last"}
    w = windows(tokenizer)
    kept, _ = w.window(history, [])
    assert 270 < len(w.prompt_ids(kept, [])) <= 300
    assert kept[-1]["content"].startswith("first")
    assert kept[-1]["content"].endswith("last")
    assert CUT in kept[-1]["content"]
    history[-2] = call("Write", file_path="/a/long/path.py", content="noise " * 3000)
    kept, _ = w.window(history, [])
    assert kept[-2]["tool_calls"][0]["function"]["arguments"]["file_path"] == "/a/long/path.py"
    history[-2]["tool_calls"] *= 40
    with pytest.raises(Dropped, match="prompt does not fit"):
        w.window([*history[:-1], *[history[-1]] * 40], [])


def test_a_lost_file_is_one_that_the_prompt_showed_and_the_window_does_not(tokenizer):
    history = [TASK, *read("lib/a.py", "text"), *(m for n in range(60) for m in run(n))]
    kept, _ = windows(tokenizer).window(history, [])
    for path, lost in (("lib/a.py", True), ("src/cart.py", False), ("never/seen.py", False)):
        for key in ("file_path", "path"):
            action = action_message([call("Read", **{key: path})])
            assert names_lost_file(action, history, kept) == lost
    text = action_message([{"role": "assistant", "content": "lib/a.py is right"}])
    assert not names_lost_file(text, history, kept)


def test_tools_shrink_before_they_crowd_out_the_prompt(tokenizer):
    long = {"type": "function", "function": {**READ["function"], "description": "very " * 700}}
    everything = windows(tokenizer, max_prompt_tokens=2000, max_tools_tokens=600)
    assert everything.window(prompt(0), [READ, BASH])[1] == [READ, BASH]
    slim = everything.window(prompt(0), [long, BASH])[1]
    assert [t["function"]["name"] for t in slim] == ["Read", "Bash"]
    assert slim[0]["function"]["description"] == ""
    assert slim[0]["function"]["parameters"]["properties"] == {"file_path": {"type": "string"}}
    tight = windows(tokenizer, max_prompt_tokens=400, max_tools_tokens=40)
    named = tight.window(prompt(0), [long, BASH])[1]
    assert [t["function"]["name"] for t in named] == ["Bash"], "used last"
    assert all(not t["function"]["parameters"]["properties"] for t in named)
    assert windows(tokenizer).window(prompt(0), [READ, BASH])[1] == []


def test_tools_that_were_used_last_are_the_last_to_go(tokenizer):
    def named(name):
        return {"type": "function", "function": {**READ["function"], "name": name}}

    many = [named(f"tool_{n}") for n in range(30)]
    history = [TASK, call("tool_20"), result("tool_20", ""), call("tool_7"), result("tool_7", "")]
    offered = windows(tokenizer, 600, max_tools_tokens=100).window(history, many)[1]
    names = [tool["function"]["name"] for tool in offered]
    assert {"tool_20", "tool_7"} <= set(names)
    assert 2 <= len(names) < 6


def test_the_policy_for_inference_is_that_of_training(tokenizer, tmp_path):
    history = [TASK, *(m for n in range(60) for m in run(n))]
    w = windows(tokenizer, 500, max_tools_tokens=100)
    recipe = tiny_recipe("m", data=w.limits.model_dump())
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    kept, tools = window_messages(history, [READ, BASH], tokenizer, tmp_path / "recipe.yaml")
    assert (kept, tools) == window_messages(history, [READ, BASH], tokenizer, recipe)
    text = tokenizer.apply_chat_template(
        kept, tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert w.ids(text) == w.prompt_ids(*w.window(history, [READ, BASH]))
    with pytest.raises(InputError, match="no window: prompt does not fit"):
        window_messages([*history, call("Read", file_path="/a" * 9000)], [], tokenizer, recipe)
