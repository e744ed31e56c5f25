"""The only way to spend money: reserve the worst case, send, settle by the outcome.

Nothing else calls ``reserve`` or ``settle``; a test holds that. A call makes two durable
commits: reserved, then settled with the raw bytes. Between them every way out is
covered: an unknown outcome, also that of a cancelled task, stays charged at its worst case.
"""

import asyncio
from datetime import UTC, datetime

from composer_pipeline.money import NOTHING, Pico
from composer_pipeline.teachers.client import Wire
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.values import Admission, Bill, CacheHit, Call, Reply
from composer_pipeline.teachers.outcome import Outcome, TokenPrice


class PaidCalls:
    """Pays for the calls of one run, which may share a scope (``budget``) with others."""

    def __init__(self, commits: Commits, run_id: str, budget: str = "") -> None:
        self.commits = commits
        self.run_id = run_id
        self.budget = budget

    def scopes(self, call: Call) -> list[str]:
        """Return what a call that is sent now is charged to, in the order it is checked."""
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        return [
            # First: where both refuse, this is the one to raise.
            *([self.budget] if self.budget else []),
            f"run:{self.run_id}",
            f"day:{today}",
            f"month:{today[:7]}",
            f"teacher:{call.teacher}",
            f"partition:{call.day}",
            "global",
        ]

    async def reserve(
        self,
        key: str,
        amount: Pico,
        call: Call,
        *,
        digest: str = "",
        headroom: Pico = NOTHING,
        recover_after_s: float = 0.0,
    ) -> Admission:
        """Reserve a call's worst case in all its scopes.

        Only an admission of kind ``reserved`` may be sent, and must be.
        """
        return await self.commits.do(
            operations.reserve(
                key, amount, self.scopes(call), call,
                digest=digest, headroom=headroom, recover_after_s=recover_after_s,
            )
        )  # fmt: skip

    async def send(
        self, wire: Wire, attempt: str, body: bytes, price: TokenPrice | None = None
    ) -> Outcome:
        """Send the exact bytes of a reserved attempt once; a cancelled call stays charged."""
        try:
            return await wire.chat(body, price)
        except asyncio.CancelledError:
            await self.commits.do(operations.mark_unknown(attempt, "cancelled"))
            raise

    async def settle(self, wire: Wire, attempt: str, outcome: Outcome) -> bool:
        """Write an outcome to the ledger; durable on return, also where it is cancelled.

        Return False where a bill passed its worst case; the teacher is then quarantined.
        """
        detail, generation = outcome.detail, outcome.generation_id
        reply = Reply(outcome.status, outcome.body, generation, outcome.latency_ms, detail)
        if outcome.kind == "billed" and outcome.source_id:
            return await self._settle_hit(wire, attempt, outcome.source_id, reply)
        if outcome.kind == "billed" and outcome.cost is not None:
            return await self.commits.do(operations.settle(attempt, Bill(outcome.cost), reply))
        if outcome.kind == "unpriced":
            # The bytes first, their cost then; until that is known the worst case stays charged.
            await self.commits.do(operations.keep(attempt, reply))
            return await self._ask_cost(wire, attempt, generation)
        if outcome.kind in ("unbilled", "refused"):
            # A refusal is kept: the same question would be refused again.
            refusal = reply if outcome.kind == "refused" else None
            await self.commits.do(operations.release(attempt, detail, refusal))
            return True
        # The id of an error names no generation that could be asked for its cost.
        named = generation if 200 <= outcome.status < 300 else ""
        await self.commits.do(
            operations.mark_unknown(attempt, detail, raw=outcome.body or None, generation=named)
        )
        return not outcome.ended or await self._ask_cost(wire, attempt, named)

    async def _ask_cost(self, wire: Wire, attempt: str, generation: str) -> bool:
        cost = await wire.generation_cost(generation) if generation else None
        return cost is None or await self.commits.do(operations.reconcile(attempt, cost))

    async def _settle_hit(self, wire: Wire, attempt: str, source: str, reply: Reply) -> bool:
        """Settle a cached answer: free by itself, and its source by what the provider says."""
        cost: Pico | None = None
        cancelled: asyncio.CancelledError | None = None
        try:
            cost = await wire.generation_cost(source)
        except asyncio.CancelledError as error:  # the reply is here: keep it
            cancelled = error
        within = await self.commits.do(operations.settle(attempt, CacheHit(source, cost), reply))
        if cancelled:
            raise cancelled
        return within
