"""Models and adapters on the Hugging Face Hub: which commit, and its files in the local cache.

Belongs here: asking the Hub, and its refusals as one sentence. Does not belong here: names that
are no Hub id (``training.models``). Without a network the cache answers, where it can.
"""

from pathlib import Path
from typing import Any

from composer_pipeline.errors import ComposerError, InputError

#: Files that loading needs; other formats of the same weights and sub-folders stay there.
WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "README.md")
UNWANTED = ("*/*", "consolidated*")
INSTALL_HUB = "pip install 'composer-pipeline[train]'"
#: Seconds that the Hub gets for an answer before the cache is asked.
PATIENCE_S = 10.0


def commit_of(name: str, what: str = "model") -> str:
    """Return the commit that a Hub id stands for now, or the cached one without a network.

    Args:
        name: ``owner/name``.
        what: the recipe's field, for the error.

    Raises:
        InputError: it is not there, not for this token, or neither Hub nor cache has it.
        ComposerError: the Hub answered something else.
    """
    hub = _hub(what, name)
    try:
        info = hub.HfApi().model_info(name, timeout=PATIENCE_S)
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
    """Return the folder of a Hub id's files in the local cache; downloads what is missing.

    Raises:
        InputError, ComposerError: as :func:`commit_of`.
    """
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
        f"{what} {name!r} is no folder here, not in the Hugging Face cache, and the Hub is out"
        " of reach"
    )


def _hub(what: str, name: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(f"{what} {name!r} is a Hub id, which needs: {INSTALL_HUB}") from None
    return huggingface_hub
