"""Level L3: a paid judge that decides whether two different actions mean the same.

Off by default: only if ``semantic_judge`` of the preference recipe names a teacher, ``pairs`` asks
it. A pair that was judged before costs nothing.
"""

import asyncio
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import msgspec
import orjson

from composer_pipeline.actions import Action
from composer_pipeline.errors import BudgetExhausted, ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import NOTHING, ceiling_of, to_usd
from composer_pipeline.preferences.rules import JudgeRule
from composer_pipeline.teachers.catalogue import preflight
from composer_pipeline.teachers.client import Wire
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.paid_call import PaidCalls
from composer_pipeline.teachers.request import Request, worst_case
from composer_pipeline.teachers.teachers import Endpoint, Teacher, TeacherSet

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
    """Asks one model, synchronously, up to a ceiling; a context manager.

    An answer that is neither word, a refusal and a call without an outcome count as
    *different* and in :attr:`unjudged`; the two actions then stay at L4.
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
        ceiling_of(max_usd, "max_usd of a semantic judge")
        self.asked = self.cached = self.unjudged = 0
        self._judge, self._endpoint, self._ledger = judge, endpoint, ledger
        self._run_id, self._key = run_id, api_key
        ledger.do(operations.set_ceiling(f"run:{run_id}", max_usd))
        self._runner = asyncio.Runner()
        self._answers: dict[str, bool] = {}
        self._known: dict[str, bytes] | None = None

    def __enter__(self) -> "SemanticJudge":
        return self

    def __exit__(self, *exc: object) -> None:
        self._runner.close()

    def figures(self) -> dict[str, Any]:
        """Return the counts and the cost, as the report of ``pairs`` shows them."""
        scope = self._ledger.status().get(f"run:{self._run_id}")
        return {
            "asked": self.asked,
            "cached": self.cached,
            "unjudged": self.unjudged,
            "spent_usd": to_usd(scope.spent if scope else NOTHING),
            "unknown_usd": to_usd(scope.unknown if scope else NOTHING),
        }

    def __call__(self, a: Action, b: Action) -> bool:
        """Return True if two actions mean the same, according to the judge."""
        from composer_pipeline.redaction.redact import find_secrets

        request = self._request(a, b)
        if find_secrets([orjson.loads(action.to_json()) for action in (a, b)]):
            self.unjudged += 1
            return False
        key = request.key(self._endpoint.name)
        if key not in self._answers:
            answer = self._recorded().get(key)
            if answer is None:
                digest = request.digest(self._endpoint.name)
                answer = self._runner.run(self._ask(key, digest, request.body))
            else:
                self.cached += 1
            same = verdict_of(answer)
            self.unjudged += same is None
            self._answers[key] = bool(same)
        return self._answers[key]

    def _request(self, a: Action, b: Action) -> Request:
        sides = sorted((a.to_json(), b.to_json()))
        question: dict[str, Any] = {
            "model": self._judge.model,
            "messages": [
                {"role": "system", "content": _TASK},
                {"role": "user", "content": f"First action:\n{sides[0]}\n\nSecond:\n{sides[1]}"},
            ],
            "max_completion_tokens": self._judge.max_tokens,
            "temperature": self._judge.temperature,
        }
        plugins = {"plugins": [{"id": "context-compression", "enabled": False}]}
        return Request.around(question, self._judge, plugins)

    def _recorded(self) -> dict[str, bytes]:
        """Return key to reply bytes of the questions that this judge has answered."""
        if self._known is None:
            rows = self._ledger.rows(self._teacher, DAY)
            self._known = {row["key"]: row["body"] for row in rows if row["outcome"] == "billed"}
        return self._known

    @property
    def _teacher(self) -> str:
        return f"judge:{self._judge.name}"

    async def _ask(self, key: str, digest: str, body: bytes) -> bytes:
        """Send a question at most :data:`TRIES` times; empty bytes mean no answer."""
        call = Call(key[:32], self._teacher, "", DAY, {"kind": "semantic"})
        amount = worst_case(self._judge, body)
        async with Commits(self._ledger) as commits, Wire(self._endpoint, self._key) as wire:
            calls = PaidCalls(commits, self._run_id)
            for _ in range(TRIES):
                admission = await calls.reserve(key, amount, call, digest=digest)
                if admission.kind == "refused":
                    raise BudgetExhausted(
                        f"budget exhausted in scope {admission.scope}; the semantic judge of"
                        " level L3 stopped there"
                    )
                if admission.kind == "quarantined":
                    raise ComposerError(f"{self._teacher} is quarantined: {admission.why}")
                if admission.kind == "cached":  # another process has asked meanwhile
                    self._known = None
                    return self._recorded().get(key, b"")
                if admission.kind != "reserved":
                    return b""
                self.asked += 1
                outcome = await calls.send(wire, admission.attempt, body)
                await calls.settle(wire, admission.attempt, outcome)
                if outcome.kind in ("billed", "unpriced"):
                    return outcome.body
                if outcome.stop:
                    raise ComposerError(f"{self._teacher} cannot be asked: {outcome.detail}")
                if not outcome.retryable:
                    break
        return b""


@contextmanager
def open_judge(
    lake: Lake,
    rule: JudgeRule | None,
    teachers: str | os.PathLike[str],
    *,
    max_usd: Decimal | None = None,
    ledger: str | os.PathLike[str] | None = None,
) -> Iterator[SemanticJudge | None]:
    """Open the judge of a preference recipe, if any; ``max_usd`` replaces its ceiling."""
    if rule is None:
        if max_usd is not None:
            raise InputError("--judge-max-usd: the preference recipe names no semantic_judge")
        yield None
        return
    teacher_set = TeacherSet.load(teachers)
    (teacher,) = teacher_set.select([rule.teacher])
    api_key = teacher_set.endpoint.key()
    verdict = preflight(lake, teacher_set, [teacher]).get(teacher.name)
    if verdict and verdict.stop:
        raise ComposerError(f"semantic_judge {teacher.name} cannot be asked: {verdict.stop}")
    with (
        Ledger(ledger_target(lake, ledger)) as opened,
        SemanticJudge(
            teacher,
            teacher_set.endpoint,
            opened,
            max_usd=rule.max_usd if max_usd is None else max_usd,
            run_id=f"judge-{uuid.uuid4().hex}",
            api_key=api_key,
        ) as judge,
    ):
        yield judge


def verdict_of(body: bytes) -> bool | None:
    """Read a judge's reply: True for SAME, False for DIFFERENT, ``None`` otherwise."""
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
