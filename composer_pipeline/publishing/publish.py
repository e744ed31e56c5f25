"""Publish the dataset: plan, gates, and one commit to the Hugging Face Hub.

Belongs here: the files of the repository, the refusals, the commit and its retries. Does
not belong here: which rows there are (``publishing.dataset``) and the card's words.

One ``create_commit`` with ``parent_commit`` carries every change, deletions included: the
repository has the old dataset or the new one. Files are byte-deterministic, so publishing
twice commits once. A lost answer is safe to retry for the same reason. The token is read
from the environment, handed to the client, and goes nowhere else.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import InputError
from composer_pipeline.lake import DATASETS, SCHEMA_VERSION, Lake
from composer_pipeline.preferences.quality import ALL
from composer_pipeline.publishing.card.old import card, simulated_rows
from composer_pipeline.publishing.changes import Content
from composer_pipeline.publishing.configs import CONFIGS, file_path
from composer_pipeline.publishing.gates import check_files
from composer_pipeline.publishing.hub import Hub
from composer_pipeline.publishing.splits import SPLITS
from composer_pipeline.reports import Progress, Report

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def check_repo(repo: str) -> None:
    """Refuse a name that is no repository's.

    Raises:
        InputError: it is not ``OWNER/NAME``.
    """
    if not _REPO.fullmatch(repo):
        raise InputError(f"repo {repo!r} is not OWNER/NAME")


@dataclass(frozen=True)
class PublishReport(Report):
    """What a publication did.

    ``commit`` is the new head, or the head that already held these bytes, or empty for a
    dry run against nothing; ``files`` are all files of the dataset or model; ``changed`` counts
    those that differed (added, replaced or removed) and ``changes`` says how each did;
    ``rows`` are those of a dataset.
    """

    commit: str
    files: list[str]
    changed: int
    rows: dict[str, int]
    private: bool
    dry_run: bool
    changes: dict[str, str] = field(default_factory=dict)


def publish(
    lake: Lake,
    repo: str,
    *,
    private: bool = True,
    dry_run: bool = False,
    allow_simulated: bool = False,
    token_env: str = "HF_TOKEN",  # noqa: S107  the name of a variable, not a token
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> PublishReport:
    """Bring a dataset repository to the state of the lake's ``dataset_*`` tables.

    Args:
        lake: reads the four ``dataset_*`` tables, and ``preference_statistics`` for the card.
        repo: ``owner/name`` of a dataset repository; created when it does not exist.
        private: create it private, and refuse one that is already public.
        dry_run: check and compare, change nothing. Without a token everything counts
            as new.
        allow_simulated: publish rows of simulated teachers; the card says so.
        token_env: environment variable that holds the token.
        endpoint: another Hub; ``HF_ENDPOINT`` or the real one by default.
        progress: called when the files are ready, and when the Hub has them.

    Raises:
        InputError: a bad repository name, no dataset, no token, a repository that is
            public without ``private=False``, simulated rows without ``allow_simulated``,
            or huggingface_hub is not installed.
        PublishRefused: a secret in a row or the card, a row in two splits, or chosen equal to
            rejected.
        ComposerError: the Hub refused for another reason, or was busy five times.
    """
    check_repo(repo)
    payloads = read_payloads(lake)
    tables = {key: pq.read_table(io.BytesIO(data)) for key, data in payloads.items()}
    made, total = simulated_rows(tables)
    if made and not allow_simulated:
        raise InputError(
            f"{made} of {total} rows come from simulated teachers; allow_simulated"
            " (--allow-simulated) publishes them, and the card says so"
        )
    files = {file_path(*key): data for key, data in payloads.items()}
    statistics = lake.rows("preference_statistics", scope=ALL)
    text = card(repo, tables, statistics)
    files["README.md"] = text.encode()
    files["manifest.json"] = _manifest(tables, files)
    check_files(files, public=not private)
    rows = {f"{config}/{split}": table.num_rows for (config, split), table in tables.items()}
    if progress:
        progress("publish", 1, 2)
    token = token_of(token_env, dry_run=dry_run)
    hub = Hub(repo, token, endpoint, "dataset", _is_data) if token else None
    report = bring(hub, files, rows, private=private, dry_run=dry_run)
    if progress and hub:
        progress("publish", 2, 2)
    return report


def token_of(variable: str, *, dry_run: bool) -> str:
    """Return the token that a variable holds; a dry run needs none.

    Raises:
        InputError: it holds none.
    """
    token = os.environ.get(variable, "")
    if not token and not dry_run:
        raise InputError(f"environment variable {variable} holds no token")
    return token


def bring(
    hub: Hub | None,
    files: Mapping[str, Content],
    rows: dict[str, int],
    *,
    private: bool,
    dry_run: bool,
) -> PublishReport:
    """Bring a repository to hold the files and say what changed; without a Hub all are new."""
    if hub is None:
        head, changes = "", dict.fromkeys(sorted(files), "add")
    else:
        head, changes = hub.bring(files, private=private, dry_run=dry_run)
    return PublishReport(head, sorted(files), len(changes), rows, private, dry_run, changes)


# -- plan ----------------------------------------------------------------------


def read_payloads(lake: Lake) -> dict[tuple[str, str], bytes]:
    """Return (config, split) to the bytes of the lake's file, for those with rows.

    ``load_dataset`` fails on a split whose files hold no row, so there is no such file.

    Raises:
        InputError: the dataset has not been built, or is empty.
    """
    payloads = {}
    for config, table in CONFIGS.items():
        for split in SPLITS:
            name = lake.path(table, split=split).removeprefix(lake.root + "/")
            if not lake.exists(name):
                if table not in DATASETS:
                    continue
                raise InputError(f"lake {lake.url} has no {table} of split {split}; run dataset")
            data = lake.get_bytes(name)
            lake.read(table, split=split, columns=[])  # damage is told by the file's name
            if pq.read_metadata(io.BytesIO(data)).num_rows:
                payloads[config, split] = data
    if not any(config == "pairs" for config, _ in payloads):
        raise InputError(f"lake {lake.url}: the dataset has no pair; nothing to publish")
    return payloads


def _manifest(tables: Mapping[tuple[str, str], pa.Table], files: Mapping[str, bytes]) -> bytes:
    entries = {
        file_path(*key): {
            "rows": table.num_rows,
            "bytes": len(files[file_path(*key)]),
            "sha256": hashlib.sha256(files[file_path(*key)]).hexdigest(),
        }
        for key, table in tables.items()
    }
    body = {"schema_version": SCHEMA_VERSION, "files": entries}
    return (json.dumps(body, indent=2, sort_keys=True) + "\n").encode()


def _is_data(path: str) -> bool:
    return path.startswith("data/") and path.endswith(".parquet")
