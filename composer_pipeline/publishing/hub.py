"""One repository on the Hugging Face Hub: reads, commits and tags, with our own retries."""

import hashlib
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeVar

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.reports import Progress

#: The bytes of a file, or its path: weights need not fit into memory.
Content = bytes | Path
RepoType = Literal["dataset", "model"]
T = TypeVar("T")


def plan_changes(
    files: Mapping[str, Content], remote: Mapping[str, str], ours: Callable[[str], bool]
) -> dict[str, str]:
    """Return path to ``add``, ``replace`` or ``delete``, sorted by path.

    ``remote`` maps each path of the repository to its SHA-256 (LFS) or git blob id. Only paths
    that are ``ours`` are deleted.
    """
    changes = {}
    for path, content in files.items():
        if path not in remote:
            changes[path] = "add"
        elif remote[path] not in hashes_of(content):
            changes[path] = "replace"
    changes |= {path: "delete" for path in remote if path not in files and ours(path)}
    return dict(sorted(changes.items()))


def hashes_of(content: Content) -> tuple[str, str]:
    """Return the two ids that the Hub may have for a content: SHA-256 and git blob id."""
    if isinstance(content, bytes):
        return _hashes(BytesIO(content), len(content))
    now = content.stat()
    return _file_hashes(content, now.st_size, now.st_mtime_ns, now.st_ino)


@lru_cache(maxsize=1024)
def _file_hashes(path: Path, size: int, *_: int) -> tuple[str, str]:
    """Read an unchanged file once: a publication needs its hashes five times."""
    with path.open("rb") as stream:
        return _hashes(stream, size)


def _hashes(stream: IO[bytes], size: int) -> tuple[str, str]:
    sha, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)  # noqa: S324
    while part := stream.read(1 << 20):
        sha.update(part)
        blob.update(part)
    return sha.hexdigest(), blob.hexdigest()


# -- errors and retries ------------------------------------------------------------

