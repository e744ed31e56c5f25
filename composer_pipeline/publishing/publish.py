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
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.tables import SCHEMA_VERSION, TABLES
from composer_pipeline.preferences.quality.statistics import ALL
from composer_pipeline.publishing.card import CONFIGS, card, file_path, simulated_rows
from composer_pipeline.publishing.splits import SPLITS, overlaps, prompt_hash
from composer_pipeline.redaction.text import find_secrets

ATTEMPTS = 5
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


class PublishRefused(ComposerError):
    """A gate found something in the data that must not be published. Exit code 1."""


@dataclass(frozen=True)
class PublishReport:
    """What a publication did.

    ``commit`` is the new head, or the head that already held these bytes, or empty for a
    dry run against nothing; ``files`` are all files of the dataset; ``changed`` counts
    those that differed (added, replaced or removed) and ``changes`` says how each did.
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
) -> PublishReport:
    """Bring a dataset repository to the state of the lake's ``dataset_*`` tables.

    Args:
        lake: reads ``dataset_pairs``, ``dataset_groups`` and ``dataset_hints``, and
            ``preference_statistics`` for the card.
        repo: ``owner/name`` of a dataset repository; created when it does not exist.
        private: create it private, and refuse one that is already public.
        dry_run: check and compare, change nothing. Without a token everything counts
            as new.
        allow_simulated: publish rows of simulated teachers; the card says so.
        token_env: environment variable that holds the token.
        endpoint: another Hub; ``HF_ENDPOINT`` or the real one by default.

    Raises:
        InputError: a bad repository name, no dataset, no token, a repository that is
            public without ``private=False``, simulated rows without ``allow_simulated``,
            or huggingface_hub is not installed.
        PublishRefused: a secret, a row in two splits, or chosen equal to rejected.
        ComposerError: the Hub refused for another reason, or was busy five times.
    """
    if not _REPO.fullmatch(repo):
        raise InputError(f"repo {repo!r} is not OWNER/NAME")
    payloads = read_payloads(lake)
    tables = {key: pq.read_table(io.BytesIO(data)) for key, data in payloads.items()}
    check_gates(tables)
    made, total = simulated_rows(tables)
    if made and not allow_simulated:
        raise InputError(
            f"{made} of {total} rows come from simulated teachers; allow_simulated"
            " (--allow-simulated) publishes them, and the card says so"
        )
    files = {file_path(*key): data for key, data in payloads.items()}
    statistics = lake.rows("preference_statistics", scope=ALL)
    files["README.md"] = card(repo, tables, statistics).encode()
    files["manifest.json"] = _manifest(tables, files)
    rows = {f"{config}/{split}": table.num_rows for (config, split), table in tables.items()}
    token = os.environ.get(token_env, "")
    if dry_run and not token:
        changes = dict.fromkeys(sorted(files), "add")
        return PublishReport("", sorted(files), len(changes), rows, private, True, changes)
    if not token:
        raise InputError(f"environment variable {token_env} holds no token")
    hub = _Hub(repo, token, endpoint)
    try:
        head, changes = hub.bring(files, private=private, dry_run=dry_run)
    except hub.hub.errors.OfflineModeIsEnabled as error:
        raise InputError(
            "environment variable HF_HUB_OFFLINE keeps the Hub out of reach"
        ) from error
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
                raise InputError(f"lake {lake.url} has no {table} of split {split}; run dataset")
            data = lake.get_bytes(name)
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


# -- gates ---------------------------------------------------------------------


def check_gates(tables: Mapping[tuple[str, str], pa.Table]) -> None:
    """Refuse data that must not be published; look at what the final files decode to.

    Raises:
        PublishRefused: a secret, a group, session or prompt in two splits, or a pair
            whose two sides are equal.
    """
    sides: list[tuple[str, dict[str, str]]] = []
    for (config, split), table in tables.items():
        spec = TABLES[CONFIGS[config]]
        if table.column_names != spec.schema.names:
            raise PublishRefused(f"{config}/{split}: its columns are not those of {spec.name}")
        for row, column, kinds in _secrets(table):
            raise PublishRefused(
                f"{config}/{split}: row {row}, column {column} holds {', '.join(kinds)}"
            )
        prompts = table.column("prompt").to_pylist()
        for group, session, prompt in zip(
            table.column("group_id").to_pylist(),
            table.column("session_id").to_pylist(),
            prompts,
            strict=True,
        ):
            digest = prompt_hash([json.loads(message) for message in prompt])
            sides.append((split, {"group": group, "session": session, "prompt": digest}))
        if config == "pairs":
            _check_pairs(table, split)
    for kind, count in overlaps(sides).items():
        if count:
            raise PublishRefused(f"{count} {kind}(s) are in both splits")


def _check_pairs(table: pa.Table, split: str) -> None:
    ids = table.column("pair_id").to_pylist()
    if len(set(ids)) != len(ids):
        raise PublishRefused(f"pairs/{split}: a pair_id occurs twice")
    for pair_id, chosen, rejected in zip(
        ids,
        table.column("chosen").to_pylist(),
        table.column("rejected").to_pylist(),
        strict=True,
    ):
        if not chosen or not rejected or chosen == rejected:
            raise PublishRefused(
                f"pairs/{split}: pair {pair_id} has an empty side or chosen equal to rejected"
            )


def _secrets(table: pa.Table) -> Iterator[tuple[int, str, list[str]]]:
    """Scan every string of a table, inside JSON too; each distinct string once."""
    clean: set[str] = set()
    for name in table.column_names:
        for row, value in enumerate(table.column(name).to_pylist()):
            is_json = "arrow.json" in str(table.schema.field(name).type)
            items = value if isinstance(value, list) else [value]
            for item in items:
                if item in clean or not isinstance(item, str):
                    continue
                for text in _strings(json.loads(item)) if is_json else (item,):
                    if kinds := find_secrets(text):
                        yield row, name, kinds
                clean.add(item)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


# -- commit --------------------------------------------------------------------


class _Hub:
    """The real client, with our retries. Holds the token; has no repr of it."""

    def __init__(self, repo: str, token: str, endpoint: str | None) -> None:
        try:
            import huggingface_hub as hub
        except ImportError as error:
            raise InputError(
                "publishing needs: pip install 'composer-pipeline[publish]'"
            ) from error
        self.repo = repo
        self.hub = hub
        self.api = hub.HfApi(endpoint=endpoint, token=token)

    def bring(
        self, files: Mapping[str, bytes], *, private: bool, dry_run: bool
    ) -> tuple[str, dict[str, str]]:
        """Make the repository hold ``files``; return its head and what changed."""
        if not dry_run:
            self._call(
                lambda: self.api.create_repo(
                    self.repo, repo_type="dataset", private=private, exist_ok=True
                )
            )
        for attempt in range(ATTEMPTS):
            head, remote = self._remote(private=private, missing_ok=dry_run)
            changes = plan_changes(files, remote)
            if dry_run or not changes:
                return head, changes
            try:
                return self._commit(files, changes, head), changes
            except (self.hub.errors.HfHubHTTPError, RuntimeError) as error:
                # The client wraps the failure of an upload in a RuntimeError.
                cause = error.__cause__ if isinstance(error, RuntimeError) else error
                if not isinstance(cause, self.hub.errors.HfHubHTTPError):
                    raise
                status = cause.response.status_code if cause.response is not None else 0
                # 412: someone committed since; look again. 409: someone is committing.
                if status not in (409, 412):
                    raise ComposerError(_sentence(self.repo, status)) from None
                if status == 409:
                    time.sleep(0.5 * 2**attempt)
        raise ComposerError(f"dataset {self.repo}: others kept committing; {ATTEMPTS} attempts")

    def _remote(self, *, private: bool, missing_ok: bool) -> tuple[str, dict[str, str]]:
        try:
            info = self.api.repo_info(self.repo, repo_type="dataset")
        except self.hub.errors.RepositoryNotFoundError:
            if missing_ok:
                return "", {}
            raise ComposerError(_sentence(self.repo, 404)) from None
        except self.hub.errors.HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            raise ComposerError(_sentence(self.repo, status)) from None
        if private and not info.private:
            raise InputError(
                f"dataset {self.repo} is public; private=False (--public) publishes there"
            )
        tree = self._call(
            lambda: list(
                self.api.list_repo_tree(
                    self.repo, repo_type="dataset", recursive=True, revision=info.sha
                )
            )
        )
        remote = {
            entry.path: entry.lfs.sha256 if entry.lfs else entry.blob_id
            for entry in tree
            if isinstance(entry, self.hub.hf_api.RepoFile)
        }
        return str(info.sha), remote

    def _commit(self, files: Mapping[str, bytes], changes: Mapping[str, str], head: str) -> str:
        operations: list[Any] = [
            self.hub.CommitOperationDelete(path_in_repo=path)
            if how == "delete"
            else self.hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=files[path])
            for path, how in changes.items()
        ]
        info = self.api.create_commit(
            self.repo,
            operations,
            repo_type="dataset",
            commit_message=f"Publish {sum(how != 'delete' for how in changes.values())} files",
            parent_commit=head,
        )
        return str(info.oid)

    def _call(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except self.hub.errors.HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            raise ComposerError(_sentence(self.repo, status)) from None


def plan_changes(files: Mapping[str, bytes], remote: Mapping[str, str]) -> dict[str, str]:
    """Return path to ``add``, ``replace`` or ``delete``, sorted by path.

    Args:
        files: what the repository shall hold.
        remote: path to SHA-256 (LFS) or git blob id of what it holds. Files that are not
            ours (outside ``data/``) are left alone.
    """
    changes = {}
    for path, data in files.items():
        if path not in remote:
            changes[path] = "add"
        elif remote[path] not in (hashlib.sha256(data).hexdigest(), _git_blob(data)):
            changes[path] = "replace"
    for path in remote:
        if path not in files and path.startswith("data/") and path.endswith(".parquet"):
            changes[path] = "delete"
    return dict(sorted(changes.items()))


def _git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324


def _sentence(repo: str, status: int) -> str:
    reasons = {
        401: "the token is not accepted",
        403: "the token may not write there",
        404: "it does not exist, or the token may not see it",
    }
    return f"dataset {repo}: {reasons.get(status, f'the Hub answered {status}')}"
