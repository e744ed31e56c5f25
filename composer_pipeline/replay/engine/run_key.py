"""The key of a run, and the bill that its usage proves.

Belongs here: when a key is made, what is noted of it, when its usage is trusted, and the
sweep that makes unknown attempts exact. Does not belong here: the HTTP side
(``replay.provider.keys``) and the ledger's arithmetic (``replay.ledger.sweep``).

With ``provisioning_key_env`` each run makes a key of its own, whose limit is what the run may
still spend. Only its hash and its baseline are noted, so a run that died is swept by a later
one, by hash; its secret is gone with the process, and so is the provider's response cache,
which belongs to the key. With ``dedicated_key`` the user's own key serves one ledger, which
keeps the response cache over a crash; its usage then answers for the whole ledger.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable

from composer_pipeline.errors import ComposerError
from composer_pipeline.money import NOTHING, Pico, to_usd
from composer_pipeline.replay.ledger import Ledger, NotQuiescent, SweepMismatch, rules
from composer_pipeline.replay.provider import KeyService, KeyUnread, MintedKey, own_usage
from composer_pipeline.replay.teachers import TeacherSet

#: A key is made with at least this limit: no limit is written as 0.
LEAST_LIMIT = Pico(10**6)
#: How long a usage that lags behind settled bills is waited for, and how often it is read.
LAG_S, READ_EVERY_S = 30.0, 1.0
GLOBAL = "global"


class RunKey:
    """The key that a run's calls are made with.

    Args:
        teacher_set: the endpoint and its limits.
        ledger: where hashes and baselines are noted, and what is swept.
        run_id: the run's scope.
        ceiling: the run's ceiling.
        budget: the scope that the run shares with others; empty is none.
        api_key: the user's key.
        stop: set when waiting must end.
    """

    def __init__(
        self,
        teacher_set: TeacherSet,
        ledger: Ledger,
        *,
        run_id: str,
        ceiling: Pico,
        budget: str = "",
        api_key: str | None,
        stop: asyncio.Event,
    ) -> None:
        self.endpoint = teacher_set.endpoint
        self.grace_s = teacher_set.limits.sweep_grace_s
        self.ledger = ledger
        self.scope = f"run:{run_id}"
        self.ceiling = ceiling
        self.budget = budget
        self.api_key = api_key
        self.stop = stop
        provisioning_key = teacher_set.provisioning_key()
        self.service = KeyService(self.endpoint, provisioning_key) if provisioning_key else None
        self.minted: MintedKey | None = None
        self._dedicated = hashlib.sha256((api_key or "").encode()).hexdigest()[:32]

    async def begin(self) -> str | None:
        """Return the key to make calls with; its hash and baseline are noted.

        Raises:
            ComposerError: the endpoint makes no key, or does not tell its usage.
        """
        if self.service:
            self.minted = await self._mint(self.service)
            return self.minted.secret
        if self.endpoint.dedicated_key and self.api_key:
            noted = {key.key_hash for key in self.ledger.run_keys(GLOBAL)}
            if self._dedicated not in noted:
                usage = await own_usage(self.endpoint, self.api_key)
                baseline = Pico(usage - self._spent(GLOBAL))
                self.ledger.do(rules.set_run_key(GLOBAL, self._dedicated, baseline))
        return self.api_key

    async def sweep_old(self) -> None:
        """Sweep what dead runs left, where the grace is over. What fails is tried later."""
        dedicated = self.endpoint.dedicated_key
        for scope, sums in self.ledger.status().items():
            swept = scope == GLOBAL if dedicated else self.service and scope.startswith("run:")
            if swept and sums.unknown and self.ledger.run_keys(scope):
                with contextlib.suppress(ComposerError):
                    await self._sweep(scope)

    async def abandon(self) -> None:
        """Let the run's key spend nothing more; a later run reads it."""
        if self.service and self.minted:
            await self.service.disable(self.minted.key_hash)

    async def finish(self, waiting: Callable[[float], None] | None = None) -> str:
        """End the run's key after the last call; return what its usage showed.

        Nothing of this fails the run: what is not exact stays charged at its worst case.

        Args:
            waiting: told how many seconds of grace are waited for.
        """
        if not self.service and not self.endpoint.dedicated_key:
            return ""
        scope = self.scope if self.service else GLOBAL
        await self.abandon()
        try:
            shown = await self._sweep_patiently(scope, waiting)
        except ComposerError as error:
            return f"not swept: {error}"
        finally:
            await self.sweep_old()  # what a dead run left may be old enough by now
        if self.service and self.minted and len(self.ledger.run_keys(scope)) == 1:
            # All is exact and settled: nobody needs to read this key again.
            await self.service.delete(self.minted.key_hash)
        return shown

    # -- sweeping ------------------------------------------------------------------

    async def _sweep_patiently(self, scope: str, waiting: Callable[[float], None] | None) -> str:
        """Sweep once the grace is over and the usage has caught up with the bills."""
        loop = asyncio.get_running_loop()
        lag_ends = loop.time() + min(LAG_S, self.grace_s)
        while True:
            try:
                return await self._sweep(scope)
            except NotQuiescent as early:
                if self.stop.is_set() or not early.wait_s:
                    raise
                pause = early.wait_s
                lag_ends = loop.time() + pause + min(LAG_S, self.grace_s)
                if waiting:
                    waiting(pause)
            except SweepMismatch as lagging:
                # More than the unknown attempts can explain does not go away by waiting.
                if self.stop.is_set() or lagging.value_pico >= 0 or loop.time() >= lag_ends:
                    raise
                pause = READ_EVERY_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), pause + 0.05)

    async def _sweep(self, scope: str) -> str:
        usage = baseline = since = 0
        for noted in self.ledger.run_keys(scope):
            used: Pico | None
            if self.service:
                used = await self.service.usage(noted.key_hash)
            elif noted.key_hash == self._dedicated and self.api_key:
                since = noted.created_us
                used = await own_usage(self.endpoint, self.api_key)
            else:
                raise KeyUnread("this ledger was used with another dedicated_key before")
            if used is not None:
                usage += used
                baseline += noted.baseline_pico
        result = self.ledger.do(
            rules.sweep(scope, Pico(usage), Pico(baseline), grace_s=self.grace_s, since_us=since)
        )
        older = sum(a.created_us < since for a in self.ledger.unknown_attempts(scope))
        if older:
            return (
                f"not exact: {older} unknown attempts are older than dedicated_key and stay"
                f" charged at their worst case; since then {scope} was billed as charged"
            )
        found = f"; {result.attempts} unknown attempts cost {to_usd(result.swept_pico)} USD"
        return f"exact: {scope} spent {to_usd(self._spent(scope))} USD, as the key was billed" + (
            found if result.attempts else ""
        )

    async def _mint(self, service: KeyService) -> MintedKey:
        """Make the run's key and note its hash before it is used.

        Keys of the run that still can be read answer for what was spent so far; where none
        can, the new key's baseline stands for it.
        """
        readable = False
        for noted in self.ledger.run_keys(self.scope):
            try:
                readable = readable or await service.usage(noted.key_hash) is not None
            except KeyUnread:
                readable = True
        spent = self._spent(self.scope)
        together = max(spent, self._spent(self.budget))
        limit = Pico(max(LEAST_LIMIT, self.ceiling - together))
        minted = await service.mint(f"composer-pipeline {self.scope}", limit)
        baseline = minted.usage if readable else Pico(minted.usage - spent)
        self.ledger.do(rules.set_run_key(self.scope, minted.key_hash, baseline))
        return minted

    def _spent(self, scope: str) -> Pico:
        sums = self.ledger.status().get(scope)
        return sums.spent if sums else NOTHING
