"""What the stand-in knows while it serves.

Does not belong here: HTTP (``handler``), and when it begins and ends (``server``).
"""

import threading
import time
from collections.abc import Callable

from composer_pipeline.testing.hub.faults import Fault, Planned, RateLimit, fault_of
from composer_pipeline.testing.hub.repository import Commit, Repo
from composer_pipeline.testing.hub.xet import XetFolder


class HubState:
    """Repositories, tokens, what came, and the bad days that are planned.

    Args:
        token: a token that may do everything.
        xet: folder into which ``hf_xet`` writes.

    Attributes:
        tokens: further tokens to what they may: ``write``, ``read`` or ``pull-requests``.
        repos: ``owner/name`` to dataset repository.
        models: ``owner/name`` to model repository.
        moved: former name of a repository to its name today.
        hidden: names that are taken by what none of the tokens may see.
        blobs: SHA-256 to the bytes of an object that came by LFS.
        requests: (method, path) of every request, in order.
        kinds: the kind of every request, in order; ``endpoints.ROUTES`` lists them.
        faults: (kind, fault) pairs; each is what becomes of the next request of its kind.
        limits: kind to its rate limit.
        lag_s: seconds that a new commit stays unseen by those who ask for ``main``.
        clock: what time it is, in seconds.
        before_commit: called with the repository before a commit is judged, for a
            publisher that was faster.
        watch: called with kind and ``before`` or ``after`` around every request.
    """

    #: Where it answers.
    endpoint = ""

    def __init__(self, token: str, xet: XetFolder) -> None:
        self.token = token
        self.xet = xet
        self.tokens: dict[str, str] = {}
        self.repos: dict[str, Repo] = {}
        self.models: dict[str, Repo] = {}
        self.moved: dict[str, str] = {}
        self.hidden: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.kinds: list[str] = []
        self.faults: list[tuple[str, Planned]] = []
        self.limits: dict[str, RateLimit] = {}
        self.lag_s = 0.0
        self.clock: Callable[[], float] = time.monotonic
        self.before_commit: Callable[[Repo], None] | None = None
        self.watch: Callable[[str, str], None] | None = None
        self.lock = threading.RLock()

    def fault(self, kind: str) -> Fault | None:
        """Take the planned fault of this kind, or that of its rate limit, if there is one."""
        with self.lock:
            for i, (wanted, planned) in enumerate(self.faults):
                if wanted == kind:
                    del self.faults[i]
                    return fault_of(planned)
            limit = self.limits.get(kind)
            wait = limit.ask(self.clock()) if limit else 0.0
        return Fault(429, retry_after=wait, message="You have been rate limited") if wait else None

    def object(self, oid: str) -> bytes | None:
        """Return the bytes of an object that arrived, by LFS or by Xet."""
        if oid not in self.blobs and (data := self.xet.get(oid)) is not None:
            self.blobs[oid] = data
        return self.blobs.get(oid)

    def seen(self, found: Repo, revision: str) -> Commit | None:
        """Return the commit of a revision as readers see it: the head of main may lag."""
        if revision != "main" or not self.lag_s:
            return found.find(revision)
        past = self.clock() - self.lag_s
        return next((c for c in reversed(found.commits) if c.at <= past), None)
