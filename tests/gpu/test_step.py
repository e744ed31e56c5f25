"""A whole step on the device: against the formulas in float64, trees against rows, and again."""

import copy

import pytest
import torch

from tests.gpu.device import compiled_graphs, model, needs_cuda, on_a_gpu, recipe, relative, rows
from tests.trainers.trl import oracle

pytestmark = on_a_gpu
#: Relative error of the loss and of the gradient, against float64.
TOLERANCES = {"fp32": (1e-5, 1e-3), "bf16": (1e-2, 6e-2)}


def step(trainer):
    loss = float(trainer.training_step(trainer.model, {}).detach())
    return loss, oracle.gradient(trainer.policy.model)


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_a_step_is_that_of_the_formulas_by_trees_and_by_rows(make, dtype, checkpointing):
    data, errors = rows(), {}
    for shared in ("on", "off"):
        how = recipe(dtype=dtype, shared_prefix=shared, activation_checkpointing=checkpointing)
        base = model().to(torch.bfloat16 if dtype == "bf16" else torch.float32)
        trainer = make(how, base, data)
        assert (trainer.apart is None) == (shared == "on")
        loss, gradient = step(trainer)
        wanted, right = oracle.step(trainer, data)
        errors[shared] = (abs(loss / wanted - 1), relative(gradient, right))
    print(dtype, "relative errors of loss and gradient:", errors)
    for error in errors.values():
        assert error[0] < TOLERANCES[dtype][0]
        assert error[1] < TOLERANCES[dtype][1]
    assert errors["on"][1] < 1.5 * errors["off"][1] + 1e-6  # trees cost no accuracy


def test_full_fine_tuning_is_that_of_the_formulas(make):
    data = rows()
    trainer = make(recipe(dtype="fp32", lora={"r": 0}), model(), data)
    loss, gradient = step(trainer)
    base = copy.deepcopy(model()).double().to(trainer.policy.device)
    wanted, right = oracle.step(trainer, data, base)
    assert abs(loss / wanted - 1) < TOLERANCES["fp32"][0]
    assert relative(gradient, right) < TOLERANCES["fp32"][1]


def test_a_run_compiles_few_graphs(make):
    how = recipe(diloco={"replicas": 1, "rounds": 1, "inner_steps": 8}, micro_batch_tokens=900)
    trainer = make(how, model(), rows(8))
    trainer.train()
    print("graphs:", compiled_graphs())
    assert compiled_graphs() <= 3


def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(make):
    """Parameters, optimizer and the channels' state, given to a new trainer after two steps."""
    sdpo = {"teacher": "ema", "divergence": "taid", "rows_per_step": 2, "hint_gain": False}
    how = recipe(
        channels={"sdpo": sdpo, "grpo": {"weight": 0}, "dpo": {"pairs_per_step": 2}},
        optimizer="sgd", max_grad_norm=1e9,
    )  # fmt: skip

    def parameters(trainer):
        return torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])

    def run(trainer, first, last):
        for at in range(first, last):
            trainer.state.global_step = at
            trainer.training_step(trainer.model, {})
            with torch.no_grad():
                for p in trainer.policy.parameters():
                    p -= 0.1 * p.grad
            trainer.state.global_step = at + 1
            trainer.follow()

    whole = make(how, model(), rows())
    start = parameters(whole)
    run(whole, 0, 4)
    cut = make(how, model(), rows())
    run(cut, 0, 2)
    again = make(how, model(), rows())
    again.policy.model.load_state_dict(cut.policy.model.state_dict())
    again.load_private(*cut.private())
    run(again, 2, 4)
    assert relative(parameters(again) - start, parameters(whole) - start) < 2e-3


@needs_cuda
def test_memory_is_that_of_the_plan(make):
    """Beside the weights: of the tiny model they are nothing."""
    from composer_pipeline.training.plan import ModelShape, peak
    from trainers.common.rows import loads, windows_of

    shape = ModelShape(896, 6, 4864, 14, 2, 64, 151936, tied=True, qkv_bias=False)
    config = {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14}
    found = {}
    for checkpointing in (True, False):
        how = recipe(
            activation_checkpointing=checkpointing, micro_batch_tokens=9000, shared_prefix="off",
            data={"max_prompt_tokens": 8192, "max_completion_tokens": 64},
            diloco={"replicas": 1, "rounds": 1, "inner_steps": 3},
        )  # fmt: skip
        data = rows(2, longest=6000)
        base = model(layers=6, num_key_value_heads=2, vocab_size=151936, **config)
        trainer = make(how, base.to(torch.bfloat16), data)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        trainer.train()
        del trainer
        planned = peak(shape, how, loads(how, windows_of(how, data)), device=True)
        found[checkpointing] = (planned.total, torch.cuda.max_memory_allocated(), before)
        print({k: round(v / 2**20) for k, v in planned.parts().items()}, planned.worst)
    print("MiB planned, measured, of which before:", {
        k: [round(v / 2**20) for v in three] for k, three in found.items()
    })  # fmt: skip
    for wanted, measured, _ in found.values():
        assert 0.9 < wanted / measured < 1.1
