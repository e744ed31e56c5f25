"""The shape of a model, from its config.json alone.

Belongs here: reading it, and counting parameters. Does not belong here: bytes
(``training.planning.memory``).

Only the family of Llama is understood: RMS norms before attention and a gated MLP, as Llama,
Qwen2, Qwen3, Mistral and SmolLM have it. Others are refused rather than guessed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe

#: Model types whose layers have the parts that ``memory`` counts.
KNOWN = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
#: With a norm of each head's query and key.
_QK_NORM = ("qwen3",)
#: With a bias on query, key and value.
_QKV_BIAS = ("qwen2",)


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model: H hidden, I intermediate, V vocabulary."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    qkv_bias: bool = False

    @staticmethod
    def load(path: Path) -> "ModelShape":
        """Read a config.json, or the one of a model's folder.

        Raises:
            InputError: it is not there, not JSON, or of another family.
        """
        path = path / "config.json" if path.is_dir() else path
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"model config {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"model config {path} is not JSON: {error}") from error
        kind = config.get("model_type")
        if kind not in KNOWN:
            raise InputError(
                f"model config {path}: memory of model_type {kind!r} is not predicted (known:"
                f" {', '.join(KNOWN)}); train with a small micro_batch_tokens and read"
                " peak_memory_mib in metrics.jsonl"
            )
        try:
            heads, hidden = config["num_attention_heads"], config["hidden_size"]
            return ModelShape(
                hidden=hidden,
                layers=config["num_hidden_layers"],
                intermediate=config["intermediate_size"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or hidden // heads,
                vocabulary=config["vocab_size"],
                tied=bool(config.get("tie_word_embeddings", False)),
                qk_norm=kind in _QK_NORM,
                qkv_bias=kind in _QKV_BIAS or bool(config.get("attention_bias")),
            )
        except KeyError as error:
            raise InputError(f"model config {path} has no {error.args[0]}") from error

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """The linear maps of a layer: name to (inputs, outputs)."""
        h, i, kv = self.hidden, self.intermediate, self.kv_heads * self.head_dim
        q = self.heads * self.head_dim
        return {
            "q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h),
            "gate_proj": (h, i), "up_proj": (h, i), "down_proj": (i, h),
        }  # fmt: skip

    @property
    def layer_parameters(self) -> int:
        """Parameters of the linear maps of one layer."""
        return sum(a * b for a, b in self.linears.values())

    @property
    def parameters(self) -> int:
        """All parameters."""
        h, kv = self.hidden, self.kv_heads * self.head_dim
        small = 2 * h + 2 * self.head_dim * self.qk_norm
        bias = (self.heads * self.head_dim + 2 * kv) * self.qkv_bias
        embeddings = self.vocabulary * h * (1 if self.tied else 2)
        return embeddings + self.layers * (self.layer_parameters + small + bias) + h

    def targets(self, recipe: TrainingRecipe) -> list[str]:
        """Return the linear maps of a layer that the recipe's adapter sits on."""
        given = recipe.lora.targets
        return [n for n in self.linears if recipe.lora.r and (given == "all-linear" or n in given)]

    def trained(self, recipe: TrainingRecipe) -> int:
        """Return the parameters that a recipe trains."""
        if not recipe.lora.r:
            return self.parameters
        pairs = (self.linears[name] for name in self.targets(recipe))
        return self.layers * recipe.lora.r * sum(a + b for a, b in pairs)
