"""What DiLoCo costs in quality, beside data parallelism with the same tokens.

    python benchmarks/diloco.py [--record] [--seeds 1]

A byte-level language model (one hidden layer over 16 bytes, 88,448 parameters) on the text of the
standard library, from one warm start. Replicas run one after the other in this process through the
library's own ``pseudo_gradient``, ``encode_delta``, ``decode_delta`` and ``merged_steps``, so every
run is deterministic. Learning rates are tuned for each side on the same grid. The measure is the
loss on files that nobody trained on, in nats a byte.
"""

import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pages
import torch
from torch.nn.functional import cross_entropy

from composer_pipeline.diloco.codecs import Delta, decode_delta, encode_delta
from composer_pipeline.diloco.fragments import fragment_of, merged_steps
from composer_pipeline.diloco.outer_optimizer import OuterState, pseudo_gradient
from composer_pipeline.diloco.spec import Codec, DiLoCoSpec, outer_defaults
from trainers.common.muon import muon

RESULTS = Path(__file__).parent / "results" / "diloco.md"
CONTEXT, EMBED, HIDDEN = 16, 24, 128
BATCH, H, WARM, STEPS = 256, 25, 400, 600
GRID = (5e-4, 1e-3, 2e-3, 4e-3)
#: Learning rates between which each outer optimizer chooses for itself.
OUTER_GRID = (1e-3, 4e-3)
#: Outer learning rates and momenta that are compared: DiLoCo's own paper has 0.7/0.9.
OUTERS = {
    (1.0, 0.0): "plain averaging",
    (0.7, 0.5): "Nesterov 0.7/0.5",
    (0.7, 0.9): "Nesterov 0.7/0.9",
    (0.4, 0.8): "Nesterov 0.4/0.8",
}
#: Bytes of text that training and measuring read.
TRAIN_BYTES, HELD_BYTES = 4_000_000, 60_000
#: Steps of the next round that are made while a change travels, and seeds that are compared.
OVERLAPS, OVERLAP_SEEDS = (1, 5, 12, 25), 4
#: Rank of the adapters.
RANK = 4


