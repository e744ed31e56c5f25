"""Results of one model at one state, the measures derived from them, and their Parquet file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.judge import Judgement
from composer_pipeline.files import replace
from composer_pipeline.lake.parquet import encode_parquet

#: Name of the arm that the others are compared with.
BASE = "base"


class StateResult(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one state; log-probabilities are sums over an answer's tokens, in nats."""

    state_id: str
    session_id: str
    kind: str
    #: The greedy answer with special tokens, and whether it ended before the limit.
    answer: str
    ended: bool
    judgement: Judgement
    logp_right: float
    tokens_right: int
    logp_wrong: float | None = None
    tokens_wrong: int | None = None
    #: log p(right) after the prompt that ends with the hint.
    logp_right_hinted: float | None = None
    #: Mean KL(model || base) per token of the right action; ``None`` for the base.
    kl: float | None = None


def _preference(r: StateResult) -> float | None:
    return None if r.logp_wrong is None else float(r.logp_right > r.logp_wrong)


def _preference_per_token(r: StateResult) -> float | None:
    if r.logp_wrong is None or r.tokens_wrong is None:
        return None
    return float(r.logp_right / r.tokens_right > r.logp_wrong / r.tokens_wrong)


def _wrong_nll(r: StateResult) -> float | None:
    if r.logp_wrong is None or r.tokens_wrong is None:
        return None
    return -r.logp_wrong / r.tokens_wrong


def _margin(r: StateResult) -> float | None:
    return None if r.logp_wrong is None else r.logp_right - r.logp_wrong


def _at_error(r: StateResult) -> float | None:
    return None if r.logp_right_hinted is None else r.logp_right


def _hint_gain(r: StateResult) -> float | None:
    return None if r.logp_right_hinted is None else r.logp_right_hinted - r.logp_right


def _valid(r: StateResult) -> float | None:
    return None if r.judgement.valid_call is None else float(r.judgement.valid_call)


#: Measure to (description, value at a state or ``None`` where it does not apply).
MEASURES: dict[str, tuple[str, Callable[[StateResult], float | None]]] = {
    "exact": (
        "the greedy answer is the right action, argument for argument",
        lambda r: float(r.judgement.exact),
    ),
    "canonical": (
        "the greedy answer has the right action's effect (level L0 or L1)",
        lambda r: float(r.judgement.canonical),
    ),
    "valid_call": (
        "if the right action calls a tool: the answer calls offered tools with valid arguments",
        _valid,
    ),
    "preference": ("log p(right) > log p(what the agent did)", _preference),
    "preference_per_token": ("the same, per token of each action", _preference_per_token),
    "margin": ("log p(right) - log p(what the agent did), nats", _margin),
    "right_nll": ("-log p(right), nats per token", lambda r: -r.logp_right / r.tokens_right),
    "wrong_nll": ("-log p(what the agent did), nats per token", _wrong_nll),
    "error_logp": ("log p(right) at error turns, without the hint, nats per action", _at_error),
    "hint_gain": ("log p(right | hint) - log p(right), nats per action", _hint_gain),
    "kl": ("KL(model || base) over the right action, nats per token", lambda r: r.kl),
}
#: Measures that are shares in [0, 1].
SHARES = frozenset({"exact", "canonical", "valid_call", "preference", "preference_per_token"})

_SCHEMA = pa.schema(
    [("arm", pa.string()), ("state_id", pa.string()), ("session_id", pa.string()),
     ("kind", pa.string()), ("answer", pa.string()), ("ended", pa.bool_()),
     ("judgement", pa.string()), ("logp_right", pa.float64()), ("tokens_right", pa.int64()),
     ("logp_wrong", pa.float64()), ("tokens_wrong", pa.int64()),
     ("logp_right_hinted", pa.float64()), ("kl", pa.float64())]
)  # fmt: skip


def write_results(path: str | Path, results: Mapping[str, Sequence[StateResult]]) -> None:
    """Write results by arm as Parquet, one row per arm and state, atomically."""
    rows = [
        {**msgspec.to_builtins(result), "arm": arm,
         "judgement": msgspec.json.encode(result.judgement).decode()}
        for arm, some in results.items()
        for result in some
    ]  # fmt: skip
    replace(Path(path), encode_parquet(pa.Table.from_pylist(rows, schema=_SCHEMA)))


def read_results(path: str | Path) -> dict[str, list[StateResult]]:
    """Read results by arm, in the order in which they were written."""
    try:
        table = pq.read_table(Path(path))
        rows: list[dict[str, Any]] = table.select(_SCHEMA.names).to_pylist()
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        reason = str(error).partition("\n")[0][:200]
        raise InputError(f"evaluation results {path} cannot be read: {reason}") from error
    found: dict[str, list[StateResult]] = {}
    for row in rows:
        judgement = msgspec.json.decode(row.pop("judgement"), type=Judgement)
        found.setdefault(row.pop("arm"), []).append(StateResult(**row, judgement=judgement))
    return found
