"""Every chat template that TRL ships renders what it is given, or the row is dropped."""

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from composer_pipeline.chat.convert import action_message as chat_action
from composer_pipeline.chat.convert import to_chat
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.testing.training import READ, call
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.training.chat_template import (
    ChatTemplate,
    _probes,
    _use_training_template,
    _words,
)
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import Data
from composer_pipeline.training.rows import Prompt
from composer_pipeline.training.window_text import Dropped, action_message
from composer_pipeline.training.windows import Windows

pytestmark = pytest.mark.slow
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
#: Families of which at least nine rows in ten are kept.
KEPT = ("qwen", "llama", "glm", "gptoss", "gemma4", "nemotron")
#: Its template can say only one round of calls; every later row is dropped.
ONE_ROUND = ("deepseekv3", "deepseekv3_training")
LIMITS = Data(max_prompt_tokens=1536, max_completion_tokens=4096, drop_lost_files=False)


def shipped():
    trl = pytest.importorskip("trl")
    return {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    }


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("smollm2-135m"))


@pytest.fixture(scope="module")
def with_template(tokenizer):
    """Return a function that gives the tokenizer another template; ``None`` without tools."""
    from trl.chat_template_utils import supports_tool_calling

    own = tokenizer.chat_template

    def use(text):
        tokenizer.chat_template = text
        return tokenizer if supports_tool_calling(tokenizer) else None

    yield use
    tokenizer.chat_template = own


def rows_of(folder, lake, most):
    """Return (prompt, tools, action) of states drawn from a folder of sessions."""
    ingest(lake, [folder])
    rows = []
    for day in lake.days("states"):
        states = list(load_states(lake, days=[day]))
        known = Toolsets(lake, states)
        rows += [(state, known.of(state).tools) for state in states]
    random.Random(7).shuffle(rows)
    made = []
    for state, tools in rows[:most]:
        talk = to_chat(state, tools=tools)
        made.append(({"prompt": talk.messages, "tools": talk.tools}, chat_action(state.action)))
    return made


@pytest.fixture(scope="module")
def sample_rows(tmp_path_factory):
    return rows_of(sample_sessions_dir(), Lake(tmp_path_factory.mktemp("lake")), 12)


@pytest.fixture(scope="module")
def corpus_rows(unpacked, tmp_path_factory):
    folder = unpacked / "claude-code-sessions"
    small = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_size)[20:28]
    chosen = tmp_path_factory.mktemp("few")
    for path in small:
        (chosen / path.name).write_bytes(path.read_bytes())
    return rows_of(chosen, Lake(tmp_path_factory.mktemp("lake")), 12)


def kept(tokenizer, rows):
    """Render every row and return how many are kept, and why the others are not."""
    windows = Windows(tokenizer, LIMITS)
    count: Counter[str] = Counter()
    for row, action in rows:
        prompt = Prompt(windows, row)
        try:
            ids = prompt.response(prompt.action([action]))
        except Dropped as reason:
            count[str(reason)] += 1
            continue
        count["kept"] += 1
        assert len(prompt.ids) <= LIMITS.max_prompt_tokens
        said = tokenizer.decode(ids)
        for made in (action.get("tool_calls") or [])[:1]:
            assert made["function"]["name"] in said
    return count


@pytest.mark.parametrize("name", shipped())
def test_template_for_training_and_tools_are_as_in_trl(name, tokenizer, with_template):
    from trl.chat_template_utils import get_training_chat_template

    own = shipped()[name]
    takes_tools = with_template(own) is not None
    try:
        expected = get_training_chat_template(tokenizer) or own
    except ValueError:  # TRL ships none for it
        expected = own
    _use_training_template(tokenizer)
    assert tokenizer.chat_template == expected
    tokenizer.chat_template = own
    assert takes_tools == ChatTemplate(tokenizer).shows_calls()


