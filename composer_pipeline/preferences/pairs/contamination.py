"""Which sessions work on the repository of a public benchmark.

Belongs here: the evidence of a session. Does not belong here: the benchmarks
(``preferences.pairs.benchmarks``) and what is done about it (``preferences.pairs.filters``).

Three kinds of evidence. ``instance``: an instance id such as ``django__django-11099``.
``remote``: the repository as a git remote or the source of a clone. ``name``: the project's
folder merely has the repository's name, which proves little. A link to a repository, as in
a list of dependencies, is no evidence.
"""

from collections.abc import Iterable

from composer_pipeline.json_values import strings
from composer_pipeline.preferences.pairs.benchmarks import Benchmarks
from composer_pipeline.trace_states import TraceState, Unseen

#: Evidence that the folder's name alone cannot give.
STRONG = frozenset({"instance", "remote"})


def contaminated_sessions(
    states: Iterable[TraceState], benchmarks: Benchmarks
) -> dict[str, list[str]]:
    """Return session id to its evidence, sorted; sessions without any are left out.

    Looks at each message object once: the states of a chain share them.

    Args:
        states: trace states with their messages, all alive at the same time.
        benchmarks: the lists.
    """
    found: dict[str, set[str]] = {}
    unseen = Unseen()
    for state in states:
        evidence = found.setdefault(state.session_id, set())
        for place in {state.project or "", state.cwd or ""}:
            evidence.update(benchmarks.in_place(place))
        for message in unseen.of(state):
            for text in strings(message):
                evidence.update(benchmarks.in_text(text))
    return {session: sorted(evidence) for session, evidence in found.items() if evidence}


def is_strong(evidence: Iterable[str]) -> bool:
    """Say whether any evidence is more than a folder's name."""
    return any(item.split(" ", 1)[0] in STRONG for item in evidence)
