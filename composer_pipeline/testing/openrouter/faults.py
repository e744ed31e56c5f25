"""What goes wrong at the loopback provider, by hand or by a seeded mix.

Belongs here: the kinds of fault, which request gets which, and the replies of refusals.
Does not belong here: how a damaged reply is delivered (``testing.openrouter.delivery``).
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from aiohttp import web

from composer_pipeline.errors import InputError
from composer_pipeline.testing.openrouter.odd import ODD_ANSWERS, ODD_REFUSALS


class Asked(msgspec.Struct, frozen=True):
    """A request as a fault hook sees it; ``nth`` counts identical bodies from 1."""

    model: str
    digest: str
    nth: int
    total: int


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong with one request.

    Nothing is billed: ``error`` (the given HTTP status), ``gateway`` (that status with an
    HTML body), ``in_body`` (status 200 with an error), ``moderation`` (refused for its
    content), ``unavailable`` (404, or 503 where ``retryable``, with the availability
    ``code``), ``empty`` (no token and no finish reason), ``failed`` (``finish_reason``
    error).

    The reply is lost on its way, billed unless ``billed`` is false: ``truncate``, ``garble``
    (half the JSON), ``reset``, ``hang``, ``lost_gateway`` (an HTML body instead).

    The reply arrives and is billed: ``slow`` (in pieces over ``seconds``), ``length`` (cut
    off by the token limit), ``overcount`` and ``undercount`` (wrong tokens in ``usage``, the
    right cost), ``no_cost`` (no ``usage``), ``overcharge`` (billed a thousandfold),
    ``misreport`` (``usage.cost`` is half of what is billed), ``odd`` (the shape ``code`` of
    ``testing.openrouter.odd``; ``odd_refusal`` likewise, and nothing is billed).
    """

    kind: Literal[
        "error", "gateway", "in_body", "moderation", "unavailable", "empty", "failed",
        "truncate", "garble", "reset", "hang", "lost_gateway",
        "slow", "length", "overcount", "undercount", "no_cost", "overcharge", "misreport",
        "odd", "odd_refusal",
    ]  # fmt: skip
    status: int = 500
    retry_after: str | None = None
    billed: bool = True
    seconds: float = 0.5
    code: str = ""
    retryable: bool = False


FaultHook = Callable[[Asked], Fault | None]

#: Name on the command line -> (the fault, its weight in the default mix). Faults that end a
#: run or stop a teacher are rare, or nothing else would be seen.
MIX: Mapping[str, tuple[Fault, int]] = {
    "429": (Fault("error", 429), 8),
    "429_retry_after": (Fault("error", 429, retry_after="0.1"), 8),
    "500": (Fault("error", 500), 6),
    "503": (Fault("error", 503), 6),
    "529": (Fault("error", 529), 4),
    "gateway": (Fault("gateway", 502), 6),
    "lost_gateway": (Fault("lost_gateway", 504), 6),
    "in_body": (Fault("in_body", 502), 8),
    "truncate": (Fault("truncate"), 8),
    "garble": (Fault("garble"), 6),
    "reset": (Fault("reset"), 8),
    "reset_unbilled": (Fault("reset", billed=False), 6),
    "hang": (Fault("hang"), 3),
    "slow": (Fault("slow"), 6),
    "length": (Fault("length"), 6),
    "overcount": (Fault("overcount"), 6),
    "undercount": (Fault("undercount"), 6),
    "no_cost": (Fault("no_cost"), 6),
    "empty": (Fault("empty"), 6),
    "failed": (Fault("failed"), 6),
    "moderation": (Fault("moderation"), 2),
    "capacity": (Fault("unavailable", code="capacity_exhausted", retryable=True), 6),
    "402": (Fault("error", 402), 1),
    "privacy_restricted": (Fault("unavailable", code="privacy_restricted"), 1),
    "model_not_found": (Fault("unavailable", code="model_not_found"), 1),
    **{name: (Fault("odd", code=name), 1) for name in ODD_ANSWERS},
    # A code that is no status is not asked again, and a redirect stops a teacher.
    **{
        name: (Fault("odd_refusal", code=name), 0 if name in ("code_text", "redirect") else 1)
        for name in ODD_REFUSALS
    },
}


