"""The stages: pairs and hints of the bundled sessions, from states and replies to rows."""

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import to_chat, wire_messages
from composer_pipeline.chat.tools import Toolset
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization.stage import NO_RECIPE, normalize
from composer_pipeline.preferences.eligibility import Reply, read_replies, usable_replies
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.preferences.pairs import build_pairs, pair_row
from composer_pipeline.preferences.rules import GATES, PreferenceRules
from composer_pipeline.preferences.vote import vote
from composer_pipeline.states.load import load_states
from composer_pipeline.testing.personas import Script
from composer_pipeline.testing.samples import answers, sample_sessions_dir
from composer_pipeline.traces.ingest import ingest

NOW = datetime(2026, 11, 20, tzinfo=UTC)
PERSONAS = {"careful": "alpha", "steady": "beta", "contrarian": "gamma", "flaky": "delta"}


def reply(state_id, session_id, family, action, **more):
    return {
        "state_id": state_id,
        "session_id": session_id,
        "family": family,
        "request_hash": f"{family}-{state_id}",
        "model": f"m/{family}",
        "status": "ok",
        "action": action.to_json(),
        "completion_tokens": 10,
        "cost_picodollars": 100,
        "simulated": True,
        "created_at": NOW,
        **more,
    }


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A lake with the bundled sessions and the replies of four simulated families."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    ingest(lake, [sample_sessions_dir()])
    states = list(load_states(lake))
    script = Script.from_states(states, answers())
    for persona, family in PERSONAS.items():
        by_day: dict[str, list] = {}
        for state in states:
            body = {"messages": wire_messages(to_chat(state).messages)}
            row = reply(
                state.state_id, state.session_id, family, script.decide(cast(Any, persona), body)
            )
            by_day.setdefault(state.day, []).append(row)
        for day, rows in by_day.items():
            lake.write("replies", rows, day=day, teacher=f"t-{family}")
    return lake


@pytest.fixture(scope="module")
def reports(lake):
    return build_pairs(lake).by_day


def test_sample_sessions_give_pairs_on_every_day(lake, reports):
    rows = lake.rows("pairs")
    assert len(rows) == sum(report.pairs for report in reports.values()) >= 40
    assert min(report.pairs for report in reports.values()) >= 5
    assert {row["tool_chosen"] for row in rows} >= {"Bash", "Read", "Edit", "Grep", "Glob", "Write"}
    assert {row["tier"] for row in rows} <= {"gold", "silver", "fixup", "recovery"}
    for report in reports.values():
        assert report.states == report.voted >= report.consensus >= report.confirmed
        assert report.consensus == report.confirmed + report.by_source["teachers"]
        assert 0 < report.confirmed < report.consensus
        assert sum(report.by_tier.values()) == sum(report.by_tool.values()) == report.pairs
        assert sum(report.by_source.values()) == report.pairs
    # Four families vote on every state; where an answer exists, it wins in nearly all cases.
    assert len(rows) >= 0.9 * sum(s.message_id in answers() for s in load_states(lake))


def test_a_hint_at_a_culprit_carries_the_fixed_edit(lake, reports):
    pairs = lake.rows("pairs")
    fixed = {row["state_id"]: row["chosen"] for row in pairs if row["source"] == "fixup"}
    build_hints(lake)
    normalize(lake, NO_RECIPE)
    build_dataset(lake, rules=PreferenceRules(accept=GATES))
    told = {row["state_id"]: row["recovery"] for row in lake.rows("dataset_hints")}
    assert fixed
    assert {name: told[name] for name in fixed} == fixed


def test_rows_are_pairs(lake, reports):
    rows = lake.rows("pairs")
    assert len({row["pair_id"] for row in rows}) == len(rows)
    assert len({row["state_id"] for row in rows}) == len(rows)
    states = {state.state_id: state for state in load_states(lake)}
    for row in rows:
        assert row["chosen"] != row["rejected"]
        for side in ("chosen", "rejected"):
            (message,) = row[side]
            assert message["role"] == "assistant"
            assert not (message.get("tool_calls") and message["content"])
        assert row["prompt"][0]["role"] == "system"
        assert row["prompt"][-1]["role"] != "assistant"
        assert row["tools"]
        assert row["error_turn"] == (states[row["state_id"]].error_kind is not None)
        if row["source"] != "teachers":
            assert (row["n_agree"], row["chosen_families"]) == (0, [])
            assert row["verified_by"] in states
            continue
        assert row["n_agree"] >= 2
        assert row["agreement"] == row["n_agree"] / row["n_families"]
        assert row["simulated"] is True
        assert row["cost_picodollars"] == 400
        assert row["chosen_families"] == ["alpha", "beta"]
    ids = [row["pair_id"] for row in lake.rows("pairs", days=["2026-11-17"])]
    assert ids == sorted(ids)


def test_second_run_gives_the_same_bytes_and_progress(lake, reports):
    day = "2026-11-16"
    name = f"pairs/day={day}/part.parquet"
    before = lake.get_bytes(name)
    calls = []
    again = build_pairs(lake, days=[day], progress=lambda *step: calls.append(step))
    assert again.by_day == {day: reports[day]}
    assert lake.get_bytes(name) == before
    assert calls[-1][1:] == (reports[day].states, reports[day].states)