#: Statuses of a Hub that is busy, limits the rate, or fails for a moment.
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_REASONS = {
    401: "the token is not accepted",
    403: "the token may not write there",
    404: "it does not exist, or the token may not see it",
    409: "others kept committing",
    412: "others kept committing",
}


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        reason: the end of a sentence.
        transient: it may be gone in a moment.
        wait_s: seconds that the Hub asks to wait.
        status: the HTTP status; 0 where there was no answer.
    """

    reason: str
    transient: bool = False
    wait_s: float | None = None
    status: int = 0


class RetryLaterError(Exception):
    """A refusal on which the client would sleep by itself; raised by a hook of the client."""

    def __init__(self, status: int, wait_s: float | None) -> None:
        super().__init__(f"the Hub answered {status}")
        self.status, self.wait_s = status, wait_s


def _failure_of(error: BaseException) -> Failure | None:
    """Return what an error of the client means, or ``None`` for one that is not the Hub's."""
    chain = list(_chain(error))
    # The Hub's answer says more than the connection's state, and that more than its wrappers.
    readers = (_answered, _unreachable, _lost)
    found = (read(one) for read in readers for one in chain)
    return next((failure for failure in found if failure), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _answered(error: BaseException) -> Failure | None:
    from huggingface_hub import errors

    if isinstance(error, RetryLaterError):
        reason = f"the Hub answered {error.status}"
        return Failure(reason, transient=True, wait_s=error.wait_s, status=error.status)
    if not isinstance(error, errors.HfHubHTTPError) or error.response is None:
        return None
    status = int(error.response.status_code)
    reason = _REASONS.get(status, f"the Hub answered {status}")
    if isinstance(error, errors.GatedRepoError):
        reason = "it is gated, and the token's account has no access"
    elif isinstance(error, errors.DisabledRepoError):
        reason = "the Hub has disabled it"
    elif status == 403 and "create_pr" in str(error):
        reason = "the token may only open pull requests there"
    return Failure(reason, transient=status in (*_TRANSIENT, 409, 412), status=status)


def _unreachable(error: BaseException) -> Failure | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure("the certificate of the Hub is not accepted")
    if isinstance(error, socket.gaierror):
        return Failure("the Hub's name is not known, or there is no network")
    return None


def _client_errors() -> tuple[type[Exception], ...]:
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return RetryLaterError, HTTPError


def _lost(error: BaseException) -> Failure | None:
    if isinstance(error, _client_errors()):
        return Failure("the connection to the Hub was lost", transient=True)
    if not isinstance(error, ConnectionError):
        return None
    # hf_xet has retried by itself for two minutes, and gives the status in words.
    found = re.search(r"\((\d{3}) ", str(error))
    status = int(found[1]) if found else 0
    reason = _REASONS.get(status, f"the Hub answered {status}")
    return Failure(reason if status else "the upload to the Hub was lost", status=status)


#: Seconds after which a step that keeps failing is given up.
LIMIT_S = 120.0
_LONGEST_S = 30.0


class Retry:
    """Waits between the attempts of one step; ``waited_s`` counts the seconds so far."""

    def __init__(
        self, subject: str, progress: Progress | None = None, limit_s: float = LIMIT_S
    ) -> None:
        self._subject, self._progress, self._limit_s = subject, progress, limit_s
        self._since: float | None = None
        self.waited_s = 0.0
        self._next = 1.0

    def wait(self, failure: Failure) -> None:
        """Wait before the next attempt; raise ComposerError if there shall be none."""
        if not failure.transient:
            raise ComposerError(f"{self._subject}: {failure.reason}") from None
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        spent = max(now - self._since, self.waited_s)
        wait = max(self._next, failure.wait_s or 0.0)
        if spent + wait > self._limit_s:
            if failure.wait_s and failure.wait_s > self._limit_s:
                more = f"and asks to wait {failure.wait_s:.0f} s"
            else:
                more = f"for {self._limit_s:.0f} s; nothing is half-done, publish again"
            raise ComposerError(f"{self._subject}: {failure.reason}, {more}") from None
        if self._progress:
            self._progress("waiting for the Hub", int(spent), int(self._limit_s))
        time.sleep(wait)
        self.waited_s += wait
        self._next = min(_LONGEST_S, 2 * self._next)


# -- the repository ----------------------------------------------------------------

#: Seconds without a byte after which a connection counts as lost.
_SILENCE_S = 60.0
#: A repository or revision that was just made may be invisible for some seconds.
_INVISIBLE = Failure("the Hub does not show it", transient=True)
#: Seconds to wait for a repository whose name was taken: perhaps by our own request, whose answer
#: was lost.
_TAKEN_S = 15.0
#: Bytes that are read at once of a file that is read by ranges.
_BLOCK = 1 << 16
#: What the Hub itself puts into a new repository.
_NEW = {".gitattributes", ".gitignore", "README.md"}


@dataclass(frozen=True)
class Entry:
    """A file of a repository: its id (SHA-256 of an LFS object, else git's) and size in bytes."""

    oid: str
    size: int
    lfs: bool


@dataclass(frozen=True)
class Remote:
    """What a repository holds at its head; empty where there is none."""

    head: str = ""
    files: dict[str, Entry] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        """Whether nobody has put anything into it."""
        return self.files.keys() <= _NEW


class Hub:
    """A repository through the official client; a context manager.

    It holds the token, so it has no ``repr`` of its own. ``endpoint`` is another Hub; ``None`` is
    ``HF_ENDPOINT`` or the real one. ``progress`` is called while it waits. What is committed goes
    to ``branch``, which the first commit makes from main.
    """

    def __init__(
        self,
        repo: str,
        token: str,
        endpoint: str | None,
        repo_type: RepoType,
        progress: Progress | None = None,
        branch: str = "main",
    ) -> None:
        try:
            import huggingface_hub as hub
        except ImportError as error:
            raise InputError(
                "publishing needs: pip install 'composer-pipeline[publish]'"
            ) from error
        self.repo, self.repo_type, self.branch = repo, repo_type, branch
        self.subject = f"{repo_type} {repo}"
        self._path = f"{'datasets/' if repo_type == 'dataset' else ''}{repo}"
        self.hub = hub
        self.api = hub.HfApi(endpoint=endpoint, token=token)
        self._progress = progress
        #: What the client raises when the Hub refuses or is out of reach.
        self.errors: tuple[type[Exception], ...] = (OSError, RuntimeError, *_client_errors())

    def __enter__(self) -> Self:
        # The client's own session, except that it neither sleeps by itself nor hangs.
        theirs = self.hub.get_session()
        new = partial(type(theirs), follow_redirects=True)
        request = theirs.event_hooks["request"]
        self._restore = partial(new, event_hooks={"request": request}, timeout=theirs.timeout)
        hooks = {"request": request, "response": [_raise_if_transient]}
        self.hub.set_client_factory(partial(new, event_hooks=hooks, timeout=_SILENCE_S))
        return self

    def __exit__(self, *exc: object) -> None:
        self.hub.set_client_factory(self._restore)

    @property
    def page(self) -> str:
        """Its address for people."""
        return f"{self.api.endpoint}/{self._path}"

    def refuse_others(self, remote: Remote, ours: bool, mark: str) -> None:
        """Raise InputError for a repository that holds something else, without our ``mark``."""
        if not remote.is_new and not ours:
            raise InputError(
                f"{self.subject} holds something that composer-pipeline did not publish (it has no"
                f" {mark}); choose another name"
            )

    def retry(self, limit_s: float = LIMIT_S) -> Retry:
        """Return the retries of one step."""
        return Retry(self.subject, self._progress, limit_s)

    def call(
        self, action: Callable[[], T], *, just_made: bool = False, limit_s: float = LIMIT_S
    ) -> T:
        """Repeat an idempotent action until it succeeds.

        ``just_made``: it is about something made a moment ago, so a 404 may pass.
        """
        retry = self.retry(limit_s)
        while True:
            try:
                return action()
            except self.errors as error:
                failure = self.failure(error)
                retry.wait(_INVISIBLE if just_made and failure.status == 404 else failure)

    def failure(self, error: BaseException) -> Failure:
        """Return what an error means; raise it where it is not the Hub's."""
        if isinstance(error, self.hub.errors.OfflineModeIsEnabled):
            raise InputError(
                "environment variable HF_HUB_OFFLINE keeps the Hub out of reach"
            ) from error
        failure = _failure_of(error)
        if failure is None:
            raise error
        return failure

    # -- reading -----------------------------------------------------------------

    def remote(self, *, private: bool, just_made_s: float = 0.0) -> Remote | None:
        """Return what the branch holds, or else main, or ``None`` where there is no repository.

        It may be invisible for ``just_made_s`` seconds, where it was made a moment ago.

        Raises:
            InputError: it is public and ``private`` asks for a private one, or the other way
                round, or it has been renamed.
        """

        def ask() -> Any:
            try:
                return self.api.repo_info(self.repo, repo_type=self.repo_type)
            except self.hub.errors.GatedRepoError:
                raise
            except self.hub.errors.RepositoryNotFoundError as error:
                if just_made_s or error.response.status_code == 401:
                    raise
                return None

        info = self.call(ask, just_made=bool(just_made_s), limit_s=just_made_s or LIMIT_S)
        if info is None:
            return None
        if info.id != self.repo:
            raise InputError(f"{self.subject} is now called {info.id}; publish to that name")
        if private and not info.private:
            raise InputError(f"{self.subject} is public; private=False (--public) publishes there")
        if not private and info.private:
            raise InputError(
                f"{self.subject} is private, and --public (private=False) does not change that:"
                " make it public in its settings first, or leave the option out"
            )
        head = str(info.sha)
        if self.branch != "main":
            head = self.refs().get(f"refs/heads/{self.branch}", head)
        return Remote(head, self.tree(head))

    def tree(self, revision: str, *, just_made: bool = False) -> dict[str, Entry]:
        """Return the files of a revision by path."""
        list_tree = partial(
            self.api.list_repo_tree,
            self.repo, repo_type=self.repo_type, recursive=True, revision=revision,
        )  # fmt: skip
        return {
            entry.path: Entry(
                entry.lfs.sha256 if entry.lfs else entry.blob_id, entry.size, bool(entry.lfs)
            )
            for entry in self.call(lambda: list(list_tree()), just_made=just_made)
            if isinstance(entry, self.hub.hf_api.RepoFile)
        }

    def read(self, path: str, revision: str) -> bytes:
        """Return the bytes of a whole file."""
        return self.call(lambda: bytes(self._open(path, revision, block_size=0).read()))

    def read_ranges(self, path: str, revision: str, size: int, reader: Callable[[Any], T]) -> T:
        """Return what ``reader`` makes of a file of ``size`` bytes, of which it loads ranges."""
        return self.call(lambda: reader(self._open(path, revision, size=size, block_size=_BLOCK)))

    def _open(self, path: str, revision: str, **options: Any) -> Any:
        # A new one each time: it remembers for good that a revision could not be seen.
        files = self.hub.HfFileSystem(
            endpoint=self.api.endpoint, token=self.api.token, skip_instance_cache=True
        )
        return files.open(f"{self._path}/{path}", revision=revision, **options)

    def refs(self) -> dict[str, str]:
        """Return every branch (``refs/heads/…``), tag and pull request to its commit."""
        found = self.call(
            lambda: self.api.list_repo_refs(
                self.repo, repo_type=self.repo_type, include_pull_requests=True
            )
        )
        every = [*found.branches, *found.tags, *found.converts, *(found.pull_requests or [])]
        return {entry.ref: entry.target_commit for entry in every}

    # -- writing -----------------------------------------------------------------

    def create(self, *, private: bool) -> Remote:
        """Make the repository and return what it holds."""

        def ask() -> float:
            try:
                self.api.create_repo(self.repo, repo_type=self.repo_type, private=private)
            except self.hub.errors.HfHubHTTPError as error:
                if error.response.status_code != 409:
                    raise
                return _TAKEN_S
            return LIMIT_S

        limit_s = self.call(ask)
        try:
            return self.remote(private=private, just_made_s=limit_s) or Remote()
        except ComposerError as error:
            if limit_s < LIMIT_S and _INVISIBLE.reason in str(error):
                raise ComposerError(
                    f"{self.subject}: its name is taken, and the token may not see it"
                ) from error
            raise

    def commit(self, files: Mapping[str, Content], changes: Mapping[str, str], head: str) -> str:
        """Make one commit on ``head`` and return its id; errors are the client's."""
        operations: list[Any] = [
            self.hub.CommitOperationDelete(path_in_repo=path)
            if how == "delete"
            else self.hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=files[path])
            for path, how in changes.items()
        ]
        if self.branch != "main":
            make = partial(self.api.create_branch, self.repo, repo_type=self.repo_type)
            make(branch=self.branch, revision=head, exist_ok=True)
        info = self.api.create_commit(
            self.repo,
            operations,
            repo_type=self.repo_type,
            revision=self.branch,
            commit_message=f"Publish {sum(how != 'delete' for how in changes.values())} files",
            parent_commit=head,
        )
        return str(info.oid)

    def tag(self, name: str, revision: str) -> None:
        """Tag a commit, unless the tag exists."""
        if f"refs/tags/{name}" not in self.refs():
            self.call(
                lambda: self.api.create_tag(
                    self.repo, tag=name, revision=revision, repo_type=self.repo_type, exist_ok=True
                ),
                just_made=True,
            )


