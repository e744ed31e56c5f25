"""Normalisation through the real data-juicer, in its worker process."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.parquet import table_from_rows
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization import worker
from composer_pipeline.normalization.judge import Drop
from composer_pipeline.normalization.operators import NormalizeRecipe, OperatorStep
from composer_pipeline.normalization.stage import normalize, write_columns
from composer_pipeline.normalization.text_columns import (
    COLUMNS,
    SOURCE,
    TAIL_CHARS,
    PairColumns,
    _called,
    _digest,
    _json,
    _message_text,
    _state_key,
    pair_text,
)
from composer_pipeline.settings import recipes_dir

DAY, NEXT = "2026-11-16", "2026-11-17"
DEFAULT = recipes_dir() / "normalize" / "default.yaml"
BASE: dict[str, Any] = {
    "text_keys": ["prompt_tail_text", "chosen_text", "rejected_text"],
    "skip_op_error": False,
    "use_cache": False,
    "auto_op_parallelism": False,
}


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


def call(name: str, **arguments: Any) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": "c", "type": "function", "function": function}]
    return [{"role": "assistant", "content": "", "tool_calls": calls}]


def pair(pair_id: str, prompt: str, chosen: Any, rejected: Any) -> dict[str, Any]:
    return {
        "pair_id": pair_id,
        "state_id": f"s-{pair_id}",
        "session_id": "session",
        "prompt": [{"role": "user", "content": prompt}],
        "chosen": chosen,
        "rejected": rejected,
        "tools": [],
        "tier": "gold",
        "weight": 0.5,
        "training_terms": "declared",
    }


def recipe(tmp_path: Path, *process: dict[str, Any], **changes: Any) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**BASE, "process": list(process), **changes}))
    return path


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    pwd, ls = call("Bash", command="pwd"), call("Bash", command="ls")
    lake.write(
        "pairs",
        [
            pair("short", "where am I", pwd, ls),
            pair("same-action-other-state", "and now?", pwd, ls),
            pair("duplicate", "where am I", pwd, ls),
            pair("nearly", "where am I", call("Bash", command="pwd "), ls),
            pair("equal", "go", ls, ls),
            pair("empty", "go on", say("done"), say("")),
            pair("looping", "say it", say("I will. " * 300), say("I said it once.")),
            pair("stuck", "say it", say("a" * 300), say("I said it once.")),
            pair("code", "write", call("Write", content="=" * 3000), ls),
        ],
        day=DAY,
    )
    lake.write("pairs", [pair("next-day", "where am I", pwd, ls)], day=NEXT)
    return lake


@pytest.mark.slow
def test_the_default_recipe_end_to_end(lake: Lake, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    report = normalize(lake, DEFAULT, progress=lambda *step: steps.append(step))
    kept = {row["pair_id"] for row in lake.rows("normalized_pairs")}
    # Short actions, code, the same action in another state, and an argument that differs
    # by a trailing space are all kept; a day is judged on its own.
    assert kept == {"short", "same-action-other-state", "nearly", "code", "next-day"}
    told = {(row["weight"], row["training_terms"]) for row in lake.rows("normalized_pairs")}
    assert told == {(0.5, "declared")}
    drops = {row["pair_id"]: row for row in lake.rows("drops", stage="normalize")}
    assert {pair_id: row["step"] for pair_id, row in drops.items()} == {
        "empty": "2:text_length_filter",
        "equal": "3:general_field_filter",
        "looping": "4:word_repetition_filter",
        "stuck": "5:character_repetition_filter",
        "duplicate": "6:document_deduplicator",
    }
    empty = drops["empty"]
    assert (empty["field"], empty["stat"], empty["value"], empty["bound"]) == (
        "rejected_text",
        "text_len",
        "0",
        "min_len=1",
    )
    assert drops["duplicate"]["bound"] == "duplicate of short"
    assert drops["duplicate"]["state_id"] == "s-duplicate"
    assert drops["looping"]["bound"] == "max_ratio=0.8"
    assert float(drops["looping"]["value"]) > 0.8
    assert (report.rows, report.kept, report.dropped) == (10, 5, 5)
    assert sum(report.by_op.values()) == 5
    assert report.by_day[NEXT] == {"rows": 1, "kept": 1, "dropped": 0}
    assert steps[-1] == ("6:document_deduplicator", 2, 2)
    row = lake.rows("normalized_pairs", days=[DAY])[0]
    source = lake.rows("pairs", days=[DAY])[0]
    assert row.pop("recipe") == report.recipe_id
    assert report.recipe_id.startswith("default@")
    assert row == source

    before = {p: p.read_bytes() for p in (tmp_path / "lake").rglob("part.parquet")}
    # One day alone gives the same bytes as with the others.
    assert normalize(lake, DEFAULT, days=[DAY, "2020-01-01"]).rows == 9
    after = {p: p.read_bytes() for p in (tmp_path / "lake").rglob("part.parquet")}
    assert after == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"skip_op_error": True}, "skip_op_error"),
        ({"use_cache": True}, "use_cache"),
        ({"composer": {"a": 1}}, "composer"),
        ({"text_keys": ["chosen"]}, "unknown column 'chosen'"),
        ({"process": []}, "process"),
        ({"process": [{"a": {}, "b": {}}]}, "exactly one operator"),
    ],
)
def test_a_recipe_is_read_strictly(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = recipe(tmp_path, {"text_length_filter": {}}, **changes)
    with pytest.raises(InputError, match=words) as caught:
        NormalizeRecipe.load(path)
    assert str(path) in str(caught.value)


def test_skip_op_error_must_be_written(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        yaml.safe_dump(
            {**{k: v for k, v in BASE.items() if k != "skip_op_error"}, "process": [{"x": {}}]}
        )
    )
    with pytest.raises(InputError, match="skip_op_error: missing field"):
        NormalizeRecipe.load(path)


@pytest.mark.parametrize(("text", "words"), [(":\n - [", "is not YAML"), ("- a", "mapping")])
def test_a_recipe_that_is_not_a_mapping(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(InputError, match=words):
        NormalizeRecipe.load(tmp_path / "r.yaml")
    with pytest.raises(InputError, match=r"missing\.yaml: No such file"):
        NormalizeRecipe.load(tmp_path / "missing.yaml")


def test_the_recipe_id_follows_what_the_recipe_does(tmp_path: Path) -> None:
    first = recipe(tmp_path, {"text_length_filter": {"min_len": 1}})
    before = NormalizeRecipe.load(first).recipe_id(first)
    first.write_text("# a comment\n" + first.read_text())
    assert NormalizeRecipe.load(first).recipe_id(first) == before
    again = recipe(tmp_path, {"text_length_filter": {"min_len": 2}})
    assert NormalizeRecipe.load(again).recipe_id(again) != before


def action_text(messages: list[dict[str, Any]]) -> str:
    return "\n".join(text for message in messages if (text := _message_text(message)))


def narrow_row(row: dict[str, Any]) -> dict[str, str]:
    """The flat columns of one pair, the slow and plain way."""
    chosen, rejected = action_text(row["chosen"]), action_text(row["rejected"])
    prompt = "\n".join(_message_text(message) for message in row["prompt"])
    state_key = _state_key(
        [_digest(_json(message).encode()) for message in row["prompt"]],
        [_digest(_json(tool).encode()) for tool in row["tools"] or ()],
    )
    return {
        "pair_id": row["pair_id"],
        "state_key": state_key,
        "prompt_tail_text": prompt[-TAIL_CHARS:],
        "chosen_text": chosen,
        "rejected_text": rejected,
        "chosen_prose": "" if _called(row["chosen"]) else chosen,
        "pair_text": pair_text(state_key, chosen, rejected),
        "rejected_prose": "" if _called(row["rejected"]) else rejected,
        "prompt_text": prompt,
    }


def test_narrow_columns() -> None:
    row = pair("p", "x" * 3000, call("Bash", command="pwd"), say("no"))
    narrow = narrow_row(row)
    assert tuple(narrow) == COLUMNS
    assert narrow["chosen_text"] == 'Bash {"command":"pwd"}'
    assert narrow["chosen_prose"] == ""
    assert narrow["rejected_prose"] == "no"
    assert narrow["prompt_tail_text"] == "x" * 2000
    assert narrow["prompt_text"] == "x" * 3000
    assert narrow_row({**row, "tools": [{"type": "function"}]})["state_key"] != narrow["state_key"]


def test_columns_of_a_day_are_those_of_its_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    both = [{"role": "assistant", "content": "then", "tool_calls": call("A", x=1)[0]["tool_calls"]}]
    blocks = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
    rows = [
        pair("a", "first", call("Bash", command="pwd"), say("")),
        {**pair("b", "second " * 900, both, say("x\n")), "tools": [{"name": "t"}]},
        {**pair("c", "first", say("é👍"), both), "prompt": [*blocks, *say("y"), *say("")]},
        {**pair("d", "", both, both), "prompt": []},
    ]
    lake.write("pairs", rows, day=DAY)
    # Two chunks, the second of which begins inside its buffers.
    table = lake.read("pairs", days=[DAY], columns=SOURCE)
    table = pa.concat_tables([table.slice(0, 1), table.slice(1, 3)])
    columns = PairColumns(table, DAY)
    for name in COLUMNS:
        expected = [narrow_row(row)[name] for row in lake.rows("pairs")]
        assert columns.column(name, range(4)) == expected, name
        assert columns.column(name, [3, 1]) == [expected[3], expected[1]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chosen": None}, r"pair p1 \(row 1\) has null in column chosen"),
        ({"prompt": None}, r"pair p1 \(row 1\) has null in column prompt"),
        ({"pair_id": None}, r"pair None \(row 1\) has null in column pair_id"),
    ],
)
def test_a_null_names_its_day_row_and_column(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    lake = Lake(tmp_path)
    rows = [pair(f"p{i}", "go", say("a"), say("b")) for i in range(3)]
    rows[1] = {**rows[1], **change}
    lake.write("pairs", rows, day=DAY)
    with pytest.raises(InputError, match=f"table pairs, day {DAY}: {words}"):
        normalize(lake, DEFAULT)
    assert lake.days("normalized_pairs") == []


def test_a_null_message_names_its_row(tmp_path: Path) -> None:
    rows = [pair(f"p{i}", "go", say("a"), say("b")) for i in range(3)]
    table = table_from_rows(TABLES["pairs"], rows)
    holes = pa.array([['{"role":"user"}'], [None], ["{}"]], pa.list_(pa.string()))
    place = table.schema.get_field_index("prompt")
    table = table.set_column(place, table.field("prompt"), holes.cast(table.field("prompt").type))
    with pytest.raises(InputError, match=r"pair p1 \(row 1\) has a null message in column prompt"):
        PairColumns(table.select(SOURCE), DAY)


@pytest.mark.slow
def test_mappers_change_prose_once_for_each_text_and_never_arguments(
    lake: Lake, tmp_path: Path
) -> None:
    lake.write(
        "pairs",
        [
            pair("prose", "ask  me", say("two\u3000\u3000spaces"), say("mail bob@example.com now")),
            pair(
                "call",
                "ask  me",
                call("Bash", command="echo a\u3000b"),
                say("two\u3000\u3000spaces"),
            ),
            pair("same", "other", say("x"), say("x\u3000")),
            pair("kept", "other", say("plain"), say("words")),
        ],
        day=DAY,
    )
    path = recipe(
        tmp_path,
        {"text_length_filter": {"text_key": "chosen_text", "min_len": 2}},
        {"whitespace_normalization_mapper": {"text_key": "chosen_text"}},
        {"clean_email_mapper": {"text_key": "rejected_text", "repl": "<EMAIL>"}},
        {"replace_content_mapper": {"text_key": "prompt_text", "pattern": " +", "repl": " "}},
        {"text_length_filter": {"text_key": "prompt_tail_text", "min_len": 1, "max_len": 6}},
    )
    report = normalize(lake, path, days=[DAY])
    rows = {row["pair_id"]: row for row in lake.rows("normalized_pairs", days=[DAY])}
    assert set(rows) == {"prose", "call", "kept"}
    assert rows["prose"]["chosen"] == say("two  spaces")
    assert rows["prose"]["rejected"] == say("mail <EMAIL> now")
    assert rows["prose"]["prompt"] == [{"role": "user", "content": "ask me"}]
    # The agent's side was not named, and a command is an action, not prose.
    assert rows["call"]["chosen"] == call("Bash", command="echo a\u3000b")
    assert rows["call"]["rejected"] == say("two\u3000\u3000spaces")
    assert rows["kept"]["chosen"] == say("plain")
    assert report.changed == {
        "1:whitespace_normalization_mapper": 1,
        "2:clean_email_mapper": 1,
        "3:replace_content_mapper": 2,
    }
    # The filter after the mapper sees its text: "ask  me" had seven characters.
    assert report.by_op == {"0:text_length_filter": 1}


@pytest.mark.slow
def test_a_mapper_is_run_once_for_each_distinct_text(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.write(
        "pairs", [pair(f"p{i}", "go", say("a"), say(f"b{i % 2}")) for i in range(9)], day=DAY
    )
    seen = tmp_path / "seen"
    own = tmp_path / "own.py"
    own.write_text(
        "from data_juicer.ops.base_op import OPERATORS, Mapper\n"
        "@OPERATORS.register_module('noting_mapper')\n"
        "class Noting(Mapper):\n"
        "    _batched_op = True\n"
        "    def process_batched(self, samples):\n"
        f"        with open({str(seen)!r}, 'a') as file:\n"
        "            file.writelines(t + '\\n' for t in samples[self.text_key])\n"
        "        samples[self.text_key] = [t.upper() for t in samples[self.text_key]]\n"
        "        return samples\n"
    )
    path = recipe(
        tmp_path,
        {"noting_mapper": {"text_key": "rejected_text"}},
        custom_operator_paths=[str(own)],
    )
    before = NormalizeRecipe.load(path).recipe_id(path)
    assert normalize(lake, path).changed == {"0:noting_mapper": 9}
    assert sorted(seen.read_text().split()) == ["b0", "b1"]
    assert {row["rejected"][0]["content"] for row in lake.rows("normalized_pairs")} == {"B0", "B1"}
    own.write_text(own.read_text() + "# changed\n")
    assert NormalizeRecipe.load(path).recipe_id(path) != before


OWN = """
from data_juicer.ops.base_op import OPERATORS, Deduplicator, Filter
from data_juicer.utils.constant import Fields

