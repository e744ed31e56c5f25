"""What rows of the dataset say to a person, in numbers, and in windows."""

import json
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import action_text
from composer_pipeline.dataset import build
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.dataset.manifest import read_build
from composer_pipeline.dataset.rows import Digests, task_of, task_of_messages
from composer_pipeline.lake.schema import SCHEMA_VERSION, TABLES
from composer_pipeline.lake.store import Lake
from tests.publishing.test_dataset import DAY, add_session, normalise, plain


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = Lake(tmp_path_factory.mktemp("made") / "lake")
    for name in ("s0", "s1", "s2"):
        add_session(lake, name, DAY, project="/home/user/secret-name")
    for teacher, usd in (("one", 2), ("two", 3)):
        rows = plain(lake, "replies", teacher=teacher, day=DAY)
        told = {"cost_picodollars": usd * 10**9, "provider": "p", "finish_reason": "stop",
                "prompt_tokens": 7, "completion_tokens": 5, "latency_ms": 12.5}  # fmt: skip
        lake.write("replies", [row | told for row in rows], teacher=teacher, day=DAY)
    normalise(lake, DAY)
    return Path(lake.url)


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    return Lake(shutil.copytree(made, tmp_path / "lake"))


def test_a_person_reads_the_task_and_the_actions_first(lake: Lake) -> None:
    build_dataset(lake)
    names = TABLES["dataset_pairs"].schema.names
    assert names[:7] == [
        "task", "chosen_text", "rejected_text", "prompt", "chosen", "rejected", "tools",
    ]  # fmt: skip
    assert names[-5:] == ["state_id", "session_id", "group_id", "agent", "pair_id"]
    row = next(r for r in lake.rows("dataset_pairs") if r["session_id"] == "s1")
    assert row["task"] == "Do s1."
    assert row["chosen_text"].startswith("Bash\n  command: cat s1")
    assert row["rejected_text"] in ("Bash\n  command: ls", "Bash\n  command: pytest")
    assert row["cost_usd"] == pytest.approx(0.005)
    assert (row["schema_version"], row["day"]) == (SCHEMA_VERSION, DAY)
    assert (row["prompt_tokens"], row["chosen_tokens"]) == (None, None)
    for table in CONFIGS.values():
        rows = lake.rows(table)
        assert "secret-name" not in str([r["repository"] for r in rows])
        assert len({r["repository"] for r in rows} - {None}) <= 1
        assert {r["schema_version"] for r in rows} <= {SCHEMA_VERSION}
    assert read_build(lake).schema_version == SCHEMA_VERSION


def test_the_consensus_is_a_completion_and_each_reply_a_row(lake: Lake) -> None:
    build_dataset(lake)
    groups = {r["state_id"]: r for r in lake.rows("dataset_groups")}
    for row in lake.rows("dataset_sft"):
        group = groups.pop(row["state_id"])
        assert (row["completion"], row["prompt"]) == (group["consensus"], group["prompt"])
        assert row["completion_text"] == group["consensus_text"] == action_text(row["completion"])
        assert row["agrees_with_agent"] is False
        assert row["models"] == ["m/one", "m/two"]
        assert (row["licenses"], row["terms"]) == (["MIT"] * 2, ["enforced"] * 2)
        assert row["cost_usd"] == pytest.approx(0.005)
    assert groups == {}
    replies = lake.rows("dataset_replies")
    assert len(replies) == 12
    one = next(r for r in replies if (r["session_id"], r["teacher"]) == ("s2", "one"))
    assert (one["task"], one["provider"], one["finish_reason"]) == ("Do s2.", "p", "stop")
    assert (one["prompt_tokens"], one["completion_tokens"], one["latency_ms"]) == (7, 5, 12.5)
    assert (one["license"], one["terms"], one["cost_usd"]) == ("MIT", "enforced", 0.002)
    assert one["answer_text"] == action_text(one["answer"])


@pytest.mark.parametrize("newest", ["a", "z"])
def test_of_two_answers_of_a_teacher_the_newest_is_published(lake: Lake, newest: str) -> None:
    """In whichever order they are stored."""
    was = plain(lake, "replies", teacher="one", day=DAY)
    first = {"request_hash": "m", "created_at": datetime(2026, 11, 16, tzinfo=UTC)}
    later = {"request_hash": newest, "created_at": datetime(2026, 11, 17, tzinfo=UTC)}
    rows = [row | first | {"latency_ms": 1.0} for row in was]
    again = [row | later | {"latency_ms": 2.0} for row in was]
    both = again + rows if newest == "a" else rows + again
    lake.write("replies", both, teacher="one", day=DAY)
    build_dataset(lake)
    found = [r for r in lake.rows("dataset_replies") if r["teacher"] == "one"]
    assert [row["latency_ms"] for row in found] == [2.0] * 6


def test_drops_of_every_stage_are_rows(lake: Lake) -> None:
    pair = plain(lake, "normalized_pairs")[0]
    lake.write("normalized_pairs", [{**pair, "rejected": pair["chosen"]}], day=DAY)
    drop = {"pair_id": "p", "state_id": pair["state_id"], "step": "2:f", "op": "f", "field": "x"}
    other = {**drop, "state_id": "gone"}
    lake.write("drops", [drop, other], stage="normalize", day=DAY)
    build_dataset(lake)
    found = {(r["stage"], r["op"]): r for r in lake.rows("dataset_drops")}
    assert found.keys() == {("normalize", "f"), ("dataset", "chosen_equals_rejected")}
    assert {r["session_id"] for r in found.values()} == {pair["session_id"]}
    build_dataset(lake)
    assert len(lake.rows("dataset_drops")) == 2, "its own rows are not counted again"


