"""Recipes: defaults, and errors that name the file and the field."""

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe
from tests.places import ROOT


@pytest.mark.parametrize("name", ["demo", "default"])
def test_the_shipped_recipes_load(name):
    recipe = TrainingRecipe.load(ROOT / "recipes" / "train" / f"{name}.yaml")
    assert recipe.name == name
    assert set(recipe.channels.weights()) == {"grpo", "sdpo", "dpo", "sft"}
    assert recipe.steps == recipe.diloco.rounds * recipe.diloco.inner_steps


OFF = ", ".join(f"{name}: {{weight: 0}}" for name in ("grpo", "sdpo", "dpo", "sft"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nlearning_rat: 1", "learning_rat"),
        ("name: x\nlora: {r: -1}", "lora.r"),
        ("name: x\nlora: {targets: [lm_head]}", "lm_head"),
        ("name: x\nlora: {targets: [q_proj, model.lm_head]}", "lm_head"),
        ("name: x\nstart_from: ./run\nlora: {r: 0}\nchannels: {sdpo: {weight: 0}}", "start_from"),
        ("name: x\nreport_to: [fax]", "report_to"),
        (
            f"name: x\nchannels: {{{OFF}}}",
            "weight 0",
        ),
        ("name: x\nchannels: {sdpo: {weight: -1}}", "channels.sdpo.weight"),
        ("name: x\ndiloco: {replicas: 1, min_quorum: 2}", "min_quorum 2 exceeds"),
        ("name: x\ngradient_accumulation_steps: 3", "gradient_accumulation_steps"),
        ("- a list", "mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_a_wrong_field_is_named_in_one_sentence(tmp_path, text, said):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        TrainingRecipe.load(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml"):
        TrainingRecipe.load(tmp_path / "none.yaml")
