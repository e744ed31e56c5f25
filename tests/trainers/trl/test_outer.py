"""How a recipe names the outer step, and what the replicas agree on."""

import pytest

from composer_pipeline.training.recipe import TrainingRecipe
from trainers.common.outer_log import spec_of


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
