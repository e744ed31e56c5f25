"""A rehearsal of a teacher file: its models and prices on loopback, and nothing of its keys."""

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from composer_pipeline.chat.convert import to_chat, wire_messages
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.quality import measure, sides_of, verdicts
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.command import main, models_of, write_rehearsal
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Rehearsal
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest

DEFAULT = recipes_dir() / "teachers" / "default.yaml"


@pytest.fixture
def rehearsal(tmp_path: Path) -> TeacherSet:
    """The default teachers with a control and one on a server of its own."""
    body = yaml.safe_load(DEFAULT.read_text())
    body["endpoint"] |= {"provisioning_key_env": None, "dedicated_key": False}
    control = {"name": "again", "family": "claude", "model": "anthropic/claude-sonnet-4.5"}
    price = {"prompt": "3.00", "completion": "15.00"}
    body["teachers"].append(
        {**control, "licence": "x", "control": True, "ask_share": 1, "max_price": price}
    )
    own = {"name": "lab", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "LAB_KEY"}
    body["teachers"].append(
        {"name": "lab", "family": "lab", "model": "lab/one", "licence": "MIT", "price": price}
        | {"endpoint": {"api": "openai", **own}}
    )
    path = tmp_path / "teachers.yaml"
    path.write_text(yaml.safe_dump(body))
    return TeacherSet.load(path)


def test_every_teacher_of_the_file_is_asked_at_its_price(
    lake: Lake, rehearsal: TeacherSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No real key is sent, and the bill is the ledger's."""
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-or-v1-must-stay")
    monkeypatch.setenv("LAB_KEY", "lab-must-stay")
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", "sk-loopback")  # any other key gets 401
    copy = tmp_path / "copy.yaml"
    models = models_of(rehearsal)
    for model, teacher in zip(models, rehearsal.teachers, strict=True):
        assert model.slug == teacher.model
        assert model.context_length == teacher.context_length
        assert model.prompt * 10**6 == teacher.max_price.prompt
        assert model.completion * 10**6 == teacher.max_price.completion
    assert [m.persona for m in models[:3]] == ["careful", "steady", "contrarian"]
    assert (models[5].persona, models[5].distillable) == ("contrarian", False)
    with LoopbackOpenRouter(models=models, api_key="sk-loopback") as server:
        write_rehearsal(rehearsal, server.url, copy, key_variable="COMPOSER_LOOPBACK_KEY")
        asked = TeacherSet.load(copy)
        assert asked.endpoint.name == "openrouter-rehearsal"
        assert asked.endpoint.simulated
        assert asked.selection == rehearsal.selection
        assert asked.limits == rehearsal.limits
        report = replay(lake, asked, max_usd=Decimal(5))
        assert int(report.spent_usd * 10**12) == server.billed > 0
    teachers = {row["teacher"] for row in lake.rows("replies") if row["status"] == "ok"}
    assert {"deepseek", "qwen", "lab"} <= teachers
    assert all(row["simulated"] for row in lake.rows("replies"))


def test_the_command_names_a_copy_that_lives_as_long_as_the_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(server: LoopbackOpenRouter) -> None:
        line = json.loads(capsys.readouterr().out)
        seen.append((TeacherSet.load(line["teachers"]), line, server))

    monkeypatch.setattr(LoopbackOpenRouter, "wait", look)
    main(["--teachers", str(DEFAULT)])
    ((asked, line, server),) = seen
    assert asked.endpoint.base_url == line["url"] == server.url
    assert [t.model for t in asked.teachers] == list(server.models)
    assert not Path(line["teachers"]).exists()
    with pytest.raises(SystemExit) as ended:
        main(["--teachers", "nowhere.yaml"])
    assert ended.value.code == 2
    assert "nowhere.yaml" in capsys.readouterr().err


# -- answers from the sessions themselves ---------------------------------------------------


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("samples") / "lake")
    ingest(lake, sample_sessions_dir())
    return lake


