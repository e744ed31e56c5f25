"""Exports: the columns of each format, as datasets and TRL read them."""

import json
import shutil
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from composer_pipeline.chat.convert import to_chat, wire_messages
from composer_pipeline.cli.__main__ import main
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.errors import InputError
from composer_pipeline.exporting.columns import export
from composer_pipeline.exporting.student_samples import read_samples
from composer_pipeline.lake.parquet import TableFile
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.hints import MAX_TOKENS, build_hints, consensus_hint, token_bound
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.states.load import load_states
from composer_pipeline.testing.personas import Script
from composer_pipeline.testing.samples import answers, sample_sessions_dir
from composer_pipeline.traces.ingest import ingest

PERSONAS = {"careful": "alpha", "steady": "beta", "contrarian": "gamma"}


def fill(lake, script):
    by_day: dict[str, dict[str, list]] = {}
    for state in load_states(lake):
        body = {"messages": wire_messages(to_chat(state).messages)}
        for persona, family in PERSONAS.items():
            row = {
                "state_id": state.state_id, "session_id": state.session_id, "family": family,
                "request_hash": f"{family}{state.state_id}", "model": f"m/{family}",
                "status": "ok", "action": script.decide(persona, body).to_json(),
                "cost_picodollars": 7, "simulated": True, "training_terms": "enforced",
                "created_at": datetime(2026, 11, 20, tzinfo=UTC),
            }  # fmt: skip
            by_day.setdefault(state.day, {}).setdefault(persona, []).append(row)
    for day, teachers in by_day.items():
        for teacher, rows in teachers.items():
            lake.write("replies", rows, day=day, teacher=teacher)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """The bundled sessions up to the dataset; normalisation keeps every pair."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    ingest(lake, [sample_sessions_dir()])
    fill(lake, Script.from_states(list(load_states(lake)), answers()))
    for day in lake.days("states"):
        build_hints(lake, days=[day])
        build_pairs(lake, days=[day])
        rows = lake.rows("pairs", days=[day])
        for row in rows:
            row.pop("day")
            row["recipe"] = "all"
        lake.write("normalized_pairs", rows, day=day)
    build_dataset(lake)
    return lake


def loaded(path, cache):
    from datasets import load_dataset

    return load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(cache))


@pytest.fixture(scope="module")
def tokenizer():
    from composer_pipeline.training.models import SMOLLM2, load_tokenizer, resolve_model

    return load_tokenizer(resolve_model(SMOLLM2))


def test_dpo_is_the_dataset(lake, tmp_path, tokenizer):
    from trl import apply_chat_template

    report = export(lake, "dpo", tmp_path / "dpo.parquet")
    data = loaded(tmp_path / "dpo.parquet", tmp_path / "cache")
    pairs = {row["pair_id"]: row for row in lake.rows("dataset_pairs")}
    assert data.num_rows == report.rows == len(pairs) > 40
    for row in data:
        source = pairs[row["pair_id"]]
        assert row["chosen"] == source["chosen"]
        assert row["rejected"] == source["rejected"]
        assert (row["split"], row["student"]) == (source["split"], "recorded")
    assert set(data["weight"]) == {0.5, 1.0, 1.5}
    # Both sides have their keys in the schema's order, whoever wrote them.
    several = 0
    for row in data:
        order = {t["function"]["name"]: list(t["function"]["parameters"]["properties"])
                 for t in row["tools"]}  # fmt: skip
        for done in [
            c for side in ("chosen", "rejected") for c in row[side][0].get("tool_calls", ())
        ]:
            keys = list(done["function"]["arguments"])
            known = [k for k in order[done["function"]["name"]] if k in keys]
            assert keys == [*known, *sorted(set(keys) - set(known))]
            several += len(keys) > 1
    assert several > 40
    row = next(row for row in data if row["chosen"][0].get("tool_calls"))
    asked = {key: row[key] for key in ("prompt", "chosen", "rejected")}
    text = apply_chat_template(asked, tokenizer, tools=row["tools"])
    name = row["chosen"][0]["tool_calls"][0]["function"]["name"]
    assert f'"name": "{name}"' in text["chosen"]
    assert text["chosen"] != text["rejected"]


def test_kto_has_both_sides_with_their_labels(lake, tmp_path, tokenizer):
    from trl import apply_chat_template

    report = export(lake, "kto", tmp_path / "kto")
    assert set(report.files) == {
        str(tmp_path / "kto" / f"{split}.parquet") for split in ("train", "validation")
    }
    pairs = {row["pair_id"]: row for row in lake.rows("dataset_pairs")}
    labels: dict[str, dict[bool, list]] = {}
    for split in ("train", "validation"):
        data = loaded(tmp_path / "kto" / f"{split}.parquet", tmp_path / "cache")
        assert {"prompt", "completion", "label", "tools"} <= set(data.column_names)
        assert set(data["split"]) == {split}
        for row in data:
            labels.setdefault(row["pair_id"], {})[row["label"]] = row["completion"]
    assert labels == {
        key: {True: row["chosen"], False: row["rejected"]} for key, row in pairs.items()
    }
    keys = ("prompt", "completion", "label")
    text = apply_chat_template({key: row[key] for key in keys}, tokenizer, tools=row["tools"])
    assert text["completion"]
    assert text["label"] is row["label"]


def test_sft_is_the_consensus_at_every_state(lake, tmp_path, tokenizer):
    from trl import apply_chat_template

    export(lake, "sft", tmp_path / "sft.parquet")
    data = loaded(tmp_path / "sft.parquet", tmp_path / "cache")
    groups = {row["state_id"]: row for row in lake.rows("dataset_groups")}
    assert set(data["state_id"]) == set(groups)
    reasons = {row["state_id"]: row["reason"] for row in lake.rows("votes")}
    for row in data:
        assert row["completion"] == groups[row["state_id"]]["consensus"]
        expected = reasons[row["state_id"]] in ("agrees_with_student", "style")
        assert row["agrees_with_student"] is expected
    assert set(data["agrees_with_student"]) == {True, False}
    text = apply_chat_template(
        {"prompt": row["prompt"], "completion": row["completion"]}, tokenizer, tools=row["tools"]
    )
    assert text["completion"]


def test_contaminated_states_are_in_no_sft_export(lake, tmp_path):
    day = lake.days("votes")[0]
    rows = lake.rows("votes", days=[day])
    for row in rows:
        row.pop("day")
    marked = [{**row, "contamination": ["instance a/b (X)"]} for row in rows]
    before = export(lake, "sft", tmp_path / "a.parquet").rows
    lake.write("votes", marked, day=day)
    try:
        report = export(lake, "sft", tmp_path / "b.parquet")
    finally:
        lake.write("votes", rows, day=day)
    gone = {row["state_id"] for row in rows}
    wanted = {row["state_id"] for row in lake.rows("dataset_groups")} - gone
    assert report.left_out["contamination"] == before - len(wanted) > 0
    assert set(pq.read_table(tmp_path / "b.parquet")["state_id"].to_pylist()) == wanted


def test_sdpo_hints_are_short_and_do_not_give_the_answer(lake, tmp_path, tokenizer):
    export(lake, "sdpo", tmp_path / "sdpo.parquet")
    data = loaded(tmp_path / "sdpo.parquet", tmp_path / "cache")
    sources = set(data["hint_source"])
    assert sources >= {"tool_error", "exit_code", "teacher_consensus"}
    pairs = {row["state_id"]: row for row in lake.rows("dataset_pairs")}
    consensus = [row for row in data if row["hint_source"] == "teacher_consensus"]
    assert len(consensus) > 30
    named = 0
    for row in consensus:
        pair = pairs[row["state_id"]]
        text = row["privileged_context"]
        assert row["completion"] == pair["rejected"]
        assert text.startswith("2 of 3 independent reviewers would use ")
        assert len(tokenizer(text)["input_ids"]) <= token_bound(text) <= MAX_TOKENS
        call = pair["chosen"][0]["tool_calls"][0]["function"]
        assert call["name"] in text
        assert json.dumps(call["arguments"]) not in text
        for key in ("command", "file_path", "new_string", "content"):
            if key in call["arguments"]:
                assert str(call["arguments"][key]) not in text
        assert 0 <= row["leakage"] < 1
        named += " on " in text
        if " on " in text:  # only what the prompt shows
            target = text.split(" on ")[1].split(" instead")[0].split(",")[0].split(".")[0]
            word = target.split()[-1].removeprefix("a file in ")
            assert word in json.dumps(pair["prompt"], ensure_ascii=False)
    assert 0 < named < len(consensus)
    traced = [row for row in data if row["hint_source"] != "teacher_consensus"]
    told = {row["state_id"]: row for row in lake.rows("hints")}
    for row in traced:
        assert row["privileged_context"] == told[row["state_id"]]["text"]
        assert row["leakage"] == told[row["state_id"]]["leakage"]


def call(name, **arguments):
    function = {"name": name, "arguments": arguments}
    return [{"role": "assistant", "content": "", "tool_calls": [{"function": function}]}]


def pair_of(chosen, said="look at src/app/core.py and src/app and tests"):
    return {
        "prompt": [{"role": "user", "content": said}],
        "chosen": chosen,
        "rejected": call("Bash", command="ls"),
        "n_agree": 2,
        "n_families": 3,
        "project": "/home/user/x",
    }


@pytest.mark.parametrize(
    ("chosen", "said", "text"),
    [
        # The whole of a Read is its file: only the folder is named.
        (call("Read", file_path="/home/user/x/src/app/core.py"), None,
         "would use Read on a file in src/app instead of Bash."),
        # An edit's file is not the edit.
        (call("Edit", file_path="src/app/core.py", old_string="a", new_string="zebra"), None,
         "would use Edit on src/app/core.py instead of Bash."),
        # What the prompt does not show is not named.
        (call("Edit", file_path="src/app/core.py", old_string="a", new_string="b"), "hello",
         "would use Edit instead of Bash."),
        (call("Bash", command="pytest tests -x --lf -q --maxfail 3 -k name"), None,
         "would use Bash on pytest tests, but not as you did."),
        (call("Bash", command="pytest tests"), None, "would use Bash, but not as you did."),
    ],
)  # fmt: skip
def test_a_consensus_hint_names_what_it_may(chosen, said, text):
    found = consensus_hint(pair_of(chosen, said) if said else pair_of(chosen))
    assert found is not None
    assert found.text == f"2 of 3 independent reviewers {text}"


def test_full_arguments_only_where_they_are_asked_for():
    pair = pair_of(call("Read", file_path="/home/user/x/src/app/core.py"))
    found, default = consensus_hint(pair, full_arguments=True), consensus_hint(pair)
    assert found is not None
    assert default is not None
    assert "src/app/core.py" in found.text
    assert found.leakage > default.leakage == 0.0
    assert consensus_hint(pair_of([{"role": "assistant", "content": "done"}])) is None
    long = pair_of(call("Edit", file_path="x" * 2000, old_string="a", new_string="b"), "x" * 2000)
    full = consensus_hint(long, full_arguments=True)
    assert full is not None
    assert token_bound(full.text) <= MAX_TOKENS


def small(tmp_path):
    """A dataset of three pairs and three states, with the votes behind them."""
    lake = Lake(tmp_path / "small")
    say = [{"role": "assistant", "content": "x"}]
    common = {"session_id": "s", "prompt": say, "tools": [], "simulated": False}
    pair = {**common, "chosen": say, "rejected": say, "tier": "gold", "student": None}
    weights = {"p0": 0.0, "p1": None, "p2": 1.5}
    rows = [{**pair, "pair_id": i, "state_id": i, "weight": w} for i, w in weights.items()]
    lake.write("dataset_pairs", rows, split="train")
    reasons = {"a": "agrees_with_student", "b": "style", "c": "pair", "d": "too_close"}
    groups = [{**common, "state_id": state, "consensus": say} for state in reasons]
    lake.write("dataset_groups", groups, split="train")
    votes = [{"state_id": state, "reason": why} for state, why in reasons.items()]
    lake.write("votes", votes, day="2026-11-16")
    return lake


def test_a_weight_is_exported_as_it_is_and_1_only_where_there_is_none(tmp_path):
    export(small(tmp_path), "dpo", tmp_path / "x.parquet")
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert {row["pair_id"]: row["weight"] for row in rows} == {"p0": 0.0, "p1": 1.0, "p2": 1.5}
    assert {row["student"] for row in rows} == {"recorded"}


def test_sft_counts_the_same_thing_done_in_another_way_as_agreement(tmp_path):
    export(small(tmp_path), "sft", tmp_path / "x.parquet")
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert {row["state_id"]: row["agrees_with_student"] for row in rows} == {
        "a": True, "b": True, "c": False, "d": False,
    }  # fmt: skip


# -- student=sampled ---------------------------------------------------------------


def sample_lines(lake, student="me/model-1"):
    """The agent's action, the better one, and something else, in turn, for each pair's state."""
    rows, expected = [], {}
    voted = [row for row in lake.rows("pairs") if row["source"] == "teachers"]
    for number, pair in enumerate(sorted(voted, key=lambda row: row["state_id"])):
        kind = ("same as chosen", "other", "recorded")[number % 3]
        action: dict[str, Any]
        if kind == "other":
            action = {"text": f"Nothing to do, says the model ({number})."}
        else:
            side = pair["chosen" if kind == "same as chosen" else "rejected"][0]
            calls = [c["function"] for c in side.get("tool_calls") or []]
            action = {"text": side["content"], "tool_calls": calls}
        rows.append({"state_id": pair["state_id"], "student": student, "action": action})
        expected[pair["state_id"]] = kind
    return rows, expected


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_sampled_actions_take_the_agents_place(lake, tmp_path, suffix):
    rows, expected = sample_lines(lake)
    path = tmp_path / f"samples{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in [*rows, rows[1]]))
    else:
        plain = [{**row, "action": json.dumps(row["action"])} for row in [*rows, rows[1]]]
        pq.write_table(pa.Table.from_pylist(plain), path)
    report = export(lake, "dpo", tmp_path / "out.parquet", samples=path)
    got = pq.read_table(tmp_path / "out.parquet").to_pylist()
    by_state = {row["state_id"]: row for row in got}
    assert len(by_state) == len(got) == report.rows
    texts = [pair for pair in lake.rows("pairs") if not pair["chosen"][0].get("tool_calls")]
    finished = {pair["state_id"] for pair in texts}
    for state_id, kind in expected.items():
        if kind == "same as chosen":
            assert state_id not in by_state
        elif kind == "recorded":
            assert state_id in by_state
        elif state_id not in finished:  # against a text, another text is of the same class
            assert "says the model" in by_state[state_id]["rejected"][0]
    assert {row["student"] for row in got} == {"me/model-1"}
    assert set(report.left_out) >= {"agrees_with_student", "repeated_sample"}
    assert sum(report.left_out.values()) + report.rows == len(rows) + 1
    # The outcome of the recorded action says nothing of a sample.
    assert {row["weight"] for row in got} == {1.0}
    recorded = {row["pair_id"] for row in lake.rows("pairs")}
    assert not recorded & {row["pair_id"] for row in got}
    splits = {row["session_id"]: row["split"] for row in lake.rows("dataset_groups")}
    assert all(row["split"] == splits[row["session_id"]] for row in got)
    strict = PreferenceRules.model_validate({"terms": {"accepted": ["declared"]}})
    with pytest.raises(InputError, match=f"{report.rows + 1} terms"):
        export(lake, "dpo", tmp_path / "none.parquet", samples=path, rules=strict)


def test_a_consensus_needs_the_terms_of_each_of_its_teachers(lake, tmp_path):
    other = Lake(shutil.copytree(lake.root, tmp_path / "lake"))
    for day in other.days("replies"):
        rows = other.rows("replies", days=[day], teacher="steady")
        plain = [{k: v for k, v in row.items() if k not in ("day", "teacher")} for row in rows]
        terms = [{**row, "training_terms": "declared"} for row in plain]
        other.write("replies", terms, day=day, teacher="steady")
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in sample_lines(other)[0]))
    rules = PreferenceRules.model_validate({"terms": {"accepted": ["enforced"]}})
    of = {row["state_id"]: row["chosen_teachers"] for row in other.rows("pairs")}
    assert any("steady" in teachers for teachers in of.values())
    with pytest.raises(InputError, match=r"nothing to export: .* terms"):  # it was in each
        export(other, "dpo", tmp_path / "out.parquet", samples=path, rules=rules)


def test_bad_parquet_and_unknown_states(lake, tmp_path):
    broken = tmp_path / "s.parquet"
    broken.write_bytes(b"no")
    for path in (broken, tmp_path / "none.parquet", tmp_path / "none.jsonl"):
        with pytest.raises(InputError, match="cannot be read"):
            read_samples(path)
    stray = tmp_path / "s.jsonl"
    stray.write_text('{"state_id": "nobody", "student": "m", "action": {"text": "a"}}')
    with pytest.raises(InputError, match="no state 'nobody'"):
        export(lake, "dpo", tmp_path / "o.parquet", samples=stray)
    assert not (tmp_path / "o.parquet").exists()


def test_an_export_replaces_the_files_of_the_one_before(lake, tmp_path):
    out = tmp_path / "dpo"
    export(lake, "dpo", out)
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    export(lake, "dpo", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    state = next(r["state_id"] for r in lake.rows("dataset_pairs") if r["split"] == "train")
    one = tmp_path / "one.jsonl"
    one.write_text(json.dumps({"state_id": state, "student": "m", "action": {"text": "No."}}))
    export(lake, "dpo", out, samples=one)
    assert [path.name for path in out.iterdir()] == ["train.parquet"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return done.value.code, capsys.readouterr()


def test_the_command(lake, tmp_path, capsys):
    out = tmp_path / "x.parquet"
    code, said = run(
        capsys, "export", "--format", "kto", "--out", str(out), "--lake", lake.url, "--json"
    )
    report = json.loads(said.out)
    assert code == 0
    assert report["rows"] == 2 * len(lake.rows("dataset_pairs"))
    assert report["files"] == {str(out): report["rows"]}
    for arguments, message in (
        (("--format", "ppo", "--out", str(out)), "not one of dpo, kto, kto_git, sft, sdpo"),
        (("--format", "sft", "--out", str(out), "--samples", "x"), "--samples"),
        (("--format", "dpo", "--out", str(out), "--lake", str(tmp_path / "no")), "is not a lake"),
        (("--format", "dpo", "--out", str(out / "x.parquet")), "--out"),
    ):
        lake_option = () if "--lake" in arguments else ("--lake", lake.url)
        code, said = run(capsys, "export", *arguments, *lake_option)
        assert code == 2
        assert message in said.err
        assert len(said.err.strip().splitlines()) == 1


def test_sharegpt_is_the_pairs_as_lines_with_a_description(lake, tmp_path):
    report = export(lake, "sharegpt", tmp_path / "out")
    pairs = {row["pair_id"]: row for row in lake.rows("dataset_pairs")}
    assert report.rows == len(pairs)
    assert not report.left_out
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert set(info) == {"pairs_train", "pairs_validation"}
    seen = set()
    for entry in info.values():
        assert (entry["formatting"], entry["ranking"]) == ("sharegpt", True)
        for line in (tmp_path / "out" / entry["file_name"]).read_text().splitlines():
            row = json.loads(line)
            seen.add(row["pair_id"])
            assert row[entry["columns"]["chosen"]] != row[entry["columns"]["rejected"]]
            assert row["split"] == pairs[row["pair_id"]]["split"]
            first = pairs[row["pair_id"]]["prompt"][0]
            assert row[entry["columns"]["system"]] == first["content"]
    assert seen == set(pairs)
    one = export(lake, "sharegpt", tmp_path / "all.jsonl")
    assert one.files == {str(tmp_path / "all.jsonl"): len(pairs)}


def test_a_failed_export_leaves_the_old_files_and_nothing_else(lake, tmp_path):
    out = tmp_path / "out"
    export(lake, "dpo", out)
    before = {path: path.read_bytes() for path in out.iterdir()}

    def fails(row):
        raise RuntimeError(row["pair_id"])

    with pytest.raises(RuntimeError):
        export(lake, "dpo", out, shorten=fails)
    with pytest.raises(InputError, match=r"nothing to export: \d+ too_long"):
        export(lake, "dpo", out, shorten=lambda row: (row, "too_long"))
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("form", ["dpo", "kto", "sft", "sdpo"])
def test_rows_are_made_as_they_are_written(lake, tmp_path, form, monkeypatch):
    """A file is begun before the last row is read: rows are not collected first."""
    module: Any = sys.modules["composer_pipeline.exporting.columns"]
    held, most = 0, 0

    class Counted(TableFile):
        def add(self, row):
            nonlocal held
            held -= 1
            super().add(row)

    def counted(rows, *rest):
        nonlocal held, most
        for row in kept(rows, *rest):
            held += 1
            most = max(most, held)
            yield row

    kept = module._kept
    monkeypatch.setattr(module, "TableFile", Counted)
    monkeypatch.setattr(module, "_kept", counted)
    export(lake, form, tmp_path / "out")
    assert (held, most) == (0, 1)
