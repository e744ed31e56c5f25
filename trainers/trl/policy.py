"""The model that is trained, and SDPO's teachers: hidden states and log-probabilities of rows.

Imports no TRL, so that the base pass starts quickly.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from composer_pipeline.losses.token_logps import token_logps
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.rows import Row, backbone_and_head, logit_transform, response_states


class Policy:
    """A causal language model, bare or with a LoRA adapter, whose head has no bias."""

    #: Whether the states come from a forward that rows share.
    shared = False

    def __init__(
        self,
        model: Any,
        *,
        pad: int,
        device: Any,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        backbone_and_head(model)
        self.transform = logit_transform(model)
        self.model, self.pad, self.device, self._autocast = model, pad, device, autocast

    @property
    def head(self) -> Tensor:
        """The output embedding, (V, H)."""
        return backbone_and_head(self.model)[1]

    @property
    def has_adapter(self) -> bool:
        """Whether a LoRA adapter can be switched off."""
        return hasattr(self.model, "disable_adapter")

    def parameters(self) -> list[Tensor]:
        """Return the trained parameters: only the adapter's, with LoRA."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Return the states (N, H) that predict the rows' selected tokens, and these (N,)."""
        backbone, _ = backbone_and_head(self.model)
        with self._autocast():
            return response_states(backbone, rows, self.pad, self.device)

    def logps(self, rows: Sequence[Row]) -> list[Tensor]:
        """Return log p of each row's selected tokens at temperature 1, (n,) a row."""
        states, ids = self.states(rows)
        with self._autocast():
            # Temperature 1: TRL's own fused head divides by its sampling temperature.
            values = token_logps(states, self.head, ids, transform=self.transform)
        return list(values.split([row.size for row in rows]))

    def base(self) -> AbstractContextManager[Any]:
        """Switch the adapter off: the model as it was before training."""
        if not self.has_adapter:
            raise RuntimeError("a model without adapter has no base inside")
        context: AbstractContextManager[Any] = self.model.disable_adapter()
        return context


def frozen_copy(policy: Policy) -> Policy:
    """Return a frozen copy of the model, which takes its memory again."""
    import copy

    model = copy.deepcopy(policy.model).eval().requires_grad_(False)
    return Policy(model, pad=policy.pad, device=policy.device, autocast=policy._autocast)


def load_base(resolved: str, recipe: TrainingRecipe) -> Any:
    """Load a resolved model, bare."""
    # A fully trained model stays in float32 under autocast: bf16 cannot hold small updates. PEFT
    # keeps adapters in float32.
    half = recipe.dtype == "bf16" and recipe.lora.r > 0
    return AutoModelForCausalLM.from_pretrained(
        resolved,
        dtype=torch.bfloat16 if half else torch.float32,
        attn_implementation=recipe.attention,
    )


def base_identity(model: Any, tokenizer: Any, recipe: TrainingRecipe) -> str:
    """Return named hashes of what all replicas of a run must have in common."""
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        weights.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    texts = {
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "template": str(tokenizer.chat_template),
        "recipe": recipe.agreed(),
    }
    named = {what: hashlib.sha256(text.encode()).hexdigest() for what, text in texts.items()}
    named = {"weights": weights.hexdigest(), **named}
    return " ".join(f"{what} {digest[:16]}" for what, digest in named.items())


def lora_config(recipe: TrainingRecipe) -> Any:
    """Return the PEFT configuration of a recipe, or ``None`` for full fine-tuning."""
    if not recipe.lora.r:
        return None
    from peft import LoraConfig

    targets = recipe.lora.targets
    return LoraConfig(
        r=recipe.lora.r,
        lora_alpha=recipe.lora.alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )


Kind = Literal["frozen", "ema", "live"]


class Teacher(ABC):
    """A model that reads the hint; no loss trains it."""

    @abstractmethod
    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Return states (N, H), the tokens (N,) that they predict, and the head (V, H)."""

    def follow(self) -> None:
        """Move after an optimizer step; only ``Ema`` does."""
        return

    def state(self) -> dict[str, Tensor]:
        """Return what a restart needs."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore :meth:`state`."""
        return


class Frozen(Teacher):
    """The model before training: the adapter off, or a copy where every parameter is trained."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._copy = None if policy.has_adapter else frozen_copy(policy)

    @torch.no_grad()
    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Run the base model."""
        if self._copy is not None:
            return (*self._copy.states(rows), self._copy.head)
        with self._policy.base():
            return (*self._policy.states(rows), self._policy.head.detach())


class Live(Teacher):
    """The policy itself, without gradient."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @torch.no_grad()
    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Run the policy."""
        return (*self._policy.states(rows), self._policy.head.detach())


class Ema(Teacher):
    """An exponential moving average of the trained parameters, kept in float32.

    ``average ← average + rate·(policy − average)`` after each optimizer step, starting from
    the policy as it is at the first forward.
    """

    def __init__(self, policy: Policy, rate: float) -> None:
        self._policy, self._rate = policy, rate
        self._average: dict[str, Tensor] = {}

    @torch.no_grad()
    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Run the average."""
        with self._swapped():
            states, ids = self._policy.states(rows)
            return states, ids, self._policy.head.detach()

    @torch.no_grad()
    def follow(self) -> None:
        """Take one step towards the policy, unless it has diverged: an average never recovers."""
        trained = self._trained()
        finite = [torch.isfinite(parameter).all() for parameter in trained.values()]
        if not bool(torch.stack(finite).all()):  # one synchronisation with the device
            return
        for name, parameter in trained.items():
            average = self._average[name]
            average += self._rate * (parameter.detach().float() - average)

    def state(self) -> dict[str, Tensor]:
        """Return the average by parameter name."""
        return {name: average.cpu() for name, average in self._trained_average().items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore an average."""
        device = self._policy.device
        self._average = {name: value.float().to(device) for name, value in tensors.items()}

    def _trained(self) -> dict[str, Tensor]:
        named = self._policy.model.named_parameters()
        trained = {name: p for name, p in named if p.requires_grad}
        if not self._average:
            self._average = {n: p.detach().float().clone() for n, p in trained.items()}
        return trained

    def _trained_average(self) -> dict[str, Tensor]:
        self._trained()
        return self._average

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        trained = self._trained()
        own = {name: parameter.data for name, parameter in trained.items()}
        try:
            for name, parameter in trained.items():
                parameter.data = self._average[name].to(parameter.dtype)
            yield
        finally:
            for name, parameter in trained.items():
                parameter.data = own[name]


def teacher(kind: Kind, policy: Policy, *, ema_rate: float) -> Teacher:
    """Return the teacher of a recipe."""
    if kind == "frozen":
        return Frozen(policy)
    return Ema(policy, ema_rate) if kind == "ema" else Live(policy)