class Model(torch.nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """Predicts a byte from the 16 before it; ``adapted`` adds a low-rank change to the middle."""

    def __init__(self, adapted: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, EMBED)
        self.middle = torch.nn.Linear(CONTEXT * EMBED, HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, 256)
        if adapted:
            for parameter in self.parameters():
                parameter.requires_grad_(False)
            self.a = torch.nn.Parameter(torch.randn(RANK, CONTEXT * EMBED) * 0.02)
            self.b = torch.nn.Parameter(torch.zeros(HIDDEN, RANK))
        self.adapted = adapted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, 256] of contexts [batch, 16]."""
        flat = self.embed(x).flatten(1)
        middle = self.middle(flat)
        if self.adapted:
            middle = middle + 4.0 * (flat @ self.a.T) @ self.b.T
        logits: torch.Tensor = self.out(torch.tanh(middle))
        return logits

    def get_output_embeddings(self) -> torch.nn.Module:
        """Return the head, as models of transformers do."""
        return self.out

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


@dataclass(frozen=True)
class Text:
    """Bytes to train on and to measure with."""

    train: torch.Tensor
    held: torch.Tensor

    @classmethod
    def load(cls) -> "Text":
        """Read the standard library's modules; every eighth file is held out."""
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        parts: dict[bool, bytes] = {True: b"", False: b""}
        for index, path in enumerate(files):
            parts[index % 8 == 0] += path.read_bytes()
        return cls(
            torch.frombuffer(bytearray(parts[False][:TRAIN_BYTES]), dtype=torch.uint8).long(),
            torch.frombuffer(bytearray(parts[True][:HELD_BYTES]), dtype=torch.uint8).long(),
        )

    def batch(self, seed: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return contexts and next bytes, the same for the same seed."""
        at = torch.randint(
            0, len(self.train) - CONTEXT, (size,), generator=torch.Generator().manual_seed(seed)
        )
        return self.train[at[:, None] + torch.arange(CONTEXT)], self.train[at + CONTEXT]

    def loss(self, model: Model) -> float:
        """Return the held-out loss, nats a byte."""
        windows = self.held.unfold(0, CONTEXT + 1, 1)
        with torch.no_grad():
            return float(cross_entropy(model(windows[:, :-1]), windows[:, -1]))


def copy(theta: Mapping[str, torch.Tensor], into: Model) -> Model:
    """Set trained parameters of a model: those that are given."""
    with torch.no_grad():
        parameters = into.trained()
        for name, tensor in theta.items():
            parameters[name].copy_(tensor)
    return into


def steps(
    model: Model, optimizer: torch.optim.Optimizer, batches: Sequence[tuple[torch.Tensor, ...]]
) -> None:
    """Take one step a batch."""
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def adamw(model: Model, rate: float) -> torch.optim.Optimizer:
    """Return the inner optimizer."""
    return torch.optim.AdamW(model.trained().values(), lr=rate)


def with_muon(model: Model, rate: float) -> torch.optim.Optimizer:
    """Return the library's other inner optimizer, with AdamW's decay."""
    return muon(model, lr=rate, weight_decay=0.01)


def seed_of(seed: int, slot: int, step: int) -> int:
    """Return the seed of a replica's batch at a step of the run."""
    return 1_000_003 * seed + 100_003 * slot + step


class World:
    """The warm start, and runs from it."""

    def __init__(self, text: Text, seed: int) -> None:
        torch.manual_seed(seed)
        self.text, self.seed = text, seed
        model = Model()
        batches = [text.batch(seed_of(seed, 7, -s - 1), 2 * BATCH) for s in range(WARM)]
        steps(model, adamw(model, 2e-3), batches)
        self.warm = {name: p.detach().clone() for name, p in model.named_parameters()}

    def model(self, adapted: bool = False) -> Model:
        """Return a model at the warm start."""
        torch.manual_seed(self.seed)
        model = Model(adapted)
        model.load_state_dict(self.warm, strict=False)
        return model

    def parallel(self, rate: float, replicas: int, count: int = STEPS) -> float:
        """Return the loss of data parallelism: every step has the batches of all replicas."""
        model = self.model()
        optimizer = adamw(model, rate)
        for step in range(count):
            parts = [self._batch(slot, step) for slot in range(replicas)]
            steps(model, optimizer, [tuple(torch.cat(p) for p in zip(*parts, strict=True))])
        return self.text.loss(model)

    def _batch(self, slot: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.text.batch(seed_of(self.seed, slot, step), BATCH)

    def diloco(
        self,
        rate: float,
        *,
        replicas: int = 2,
        rounds: int = STEPS // H,
        outer: tuple[float, float] | None = None,
        codec: Codec = "fp32",
        lost: Mapping[int, range] | None = None,
        merge: Callable[["World", OuterState, list[Delta]], OuterState] | None = None,
        adapted: bool = False,
        inner: Callable[[Model, float], torch.optim.Optimizer] = adamw,
        fragments: int = 1,
        overlap: int = 0,
        steps_a_round: int = H,
        sent: list[int] | None = None,
    ) -> Model:
        """Return the model after so many rounds."""
        lr, mu = outer or outer_defaults(rounds // fragments, replicas)
        spec = DiLoCoSpec(
            rounds=rounds, inner_steps=steps_a_round, replicas=replicas, outer_lr=lr,
            outer_momentum=mu, fragments=fragments,
        )  # fmt: skip
        models = [self.model(adapted) for _ in range(replicas)]
        state = OuterState.initial(models[0].trained())
        left: dict[int, dict[str, torch.Tensor]] = {}
        travels: dict[int, dict[str, torch.Tensor]] = {}
        optimizers = [inner(model, rate) for model in models]
        parts = dict(state.theta)
        for round_ in range(rounds):
            deltas, taken = [], parts
            parts = fragment_of(state.theta, fragments, spec.fragment(round_ + 1))
            for slot, model in enumerate(models):
                if round_ in (lost or {}).get(slot, ()):
                    optimizers[slot] = inner(model, rate)
                    continue
                span = range(round_ * steps_a_round, (round_ + 1) * steps_a_round)
                batches = [self._batch(slot, s) for s in span]
                was = travels.get(slot, {})
                steps(model, optimizers[slot], batches[: overlap if was else 0])
                own = model.trained()
                for name in taken:
                    new = state.theta[name]
                    own[name].data = own[name].data + (new - was[name]) if was else new.clone()
                steps(model, optimizers[slot], batches[overlap if was else 0 :])
                if overlap:
                    travels[slot] = {name: own[name].detach().clone() for name in parts}
                delta: Mapping[str, torch.Tensor] = pseudo_gradient(parts, model.trained())
                if slot in left:
                    delta = {name: tensor + left[slot][name] for name, tensor in delta.items()}
                packed = Delta.pack(delta, codec)
                if spec.takes_result_as_is:
                    packed = Delta.to(model.trained(), parts)
                data = bytes(encode_delta(packed))
                there = decode_delta(data, parts, codec)
                if codec in ("int4", "int2"):
                    left[slot] = {name: delta[name] - there[name] for name in delta}
                deltas.append(there)
            if sent is not None:
                sent.append(len(data))
            if merge:
                state = merge(self, state, deltas)
            else:
                shares = [1 / len(deltas)] * len(deltas)
                list(merged_steps(state, deltas, shares, spec))
        return copy(state.theta, models[0])


def average_of_products(world: World, state: OuterState, deltas: list[Delta]) -> OuterState:
    """Merge adapters by the mean of their products b·a, brought back to the rank by SVD."""
    products = [(state.theta["b"] - d["b"]) @ (state.theta["a"] - d["a"]) for d in deltas]
    u, s, v = torch.linalg.svd(torch.stack(products).mean(0), full_matrices=False)
    root = s[:RANK].sqrt()
    theta = {"a": root[:, None] * v[:RANK], "b": u[:, :RANK] * root}
    return OuterState(theta, state.momentum)


@dataclass(frozen=True)
class Row:
    """One measured thing; ``bar`` is what it must not exceed (or reach, with ``least``)."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether it is within its bar."""
        if self.bar is None:
            return True
        return self.value >= self.bar if self.least else self.value <= self.bar


def best(runs: Mapping[float, float]) -> tuple[float, float]:
    """Return the learning rate with the lowest loss, and the loss."""
    rate = min(runs, key=runs.__getitem__)
    return rate, runs[rate]


def measure(seed: int) -> list[Row]:
    """Run everything from one seed."""
    text = Text.load()
    world = World(text, seed)
    rate2, parallel = best({r: world.parallel(r, 2) for r in GRID})
    rate1, one = best({r: world.parallel(r, 1) for r in GRID})
    rate, merged = best({r: text.loss(world.diloco(r)) for r in GRID})
    rows = [
        Row("warm start", text.loss(world.model()), "nats"),
        Row(f"data parallel, 2 replicas (learning rate {rate2:g})", parallel, "nats"),
        Row(f"one replica, half the tokens (learning rate {rate1:g})", one, "nats"),
        Row(f"DiLoCo, 2 replicas, H = {H} (learning rate {rate:g})", merged, "nats"),
        Row("gap of DiLoCo to data parallel", 100 * (merged / parallel - 1), "%", 3.0),
        Row(
            "share of the second replica's gain", 100 * (one - merged) / (one - parallel), "%",
            60.0, True,
        ),
    ]  # fmt: skip
    lost = text.loss(world.diloco(rate, lost={1: range(10, 14)}))
    rows.append(Row("one of two lost for 4 of 24 rounds", 100 * (lost / merged - 1), "%", 2.0))
    bars: dict[Codec, float | None] = {"int8": 0.2, "int4": None, "int2": 3.0}
    for codec, bar in bars.items():
        coded = text.loss(world.diloco(rate, codec=codec))
        rows.append(Row(f"{codec} beside fp32", 100 * (coded / merged - 1), "%", bar))
    rows += _overlap(seed, text, rate)
    rows += _muon(world)
    rows += _outer(world)
    plain = world.model()
    steps(plain, adamw(plain, rate1), [world._batch(0, s) for s in range(4 * H)])
    alone = world.diloco(rate1, replicas=1, rounds=4).trained()
    apart = max(
        float((p.detach() - alone[n].detach()).abs().max()) for n, p in plain.trained().items()
    )
    rows.append(Row("one replica beside the plain trainer, 4 rounds: largest difference", apart,
                    "", 0.0))  # fmt: skip
    return [*rows, *_adapters(world)]


def _overlap(seed: int, text: Text, rate: float) -> list[Row]:
    """Compare rounds whose changes travel while training goes on with rounds that wait."""
    rows, worlds = [], [World(text, s) for s in range(seed, seed + OVERLAP_SEEDS)]
    waiting = [text.loss(world.diloco(rate)) for world in worlds]
    for overlap in OVERLAPS:
        losses = [text.loss(world.diloco(rate, overlap=overlap)) for world in worlds]
        gap = 100 * (sum(losses) / sum(waiting) - 1)
        rows.append(
            Row(f"{overlap} steps of overlap beside waiting, {len(worlds)} seeds", gap, "%", 0.3)
        )
    return rows


def _muon(world: World) -> list[Row]:
    """Look at the other inner optimizer, with which two bits are said to be enough."""
    rate, whole = best({r: world.text.loss(world.diloco(r, inner=with_muon)) for r in GRID})
    coded = world.text.loss(world.diloco(rate, inner=with_muon, codec="int2"))
    return [
        Row(f"DiLoCo with Muon, 2 replicas (learning rate {rate:g})", whole, "nats"),
        Row("Muon, int2 beside fp32", 100 * (coded / whole - 1), "%", 3.0),
    ]


def _outer(world: World) -> list[Row]:
    """Compare outer optimizers over run lengths; the default must be the best or next to it."""
    rows = []
    for replicas, lengths in ((2, (6, 12, 24, 48)), (4, (6, 24))):
        for rounds in lengths:
            found = {
                outer: min(
                    world.text.loss(
                        world.diloco(rate, replicas=replicas, rounds=rounds, outer=outer)
                    )
                    for rate in OUTER_GRID
                )
                for outer in OUTERS
            }
            least = min(found.values())
            above = 100 * (found[outer_defaults(rounds, replicas)] / least - 1)
            where = f"{replicas} replicas, {rounds} rounds"
            rows += [Row(f"{where}: {OUTERS[o]}", loss, "nats") for o, loss in found.items()]
            rows.append(Row(f"{where}: the default above the best", above, "%", 0.5))
    return rows


def _adapters(world: World) -> list[Row]:
    """Compare averaging of adapters with averaging of what they do."""
    rounds, averaging = 12, (1.0, 0.0)
    runs = {
        r: world.text.loss(world.diloco(r, adapted=True, rounds=rounds, outer=averaging))
        for r in GRID[1:]
    }
    rate, factors = best(runs)
    product = world.text.loss(
        world.diloco(rate, adapted=True, rounds=rounds, merge=average_of_products)
    )
    return [
        Row(f"adapters of rank {RANK}, averaged as they are (12 rounds)", factors, "nats"),
        Row("adapters averaged as products, brought back by SVD", product, "nats"),
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [
        f"| {row.name} | {row.value:.4g} {row.unit} |"
        f" {'' if row.bar is None else ('≥' if row.least else '≤') + f' {row.bar:g} {row.unit}'} |"
        f" {'' if row.bar is None else 'yes' if row.met else '**no**'} |"
        for row in rows
    ]
    return ["| | measured | bar | met |", "|---|---:|---:|---|", *lines]


def page(rows: Sequence[Row], seeds: int, cpu_s: float) -> str:
    """Return the recorded page."""
    return "\n".join(
        [
            "# DiLoCo beside data parallelism",
            "",
            f"`make bench-diloco`, seeds: {seeds}, {cpu_s:.0f} CPU seconds.",
            "A byte-level model of 88,448 parameters on the standard library's text, warm start of",
            f"{WARM} steps, then {STEPS} of {BATCH} bytes a replica; equal tokens on both sides,",
            f"learning rates from one grid ({', '.join(f'{r:g}' for r in GRID)}); each outer",
            f"optimizer chooses between {' and '.join(f'{r:g}' for r in OUTER_GRID)}.",
            "Replicas run one after the other in one process through the library's own codecs and",
            "outer step. Goodput of real processes is in `diloco_goodput.md`, memory and bytes of",
            "a sync in `diloco_memory.md`, rounds of one fragment in `diloco_fragments.md`.",
            "",
            *table(rows),
            "",
        ]
    )  # fmt: skip


def main() -> int:
    """Measure, print and perhaps record; 1 where a bar is not met."""
    parser = pages.options(__doc__, RESULTS)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    found = [measure(seed) for seed in range(1, given.seeds + 1)]
    rows = [
        Row(row[0].name, sum(r.value for r in row) / len(row), row[0].unit, row[0].bar,
            row[0].least)
        for row in zip(*found, strict=True)
    ]  # fmt: skip
    text = page(rows, given.seeds, time.process_time() - begun)
    pages.show(text, RESULTS, given)
    return int(not all(row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
