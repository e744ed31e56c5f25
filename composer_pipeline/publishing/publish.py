"""Publish a dataset or a model: gates, and one commit to the Hugging Face Hub.

One ``create_commit`` with ``parent_commit`` carries every change, deletions included, so the
repository has the old state or the new one. Files are byte-deterministic: publishing twice commits
once, and a lost answer is safe to retry. What was committed is read back and tagged.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from composer_pipeline.dataset.consent import check_public, find_consent
from composer_pipeline.dataset.manifest import Build, check_statistics, copy_file, read_build
from composer_pipeline.dataset.select import Barred
from composer_pipeline.errors import InputError
from composer_pipeline.exporting.sessions import trace_files
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.schema import SCHEMA_VERSION
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import (
    Publication,
    digest_of,
    publications,
    remember_publication,
    withdrawals,
)
from composer_pipeline.publishing.card import Facts, card_files, facts_of, keep_text, with_history
from composer_pipeline.publishing.commit import (
    CommitResult,
    Purged,
    by_split,
    check_published,
    commit_files,
    purge,
    row_changes,
    tagged,
)
from composer_pipeline.publishing.gates import PublishRefused, check_files
from composer_pipeline.publishing.hub import Content, Hub, Remote, check_repo, hashes_of, token_of
from composer_pipeline.redaction.scanning import CARD, Scanner
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.second_look import second_look
from composer_pipeline.training.model_card import evaluation_of

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class DataFile:
    """A Parquet file: ``path`` in the repository, ``local`` on this disk, and its rows."""

    config: str
    split: str
    path: str
    local: Path
    rows: int


def take_files(lake: Lake, build: Build, folder: Path) -> list[DataFile]:
    """Link or copy the files of a build into ``folder``, and check that they are still its own."""
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


@dataclass(frozen=True)
class PublishReport(Report):
    """What a publication did.

    Attributes:
        commit: the new head, or the head that already held these bytes; empty for a dry run
            against nothing.
        files: all files of the dataset or model.
        changed: how many of them were added, replaced or removed.
        rows: rows of a dataset by configuration and split; after a commit, those in the Hub's own
            files.
        private: whether the repository is private.
        dry_run: nothing was changed.
        changes: path to ``add``, ``replace`` or ``delete``.
        added: rows that the changes add, by configuration and split.
        removed: rows that the changes remove.
        tag: names the commit.
        url: shows the commit.
        purged: how many tags and stored objects a withdrawal removed.
        review: distinct values just below the threshold of redaction, by kind.
        second_look: what a second scanner found in the messages, by kind, or why it did not look.
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
    review: dict[str, int] = field(default_factory=dict)
    second_look: dict[str, int] | str = ""


