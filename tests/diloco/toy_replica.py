"""A replica of a tiny model, without a trainer: the processes and threads of the tests.

Run as a script it is one slot, started by the supervisor's environment. TOY_KILL is
"<slot>:<where>:<round>" and strikes the slot's first attempt only; ``where`` is inner,
after_delta, after_contribution or after_state. With TOY_LORA it trains low-rank adapters alone.
"""

import os
import signal
from collections.abc import Iterable

import torch

from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.outer_optimizer import pseudo_gradient
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec


class Adapted(torch.nn.Module):
    """A frozen layer, the same everywhere, with a low-rank adapter that is trained."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        torch.nn.init.constant_(layer.weight, 0.1)
        torch.nn.init.zeros_(layer.bias)
        self.lora_a = torch.nn.Parameter(torch.zeros(2, layer.in_features))
        self.lora_b = torch.nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x):
        return self.layer(x) + x @ self.lora_a.T @ self.lora_b.T


def model(seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    layers = torch.nn.Linear(6, 16), torch.nn.Linear(16, 3)
    first, second = map(Adapted, layers) if os.environ.get("TOY_LORA") else layers
    net = torch.nn.Sequential(first, torch.nn.Tanh(), second)
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.requires_grad:
                continue
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return net


class Inner:
    """The inner loop of one slot; its batches depend on (slot, round, step) alone."""

    def __init__(self, slot: int, seed: int | None = None) -> None:
        self.slot = slot
        # Each slot starts from other weights on purpose: round 0 must make them equal.
        self.net = model(slot if seed is None else seed)
        self.optimizer = torch.optim.AdamW(self.parameters().values(), lr=1e-2)

    def parameters(self) -> dict[str, torch.Tensor]:
        return {n: p for n, p in self.net.named_parameters() if p.requires_grad}

    def adopt(self, theta: dict[str, torch.Tensor], names: Iterable[str] | None = None) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                if names is None or name in names:
                    parameter.copy_(theta[name])

    def steps(self, round_: int, count: int, before_step=lambda step: None) -> None:
        for step in range(count):
            before_step(step)
            generator = torch.Generator().manual_seed(10_000 * round_ + 100 * self.slot + step)
            x = torch.randn(32, 6, generator=generator)
            target = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3:].sum(1)], 1)
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.net(x), target).backward()
            self.optimizer.step()


def replica_loop(
    replica: Replica, hook=lambda where, round_: None, seed: int | None = None
) -> list:
    """Train one slot to the end of the run; return the results of its rounds.

    ``hook("delta", round)`` may return a function that spoils the delta.
    """
    inner, results = Inner(replica.slot, seed), []
    inner.adopt(replica.join(inner.parameters()).theta)
    while not replica.finished:
        round_ = replica.round

        def before_step(step: int, round_: int = round_) -> None:
            if step == 2:
                hook("inner", round_)

        inner.steps(round_, replica.spec.inner_steps, before_step)
        delta = pseudo_gradient(replica.state.theta, inner.parameters())
        if (spoil := hook("delta", round_)) is not None:
            delta = spoil(delta)
        result = replica.sync(delta, tokens=32 * replica.spec.inner_steps)
        results.append(result)
        inner.adopt(replica.state.theta, result.changed)
    replica.close()
    return results


class HookedLog(OuterLog):
    """A log that calls ``hook(where, round)`` at the protocol's dangerous moments."""

    hook = staticmethod(lambda where, round_: None)

    def members(self, *having):
        self.hook("members", 0)
        return super().members(*having)

    def contribute(self, contribution):
        self.hook("after_delta", contribution.round)
        written = super().contribute(contribution)
        self.hook("after_contribution", contribution.round)
        return written

    def try_commit(self, commit):
        self.hook("after_state", commit.round)
        return super().try_commit(commit)


def main() -> None:
    torch.set_num_threads(1)
    env = os.environ
    slot, attempt = int(env["COMPOSER_DILOCO_SLOT"]), int(env["COMPOSER_DILOCO_ATTEMPT"])
    victim = env.get("TOY_KILL", "").split(",")

    def hook(where: str, round_: int) -> None:
        if attempt == 1 and f"{slot}:{where}:{round_}" in victim:
            print(f"killed at {where} of round {round_}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    log = HookedLog.open(env["COMPOSER_DILOCO_URL"], env["COMPOSER_DILOCO_RUN"])
    assert isinstance(log, HookedLog)
    log.hook = hook
    spec = DiLoCoSpec.from_json(env["COMPOSER_DILOCO_SPEC"], "COMPOSER_DILOCO_SPEC")
    replica = Replica(log, spec, slot, attempt)
    replica_loop(replica, hook)
    print(f"slot {slot} attempt {attempt} ends with {replica.sha}", flush=True)


if __name__ == "__main__":
    main()
