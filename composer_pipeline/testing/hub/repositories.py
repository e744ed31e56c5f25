"""Endpoints about repositories: creation, settings, refs, and what is removed for good.

Does not belong here: uploads and commits (``uploads``), reading (``reading``).
"""

import json
from typing import Any

from composer_pipeline.testing.hub.handler import Handler
from composer_pipeline.testing.hub.repository import Repo, is_lfs, oid_of


def create(self: Handler, body: bytes, **_: Any) -> None:
    """Make a repository; public unless the client asks for something else, as on the Hub."""
    if not self.writer():
        return
    wanted = json.loads(body)
    name = f"{wanted['organization']}/{wanted['name']}"
    self.models = wanted.get("type", "model") == "model"
    url = f"{self.hub.endpoint}/{'' if self.models else 'datasets/'}{name}"
    if name in self.repos or name in self.hub.hidden:
        self.json({"error": "You already created this repo", "url": url}, 409)
        return
    repo = Repo(private=_private(wanted) or False)
    now = self.hub.clock()
    repo.add("initial commit", {".gitattributes": b"*.parquet filter=lfs\n"}, now)
    self.repos[name] = repo
    self.json({"url": url, "name": name, "id": name})


def _private(wanted: dict[str, Any]) -> bool | None:
    if "visibility" in wanted:
        return bool(wanted["visibility"] == "private")
    return bool(wanted["private"]) if wanted.get("private") is not None else None


def settings(self: Handler, repo: str, body: bytes, **_: Any) -> None:
    """Change who sees it."""
    found = self.repo_of(repo, write=True)
    if found:
        wanted = json.loads(body)
        private = _private(wanted)
        found.private = found.private if private is None else private
        found.gated = bool(wanted.get("gated", found.gated))
        self.json({"private": found.private, "gated": found.gated and "manual"})


def refs(self: Handler, repo: str, query: dict[str, list[str]], **_: Any) -> None:
    """Branches, tags, and pull requests where they are asked for."""
    found = self.repo_of(repo)
    head = self.commit_at(repo, "main") if found else None
    if not found or not head:
        return

    def listed(names: dict[str, str], prefix: str) -> list[dict[str, str]]:
        return [
            {"name": name, "ref": f"{prefix}{name}", "targetCommit": oid}
            for name, oid in sorted(names.items())
        ]

    said = {
        "branches": listed({"main": head.oid, **found.branches}, "refs/heads/"),
        "tags": listed(found.tags, "refs/tags/"),
        "converts": [],
    }
    if query.get("include_prs"):
        said["pullRequests"] = listed(found.pulls, "")
    self.json(said)


def tag(self: Handler, repo: str, revision: str, body: bytes, **_: Any) -> None:
    """Name a commit."""
    found = self.repo_of(repo, write=True)
    commit = found.find(revision) if found else None
    if found and commit is None:
        self.error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    elif found and commit:
        name = json.loads(body)["tag"]
        if name in found.tags:
            self.error(409, "Tag reference exists already")
            return
        found.tags[name] = commit.oid
        self.json({})


def untag(self: Handler, repo: str, revision: str, **_: Any) -> None:
    """Remove a name, and what only it reached."""
    found = self.repo_of(repo, write=True)
    if found and found.tags.pop(revision, None) is None:
        self.error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    elif found:
        found.forget_unreachable()
        self.json({})


def commits(self: Handler, repo: str, revision: str, **_: Any) -> None:
    """The commits of a revision, newest first."""
    last = self.commit_at(repo, revision)
    if last:
        known = {commit.oid: commit for commit in self.repos[repo].every}
        out, oid = [], last.oid
        while oid in known:
            words = {"title": known[oid].message, "message": ""}
            out.append({"id": oid, "authors": [], "date": "2026-01-01T00:00:00.000Z", **words})
            oid = known[oid].parent
        self.json(out)


def squash(self: Handler, repo: str, revision: str, body: bytes, **_: Any) -> None:
    """Leave one commit of main."""
    found = self.repo_of(repo, write=True)
    if found and revision != "main":
        self.error(400, "Invalid reference for a branch")
    elif found:
        found.squash(json.loads(body)["message"])
        self.json({})


def lfs_files(self: Handler, repo: str, **_: Any) -> None:
    """Every object that some commit of the repository has, or had."""
    found = self.repo_of(repo, write=True)
    if found:
        known: dict[str, dict[str, str | int]] = {
            oid_of(path, data): {"filename": path, "size": len(data)}
            for commit in found.every
            for path, data in commit.files.items()
            if is_lfs(path)
        }
        known |= {oid: entry for oid, entry in found.pushed.items() if oid not in known}
        ref, at = "refs/heads/main", "2026-01-01T00:00:00.000Z"
        self.json(
            [
                {"fileOid": oid, "oid": oid[::-1][:24], "pushedAt": at, "ref": ref, **entry}
                for oid, entry in sorted(known.items())
            ]
        )


def delete_lfs_files(self: Handler, repo: str, body: bytes, **_: Any) -> None:
    """Remove objects for good, and the files that are made of them from every commit."""
    found = self.repo_of(repo, write=True)
    if found:
        wanted = json.loads(body)["deletions"]
        for oid in wanted["sha"]:
            found.pushed.pop(oid, None)
            self.hub.blobs.pop(oid, None)
        if wanted.get("rewriteHistory"):
            found.drop_objects(set(wanted["sha"]))
        self.json({})
