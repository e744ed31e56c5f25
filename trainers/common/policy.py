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

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.losses.token_logps import token_logps
from composer_pipeline.training.plan import devices
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.common.attention import NAME
from trainers.common.rows import Row, backbone_and_head, logit_transform, response_states
from trainers.common.trees import Layout, Tree, block_mask, dense_mask


class Policy:
    """A causal language model, bare or with a LoRA adapter, whose head has no bias."""

    #: Whether the states come from a forward that rows share.
    shared = False
    #: Whether trees, and other rows, are read side by side in one row, through FlexAttention.
    packed = False
    #: Whether a 16-bit model runs in float32 for now.
    widened = False

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
        if self.packed:
            tree = Tree(rows)
            wanted = [(0, node) for row in rows for node in tree.places(row)]
            ids = [i for row in rows for i in row.response[row.start : row.start + row.size]]
            with tree_attention(self):
                return self.read([tree], wanted), torch.tensor(ids, device=self.device)
        backbone, _ = backbone_and_head(self.model)
        with self._autocast():
            return response_states(backbone, rows, self.pad, self.device)

    def read(self, trees: Sequence[Tree], wanted: Sequence[tuple[int, int]]) -> Tensor:
        """Return the states (N, H) of the ``wanted`` nodes, each a tree's number and its node.

        To be called inside :func:`tree_attention`, and so is the backward.
        """
        backbone, _ = backbone_and_head(self.model)
        layout = Layout(trees, self.pad, packed=self.packed)
        mask = (
            block_mask(layout.ends, self.device)
            if self.packed
            else dense_mask(layout.ends.to(self.device), self._dtype(backbone))
        )
        with self._autocast():
            hidden = backbone(
                input_ids=layout.ids.to(self.device), attention_mask=mask,
                position_ids=layout.positions.to(self.device), use_cache=False,
            ).last_hidden_state  # fmt: skip
        row, at = torch.tensor([layout.at(*node) for node in wanted], device=self.device).T
        return hidden[row, at]

    def _dtype(self, backbone: Any) -> torch.dtype:
        """Return the type in which the model's attention computes."""
        with self._autocast():
            kind = torch.device(self.device).type
            if torch.is_autocast_enabled(kind):
                return torch.get_autocast_dtype(kind)
        dtype: torch.dtype = next(backbone.parameters()).dtype
        return torch.float32 if self.widened else dtype

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


@contextmanager
def tree_attention(policy: Policy) -> Iterator[None]:
    """Let the model's attention take a block mask, if the policy packs its rows.

    To be open around the backward too, which recomputes checkpointed activations.
    """
    config = backbone_and_head(policy.model)[0].config
    before = config._attn_implementation
    if policy.packed:
        config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def frozen_copy(policy: Policy) -> Policy:
    """Return a frozen copy of the model, which takes its memory again."""
    import copy

    model = copy.deepcopy(policy.model).eval().requires_grad_(False)
    copied = Policy(model, pad=policy.pad, device=policy.device, autocast=policy._autocast)
    copied.packed = policy.packed
    return copied


#: The first and the last version of torch with which `tests/gpu` passed or the API is the same.
_TESTED = ((2, 11), (2, 13))


def check_devices(recipe: TrainingRecipe) -> None:
    """Raise ``InputError`` where the devices of this machine cannot run a recipe."""
    there, usable = len(devices()), torch.cuda.is_available()
    if there and not usable:
        raise InputError(
            f"nvidia-smi lists {there} device{'s' * (there > 1)}, and torch {torch.__version__} can"
            f" use none: the driver is too old for CUDA {torch.version.cuda} or incomplete; update"
            " it, or train on the CPU with CUDA_VISIBLE_DEVICES="
        )
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if usable and not _TESTED[0] <= version <= _TESTED[1] and recipe.attention != "eager":
        raise InputError(
            f"torch {torch.__version__} is not one with which the compiled attention was tested"
            " (2.11 to 2.13): install torch==2.13.0, or set recipe field attention: eager"
        )
    if recipe.dtype == "bf16" and usable and torch.cuda.get_device_capability() < (8, 0):
        raise InputError(
            f"recipe field dtype: bf16, which {torch.cuda.get_device_name()} does not compute (it"
            " takes compute capability 8.0): set fp32"
        )


@contextmanager
def device_memory(what: str) -> Iterator[None]:
    """Turn torch's error about a device without enough free memory into one sentence."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ComposerError(
            f"{what} ran out of device memory: stop what else uses the device, or lower"
            f" micro_batch_tokens or data.max_prompt_tokens ({str(error).partition('. ')[0]})"
        ) from error


def load_base(resolved: str, recipe: TrainingRecipe) -> Any:
    """Load a resolved model, bare; raises ``InputError`` where no device here can run it."""
    check_devices(recipe)
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
