"""One commit to the Hugging Face Hub.

Belongs here: requests and retries. Does not belong here: what changed (``publishing.changes``),
what may be published (``publishing.gates``) and building files (``publishing.publish``).
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.publishing.changes import plan_changes

ATTEMPTS = 5


class Hub:
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


def _sentence(repo: str, status: int) -> str:
    reasons = {
        401: "the token is not accepted",
        403: "the token may not write there",
        404: "it does not exist, or the token may not see it",
    }
    return f"dataset {repo}: {reasons.get(status, f'the Hub answered {status}')}"
