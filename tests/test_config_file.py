"""Every YAML file that a user writes: each mistake is one sentence, the same for all kinds."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from composer_pipeline.cli.__main__ import main
from composer_pipeline.config_file import read_model
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction import user_rules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.samples import sample_sessions_dir

#: Kind of file -> what errors call it, a file without mistakes, and the command that reads it.
KINDS = {
    "teachers": ("teacher file", "teachers/demo.yaml", "plan --teachers FILE"),
    "preferences": ("preference recipe", "preferences/default.yaml", "pairs --rules FILE"),
    "benchmarks": ("benchmark list", "preferences/benchmarks.yaml", "pairs --rules NAMING"),
    "redaction": ("redaction file", "", "ingest SESSIONS"),
    "normalise": ("normalise recipe", "normalize/default.yaml", "normalize --recipe FILE"),
    "training": ("training recipe", "train/default.yaml", "train --recipe FILE"),
}
BOMB = "\n".join(
    ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
)
#: Mistake -> content of the file (None: no file, "": a folder), and the words after its name.
MISTAKES: Mapping[str, tuple[bytes | None, str]] = {
    "missing": (None, ": No such file or directory"),
    "a folder": (b"", ": Is a directory"),
    "not UTF-8": (b"name: \xff\xfe", " is not UTF-8 text: see byte 6"),
    "not YAML": (b"a: 1\nb: [", " is not YAML: line 2: expected the node content"),
    "a tag of Python": (b"a: !!python/name:os.system x", " is not YAML: line 1: could not"),
    "a date that is none": (b"a: 2020-13-45", " is not YAML: line 1: '2020-13-45' is no timestamp"),
    "a list": (b"- a\n", ": must be a mapping of fields"),
    "a bomb": (BOMB.encode(), ": more than 50000 values, counting what aliases repeat"),
    "a circle": (b"a: &a [*a]", ": an alias is inside its own value"),
    "deep": (b"a: " + b"[" * 100_000, ": nested deeper than 50 levels"),
    "large": (b"# " + b"x" * (1 << 20), " is too large: more than 1 MiB"),
    "twice": (b"a: 1\na: 2\n", ": line 2: the key 'a' occurs twice"),
}
#: Kind -> (a right key, the same one with a slip, where it is, another value of a wrong type).
TYPING: Mapping[str, tuple[str, str, str, str]] = {
    "teachers": ("  max_tokens: ", "  max_tokenz: ", "max_tokenz", "  max_tokens: [many] #"),
    "preferences": ("  max_auc: ", "  max_aux: ", "separability.max_aux", "  max_auc: [many] #"),
    "benchmarks": ("name: ", "nam: ", "benchmarks[0].nam", "name: [many] #"),
    "redaction": ("allow: ", "alow: ", "alow", "allow: many #"),
    "normalise": ("use_cache: ", "use_cach: ", "use_cach", "use_cache: [many] #"),
    "training": ("learning_rate: ", "learning_rat: ", "learning_rat", "learning_rate: [many] #"),
}


def _good(kind: str) -> str:
    return (recipes_dir() / KINDS[kind][1]).read_text() if KINDS[kind][1] else "allow: [abcdef]\n"


def _refusal(
    kind: str, file: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run the command that reads such a file; return its one sentence after the file's name."""
    what, _, command = KINDS[kind]
    naming = file.parent / "naming.yaml"
    naming.write_text(f"contamination: {{files: [{file.name}]}}")
    patch.setenv("COMPOSER_REDACTION", str(file) if kind == "redaction" else "")
    places = {"FILE": file, "NAMING": naming, "SESSIONS": sample_sessions_dir()}
    words = [str(places.get(word, word)) for word in command.split()]
    lake = Lake(file.parent / "lake")
    for table in ("states", "pairs"):
        lake.write(table, [], day="2026-01-01")
    before = lake.fs.find(lake.root)
    with pytest.raises(SystemExit) as stop:
        main([*words, "--lake", lake.root])
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert lake.fs.find(lake.root) == before
    start = f"composer-pipeline: {what} {file}"
    assert err.startswith(start)
    return err.removeprefix(start).strip()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_file_is_one_sentence(
    kind: str,
    mistake: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content, words = MISTAKES[mistake]
    file = tmp_path / "written.yaml"
    if content:
        file.write_bytes(content)
    elif content is not None:
        file.mkdir()
    said = _refusal(kind, file, monkeypatch, capsys)
    assert said.startswith(words.strip())


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_key_names_the_right_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, slip, where, _ = TYPING[kind]
    file = tmp_path / "written.yaml"
    assert right in _good(kind)
    file.write_text(_good(kind).replace(right, slip, 1))
    said = _refusal(kind, file, monkeypatch, capsys)
    name = right.strip().rstrip(":")
    line = (file.read_text().split(slip)[0]).count("\n") + 1
    assert said.startswith(f": line {line}: ")
    assert said.endswith(f"{where}: unknown field (did you mean: {name}?)")


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_type_names_the_field(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, slip, where, wrong = TYPING[kind]
    file = tmp_path / "written.yaml"
    file.write_text(_good(kind).replace(right, wrong, 1))
    said = _refusal(kind, file, monkeypatch, capsys)
    name = right.strip().rstrip(":")
    assert f"{where.replace(slip.strip().rstrip(':'), name)}: Input should be" in said


class _Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    count: int = 0


class _Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    one: _Inner | None = None
    many: list[Annotated[_Inner, Field()]] = []
    either: tuple[str, ...] | int = 0


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("one: {name: a, cuont: 1}", 1, "one.cuont: unknown field (did you mean: count?)"),
        ("many: [{name: a}, {name: b, cuont: 1}]", 1, "many[1] (b).cuont: unknown field (did you"),
        ("many: [{cuont: 1}]", 1, "many[0].cuont: unknown field (did you mean: count?)"),
        ("one: {name: a, cuont: 1}\nmany: 5", 1, "one.cuont: unknown field (did you mean: count?)"),
        ("many:\n- name: b\n  count: 1\n- {cuont: 1}", 4, "many[1].cuont: unknown field (did"),
        ("many:\n- &a {name: b, count: x}\n- *a", 2, "many[0] (b).count: Input should be a"),
        ("one:\n  # without a name\n  count: 1", 1, "one.name: missing field"),
        ("zzz: 1", 1, "zzz: unknown field; known: one, many, either"),
        ("many: [{count: 1}]", 1, "many[0].name: missing field"),
        ("many: [{name: a, count: x}]", 1, "many[0] (a).count: Input should be a valid integer"),
        ("either: [1]", 1, "either[0]: Input should be a valid string"),
        ("1: 2", 1, "[1]: Keys should be strings"),
        (f"{'k' * 300}: 1", 1, f"{'k' * 80}…: unknown field"),
    ],
)
def test_the_field_is_named_where_it_stands(
    text: str, line: int, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "outer.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_model(file, "thing", _Outer)
    assert str(caught.value).startswith(f"thing {file}: line {line}: {words}")


def test_anchors_and_merge_keys_still_work(tmp_path: Path) -> None:
    file = tmp_path / "outer.yaml"
    file.write_text("one: &a {name: a, count: 1}\nmany: [*a, {<<: *a, count: 2}]\n")
    read = read_model(file, "thing", _Outer)
    assert [(inner.name, inner.count) for inner in read.many] == [("a", 1), ("a", 2)]


def test_a_file_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "outer.yaml").write_text("")
    assert read_model("~/outer.yaml", "thing", _Outer, empty=True) == _Outer()
    with pytest.raises(InputError, match="must be a mapping"):
        read_model("~/outer.yaml", "thing", _Outer)


def test_a_bomb_is_refused_at_once(tmp_path: Path) -> None:
    """Unfolded it has 9**11 values, which no memory holds."""
    file = tmp_path / "bomb.yaml"
    file.write_text(BOMB)
    start = time.process_time()
    with pytest.raises(InputError, match="more than 50000 values"):
        read_model(file, "thing", _Outer)
    assert time.process_time() - start < 2


def test_a_run_folders_spec_has_the_same_words() -> None:
    with pytest.raises(InputError, match=r"^spec\.json: roundz: unknown field \(did you mean: ro"):
        DiLoCoSpec.from_json('{"roundz": 3, "inner_steps": 1}', "spec.json")
    with pytest.raises(InputError, match=r"^spec\.json is not JSON: "):
        DiLoCoSpec.from_json(b"{", "spec.json")


@pytest.fixture(autouse=True)
def _forget_redaction_files() -> None:
    user_rules._rules.cache_clear()
