"""One commit to the Hugging Face Hub.

Belongs here: requests and retries. Does not belong here: what changed (``publishing.changes``),
what may be published (``publishing.gates``) and building files (``publishing.publish``).
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.publishing.changes import Content, plan_changes

ATTEMPTS = 5
RepoType = Literal["dataset", "model"]


class Hub:
    """The real client, with our retries. Holds the token; has no repr of it.

    Args:
        repo: ``owner/name``.
        token: may write there.
        endpoint: another Hub; ``None`` takes ``HF_ENDPOINT`` or the real one.
        repo_type: what kind of repository it is.
        ours: whether a path of the repository is one that a publication replaces, so that it
            is deleted where the new files have it no more.
    """

    def __init__(
        self,
        repo: str,
        token: str,
        endpoint: str | None,
        repo_type: RepoType,
        ours: Callable[[str], bool],
    ) -> None:
        try:
            import huggingface_hub as hub
        except ImportError as error:
            raise InputError(
                "publishing needs: pip install 'composer-pipeline[publish]'"
            ) from error
        self.repo, self.repo_type, self._ours = repo, repo_type, ours
        self.hub = hub
        self.api = hub.HfApi(endpoint=endpoint, token=token)

    def bring(
        self, files: Mapping[str, Content], *, private: bool, dry_run: bool
    ) -> tuple[str, dict[str, str]]:
        """Make the repository hold ``files``; return its head and what changed.

        Raises:
            InputError: it is public and ``private`` asks for a private one, or the environment
                keeps the Hub out of reach.
            ComposerError: the Hub refused, or was busy each time.
        """
        try:
            return self._bring(files, private=private, dry_run=dry_run)
        except self.hub.errors.OfflineModeIsEnabled as error:
            raise InputError(
                "environment variable HF_HUB_OFFLINE keeps the Hub out of reach"
            ) from error

    def _bring(
        self, files: Mapping[str, Content], *, private: bool, dry_run: bool
    ) -> tuple[str, dict[str, str]]:
        if not dry_run:
            self._call(
                lambda: self.api.create_repo(
                    self.repo, repo_type=self.repo_type, private=private, exist_ok=True
                )
            )
        for attempt in range(ATTEMPTS):
            head, remote = self._remote(private=private, missing_ok=dry_run)
            changes = plan_changes(files, remote, self._ours)
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
                    raise ComposerError(self._sentence(status)) from None
                if status == 409:
                    time.sleep(0.5 * 2**attempt)
        raise ComposerError(
            f"{self.repo_type} {self.repo}: others kept committing; {ATTEMPTS} attempts"
        )

    def _remote(self, *, private: bool, missing_ok: bool) -> tuple[str, dict[str, str]]:
        try:
            info = self.api.repo_info(self.repo, repo_type=self.repo_type)
        except self.hub.errors.RepositoryNotFoundError:
            if missing_ok:
                return "", {}
            raise ComposerError(self._sentence(404)) from None
        except self.hub.errors.HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            raise ComposerError(self._sentence(status)) from None
        if private and not info.private:
            raise InputError(
                f"{self.repo_type} {self.repo} is public; private=False (--public) publishes there"
            )
        tree = self._call(
            lambda: list(
                self.api.list_repo_tree(
                    self.repo, repo_type=self.repo_type, recursive=True, revision=info.sha
                )
            )
        )
        remote = {
            entry.path: entry.lfs.sha256 if entry.lfs else entry.blob_id
            for entry in tree
            if isinstance(entry, self.hub.hf_api.RepoFile)
        }
        return str(info.sha), remote

    def _commit(self, files: Mapping[str, Content], changes: Mapping[str, str], head: str) -> str:
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

    def _call(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except self.hub.errors.HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            raise ComposerError(self._sentence(status)) from None

    def _sentence(self, status: int) -> str:
        reasons = {
            401: "the token is not accepted",
            403: "the token may not write there",
            404: "it does not exist, or the token may not see it",
        }
        said = reasons.get(status, f"the Hub answered {status}")
        return f"{self.repo_type} {self.repo}: {said}"