def publish(
    lake: Lake,
    repo: str,
    *,
    private: bool = True,
    dry_run: bool = False,
    allow_simulated: bool = False,
    consent: str | Path = "",
    traces: bool = False,
    max_review: int = 10,
    token_env: str = "HF_TOKEN",  # noqa: S107  the name of a variable, not a token
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> PublishReport:
    """Make a dataset repository hold the lake's ``dataset_*`` tables.

    Args:
        lake: reads the ``dataset_*`` tables, and ``preference_statistics`` for the card.
        repo: ``owner/name`` of a dataset repository; created when it does not exist.
        private: create it private, and refuse one that is already public; when false, refuse one
            that is private.
        dry_run: check and compare, change nothing. Without a token everything counts as new.
        allow_simulated: publish rows of simulated teachers; the card says so.
        consent: the consent file; ``consent.yaml`` beside the lake or in the working folder by
            default. A public release needs one.
        traces: also put the dataset's sessions below ``traces/``, whole, for the Hub's viewer; no
            configuration loads them.
        max_review: refuse a dataset with more distinct values just below the threshold of
            redaction; the card counts them.
        token_env: environment variable that holds the token; if ``HF_TOKEN`` is empty, the stored
            login of the Hub's client is used.
        endpoint: another Hub; ``HF_ENDPOINT`` or the real one by default.
        progress: called when the files are ready, while the Hub is waited for, and when it has
            them.

    Raises:
        InputError: a bad repository name, no dataset or no pair in it, no token, a repository that
            is public without ``private=False`` or private with it, that holds something else or
            has been renamed, simulated rows without ``allow_simulated``, a public release without
            consent, or huggingface_hub is not installed.
        PublishRefused: a secret in a row or the card, a row in two splits, chosen equal to
            rejected, or a session that was withdrawn or that nobody consented to.
        ComposerError: the Hub refused for another reason, kept failing for two minutes, or holds
            something else than what was sent.
    """
    check_repo(repo)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="publish-")))
        build = read_build(lake)
        check_statistics(lake, build)
        data = take_files(lake, build, folder)
        if not any(file.config == "pairs" for file in data):
            raise InputError(f"lake {lake.url}: the dataset has no pair; nothing to publish")
        allowed = find_consent(lake, consent)
        allow = [allowed.contact] if allowed else []
        scanner = Scanner(lake, public=not private, allow=allow, review=True)
        gate = partial(check_files, scanner=scanner, barred=Barred(lake, allowed).reason)
        facts = facts_of(data)
        if facts.simulated and not allow_simulated:
            raise InputError(
                f"{facts.simulated} of {facts.marked} rows come from simulated teachers;"
                " allow_simulated (--allow-simulated) publishes them, and the card says so"
            )
        if not private:
            check_public(allowed, facts.agents)
        files: dict[str, Content] = {file.path: file.local for file in data}
        if traces:
            sessions = trace_files(lake, folder / "traces", facts.sessions)
            files |= {f"traces/{path.name}": path for path in sessions}
        gate(files)
        token = token_of(token_env, dry_run=dry_run)
        review, look = scanner.review, second_look(lake, facts.days, progress) if private else {}
        if review.total() > max_review:
            raise PublishRefused(
                f"{review.total()} values are just below the threshold of redaction, more than"
                f" max_review (--max-review {max_review}); composer-pipeline redact FILE --review"
                " shows those of a session; add a rule, or raise the number"
            )
        facts.traces = len(files) - len(data)
        card = card_files(
            lake, repo, build, data, facts=facts, consent=allowed, review=review, look=look
        )
        card[CARD] = keep_text(card[CARD].decode(), "").encode()
        files |= card
        files[MANIFEST] = _manifest(data, files)
        gate({name: files[name] for name in (*card, MANIFEST)})
        rows = {f"{file.config}/{file.split}": file.rows for file in data}
        if progress:
            progress("publish", 1, 2)
        report = _all_new(files, rows, private=private)
        if token:
            hub = stack.enter_context(Hub(repo, token, endpoint, "dataset", progress))
            report = _send(lake, hub, files, rows, facts, gate, private=private, dry_run=dry_run)
        if progress:
            progress("publish", 2, 2)
    return replace(report, review=dict(review), second_look=look)


def _all_new(files: Mapping[str, Content], rows: dict[str, int], *, private: bool) -> PublishReport:
    """Return the report of a dry run without a token, for which everything is new."""
    changes = dict.fromkeys(sorted(files), "add")
    nothing = dict.fromkeys(rows, 0)
    return PublishReport(
        "", sorted(files), len(files), rows, private, True, changes, dict(rows), nothing
    )


