"""The stage's own rules, fast: data-juicer's modules are stood in for by small fakes.

That the real data-juicer is driven rightly is tested beside this, slowly.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.parquet import table_from_rows
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization import judge, operators, stage
from composer_pipeline.normalization import judge as fast_stats
from composer_pipeline.normalization.judge import Drop
from composer_pipeline.normalization.operators import NormalizeRecipe, OperatorStep
from composer_pipeline.normalization.text_columns import SOURCE, PairColumns, named_columns
from composer_pipeline.normalization.worker import Worker, worker_env

DAY = "2026-11-16"
STATS = "__dj__stats__"


class Filter: ...


class Mapper: ...


class Selector: ...


class Deduplicator: ...


class Grouper: ...


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """data-juicer's registry with a filter of each kind, in place of the package."""
    kinds = (Filter, Mapper, Selector, Deduplicator, Grouper)
    fake = SimpleNamespace(
        **{kind.__name__: kind for kind in kinds},
        Aggregator=Grouper,
        Pipeline=Grouper,
        OPERATORS=SimpleNamespace(modules={}),
    )
    constants = SimpleNamespace(Fields=SimpleNamespace(stats=STATS))
    preflight = SimpleNamespace(
        pre_instantiation_check=lambda process: None, PipelineConfigError=ZeroDivisionError
    )
    floats = SimpleNamespace(ujson_dumps=lambda v: f"{v:.10f}", ujson_loads=float)
    monkeypatch.setitem(sys.modules, "data_juicer.ops", fake)
    for name, module in {
        "data_juicer.utils.constant": constants,
        "data_juicer.core.preflight": preflight,
        "datasets.utils.json": floats,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(operators, "import_data_juicer", lambda: fake)
    return fake


class OwnFilter(Filter):
    """Drops values by a statistic that it is given."""

    _name, text_key, batch_size = "own_filter", "chosen_text", 2

    def __init__(self, stats: Sequence[Any], **bounds: Any) -> None:
        self.stats, self._init_kwargs = list(stats), bounds
        vars(self).update(bounds)

    def compute_stats_batched(self, part: dict[str, Any]) -> dict[str, Any]:
        made = [{"size": self.stats.pop(0)} for _ in range(min(len(self.stats), len(part[STATS])))]
        return {**part, STATS: made}

    def process_batched(self, part: dict[str, Any]) -> list[bool]:
        return [False for _ in part[STATS]]


# -- statistics ---------------------------------------------------------------------------


def statistic(name: str, texts: list[str]) -> Any:
    found = fast_stats.columnar(SimpleNamespace(_name=name), texts)
    return found and found[1]


def test_lines_end_where_python_ends_them() -> None:
    texts = ["a\u2028bcd", "x\r\nyy", "a\x0bb", ""]
    assert statistic("maximum_line_length_filter", texts) == [3, 2, 1, 0]


def test_words_end_at_blanks_and_are_more_than_special_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = np.zeros(0x110000, bool)
    table[[ord(c) for c in " \t\n-"]] = True
    monkeypatch.setattr(fast_stats, "_special", lambda: table)
    assert statistic("words_num_filter", ["a - b", "a\tb\nc d", "-", "", "e"]) == [2, 4, 0, 0, 1]


def test_many_texts_are_counted_in_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_stats, "CHUNK", 4)
    counted: list[int] = []
    points = fast_stats._points

    def count(texts: list[str]) -> Any:
        counted.append(len(texts))
        return points(texts)

    monkeypatch.setattr(fast_stats, "_points", count)
    texts = ["aaaaa", "b", "c", "d", "-"]
    assert statistic("alphanumeric_filter", texts) == [1, 1, 1, 1, 0]
    assert counted == [1, 4]


