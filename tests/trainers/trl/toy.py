"""A task of a few tokens on which each channel can be seen to teach what it should.

A prompt is ``[BOS, x]``; the right answer repeats ``x``, and the base model has been taught to
say ``WRONG`` instead, unless a hint tells it better: after ``[BOS, x, HINT, h]`` it says ``h``.
Half of the values of x are for training, the other half is held out, so that what is measured is
not memory.
"""

import copy
import random

import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from composer_pipeline.training.rows import Demonstration, Group, Hint, Pair, TrainingData

VOCAB, BOS, END, HINT, WRONG = 40, 0, 1, 2, 3
VALUES = range(8, VOCAB)
TRAIN, HELD_OUT = list(VALUES)[::2], list(VALUES)[1::2]


def plain(x):
    return [BOS, x]


def hinted(x, hint=None):
    return [BOS, x, HINT, x if hint is None else hint]


def base_model() -> LlamaForCausalLM:
    """Return the base: wrong without a hint, right with one; the same at every call."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=16,
            tie_word_embeddings=True, pad_token_id=4, bos_token_id=BOS, eos_token_id=END,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(1)
    for _ in range(300):
        xs = torch.tensor(list(VALUES))[torch.randint(0, len(VALUES), (32,), generator=draw)]
        hints = xs[torch.randperm(32, generator=draw)]
        for prompts, right, answer in ((_plain(xs), 0.12, xs), (_hinted(hints, xs), 1.0, hints)):
            says = torch.where(torch.rand(32, generator=draw) < right, answer, torch.tensor(WRONG))
            ids = torch.cat([prompts, says[:, None], torch.full((32, 1), END)], 1)
            logits = model(input_ids=ids).logits[:, -3:-1]
            cross_entropy(logits.reshape(-1, VOCAB), ids[:, -2:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def _plain(xs):
    return torch.stack([torch.full_like(xs, BOS), xs], 1)


def _hinted(hints, xs):
    return torch.stack([torch.full_like(xs, BOS), xs, torch.full_like(xs, HINT), hints], 1)


def rows() -> TrainingData:
    """Return the training half for every channel."""
    return TrainingData(
        groups=[
            Group(
                f"g{x}",
                plain(x),
                [[x, END], [WRONG, END], [x, 9, END]],
                [2, 1, 1],
                [1.0, 0.0, 0.4],
                "{}",
            )
            for x in TRAIN
        ],
        pairs=[
            Pair(f"p{x}", plain(x), [x, END], [WRONG, END] if x % 3 else [WRONG, 9, END])
            for x in TRAIN
        ],
        hints=[Hint(f"h{x}", plain(x), hinted(x), [WRONG, END], 0, 1, [x, END]) for x in TRAIN],
        demonstrations=[Demonstration(f"d{x}", plain(x), [x, END]) for x in TRAIN],
    )


def random_rows(count, longest, seed=7) -> TrainingData:
    """Return rows of all channels, of very different lengths; some share their beginning."""
    draw = random.Random(seed)

    def ids(n):
        return [draw.randrange(5, VOCAB) for _ in range(n)]

    start, groups, pairs, hints, demonstrations = ids(longest), [], [], [], []
    for i in range(count):
        prompt = start[: draw.randrange(longest // 3, longest)] + ids(draw.randrange(1, 30))
        answers = [ids(draw.randrange(4, 40)) for _ in range(3)]
        groups.append(Group(f"g{i}", prompt, answers, [1, 2, 1], [1.0, 0.0, 0.4], "{}"))
        pairs.append(Pair(f"p{i}", prompt, answers[0], answers[1], 0.5 + i))
        hinted = prompt[:9] + ids(draw.randrange(1, 60)) + prompt[9:]
        hints.append(Hint(f"h{i}", prompt, hinted, answers[1], 1, len(answers[1]) - 2, answers[0]))
        demonstrations.append(Demonstration(f"d{i}", prompt, answers[2]))
    return TrainingData(groups=groups, pairs=pairs, hints=hints, demonstrations=demonstrations)


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@torch.no_grad()
def held_out(model) -> dict[str, float]:
    """Return mean log p(right), log p(WRONG) and their difference on the held-out half."""
    model.eval()
    ids = _plain(torch.tensor(HELD_OUT))
    logps = model(input_ids=ids).logits[:, -1].log_softmax(-1)
    right = float(logps.gather(-1, ids[:, -1:]).mean())
    wrong = float(logps[:, WRONG].mean())
    return {"right": right, "wrong": wrong, "margin": right - wrong}


def tokenizer():
    """Return a tokenizer of forty words, for models that are smaller still."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import chat_template_utils as templates

    words = {f"w{i}": i for i in range(40)}
    found = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w5")),
        eos_token="w1", pad_token="w4", unk_token="w5",
    )  # fmt: skip
    found.chat_template = templates.qwen2_5_chat_template
    return found


def trainer(folder, model, tokenizer, recipe, rows, **options):
    """Return a trainer on a copy of a model, whose base pass is done in ``folder``."""
    from trainers.common.base_pass import score
    from trainers.common.base_scores import gate
    from trainers.common.policy import Policy
    from trainers.trl.trainer import ComposerTrainer

    model = copy.deepcopy(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bare = Policy(model.to(device), pad=tokenizer.pad_token_id, device=device)
    base = score(bare, recipe, rows, folder)
    torch.manual_seed(0)
    found = ComposerTrainer(
        model=model, recipe=recipe, data=gate(recipe, rows, base.gains())[0],
        base=base, output_dir=folder, tokenizer=tokenizer, **options,
    )  # fmt: skip
    # What transformers' loop sets before the first step.
    found.model.train()
    if recipe.activation_checkpointing:
        kwargs = found.args.activation_checkpointing_kwargs
        found.model.activation_checkpointing_enable(activation_checkpointing_kwargs=kwargs)
        assert found.model.is_activation_checkpointing
    found.current_gradient_accumulation_steps = 1
    return found
