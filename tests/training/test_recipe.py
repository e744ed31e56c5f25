"""Recipes: defaults, and errors that name the file and the field."""

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe
from tests.places import ROOT
from tests.recipe_page import page

#: Recipes that show that every channel runs.
EVERY_CHANNEL = {"demo", "smoke", "smollm2-cpu"}


@pytest.mark.parametrize(
    "name",
    ["demo", "default", "smoke", "smollm2-cpu", "gpu-24gb", "gpu-80gb", "gpu-8x80gb", "verl"],
)
def test_the_shipped_recipes_load(name):
    recipe = TrainingRecipe.load(ROOT / "recipes" / "train" / f"{name}.yaml")
    assert recipe.name == name
    every = {"grpo", "sdpo", "dpo", "sft"}
    proven = {"sdpo", "sft"}  # docs/proof.md
    assert set(recipe.channels.weights()) == (every if name in EVERY_CHANNEL else proven)
    resolved = recipe.resolved({"grpo": 90, "sdpo": 90, "dpo": 90, "sft": 90})
    assert resolved.total_steps == resolved.rounds * recipe.diloco.inner_steps


OFF = ", ".join(f"{name}: {{weight: 0}}" for name in ("grpo", "sdpo", "dpo", "sft"))
MONARCH = "place: {kind: monarch}"


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
        ("name: x\ndiloco: {log: 's3://key:secret@bucket/x'}", "no secrets"),
        ("name: x\ndiloco: {log: 's3://bucket/x?token=secret'}", "no secrets"),
        ("name: x\ndiloco: {log: 'ftp://bucket/x'}", "s3://, gs://, az://"),
        ("name: x\ndiloco: {run_id: a b}", "run_id must be letters"),
        ("name: x\ndiloco: {local_replicas: 1}", "local_replicas 1 of 2 needs log"),
        ("name: x\ndiloco: {replicas: 1, outer: nesterov}", "outer nesterov needs replicas of 2"),
        ("name: x\ndiloco: {outer: sgd}", "diloco.outer: Input should be 'fedavg' or"),
        ("name: x\ndiloco: {log: l, local_replicas: 3}", "local_replicas 3 exceeds replicas 2"),
        ("name: x\neval_every: 1\ndiloco: {log: l, local_replicas: 0}", "eval_every needs"),
        (f"name: x\ndiloco: {{local_replicas: 2, {MONARCH}}}", "place needs local_replicas below"),
        (f"name: x\ndiloco: {{local_replicas: 3, {MONARCH}}}", "local_replicas 3 exceeds"),
        (f"name: x\ndiloco: {{{MONARCH}}}\nranks: {{processes: 2}}", "needs ranks.processes of 1"),
        (f"name: x\ndiloco: {{{MONARCH}}}\nbackend: {{python: p}}", "and no backend.python"),
        (
            "name: x\ndiloco: {place: {kind: monarch, image: i}}",
            "diloco.place.monarch: unknown field",
        ),
        ("name: x\ndiloco: {place: {kind: modal, image: i}}", "place needs local_replicas below"),
        (
            "name: x\ndiloco: {log: l, local_replicas: 1, place: {kind: modal, image: i}}",
            "place needs log in a bucket",
        ),
        (
            "name: x\neval_every: 1\ndiloco: {fragments: 2}",
            "eval_every evaluates the committed state",
        ),
        (
            "name: x\neval_every: 1\ndiloco: {overlap_steps: 2}",
            "eval_every evaluates the committed state",
        ),
        ("name: x\ndiloco: {inner_steps: 2, overlap_steps: 3}", "overlap_steps 3 exceeds inner"),
        ("name: x\nchannels: {dpo: {loss: orpo}}", "channels.dpo.loss"),
        ("name: x\nchannels: {dpo: {loss: exo_pair}}", "needs a label_smoothing above 0"),
        ("name: x\nchannels: {dpo: {loss: ipo, label_smoothing: 0.1}}", "not used by loss ipo"),
        ("name: x\ngradient_accumulation_steps: 3", "gradient_accumulation_steps"),
        ("name: x\nsteps: 10\nepochs: 1", "steps and epochs both set the length of the run"),
        ("name: x\nsteps: 10\ndiloco: {rounds: 2}", "steps and diloco.rounds both set"),
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
    assert "key:secret" not in str(error.value)


@pytest.mark.parametrize(("local", "children"), [(None, 0), (0, 0), (1, 1)])
def test_actors_of_monarch_run_here_and_need_no_log(local, children):
    diloco = {"replicas": 3, "local_replicas": local, "place": {"kind": "monarch"}}
    recipe = TrainingRecipe.model_validate({"name": "x", "eval_every": 1, "diloco": diloco})
    assert (recipe.diloco.here, recipe.diloco.children) == (3, children)
    apart = {"replicas": 3, "local_replicas": local, "log": "s3://b/x"}
    here = TrainingRecipe.model_validate({"name": "x", "diloco": apart}).diloco
    assert here.here == here.children == (3 if local is None else local)


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml"):
        TrainingRecipe.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("length", "rounds"),
    [
        ({}, 4),
        ({"steps": 10}, 1),
        ({"steps": 11}, 2),
        # 100 pairs, 2 a step and replica: 25 steps; GRPO's 30 groups take 15.
        ({"epochs": 1}, 3),
        ({"epochs": 2.1}, 6),
    ],
)
def test_a_length_becomes_whole_rounds(length, rounds):
    channels = {"sdpo": {"weight": 0}, "sft": {"weight": 0}}
    recipe = TrainingRecipe.model_validate({"name": "x", "channels": channels, **length})
    resolved = recipe.resolved({"grpo": 30, "dpo": 100})
    assert (resolved.rounds, resolved.total_steps) == (rounds, 10 * rounds)
    # What a run folder holds says the same when it is read again.
    again = TrainingRecipe.model_validate(resolved.model_dump(mode="json"))
    assert again == resolved == resolved.resolved({"grpo": 1, "dpo": 1})


def test_epochs_are_no_length_before_rows_are_counted():
    with pytest.raises(ValueError, match="before the rows are counted"):
        TrainingRecipe.model_validate({"name": "x", "epochs": 1}).total_steps  # noqa: B018


def test_the_page_of_the_recipe_is_as_the_code():
    assert (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8") == page()


def test_machines_may_differ_in_paths_and_counts_of_their_own_but_in_nothing_else():
    one = TrainingRecipe.model_validate({"name": "x", "diloco": {"log": "s3://b/x"}})
    far = {"log": "/mnt/x", "run_id": "r", "local_replicas": 0, "max_restarts": 9}
    other = TrainingRecipe.model_validate({"name": "y", "model": "/m", "threads": 9, "diloco": far})
    assert one.agreed() == other.agreed()
    for change in ({"learning_rate": 0.5}, {"diloco": {"log": "s3://b/x", "inner_steps": 3}}):
        changed = TrainingRecipe.model_validate({"name": "x", **change})
        assert changed.agreed() != one.agreed()
