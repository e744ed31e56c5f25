"""The Hub's client with our patience: questions, one commit, tags.

Belongs here: requests and their retries. Does not belong here: what a commit changes
(``bring``), what is checked afterwards (``check``), and what may be published
(``publishing.gates``).
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.publishing.changes import Content
from composer_pipeline.publishing.hub.patience import LIMIT_S, Patience
from composer_pipeline.publishing.hub.trouble import (
    PASSING,
    AskedToWait,
    Trouble,
    client_errors,
    trouble_of,
)
from composer_pipeline.reports import Progress

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
