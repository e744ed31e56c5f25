"""How a recipe names the outer step, and what the replicas agree on."""

import sys

import pytest

from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.common.outer_log import begin, software, spec_of


@pytest.mark.parametrize(
    ("diloco", "outer"),
    [
        ({"rounds": 5}, (1.0, 0.0)),
        ({"rounds": 6}, (0.4, 0.8)),
        ({"rounds": 12, "replicas": 1}, (1.0, 0.0)),
        ({"rounds": 2, "outer": "nesterov"}, (0.4, 0.8)),
        ({"rounds": 40, "outer": "fedavg"}, (1.0, 0.0)),
        ({"rounds": 2, "outer": "nesterov", "outer_momentum": 0.9}, (0.4, 0.9)),
        ({"rounds": 2, "outer": "nesterov", "outer_lr": 0.7}, (0.7, 0.8)),
        ({"rounds": 40, "outer_lr": 0.4}, (0.4, 0.0)),
    ],
)
def test_the_outer_step_is_named_or_follows_from_the_rounds(diloco, outer):
    recipe = TrainingRecipe.model_validate({"name": "x", "diloco": diloco})
    assert spec_of(recipe, "rows").outer_step == outer


def test_replicas_agree_on_what_the_starting_machine_computes_with(tiny_model, tmp_path) -> None:
    """In their environment, and in the log from which those of other machines read it."""
    shared = {"replicas": 2, "local_replicas": 1, "log": str(tmp_path / "log"), "run_id": "shared"}
    backend = {"python": sys.executable}
    recipe = tiny_recipe(tiny_model, diloco={"rounds": 1, **shared}, backend=backend)
    spec = spec_of(recipe, "rows")
    assert spec.software == software(recipe)
    assert spec.software.split()[::2][:2] == ["composer-pipeline", "code"]
    found = {"model": {"name": "tiny", "kind": "folder", "digest": "d", "licence": ""}}
    (tmp_path / "run").mkdir()
    there = begin(recipe, tmp_path / "run", found, "rows")
    assert there is not None
    assert there.agreement.software == spec.software
    for path in (tmp_path / "log").rglob("*.*"):  # nothing names a path of this machine
        assert sys.executable.encode() not in (path.read_bytes() if path.is_file() else b"")