def _send(
    lake: Lake,
    hub: Hub,
    files: Mapping[str, Content],
    rows: dict[str, int],
    facts: Facts,
    gate: Callable[[Mapping[str, Content]], None],
    *,
    private: bool,
    dry_run: bool,
) -> PublishReport:
    card = _bytes_of(files[CARD]).decode()

    def prepare(remote: Remote) -> Mapping[str, Content]:
        hub.refuse_others(remote, bool(_manifest_of(hub, remote)), f"{MANIFEST} of ours")
        old = hub.read(CARD, remote.head).decode("utf-8", "replace") if CARD in remote.files else ""
        text = keep_text(with_history(card, old), old)
        if text != card:  # what people wrote there must pass the gates as well
            gate({CARD: text.encode()})
        return {**files, CARD: text.encode()}

    # Files of a former publication, and data that would mix with this one's.
    former: dict[str, set[str]] = {}

    def ours(remote: Remote, path: str) -> bool:
        if remote.head not in former:
            former[remote.head] = set(_manifest_of(hub, remote).get("files", {}))
        is_data = path.startswith("data/") and path.endswith(".parquet")
        return is_data or path in former[remote.head]

    done = commit_files(hub, prepare, ours, private=private, dry_run=dry_run)
    moved = row_changes(hub, done)
    nothing = dict.fromkeys(rows, 0)
    report = PublishReport(
        done.head,
        sorted(done.files),
        len(done.changes),
        rows,
        private,
        dry_run,
        done.changes,
        nothing | by_split({path: added for path, (added, _) in moved.items()}),
        nothing | by_split({path: removed for path, (_, removed) in moved.items()}),
    )
    return report if dry_run else _finish(lake, hub, done, report, facts)


def _finish(
    lake: Lake, hub: Hub, done: CommitResult, report: PublishReport, facts: Facts
) -> PublishReport:
    """Verify the commit, remove withdrawn rows from the history, tag it, and record it."""
    counted = check_published(hub, done.head, done.files)
    withdrawn = sorted(f"{item.at} {item.digest}" for item in withdrawals(lake))
    known = publications(lake).get(hub.repo, Publication(""))
    purged, since = Purged(done.head), known.sessions
    if set(withdrawn) - set(known.withdrawn) and not done.before.is_new:
        purged, since = purge(hub, done.head), {}
    tag = f"v{max(facts.days, default='0').replace('-', '.')}-{_digest(done.files)}"
    hub.tag(tag, purged.head)
    held = dict.fromkeys(map(digest_of, facts.sessions), tag) | since
    made = Publication(purged.head, tag, withdrawn, held, build_id(lake))
    remember_publication(lake, hub.repo, made)
    return replace(
        report,
        commit=purged.head,
        rows=by_split(counted),
        tag=tag,
        url=f"{hub.page}/tree/{purged.head}",
        purged={"tags": purged.tags, "objects": purged.objects},
    )


def _manifest(data: Sequence[DataFile], files: Mapping[str, Content]) -> bytes:
    """List every file of the publication except the card and the manifest itself."""
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


def _bytes_of(content: Content) -> bytes:
    return content.read_bytes() if isinstance(content, Path) else content


def _digest(files: Mapping[str, Content]) -> str:
    """Return eight characters that identify what is in the files."""
    lines = [f"{path} {hashes_of(content)[0]}\n" for path, content in sorted(files.items())]
    return hashes_of("".join(lines).encode())[0][:8]


def _manifest_of(hub: Hub, remote: Remote) -> dict[str, dict[str, object]]:
    """Return our manifest in a repository; empty where there is none or it is not ours."""
    if MANIFEST not in remote.files:
        return {}
    try:
        found = json.loads(hub.read(MANIFEST, remote.head))
    except ValueError:
        return {}
    ours = isinstance(found, dict) and isinstance(found.get("files"), dict)
    return found if ours and "schema_version" in found else {}


# -- models ------------------------------------------------------------------------

RESULT, CHECKPOINT = "composer.json", "checkpoint"
#: Files of the base model's tokenizer: half a megabyte of tokens, none of them ours.
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt")
TEXT = (".json", ".md", ".jinja", ".txt")
#: What a publication replaces: a repository holds either an adapter or a whole model.
OURS = re.compile(
    r"(adapter_(config\.json|model.*\.safetensors)|model.*\.safetensors(\.index\.json)?"
    r"|(generation_)?config\.json|composer\.json|channels\.safetensors)"
)
#: The branch of versions that were not promoted.
REFUSED = "refused"


