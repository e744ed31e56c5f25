"""One of two ranks: ``python -m tests.trainers.trl.pair FOLDER``; rank 0 writes what it saw.

Every case trains the same rows twice: with both ranks, and, on rank 0, alone.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from composer_pipeline.diloco.callback import DiLoCoCallback
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.rewards import Grade
from composer_pipeline.training.rows import Demonstration, Group, Hint, Pair, TrainingData
from tests.trainers.trl import toy
from trainers.common.outer_ranks import OverRanks
from trainers.common.ranks import Ranks, whole_copy

CHANNELS = {
    "grpo": {"weight": 0.7, "groups_per_step": 3, "off_policy_threshold": 0.05},
    "sdpo": {"weight": 1.3, "rows_per_step": 3, "hint_gain": False},
    "dpo": {"weight": 0.45, "pairs_per_step": 3},
    "sft": {"weight": 0.3, "rows_per_step": 2},
}
#: Numbers of a step that depend on the machine or on who shares the work.
OWN = {"seconds", "tokens_per_second", "peak_memory_mib", "ranks_idle_share"}


def model():
    """Return a random model; the same at every call."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=True, pad_token_id=4, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def prompt(i):
    """Return one of eight prompts of unequal length; half of them begin alike."""
    return [0, *range(10, 22), 8 + i] if i % 2 else [0, *range(22, 22 + i), 30 + i, 9]


def rows():
    """Return rows of every channel, of unequal lengths."""
    spans = [(0, 3), (1, 1), (0, 2), (2, 1)] * 2
    return TrainingData(
        groups=[
            Group(f"g{i}", prompt(i), [[9 + i, 1], [3] * (1 + i % 3) + [1], [9 + i, 7, 1]],
                  [1 + i % 3, 1, 2], [1.0, 0.0, 0.4], "{}")
            for i in range(6)
        ],
        pairs=[
            Pair(f"p{i}", prompt(i), [9 + i, 5, 1], [3] * (1 + i % 4) + [1], weight=0.5 + i)
            for i in range(6)
        ],
        hints=[
            Hint(f"h{i}", prompt(i), [*prompt(i), 2, 9 + i], [3, 5, 1], *spans[i], [9 + i, 1])
            for i in range(6)
        ],
        demonstrations=[Demonstration(f"d{i}", prompt(i), [9 + i, *[6] * i, 1]) for i in range(6)],
    )  # fmt: skip


def recipe(**changed):
    """Return a recipe of every channel, in small micro-batches."""
    fields = {"channels": CHANNELS, "micro_batch_tokens": 64, **changed}
    return tiny_recipe("toy", **fields)


