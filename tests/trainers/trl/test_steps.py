"""The contract of other trainers: the step table and ``step_loss`` give ComposerTrainer's gradient.

Here the forward is plain transformers, one sequence at a time.
"""

import random
from dataclasses import replace

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from composer_pipeline.losses.step import means, step_loss, token_divergence
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.rows import build
from composer_pipeline.training.run import DATA, prepare
from trainers.common.base_scores import BaseScores
from trainers.common.policy import load_base
from trainers.common.steps import Steps, options_of
from trainers.trl.trainer import ComposerTrainer

BAR = 1e-5
CHANNELS = {
    "grpo": {"weight": 1.0, "groups_per_step": 2, "off_policy_threshold": 0.5},
    "sdpo": {"weight": 0.5, "rows_per_step": 2, "hint_gain": False},
    "dpo": {"weight": 0.3, "pairs_per_step": 2},
    "sft": {"weight": 0.2, "rows_per_step": 2},
}
STEPS = 3


class Recorder(TrainerCallback):
    """Keeps the parameters and gradients of each step."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        parameters = {n: p.detach().clone() for n, p in model.named_parameters()}
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        self.steps.append((parameters, grads))


class Reference:
    """Three steps of ComposerTrainer, and the table of the same steps."""

    def __init__(self, recipe, lake, tokenizer, runs, score_here):
        run = prepare(lake, recipe, runs)
        score_here(lake, run)
        data = build(lake, tokenizer, recipe, run.run_dir / DATA)
        base = BaseScores.load(run.run_dir)
        self.recipe = recipe = recipe.resolved(data.counts())
        self.base = load_base(recipe.model, recipe)
        self.recorder = Recorder()
        self.events: list = []
        ComposerTrainer(
            model=load_base(recipe.model, recipe), recipe=recipe, data=data, base=base,
            output_dir=runs, tokenizer=tokenizer, callbacks=[self.recorder],
            on_event=lambda kind, step, numbers: self.events.append((kind, numbers)),
        ).train()  # fmt: skip
        self.table = Steps(recipe, data, base)
        self.numbers = [numbers for kind, numbers in self.events if kind == "step"]
        assert len(self.recorder.steps) == STEPS


@pytest.fixture(scope="module")
def reference(lake, tokenizer, tiny_model, tmp_path_factory, score_here):
    made = {}

    def make(**changes):
        key = repr(changes)
        if key not in made:
            channels = {n: {**fields, **changes.get(n, {})} for n, fields in CHANNELS.items()}
            recipe = tiny_recipe(
                tiny_model, lora={"r": 0}, optimizer="sgd", max_grad_norm=1e9, channels=channels,
                learning_rate=changes.get("rate", 0.5), norms_every=1,
                diloco={"replicas": 1, "rounds": 1, "inner_steps": STEPS},
            )  # fmt: skip
            runs = tmp_path_factory.mktemp("runs")
            made[key] = Reference(recipe, lake, tokenizer, runs, score_here)
        return made[key]

    return make


def logits_of(model, row, shift=0):
    """Return the logits that predict a row's span."""
    ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
    first = len(row.prompt_ids) + row.start - 1 + shift
    return model(input_ids=ids).logits[0, first : first + row.length]


def gradient(reference, number, *, micro=None, shift=0, edit=lambda row: row, options=None):
    """Return the gradient of a step through the table, and its numbers."""
    parameters, _ = reference.recorder.steps[number]
    model = AutoModelForCausalLM.from_pretrained(reference.recipe.model, dtype=torch.float32)
    model.load_state_dict(parameters, strict=False)
    options = options or options_of(reference.recipe)
    rows = [edit(row) for row in reference.table.rows(number)]
    units: dict = {}
    for row in rows:
        units.setdefault((row.channel, row.unit, row.role == "answer" and id(row)), []).append(row)
    batches = [list(unit) for unit in units.values()] if micro else [rows]
    if micro:
        random.Random(1).shuffle(batches)
    sums = []
    for batch in batches:
        logps, divergences = forward(reference, model, batch, shift, options)
        loss, numbers = step_loss(batch, logps, divergences, options)
        loss.backward()
        sums.append(numbers)
    return {n: p.grad for n, p in model.named_parameters()}, means(sums)


