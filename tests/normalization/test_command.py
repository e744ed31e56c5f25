"""``composer-pipeline normalize`` from the command line: bad input, kills, real actions."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
import yaml

from composer_pipeline.actions import Action
from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.settings import recipes_dir
from tests.fixtures.waiting import wait_until
from tests.places import ROOT

DEFAULT = recipes_dir() / "normalize" / "default.yaml"
DAY, NEXT = "2026-11-16", "2026-11-17"
BASE: dict[str, Any] = {
    "text_keys": ["chosen_text"],
    "skip_op_error": False,
    "use_cache": False,
    "auto_op_parallelism": False,
}
LENGTH = {"text_length_filter": {"text_key": "chosen_text", "min_len": 2}}


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


def pair(pair_id: str, chosen: Any, rejected: Any, prompt: str = "go") -> dict[str, Any]:
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


def command(lake: Lake, recipe: Path, *more: str) -> list[str]:
    # Through `-c`: the console script of the environment may belong to another checkout.
    code = "from composer_pipeline.cli.__main__ import main; main()"
    return [
        *(sys.executable, "-c", code, "normalize", "--lake", lake.root),
        *("--recipe", str(recipe), "--json", *more),
    ]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Run(Protocol):
    def __call__(self, lake: Lake, recipe: Path, *more: str) -> Done: ...


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command's entry in this process; the worker is a process of its own in any case."""

    def command(lake: Lake, recipe: Path, *more: str) -> Done:
        arguments = ["normalize", "--lake", lake.root, "--recipe", str(recipe), "--json", *more]
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, " ".join(err.split()))

    return command


def write(tmp_path: Path, *process: dict[str, Any], **changes: Any) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**BASE, "process": list(process), **changes}))
    return path


