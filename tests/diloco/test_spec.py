import subprocess
import sys

import pytest

from composer_pipeline.diloco.log import (
    Commit,
    Contribution,
    CorruptObject,
    OuterLog,
    OuterLogError,
)
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError


def test_the_outer_optimiser_depends_on_the_number_of_rounds() -> None:
    assert DiLoCoSpec(rounds=5, inner_steps=2).outer_step == (1.0, 0.0)
    assert DiLoCoSpec(rounds=6, inner_steps=2).outer_step == (0.4, 0.8)
    assert DiLoCoSpec(rounds=12, inner_steps=2, replicas=1).outer_step == (1.0, 0.0)
    assert DiLoCoSpec(rounds=20, inner_steps=2, outer_lr=0.5).outer_step == (0.5, 0.0)
    spec = DiLoCoSpec(rounds=4, inner_steps=2, outer_lr=0.7, outer_momentum=0.9)
    assert DiLoCoSpec.from_json(spec.model_dump_json(), "x") == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"rounds": 2, "inner_steps": 0}', "here: inner_steps: "),
        ('{"rounds": 2, "inner_steps": 1, "colour": 1}', "here: colour: unknown field"),
        ('{"rounds": 2, "inner_steps": 1, "replicas": 2, "min_quorum": 3}', "min_quorum 3"),
        ('{"rounds": 2, "inner_steps": 1, "codec": "int3"}', "codec: .*'int8', 'int4' or 'int2'"),
        ("{", "here is not JSON"),
    ],
)
def test_a_bad_spec_is_refused_by_field(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DiLoCoSpec.from_json(text, "here")


def test_the_first_spec_of_a_run_stays(tmp_path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    spec = DiLoCoSpec(rounds=4, inner_steps=2)
    log.agree(spec)
    log.agree(spec)
    with pytest.raises(InputError, match="inner_steps is 2 there and 3 here"):
        log.agree(DiLoCoSpec(rounds=4, inner_steps=3))
    assert log.spec() == spec


def test_other_software_is_refused_with_what_differs_and_what_to_do(tmp_path) -> None:
    """Before other fields, which an upgrade may have changed too."""
    log = OuterLog.open(str(tmp_path), "run")
    spec = DiLoCoSpec(
        rounds=4, inner_steps=2, software="composer-pipeline 0.1.0 code ab torch 2.13.0"
    )
    log.agree(spec)
    other = spec.model_copy(update={"software": "composer-pipeline 0.2.0 code cd torch 2.13.0"})
    other = other.model_copy(update={"base": "recipe ef", "outer_lr": 0.9})
    with pytest.raises(InputError) as failure:
        log.agree(other)
    assert str(failure.value) == (
        "spec.json of run run does not fit: composer-pipeline is 0.1.0 there and 0.2.0 here, code"
        " is ab there and cd here; finish the run with what is there, or begin another one"
        " (docs/guide.md)"
    )
    more = spec.model_copy(update={"software": f"{spec.software} peft 0.21"})
    assert spec.difference(more).startswith("peft is None there and 0.21 here; finish")
    assert more.difference(spec).startswith("peft is 0.21 there and None here; finish")
    recipe = DiLoCoSpec(rounds=4, inner_steps=2, base="weights 12 recipe 34")
    ours = recipe.model_copy(update={"base": "weights 12 recipe 56"})
    assert recipe.difference(ours) == "recipe is 34 there and 56 here"


def test_contributions_and_commits_are_created_once(tmp_path) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    assert log.contribute(Contribution(1, 0, 1, "first", "x", 1, "b"))
    assert not log.contribute(Contribution(1, 0, 2, "second", "x", 1, "b"))
    assert log.contributions(1)[0][0].key == "first"
    commit = Commit(0, (), (), "", "sha", "key", 1, 0)
    assert log.try_commit(commit)
    assert not log.try_commit(Commit(0, (), (), "", "other", "key", 1, 1))
    assert log.commits() == [commit]
    assert log.try_commit(Commit(2, (), (), "", "sha", "key", 1, 0))
    with pytest.raises(OuterLogError, match=r"\[0, 2\]"):
        log.commits()


def test_every_read_is_verified(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("composer_pipeline.diloco.log.READ_PAUSE_S", 0)
    log = OuterLog.open(str(tmp_path), "run")
    key, digest = log.put_delta(1, 0, b"abc")
    assert log.read(key, digest, 3) == b"abc"
    log.store.put(key, b"ab")
    with pytest.raises(CorruptObject, match="2 bytes instead of 3"):
        log.read(key, digest, 3)
    log.store.put(key, b"abd")
    with pytest.raises(CorruptObject, match="SHA-256"):
        log.read(key, digest, 3)
    with pytest.raises(CorruptObject, match="missing"):
        log.read("rounds/9/x", digest, 3)


def test_a_store_without_exclusive_creation_is_refused(tmp_path, monkeypatch) -> None:
    log = OuterLog.open(str(tmp_path), "run")
    log.probe()
    log.probe()
    monkeypatch.setattr(log.store, "create", lambda key, data: True)
    with pytest.raises(InputError, match="exclusive creation"):
        log.probe()


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", ".hidden"])
def test_a_run_id_is_a_plain_name(tmp_path, run_id: str) -> None:
    with pytest.raises(InputError, match="run id"):
        OuterLog.open(str(tmp_path), run_id)


def test_an_unknown_url_or_folder_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="nope://bucket"):
        OuterLog.open("nope://bucket/x", "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be opened"):
        OuterLog.open(str(tmp_path / "file" / "below"), "run")


def test_obstore_missing_is_one_sentence(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InputError, match="needs the package obstore"):
        OuterLog.open(str(tmp_path), "run")


def test_the_supervisor_side_loads_no_torch() -> None:
    code = (
        "import sys, composer_pipeline.diloco.supervisor, composer_pipeline.diloco.spec;"
        "sys.exit(bool({'torch', 'transformers', 'safetensors', 'obstore'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