@OPERATORS.register_module("differing_filter")
class Differing(Filter):
    def compute_stats_single(self, sample, context=False):
        sample[Fields.stats]["differ"] = int(sample["chosen_text"] != sample["rejected_text"])
        return sample
    def process_single(self, sample):
        return sample[Fields.stats]["differ"] > 0

@OPERATORS.register_module("pair_deduplicator")
class PairDeduplicator(Deduplicator):
    def compute_hash(self, sample):
        sample["pair_hash"] = sample["chosen_text"] + "|" + sample["rejected_text"]
        return sample
    def process(self, dataset, show_num=0):
        seen = set()
        def first(sample):
            new = sample["pair_hash"] not in seen
            seen.add(sample["pair_hash"])
            return new
        return dataset.filter(first), {}
"""


@pytest.mark.slow
def test_own_operators_run_as_stock_spells_them(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    sides = [("a", "b"), ("a", "a"), ("a", "b"), ("b", "a")]
    rows = [pair(f"p{i}", "go", say(c), say(r)) for i, (c, r) in enumerate(sides)]
    lake.write("pairs", rows, day=DAY)
    own = tmp_path / "own_operators.py"
    own.write_text(OWN)
    names = ("differing_filter", "pair_deduplicator")
    path = recipe(tmp_path, *({name: {}} for name in names), custom_operator_paths=str(own))
    report = normalize(lake, path)
    assert report.by_op == {"0:differing_filter": 1, "1:pair_deduplicator": 1}
    assert [row["pair_id"] for row in lake.rows("normalized_pairs")] == ["p0", "p3"]
    drops = {row["pair_id"]: row for row in lake.rows("drops", stage="normalize")}
    assert (drops["p1"]["stat"], drops["p1"]["value"]) == ("differ", "0")
    own.write_text("import no_such_module_here\n")
    with pytest.raises(InputError, match=r"custom_operator_paths: .*no_such_module_here"):
        normalize(lake, path)
    own.unlink()
    with pytest.raises(InputError, match=r"custom_operator_paths: .*does not exist"):
        normalize(lake, path)


def test_flat_columns_can_be_written_for_other_tools(lake: Lake, tmp_path: Path) -> None:
    assert write_columns(lake, tmp_path / "pairs.jsonl") == 10
    lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    expected = [narrow_row(row) for row in lake.rows("pairs")]
    assert rows == [{k: v for k, v in row.items() if k != "prompt_text"} for row in expected]
    with pytest.raises(InputError, match="is not writable"):
        write_columns(lake, tmp_path / "pairs.jsonl" / "below-a-file.jsonl")


def test_a_dead_worker_is_an_error_and_writes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ComposerError, match="worker ended with code 1"):
        normalize(lake, DEFAULT)
    assert lake.days("normalized_pairs") == []


def test_the_worker_gets_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "planted")
    monkeypatch.setenv("HF_TOKEN", "planted")
    assert "planted" not in worker.worker_env().values()
    assert worker.worker_env()["PIP_NO_INDEX"] == "1"


def test_a_row_that_is_dropped_twice_is_an_error(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = Drop(0, "0:x", "x", "f", "", "", "")
    monkeypatch.setattr(worker.Worker, "steps", lambda _: [OperatorStep("x")])
    monkeypatch.setattr(worker.Worker, "judge", lambda *_: [drop, drop])
    with pytest.raises(ComposerError, match="dropped a row twice"):
        normalize(lake, DEFAULT)
    assert lake.days("normalized_pairs") == []


def test_pairs_that_change_meanwhile_are_an_error(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*_: Any) -> list[Any]:
        lake.write("pairs", [pair("new", "x", say("a"), say("b"))], day=DAY)
        return []

    monkeypatch.setattr(worker.Worker, "steps", lambda _: [OperatorStep("x")])
    monkeypatch.setattr(worker.Worker, "judge", judge)
    with pytest.raises(ComposerError, match=f"pairs of {DAY} changed"):
        normalize(lake, DEFAULT)