def files(lake: Lake) -> dict[str, bytes]:
    """Every file of the stage's tables, hidden and temporary ones too."""
    root = Path(lake.root)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for table in ("normalized_pairs", "drops")
        for path in sorted((root / table).rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.write("pairs", [pair("a", say("yes"), say("no")), pair("b", say("y"), say("no"))], day=DAY)
    return lake


@pytest.mark.parametrize(
    ("process", "changes", "words"),
    [
        ([], {}, ["process"]),
        ([LENGTH], {"exekutor_type": "default"}, ["exekutor_type", "did you mean: executor_type?"]),
        ([LENGTH], {"text_keys": ["chosen_txt"]}, ["'chosen_txt' (did you mean: chosen_text?)"]),
        ([LENGTH], {"np": 0}, ["np: "]),
        (
            [{"text_lenght_filter": {}}],
            {},
            ["[text_lenght_filter]", "did you mean: text_length_filter"],
        ),
        (
            [{"text_length_filter": {"min_length": 3}}],
            {},
            ["[text_length_filter] Unknown parameter 'min_length' (did you mean: min_len?)"],
        ),
        (
            [{"language_id_score_filter": {}}],
            {},
            ["[language_id_score_filter]", "fasttext-predict", "nothing is installed by itself"],
        ),
        (
            [{"llm_quality_score_filter": {}}],
            {},
            ["[llm_quality_score_filter] calls a language model", "ledger"],
        ),
    ],
)
def test_bad_recipes_end_with_2_and_one_sentence(
    run: Run,
    lake: Lake,
    tmp_path: Path,
    process: list[Any],
    changes: dict[str, Any],
    words: list[str],
) -> None:
    path = write(tmp_path, *process, **changes)
    done = run(lake, path)
    assert done.returncode == 2, done.stderr
    for word in (str(path), *words):
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert files(lake) == {}


def test_other_bad_input_ends_with_2(run: Run, lake: Lake, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("text_keys: [chosen_text]\nprocess:\n  - text_length_filter: {min_len: 1\n")
    said = run(lake, broken)
    assert said.returncode == 2
    assert "broken.yaml is not YAML" in said.stderr
    assert "line 3" in said.stderr or "line 4" in said.stderr
    said = run(lake, tmp_path / "none.yaml")
    assert said.returncode == 2
    assert "none.yaml: No such file" in said.stderr
    lake.write("pairs", [pair("ok", say("a"), say("b")), pair("hole", None, say("b"))], day=NEXT)
    said = run(lake, write(tmp_path, LENGTH))
    assert said.returncode == 2
    assert f"day {NEXT}: pair hole (row 1) has null in column chosen" in said.stderr
    # The good day was not written either.
    assert files(lake) == {}


def test_the_report_and_the_flat_columns(run: Run, lake: Lake, tmp_path: Path) -> None:
    done = run(lake, write(tmp_path, LENGTH))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.pop("recipe_id").startswith("recipe@")
    assert said == {
        "rows": 2,
        "kept": 1,
        "dropped": 1,
        "by_op": {"0:text_length_filter": 1},
        "changed": {},
        "by_day": {DAY: {"rows": 2, "kept": 1, "dropped": 1}},
    }
    out = tmp_path / "flat.jsonl"
    done = run(lake, write(tmp_path, LENGTH), "--columns", str(out))
    assert json.loads(done.stdout) == {"rows": 2, "file": str(out)}
    assert [json.loads(line)["chosen_text"] for line in out.read_text().splitlines()] == [
        "yes",
        "y",
    ]


SLOW = """
import os, time
from pathlib import Path
from data_juicer.ops.base_op import OPERATORS, Filter

@OPERATORS.register_module("slow_filter")
class Slow(Filter):
    _batched_op = True
    def compute_stats_batched(self, samples):
        Path(os.environ["MARK"]).touch()
        time.sleep(float(os.environ.get("SLEEP", "0")))
        return samples
    def process_batched(self, samples):
        return [True] * len(samples["pair_id"])
"""


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: path.exists() or process.poll() is not None, f"{path.name} is there")
    assert process.poll() is None


@pytest.mark.slow
def test_a_kill_leaves_no_partial_partition_and_a_rerun_gives_the_same_bytes(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write("pairs", [pair("c", say("yes"), say("no")), pair("d", say(""), say("no"))], day=NEXT)
    own = tmp_path / "slow_operator.py"
    own.write_text(SLOW)
    recipe = write(tmp_path, LENGTH, {"slow_filter": {}}, custom_operator_paths=[str(own)])
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    mark = tmp_path / "mark"
    env = {**os.environ, "MARK": str(mark), "TMPDIR": str(temporary)}
    first = subprocess.Popen(command(lake, recipe), cwd=ROOT, env={**env, "SLEEP": "600"})
    wait_for(mark, first)
    assert list(temporary.glob("composer-normalize-*")), "the texts are in a folder of their own"
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert files(lake) == {}
    # The worker notices, in the middle of its operator, and takes the texts with it.
    wait_until(lambda: not list(temporary.iterdir()), "the folder of the texts is gone")
    # Killed after the first of the four partitions.
    code = (
        "import os, sys; from composer_pipeline.lake.store import Lake;"
        " from composer_pipeline.normalization.stage import normalize; write = Lake.write\n"
        "def killed(self, table, *a, **k):\n"
        "    write(self, table, *a, **k)\n"
        "    os.kill(os.getpid(), 9)\n"
        "Lake.write = killed; normalize(Lake(sys.argv[1]), sys.argv[2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, lake.root, str(recipe)], cwd=ROOT, env=env, timeout=600
    )
    assert done.returncode == -signal.SIGKILL
    partial = files(lake)
    assert list(partial) == [f"drops/stage=normalize/day={DAY}/part.parquet"]
    monkeypatch.setenv("MARK", str(mark))
    normalize(lake, recipe)
    again = files(lake)
    assert len(again) == 4
    assert partial.items() <= again.items()
    whole = Lake(tmp_path / "whole")
    for day in (DAY, NEXT):
        whole.write("pairs", _plain(lake, day), day=day)
    normalize(whole, recipe)
    assert files(whole) == again


def _plain(lake: Lake, day: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "day"} for row in lake.rows("pairs", days=[day])]


# -- the default recipe on real actions ------------------------------------------------

CORPUS = ROOT.parent / "shared" / "corpus"

#: The bounds of an earlier default recipe, which were made for web pages.
WEB = [
    {"text_length_filter": {"text_key": "chosen_text", "min_len": 8, "max_len": 20000}},
    {"words_num_filter": {"text_key": "chosen_text", "min_num": 2, "max_num": 5000}},
    {"special_characters_filter": {"text_key": "chosen_text", "max_ratio": 0.5}},
    {"document_deduplicator": {"text_key": "chosen_text", "ignore_non_character": True}},
]


def message(action: Action) -> list[dict[str, Any]]:
    calls = [
        {
            "id": f"c{i}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for i, call in enumerate(action.tool_calls)
    ]
    made: dict[str, Any] = {"role": "assistant", "content": action.text}
    return [{**made, "tool_calls": calls} if calls else made]


def actions_lake(root: Path, sessions: list[Path]) -> Iterator[tuple[Lake, int]]:
    from composer_pipeline.states.load import load_states
    from composer_pipeline.traces.ingest import ingest

    source, target = Lake(root / "source"), Lake(root / "target")
    ingest(source, sessions)
    days: dict[str, list[dict[str, Any]]] = {}
    for state in load_states(source):
        rows = days.setdefault(state.day, [])
        agent, other = message(state.action), say("I would stop here.")
        prompt = state.messages[-1] if state.messages else {"role": "user", "content": "?"}
        for side in (
            pair(f"{state.state_id}-c", agent, other),
            pair(f"{state.state_id}-r", other, agent),
        ):
            rows.append({**side, "prompt": [{"role": "user", "content": state.state_id}, prompt]})
    for day, rows in days.items():
        target.write("pairs", rows, day=day)
    yield target, sum(map(len, days.values()))


def test_short_commands_of_agents_survive_the_default_recipe(tmp_path: Path) -> None:
    """The bundled sessions; the real ones follow."""
    from composer_pipeline.testing.samples import sample_sessions_dir

    ((lake, rows),) = actions_lake(tmp_path, [sample_sessions_dir()])
    report = normalize(lake, DEFAULT)
    assert report.rows == rows > 100
    assert report.kept == rows


@pytest.mark.slow
def test_real_agent_actions_survive_the_default_recipe(tmp_path: Path) -> None:
    if not CORPUS.is_dir():
        reason = f"{CORPUS} is not there"
        if "corpus" in os.environ.get("COMPOSER_REQUIRE", ""):
            pytest.fail(reason)
        pytest.skip(reason)
    import tarfile

    with tarfile.open(CORPUS / "claude-code-sessions.tar.xz", "r:xz") as archive:
        archive.extractall(tmp_path / "sessions", filter="data")
    ((lake, rows),) = actions_lake(tmp_path, [tmp_path / "sessions"])
    report = normalize(lake, DEFAULT)
    duplicates = report.by_op.get("6:document_deduplicator", 0)
    share = report.kept / (rows - duplicates)
    print(f"kept {report.kept} of {rows} ({duplicates} exact duplicates): {share:.4f}")
    assert rows > 6000
    assert share >= 0.99
    # What the bounds of web pages would have thrown away, on the same rows.
    normalize(lake, write(tmp_path, *WEB))
    kept = lake.read("normalized_pairs").column("pair_id").to_pylist()
    web = sum(pair_id.endswith("-c") for pair_id in kept) / (rows / 2)
    print(f"bounds made for web pages keep {web:.4f}")
    assert web < 0.95