def forward(reference, model, rows, shift, options):
    logps, divergences = [], []
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        ids = torch.tensor(row.response_ids[row.start : row.start + row.length])
        logits = logits_of(model, row, shift)
        logps.append(logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1))
        taught = logits.new_zeros(0)
        if row.role == "plain":
            with torch.no_grad():
                teacher = logits_of(reference.base, after)
            taught = token_divergence(logits, teacher, options)
        divergences.append(taught)
    return logps, divergences


def difference(found, wanted):
    gap = sum(float((found[n] - wanted[n]).square().sum()) for n in wanted) ** 0.5
    return gap / sum(float(g.square().sum()) for g in wanted.values()) ** 0.5


@pytest.mark.parametrize("number", range(STEPS))
@pytest.mark.parametrize("micro", [False, True], ids=["whole", "micro-batches"])
def test_the_gradient_is_composer_trainers(reference, number, micro):
    found, numbers = gradient(reference(), number, micro=micro)
    assert difference(found, reference().recorder.steps[number][1]) < BAR
    theirs = reference().numbers[number]
    for name in numbers if number else ():  # at first every margin is 0 up to rounding
        assert numbers[name] == pytest.approx(theirs[name], rel=1e-3, abs=2e-4), name


def test_micro_batches_that_normalise_by_themselves_are_found(reference):
    # What a loss with a denominator of its own would do: here twice the coefficient of SFT.
    def edit(row):
        twice = row.role == "demonstration"
        return msgspec.structs.replace(row, coefficient=2 * row.coefficient) if twice else row

    found, _ = gradient(reference(), 0, edit=edit)
    assert difference(found, reference().recorder.steps[0][1]) > 100 * BAR


def test_positions_off_by_one_are_found(reference):
    found, _ = gradient(reference(), 1, shift=-1)
    assert difference(found, reference().recorder.steps[1][1]) > 1000 * BAR


def test_the_off_policy_mask_fires_and_matters(reference):
    # Alone, GRPO takes the tokens of bad answers below the base model.
    alone = {name: {"weight": 0.0} for name in CHANNELS if name != "grpo"}
    far = reference(rate=2.0, grpo={"off_policy_threshold": 0.001}, **alone)
    numbers = [step["grpo_masked"] for step in far.numbers]
    fired = numbers.index(max(numbers))
    assert numbers[fired] > 0
    found, own = gradient(far, fired)
    assert own["grpo_masked"] == pytest.approx(numbers[fired])
    assert difference(found, far.recorder.steps[fired][1]) < BAR
    never = replace(options_of(far.recipe), off_policy_threshold=None)
    found, _ = gradient(far, fired, options=never)
    assert difference(found, far.recorder.steps[fired][1]) > 100 * BAR


@pytest.mark.parametrize(
    "changes",
    [
        {"dpo": {"loss": "simpo", "beta": 2.0}},
        {"dpo": {"loss": "ipo"}, "sdpo": {"divergence": "eopd", "importance_clip": 1.5}},
        {"dpo": {"loss": "robust", "label_smoothing": 0.1}, "sdpo": {"temperature": 2.0}},
    ],
    ids=["simpo", "ipo, eopd, clip", "robust, temperature"],
)
def test_other_losses(reference, changes):
    found, _ = gradient(reference(**changes), 1)
    assert difference(found, reference(**changes).recorder.steps[1][1]) < BAR


def test_the_table_has_rows_of_all_roles(reference):
    assert {row.role for rows in reference().table for row in rows} == {
        "answer", "plain", "hinted", "chosen", "rejected", "demonstration"
    }  # fmt: skip
