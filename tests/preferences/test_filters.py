"""The recipe's rules: caps, weights, benchmarks; and the sums that must come out."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.tools import Toolset
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.contamination import Benchmarks, contaminated_sessions, is_strong
from composer_pipeline.preferences.pairs import build_pairs, hindsight, one_style, select
from composer_pipeline.preferences.quality import leaks
from composer_pipeline.preferences.rules import Hindsight, PreferenceRules, bundled_benchmarks
from tests.fixtures.lake_states import DAY, write_session
from tests.fixtures.states import made_state
from tests.places import ROOT

NOW = datetime(2026, 11, 20, tzinfo=UTC)
KNOWN = Benchmarks({"django/django": "SWE-bench", "psf/requests": "SWE-bench"})


def state(**outcomes):
    names = (
        "followed_by_error", "followed_by_correction", "reverted", "tests_passed", "verdict",
        "caused_error",
    )  # fmt: skip
    return SimpleNamespace(**dict.fromkeys(names) | outcomes)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({}, ("unknown", 1.0, "")),
        ({"tests_passed": False}, ("unknown", 1.0, "")),
        ({"tests_passed": True}, ("student_ok", 0.5, "tests_passed")),
        ({"followed_by_error": True}, ("student_bad", 1.5, "followed_by_error")),
        (
            {"followed_by_error": True, "verdict": "mistake"},
            ("student_bad", 1.5, "followed_by_error"),
        ),
        ({"followed_by_error": True, "verdict": "revealed"}, ("unknown", 1.0, "")),
        ({"caused_error": "t", "tests_passed": True}, ("student_bad", 1.5, "caused_error")),
        ({"reverted": True, "tests_passed": True}, ("student_bad", 1.5, "reverted")),
        (
            {"followed_by_correction": True, "followed_by_error": True},
            ("student_bad", 1.5, "followed_by_correction"),
        ),
    ],
)
def test_hindsight(outcomes, expected):
    assert hindsight(state(**outcomes), Hindsight()) == expected


def candidate(number, session="s", **more):
    row = {
        "pair_id": f"p{number:03}", "state_id": f"t{number:03}", "session_id": session,
        "tier": "gold", "weight": 1.0, "margin": 0.5, "outcome": "unknown", "weight_reason": "",
    }  # fmt: skip
    return row | more


def test_a_cap_keeps_the_best_of_a_session_and_names_the_rest():
    rows = [candidate(n) for n in range(8)]
    rows += [candidate(8, tier="silver", weight=9.0), candidate(9, weight=1.5)]
    rows += [candidate(10, margin=0.9), candidate(11, "other")]
    rules = PreferenceRules(max_pairs_per_session=3)
    kept, drops = select(rows, {}, rules)
    ids = [row["pair_id"] for row in kept if row["session_id"] == "s"]
    assert ids[:2] == ["p009", "p010"]  # the heavier, then the wider margin; silver comes last
    assert len(ids) == 3
    assert "p011" in {row["pair_id"] for row in kept}
    assert {row["pair_id"] for row in kept} | {drop["pair_id"] for drop in drops} == {
        row["pair_id"] for row in rows
    }
    assert len(kept) + len(drops) == len(rows)
    assert {(d["op"], d["field"], d["bound"]) for d in drops} == {
        ("session_cap", "session_id", "<= 3")
    }
    again, _ = select(list(reversed(rows)), {}, rules)
    assert {row["pair_id"] for row in again} == {row["pair_id"] for row in kept}
    assert select(rows, {}, PreferenceRules(max_pairs_per_session=None))[1] == []


def test_a_weight_of_nothing_drops_the_pair():
    rows = [candidate(1, weight=0.0, outcome="student_ok", weight_reason="tests_passed")]
    kept, (drop,) = select(rows, {}, PreferenceRules())
    assert kept == []
    assert (drop["op"], drop["value"]) == ("hindsight", "tests_passed")


@pytest.mark.parametrize(
    ("evidence", "by_name", "dropped"),
    [
        (["instance django/django (SWE-bench)"], "flag", True),
        (["name django/django (SWE-bench)"], "flag", False),
        (["name django/django (SWE-bench)"], "drop", True),
        ([], "drop", False),
    ],
)
def test_contaminated_pairs_are_dropped_by_the_strength_of_the_evidence(evidence, by_name, dropped):
    rules = PreferenceRules.model_validate({"contamination": {"by_name": by_name}})
    kept, drops = select([candidate(1)], {"s": evidence}, rules)
    assert len(drops) == dropped
    assert len(kept) == 1 - dropped
    if dropped:
        assert drops[0]["op"] == "contamination"
        assert "django/django" in drops[0]["value"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("instance django__django-11099 of it", ["instance django/django (SWE-bench)"]),
        ("/testbed/Django__django-11099/x", ["instance django/django (SWE-bench)"]),
        ("origin\thttps://github.com/django/django.git (fetch)",
         ["remote django/django (SWE-bench)"]),
        ("origin\tgit@github.com:psf/requests.git (push)", ["remote psf/requests (SWE-bench)"]),
        ('[remote "origin"]\n\turl = https://github.com/psf/requests\n',
         ["remote psf/requests (SWE-bench)"]),
        ("git clone --depth 1 https://github.com/django/django /tmp/x",
         ["remote django/django (SWE-bench)"]),
        # A fork, another number scheme, a link in prose, a dependency: no evidence.
        ("origin https://github.com/mine/django.git", []),
        ("someone__else-12", []),
        ("__init__-1 and a__b__c", []),
        ("see https://github.com/django/django/issues/3", []),
        ("pip install git+https://github.com/psf/requests", []),
        ("django__django is great", []),
    ],
)  # fmt: skip
def test_evidence_in_text(text, expected):
    assert list(KNOWN.in_text(text)) == expected


@pytest.mark.parametrize(
    ("folder", "text", "expected"),
    [
        ("/home/user/code/Requests", "see psf/requests, line 3", ["name psf/requests (SWE-bench)"]),
        ("/home/user/django", "(Django/Django)", ["name django/django (SWE-bench)"]),
        ("/home/user/django", "pip install django", []),
        ("/home/user/django", "src/django/django and django/django/urls.py", []),
        ("/home/user/requests/src", "psf/requests", []),
        ("/home/user/work", "psf/requests", []),
        ("/srv/django__django-10097", "", ["instance django/django (SWE-bench)"]),
    ],
)
def test_a_folder_is_evidence_if_a_text_names_owner_and_repository(folder, text, expected):
    said = {"role": "user", "content": [{"type": "text", "text": text}]}
    states = [made_state(session_id="s", project=folder, cwd=folder, messages=[said])]
    found = contaminated_sessions(states, KNOWN).get("s", [])
    assert found == expected
    assert is_strong(found) == any("instance" in item for item in expected)


def test_a_session_is_contaminated_as_a_whole():
    early = made_state(session_id="a", project="/x", cwd="/x", messages=[])
    late = made_state(
        session_id="a", project="/x", cwd="/x",
        messages=[{"role": "user", "content": [{"type": "tool_result", "content":
                   [{"type": "text", "text": "fix django__django-1"}]}]}],
    )  # fmt: skip
    other = made_state(session_id="b", project="/x", cwd="/x", messages=[])
    found = contaminated_sessions([early, late, other], KNOWN)
    assert found == {"a": ["instance django/django (SWE-bench)"]}


def test_the_bundled_list_and_a_users_own(tmp_path):
    bundled = Benchmarks.load([bundled_benchmarks()])
    assert list(bundled.in_text("sympy__sympy-20590"))
    own = tmp_path / "own.yaml"
    own.write_text("benchmarks: [{name: Mine, repositories: [me/secret-eval]}]\n")
    (tmp_path / "rules.yaml").write_text("contamination: {files: [own.yaml]}\n")
    rules = PreferenceRules.load(tmp_path / "rules.yaml")
    loaded = Benchmarks.of_rules(rules)
    assert list(loaded.in_text("me__secret-eval-3")) == ["instance me/secret-eval (Mine)"]
    assert list(loaded.in_text("sympy__sympy-1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_pairs_per_session: 0", "max_pairs_per_session"),
        ("max_pairs: 3", "max_pairs: unknown field"),
        ("hindsight: {student_ok: -1}", "hindsight.student_ok"),
        ("separability: {max_auc: 0.2}", "separability.max_auc"),
        ("contamination: {evidence: maybe}", "contamination.evidence"),
        ("[1]", "must be a mapping"),
    ],
)
def test_a_bad_recipe_names_its_field(tmp_path, text, message):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"preference recipe .*rules\.yaml") as error:
        PreferenceRules.load(path)
    assert message in str(error.value)


def test_a_bad_list_of_benchmarks_names_itself(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("benchmarks: [{name: X, repositories: [no-owner]}]")
    with pytest.raises(InputError, match=r"benchmark list .*list\.yaml.*repositories"):
        Benchmarks.load([path])
    with pytest.raises(InputError, match=r"benchmark list .*missing\.yaml"):
        Benchmarks.load([tmp_path / "missing.yaml"])


def test_the_shipped_recipe_is_the_default():
    path = ROOT / "recipes" / "preferences" / "default.yaml"
    assert PreferenceRules.load(path) == PreferenceRules()


# -- the stage and its sums -------------------------------------------------------


def read(name):
    return Action("", (ToolCall("Read", {"file_path": name}),))


@pytest.fixture
def lake(tmp_path):
    """Six states in which two families prefer another file, of two sessions; one contaminated."""
    lake = Lake(tmp_path)
    ids = write_session(lake, "plain", [(read(f"/a{n}"), "x") for n in range(4)])
    ids += write_session(
        lake, "bench", [(read(f"/b{n}"), "django__django-11") for n in range(2)], prompt="Other"
    )
    for teacher in ("one", "two"):
        rows = [
            {
                "state_id": state_id, "session_id": "?", "family": teacher,
                "request_hash": f"{teacher}{state_id}", "model": f"m/{teacher}", "status": "ok",
                "action": Action("", (ToolCall("Grep", {"pattern": f"p{n}"}),)).to_json(),
                "cost_picodollars": 5, "simulated": True, "created_at": NOW,
            }
            for n, state_id in enumerate(ids)
        ]  # fmt: skip
        lake.write("replies", rows, day=DAY, teacher=teacher)
    return lake


def test_every_candidate_is_a_pair_or_a_drop(lake):
    report = build_pairs(lake, days=[DAY], rules=PreferenceRules(max_pairs_per_session=3))
    assert report.by_reason == {"pair": 6}
    assert report.drops == {"contamination": 2, "session_cap": 1}
    assert report.pairs == 3
    assert leaks(lake, "votes") == leaks(lake, "pairs") == []
    assert {r["session_id"] for r in lake.rows("pairs")} == {"plain"}
    votes = {r["session_id"]: r["contamination"] for r in lake.rows("votes")}
    assert votes == {"plain": [], "bench": ["instance django/django (SWE-bench)"]}
    # Looser rules leave nothing stale in the ledger.
    flag = {"contamination": {"evidence": "flag"}}
    report = build_pairs(lake, days=[DAY], rules=PreferenceRules.model_validate(flag))
    assert (report.pairs, report.drops) == (6, {})
    assert lake.rows("drops", stage="pairs") == []
    assert leaks(lake, "pairs") == []


def strip(rows):
    return [{k: v for k, v in row.items() if k not in ("day", "split")} for row in rows]


def test_leaks_are_found(lake):
    build_pairs(lake, days=[DAY], rules=PreferenceRules(max_pairs_per_session=3))
    votes = strip(lake.rows("votes"))
    lake.write("votes", votes[1:], day=DAY)
    (lost,) = leaks(lake, "votes", [DAY])
    assert (lost.row_id, lost.what) == (votes[0]["state_id"], "is lost")
    made_up = {**votes[0], "state_id": "nobody"}
    lake.write("votes", [*votes, made_up], day=DAY)
    assert [leak.what for leak in leaks(lake, "votes")] == ["came from nowhere, and is in votes"]
    lake.write("votes", [*votes[:-1], {**votes[-1], "reason": ""}], day=DAY)
    assert [leak.what for leak in leaks(lake, "votes")] == ["has no reason"]
    lake.write("votes", votes, day=DAY)
    assert leaks(lake, "votes") == []

    drops = strip(lake.rows("drops", stage="pairs"))
    drops = [{k: v for k, v in d.items() if k != "stage"} for d in drops]
    lake.write("drops", drops[1:], stage="pairs", day=DAY)
    assert [(x.row_id, x.what) for x in leaks(lake, "pairs")] == [(drops[0]["state_id"], "is lost")]
    lake.write("drops", drops, stage="pairs", day=DAY)
    pairs = strip(lake.rows("pairs"))
    lake.write("pairs", [*pairs, {**pairs[0], "state_id": drops[0]["state_id"]}], day=DAY)
    (twice,) = leaks(lake, "pairs")
    assert twice.what == "is in drops and pairs"
    # Another day's trouble is another run's.
    assert leaks(lake, "pairs", ["2026-01-01"]) == []


def test_leaks_of_the_later_stages_are_found(lake):
    build_pairs(lake, days=[DAY])
    pairs = strip(lake.rows("pairs"))
    lost = leaks(lake, "normalize")
    assert {leak.row_id for leak in lost} == {row["pair_id"] for row in pairs}
    lake.write("normalized_pairs", [{**row, "recipe": "r"} for row in pairs[1:]], day=DAY)
    ledger = {"pair_id": pairs[0]["pair_id"], "state_id": "s", "step": "0:x", "op": "x"}
    lake.write("drops", [ledger], stage="normalize", day=DAY)
    assert leaks(lake, "normalize") == []
    lake.write("drops", [ledger, {**ledger, "step": "1:y"}], stage="normalize", day=DAY)
    assert [leak.what for leak in leaks(lake, "normalize")] == ["is in drops and drops"]
    lake.write("drops", [{**ledger, "op": ""}], stage="normalize", day=DAY)
    assert [leak.what for leak in leaks(lake, "normalize")] == ["has no reason"]
    kept = [{"pair_id": row["pair_id"], "recipe": "r"} for row in pairs[1:]]
    lake.write("dataset_pairs", kept[1:], split="train")
    lake.write("dataset_pairs", kept[2:3], split="validation")
    found = {leak.row_id: leak.what for leak in leaks(lake, "dataset")}
    assert found == {
        kept[0]["pair_id"]: "is lost",
        kept[2]["pair_id"]: "is in dataset_pairs and dataset_pairs",
    }


def test_a_list_of_ones_own_is_added_to_the_bundled_one(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("benchmarks: [{name: mine, repositories: [me/thing]}]\n")
    rules = PreferenceRules.model_validate({"contamination": {"files": [str(own)]}})
    known = Benchmarks.of_rules(rules)
    assert list(known.in_text("upstream https://github.com/me/thing")) == ["remote me/thing (mine)"]
    assert list(known.in_text("/srv/django__django-10097"))


def test_every_folder_of_a_session_is_looked_at():
    said = {"role": "user", "content": [{"type": "text", "text": "Fix django/django."}]}
    places = {"project": "/home/user/work", "cwd": "/home/user/django"}
    states = [made_state(session_id="s", messages=[said], **places)]
    assert contaminated_sessions(states, KNOWN) == {"s": ["name django/django (SWE-bench)"]}


def test_drops_of_an_earlier_recipe_go(tmp_path):
    lake = Lake(tmp_path)
    ids = write_session(
        lake,
        "s",
        [(Action("", (ToolCall("Read", {"file_path": f"/{n}"}),)), "x") for n in range(2)],
    )
    for teacher in ("one", "two"):
        rows = [
            {
                "state_id": state_id, "session_id": "s", "family": teacher, "status": "ok",
                "request_hash": f"{teacher}{n}", "model": "m", "created_at": NOW,
                "action": Action("", (ToolCall("Grep", {"pattern": f"p{n}"}),)).to_json(),
            }
            for n, state_id in enumerate(ids)
        ]  # fmt: skip
        lake.write("replies", rows, day=DAY, teacher=teacher)
    build_pairs(lake, rules=PreferenceRules(max_pairs_per_session=1))
    assert len(lake.rows("drops", stage="pairs")) == 1
    build_pairs(lake, rules=PreferenceRules(max_pairs_per_session=None))
    assert lake.rows("drops", stage="pairs") == []


def test_arguments_that_the_schema_lacks_stand_by_name():
    tools = Toolset([], "none")
    for order in ("za", "az"):
        message = one_style(Action("", (ToolCall("Odd", dict.fromkeys(order, 1)),)), tools)
        assert list(message["tool_calls"][0]["function"]["arguments"]) == ["a", "z"]
