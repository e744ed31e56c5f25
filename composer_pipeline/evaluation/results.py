"""Results of one model at one state, the measures derived from them, and their Parquet file."""

from collections.abc import Mapping, Sequence
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


#: Measure to its description.
MEASURES = {
    "exact": "the greedy answer is the right action, argument for argument",
    "canonical": "the greedy answer has the right action's effect (level L0 or L1)",
    "valid_call":
        "if the right action calls a tool: the answer calls offered tools with valid arguments",
    "preference": "log p(right) > log p(what the agent did)",
    "preference_per_token": "the same, per token of each action",
    "margin": "log p(right) - log p(what the agent did), nats",
    "right_nll": "-log p(right), nats per token",
    "wrong_nll": "-log p(what the agent did), nats per token",
    "error_logp": "log p(right) at error turns, without the hint, nats per action",
    "hint_gain": "log p(right | hint) - log p(right), nats per action",
    "kl": "KL(model || base) over the right action, nats per token",
}  # fmt: skip


def measures_of(r: StateResult) -> dict[str, float]:
    """Return the measures that apply to a result."""
    found = {
        "exact": float(r.judgement.exact), "canonical": float(r.judgement.canonical),
        "right_nll": -r.logp_right / r.tokens_right,
    }  # fmt: skip
    if r.judgement.valid_call is not None:
        found["valid_call"] = float(r.judgement.valid_call)
    if r.logp_wrong is not None and r.tokens_wrong is not None:
        right, wrong = r.logp_right / r.tokens_right, r.logp_wrong / r.tokens_wrong
        found |= {
            "preference": float(r.logp_right > r.logp_wrong),
            "preference_per_token": float(right > wrong),
            "margin": r.logp_right - r.logp_wrong, "wrong_nll": -wrong,
        }  # fmt: skip
    if r.logp_right_hinted is not None:
        found["error_logp"] = r.logp_right
        found["hint_gain"] = r.logp_right_hinted - r.logp_right
    return found if r.kl is None else found | {"kl": r.kl}


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
