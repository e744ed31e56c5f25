"""Tables of what trainers read and the Hub gets.

Belongs here: keys, partitions and columns. Does not belong here: how a row is computed.

Columns stand in the order in which people read: the task, what was done in words, the messages,
then numbers, and ids last.
"""

import pyarrow as pa

from composer_pipeline.lake.tables.pairs import DROPS, PAIR_COLUMNS
from composer_pipeline.lake.tables.replies import REPLIES
from composer_pipeline.lake.tables.spec import (
    FLAG,
    FLOAT,
    INT32,
    INT64,
    JSON_LIST,
    STATE_ID,
    STRINGS,
    TEXT,
    TableSpec,
    schema_of,
)

_Columns = dict[str, tuple[pa.DataType, str]]

_TASK: _Columns = {"task": (TEXT, "the first words of the user, cut at 2,000 characters")}
_PROMPT: _Columns = {
    "prompt": (JSON_LIST, "chat messages before the action"),
    "tools": (JSON_LIST, "tool schemas offered"),
}
_TOKENS = "about; tokens of the tokenizer that the build names, null without one"
_PROMPT_TOKENS: _Columns = {"prompt_tokens": (INT64, f"of prompt and tools, {_TOKENS}")}
_COST: _Columns = {"cost_usd": (FLOAT, "billed cost of all replies to the state, US dollars")}
#: What every row ends with.
_IDS: _Columns = {
    "repository": (TEXT, "hash of the repository; equal for its clones and worktrees"),
    "day": (TEXT, "day of the session"),
    "schema_version": (INT32, "version of the dataset's tables"),
    **STATE_ID,
    "group_id": (TEXT, "sessions that stay together; no group is in two splits"),
}
_ACTION: _Columns = {
    "action_text": (TEXT, "the agent's action as a person reads it"),
    **_PROMPT,
    "action": (JSON_LIST, "one assistant message: the agent's action"),
    "model": (TEXT, "the agent's model"),
    **_PROMPT_TOKENS,
}


def _pair_columns() -> _Columns:
    first = ("prompt", "chosen", "rejected", "tools")
    apart = (*first, *_IDS, "pair_id", "project", "cost_picodollars")
    rest = {name: about for name, about in PAIR_COLUMNS.items() if name not in apart}
    return {
        **_TASK,
        "chosen_text": (TEXT, "the teachers' action as a person reads it"),
        "rejected_text": (TEXT, "the agent's action as a person reads it"),
        **{name: PAIR_COLUMNS[name] for name in first},
        **_PROMPT_TOKENS,
        "chosen_tokens": (INT64, _TOKENS),
        "rejected_tokens": (INT64, _TOKENS),
        **_COST,
        **rest,
        "chosen_licenses": (STRINGS, "licence of each of chosen_models; empty: not recorded"),
        "chosen_terms": (STRINGS, "training terms of each of chosen_models, as in replies"),
        "recipe": (TEXT, "name and hash of the data-juicer recipe"),
        **_IDS,
        "pair_id": PAIR_COLUMNS["pair_id"],
    }


def _reply_columns() -> _Columns:
    def same(*names: str) -> _Columns:
        return {n: (REPLIES.schema.field(n).type, REPLIES.description_of(n)) for n in names}

    return {
        **_TASK,
        "answer_text": (TEXT, "the answer as a person reads it"),
        "answer": (JSON_LIST, "one assistant message: the answer"),
        "teacher": (TEXT, "the teacher's name"),
        **same("model", "family"),
        "license": (TEXT, "licence of the model; empty: not recorded"),
        "terms": (TEXT, "training terms of the model, as in training_terms of the lake"),
        **same("provider", "finish_reason", "prompt_tokens", "completion_tokens"),
        **same("cached_tokens", "reasoning_tokens"),
        "cost_usd": (FLOAT, "billed cost, US dollars"),
        **same("latency_ms", "simulated"),
        **_IDS,
    }