def publish_model(
    run: str | Path,
    repo: str,
    *,
    private: bool = True,
    dry_run: bool = False,
    allow_simulated: bool = False,
    allow_worse_than_base: bool = False,
    version: int = 0,
    promoted: bool = True,
    token_env: str = "HF_TOKEN",  # noqa: S107  the name of a variable, not a token
    endpoint: str | None = None,
) -> PublishReport:
    """Make a model repository hold a run's checkpoint.

    A version is tagged ``v<version>``, once and for good. ``main`` follows the promoted ones: to
    publish an earlier one again commits its files again. The others go to the branch ``refused``.

    Args:
        run: a run folder, whose checkpoint is published, or its folder ``merged``.
        repo: ``owner/name`` of a model repository; created when it does not exist.
        private: create it private, and refuse one that is already public.
        dry_run: check and compare, change nothing. Without a token everything counts as new.
        allow_simulated: publish a model that was trained on rows of simulated teachers; its card
            says so.
        allow_worse_than_base: publish a model whose evaluation says that it is worse than its
            base on easy or recovery states; its card says so. A version that was not promoted may
            be worse without it.
        version: number of a version, from 1; 0 publishes without a tag.
        promoted: whether the version was promoted.
        token_env: environment variable that holds the token.
        endpoint: another Hub; ``HF_ENDPOINT`` or the real one by default.

    Raises:
        InputError: a bad repository name, no checkpoint, no token, a repository that is public
            without ``private=False``, simulated rows without ``allow_simulated``, a model that is
            worse than its base without ``allow_worse_than_base``, or a version whose tag holds
            other files.
        PublishRefused: a text file holds something private, or there is no card.
        ComposerError: the Hub refused for another reason, or kept failing for two minutes.
    """
    check_repo(repo)
    if version < (0 if promoted else 1):
        raise InputError(f"version {version} is none; versions are numbered from 1")
    folder = _checkpoint_of(Path(run))
    files = {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }
    if CARD not in files:
        raise PublishRefused(f"{folder} has no {CARD}: a model is not published without its card")
    texts = {n: path for n, path in files.items() if n.endswith(TEXT) and n not in TOKENIZER_FILES}
    check_files(texts, Scanner(public=not private))
    simulated = json.loads(files[RESULT].read_text(encoding="utf-8")).get("simulated") or {}
    if any(simulated.values()) and not allow_simulated:
        raise InputError(
            f"{sum(simulated.values())} rows that {folder} was trained on come from simulated"
            " teachers; allow_simulated (--allow-simulated) publishes it, and the card says so"
        )
    evaluation = evaluation_of(folder.parent) or {}
    if evaluation.get("worse") and promoted and not allow_worse_than_base:
        raise InputError(
            f"{folder} is worse than its base on {'; '.join(evaluation['worse'])};"
            " allow_worse_than_base (--allow-worse-than-base) publishes it, and the card says so"
        )
    token = token_of(token_env, dry_run=dry_run)
    if not token:
        return _all_new(files, {}, private=private)
    branch, tag = "main" if promoted else REFUSED, f"v{version}" if version else ""
    with Hub(repo, token, endpoint, "model", branch=branch) as hub:

        def prepare(remote: Remote) -> Mapping[str, Content]:
            hub.refuse_others(remote, RESULT in remote.files, RESULT)
            return files

        done = tagged(hub, tag, files, _is_ours, private=private) if tag else None
        if done is None or promoted:
            done = commit_files(hub, prepare, _is_ours, private=private, dry_run=dry_run)
        if not dry_run:
            check_published(hub, done.head, done.files)
        if tag and not dry_run:
            hub.tag(tag, done.head)
        url = f"{hub.page}/tree/{done.head}" if done.head else hub.page
    return PublishReport(
        done.head, sorted(files), len(done.changes), {}, private, dry_run, done.changes, tag=tag,
        url=url,
    )  # fmt: skip


def _is_ours(_: Remote, path: str) -> bool:
    return bool(OURS.fullmatch(path))


def _checkpoint_of(path: Path) -> Path:
    """Return the folder of weights in a run folder, or the path itself if it is one."""
    for folder in (path / CHECKPOINT, path):
        if (folder / RESULT).is_file() and any(folder.glob("*.safetensors")):
            return folder
    raise InputError(f"model {path} holds no finished training run")
