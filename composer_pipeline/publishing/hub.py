"""The Hub's client with our patience: questions, one commit, tags.

Belongs here: requests and their retries. Does not belong here: what a commit changes
(``bring``), what is checked afterwards (``check``), and what may be published
(``publishing.gates``).
"""

import hashlib
import io
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal, NoReturn, Self, TypeVar

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.reports import Progress

#: The bytes of a file, or where they are: weights need not fit into memory.
Content = bytes | Path


def plan_changes(
    files: Mapping[str, Content], remote: Mapping[str, str], ours: Callable[[str], bool]
) -> dict[str, str]:
    """Return path to ``add``, ``replace`` or ``delete``, sorted by path.

    Args:
        files: what the repository shall hold.
        remote: path to SHA-256 (LFS) or git blob id of what it holds.
        ours: whether a path is one of a publication; other files are left alone.
    """
    changes = {}
    for path, content in files.items():
        if path not in remote:
            changes[path] = "add"
        elif remote[path] not in hashes_of(content):
            changes[path] = "replace"
    for path in remote:
        if path not in files and ours(path):
            changes[path] = "delete"
    return dict(sorted(changes.items()))


def hashes_of(content: Content) -> tuple[str, str]:
    """Return the two names that the Hub may have for a content: SHA-256 and git blob id."""
    if isinstance(content, bytes):
        return _hashes(BytesIO(content), len(content))
    now = content.stat()
    return _of_file(content, now.st_size, now.st_mtime_ns, now.st_ino)


@lru_cache(maxsize=1024)
def _of_file(path: Path, size: int, *_: int) -> tuple[str, str]:
    """Read a file once while it stays as it is: a publication asks for its hashes five times."""
    with path.open("rb") as stream:
        return _hashes(stream, size)


def _hashes(stream: IO[bytes], size: int) -> tuple[str, str]:
    sha, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)  # noqa: S324
    while part := stream.read(1 << 20):
        sha.update(part)
        blob.update(part)
    return sha.hexdigest(), blob.hexdigest()


#: Statuses of a Hub that is busy, limits us, or is ill for a moment.
PASSING = (408, 429, 500, 502, 503, 504)
_REASONS = {
    401: "the token is not accepted",
    403: "the token may not write there",
    404: "it does not exist, or the token may not see it",
    409: "others kept committing",
    412: "others kept committing",
}


@dataclass(frozen=True)
class Trouble:
    """What happened.

    Attributes:
        said: why, as the end of a sentence.
        passing: it may be gone in a moment.
        wait_s: seconds that the Hub asks to wait, where it does.
        status: its answer; 0 where there was none.
    """

    said: str
    passing: bool = False
    wait_s: float | None = None
    status: int = 0


class AskedToWait(Exception):
    """An answer that the client would sleep on by itself; raised where it is received."""

    def __init__(self, status: int, wait_s: float | None) -> None:
        super().__init__(f"the Hub answered {status}")
        self.status, self.wait_s = status, wait_s