@pytest.mark.parametrize("release", ["1.6.0", "1.6.2", "1.7.0"])
def test_another_release_counts_for_itself(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(fast_stats, "version", lambda _: release)
    fast_stats._same_version.cache_clear()
    try:
        assert statistic("text_length_filter", ["abc"]) is None
    finally:
        monkeypatch.undo()
        fast_stats._same_version.cache_clear()


# -- judging ------------------------------------------------------------------------------


class Says:
    """An executor that drops the values that a step is told to, and notes what it was asked."""

    def __init__(self, *bad: str) -> None:
        self.bad, self.batches = bad, []  # type: ignore[var-annotated]

    def run(self, index: int, op: Any, batch: dict[str, list[str]], count: int) -> list[Any]:
        self.batches.append(batch)
        (values,) = (v for k, v in batch.items() if k == op.text_key)
        return [("s", v, "b") if v in self.bad else None for v in values]


def text_filter(column: str = "chosen_text") -> Any:
    made = OwnFilter([])
    made._name, made.text_key = "text_length_filter", column
    return made


def flat(**columns: list[str]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({"pair_id": [f"p{n}" for n in range(rows)], **columns})


def test_a_row_is_dropped_once_by_the_first_step_that_it_breaks(ops: Any) -> None:
    table = flat(chosen_text=["x", "y", "x"], rejected_text=["q", "q", "r"])
    executor = Says("x", "q")
    steps = [(0, text_filter()), (1, text_filter("rejected_text"))]
    found = judge.judge(table, steps, executor=executor)
    assert [(drop.row, drop.step[0]) for drop in found] == [(0, "0"), (2, "0"), (1, "1")]


def test_a_recipe_may_judge_the_whole_pair(ops: Any) -> None:
    executor = Says()
    table = flat(state_key=["k"], chosen_text=["a"], rejected_text=["b"])
    judge.judge(table, [(0, text_filter("pair_text"))], executor=executor)
    assert executor.batches == [{"pair_text": ['["k","a","b"]']}]
    assert named_columns([("x", {"text_key": "pair_text"})], every=False) == [
        "pair_id", "state_key", "chosen_text", "rejected_text",
    ]  # fmt: skip


def test_the_ledger_says_which_bound_a_value_broke(ops: Any) -> None:
    batch = {"chosen_text": ["a"]}

    def why(value: Any, **bounds: Any) -> tuple[str, str, str]:
        ((*found,),) = judge.evaluate(OwnFilter([value], **bounds), batch, 1)
        return tuple(found)

    assert why(9, max_len=5, min_len=1) == ("size", "9", "max_len=5")
    assert why(0, max_len=5, min_len=1) == ("size", "0", "min_len=1")
    # Its bound allows the value; that the interval is open is among the arguments.
    assert why(5, max_len=5, max_closed_interval=False)[2] != "max_len=5"
    assert why("x" * 5000)[1] == "x" * 200


def test_values_that_an_operator_loses_stop_the_run(ops: Any) -> None:
    with pytest.raises(InputError, match=r"\[own_filter\] lost rows: 4 in, 3 out"):
        judge.evaluate(OwnFilter([1, 2, 3]), {"chosen_text": ["a", "b", "c", "d"]}, 4)


def test_np_processes_judge_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "POOL_CHARS", 10)
    monkeypatch.setattr(judge, "_forked", lambda op, batch, count, processes: [processes])
    monkeypatch.setattr(judge, "evaluate", lambda *_: [1])
    op = OwnFilter([])
    large, small = {"chosen_text": ["abc"] * 8}, {"chosen_text": ["a"] * 8}
    assert judge.Local(2).run(0, op, large, 8) == [2]
    assert judge.Local(2).run(0, op, small, 8) == [1]
    assert judge.Local(1).run(0, op, large, 8) == [1]


# -- operators ----------------------------------------------------------------------------

ACTS = """
import os, socket, subprocess, sys
from composer_pipeline.normalization.operators import guard
guard()
for act in (lambda: socket.socket().connect(("127.0.0.1", 9)),
            lambda: socket.getaddrinfo("localhost", 9),
            lambda: os.system("true"),
            lambda: os.posix_spawn("/bin/true", ["true"], {}),
            lambda: subprocess.run(["true"])):
    try:
        act()
    except PermissionError as error:
        print(str(error).split(":")[0])
"""


def test_operators_open_no_connection_and_start_no_program() -> None:
    done = subprocess.run([sys.executable, "-c", ACTS], capture_output=True, text=True, check=True)
    connection, process = "normalize opens no connection", "normalize starts no process"
    assert done.stdout.splitlines() == [connection] * 2 + [process] * 3


def load(ops: Any, name: str, kind: type, made: Any, **arguments: Any) -> dict[str, Any]:
    """Load one step; return the arguments that its operator was made with."""
    given: dict[str, Any] = {}

    def load_ops(process: Any) -> list[Any]:
        given.update(process[0][name])
        return [made]

    made._name = name
    ops.OPERATORS.modules[name] = type("Made", (kind,), {})
    ops.load_ops = load_ops
    operators.load_steps([(name, {"text_key": "chosen_text", **arguments})])
    return given


def test_an_error_of_an_operator_is_never_skipped(ops: Any) -> None:
    given = load(ops, "text_length_filter", Filter, text_filter())
    assert (given["skip_op_error"], given["auto_op_parallelism"]) == (False, False)


@pytest.mark.parametrize("field", ["text_key", "field_key"])
def test_columns_are_known_before_anything_runs(ops: Any, field: str) -> None:
    with pytest.raises(InputError, match="unknown column 'meta'"):
        load(ops, "specified_field_filter", Filter, text_filter(), **{field: "meta"})


def test_a_folder_needs_its_word_list(ops: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no \*stopwords\*\.json in"):
        load(ops, "stopwords_filter", Filter, text_filter(), stopwords_dir=str(tmp_path))
    (tmp_path / "my_stopwords.json").write_text("{}")
    assert load(ops, "stopwords_filter", Filter, text_filter(), stopwords_dir=str(tmp_path))


def test_a_model_that_is_not_there_is_said_before_any_row_is_read(ops: Any) -> None:
    def compute(_: Any) -> Any:
        raise OSError("no such model")

    made = text_filter()
    made.compute_stats_batched = compute
    with pytest.raises(InputError, match="needs a model or a file that is not on this machine"):
        load(ops, "token_num_filter", Filter, made)


def test_an_own_operator_may_be_called_what_its_author_likes(ops: Any) -> None:
    assert operators.refusal("skillmatch_filter", OwnFilter, ops, own=True) == ""
    assert "calls a language model" in operators.refusal("skillmatch_filter", OwnFilter, ops)


# -- recipes and the stage ----------------------------------------------------------------


def recipe(folder: Path, *process: dict[str, Any], **changes: Any) -> Path:
    path = folder / "recipe.yaml"
    fixed = dict.fromkeys(("skip_op_error", "use_cache", "auto_op_parallelism"), False)
    body = {"text_keys": ["chosen_text"], **fixed, "process": list(process), **changes}
    path.write_text(yaml.safe_dump(body))
    return path


def test_an_operators_own_column_goes_before_the_recipes(tmp_path: Path) -> None:
    path = recipe(tmp_path, {"a": {"text_key": "rejected_text"}}, {"b": None})
    assert NormalizeRecipe.load(path).steps() == [
        ("a", {"text_key": "rejected_text"}),
        ("b", {"text_key": "chosen_text"}),
    ]


def test_the_code_of_own_operators_is_part_of_the_recipes_name(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("# one\n")
    path = recipe(tmp_path, {"a": None}, custom_operator_paths=str(own))
    before = NormalizeRecipe.load(path).recipe_id(path)
    own.write_text("# two\n")
    assert NormalizeRecipe.load(path).recipe_id(path) != before


def pair(pair_id: str, text: str = "a", **changes: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": text}
    return {"pair_id": pair_id, "state_id": f"s-{pair_id}", "session_id": "s", "tools": [],
            "prompt": [{"role": "user", "content": "go"}], "chosen": [said],
            "rejected": [{**said, "content": "no"}], **changes}  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.write("pairs", [pair("p0"), pair("p1", "b"), pair("p2", "c")], day=DAY)
    return lake


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The worker process, which answers what a test says."""
    fake = SimpleNamespace(made=[OperatorStep("x")], drops=lambda table: [], seen=[])

    class Fake:
        def __init__(self, *_: Any) -> None: ...

        def __enter__(self) -> "Fake":
            return self

        def __exit__(self, *_: object) -> None: ...

        def steps(self) -> list[OperatorStep]:
            return fake.made

        def judge(self, steps: Any, table: pa.Table) -> list[Drop]:
            fake.seen.append(table)
            return list(fake.drops(table))

        def map(self, step: int, texts: list[str]) -> list[str]:
            return [text.upper() for text in texts]

    monkeypatch.setattr(stage, "Worker", Fake)
    return fake


def first(table: pa.Table) -> list[Drop]:
    return [Drop(0, "0:x", "x", "f", "", "", "")]


def test_a_day_whose_pairs_are_gone_loses_its_results(
    lake: Lake, tmp_path: Path, worker: SimpleNamespace
) -> None:
    path = recipe(tmp_path, {"x": None})
    stage.normalize(lake, path)
    assert len(lake.rows("normalized_pairs")) == 3
    Path(lake.path("pairs", day=DAY)).unlink()
    assert stage.normalize(lake, path, days=[DAY, "2026-11-17"]).rows == 0
    assert lake.rows("normalized_pairs") == []
    assert lake.days("normalized_pairs") == [DAY]  # and a day that had none gets no files


def test_pairs_that_change_meanwhile_are_an_error(
    lake: Lake, tmp_path: Path, worker: SimpleNamespace
) -> None:
    def change(table: pa.Table) -> list[Drop]:
        lake.write("pairs", [pair(name) for name in ("p0", "new", "p2")], day=DAY)
        return []

    worker.drops = change
    with pytest.raises(ComposerError, match=f"pairs of {DAY} changed"):
        stage.normalize(lake, recipe(tmp_path, {"x": None}))
    assert lake.days("normalized_pairs") == []


def test_rows_are_counted_among_those_that_are_left(
    lake: Lake, tmp_path: Path, worker: SimpleNamespace
) -> None:
    worker.made = [OperatorStep("x"), OperatorStep("m", "chosen_text"), OperatorStep("y")]
    worker.drops = first
    report = stage.normalize(lake, recipe(tmp_path, {"x": None}, {"m": None}, {"y": None}))
    assert [row["pair_id"] for row in lake.rows("drops")] == ["p0", "p1"]
    (kept,) = lake.rows("normalized_pairs")
    assert (kept["pair_id"], kept["chosen"][0]["content"]) == ("p2", "C")
    assert (report.kept, report.dropped, report.changed) == (1, 2, {"1:m": 2})


def test_an_own_operator_may_read_any_column(
    lake: Lake, tmp_path: Path, worker: SimpleNamespace
) -> None:
    own = tmp_path / "own.py"
    own.write_text("")
    stage.normalize(lake, recipe(tmp_path, {"x": None}))
    stage.normalize(lake, recipe(tmp_path, {"x": None}, custom_operator_paths=str(own)))
    assert worker.seen[0].column_names == ["pair_id", "chosen_text"]
    assert {"state_key", "prompt_tail_text", "rejected_text"} <= set(worker.seen[1].column_names)


def test_prose_mappers_read_what_stands_alone() -> None:
    call = {"function": {"name": "Bash", "arguments": {"command": "ls"}}}
    beside = [{"role": "assistant", "content": "I look", "tool_calls": [call]}]
    table = table_from_rows(TABLES["pairs"], [pair("p0", "alone"), pair("p1", chosen=beside)])
    columns = PairColumns(table.select(SOURCE), DAY)
    assert columns.texts("chosen_prose", [0, 1])[0] == ["alone"]
    assert columns.texts("chosen_text", [0, 1])[0] == ["alone", "I look"]


# -- the worker process -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENROUTER_API_KEY", "planted"),
        ("HF_TOKEN", "planted"),
        ("AWS_SECRET", "planted"),
        ("PGPASSWORD", "planted"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "planted"),
        ("COMPOSER_LEDGER", "postgresql://me:planted@db/ledger"),
        ("HTTPS_PROXY", "http://me:planted@proxy:3128"),
    ],
)
def test_no_credential_reaches_an_operator(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("COMPOSER_LAKE", "s3://bucket/lake")
    assert name not in worker_env()
    assert worker_env()["COMPOSER_LAKE"] == "s3://bucket/lake"


@pytest.mark.parametrize("count", [1, 3])
def test_a_mapper_gives_one_text_for_one(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(Worker, "_ask", lambda *_: json.dumps(["x"] * count).encode())
    worker = object.__new__(Worker)
    with pytest.raises(ComposerError, match=f"lost texts: 2 in, {count} out"):
        worker.map(0, ["a", "b"])


HEAD = """
import importlib, sys, threading
from pathlib import Path
w = importlib.import_module("composer_pipeline.normalization.worker")
folder = sys.argv[1]
"""


@pytest.fixture
def started(tmp_path: Path) -> Callable[[str], "subprocess.Popen[str]"]:
    """Start code with the worker's module as ``w`` and its folder as ``folder``."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"steps": []}))

    def start(code: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", HEAD + code, str(folder)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def test_what_an_operator_prints_is_no_answer(started: Any) -> None:
    child = started(
        "w.guard = lambda: None; w.describe = lambda ops: []\n"
        "w.load_steps = lambda *_: print('noise') or []; w.main(folder)"
    )
    assert json.loads(child.stdout.readline())["error"] == ""
    rest, log = child.communicate()  # its input ends, and so does the worker
    assert (rest, "noise" in log) == ("", True)


def test_a_worker_whose_parent_is_gone_leaves_no_text_behind(started: Any, tmp_path: Path) -> None:
    child = started("w._Requests(Path(folder)); threading.Event().wait()")
    child.communicate()
    assert child.returncode == 1
    assert not (tmp_path / "work").exists()