def test_the_report_is_the_sum_of_its_days(lake, reports):
    days = sorted(reports)[:2]
    found = build_pairs(lake, days=days).to_dict()
    assert sorted(found["by_day"]) == days
    for name in ("states", "voted", "consensus", "confirmed", "pairs"):
        assert found[name] == sum(getattr(reports[day], name) for day in days)
    assert sum(found["by_tier"].values()) == found["pairs"] > 0
    assert json.loads(json.dumps(found)) == found


def test_no_day_is_not_every_day(lake, tmp_path):
    empty = Lake(tmp_path)
    ingest(empty, [sample_sessions_dir()])
    assert build_pairs(empty, days=[]).states == build_hints(empty, days=[]).hints == 0
    assert not empty.days("votes")
    assert not empty.days("hints")
    assert lake.rows("pairs", days=[]) == list(load_states(lake, days=[])) == []


def test_day_without_replies_writes_an_empty_partition(lake, tmp_path):
    other = Lake(tmp_path)
    ingest(other, [sample_sessions_dir()])
    rules = PreferenceRules(own_pairs=False)
    report = build_pairs(other, days=["2026-11-16"], rules=rules)
    assert (report.pairs, report.voted, report.consensus) == (0, 0, 0)
    assert other.days("pairs") == ["2026-11-16"]


def test_only_the_newest_usable_reply_of_a_teacher_counts(tmp_path):
    lake = Lake(tmp_path)
    old, new = Action("old"), Action("new")
    rows = [
        reply("s", "x", "alpha", new, request_hash="1", created_at=NOW),
        reply("s", "x", "alpha", old, request_hash="2", created_at=NOW.replace(year=2025)),
        {**reply("s", "x", "alpha", old), "request_hash": "3", "status": "refused"},
        {**reply("s2", "x", "alpha", old), "action": None, "status": "unusable"},
    ]
    lake.write("replies", rows, day="2026-11-16", teacher="t")
    found = usable_replies(read_replies(lake, "2026-11-16"))
    assert {key: [r.action for r in value] for key, value in found.items()} == {"s": [new]}


def test_hints_of_the_sample_sessions(lake):
    report = build_hints(lake)
    rows = lake.rows("hints")
    assert len(rows) == report.hints == sum(day.hints for day in report.by_day.values()) >= 20
    leaked = [row["leakage"] for row in rows]
    assert report.mean_leakage == pytest.approx(sum(leaked) / len(leaked))
    assert set(report.by_source) == {"tool_error", "exit_code", "user_rejection", "user_correction"}
    assert all(0 <= row["leakage"] <= 1 and row["text"] and row["span_text"] for row in rows)
    assert not any("Sibling tool call" in row["text"] for row in rows)
    day = "2026-11-16"
    assert build_hints(lake, days=[day]).by_day == {day: report.by_day[day]}


# -- one pair ----------------------------------------------------------------------


def made_of(lake, *replies):
    """The row of a pair: a state of the bundled sessions, and what families say to it."""
    state = next(s for s in load_states(lake) if s.action.tool_calls and not s.error_kind)
    told = [
        Reply(f"t-{name}", name, f"m-{name}", action, training_terms=terms)
        for name, action, terms in replies
    ]
    outcome = vote(state, told)
    return state, pair_row(state, outcome, Toolset([], "registry@1"), 5)


FETCH = Action("", (ToolCall("WebFetch", {"url": "https://docs.test/a"}),))
LONG = Action("", (ToolCall("Skill", {"skill": "x" * 5000}),))


def test_the_length_ratio_is_chosen_to_rejected(lake):
    for chosen, longer in ((FETCH, False), (LONG, True)):
        _, row = made_of(lake, ("a", chosen, None), ("b", chosen, None))
        expected = len(json.dumps(row["chosen"])) / len(json.dumps(row["rejected"]))
        assert row["length_ratio"] == expected
        assert (row["length_ratio"] > 1) is longer


def test_the_terms_of_a_pair_are_the_loosest_of_all_its_voters(lake):
    loser = ("c", LONG, "not enforced")
    _, row = made_of(lake, ("a", FETCH, "enforced"), ("b", FETCH, "declared"), loser)
    assert row["training_terms"] == "not enforced"
    _, row = made_of(lake, ("a", FETCH, "enforced"), ("b", FETCH, "declared"))
    assert row["training_terms"] == "declared"


def test_a_run_without_drops_leaves_none_of_the_run_before(lake):
    day = "2026-11-17"
    before = build_pairs(lake, days=[day])
    try:
        capped = build_pairs(lake, days=[day], rules=PreferenceRules(max_pairs_per_session=1))
        assert capped.drops["session_cap"] == before.pairs - capped.pairs > 0
        assert len(lake.rows("drops", days=[day], stage="pairs")) == sum(capped.drops.values())
    finally:
        assert build_pairs(lake, days=[day]) == before
    assert lake.rows("drops", days=[day], stage="pairs") == []