def test_a_tokenizer_is_loaded_without_trl():
    code = (
        "import sys; from composer_pipeline.training.models import load_tokenizer, resolve_model;"
        "load_tokenizer(resolve_model('smollm2-135m'));"
        "sys.exit(bool({'trl', 'datasets', 'peft'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("source", ["sample_rows", "corpus_rows"])
def test_shipped_templates_keep_their_rows(name, source, with_template, request):
    rows = request.getfixturevalue(source)
    tokenizer = with_template(shipped()[name])
    if tokenizer is None:
        pytest.skip("knows no tools")
    count = kept(tokenizer, rows)
    assert count.total() == len(rows)
    if name.startswith(KEPT):
        assert count["kept"] >= 0.9 * len(rows), count
    elif name not in ONE_ROUND:
        assert count["kept"] > 0, count


def parallel(*paths):
    message = call("Read", file_path=paths[0])
    for path in paths[1:]:
        message["tool_calls"] += call("Read", file_path=path)["tool_calls"]
    return message


def test_calls_become_one_after_another_where_a_template_takes_one(with_template):
    tokenizer = with_template(shipped()["llama3_2"])
    w = Windows(tokenizer, LIMITS)
    assert w.template.form.one_call
    results = [{"role": "tool", "name": "Read", "content": f"text of {n}"} for n in "ab"]
    task = {"role": "user", "content": "Read both."}
    window, tools = w.window([task, parallel("a.py", "b.py"), *results], [READ])
    assert [m["role"] for m in window[2:]] == ["assistant", "tool"] * 2
    text = w.render(window, tools, open_=True)
    places = [text.index(word) for word in ("a.py", "text of a", "b.py", "text of b")]
    assert places == sorted(places)
    said = tokenizer.decode(w.response_ids(window, tools, action_message([parallel("c", "d.py")])))
    assert '"c"' in said
    assert "d.py" not in said
    assert w.span(window, tools, action_message([parallel("c", "d")]), 0)[0] == 0
    with pytest.raises(Dropped, match="not the first"):
        w.span(window, tools, action_message([parallel("c", "d")]), 1)


@pytest.mark.parametrize("name", ["gemma4", "gemma4_v5", "gptoss"])
def test_text_that_a_template_would_put_elsewhere_is_left_out(name, with_template):
    form = ChatTemplate(with_template(shipped()[name])).form
    assert not form.text_beside_calls
    message = {**call("Read", file_path="a.py"), "content": "thinking aloud"}
    assert form.action(action_message([message]))["content"] == ""
    plain = {"role": "assistant", "content": "an answer"}
    assert form.action(action_message([plain]))["content"] == "an answer"


def test_no_reasoning_block_is_opened_that_no_action_has(with_template, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = with_template(shipped()["nemotron_3_nano"])
    w = Windows(tokenizer, LIMITS)
    task = [{"role": "user", "content": "Read it."}]
    window, tools = w.window(task, [READ])
    text = w.render(window, tools, open_=True)
    assert text.endswith("<think></think>")
    tokenizer.save_pretrained(str(tmp_path))
    again = AutoTokenizer.from_pretrained(str(tmp_path))
    for _ in range(2):  # the saved template is what was trained with, and stays so
        assert text == again.apply_chat_template(
            window, tools=tools, tokenize=False, add_generation_prompt=True
        )
        ChatTemplate(again)


def test_arguments_are_text_where_a_template_wants_them_so(with_template):
    text = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %};{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    w = Windows(with_template(text), LIMITS)
    assert w.template.form.arguments_as_text
    window, tools = w.window([{"role": "user", "content": "go"}], [])
    said = w.response_ids(window, tools, action_message([call("Read", file_path="a.py")]))
    assert '{"file_path":"a.py"}' in w.tokenizer.decode(said)


def test_a_template_that_refuses_is_a_counted_drop(with_template):
    text = (
        shipped()["qwen2_5"]
        + "{% if messages|length > 4 %}{{ raise_exception('too many') }}{% endif %}"
    )
    w = Windows(with_template(text), LIMITS)
    talk = [m for n in "abc" for m in (call("Read", file_path=n), {"role": "tool", "content": "x"})]
    with pytest.raises(Dropped, match="chat template rejects it: too many"):
        w.window([{"role": "user", "content": "go"}, *talk], [])


def test_probes_are_told_apart_by_their_words():
    words = [w for m, a in _probes() for w in _words(m) + _words([a])]
    assert len(words) > 40
    for a, b in itertools.permutations(set(words), 2):
        assert a not in b
