"""Teachers whose relations are known, over real HTTP: what must come out follows from them.

A script gives every state a relation (who says the same as whom). Reasons, tiers, margins,
levels, the agreement matrix, the noise floor and alpha are computed from the script in this
file and compared with what the stages put into the lake.
"""

import hashlib
import json
import math
import os
import tarfile
from collections import Counter
from decimal import Decimal
from typing import Any

import krippendorff
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import to_chat, wire_messages
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.quality import leaks, measure
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.models import SimulatedModel
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script, prefix_key, restyled
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest
from tests.places import CORPUS

ROLES = ("careful", "contrarian", "flaky", "steady")
FAMILIES = {"careful": "alpha", "steady": "beta", "contrarian": "gamma", "flaky": "delta"}
NO, L0, L2, L4 = "none", "L0", "L2", "L4"

#: kind -> (reason, tier, families, agree, margin, entropy, winner level, student level)
IMPLIED = {
    "same": ("agrees_with_student", "none", 4, 4, 1.0, 0.0, L0, L0),
    "gold": ("pair", "gold", 4, 2, 0.25, 1.5, L0, NO),
    "silver": ("pair", "silver", 4, 2, 0.25, 1.5, L0, L2),
    "style": ("style", "style", 4, 2, 0.25, 1.5, L0, L2),
    "tie": ("tie", "none", 4, 0, 0.0, 1.0, NO, NO),
    "scattered": ("no_quorum", "none", 4, 0, 0.0, 2.0, NO, NO),
    "alone": ("one_family", "none", 1, 0, 1.0, 0.0, NO, NO),
    "broken": ("no_usable_reply", "none", 0, 0, 0.0, 0.0, NO, NO),
}
#: kind -> who says the agent's action, who says the better one, who says something of its own.
SPEAKERS = {
    "same": (ROLES, (), ()),
    "gold": (("contrarian",), ("careful", "steady"), ("flaky",)),
    "silver": (("contrarian",), ("careful", "steady"), ("flaky",)),
    "style": ((), ("careful", "steady"), ("contrarian", "flaky")),
    "tie": (("contrarian", "flaky"), ("careful", "steady"), ()),
    "scattered": ((), (), ROLES),
    "alone": ((), ("careful",), ()),
    "broken": ((), (), ()),
}
UNUSABLE = Action("", (ToolCall("NotOffered", {"x": 1}),))