def _drop_columns() -> _Columns:
    known = {f.name: (f.type, DROPS.description_of(f.name)) for f in DROPS.schema}
    return {
        "stage": (TEXT, "pairs, normalize or dataset"),
        **{name: known[name] for name in known if name not in ("pair_id", "state_id")},
        **_IDS,
        "pair_id": known["pair_id"],
    }


def _dataset(name: str, description: str, key: tuple[str, ...], columns: _Columns) -> TableSpec:
    return TableSpec(name, description, key, ("split",), schema_of(columns), grouped=True)


DATASET_PAIRS = _dataset(
    "dataset_pairs", "Preference pairs: the teachers' action against the agent's.", ("pair_id",),
    _pair_columns(),
)  # fmt: skip

DATASET_PAIRS_8K = _dataset(
    "dataset_pairs_8k",
    "The pairs with prompts cut in whole turns: at most 8,192 tokens with either action, under the"
    " tokenizer and chat template that the build names.",
    ("pair_id",),
    _pair_columns(),
)

DATASET_GROUPS = _dataset(
    "dataset_groups",
    "Recorded answers to one state, for the GRPO channel.",
    ("state_id",),
    {
        **_TASK,
        "consensus_text": (TEXT, "the consensus as a person reads it"),
        **_PROMPT,
        "candidates": (JSON_LIST, "assistant messages: the agent's, then the teachers'"),
        "sources": (STRINGS, "agent, or the teacher's name, for each candidate"),
        "models": (STRINGS, "model of each candidate"),
        "licenses": (STRINGS, "licence of each model; empty for the agent, or not recorded"),
        "terms": (STRINGS, "training terms of each candidate, as in replies; agent: its own"),
        "consensus": (JSON_LIST, "one assistant message: the winning cluster's medoid"),
        **_PROMPT_TOKENS,
        **_COST,
        "simulated": (FLAG, "any teacher was simulated"),
        **_IDS,
    },
)

DATASET_HINTS = _dataset(
    "dataset_hints",
    "Error turns with a hint, for the SDPO channel.",
    ("state_id",),
    {
        **_TASK,
        "hint": (TEXT, "what the trace says was wrong"),
        **_ACTION,
        "source": (TEXT, "as in hints"),
        "span_call": (INT32, "index of the call it is about; -1 is the whole action"),
        "recovery": (
            JSON_LIST,
            "one assistant message: the agent's own later call that worked in its place;"
            " null where none was found",
        ),
        **_IDS,
    },
)

DATASET_SFT = _dataset(
    "dataset_sft",
    "States with the teachers' consensus as the completion, where it agrees with the agent too.",
    ("state_id",),
    {
        **_TASK,
        "completion_text": (TEXT, "the consensus as a person reads it"),
        **_PROMPT,
        "completion": (JSON_LIST, "one assistant message: the winning cluster's medoid"),
        "models": (STRINGS, "models of the winning cluster"),
        "licenses": (STRINGS, "licence of each of models; empty: not recorded"),
        "terms": (STRINGS, "training terms of each of models, as in replies"),
        "agrees_with_agent": (FLAG, "the agent did the same"),
        **_PROMPT_TOKENS,
        **_COST,
        "simulated": (FLAG, "any voting teacher was simulated"),
        **_IDS,
    },
)

DATASET_SUCCESSES = _dataset(
    "dataset_successes",
    "The agent's own actions that nothing in the trace speaks against, for the SFT channel, at"
    " states that no teacher decided.",
    ("state_id",),
    {**_TASK, **_ACTION, **_IDS},
)

DATASET_REPLIES = _dataset(
    "dataset_replies",
    "Each usable answer of a teacher, with what it cost; prompts are in groups, by state_id.",
    ("state_id", "teacher"),
    _reply_columns(),
)

DATASET_DROPS = _dataset(
    "dataset_drops",
    "Every row that a stage left out, and why.",
    ("pair_id", "step"),
    _drop_columns(),
)