def trouble_of(error: BaseException) -> Trouble | None:
    """Return what an error of the client means, or ``None`` for one that is not the Hub's."""
    chain = list(_chain(error))
    # What the Hub said comes before what the connection did, and that before its wrappings.
    readers = (_answered, _unreachable, _lost)
    found = (read(one) for read in readers for one in chain)
    return next((trouble for trouble in found if trouble), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _answered(error: BaseException) -> Trouble | None:
    from huggingface_hub import errors

    if isinstance(error, AskedToWait):
        said = f"the Hub answered {error.status}"
        return Trouble(said, passing=True, wait_s=error.wait_s, status=error.status)
    if not isinstance(error, errors.HfHubHTTPError) or error.response is None:
        return None
    status = int(error.response.status_code)
    said = _REASONS.get(status, f"the Hub answered {status}")
    if isinstance(error, errors.GatedRepoError):
        said = "it is gated, and the token's account has no access"
    elif isinstance(error, errors.DisabledRepoError):
        said = "the Hub has disabled it"
    elif status == 403 and "create_pr" in str(error):
        said = "the token may only open pull requests there"
    return Trouble(said, passing=status in PASSING or status in (409, 412), status=status)


def _unreachable(error: BaseException) -> Trouble | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Trouble("the certificate of the Hub is not accepted")
    if isinstance(error, socket.gaierror):
        return Trouble("the Hub's name is not known, or there is no network")
    return None


def client_errors() -> tuple[type[Exception], ...]:
    """Return what the client raises, besides errors of the system and of its own pool."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return AskedToWait, HTTPError


def _lost(error: BaseException) -> Trouble | None:
    if isinstance(error, client_errors()):
        return Trouble("the connection to the Hub was lost", passing=True)
    return _of_xet(str(error)) if isinstance(error, ConnectionError) else None


def _of_xet(text: str) -> Trouble:
    """``hf_xet`` has tried again by itself for two minutes, and names the status in words."""
    found = re.search(r"\((\d{3}) ", text)
    status = int(found[1]) if found else 0
    said = _REASONS.get(status, f"the Hub answered {status}")
    return Trouble(said if status else "the upload to the Hub was lost", status=status)


#: Seconds after which one step that keeps failing is given up.
LIMIT_S = 120.0
_LONGEST_S = 30.0


class Patience:
    """Waits between the attempts of one step.

    Args:
        subject: what a sentence of it begins with.
        progress: called as ("waiting for the Hub", seconds waited, limit).
        limit_s: seconds after which it is given up.

    Attributes:
        waited_s: seconds so far.
    """

    def __init__(
        self, subject: str, progress: Progress | None = None, limit_s: float = LIMIT_S
    ) -> None:
        self._subject, self._progress, self._limit_s = subject, progress, limit_s
        self._since: float | None = None
        self.waited_s = 0.0
        self._next = 1.0

    def bear(self, trouble: Trouble) -> None:
        """Wait, if it may pass and there is time for it.

        Raises:
            ComposerError: it does not pass by itself, or not in time.
        """
        if not trouble.passing:
            raise ComposerError(f"{self._subject}: {trouble.said}") from None
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        spent = max(now - self._since, self.waited_s)
        wait = max(self._next, trouble.wait_s or 0.0)
        if spent + wait > self._limit_s:
            self._give_up(trouble)
        if self._progress:
            self._progress("waiting for the Hub", int(spent), int(self._limit_s))
        time.sleep(wait)
        self.waited_s += wait
        self._next = min(_LONGEST_S, 2 * self._next)

    def _give_up(self, trouble: Trouble) -> NoReturn:
        if trouble.wait_s and trouble.wait_s > self._limit_s:
            more = f"and asks to wait {trouble.wait_s:.0f} s"
        else:
            more = f"for {self._limit_s:.0f} s; nothing is half-done, publish again"
        raise ComposerError(f"{self._subject}: {trouble.said}, {more}") from None


RepoType = Literal["dataset", "model"]
T = TypeVar("T")
#: Seconds without a byte after which a connection counts as lost.
_SILENCE_S = 60.0
#: A repository or revision that was just made may be unseen for some seconds.
_UNSEEN = Trouble("the Hub does not show it", passing=True)
#: Seconds for which a repository is waited for whose name was taken: perhaps by ourselves, and
#: the answer was lost.
_TAKEN_S = 15.0


@dataclass(frozen=True)
class Entry:
    """A file of a repository: its id (SHA-256 of an LFS object, else git's) and size in bytes."""

    oid: str
    size: int
    lfs: bool


#: What the Hub itself puts into a new repository.
_NEW = {".gitattributes", ".gitignore", "README.md"}


@dataclass(frozen=True)
class Remote:
    """What a repository holds at its head; empty where there is none."""

    head: str = ""
    files: dict[str, Entry] = field(default_factory=dict)
    private: bool = True

    @property
    def is_new(self) -> bool:
        """Whether nobody has put anything into it."""
        return self.files.keys() <= _NEW


class Hub:
    """The real client, with our retries; a context manager. Holds the token; has no repr of it.

    Args:
        repo: ``owner/name``.
        token: may write there.
        endpoint: another Hub; ``None`` takes ``HF_ENDPOINT`` or the real one.
        repo_type: what kind of repository it is.
        progress: called while it waits.
    """

    def __init__(
        self,
        repo: str,
        token: str,
        endpoint: str | None,
        repo_type: RepoType,
        progress: Progress | None = None,
    ) -> None:
        try:
            import huggingface_hub as hub
        except ImportError as error:
            raise InputError(
                "publishing needs: pip install 'composer-pipeline[publish]'"
            ) from error
        self.repo, self.repo_type = repo, repo_type
        self.subject = f"{repo_type} {repo}"
        self.hub = hub
        self.api = hub.HfApi(endpoint=endpoint, token=token)
        self._progress = progress
        #: What the client raises when the Hub refuses or is out of reach.
        self.errors: tuple[type[Exception], ...] = (OSError, RuntimeError, *client_errors())

    def __enter__(self) -> Self:
        self.hub.set_client_factory(_client)
        return self

    def __exit__(self, *exc: object) -> None:
        from huggingface_hub.utils._http import default_client_factory

        self.hub.set_client_factory(default_client_factory)

    @property
    def page(self) -> str:
        """Where people see it."""
        folder = "datasets/" if self.repo_type == "dataset" else ""
        return f"{self.api.endpoint}/{folder}{self.repo}"

    def refuse_others(self, remote: Remote, ours: bool, mark: str) -> None:
        """Refuse a repository that holds something of somebody else.

        Raises:
            InputError: it is neither new nor ``ours``, which ``mark`` would show.
        """
        if not remote.is_new and not ours:
            raise InputError(
                f"{self.subject} holds something that composer-pipeline did not publish (it has no"
                f" {mark}); choose another name"
            )

    def patience(self, limit_s: float = LIMIT_S) -> Patience:
        """Return the patience of one step."""
        return Patience(self.subject, self._progress, limit_s)

    def call(self, action: Callable[[], T], *, unseen: bool = False, limit_s: float = LIMIT_S) -> T:
        """Do something that may be done twice, until it succeeds.

        Args:
            action: asks the client.
            unseen: it is about something made a moment ago, so a 404 may pass.
            limit_s: seconds after which it is given up.

        Raises:
            InputError: the environment keeps the Hub out of reach.
            ComposerError: the Hub refused, or trouble did not pass.
        """
        patience = self.patience(limit_s)
        while True:
            try:
                return action()
            except self.errors as error:
                trouble = self.trouble(error)
                patience.bear(_UNSEEN if unseen and trouble.status == 404 else trouble)

    def trouble(self, error: BaseException) -> Trouble:
        """Return what an error means.

        Raises:
            InputError: the environment keeps the Hub out of reach.
            BaseException: the error itself, where it is not the Hub's.
        """
        if isinstance(error, self.hub.errors.OfflineModeIsEnabled):
            raise InputError(
                "environment variable HF_HUB_OFFLINE keeps the Hub out of reach"
            ) from error
        trouble = trouble_of(error)
        if trouble is None:
            raise error
        return trouble

    # -- what there is ---------------------------------------------------------

    def look(self, *, private: bool, made_s: float = 0.0) -> Remote | None:
        """Return what the repository holds, or ``None`` where there is none.

        Args:
            private: refuse one that everybody sees.
            made_s: seconds for which it may be unseen, because it was made a moment ago.

        Raises:
            InputError: it is public and ``private`` asks for a private one, or the other way
                round, or it has another name today.
        """

        def ask() -> Any:
            try:
                return self.api.repo_info(self.repo, repo_type=self.repo_type)
            except self.hub.errors.GatedRepoError:
                raise
            except self.hub.errors.RepositoryNotFoundError as error:
                if made_s or error.response.status_code == 401:
                    raise
                return None

        info = self.call(ask, unseen=bool(made_s), limit_s=made_s or LIMIT_S)
        if info is None:
            return None
        if info.id != self.repo:
            raise InputError(f"{self.subject} is called {info.id} today; publish to that name")
        if private and not info.private:
            raise InputError(f"{self.subject} is public; private=False (--public) publishes there")
        if not private and info.private:
            raise InputError(
                f"{self.subject} is private, and --public (private=False) does not change that:"
                " make it public in its settings first, or leave the option out"
            )
        return Remote(str(info.sha), self.tree(str(info.sha)), bool(info.private))

    def tree(self, revision: str, *, made: bool = False) -> dict[str, Entry]:
        """Return the files of a revision by path."""
        entries = self.call(
            lambda: list(
                self.api.list_repo_tree(
                    self.repo, repo_type=self.repo_type, recursive=True, revision=revision
                )
            ),
            unseen=made,
        )
        return {
            entry.path: Entry(
                entry.lfs.sha256 if entry.lfs else entry.blob_id, entry.size, bool(entry.lfs)
            )
            for entry in entries
            if isinstance(entry, self.hub.hf_api.RepoFile)
        }

    def read(self, path: str, revision: str, first: int = 0, last: int | None = None) -> bytes:
        """Return the bytes ``first`` to ``last`` (exclusive) of a file; the whole by default."""
        url = self.hub.hf_hub_url(
            self.repo,
            path,
            repo_type=self.repo_type,
            revision=revision,
            endpoint=self.api.endpoint,
        )
        headers = dict(self.api._build_hf_headers())
        if last is not None:
            headers["Range"] = f"bytes={first}-{last - 1}"

        def ask() -> bytes:
            answer = self.hub.get_session().get(url, headers=headers)
            self.hub.utils.hf_raise_for_status(answer)
            return bytes(answer.content)

        return self.call(ask)

    # -- what is changed -------------------------------------------------------

    def create(self, *, private: bool) -> Remote:
        """Make the repository and return what it holds.

        Raises:
            ComposerError: the name is taken by something that the token may not see.
        """

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
            return self.look(private=private, made_s=limit_s) or Remote()
        except ComposerError as error:
            if limit_s < LIMIT_S and _UNSEEN.said in str(error):
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
        info = self.api.create_commit(
            self.repo,
            operations,
            repo_type=self.repo_type,
            commit_message=f"Publish {sum(how != 'delete' for how in changes.values())} files",
            parent_commit=head,
        )
        return str(info.oid)

    def refs(self) -> dict[str, str]:
        """Return every branch (``refs/heads/…``), tag and pull request to its commit."""
        found = self.call(
            lambda: self.api.list_repo_refs(
                self.repo, repo_type=self.repo_type, include_pull_requests=True
            )
        )
        every = [*found.branches, *found.tags, *found.converts, *(found.pull_requests or [])]
        return {entry.ref: entry.target_commit for entry in every}

    def tag(self, name: str, revision: str) -> None:
        """Name a commit, once."""
        if f"refs/tags/{name}" not in self.refs():
            self.call(
                lambda: self.api.create_tag(
                    self.repo, tag=name, revision=revision, repo_type=self.repo_type, exist_ok=True
                ),
                unseen=True,
            )


class RemoteFile(io.RawIOBase):
    """A file of the Hub that is read by ranges.

    Args:
        hub: asks.
        path: in the repository.
        revision: of it.
        size: of the file in bytes.
    """

    def __init__(self, hub: Hub, path: str, revision: str, size: int) -> None:
        self._hub, self._path, self._revision, self._size = hub, path, revision, size
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place and return it."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; a request each time."""
        left = self._size - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted <= 0:
            return b""
        data = self._hub.read(self._path, self._revision, self._at, self._at + wanted)
        self._at += len(data)
        return data


def _client() -> Any:
    """Return the client's own session, except that it neither sleeps by itself nor hangs."""
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    client.timeout = _SILENCE_S
    client.event_hooks = {**client.event_hooks, "response": [_do_not_sleep]}
    return client


def _do_not_sleep(response: Any) -> None:
    """Hand a passing refusal to our patience: the client would sleep however long it is told."""
    if response.status_code in PASSING:
        raise AskedToWait(response.status_code, _seconds(response.headers.get("Retry-After")))


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:  # a date
        return None


#: What the client accepts for owner and for name, without its two forbidden pairs.
_PART = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_TOKEN = re.compile(r"[A-Za-z0-9_.-]+")


def check_repo(repo: str) -> None:
    """Refuse a name that is no repository's.

    Raises:
        InputError: it is not ``OWNER/NAME``, or the Hub takes no such name.
    """
    owner, slash, name = repo.partition("/")
    if not slash or "/" in name or not owner or not name or re.search(r"\s", repo):
        raise InputError(f"repo {repo!r} is not OWNER/NAME")
    for part in (owner, name):
        if len(part) > 96:
            raise InputError(f"repo {repo[:40]}…: {part[:20]}… has more than 96 characters")
        if not _PART.fullmatch(part) or part.endswith(".git"):
            raise InputError(
                f"repo {repo!r}: {part!r} is no name on the Hub: letters, digits, '-', '_' and '.',"
                " not '--' or '..', no '-' or '.' at an end, no '.git'"
            )


def token_of(variable: str, *, dry_run: bool) -> str:
    """Return the token that a variable holds, else that of the client's stored login.

    A dry run needs none. A token goes to the client, and nowhere else.

    Raises:
        InputError: there is none, or it has characters that no token has.
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
