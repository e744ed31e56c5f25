"""Publish the dataset: plan, gates, and one commit to the Hugging Face Hub.

Belongs here: the files of the repository, the refusals, and what follows the commit. Does
not belong here: which rows there are (``publishing.dataset``), the card's words, and how the
Hub is asked (``publishing.hub``).

One ``create_commit`` with ``parent_commit`` carries every change, deletions included: the
repository has the old dataset or the new one. Files are byte-deterministic, so publishing
twice commits once. A lost answer is safe to retry for the same reason. What was committed is read
back from the Hub and tagged. The token is handed to the client, and goes nowhere else.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from composer_pipeline.dataset.consent import Consent, check_public, find_consent
from composer_pipeline.dataset.manifest import Build, check_statistics, copy_file, read_build
from composer_pipeline.dataset.select import Barred
from composer_pipeline.errors import InputError
from composer_pipeline.exporting.sessions import trace_files
from composer_pipeline.lake.schema import SCHEMA_VERSION
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import withdrawals
from composer_pipeline.publishing.card import Facts, card_files, facts_of, keep_text, with_history
from composer_pipeline.publishing.commit import (
    Publication,
    Purged,
    bring,
    by_split,
    check_published,
    publications,
    purge,
    remember_publication,
    row_changes,
)
from composer_pipeline.publishing.gates import PublishRefused, check_files
from composer_pipeline.publishing.hub import Content, Hub, Remote, check_repo, hashes_of, token_of
from composer_pipeline.reports import Progress, Report
from composer_pipeline.training.model_card import evaluation_of


@dataclass(frozen=True)
class DataFile:
    """A Parquet file: ``path`` in the repository, ``local`` on this disk, and its rows."""

    config: str
    split: str
    path: str
    local: Path
    rows: int


def snapshot(lake: Lake, folder: Path) -> tuple[Build, list[DataFile]]:
    """Take the files of the lake's build into ``folder``; return the build and them.

    A file of a local lake is linked, where the disk allows: a build that replaces it makes a new
    one. ``load_dataset`` fails on a split whose files hold no row, so there is no such file.

    Raises:
        InputError: the dataset has not been built, is half built, mixed or older than what it is
            made of, its statistics are of another build, or it has no pair.
    """
    build = read_build(lake)
    check_statistics(lake, build)
    found = take_files(lake, build, folder)
    if not any(file.config == "pairs" for file in found):
        raise InputError(f"lake {lake.url}: the dataset has no pair; nothing to publish")
    return build, found


def take_files(lake: Lake, build: Build, folder: Path) -> list[DataFile]:
    """Take the files of a build into ``folder``, as :func:`snapshot` does.

    Raises:
        InputError: one of them was built again meanwhile.
    """
    found = []
    for number, file in enumerate(build.files):
        local = folder / f"{number}.parquet"
        copy_file(lake, file, local)
        if hashes_of(local)[0] != file.sha256:
            raise InputError(
                f"lake {lake.url}: {file.name} was built again meanwhile; run this again"
            )
        found.append(DataFile(file.config, file.split, file.path, local, file.rows))
    return found


CARD, MANIFEST = "README.md", "manifest.json"


@dataclass(frozen=True)
class PublishReport(Report):
    """What a publication did.

    ``commit`` is the new head, or the head that already held these bytes, or empty for a
    dry run against nothing; ``files`` are all files of the dataset or model; ``changed`` counts
    those that differed (added, replaced or removed) and ``changes`` says how each did;
    ``rows`` are those of a dataset, by configuration and split, as the Hub's own files have them
    after a commit, and ``added`` and ``removed`` what the plan changes of them. ``tag`` names the
    commit, ``url`` shows it. ``purged`` counts the tags and stored objects that a withdrawal
    removed.
    """

    commit: str
    files: list[str]
    changed: int
    rows: dict[str, int]
    private: bool
    dry_run: bool
    changes: dict[str, str] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    tag: str = ""
    url: str = ""
    purged: dict[str, int] = field(default_factory=dict)


def publish(
    lake: Lake,
    repo: str,
    *,
    private: bool = True,
    dry_run: bool = False,
    allow_simulated: bool = False,
    consent: str | Path = "",
    traces: bool = False,
    token_env: str = "HF_TOKEN",  # noqa: S107  the name of a variable, not a token
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> PublishReport:
    """Bring a dataset repository to the state of the lake's ``dataset_*`` tables.

    Args:
        lake: reads the ``dataset_*`` tables, and ``preference_statistics`` for the card.
        repo: ``owner/name`` of a dataset repository; created when it does not exist.
        private: create it private, and refuse one that is already public; when false, refuse one
            that is private.
        dry_run: check and compare, change nothing. Without a token everything counts
            as new.
        allow_simulated: publish rows of simulated teachers; the card says so.
        consent: the consent file; ``consent.yaml`` beside the lake or in the working folder by
            default. A public release needs one.
        traces: put the dataset's sessions below ``traces/`` too, whole, for the Hub's viewer; no
            configuration loads them.
        token_env: environment variable that holds the token; the stored login of the Hub's client
            takes the place of an empty ``HF_TOKEN``.
        endpoint: another Hub; ``HF_ENDPOINT`` or the real one by default.
        progress: called when the files are ready, while the Hub is waited for, and when it has
            them.

    Raises:
        InputError: a bad repository name, no dataset, no token, a repository that is
            public without ``private=False`` or private with it, that holds something else or has
            another name today, simulated rows without ``allow_simulated``, a public release without
            consent, or huggingface_hub is not installed.
        PublishRefused: a secret in a row or the card, a row in two splits, chosen equal to
            rejected, or a session that was withdrawn or that nobody consented to.
        ComposerError: the Hub refused for another reason, trouble did not pass in two minutes, or
            it holds something else than what was sent.
    """
    check_repo(repo)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="publish-")))
        build, data = snapshot(lake, folder)
        allowed = find_consent(lake, consent)
        gate = partial(
            check_files,
            public=not private,
            allow=[allowed.contact] if allowed else [],
            barred=Barred(lake, allowed).said,
        )
        facts = facts_of(data)
        _refuse_simulated(facts, allow_simulated)
        if not private:
            check_public(allowed, facts.agents)
        files = _files(lake, repo, build, data, facts, allowed, folder if traces else None)
        gate(files)
        rows = {f"{file.config}/{file.split}": file.rows for file in data}
        if progress:
            progress("publish", 1, 2)
        token = token_of(token_env, dry_run=dry_run)
        hub = None
        if token:
            hub = stack.enter_context(Hub(repo, token, endpoint, "dataset", progress))
        sent = _Sent(lake, files, rows, private, dry_run, f"v{_day_of(facts)}", gate)
        report = _send(hub, sent) if hub else planned(files, rows, private=private)
    if progress and hub:
        progress("publish", 2, 2)
    return report


def planned(
    files: Mapping[str, Content], rows: Mapping[str, int], *, private: bool
) -> PublishReport:
    """Return the report of a dry run that nobody was asked about: everything is new."""
    changes = dict.fromkeys(sorted(files), "add")
    added = dict(rows)
    return PublishReport(
        "", sorted(files), len(files), added, private, True, changes, added,
        dict.fromkeys(rows, 0),
    )  # fmt: skip


@dataclass(frozen=True)
class _Sent:
    """What shall be on the Hub, and how."""

    lake: Lake
    files: Mapping[str, Content]
    rows: dict[str, int]
    private: bool
    dry_run: bool
    tag: str
    gate: Callable[[Mapping[str, Content]], None]


def _send(hub: Hub, sent: _Sent) -> PublishReport:
    def prepare(remote: Remote) -> Mapping[str, Content]:
        hub.refuse_others(remote, bool(_manifest_of(hub, remote)), f"{MANIFEST} of ours")
        old = hub.read(CARD, remote.head).decode("utf-8", "replace") if CARD in remote.files else ""
        new = bytes_of(sent.files[CARD]).decode()
        text = keep_text(with_history(new, old), old)
        if text != new:  # what people wrote there is looked at as well
            sent.gate({CARD: text.encode()})
        return {**sent.files, CARD: text.encode()}

    # Files of a former publication, and data that it would mix with.
    old: dict[str, set[str]] = {}

    def ours(remote: Remote, path: str) -> bool:
        if remote.head not in old:
            old[remote.head] = set(_manifest_of(hub, remote).get("files", {}))
        return path in old[remote.head] or (path.startswith("data/") and path.endswith(".parquet"))

    done = bring(hub, prepare, ours, private=sent.private, dry_run=sent.dry_run)
    moved = row_changes(hub, done.before.head, done.before.files, done.files, done.changes)
    none = dict.fromkeys(sent.rows, 0)
    report = PublishReport(
        done.head,
        sorted(done.files),
        len(done.changes),
        sent.rows,
        sent.private,
        sent.dry_run,
        done.changes,
        none | by_split({path: counts["added"] for path, counts in moved.items()}),
        none | by_split({path: counts["removed"] for path, counts in moved.items()}),
    )
    return report if sent.dry_run else _finish(hub, sent, done.files, done.before, report)


def _finish(
    hub: Hub, sent: _Sent, files: Mapping[str, Content], before: Remote, report: PublishReport
) -> PublishReport:
    """Read the commit back, take withdrawn rows out of the past, name it, and remember it."""
    counted = check_published(hub, report.commit, files)
    wanted = withdrawn_of(sent.lake)
    known = publications(sent.lake).get(hub.repo)
    purged = Purged(report.commit)
    if set(wanted) - set(known.withdrawn if known else ()) and not before.is_new:
        purged = purge(hub, report.commit)
    tag = f"{sent.tag}-{_digest(files)}"
    hub.tag(tag, purged.head)
    remember_publication(sent.lake, hub.repo, Publication(purged.head, tag, wanted))
    return replace(
        report,
        commit=purged.head,
        rows=by_split(counted),
        tag=tag,
        url=f"{hub.page}/tree/{purged.head}",
        purged={"tags": len(purged.tags), "objects": purged.objects},
    )


def withdrawn_of(lake: Lake) -> list[str]:
    """Return the names of the withdrawals that a publication has to follow, sorted."""
    return sorted(f"{item.at} {item.digest}" for item in withdrawals(lake))


# -- the files -----------------------------------------------------------------


def _refuse_simulated(facts: Facts, allowed: bool) -> None:
    if facts.simulated and not allowed:
        raise InputError(
            f"{facts.simulated} of {facts.marked} rows come from simulated teachers;"
            " allow_simulated (--allow-simulated) publishes them, and the card says so"
        )


def _files(
    lake: Lake,
    repo: str,
    build: Build,
    data: Sequence[DataFile],
    facts: Facts,
    consent: Consent | None,
    traces: Path | None,
) -> dict[str, Content]:
    """Return the files of the repository."""
    files: dict[str, Content] = {file.path: file.local for file in data}
    if traces:
        for path in trace_files(lake, traces / "traces", facts.sessions):
            files[f"traces/{path.name}"] = path
    facts.traces = sum(path.startswith("traces/") for path in files)
    files |= card_files(lake, repo, build, data, facts=facts, consent=consent)
    files[CARD] = keep_text(bytes_of(files[CARD]).decode(), "").encode()
    files[MANIFEST] = _manifest(data, files)
    return files


def _manifest(data: Sequence[DataFile], files: Mapping[str, Content]) -> bytes:
    """List every file of the publication except the card and itself."""
    rows = {file.path: {"rows": file.rows} for file in data}
    entries = {
        path: {
            **rows.get(path, {}),
            "bytes": content.stat().st_size if isinstance(content, Path) else len(content),
            "sha256": hashes_of(content)[0],
        }
        for path, content in files.items()
        if path != CARD
    }
    body = {"made_by": "composer-pipeline", "schema_version": SCHEMA_VERSION, "files": entries}
    return (json.dumps(body, indent=2, sort_keys=True) + "\n").encode()


def bytes_of(content: Content) -> bytes:
    """Return a content that is small enough to hold."""
    return content.read_bytes() if isinstance(content, Path) else content


def _digest(files: Mapping[str, Content]) -> str:
    """Return eight characters that name what is in the files."""
    lines = [f"{path} {hashes_of(content)[0]}\n" for path, content in sorted(files.items())]
    return hashes_of("".join(lines).encode())[0][:8]


def _day_of(facts: Facts) -> str:
    """Return the latest day of a session in the data, as 2026.11.16."""
    return max(facts.days, default="0").replace("-", ".")


# -- whose repository it is -----------------------------------------------------


def _manifest_of(hub: Hub, remote: Remote) -> dict[str, dict[str, object]]:
    if MANIFEST not in remote.files:
        return {}
    try:
        found = json.loads(hub.read(MANIFEST, remote.head))
    except ValueError:
        return {}
    ours = isinstance(found, dict) and isinstance(found.get("files"), dict)
    return found if ours and "schema_version" in found else {}


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
