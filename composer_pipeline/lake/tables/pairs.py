"""Tables of pairs, normalised pairs and drops.

Belongs here: keys, partitions and columns. Does not belong here: how a row is computed.
"""

import pyarrow as pa

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

PAIR_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "pair_id": (TEXT, "hash of (state, chosen action)"),
    **STATE_ID,
    "project": (TEXT, "redacted working directory of the session"),
    "prompt": (JSON_LIST, "chat messages before the action"),
    "chosen": (JSON_LIST, "the teachers' action"),
    "rejected": (JSON_LIST, "the agent's action"),
    "tools": (JSON_LIST, "tool schemas offered"),
    "tier": (TEXT, "gold or silver"),
    "n_teachers": (INT32, "usable teacher replies"),
    "n_agree": (INT32, "families in the winning cluster"),
    "n_families": (INT32, "families that voted"),
    "winner_level": (TEXT, "loosest level of agreement inside the winning cluster"),
    "student_level": (TEXT, "level of agreement of the agent with the chosen action"),
    "agreement": (FLOAT, "n_agree / n_families"),
    "chosen_models": (STRINGS, "models of the winning cluster"),
    "chosen_families": (STRINGS, "families of the winning cluster"),
    "rejected_model": (TEXT, "the agent's model"),
    "tool_chosen": (TEXT, "first tool of the chosen action, or text"),
    "tool_rejected": (TEXT, "first tool of the rejected action, or text"),
    "turn": (INT32, "turn nodes before the state"),
    "error_turn": (FLAG, "the agent's action failed in the trace"),
    "mutating": (FLAG, "either side changes files or state"),
    "simulated": (FLAG, "any voting teacher was simulated"),
    "cost_picodollars": (INT64, "billed cost of all replies to the state"),
    "schema_version": (INT32, "version of this table"),
    "margin": (FLOAT, "(winning cluster - runner-up) / families"),
    "entropy": (FLOAT, "of the sizes of the clusters, bits"),
    "chosen_teachers": (STRINGS, "teachers of the winning cluster, by name"),
    "length_ratio": (FLOAT, "characters of chosen / characters of rejected, as JSON"),
    "outcome": (
        TEXT,
        "what the trace says of the rejected action: student_ok, student_bad, unknown",
    ),
    "weight": (FLOAT, "weight by that outcome; 1 where nothing is known"),
    "weight_reason": (TEXT, "why the weight is not 1, or empty"),
    "contamination": (STRINGS, "evidence that the session works on a benchmark's repository"),
    "student": (TEXT, "recorded, or the name of the model whose sampled action is rejected"),
    "training_terms": (
        TEXT,
        "the loosest of the voters' (as in replies): enforced, declared, unknown, not enforced;"
        " null in old rows",
    ),
}
PAIRS = TableSpec(
    "pairs",
    "Preference pairs: teachers that agree with each other against the agent.",
    ("pair_id",),
    ("day",),
    schema_of(PAIR_COLUMNS),
)
NORMALIZED_PAIRS = TableSpec(
    "normalized_pairs",
    "Pairs that survived a data-juicer recipe.",
    ("pair_id",),
    ("day",),
    schema_of({**PAIR_COLUMNS, "recipe": (TEXT, "name and hash of the data-juicer recipe")}),
)
DROPS = TableSpec(
    "drops",
    "Every row that a stage dropped, and why.",
    ("pair_id", "step"),
    ("stage", "day"),
    schema_of(
        {
            "pair_id": (TEXT, "dropped pair; of a row that is no pair, its state"),
            "state_id": (TEXT, "its state"),
            "step": (TEXT, "position and name of the operator, for example 2:text_length_filter"),
            "op": (TEXT, "operator"),
            "field": (TEXT, "column that was judged"),
            "stat": (TEXT, "statistic, or empty"),
            "value": (TEXT, "value of the statistic"),
            "bound": (TEXT, "bound that it broke"),
        }
    ),
)