def test_a_lake_is_rehearsed_by_seed_and_its_truth_is_known(samples: Lake) -> None:
    states = list(load_states(samples))
    one, again, other = (Rehearsal(states, seed) for seed in (1, 1, 2))
    assert one.truths == again.truths != other.truths
    assert {truth.state_id for truth in one.truths} <= {state.state_id for state in states}
    by_state = {state.state_id: state for state in states}
    for truth in one.truths:
        agents = by_state[truth.state_id].action
        assert (truth.why == "agent") == (truth.action == agents)
    assert sum(truth.why == "fixup" for truth in one.truths) == 2
    assert 0.05 < sum(truth.why != "agent" for truth in one.truths) / len(one.truths) < 0.25


def test_teachers_take_what_is_right_or_err_each_in_its_own_way(samples: Lake) -> None:
    states = list(load_states(samples))
    script = Rehearsal(states)
    right: Counter[str] = Counter()
    apart = 0
    bodies = [{"messages": wire_messages(to_chat(state).messages)} for state in states]
    for body, truth in zip(bodies, script.truths, strict=True):
        said = {name: script.decide(name, body) for name in ("careful", "contrarian", "flaky")}
        for name, action in said.items():
            right[name] += action == truth.action
        apart += said["careful"] != truth.action and said["careful"] != said["flaky"]
    assert right["careful"] > right["contrarian"] > right["flaky"] > len(states) / 4
    assert right["careful"] < len(states) * 0.95
    assert apart > 10, "two that err do not err alike"


def test_the_command_answers_for_a_lake_and_writes_the_truth(
    samples: Lake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers: list[LoopbackOpenRouter] = []
    monkeypatch.setattr(LoopbackOpenRouter, "wait", lambda server: servers.append(server))
    truth = tmp_path / "truth.jsonl"
    main(["--teachers", str(DEFAULT), "--lake", samples.url, "--truth", str(truth), "--seed", "3"])
    rows = [json.loads(line) for line in truth.read_text().splitlines()]
    assert len(rows) == json.loads(capsys.readouterr().out)["states"] == 198
    assert {row["why"] for row in rows} == {"agent", "fixup", "near miss"}
    assert isinstance(servers[0].script, Rehearsal)
    with pytest.raises(SystemExit):
        main(["--truth", str(truth)])
    assert "--truth belongs to --lake" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no states; run composer-pipeline ingest"):
        main(["--lake", str(tmp_path / "nothing")])


@pytest.mark.slow
def test_a_rehearsal_of_real_sessions_gives_pairs_like_those_to_come(
    unpacked: Path, tmp_path: Path, rehearsal: TeacherSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many different chosen sides, few pairs against an agent that was right, and no gate shut."""
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", "sk-loopback")
    monkeypatch.setenv("LAB_KEY", "lab")
    lake = Lake(tmp_path / "lake")
    ingest(lake, [unpacked])
    days = ["2026-01-06", "2026-01-07", "2026-01-20", "2026-01-22", "2026-01-24"]
    script = Rehearsal(load_states(lake, days=days))
    copy = tmp_path / "copy.yaml"
    with LoopbackOpenRouter(script, models=models_of(rehearsal), api_key="sk-loopback") as server:
        write_rehearsal(rehearsal, server.url, copy, key_variable="COMPOSER_LOOPBACK_KEY")
        replay(lake, TeacherSet.load(copy), max_usd=Decimal(500), days=days)
    build_pairs(lake, days=days)
    pairs = [row for row in lake.rows("pairs") if row["source"] == "teachers"]
    truth = {item.state_id: item.why for item in script.truths}
    good = sum(truth[row["state_id"]] != "agent" for row in pairs)
    sides = sides_of(lake.rows("pairs"))
    print(f"{good} of {len(pairs)} pairs are right; {len(truth)} states; {sides}")
    assert 0.04 < len(pairs) / len(truth) < 0.25
    assert good / len(pairs) > 0.65
    assert sides.distinct > 0.5 * len(lake.rows("pairs"))
    assert sides.anywhere < 0.05 * len(lake.rows("pairs"))
    assert not [v for v in verdicts(measure(lake), PreferenceRules()) if v.word == "refused"]
