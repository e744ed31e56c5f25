"""Publish a trained model: a run's checkpoint or its merged weights, in one commit to the Hub.

Belongs here: which files go, and the refusals. Does not belong here: writing the checkpoint and
its card (``trainers``, ``training.runs.card``), and the commit (``publishing.hub``).

The files are pushed as they are in the folder: what was tested is what is published.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from composer_pipeline.errors import InputError
from composer_pipeline.publishing.changes import Content
from composer_pipeline.publishing.gates import PublishRefused, check_files
from composer_pipeline.publishing.hub import (
    Hub,
    Remote,
    bring,
    check_published,
    check_repo,
    token_of,
)
from composer_pipeline.publishing.publish import PublishReport, planned
from composer_pipeline.training.runs.card import evaluation_of

CARD, RESULT, CHECKPOINT = "README.md", "composer.json", "checkpoint"
#: Files of the base model's tokenizer: half a megabyte of tokens, none of them ours.
TOKENS = ("tokenizer.json", "vocab.json", "merges.txt")
TEXT = (".json", ".md", ".jinja", ".txt")
#: What a publication replaces: of adapter and whole model, a repository holds one.
OURS = re.compile(
    r"(adapter_(config\.json|model.*\.safetensors)|model.*\.safetensors(\.index\.json)?"
    r"|(generation_)?config\.json|composer\.json|channels\.safetensors)"
)


def publish_model(
    run: str | Path,
    repo: str,
    *,
    private: bool = True,
    dry_run: bool = False,
    allow_simulated: bool = False,
    allow_worse_than_base: bool = False,
    token_env: str = "HF_TOKEN",  # noqa: S107  the name of a variable, not a token
    endpoint: str | None = None,
) -> PublishReport:
    """Bring a model repository to the state of a run's checkpoint.

    Args:
        run: a run folder, whose checkpoint goes, or its folder ``merged``.
        repo: ``owner/name`` of a model repository; created when it does not exist.
        private: create it private, and refuse one that is already public.
        dry_run: check and compare, change nothing. Without a token everything counts as new.
        allow_simulated: publish a model that saw rows of simulated teachers; its card says so.
        allow_worse_than_base: publish a model whose evaluation says that it is worse than its
            base on easy or recovery states; its card says so.
        token_env: environment variable that holds the token.
        endpoint: another Hub; ``HF_ENDPOINT`` or the real one by default.

    Raises:
        InputError: a bad repository name, no checkpoint, no token, a repository that is public
            without ``private=False``, simulated rows without ``allow_simulated``, or a model
            that is worse than its base without ``allow_worse_than_base``.
        PublishRefused: a text file holds something private, or there is no card.
        ComposerError: the Hub refused for another reason, or was busy five times.
    """
    check_repo(repo)
    folder = checkpoint_of(Path(run))
    files = {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }
    if CARD not in files:
        raise PublishRefused(f"{folder} has no {CARD}: a model is not published without its card")
    texts = {n: path for n, path in files.items() if n.endswith(TEXT) and n not in TOKENS}
    check_files(texts, public=not private)
    simulated = json.loads(files[RESULT].read_text(encoding="utf-8")).get("simulated") or {}
    if any(simulated.values()) and not allow_simulated:
        raise InputError(
            f"{sum(simulated.values())} rows that {folder} was trained on come from simulated"
            " teachers; allow_simulated (--allow-simulated) publishes it, and the card says so"
        )
    evaluation = evaluation_of(folder.parent) or {}
    if evaluation.get("worse") and not allow_worse_than_base:
        raise InputError(
            f"{folder} is worse than its base on {'; '.join(evaluation['worse'])};"
            " allow_worse_than_base (--allow-worse-than-base) publishes it, and the card says so"
        )
    token = token_of(token_env, dry_run=dry_run)
    if not token:
        return planned(files, {}, private=private)
    with Hub(repo, token, endpoint, "model") as hub:

        def prepare(remote: Remote) -> Mapping[str, Content]:
            hub.refuse_others(remote, RESULT in remote.files, RESULT)
            return files

        done = bring(hub, prepare, _is_ours, private=private, dry_run=dry_run)
        if not dry_run:
            check_published(hub, done.head, done.files)
        url = f"{hub.page}/tree/{done.head}" if done.head else hub.page
    return PublishReport(
        done.head,
        sorted(files),
        len(done.changes),
        {},
        private,
        dry_run,
        done.changes,
        url=url,
    )


def _is_ours(_: Remote, path: str) -> bool:
    return bool(OURS.fullmatch(path))


def checkpoint_of(path: Path) -> Path:
    """Return the folder of weights that a run folder or one of its own folders stands for.

    Raises:
        InputError: there is no finished checkpoint.
    """
    for folder in (path / CHECKPOINT, path):
        if (folder / RESULT).is_file() and any(folder.glob("*.safetensors")):
            return folder
    raise InputError(f"model {path} holds no finished training run")
