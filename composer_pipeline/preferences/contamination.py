"""Evidence of public benchmarks' repositories in sessions."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from composer_pipeline.config_file import read_model
from composer_pipeline.files import strings
from composer_pipeline.preferences.rules import Contamination, PreferenceRules, bundled_benchmarks
from composer_pipeline.states.state import TraceState, Unseen

_INSTANCE = re.compile(r"(?<![\w.-])([A-Za-z0-9][\w.-]*?)__([A-Za-z0-9][\w.-]*?)-\d+(?![\w-])")
_REPOSITORY = r"\S*?github\.com[:/]([\w.-]+)/([\w.-]+?)(?:\.git)?(?=[\s\"'/)]|$)"
_REMOTE = re.compile(
    rf"(?:\b(?:origin|upstream)\s+|\burl\s*=\s*|\bgit clone\s+(?:\S+\s+){{0,6}}?){_REPOSITORY}"
)


class _Benchmark(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    repositories: list[Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    benchmarks: list[_Benchmark]


class Benchmarks:
    """A lookup of ``{owner/name: benchmark}`` in texts; case does not matter."""

    def __init__(self, repositories: Mapping[str, str]) -> None:
        self._of = {repo.lower(): (repo, name) for repo, name in repositories.items()}
        self._by_name = {repo.split("/")[1].lower(): repo for repo in self._of}

    @staticmethod
    def load(files: Sequence[str | Path]) -> "Benchmarks":
        """Read lists of benchmarks; a repository in two lists keeps the first one's name."""
        names: dict[str, str] = {}
        for path in map(Path, files):
            for benchmark in read_model(path, "benchmark list", _File).benchmarks:
                for repo in benchmark.repositories:
                    names.setdefault(repo, benchmark.name)
        return Benchmarks(names)

    @staticmethod
    def of_rules(rules: PreferenceRules) -> "Benchmarks":
        """Read the bundled list and those that a recipe names."""
        return Benchmarks.load([bundled_benchmarks(), *rules.contamination.files])

    def in_text(self, text: str) -> Iterator[str]:
        """Yield evidence in a text, as ``kind owner/name (benchmark)``."""
        if "__" in text:
            for match in _INSTANCE.finditer(text):
                yield from self._evidence("instance", f"{match[1]}/{match[2]}")
        if "github.com" in text:
            for match in _REMOTE.finditer(text):
                yield from self._evidence("remote", f"{match[1]}/{match[2]}")

    def named_like(self, path: str) -> Iterator[str]:
        """Yield the repository that has a folder's name; by itself it is no evidence."""
        name = PurePosixPath(path).name.lower() if path else ""
        if name in self._by_name:
            yield self._by_name[name]

    def named_in(self, text: str, repositories: Iterable[str]) -> Iterator[str]:
        """Yield evidence for those of some repositories that a text names with their owner."""
        for repo in repositories:
            if re.search(rf"(?i)(?<![\w/.-]){re.escape(repo)}(?![\w/-]|\.\w)", text):
                yield from self._evidence("name", repo)

    def _evidence(self, kind: str, repo: str) -> Iterator[str]:
        known = self._of.get(repo.lower())
        if known is not None:
            yield f"{kind} {known[0]} ({known[1]})"


def contaminated_sessions(
    states: Iterable[TraceState], benchmarks: Benchmarks
) -> dict[str, list[str]]:
    """Return session id to its sorted evidence; sessions without any are left out.

    The states must all be alive: messages that they share are searched once, by object.
    """
    every = list(states)
    named: dict[str, set[str]] = {}
    for state in every:
        for place in (state.project, state.cwd):
            named.setdefault(state.session_id, set()).update(benchmarks.named_like(place or ""))
    found: dict[str, set[str]] = {}
    unseen = Unseen()
    for state in every:
        evidence = found.setdefault(state.session_id, set())
        for place in {state.project or "", state.cwd or ""}:
            evidence.update(benchmarks.in_text(place))
        for message in unseen.of(state):
            for text in strings(message):
                evidence.update(benchmarks.in_text(text))
                evidence.update(benchmarks.named_in(text, named[state.session_id]))
    return {session: sorted(evidence) for session, evidence in found.items() if evidence}


def is_strong(evidence: Iterable[str]) -> bool:
    """Return True if any evidence is more than a folder's name and the repository's in a text."""
    return any(item.split(" ", 1)[0] in ("instance", "remote") for item in evidence)


def is_dropped(evidence: Collection[str], rule: Contamination) -> bool:
    """Return True if a session with this evidence is dropped."""
    action = rule.evidence if is_strong(evidence) else rule.by_name
    return bool(evidence) and action == "drop"
