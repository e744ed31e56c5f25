"""The training dataset, from states, replies and normalised pairs in a lake."""

import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.dataset import select
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.splits import SessionKey
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import PreferenceRules
from tests.fixtures.lake_states import write_session

DAY, NEXT = "2026-11-16", "2026-11-17"
TABLES = ("dataset_pairs", "dataset_groups", "dataset_hints", "dataset_successes")


def bash(command: str) -> Action:
    return Action("Next.", (ToolCall("Bash", {"command": command}),))


def plain(lake: Lake, table: str, **keys: str) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if k not in ("day", "teacher")}
        for row in lake.rows(table, **keys)
    ]


def add_session(
    lake: Lake,
    name: str,
    day: str,
    *,
    group: str = "",
    prompt: str = "",
    project: str = "/home/user/shop",
    listing: str = "a.py",
) -> None:
    """A session of two states; both get a consensus, the second is an error turn."""
    ids = write_session(
        lake,
        name,
        [(bash("ls"), listing), (bash("pytest"), "no module named pytest")],
        day=day,
        prompt=prompt or f"Do {name}.",
        project=project,
        error_turns=[1],
    )
    first = datetime.fromisoformat(f"{day}T09:00:00").replace(tzinfo=UTC)
    session = {"session_id": name, "agent_id": "", "path": name, "first_ts": first}
    session |= {"agent": "codex", "project": project, "first_prompt": prompt or f"Do {name}."}
    rows = plain(lake, "sessions", day=day)
    lake.write("sessions", [*rows, {**session, "group_id": group or f"g-{name}"}], day=day)
    for teacher, family in (("one", "f1"), ("two", "f2")):
        old = plain(lake, "replies", teacher=teacher, day=day)
        new = [
            {
                "state_id": state_id,
                "session_id": name,
                "family": family,
                "model": f"m/{teacher}",
                "status": "ok",
                "action": bash(f"cat {name}{i}.py").to_json(),
                "request_hash": f"{name}{i}",
                "simulated": True,
                "licence": "MIT",
                "training_terms": "enforced",
            }
            for i, state_id in enumerate(ids)
        ]
        lake.write("replies", [*old, *new], teacher=teacher, day=day)
    old = plain(lake, "hints", day=day)
    hint = {
        "state_id": ids[1],
        "session_id": name,
        "source": "tool_error",
        "error_kind": "command_failed",
        "text": "There is no pytest; use unittest.",
        "span_call": 0,
        "span_text": "{}",
        "leakage": 0.0,
    }
    lake.write("hints", [*old, hint], day=day)