class Cutter:
    """Keeps the last message of a prompt; a prompt of three messages cannot be cut."""

    chat_template = "template"

    def tokens(self, texts: Iterable[str]) -> int:
        return sum(map(len, texts))

    def cut(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        if row["prompt"][-1]["role"] == "tool" and "s2" in str(row["prompt"]):
            return {}, "prompt does not fit"
        return {**row, "prompt": row["prompt"][-1:]}, ""


def test_pairs_are_cut_to_a_window_and_what_cannot_be_is_in_the_ledger(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def cutter(name: str) -> Cutter:
        asked.append(name)
        return Cutter()

    monkeypatch.setattr(build, "_cutter", cutter)
    report = build_dataset(lake, tokenizer="some/model", validation_share=0.0)
    assert asked == ["some/model"]
    assert report.drops == {"window": 1}
    pairs = {r["pair_id"]: r for r in lake.rows("dataset_pairs")}
    cut = {r["pair_id"]: r for r in lake.rows("dataset_pairs_8k")}
    (drop,) = lake.rows("drops", stage="dataset")
    assert pairs.keys() - cut.keys() == {drop["pair_id"]}
    assert (drop["step"], drop["value"]) == ("4:window:dataset_pairs_8k", "prompt does not fit")
    for name, row in cut.items():
        assert row["prompt"] == pairs[name]["prompt"][-1:]
        assert row["task"] == pairs[name]["task"]
        texts = [json.dumps(m, ensure_ascii=False, separators=(",", ":")) for m in row["prompt"]]
        tools = [json.dumps(t, ensure_ascii=False, separators=(",", ":")) for t in row["tools"]]
        assert row["prompt_tokens"] == sum(map(len, texts + tools))
        assert pairs[name]["prompt_tokens"] > row["prompt_tokens"]
    figures = read_build(lake).figures
    assert (figures["tokenizer"], figures["chat_template"]) == ("some/model", "template")


def test_a_pair_whose_sides_are_equal_in_the_templates_form_has_no_window(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template may leave out what tells the sides apart; such a pair teaches nothing."""

    class Bare(Cutter):
        def cut(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
            said = {**row["chosen"][0], "tool_calls": [], "content": "Next."}
            bare = {"chosen": [said], "rejected": [said]} if "s2" in str(row["prompt"]) else {}
            return {**row, **bare}, ""

    monkeypatch.setattr(build, "_cutter", lambda _: Bare())
    build_dataset(lake, tokenizer="some/model")
    pairs = {r["pair_id"]: r["session_id"] for r in lake.rows("dataset_pairs")}
    left = {r["session_id"] for r in lake.rows("dataset_pairs_8k")}
    assert (set(pairs.values()), left) == ({"s0", "s1", "s2"}, {"s0", "s1"})
    drops = lake.rows("drops", stage="dataset")
    assert {pairs[row["pair_id"]] for row in drops} == {"s2"}
    assert {row["value"] for row in drops} == {"both sides are equal in this form"}


def test_a_pair_that_is_left_out_has_no_window_either(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_cutter", lambda _: Cutter())
    rows = plain(lake, "normalized_pairs")
    fits = next(row for row in rows if row["session_id"] == "s0")
    lake.write("normalized_pairs", [*rows, {**fits, "pair_id": "repeat"}], day=DAY)
    build_dataset(lake, tokenizer="some/model")
    assert "repeat" not in {r["pair_id"] for r in lake.rows("dataset_pairs_8k")}
    steps = {r["step"] for r in lake.rows("drops", stage="dataset") if r["pair_id"] == "repeat"}
    assert steps == {"1:duplicate"}


def test_tasks_are_the_users_first_words_without_reminders() -> None:
    system = {"role": "system", "content": "Be good."}
    reminder = "<system-reminder>\nlong\n</system-reminder>\n"
    said = [system, {"role": "user", "content": reminder}, {"role": "user", "content": "a" * 3000}]
    assert task_of([json.dumps(m) for m in said]) == "a" * 2000
    assert task_of([json.dumps(system)]) == ""
    blocks = [{"type": "tool_result", "content": "x"}, {"type": "text", "text": f"{reminder}Go."}]
    assert task_of_messages([{"role": "user", "content": blocks}]) == "Go."
    assert task_of_messages([{"role": "user", "content": reminder}]) == ""


def test_an_action_in_words() -> None:
    call = {"function": {"name": "Edit", "arguments": {"file_path": "a.py", "all": True}}}
    message = {"role": "assistant", "content": "I see.", "tool_calls": [call, call]}
    once = "Edit\n  file_path: a.py\n  all: true"
    assert action_text([message]) == f"I see.\n{once}\n{once}"
    assert action_text([json.dumps(message)]) == action_text([message])


def test_prompts_are_equal_whatever_the_order_of_their_keys() -> None:
    """One prompt of two writers is in one split."""
    one, other = (
        '{"role":"user","content":{"a":1,"b":2}}',
        '{"content":{"b":2,"a":1},"role":"user"}',
    )
    assert Digests().of_prompt([one, one]) == Digests().of_prompt([other, one])
    assert Digests().of_prompt([one]) != Digests().of_prompt([one.replace("1", "3")])
