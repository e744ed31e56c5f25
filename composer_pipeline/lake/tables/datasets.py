"""Tables of what trainers read and the Hub gets.

Belongs here: keys, partitions and columns. Does not belong here: how a row is computed.
"""

from composer_pipeline.lake.tables.pairs import PAIR_COLUMNS
from composer_pipeline.lake.tables.spec import (
    FLAG,
    INT32,
    JSON_LIST,
    STATE_ID,
    STRINGS,
    TEXT,
    TableSpec,
    schema_of,
)

#: Columns of a state, and of a state with what the agent did there.
_STATE = {
    **STATE_ID,
    "group_id": (TEXT, "split group"),
    "prompt": (JSON_LIST, "chat messages before the action"),
    "tools": (JSON_LIST, "tool schemas offered"),
}
_RECORDED = {
    **_STATE,
    "action": (JSON_LIST, "one assistant message: the agent's action"),
    "model": (TEXT, "the agent's model"),
}

DATASET_PAIRS = TableSpec(
    "dataset_pairs",
    "The published preference dataset, one file a split.",
    ("pair_id",),
    ("split",),
    grouped=True,
    schema=schema_of(
        {
            **PAIR_COLUMNS,
            "recipe": (TEXT, "name and hash of the data-juicer recipe"),
            "day": (TEXT, "day of the session"),
            "group_id": (TEXT, "split group; no group is in two splits"),
            "chosen_licenses": (STRINGS, "licence of each of chosen_models; empty: not recorded"),
            "chosen_terms": (STRINGS, "training terms of each of chosen_models, as in replies"),
        }
    ),
)

DATASET_GROUPS = TableSpec(
    "dataset_groups",
    "Recorded answers to one state, for the GRPO channel.",
    ("state_id",),
    ("split",),
    grouped=True,
    schema=schema_of(
        {
            **_STATE,
            "candidates": (JSON_LIST, "assistant messages: the agent's, then the teachers'"),
            "sources": (STRINGS, "agent, or the teacher's name, for each candidate"),
            "consensus": (JSON_LIST, "one assistant message: the winning cluster's medoid"),
            "simulated": (FLAG, "any teacher was simulated"),
            "models": (STRINGS, "model of each candidate"),
            "licenses": (STRINGS, "licence of each model; empty for the agent, or not recorded"),
            "terms": (STRINGS, "training terms of each candidate, as in replies; agent: its own"),
        }
    ),
)

DATASET_SUCCESSES = TableSpec(
    "dataset_successes",
    "The agent's own actions that nothing in the trace speaks against, for the SFT channel, at"
    " states that no teacher decided.",
    ("state_id",),
    ("split",),
    grouped=True,
    schema=schema_of(
        {
            **_RECORDED,
        }
    ),
)

DATASET_HINTS = TableSpec(
    "dataset_hints",
    "Error turns with a hint, for the SDPO channel.",
    ("state_id",),
    ("split",),
    grouped=True,
    schema=schema_of(
        {
            **_RECORDED,
            "hint": (TEXT, "what the trace says was wrong"),
            "source": (TEXT, "as in hints"),
            "span_call": (INT32, "index of the call it is about; -1 is the whole action"),
            "recovery": (
                JSON_LIST,
                "one assistant message: the agent's own later call that worked in its place;"
                " null where none was found",
            ),
        }
    ),
)
