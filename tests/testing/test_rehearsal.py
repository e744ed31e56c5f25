"""A rehearsal of a teacher file: its models and prices on loopback, and nothing of its keys."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.command import main, models_of, write_rehearsal
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter

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