def _raise_if_transient(response: Any) -> None:
    """Leave a transient refusal to our retries: the client would sleep as long as it asks."""
    if response.status_code in _TRANSIENT:
        try:
            wait_s = max(0.0, float(response.headers.get("Retry-After") or ""))
        except ValueError:  # none, or a date
            wait_s = None
        raise RetryLaterError(response.status_code, wait_s)


#: What the client accepts as owner and as name.
_PART = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_TOKEN = re.compile(r"[A-Za-z0-9_.-]+")


def check_repo(repo: str) -> None:
    """Raise InputError unless a name is ``OWNER/NAME`` and the Hub accepts it."""
    parts = repo.split("/")
    if len(parts) != 2 or any(not _PART.fullmatch(p) or p.endswith(".git") for p in parts):
        raise InputError(
            f"repo {repo[:200]!r} is not OWNER/NAME: each has 1 to 96 letters, digits, '-', '_' and"
            " '.', not '--' or '..', no '-' or '.' at an end, no '.git'"
        )


def token_of(variable: str, *, dry_run: bool) -> str:
    """Return the token of an environment variable, else that of the client's stored login.

    A dry run needs none. A token goes to the client, and nowhere else.
    """
    token = os.environ.get(variable, "").strip()
    where = f"environment variable {variable}"
    if not token and variable == "HF_TOKEN":
        from huggingface_hub import get_token

        token, where = get_token() or "", "the stored login of the Hub's client"
    if token and not _TOKEN.fullmatch(token):
        raise InputError(f"{where} holds a token with a character that no token has")
    if not token and not dry_run:
        raise InputError(
            f"environment variable {variable} holds no token, and `hf auth login` has stored none"
        )
    return token
