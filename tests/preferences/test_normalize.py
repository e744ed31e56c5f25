"""Normalisation through the real data-juicer, in its worker process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences import normalize as room
from composer_pipeline.preferences.normalize import narrow_row, normalize
from composer_pipeline.preferences.normalize_recipe import COLUMNS, NormalizeRecipe
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


def test_the_default_recipe_end_to_end(lake: Lake, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    report = normalize(lake, None, DEFAULT, progress=lambda *step: steps.append(step))
    kept = {row["pair_id"] for row in lake.rows("normalized_pairs")}
    # Short actions, code, the same action in another state, and an argument that differs
    # by a trailing space are all kept; a day is judged on its own.
    assert kept == {"short", "same-action-other-state", "nearly", "code", "next-day"}
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
    assert steps[-1] == ("6:document_deduplicator", 7, 7)
    row = lake.rows("normalized_pairs", days=[DAY])[0]
    source = lake.rows("pairs", days=[DAY])[0]
    assert row.pop("recipe") == report.recipe_id
    assert report.recipe_id.startswith("default@")
    assert row == source

    before = {p: p.read_bytes() for p in (tmp_path / "lake").rglob("part.parquet")}
    # One day alone gives the same bytes as with the others.
    assert normalize(lake, [DAY, "2020-01-01"], DEFAULT).rows == 9
    after = {p: p.read_bytes() for p in (tmp_path / "lake").rglob("part.parquet")}
    assert after == before


# The traps of stock data-juicer, and our runner on the same rows, in one process.
TRAPS = """
import json, sys
import os, socket, subprocess
calls = []
sys.addaudithook(lambda event, a: calls.append(str(a)[:200]) if event == "subprocess.Popen" else 0)
import pyarrow as pa
from composer_pipeline.preferences import normalize_worker as worker
from composer_pipeline.preferences.normalize_recipe import COLUMNS
from composer_pipeline.errors import InputError

rows = json.loads(sys.argv[1])
table = pa.table({n: pa.array([r[n] for r in rows], pa.string()) for n in (*COLUMNS, "day")})
out = {}

def ours(*steps):
    drops = worker.judge(table, worker.load_steps([(n, {"text_key": "x", **a}) for n, a in steps]))
    gone = {drop.row for drop in drops}
    return [r["pair_id"] for i, r in enumerate(rows) if i not in gone]

two_filters = [("text_length_filter", {"text_key": k, "min_len": 1, "max_len": 50})
               for k in ("chosen_text", "rejected_text")]
two_dedups = [("document_deduplicator", {"text_key": k}) for k in ("chosen_text", "rejected_text")]
out["ours_filters"] = ours(*two_filters)
out["ours_dedups"] = ours(*two_dedups)

ops = worker.import_data_juicer()
from data_juicer.core.data import NestedDataset
from data_juicer.utils.constant import Fields
from datasets import Dataset, disable_progress_bars
disable_progress_bars()
stats = lambda t: t.append_column(Fields.stats, pa.array([{} for _ in rows], pa.struct([])))

def stock(steps, skip=False):
    made = ops.load_ops([{n: {**a, "skip_op_error": skip, "auto_op_parallelism": False}}
                         for n, a in steps])
    samples = table.to_pydict()
    samples[Fields.stats] = [{} for _ in rows]
    alive = list(range(len(rows)))
    for op in made:
        samples = op.compute_stats(samples)
        keep = list(op.process(samples))
        samples = {k: [v for v, ok in zip(vs, keep) if ok] for k, vs in samples.items()}
    return samples["pair_id"]

out["stock_filters"] = stock(two_filters)
made = ops.load_ops([{n: a} for n, a in two_dedups])
data = Dataset.from_list(rows)
for op in made:
    data = data.map(op.compute_hash, load_from_cache_file=False)
    data, _ = op.process(data)
out["stock_dedups"] = list(data["pair_id"])

holed = {k: list(v) for k, v in table.to_pydict().items()}
holed["chosen_text"][1] = None
holed[Fields.stats] = [{} for _ in rows]
op, = ops.load_ops([{"text_length_filter": {"text_key": "chosen_text", "skip_op_error": True}}])
out["stock_null_rows"] = len(op.compute_stats(holed)["pair_id"])
try:
    worker.judge(table.set_column(table.column_names.index("chosen_text"), "chosen_text",
                 pa.array([None, *table.column("chosen_text").to_pylist()[1:]])), [])
    out["ours_null"] = "passed"
except InputError as error:
    out["ours_null"] = str(error)

loader = sys.modules["data_juicer.utils.lazy_loader"].LazyLoader
try:
    loader("no_such_module_at_all").anything
    out["missing"] = "loaded"
except ImportError as error:
    out["missing"] = str(error)

def refused(name, **a):
    try:
        worker.load_steps([(name, {"text_key": "chosen_text", **a})])
        return "accepted"
    except InputError as error:
        return str(error)

out["unknown_op"] = refused("text_lenght_filter")
out["unknown_parameter"] = refused("text_length_filter", min_length=3)
out["wrong_type"] = refused("text_length_filter", min_len="three")
out["unknown_column"] = refused("text_length_filter", text_key="chosen")
out["unknown_name"] = refused("general_field_filter", filter_condition="chosn_text != 'x'")
out["mapper"] = refused("whitespace_normalization_mapper")
out["llm"] = refused("llm_quality_score_filter")
out["words"] = refused("flagged_words_filter")
out["tokenization"] = refused("words_num_filter", tokenization=True)

