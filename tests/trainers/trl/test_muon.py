"""Muon and AdamW behind one optimizer, held against PyTorch's own two."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from trainers.common.muon import muon

LR, DECAY = 0.01, 0.1


def model_of(*, tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, tie_word_embeddings=tied,
        )
    )  # fmt: skip


def losses(model, optimizers, steps, *, seed=0, schedules=()):
    """Train on made-up tokens; the parameters are what is looked at."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(0, 31, (2, 8), generator=generator)
        model(input_ids=rows, labels=rows).loss.backward()
        for one in (*optimizers, *schedules):
            one.step()
        for one in optimizers:
            one.zero_grad()


def same(one, other):
    theirs = dict(other.named_parameters())
    return all(torch.equal(p, theirs[name]) for name, p in one.named_parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_of_layers_go_muon_s_way_and_the_rest_adamw_s(tied):
    ours, theirs = model_of(tied=tied), model_of(tied=tied)
    by_name = dict(theirs.named_parameters())
    matrices = [p for name, p in by_name.items() if "proj" in name]
    tokens = [p for name, p in by_name.items() if "embed_tokens" in name or "lm_head" in name]
    norms = [p for name, p in by_name.items() if "norm" in name]
    assert len(matrices) + len(tokens) + len(norms) == len(by_name)
    separate = [
        torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(tokens, lr=LR, weight_decay=DECAY),
        torch.optim.AdamW(norms, lr=LR, weight_decay=0.0),
    ]
    start = copy.deepcopy(ours)
    losses(ours, [muon(ours, lr=LR, weight_decay=DECAY)], 3)
    losses(theirs, separate, 3)
    assert same(ours, theirs)
    was = dict(start.named_parameters())
    assert not any(torch.equal(p, was[name]) for name, p in ours.named_parameters())


def test_a_schedule_reaches_both_parts():
    ours, theirs = model_of(), model_of()
    optimizer = muon(ours, lr=LR, weight_decay=DECAY)
    halved = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    losses(ours, [optimizer], 2, schedules=[halved])
    losses(theirs, [muon(theirs, lr=LR / 2, weight_decay=DECAY)], 2)
    assert same(ours, theirs)


def test_a_state_that_was_kept_goes_on_where_it_was():
    whole = model_of()
    optimizer = muon(whole, lr=LR, weight_decay=DECAY)
    losses(whole, [optimizer], 2)
    resumed, kept = copy.deepcopy(whole), copy.deepcopy(optimizer.state_dict())
    losses(whole, [optimizer], 2, seed=1)
    again = muon(resumed, lr=LR, weight_decay=DECAY)
    again.load_state_dict(kept)
    losses(resumed, [again], 2, seed=1)
    assert same(whole, resumed)


def test_an_adapter_has_matrices_alone():
    adapted = get_peft_model(model_of(), LoraConfig(r=2, target_modules=["q_proj"]))
    optimizer = muon(adapted, lr=LR, weight_decay=DECAY)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    assert [len(group["params"]) for group in optimizer.param_groups] == [len(trained)]
    losses(adapted, [optimizer], 2)
    assert all(p.abs().sum() > 0 for p in trained)


def test_nothing_to_train_is_refused():
    model = model_of().requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match="empty parameter list"):
        muon(model, lr=LR, weight_decay=DECAY)
