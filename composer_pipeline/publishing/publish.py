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
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from composer_pipeline.errors import InputError
from composer_pipeline.interchange import trace_files
from composer_pipeline.lake import SCHEMA_VERSION, Lake
from composer_pipeline.lake.notes import withdrawals
from composer_pipeline.publishing.card import Facts, card_files, facts_of, with_history
from composer_pipeline.publishing.changes import Content, hashes_of
from composer_pipeline.publishing.consent import Consent, check_public, find_consent
from composer_pipeline.publishing.dataset import Build
from composer_pipeline.publishing.gates import check_files
from composer_pipeline.publishing.hub import (
    Hub,
    Purged,
    Remote,
    bring,
    by_split,
    check_published,
    check_repo,
    keep_text,
    purge,
    row_changes,
    token_of,
)
from composer_pipeline.publishing.record import Publication, publications, remember_publication
from composer_pipeline.publishing.selection import Barred
from composer_pipeline.publishing.snapshot import DataFile, snapshot
from composer_pipeline.reports import Progress, Report

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
