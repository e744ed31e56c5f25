"""`pair`: why a state became a pair, or why it did not."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.explain import explain
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import PreferenceRules
from tests.fixtures.lake_states import DAY, write_session

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def do(name, **args):
    return Action("", (ToolCall(name, args),))


AGENT = do("Bash", command="cat src/app.py")
READ, GREP, GLOB = (
    do("Read", file_path="src/app.py"),
    do("Grep", pattern="def main"),
    do("Glob", pattern="**/*.py"),
)
EDIT = do("Edit", file_path="a.py", old_string="x = 1\n" * 40, new_string="x = 2\n" * 40)
BETTER = do("Edit", file_path="a.py", old_string="x = 1\n" * 40, new_string="x = 3\n" * 40)
FAMILIES = {"one": "alpha", "two": "beta", "three": "gamma", "other-one": "alpha", "me": "claude"}

#: state -> (the agent's action, teacher -> its reply, or the status and detail of a bad one).
CASES = {
    "pair": (AGENT, {"one": READ, "two": READ, "three": AGENT, "other-one": GLOB, "me": AGENT}),
    "edit": (EDIT, {"one": BETTER, "two": BETTER}),
    "no_reply": (AGENT, {}),
    "no_usable_reply": (
        AGENT,
        {"one": ("unusable", "arguments of Read are not JSON"), "two": ("refused", "secret")},
    ),
    "no_voter": (AGENT, {"me": READ}),
    "one_family": (AGENT, {"one": READ, "other-one": READ, "two": ("unusable", "no choices")}),
    "no_quorum": (AGENT, {"one": READ, "two": GREP, "three": GLOB}),
    "agrees_with_student": (AGENT, {"one": AGENT, "two": AGENT}),
    "style": (
        do("Read", file_path="a.py"),
        dict.fromkeys(("one", "two"), do("Read", file_path="a.py", offset=9000, limit=5)),
    ),
    "too_close": (
        do("WebFetch", url="https://a.example/x", prompt="p"),
        {
            "one": do("WebFetch", url="https://b.example/1", prompt="p"),
            "two": do("WebFetch", url="https://b.example/2", prompt="p"),
        },
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A lake with one state for each case, and the state of each."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    ids = write_session(lake, "s1", [(action, "done") for action, _ in CASES.values()])
    state_of = dict(zip(CASES, ids, strict=True))
    rows: dict[str, list] = {}
    for case, (_, replies) in CASES.items():
        for teacher, reply in replies.items():
            ok = isinstance(reply, Action)
            status, detail = ("ok", "") if ok else reply
            rows.setdefault(teacher, []).append(
                {
                    "state_id": state_of[case], "session_id": "s1", "family": FAMILIES[teacher],
                    "request_hash": f"{teacher}-{case}", "model": f"m/{teacher}",
                    "status": status, "detail": detail, "action": reply.to_json() if ok else None,
                    "cost_picodollars": 1_500_000_000, "simulated": True, "created_at": NOW,
                }
            )  # fmt: skip
    # An earlier reply of a teacher, with the same action: only the newer one counts.
    first = rows["two"][0]
    rows["two"].append({**first, "request_hash": "old", "created_at": NOW.replace(year=2025)})
    for teacher, mine in rows.items():
        lake.write("replies", mine, day=DAY, teacher=teacher)
    build_pairs(lake, days=[DAY])
    return lake, state_of


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("pair", "edit")])
def test_why_a_state_became_no_pair(made, case):
    lake, state_of = made
    facts = explain(lake, state_of[case])
    assert facts["reason"] == case
    assert facts["pair_id"] is None
    assert facts["fate"] == {}
    votes = {row["state_id"]: row["reason"] for row in lake.rows("votes")}
    assert votes[state_of[case]] == case
    assert facts["why"].endswith(".")
    assert len(facts["teachers"]) == len(CASES[case][1])


def test_unusable_replies_are_named_with_their_reason(made):
    lake, state_of = made
    facts = explain(lake, state_of["no_usable_reply"])
    bad = {entry["teacher"]: (entry["status"], entry["detail"]) for entry in facts["teachers"]}
    assert bad == CASES["no_usable_reply"][1]
    assert "1 refused, 1 unusable" in facts["why"]
    row = next(r for r in lake.rows("votes") if r["state_id"] == facts["state_id"])
    assert row["unusable"] == [
        "one: unusable: arguments of Read are not JSON", "two: refused: secret",
    ]  # fmt: skip


def test_a_pair_with_every_teacher(made):
    lake, state_of = made
    (pair_id,) = [r["pair_id"] for r in lake.rows("pairs") if r["state_id"] == state_of["pair"]]
    facts = explain(lake, pair_id[:20])
    assert facts == explain(lake, state_of["pair"])
    assert (facts["reason"], facts["tier"]) == ("pair", "gold")
    assert "2 of 3 families (one, two)" in facts["why"]
    assert facts["cost_usd"] == "0.009"
    assert facts["fate"] == {"pairs": "kept, weight 1"}
    (old,) = [entry for entry in facts["teachers"] if not entry["usable"]]
    assert (old["teacher"], old["status"]) == ("two", "older")
    facts["teachers"].remove(old)
    by_name = {entry["teacher"]: entry for entry in facts["teachers"]}
    assert [by_name[name]["votes"] for name in FAMILIES] == [True, True, True, False, False]
    assert [by_name[name]["wins"] for name in FAMILIES] == [True, True, False, False, False]
    assert by_name["me"]["control"]
    assert by_name["three"]["level_to_agent"]["level"] == "L0"
    assert by_name["three"]["level_to_winner"]["level"] == "none"
    assert by_name["one"]["level_to_winner"]["level"] == "L0"
    assert sum(entry["spokesman"] for entry in facts["teachers"]) == 1
    assert json.loads(json.dumps(facts)) == facts
    assert facts["n_replies"] == 6


def test_the_fate_of_a_pair_is_told(made):
    lake, state_of = made
    try:
        build_pairs(lake, days=[DAY], rules=PreferenceRules(max_pairs_per_session=1))
        fates = [explain(lake, state_of[case])["fate"] for case in ("pair", "edit")]
    finally:
        build_pairs(lake, days=[DAY])
    assert {fate["pairs"] for fate in fates} == {
        "kept, weight 1", "dropped by session_cap on session_id, rank 2 (bound <= 1)",
    }  # fmt: skip


def test_the_split_of_a_pair_is_told(made):
    lake, state_of = made
    row = next(r for r in lake.rows("pairs") if r["state_id"] == state_of["pair"])
    kept = {k: v for k, v in row.items() if k in TABLES["dataset_pairs"].schema.names}
    path = Path(lake.path("dataset_pairs", split="validation"))
    lake.write("dataset_pairs", [kept], split="validation")
    try:
        fate = explain(lake, state_of["pair"])["fate"]
    finally:
        path.unlink()
    assert fate == {"pairs": "kept, weight 1", "dataset": "kept, split validation"}


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return done.value.code, capsys.readouterr()


@pytest.mark.parametrize(
    ("case", "width"), [*((case, 80) for case in CASES), ("pair", 160), ("edit", 160)]
)
def test_every_case_fits_a_terminal(made, capsys, monkeypatch, width, case):
    lake, state_of = made
    monkeypatch.setenv("COLUMNS", str(width))
    code, said = run(capsys, "pair", state_of[case], "--lake", lake.url)
    assert code == 0
    assert max(map(len, said.out.splitlines())) <= width
    text = " ".join(said.out.split())
    assert explain(lake, state_of[case])["why"].split(":")[0] in text
    for teacher in CASES[case][1]:
        assert teacher in text
    if case == "pair":
        order = ["rejected: the agent", "chosen: one", "every reply", "control"]
        places = [said.out.index(part) for part in order]
        assert places[0] < places[2]
        assert places == sorted(places)
    if case == "edit":
        assert "diff of Edit.new_string" in text
        assert "-x = 2" in text
        assert "+x = 3" in text
        assert "diff of Edit.old_string" not in text


def test_json_and_bad_ids(made, capsys):
    lake, state_of = made
    code, said = run(capsys, "pair", state_of["pair"], "--json", "--lake", lake.url)
    assert code == 0
    assert json.loads(said.out) == explain(lake, state_of["pair"])
    for bad, message in (("", "no pair or state"), ("zzz", "no pair or state 'zzz'")):
        code, said = run(capsys, "pair", bad, "--lake", lake.url)
        assert code == 2
        assert message in said.err
    ids = [*state_of.values(), *(r["pair_id"] for r in lake.rows("pairs"))]
    first = {one[0] for one in ids if sum(other[0] == one[0] for other in ids) > 1}
    assert first
    code, said = run(capsys, "pair", min(first), "--lake", lake.url)
    assert code == 2
    assert "ambiguous" in said.err


def test_statistics_on_a_terminal_and_for_machines(made, tmp_path, capsys):
    lake, _ = made
    code, said = run(capsys, "statistics", "--json", "--lake", lake.url)
    rows = json.loads(said.out)["statistics"]
    verdicts = {v["figure"]: v["word"] for v in json.loads(said.out)["verdicts"]}
    assert verdicts["told apart by style"] == "not measured"
    assert code == 0
    by_name = {(r["statistic"], r["a"]): r for r in rows}
    assert by_name["states_by_reason", "pair"]["value"] == 2
    assert by_name["separability_auc", ""]["note"] == "not measured: 2 pairs, fewer than 50"
    assert by_name["excess_disagreement", ""]["value"] is not None
    code, said = run(capsys, "statistics", "--lake", lake.url)
    assert code == 0
    assert "teachers' agreement" in said.out
    assert "krippendorff_alpha" not in said.out
    _, said = run(capsys, "statistics", "--verbose", "--lake", lake.url)
    assert "krippendorff_alpha" in said.out
    code, said = run(capsys, "statistics", "--lake", str(tmp_path))
    assert code == 2
    assert "is not a lake" in said.err
