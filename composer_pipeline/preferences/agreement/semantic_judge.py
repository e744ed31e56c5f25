"""Level L3: a paid judge that says whether two different actions mean the same.

Belongs here: the question, reading the answer, and paying for it through the ledger. Does
not belong here: where L3 stands among the levels (``preferences.actions.levels``). Off by default:
``levels.level`` and ``agree.vote`` take a judge only from a caller that made one.

Every call is reserved at its worst case before it is sent and settled with its answer in one
transaction, in the same ledger and scopes as replies. A pair that was judged before costs
nothing: its key is the hash of the exact bytes.
"""

import asyncio
import hashlib
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import orjson

from composer_pipeline.actions import Action
from composer_pipeline.errors import BudgetExhausted, InputError
from composer_pipeline.replay.endpoints import Endpoint
from composer_pipeline.replay.ledger.ledger import Call, Ledger, Reply
from composer_pipeline.replay.provider.bounds import worst_case
from composer_pipeline.replay.provider.client import Wire, request_key
from composer_pipeline.replay.teachers import Teacher

_TASK = (
    "Two coding agents were in the same situation. Say whether their actions have the same"
    " purpose and would have the same effect, so that a user would not care which one was"
    " taken. Another file, another test, another value or another question is not the same."
    " Answer with one word: SAME or DIFFERENT."
)
#: Partition of the ledger that holds judgements.
DAY = "semantic"
#: Times that one question is sent before its pair is left unjudged.
TRIES = 2


class SemanticJudge:
    """Asks one model, synchronously. Use as a context manager.

    An answer that is neither word, a refusal and a call without an outcome count as
    *different* and in :attr:`unjudged`; the two actions then stay at L4.

    Args:
        judge: the model, with its price bound.
        endpoint: where it is.
        ledger: pays.
        max_usd: ceiling of the scope ``run:<run_id>``.
        run_id: name of that scope.
        api_key: bearer token; ``None`` only for a simulated endpoint.

    Raises:
        InputError: the ceiling is not above 0.
    """

    def __init__(
        self,
        judge: Teacher,
        endpoint: Endpoint,
        ledger: Ledger,
        *,
        max_usd: Decimal,
        run_id: str,
        api_key: str | None = None,
    ) -> None:
        if max_usd <= 0:
            raise InputError("max_usd of a semantic judge has to be above 0")
        self.asked = self.cached = self.unjudged = 0
        self._judge, self._endpoint, self._ledger = judge, endpoint, ledger
        self._scope, self._key = f"run:{run_id}", api_key
        ledger.set_ceiling(self._scope, max_usd)
        self._runner = asyncio.Runner()
        self._answers: dict[str, bool] = {}
        self._known: dict[str, bytes] | None = None

    def __enter__(self) -> "SemanticJudge":
        return self

    def __exit__(self, *exc: object) -> None:
        self._runner.close()

    def __call__(self, a: Action, b: Action) -> bool:
        """Say whether two actions mean the same.

        Raises:
            BudgetExhausted: the ledger has no room for the worst case of this question.
        """
        from composer_pipeline.redaction.text import find_secrets

        body = self._body(a, b)
        if any(find_secrets(action.to_json()) for action in (a, b)):
            self.unjudged += 1
            return False
        key = request_key(self._endpoint.name, body)
        if key not in self._answers:
            answer = self._recorded().get(key)
            if answer is None:
                answer = self._runner.run(self._ask(key, body))
            else:
                self.cached += 1
            same = verdict_of(answer)
            self.unjudged += same is None
            self._answers[key] = bool(same)
        return self._answers[key]

    def _body(self, a: Action, b: Action) -> bytes:
        sides = sorted((a.to_json(), b.to_json()))
        preferences = self._judge.provider.model_dump(exclude_none=True)
        price = self._judge.max_price
        preferences["max_price"] = {
            "prompt": float(price.prompt),
            "completion": float(price.completion),
            "request": 0,
            "image": 0,
        }
        body: dict[str, Any] = {
            "model": self._judge.model,
            "messages": [
                {"role": "system", "content": _TASK},
                {"role": "user", "content": f"First action:\n{sides[0]}\n\nSecond:\n{sides[1]}"},
            ],
            "max_completion_tokens": self._judge.max_tokens,
            "temperature": self._judge.temperature,
            "provider": preferences,
            "plugins": [{"id": "context-compression", "enabled": False}],
        }
        return orjson.dumps(body)

    def _recorded(self) -> dict[str, bytes]:
        """Return key to reply bytes of everything this judge was asked before."""
        if self._known is None:
            rows = self._ledger.rows(self._teacher, DAY)
            self._known = {row["key"]: row["body"] for row in rows if row["outcome"] == "billed"}
        return self._known

    @property
    def _teacher(self) -> str:
        return f"judge:{self._judge.name}"

    async def _ask(self, key: str, body: bytes) -> bytes:
        """Send a question at most :data:`TRIES` times; empty bytes where nothing came back."""
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        scopes = [
            self._scope, f"day:{today}", f"month:{today[:7]}", f"teacher:{self._teacher}",
            f"partition:{DAY}", "global",
        ]  # fmt: skip
        pair = hashlib.blake2b(body, digest_size=16).hexdigest()
        call = Call(pair, self._teacher, "", DAY, {"kind": "semantic"})
        amount = worst_case(self._judge, body)
        async with Wire(self._endpoint, self._key) as wire:
            for _ in range(TRIES):
                admission = self._ledger.reserve(key, amount, scopes, call)
                if admission.kind == "refused":
                    raise BudgetExhausted(
                        f"budget exhausted in scope {admission.scope}; the semantic judge of"
                        " level L3 stopped there"
                    )
                if admission.kind != "reserved":
                    return b""
                self._ledger.mark_sent(admission.attempt)
                self.asked += 1
                try:
                    outcome = await wire.chat(body)
                except asyncio.CancelledError:
                    self._ledger.mark_unknown(admission.attempt, "cancelled")
                    raise
                if outcome.kind == "billed":
                    reply = Reply(
                        "billed", outcome.status, outcome.body, outcome.cost,
                        outcome.generation_id, outcome.latency_ms,
                    )  # fmt: skip
                    self._ledger.settle(
                        admission.attempt, outcome.cost or 0, reply, source=outcome.source_id
                    )
                    return outcome.body
                if outcome.kind in ("unknown", "unpriced"):
                    self._ledger.mark_unknown(admission.attempt, outcome.detail)
                else:
                    self._ledger.release(admission.attempt, outcome.detail)
                if not outcome.retryable:
                    break
        return b""


def verdict_of(body: bytes) -> bool | None:
    """Read a judge's reply: ``True`` for SAME, ``False`` for DIFFERENT, ``None`` otherwise."""
    try:
        reply = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    choices = reply.get("choices") if isinstance(reply, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    words = re.findall(r"\b(SAME|DIFFERENT)\b", str(content or "").upper())
    return words[-1] == "SAME" if words and len(set(words)) == 1 else None