def normalise(lake: Lake, *days: str) -> None:
    for day in days:
        build_pairs(lake, days=[day])
        rows = [{**row, "recipe": "r@1"} for row in plain(lake, "pairs", day=day)]
        lake.write("normalized_pairs", rows, day=day)


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of eight sessions, to be copied: making it takes longer than most of the tests."""
    lake = Lake(tmp_path_factory.mktemp("eight"))
    for i in range(8):
        add_session(lake, f"s{i}", DAY)
    normalise(lake, DAY)
    return Path(lake.url)


@pytest.fixture
def lake(eight: Path, tmp_path: Path) -> Lake:
    return Lake(shutil.copytree(eight, tmp_path / "lake"))


def placement(lake: Lake) -> dict[str, str]:
    return {row["session_id"]: row["split"] for name in TABLES for row in lake.rows(name)}


def test_what_is_built(lake: Lake) -> None:
    report = build_dataset(lake, validation_share=0.3)
    assert (report.rows, report.grpo_groups, report.hints, report.groups) == (16, 16, 8, 8)
    assert sum(report.splits.values()) == 16
    assert report.splits["validation"] > 0, "choose a share for which the fixture has both"
    assert report.splits["train"] > 0
    assert report.overlaps == {"group_id": 0, "session_id": 0, "prompt": 0}
    assert report.drops == {}
    assert report.warning == ""
    assert sum(report.by_tier.values()) == 16

    group = next(r for r in lake.rows("dataset_groups") if r["session_id"] == "s3")
    assert group["sources"] == ["agent", "one", "two"]
    commands = [m["tool_calls"][0]["function"]["arguments"] for m in group["candidates"]]
    assert commands[0] in ({"command": "ls"}, {"command": "pytest"})
    assert commands[1] == commands[2]
    assert group["consensus"] == [group["candidates"][1]]
    assert group["candidates"][0]["content"] == "", "actions are rendered alone"
    assert group["simulated"] is True
    assert group["group_id"] == "g-s3"

    assert {r["agent"] for table in TABLES for r in lake.rows(table)} == {"codex"}

    pairs = {r["state_id"]: r for r in lake.rows("dataset_pairs")}
    pair = pairs[group["state_id"]]
    assert (pair["prompt"], pair["tools"]) == (group["prompt"], group["tools"])
    assert pair["chosen"] == group["consensus"]
    assert pair["rejected"] == [group["candidates"][0]]
    assert (pair["day"], pair["group_id"], pair["recipe"]) == (DAY, "g-s3", "r@1")

    hint = next(r for r in lake.rows("dataset_hints") if r["session_id"] == "s3")
    assert hint["action"][0]["tool_calls"][0]["function"]["arguments"] == {"command": "pytest"}
    assert hint["hint"] == "There is no pytest; use unittest."
    assert hint["prompt"][-1]["role"] == "tool"
    assert hint["span_call"] == 0


def test_a_hint_has_the_agents_own_later_call_that_worked(lake: Lake) -> None:
    turns = [(bash("git push"), "no upstream"), (bash("git push -u origin main"), "done")]
    ids = write_session(lake, "r", [*turns, (bash("git log"), "")], day=DAY)
    states = plain(lake, "states", day=DAY)
    for row in states:
        if row["state_id"] == ids[0]:
            row["error_kind"] = "exit_code"
    lake.write("states", states, day=DAY)
    old = plain(lake, "hints", day=DAY)
    hint = {**old[0], "state_id": ids[0], "session_id": "r"}
    lake.write("hints", [*old, hint], day=DAY)
    first = datetime.fromisoformat(f"{DAY}T09:00:00").replace(tzinfo=UTC)
    session = {"session_id": "r", "agent_id": "", "path": "r", "first_ts": first, "group_id": "g-r"}
    lake.write("sessions", [*plain(lake, "sessions", day=DAY), session], day=DAY)
    build_dataset(lake)
    rows = {row["state_id"]: row["recovery"] for row in lake.rows("dataset_hints")}
    (message,) = rows.pop(ids[0])
    assert message["role"] == "assistant"
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"]["arguments"] == {
        "command": "git push -u origin main"
    }
    assert set(rows.values()) == {None}


def test_what_worked_and_no_teacher_decided_is_kept(lake: Lake) -> None:
    """Not what failed, was stopped, corrected or undone, nor text, nor what teachers decided."""
    turns = [(bash(f"step {n}"), "done") for n in range(7)]
    ids = write_session(lake, "r", [*turns, (Action("Finished."), "thanks")], day=DAY)
    against = ("error_kind", "followed_by_error", "followed_by_correction", "interrupted")
    states = {row["state_id"]: row for row in plain(lake, "states", day=DAY)}
    for state_id, column in zip(ids, (*against, "reverted"), strict=False):
        states[state_id][column] = "exit_code" if column == "error_kind" else True
    states[ids[5]]["tests_passed"] = False
    lake.write("states", list(states.values()), day=DAY)
    assert build_dataset(lake).successes == 1
    (row,) = lake.rows("dataset_successes")
    assert row["state_id"] == ids[6]
    assert row["action"][0]["tool_calls"][0]["function"]["arguments"] == {"command": "step 6"}
    assert row["prompt"][-1]["role"] == "tool"


def test_successes_crowd_out_neither_sessions_nor_votes(lake: Lake) -> None:
    for name in ("long", "longer"):
        write_session(lake, name, [(bash(f"{name} {n}"), "") for n in range(12)], day=DAY)
    build_dataset(lake)
    kept = lake.rows("dataset_successes")
    assert Counter(row["session_id"] for row in kept) == {"long": 8, "longer": 8}
    assert len(kept) == len(lake.rows("dataset_groups"))
    add_session(lake, "more", NEXT)
    normalise(lake, NEXT)
    write_session(lake, "third", [(bash(f"third {n}"), "") for n in range(12)], day=NEXT)
    assert build_dataset(lake).successes == len(lake.rows("dataset_groups")) == 18


def test_both_splits_of_every_table_are_written(lake: Lake) -> None:
    report = build_dataset(lake, validation_share=0.0)
    assert report.splits == {"train": 16, "validation": 0}
    for name in TABLES:
        assert lake.partitions(name) == [{"split": "train"}, {"split": "validation"}]


def test_building_twice_gives_the_same_bytes(lake: Lake, tmp_path: Path) -> None:
    build_dataset(lake)
    before = {p: p.read_bytes() for p in (tmp_path / "lake").rglob("part.parquet")}
    build_dataset(lake)
    assert {p: p.read_bytes() for p in (tmp_path / "lake").rglob("part.parquet")} == before


def test_new_data_move_no_old_session(lake: Lake) -> None:
    build_dataset(lake, validation_share=0.3)
    before = placement(lake)
    assert set(before.values()) == {"train", "validation"}
    for i in range(8):
        # Half of the new sessions resume an old one.
        add_session(lake, f"n{i}", NEXT, group=f"g-s{i}" if i % 2 else "")
    normalise(lake, NEXT)
    assert build_dataset(lake, validation_share=0.3).rows == 32
    after = placement(lake)
    assert {name: after[name] for name in before} == before
    for i in range(1, 8, 2):
        assert after[f"n{i}"] == after[f"s{i}"]


def test_sessions_with_an_identical_prompt_are_one_group(lake: Lake) -> None:
    for i in range(8):
        add_session(lake, f"copy{i}", NEXT, prompt=f"Do s{i}.")
    normalise(lake, NEXT)
    report = build_dataset(lake, validation_share=0.5)
    assert report.groups == 8
    where = placement(lake)
    assert all(where[f"copy{i}"] == where[f"s{i}"] for i in range(8))
    assert {r["group_id"] for r in lake.rows("dataset_pairs")} == {f"g-s{i}" for i in range(8)}


def test_repeats_across_days_and_equal_sides_go_to_the_ledger(lake: Lake) -> None:
    rows = plain(lake, "normalized_pairs")
    again = {**rows[0], "pair_id": "repeat"}
    equal = {**rows[1], "pair_id": "equal", "rejected": rows[1]["chosen"]}
    lake.write("normalized_pairs", [again, equal], day=NEXT)
    report = build_dataset(lake)
    assert report.rows == 16
    assert report.drops == {"chosen_equals_rejected": 1, "duplicate": 1}
    drops = {r["pair_id"]: r for r in lake.rows("drops", stage="dataset")}
    assert drops["repeat"]["bound"] == f"duplicate of {rows[0]['pair_id']}"
    assert drops["equal"]["day"] == NEXT
    lake.write("normalized_pairs", [], day=NEXT)
    build_dataset(lake)
    assert lake.rows("drops", stage="dataset") == [], "a rebuild leaves nothing stale"


def test_a_leak_between_splits_stops_the_build(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(8):
        add_session(lake, f"copy{i}", NEXT, prompt=f"Do s{i}.")
    normalise(lake, NEXT)

    def each_alone(keys: list[SessionKey], prompts: set[tuple[str, bytes]]) -> dict[str, str]:
        return {key.session_id: key.session_id for key in keys}

    monkeypatch.setattr(select, "groups", each_alone)
    with pytest.raises(ComposerError, match="value\\(s\\) of prompt are in both splits"):
        build_dataset(lake, validation_share=0.5)
    assert lake.partitions("dataset_pairs") == []
    assert not (Path(lake.url) / ".dataset-build").exists()


def test_an_empty_validation_split_is_warned_of(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "split_of", lambda *_: "train")
    assert build_dataset(lake).warning == (
        "0.0% of the pairs are in validation, where 20% was asked: a hash puts 0 of 8 groups of"
        " sessions there; add sessions, or ask for a larger share"
    )
    assert build_dataset(lake, validation_share=0.0).warning == ""


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_a_share_out_of_range(lake: Lake, share: float) -> None:
    with pytest.raises(InputError, match="validation_share"):
        build_dataset(lake, validation_share=share)


def test_five_groups_without_validation_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path / "lake")
    monkeypatch.setattr(select, "split_of", lambda *_: "train")
    for i in range(4):
        add_session(lake, f"s{i}", DAY)
    normalise(lake, DAY)
    assert build_dataset(lake).warning == ""
    add_session(lake, "s4", DAY)
    assert "a hash puts 0 of 5 groups of sessions there" in build_dataset(lake).warning


def test_pairs_that_differ_in_their_tools_are_two(lake: Lake) -> None:
    row = plain(lake, "normalized_pairs")[0]
    tools = [{"type": "function", "function": {"name": "Other", "parameters": {}}}]
    lake.write("normalized_pairs", [{**row, "pair_id": "other", "tools": tools}], day=NEXT)
    for teacher in ("one", "two"):
        lake.write("replies", plain(lake, "replies", teacher=teacher), teacher=teacher, day=NEXT)
    assert build_dataset(lake).drops == {}


def test_hints_of_a_day_without_replies_are_in_the_dataset(lake: Lake) -> None:
    add_session(lake, "late", NEXT)
    for teacher in ("one", "two"):
        Path(lake.path("replies", teacher=teacher, day=NEXT)).unlink()
    build_dataset(lake)
    assert "late" in {row["session_id"] for row in lake.rows("dataset_hints")}
    assert "late" not in {row["session_id"] for row in lake.rows("dataset_groups")}


def test_controls_are_not_trained_on_and_one_simulated_answer_is_told(lake: Lake) -> None:
    for teacher, changes in (
        ("two", {"simulated": False}),
        ("control", {"family": "claude", "control": True}),
    ):
        rows = plain(lake, "replies", teacher="two", day=DAY)
        lake.write("replies", [{**row, **changes} for row in rows], teacher=teacher, day=DAY)
    build_dataset(lake)
    groups = lake.rows("dataset_groups")
    assert {tuple(row["sources"]) for row in groups} == {("agent", "one", "two")}
    assert all(row["simulated"] for row in groups)


def test_drops_of_a_day_that_is_gone_go(lake: Lake) -> None:
    rows = plain(lake, "normalized_pairs")
    lake.write("normalized_pairs", [{**rows[0], "pair_id": "repeat"}], day=NEXT)
    build_dataset(lake)
    Path(lake.path("normalized_pairs", day=NEXT)).unlink()
    build_dataset(lake)
    assert lake.rows("drops", stage="dataset") == []


def test_a_session_without_a_time_names_no_group(lake: Lake) -> None:
    add_session(lake, "a0", DAY, prompt="Do s0.")
    rows = plain(lake, "sessions", day=DAY)
    lake.write(
        "sessions",
        [{**row, "first_ts": None} if row["session_id"] == "a0" else row for row in rows],
        day=DAY,
    )
    build_dataset(lake)
    assert "g-a0" not in {row["group_id"] for row in lake.rows("dataset_groups")}


def test_nothing_normalised_yet(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with pytest.raises(InputError, match="run normalize first"):
        build_dataset(lake)
    assert not (tmp_path / "lake").exists()
    lake.write("pairs", [], day=DAY)
    with pytest.raises(InputError, match="run normalize first"):
        build_dataset(lake)


def left_out(lake: Lake) -> dict[str, int]:
    """Rows of the ledger of this stage for contamination, by table."""
    rows = [row for row in lake.rows("drops", stage="dataset") if row["op"] == "contamination"]
    return dict(Counter(row["step"].split(":")[2] for row in rows))


FLAG = PreferenceRules.model_validate({"contamination": {"evidence": "flag"}})


def test_a_session_on_a_benchmark_is_in_no_table(lake: Lake) -> None:
    """Its pairs went long ago; its groups, hints and own successes go too, each said."""
    add_session(lake, "bench", DAY, prompt="Fix django__django-11099, please.")
    normalise(lake, DAY)
    lake.write("votes", [], day=DAY)  # a session that no teacher was asked about has none
    report = build_dataset(lake)
    assert "bench" not in placement(lake)
    assert {f"s{i}" for i in range(8)} <= placement(lake).keys()
    assert left_out(lake) == {
        "dataset_groups": 2, "dataset_sft": 2, "dataset_hints": 1, "dataset_replies": 4,
    }  # fmt: skip
    assert report.drops == {"contamination": 9}
    told = [(row["pair_id"], row["step"]) for row in lake.rows("drops", stage="dataset")]
    assert len(set(told)) == len(told)
    assert report.grpo_groups == len(lake.rows("dataset_groups")) == 16
    (why,) = {row["value"] for row in lake.rows("drops", stage="dataset")}
    assert why.startswith("instance django/django")
    build_dataset(lake, rules=FLAG)
    assert sum(row["session_id"] == "bench" for row in lake.rows("dataset_groups")) == 2
    assert left_out(lake) == {}


def test_pairs_made_under_milder_rules_go_as_well(lake: Lake) -> None:
    add_session(lake, "bench", DAY, prompt="Fix django__django-11099, please.")
    build_pairs(lake, days=[DAY], rules=FLAG)
    rows = [{**row, "recipe": "r@1"} for row in plain(lake, "pairs", day=DAY)]
    lake.write("normalized_pairs", rows, day=DAY)
    build_dataset(lake)
    assert left_out(lake)["dataset_pairs"] == 2
    assert "bench" not in placement(lake)


def test_evidence_of_one_day_holds_for_the_whole_session(lake: Lake) -> None:
    """Also where the vote alone has seen it, before a list of benchmarks became shorter."""
    add_session(lake, "two", DAY, prompt="Fix django__django-11099, please.")
    add_session(lake, "two", NEXT, prompt="Go on.")
    normalise(lake, DAY, NEXT)
    build_dataset(lake)
    assert "two" not in placement(lake)
    votes = plain(lake, "votes", day=NEXT)
    assert votes
    add_session(lake, "late", NEXT)
    normalise(lake, NEXT)
    build_dataset(lake)
    assert "late" in placement(lake)
    votes = [
        {**row, "contamination": ["remote a/b (X)"] if row["session_id"] == "late" else []}
        for row in plain(lake, "votes", day=NEXT)
    ]
    lake.write("votes", votes, day=NEXT)
    build_dataset(lake)
    assert "late" not in placement(lake)


def test_a_weaker_sign_of_a_later_day_forgets_no_stronger_one(lake: Lake) -> None:
    add_session(lake, "two", DAY, prompt="Fix django__django-11099, please.")
    add_session(lake, "two", NEXT, prompt="Go on.")
    states = [
        {**row, "project": "/home/user/django"} if row["session_id"] == "two" else row
        for row in plain(lake, "states", day=NEXT)
    ]
    lake.write("states", states, day=NEXT)
    normalise(lake, DAY, NEXT)
    build_dataset(lake)
    assert "two" not in placement(lake)


def test_a_folder_that_merely_has_the_name_is_flagged_and_stays(lake: Lake) -> None:
    write = {"contamination": {"by_name": "drop"}}
    project = "/home/user/django"
    add_session(lake, "named", DAY, prompt="See django/django.", project=project)
    add_session(lake, "alike", DAY, prompt="See our django.", project=project)
    normalise(lake, DAY)
    build_dataset(lake)
    assert {"named", "alike"} <= placement(lake).keys()
    build_dataset(lake, rules=PreferenceRules.model_validate(write))
    assert "named" not in placement(lake)
    assert "alike" in placement(lake)