def digest(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def plan_of(state, shared):
    """Give a state its kind, and the better action where the kind has one."""
    number = digest(state.state_id)
    better = Action(f"I would stop here and report ({number}).")
    calls = state.action.tool_calls
    if shared:
        return "scattered", better
    if len(calls) == 1 and calls[0].name == "Edit" and number % 2:
        path = calls[0].arguments.get("file_path")
        new = {"file_path": path, "old_string": f"o{number}", "new_string": f"n{number}"}
        return "silver", Action("", (ToolCall("Edit", new),))
    window = set(calls[0].arguments) & {"offset", "limit", "pages"} if calls else set()
    if len(calls) == 1 and calls[0].name == "Read" and number % 2 and not window:
        far = {**calls[0].arguments, "offset": 50_000, "limit": 10}
        return "style", Action("", (ToolCall("Read", far),))
    if not calls:  # a text is of the class of every other text
        return ("same", "alone", "broken")[number % 3], better
    kinds = ("same", "gold", "tie", "scattered", "alone", "broken", "gold", "same")
    return kinds[number % len(kinds)], better


class Relations(Script):
    """Answers by role and kind; the control repeats the agent but for every fourth state."""

    def __init__(self, states):
        super().__init__()
        keys = Counter(prefix_key(wire_messages(to_chat(state).messages)) for state in states)
        self.plans, self.state_of = {}, {}
        for state in states:
            key = prefix_key(wire_messages(to_chat(state).messages))
            self.plans[state.state_id] = plan_of(state, keys[key] > 1)
            self.state_of[key] = state

    def resample_differs(self, state):
        return digest("resample" + prefix_key(wire_messages(to_chat(state).messages))) % 4 == 0

    def decide(self, persona, body):
        role = body["model"].split("/")[1]
        state = self.state_of[prefix_key(body["messages"])]
        kind, better = self.plans[state.state_id]
        own = Action(f"Only {role} says this.")
        if role == "resample":
            return own if self.resample_differs(state) else state.action
        agents, betters, alone = SPEAKERS[kind]
        if role in agents:
            return restyled(state.action) if role == "steady" else state.action
        if role in betters:
            return restyled(better) if role == "steady" else better
        return own if role in alone else UNUSABLE


def corpus_sessions(folder):
    """Unpack the first small real sessions of the corpus."""
    path = CORPUS
    archive = path / "claude-code-sessions.tar.xz"
    if not archive.exists():
        if "corpus" in os.environ.get("COMPOSER_REQUIRE", "").split(","):
            pytest.fail("corpus is required: ../shared/corpus")
        pytest.skip("corpus is missing: ../shared/corpus")
    found = 0
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:
            if member.isfile() and member.size < 250_000:
                tar.extract(member, folder, filter="data")
                found += 1
                if found == 4:
                    return folder
    return folder


@pytest.fixture(scope="module", params=["demo", "corpus"])
def world(request, tmp_path_factory):
    """A lake whose states five loopback teachers answered, its states, and their relations."""
    root = tmp_path_factory.mktemp(request.param)
    sessions = sample_sessions_dir() if request.param == "demo" else corpus_sessions(root / "raw")
    lake = Lake(root / "lake")
    ingest(lake, [sessions])
    states = list(load_states(lake))
    script = Relations(states)
    roles = {**FAMILIES, "resample": "claude"}
    models = [
        SimulatedModel(f"loopback/{role}", "careful", Decimal("1e-9"), Decimal("1e-9"), 10**7)
        for role in roles
    ]
    teachers = TeacherSet.model_validate(
        {
            "endpoint": {
                "name": "loopback",
                "base_url": "http://127.0.0.1:1/api/v1",
                "api_key_env": "COMPOSER_LOOPBACK_KEY",
                "simulated": True,
            },
            "limits": {"backoff_s": 0.01, "read_timeout_s": 300, "drain_s": 300},
            "teachers": [
                {
                    "name": role,
                    "family": family,
                    "model": f"loopback/{role}",
                    "licence": "simulated",
                    "max_price": {"prompt": "0.01", "completion": "0.01"},
                    "max_tokens": 100_000,
                    "context_length": 10_000_000,
                }
                for role, family in roles.items()
            ],
        }
    )
    with (
        LoopbackOpenRouter(script, models=models, flaky_faults=False) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("COMPOSER_OPENROUTER_URL", server.url)
        report = replay(lake, teachers, max_usd=Decimal(50))
    assert report.not_bought == report.skipped == []
    for day in lake.days("states"):
        build_pairs(lake, days=[day], rules=PreferenceRules(own_pairs=False))
    return lake, states, script


def voices(state, script):
    """Return role -> (what it says, as a mark), for the agent and the usable replies."""
    kind, _ = script.plans[state.state_id]
    agents, betters, alone = SPEAKERS[kind]
    said = {"agent": "agent"}
    said |= dict.fromkeys(agents, "agent") | dict.fromkeys(betters, "better")
    said |= {role: f"own of {role}" for role in alone}
    said["resample"] = "own of resample" if script.resample_differs(state) else "agent"
    return said


def test_reasons_tiers_and_levels_are_what_the_relations_imply(world):
    lake, states, script = world
    votes = {row["state_id"]: row for row in lake.rows("votes")}
    assert set(votes) == {state.state_id for state in states}
    kinds = Counter(kind for kind, _ in script.plans.values())
    assert set(kinds) >= {"same", "gold", "tie", "scattered", "alone", "broken"}
    for state in states:
        kind, _ = script.plans[state.state_id]
        row = votes[state.state_id]
        reason, tier, families, agree, margin, entropy, winner, student = IMPLIED[kind]
        if kind == "broken":
            reason = "no_voter"  # the control is usable, and has no vote
        got = [row[k] for k in ("reason", "tier", "n_families", "n_agree")]
        assert got == [reason, tier, families, agree], kind
        assert row["margin"] == pytest.approx(margin), kind
        assert row["entropy"] == pytest.approx(entropy), kind
        assert [row["winner_level"], row["student_level"]] == [winner, student], kind
        expected = sum(map(len, SPEAKERS[kind])) + 1
        assert (row["n_usable"], row["n_replies"]) == (expected, 5)
        assert len(row["unusable"]) == 5 - expected
        assert all("a tool that was not offered" in text for text in row["unusable"])


def test_pairs_are_those_of_the_script(world):
    lake, states, script = world
    pairs = {row["state_id"]: row for row in lake.rows("pairs")}
    wanted = {s.state_id for s in states if script.plans[s.state_id][0] in ("gold", "silver")}
    assert set(pairs) == wanted
    assert len(pairs) > 10
    for state in states:
        row = pairs.get(state.state_id)
        if row is None:
            continue
        kind, better = script.plans[state.state_id]
        assert (row["tier"], row["chosen_families"]) == (kind, ["alpha", "beta"])
        assert row["chosen_teachers"] == ["careful", "steady"]
        calls = row["chosen"][0].get("tool_calls") or []
        assert [c["function"]["arguments"] for c in calls] == [
            c.arguments for c in better.tool_calls
        ]
        if not better.tool_calls:
            assert row["chosen"][0]["content"] == better.text
    for stage in ("votes", "pairs"):
        assert leaks(lake, stage) == []


def test_the_agreement_matrix_is_that_of_the_script(world):
    lake, states, script = world
    quality = measure(lake)
    for label in ("L1", "L2"):
        agreed: Counter[Any] = Counter()
        met: Counter[Any] = Counter()
        for state in states:
            said = voices(state, script)
            kind, _ = script.plans[state.state_id]
            for a in said:
                for b in said:
                    if a < b:
                        met[a, b] += 1
                        # The better action of these kinds is on the agent's own target.
                        near = label == "L2" and kind in ("silver", "style")
                        target = near and {said[a], said[b]} == {"agent", "better"}
                        agreed[a, b] += said[a] == said[b] or target
        got = quality.matrix[label]
        assert {key: found.n for key, found in got.items()} == dict(met)
        for key, found in got.items():
            assert found.value == pytest.approx(agreed[key] / met[key]), (label, key)


def test_the_noise_floor_is_that_of_the_script(world):
    lake, states, script = world
    teacher, resample = [], []
    for state in states:
        said = voices(state, script)
        kind, _ = script.plans[state.state_id]
        usable = [role for role in said if role in ROLES]
        if not usable:
            continue
        # Reading elsewhere in a file is no difference where nothing changes.
        same = {"agent", "better"} if kind == "style" else {"agent"}
        teacher.append(sum(said[role] not in same for role in usable) / len(usable))
        resample.append(said["resample"] != "agent")
    found = measure(lake).noise
    n = len(teacher)
    assert found.teacher.n == found.resample.n == found.excess.n == n
    assert found.teacher.value == pytest.approx(sum(teacher) / n)
    assert found.resample.value == pytest.approx(sum(resample) / n)
    assert found.excess.value == pytest.approx((sum(teacher) - sum(resample)) / n)
    gaps = [a - b for a, b in zip(teacher, resample, strict=True)]
    mean = sum(gaps) / n
    spread = sum((gap - mean) ** 2 for gap in gaps) / (n - 1)
    assert found.error.value == pytest.approx(math.sqrt(spread / n))


def test_alpha_is_the_librarys_on_the_clusters_of_the_script(world):
    lake, states, script = world
    votes = {row["state_id"]: row for row in lake.rows("votes")}
    numbers: dict[str, int] = {}
    by_tool: dict[str, list[list[float]]] = {}
    for state in states:
        said = voices(state, script)
        row = votes[state.state_id]
        label = dict(zip(row["raters"], row["labels"], strict=True))
        assert label["agent"] is label["resample"] is None
        # The clusters are the script's: equal marks, and nobody else, have equal labels.
        usable = [role for role in said if role in ROLES]
        for a in usable:
            for b in usable:
                assert (label[a] == label[b]) == (said[a] == said[b])
        unit = [
            numbers.setdefault(label[role], len(numbers)) if role in usable else math.nan
            for role in ROLES
        ]
        tool = state.action.tool_calls[0].name if state.action.tool_calls else "text"
        for key in (tool, ""):
            by_tool.setdefault(key, []).append(unit)
    got = measure(lake).alpha
    assert set(got) == set(by_tool)
    for tool, units in by_tool.items():
        data = list(zip(*units, strict=True))
        pairable = [u for u in units if sum(not math.isnan(v) for v in u) > 1]
        values = {v for u in pairable for v in u if not math.isnan(v)}
        assert got[tool].n == len(pairable)
        if len(values) < 2:
            assert got[tool].value is None
            assert got[tool].note
            continue
        expected = krippendorff.alpha(reliability_data=data, level_of_measurement="nominal")
        assert got[tool].value == pytest.approx(expected)


def test_counts_are_those_of_the_script(world):
    lake, states, script = world
    kinds = Counter(kind for kind, _ in script.plans.values())
    quality = measure(lake)
    pairs = kinds["gold"] + kinds["silver"]
    assert quality.tiers == {k: kinds[k] for k in ("gold", "silver") if kinds[k]}
    assert quality.funnel == {
        "states": len(states),
        "voted": len(states) - kinds["alone"] - kinds["broken"],
        "consensus": pairs + kinds["same"] + kinds["style"],
        "candidates": pairs,
        "pairs": pairs,
        "normalised": 0,
        "dataset": 0,
    }
    sessions = Counter(
        s.session_id for s in states if script.plans[s.state_id][0] in ("gold", "silver")
    )
    mean, largest = quality.per_session
    assert mean.value == pytest.approx(pairs / len(sessions))
    assert largest.value == max(sessions.values())
    rows = quality.rows()
    assert json.loads(json.dumps(rows)) == rows
    assert len({(r["statistic"], r["a"], r["b"], r["tool"]) for r in rows}) == len(rows)
