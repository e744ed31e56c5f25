"""Teacher files: what is accepted, and the sentence that a bad one gets."""

from decimal import Decimal
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.teachers.teachers import TeacherSet
from tests.places import ROOT

RECIPES = ROOT / "recipes" / "teachers"

GOOD = """
endpoint: {name: loopback, base_url: "http://127.0.0.1:1/api/v1", simulated: true}
defaults: {max_tokens: 512, provider: {zdr: false}}
teachers:
  - {name: a, family: f, model: x/y, licence: MIT, max_price: {prompt: "0.1", completion: "0.3"}}
  - {name: b, family: g, model: x/z, licence: MIT, max_tokens: 64, provider: {only: [p]},
     max_price: {prompt: "0.1", completion: "0.3"}}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "teachers.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["default.yaml", "demo.yaml"])
def test_recipes_load(name: str) -> None:
    teachers = TeacherSet.load(RECIPES / name)
    assert len({t.family for t in teachers.teachers}) >= 3
    assert teachers.endpoint.simulated == (name == "demo.yaml")
    for teacher in teachers.teachers:
        assert teacher.provider.data_collection == "deny"
        assert teacher.provider.zdr
        assert teacher.provider.enforce_distillable_text
        assert teacher.max_price.completion > 0


def test_defaults_are_merged(tmp_path: Path) -> None:
    first, second = TeacherSet.load(write(tmp_path, GOOD)).teachers
    assert (first.max_tokens, second.max_tokens) == (512, 64)
    assert second.provider.zdr is False
    assert second.provider.only == ["p"]
    assert second.provider.require_parameters is True
    assert first.max_price.prompt == Decimal("0.1")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("licence: MIT, max_tokens", "lisence: MIT, max_tokens", ["teachers[1] (b)", "lisence"]),
        ("endpoint:", "endpont:", ["endpont", "unknown field"]),
        ("licence: MIT, max_tokens", "max_tokens", ["teachers[1] (b).licence", "missing field"]),
        ("name: b", "name: a", ["two teachers", "'a'"]),
        ("max_tokens: 64", "max_tokens: lots", ["max_tokens", "integer"]),
        ("max_tokens: 64", "max_tokens: -1", ["max_tokens"]),
        ('prompt: "0.1"', 'prompt: "-1"', ["max_price.prompt"]),
        ('prompt: "0.1"', "prompt: .nan", ["max_price.prompt"]),
        ("x/z", "x/latest", ["model", "fixed model"]),
        ("x/z", "x/z:nitro", ["model", "fixed model"]),
        ("x/z", "~x/z", ["model", "slug"]),
        ("127.0.0.1", "teachers.example", ["endpoint", "on this machine"]),
        (
            "simulated: true",
            "simulated: false, surprise: 1",
            ["endpoint.surprise", "unknown field"],
        ),
        ("defaults: {max_tokens", "defaults: {max_tokns", ["defaults.max_tokns", "unknown field"]),
    ],
)
def test_bad_file_names_file_and_field(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        TeacherSet.load(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in [str(path), *words]:
        assert word in message


@pytest.mark.parametrize(
    "text", ["", "- 1", "a: [", GOOD.split("teachers:")[0] + "teachers: []\n", "\x00"]
)
def test_no_teachers_at_all(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="teacher file"):
        TeacherSet.load(write(tmp_path, text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml"):
        TeacherSet.load(tmp_path / "none.yaml")


def test_environment_moves_only_simulated_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSER_OPENROUTER_URL", "http://127.0.0.1:9/api/v1/")
    assert TeacherSet.load(RECIPES / "demo.yaml").endpoint.url() == "http://127.0.0.1:9/api/v1"
    real = TeacherSet.load(RECIPES / "default.yaml").endpoint
    assert real.url() == "https://openrouter.ai/api/v1"
    monkeypatch.setenv("COMPOSER_OPENROUTER_URL", "https://elsewhere.example")
    with pytest.raises(InputError, match="COMPOSER_OPENROUTER_URL"):
        TeacherSet.load(RECIPES / "demo.yaml").endpoint.url()


def test_real_endpoint_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    monkeypatch.delenv("COMPOSER_LOOPBACK_KEY", raising=False)
    with pytest.raises(InputError, match="OPENROUTER_API_KEY"):
        TeacherSet.load(RECIPES / "default.yaml").endpoint.key()
    assert TeacherSet.load(RECIPES / "demo.yaml").endpoint.key() is None


def test_projects_filter(tmp_path: Path) -> None:
    text = GOOD + 'projects: {allow: ["/home/user/open*"], exclude: ["*secret*"]}\n'
    projects = TeacherSet.load(write(tmp_path, text)).projects
    assert projects.admits("/home/user/open-source")
    assert not projects.admits("/home/user/open-secret")
    assert not projects.admits("/home/user/work")