class Cases:
    """The cases of this rank, and what rank 0 has seen."""

    def __init__(self, folder):
        self.ranks, self.folder = Ranks.from_env(), folder
        self.seen, self.count = {}, 0

    def trainer(self, given, ranks, events=None, **options):
        """Build a trainer in a folder of its own."""
        self.count += 1
        place = self.folder / f"rank-{self.ranks.rank}-{self.count}"
        found = toy.trainer(
            place, model(), toy.tokenizer(), given, rows(), ranks=ranks,
            on_event=lambda kind, step, facts: (events if events is not None else []).append(
                (kind, step, facts)
            ),
            **options,
        )  # fmt: skip
        if given.lora.r:  # a fresh adapter is zero, and so are some gradients
            torch.manual_seed(5)
            with torch.no_grad():
                for parameter in found.policy.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return found

    def own(self, sharding):
        """Return the pair as a trainer takes it."""
        ranks = Ranks(self.ranks.rank, self.ranks.size)
        ranks.sharded = sharding == "fsdp2"
        return ranks

    def steps(self, given, ranks):
        """Return loss, gradient and numbers of a measured step and of one that is not."""
        events: list[Any] = []
        out = []
        trainer = self.trainer(given, ranks, events)
        for step in (0, 1):
            trainer.state.global_step = step
            loss = float(trainer.training_step(trainer.model, {}).detach())
            grads = [whole_copy(p.grad).double().flatten() for p in trainer.policy.parameters()]
            numbers = {k: v for k, v in events[-1][2].items() if k not in OWN}
            out.append((loss, torch.cat(grads), numbers, events[-1][2]))
        return out

    def gradients(self, name, given, sharding):
        """Compare both ranks with one process, step by step."""
        ranks = self.own(sharding)
        together = self.steps(given, ranks)
        same = ranks.gather([(t[0], t[2], t[1].sum().item()) for t in together])
        if not ranks.lead:
            return
        alone = self.steps(given, Ranks())
        self.seen[name] = [
            {
                "error": float((t[1] - a[1]).norm() / a[1].norm()),
                "norm": float(a[1].norm()),
                "loss": [t[0], a[0]],
                "numbers": [t[2], a[2]],
                "measured": "sft_grad_norm" in a[2],
                "idle": t[3]["ranks_idle_share"],
                "ranks_agree": same[0] == same[1],
            }
            for t, a in zip(together, alone, strict=True)
        ]

    def broken(self, sharding):
        """A loss of rank 1 alone is not a number."""
        events: list[Any] = []
        ranks = self.own(sharding)
        trainer = self.trainer(recipe(), ranks, events)
        dpo = trainer.channels[2]
        right = dpo.loss
        if not ranks.lead:
            dpo.loss = lambda *given: right(*given) * torch.nan
        loss = float(trainer.training_step(trainer.model, {}).detach())
        left = sum(p.grad is not None for p in trainer.policy.parameters())
        dpo.loss = right
        trainer.training_step(trainer.model, {})  # and the next step is one of both again
        told = ranks.gather([loss, left, events[0][0], events[0][2], events[1][0]])
        self.seen[f"broken {sharding}"] = told

    def memory(self):
        """Rank 1 alone runs out of memory, once."""
        events: list[Any] = []
        ranks = self.own("ddp")
        trainer = self.trainer(recipe(micro_batch_tokens=128), ranks, events)
        failed: list[int] = []

        def too_large(right):
            def loss(*given):
                if not failed:
                    failed.append(1)
                    raise torch.OutOfMemoryError("no room")
                return right(*given)

            return loss

        for channel in trainer.channels if not ranks.lead else ():
            channel.loss = too_large(channel.loss)
        trainer.training_step(trainer.model, {})
        kinds = [kind for kind, _, _ in events]
        told = ranks.gather([trainer._micro_batch_tokens, kinds, len(failed)])
        self.seen["memory"] = told

    def refused(self):
        """Ranks that would train something else."""

        def said(call):
            try:
                call()
            except (InputError, ComposerError) as error:
                return str(error)
            return ""

        ranks = self.own("ddp")
        other = self.trainer(recipe(seed=ranks.rank), ranks)
        drawn = said(lambda: other.training_step(other.model, {}))
        self.seen["refused"] = ranks.gather(drawn)

    def sampled(self, sharding):
        """Answers of the model itself: a share of the groups by each rank, all of them on both."""
        ranks = self.own(sharding)
        channels = {**CHANNELS, "grpo": CHANNELS["grpo"] | {"source": "sampled", "group_size": 2}}
        data = {"max_prompt_tokens": 64, "max_completion_tokens": 8, "max_tools_tokens": 0}
        trainer = self.trainer(recipe(channels=channels, data=data), ranks)
        grpo = trainer.channels[0]
        grpo._sampler.grade = lambda group, answer: Grade(sum(answer) % 7 / 7, {})
        asked, generate = [], grpo._sampler._generate

        def counted(prompts):
            asked.append(len(prompts))
            return generate(prompts)

        grpo._sampler._generate = counted
        window = grpo.window(trainer.policy, 0)
        again = grpo.window(trainer.policy, 0)
        drawn = [(a.id, list(a.response_ids), a.advantage) for a in window]
        repeated = drawn == [(a.id, list(a.response_ids), a.advantage) for a in again]
        trainer.training_step(trainer.model, {})
        self.seen[f"sampled {sharding}"] = ranks.gather([drawn, repeated, asked[0]])

    def rounds(self, name, given, sharding, overlap=0):
        """DiLoCo's rounds over the ranks end where those of one process do."""
        ranks = self.own(sharding)
        # An outer step that leads elsewhere than the inner ones shows who adopts it.
        spec = DiLoCoSpec(
            rounds=2, inner_steps=2, replicas=1, outer_lr=0.7, outer_momentum=0.9,
            overlap_steps=overlap,
        )  # fmt: skip

        def run(ranks, place):
            callback = None
            if ranks.lead:
                url = str(self.folder / place)
                callback = DiLoCoCallback(url=url, run_id="run", slot=0, spec=spec)
            outer = OverRanks(ranks, callback) if ranks.several else callback
            trainer = self.trainer(given, ranks, callbacks=[outer])
            trainer.train()
            named = trainer.accelerator.unwrap_model(trainer.model).named_parameters()
            return {name: whole_copy(p).clone() for name, p in named if p.requires_grad}

        last = run(ranks, f"{name}-both")
        told = ranks.gather(float(sum(p.double().sum() for p in last.values())))
        if not ranks.lead:
            return
        run(Ranks(), f"{name}-alone")
        ends = [read_state(str(self.folder / f"{name}-{who}"), "run") for who in ("both", "alone")]
        begin = read_state(str(self.folder / f"{name}-both"), "run", 0)[0]
        both, alone = (
            torch.cat([(theta[k] - begin[k]).flatten().double() for k in sorted(theta)])
            for theta, _ in ends
        )
        self.seen[f"rounds {name}"] = {
            "error": float((both - alone).norm() / alone.norm()),
            "moved": float(alone.norm()),
            "rounds": [commit.round for _, commit in ends],
            "adopted": all(torch.equal(last[k], value) for k, value in ends[0][0].items()),
            "sums": told,
        }


def main():
    """Run all cases."""
    folder = Path(sys.argv[1])
    pair = Cases(folder)
    whole_model = recipe(
        lora={"r": 0}, channels=CHANNELS | {"sdpo": CHANNELS["sdpo"] | {"teacher": "live"}}
    )
    for sharding in ("ddp", "fsdp2"):
        for shared in ("on", "off"):
            pair.gradients(f"lora {sharding} {shared}", recipe(shared_prefix=shared), sharding)
        pair.gradients(
            f"whole {sharding}", whole_model.model_copy(update={"activation_checkpointing": True}),
            sharding,
        )  # fmt: skip
        pair.broken(sharding)
        pair.sampled(sharding)
    pair.gradients("whole fsdp2 off", whole_model.model_copy(update={"shared_prefix": "off"}),
                   "fsdp2")  # fmt: skip
    pair.memory()
    pair.refused()
    diloco = {"diloco": recipe(diloco={"replicas": 1, "rounds": 2, "inner_steps": 2}).diloco}
    steady = {**diloco, "optimizer": "sgd", "learning_rate": 0.05}
    pair.rounds("lora ddp", recipe(**diloco), "ddp")
    pair.rounds("whole fsdp2", whole_model.model_copy(update=steady), "fsdp2")
    pair.rounds("lora ddp overlap", recipe(**diloco), "ddp", overlap=1)
    pair.rounds("whole fsdp2 overlap", whole_model.model_copy(update=steady), "fsdp2", overlap=1)
    if pair.ranks.lead:
        (folder / "seen.json").write_text(json.dumps(pair.seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