worker.guard()
acts = {
    "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
    "process": lambda: subprocess.run(["true"]),
    "shell": lambda: os.system("true"),
}
out["calls"] = list(calls)
for name, act in acts.items():
    try:
        act()
        out[name] = "allowed"
    except PermissionError as error:
        out[name] = str(error)
print("RESULT" + json.dumps(out))
"""


@pytest.fixture(scope="module")
def traps() -> dict[str, Any]:
    rows = []
    for pair_id, chosen, rejected in [
        ("good", "pwd", "ls -a"),
        ("rejected-empty", "cat x", ""),
        ("rejected-long", "cat y", "z" * 400),
        ("chosen-long", "z" * 400, "ls -b"),
        ("rejected-seen-before", "cat z", "ls -a"),
    ]:
        texts = {"chosen_text": chosen, "rejected_text": rejected, "chosen_prose": chosen}
        rows.append({**dict.fromkeys(COLUMNS, "k"), **texts, "pair_id": pair_id, "day": DAY})
    done = subprocess.run(
        [sys.executable, "-c", TRAPS, json.dumps(rows)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert "RESULT" in done.stdout, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.split("RESULT", 1)[1])
    return result


def test_t1_two_filters_of_a_kind_each_judge_their_own_field(traps: dict[str, Any]) -> None:
    assert traps["ours_filters"] == ["good", "rejected-seen-before"]
    # Stock: the second filter re-judges the first one's number; bad rejected texts stay.
    assert "rejected-empty" in traps["stock_filters"]
    assert "rejected-long" in traps["stock_filters"]
    assert "chosen-long" not in traps["stock_filters"]


def test_t2_a_second_deduplicator_works(traps: dict[str, Any]) -> None:
    assert "rejected-seen-before" not in traps["ours_dedups"]
    assert "rejected-seen-before" in traps["stock_dedups"]


def test_t3_a_null_raises_and_no_row_vanishes(traps: dict[str, Any]) -> None:
    assert traps["stock_null_rows"] == 0, "stock data-juicer lost the whole batch"
    assert traps["ours_null"] == "column chosen_text has 1 null value(s)"


def test_nothing_is_installed_started_or_connected(traps: dict[str, Any]) -> None:
    assert not [call for call in traps["calls"] if "pip" in call or "uv" in call]
    assert "nothing is installed by itself" in traps["missing"]
    assert traps["connect"] == "normalize opens no connection"
    assert traps["process"].startswith("normalize starts no process")
    assert traps["shell"].startswith("normalize starts no process")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unknown_op", "did you mean: text_length_filter"),
        ("unknown_parameter", "[text_length_filter] Unknown parameter 'min_length'"),
        ("wrong_type", "Parameter 'min_len' expects type 'int', got 'str'"),
        ("unknown_column", "[text_length_filter] unknown column 'chosen'"),
        ("unknown_name", "[general_field_filter] unknown column 'chosn_text'"),
        ("mapper", "[whitespace_normalization_mapper] changes text"),
        ("llm", "[llm_quality_score_filter] calls a language model"),
        ("words", "[flagged_words_filter] is not one of the operators run without network"),
        ("tokenization", "[words_num_filter] tokenization needs a model"),
    ],
)
def test_refused_operators_name_themselves(traps: dict[str, Any], case: str, words: str) -> None:
    assert words in traps[case]


def test_an_unknown_operator_names_the_recipe_and_leaves_the_lake(
    lake: Lake, tmp_path: Path
) -> None:
    path = recipe(tmp_path, {"text_lenght_filter": {"text_key": "chosen_text"}})
    with pytest.raises(InputError) as caught:
        normalize(lake, None, path)
    assert str(path) in str(caught.value)
    assert "did you mean: text_length_filter" in str(caught.value)
    assert lake.days("normalized_pairs") == []
    assert lake.days("drops") == []


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
    with pytest.raises(InputError, match="skip_op_error: Field required"):
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


def test_narrow_columns() -> None:
    row = pair("p", "x" * 3000, call("Bash", command="pwd"), say("no"))
    narrow = narrow_row(row)
    assert tuple(narrow) == COLUMNS
    assert narrow["chosen_text"] == 'Bash {"command":"pwd"}'
    assert narrow["chosen_prose"] == ""
    assert narrow["prompt_tail_text"] == "x" * 2000
    assert narrow_row({**row, "tools": [{"type": "function"}]})["state_key"] != narrow["state_key"]
    with pytest.raises(InputError, match="pair p has null in column chosen"):
        narrow_row({**row, "chosen": None})


def test_a_dead_worker_is_an_error_and_writes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room.sys, "executable", "/bin/false")
    with pytest.raises(ComposerError, match="worker ended with code 1"):
        normalize(lake, None, DEFAULT)
    assert lake.days("normalized_pairs") == []


def test_the_worker_gets_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "planted")
    monkeypatch.setenv("HF_TOKEN", "planted")
    assert "planted" not in room._worker_env().values()
    assert room._worker_env()["PIP_NO_INDEX"] == "1"


def test_rows_that_do_not_come_back_are_an_error(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "run_worker", lambda *_, **__: room.WorkerResult(rows=3))
    with pytest.raises(ComposerError, match="lost rows: 10 in, 3 judged"):
        normalize(lake, None, DEFAULT)
    assert run_worker is not room.run_worker