class FaultMix:
    """A weighted mix: a hook that harms a share of the requests.

    A request's fate is a hash of the seed, its body and how often that body came, so it does
    not depend on the order in which requests arrive. A body that came more than ``patience``
    times is left alone, so that a run can end.

    Args:
        seed: another seed, another fate.
        share: of the requests that are harmed, 0 to 1.
        weights: name in :data:`MIX` -> weight; the default mix when ``None``.
        patience: how often a body can be harmed.

    Raises:
        InputError: an unknown name, a weight below 0, all weights 0, or a bad share.
    """

    def __init__(
        self,
        seed: int = 0,
        share: float = 0.2,
        weights: Mapping[str, int] | None = None,
        *,
        patience: int = 3,
    ) -> None:
        if not 0 <= share <= 1:
            raise InputError(f"the share of faults must be between 0 and 1, not {share}")
        chosen = {name: weight for name, (_, weight) in MIX.items()}
        if weights is not None:
            chosen = dict(weights)
        for name, weight in chosen.items():
            if name not in MIX:
                raise InputError(f"no fault {name!r}; known: {', '.join(MIX)}")
            if weight < 0:
                raise InputError(f"the weight of fault {name} must not be below 0")
        self._names = [name for name, weight in chosen.items() for _ in range(weight)]
        if not self._names:
            raise InputError("a mix of faults needs a weight above 0")
        self.seed, self.share, self.patience = seed, share, patience
        #: How often each fault was dealt out.
        self.dealt: dict[str, int] = dict.fromkeys(chosen, 0)

    def __call__(self, asked: Asked) -> Fault | None:
        """Return the fault of a request, or ``None``."""
        if asked.nth > self.patience:
            return None
        text = f"{self.seed} {asked.digest} {asked.nth}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if int.from_bytes(digest[:8], "big") >= self.share * 2**64:
            return None
        name = self._names[int.from_bytes(digest[8:], "big") % len(self._names)]
        if name == "moderation" and asked.nth > 1:
            return None  # content that was accepted once is not flagged later
        self.dealt[name] += 1
        return MIX[name][0]


def parse_mix(text: str) -> dict[str, int]:
    """Read ``reset=2,hang=1`` as weights.

    Raises:
        InputError: not of that form.
    """
    weights = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        if not name or not (weight or "1").isdecimal():
            raise InputError(f"{part!r} in a mix of faults is not NAME=WEIGHT")
        weights[name.strip()] = int(weight or 1)
    return weights


def flaky_fault(asked: Asked) -> Fault | None:
    """Return the flaky persona's own fault: decided by the body and how often it came.

    About one body in eight fails the first time and works the second; one in sixteen is
    always cut off; one in thirty-two is always refused for its content.
    """
    dice = int(asked.digest[:8], 16) % 32
    if dice == 0:
        return Fault("moderation")
    if dice in (1, 2):
        return Fault("length")
    if asked.nth == 1:
        return {
            3: Fault("error", 429, retry_after="1"),
            4: Fault("error", 429),
            5: Fault("error", 502),
            6: Fault("in_body", 502),
        }.get(dice)
    return None


def refusal(fault: Fault) -> web.Response | None:
    """Return the reply of a fault that comes before any generation, or ``None``."""
    if fault.kind == "error":
        kinds = {402: "payment_required", 429: "rate_limit_exceeded"}
        kind = kinds.get(fault.status, "provider_unavailable")
        response = error_reply(fault.status, "the provider is busy", kind)
        if fault.retry_after is not None:
            response.headers["Retry-After"] = fault.retry_after
        return response
    if fault.kind == "gateway":
        return web.Response(status=fault.status, text="<html>bad gateway</html>")
    if fault.kind == "in_body":
        error = {"code": fault.status, "message": "the provider failed"}
        return web.json_response({"error": error | {"metadata": {"error_type": "server"}}})
    if fault.kind == "odd_refusal":
        status, headers, raw = ODD_REFUSALS[fault.code]
        headers = {"Content-Type": "application/json"} | headers
        return web.Response(status=status, headers=headers, body=raw)
    if fault.kind == "moderation":
        body = {"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"]}}
        return web.json_response({"error": body}, status=403)
    if fault.kind == "unavailable":
        return error_reply(
            503 if fault.retryable else 404,
            "no endpoint can answer",
            "provider_overloaded" if fault.retryable else "not_found",
            availability=fault.code,
            retryable=fault.retryable,
        )
    if fault.kind in ("empty", "failed"):
        reason = "error" if fault.kind == "failed" else None
        message = {"role": "assistant", "content": ""}
        choice = {"index": 0, "finish_reason": reason, "message": message}
        usage = {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10, "cost": 0}
        return web.json_response({"id": "", "choices": [choice], "usage": usage})
    return None


def error_reply(
    status: int, message: str, kind: str, *, availability: str = "", retryable: bool = False
) -> web.Response:
    """Return an error in the API's shape."""
    error: dict[str, Any] = {"code": status, "message": message, "metadata": {"error_type": kind}}
    if availability:
        error["availability"] = {"code": availability, "retryable": retryable}
    return web.json_response({"error": error}, status=status)
