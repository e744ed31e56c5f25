"""One question to the provider, paid through the ledger, and what it found.

Belongs here: what a probe may do. Does not belong here: the probes (``doctor.probes``), their
report (``doctor.live``), and paying (``replay.paid_call``).
"""

import secrets
from decimal import Decimal
from typing import Any, Literal

import aiohttp
import msgspec
import orjson

from composer_pipeline.chat import Conversion
from composer_pipeline.money import NOTHING, PICO, Pico, pico_or_none
from composer_pipeline.replay.catalogue import Catalogue
from composer_pipeline.replay.ledger import Call
from composer_pipeline.replay.paid_call import PaidCalls
from composer_pipeline.replay.provider import (
    Outcome,
    Request,
    Wire,
    read_json,
    serialise,
    worst_case,
)
from composer_pipeline.replay.teachers import Teacher, TeacherSet

Status = Literal["ok", "warn", "fail", "skipped"]


class Finding(msgspec.Struct):
    """One probe's answer. ``skipped`` says why it was not asked; money is picodollars."""

    name: str
    status: Status
    answer: str
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    cost_picodollars: int = 0


class Patience(msgspec.Struct, frozen=True):
    """Seconds: until a slow answer counts as open, between looks, until a cut call is over."""

    lag_s: float = 60.0
    look_s: float = 1.0
    cut_s: float = 0.25
    settle_s: float = 20.0
    read_timeout_s: float = 120.0


class NotAsked(Exception):
    """A question that was not asked, and why; ends one probe only."""


class Prober:
    """What the probes have in common: the wire, the ledger and the account's endpoints.

    Args:
        teacher_set: names the endpoint.
        teacher: the cheapest teacher; it is asked.
        calls: pays for every question.
        api_key: sent as a bearer token; ``None`` only for a simulated endpoint.
        catalogue: the endpoint's models, where it has a catalogue.
        patience: how long to wait.
    """

    def __init__(
        self,
        teacher_set: TeacherSet,
        teacher: Teacher,
        calls: PaidCalls,
        api_key: str | None,
        catalogue: Catalogue | None,
        patience: Patience,
    ) -> None:
        self.teacher_set = teacher_set
        self.teacher = teacher
        self.catalogue = catalogue
        self.patience = patience
        self.spent = NOTHING
        self._calls = calls
        self._key = api_key

    def body(self, text: str, *, max_tokens: int = 16, **more: Any) -> bytes:
        """Return a short request that nobody has sent before; nothing of a session is in it."""
        nonce = secrets.token_hex(8)
        teacher = self.teacher.model_copy(update={"max_tokens": max_tokens})
        message = {"role": "user", "content": f"{text} [{nonce}]"}
        plain = serialise(teacher, Conversion([message], [], {}, {}, "none"), nonce).body
        body: dict[str, Any] = orjson.loads(plain)
        for name in ("tools", "tool_choice"):
            body.pop(name, None)
        for name, value in more.items():
            known = body.get(name)
            merge = isinstance(known, dict) and isinstance(value, dict)
            body[name] = {**known, **value} if merge else value  # type: ignore[dict-item]
        return orjson.dumps(body)

    async def ask(
        self, body: bytes, *, again: bool = False, cut_s: float | None = None,
        amount: Pico | None = None,
    ) -> Outcome:  # fmt: skip
        """Send a body once, with its worst case reserved first.

        Args:
            body: the exact bytes.
            again: the bytes were answered before; send them all the same.
            cut_s: disconnect after so many seconds of silence.
            amount: worst case, where the teacher's is not it.

        Raises:
            NotAsked: the worst case does not fit in what is left.
        """
        endpoint = self.teacher_set.endpoint
        key = Request(body).key(endpoint.name + ("#again" if again else ""))
        # Not a day: no partition of replies ever shows these calls.
        call = Call("doctor", self.teacher.name, "doctor", "doctor", {"model": self.teacher.model})
        bounded = self.teacher.model_copy(update={"max_tokens": _max_tokens(body)})
        worst = worst_case(bounded, body) if amount is None else amount
        admission = await self._calls.reserve(key, worst, call)
        if admission.kind != "reserved":
            where = f" in scope {admission.scope}" if admission.scope else ""
            raise NotAsked(f"{admission.kind}{where}: {Decimal(worst) / PICO:f} USD do not fit")
        async with self._wire(cut_s or self.patience.read_timeout_s) as wire:
            outcome = await self._calls.send(wire, admission.attempt, body)
            await self._calls.settle(wire, admission.attempt, outcome)
        self.spent = Pico(self.spent + (outcome.cost or 0))
        return outcome

    def _wire(self, timeout_s: float) -> Wire:
        endpoint = self.teacher_set.endpoint
        return Wire(endpoint, self._key, read_timeout_s=timeout_s, connections=1)

    async def get(self, path: str, **query: str) -> tuple[int, Any]:
        """Return status and decoded JSON of an account endpoint; (0, None) if unreachable."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = aiohttp.ClientTimeout(total=30)
        url = f"{self.teacher_set.endpoint.url()}/{path}"
        try:
            async with (
                aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
                session.get(url, params=query, allow_redirects=False) as response,
            ):
                return response.status, read_json(await response.read())
        except (aiohttp.ClientError, TimeoutError):
            return 0, None

    async def generation_cost(self, generation: str) -> Pico | None:
        """Return what ``/generation`` says that a generation cost."""
        async with self._wire(self.patience.read_timeout_s) as wire:
            return await wire.generation_cost(generation)

    async def key_usage(self) -> Pico | None:
        """Return what ``/key`` says that the key has used."""
        status, told = await self.get("key")
        data = told.get("data") if isinstance(told, dict) else None
        return pico_or_none(data.get("usage")) if status == 200 and isinstance(data, dict) else None


def _max_tokens(body: bytes) -> int:
    return int(orjson.loads(body)["max_completion_tokens"])
