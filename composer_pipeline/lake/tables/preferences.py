"""Tables of hints, votes and figures.

Belongs here: keys, partitions and columns. Does not belong here: how a row is computed.
"""

import pyarrow as pa

from composer_pipeline.lake.tables.spec import (
    FLAG,
    FLOAT,
    INT32,
    INT64,
    STATE_ID,
    STRINGS,
    TEXT,
    TableSpec,
    schema_of,
)

HINTS = TableSpec(
    "hints",
    "What a trace says was wrong with an action, and the span it should teach.",
    ("state_id",),
    ("day",),
    schema_of(
        {
            **STATE_ID,
            "source": (TEXT, "tool_error, exit_code, user_rejection or user_correction"),
            "error_kind": (TEXT, "as in states"),
            "text": (TEXT, "the hint, redacted"),
            "span_call": (INT32, "index of the call it is about; -1 is the whole action"),
            "span_text": (TEXT, "JSON arguments of that call, or the action's text"),
            "leakage": (FLOAT, "share of the span's word 3-grams that the hint contains"),
        }
    ),
)


VOTES = TableSpec(
    "votes",
    "One row for each state: who answered, how far apart the answers are, what came of it.",
    ("state_id",),
    ("day",),
    schema_of(
        {
            **STATE_ID,
            "reason": (TEXT, "pair, or the one reason why the state made none"),
            "tier": (TEXT, "gold, silver, style or none"),
            "tool": (TEXT, "first tool of the agent's action, or text"),
            "n_replies": (INT32, "replies, usable or not"),
            "n_usable": (INT32, "usable replies, the agent's own family included"),
            "n_families": (INT32, "families that voted"),
            "n_agree": (INT32, "families in the winning cluster; 0 without a winner"),
            "winner_level": (TEXT, "loosest level of agreement inside the winning cluster"),
            "student_level": (TEXT, "level of agreement of the agent with the winning cluster"),
            "margin": (FLOAT, "(winning cluster - runner-up) / families"),
            "entropy": (FLOAT, "of the sizes of the clusters, bits"),
            "mutating": (FLAG, "either side changes files or state"),
            "raters": (STRINGS, "agent, then each teacher with a usable reply, by name"),
            "families": (STRINGS, "family of each rater; empty for the agent"),
            "controls": (
                pa.list_(FLAG),
                "rater is a control: does not vote, by its own family or its entry",
            ),
            "mutates": (pa.list_(FLAG), "rater's action changes something"),
            "labels": (STRINGS, "name of each voter's cluster; null where a rater has no vote"),
            "levels": (
                pa.list_(INT32),
                "level of each two raters: (0,1), (0,2) ... (1,2) ...; 5 none",
            ),
            "winners": (STRINGS, "teachers of the winning cluster"),
            "unusable": (STRINGS, "teacher: status: why, of each reply that cannot vote"),
            "cost_picodollars": (INT64, "billed cost of all replies to the state"),
            "simulated": (FLAG, "any teacher was simulated"),
            "contamination": (STRINGS, "evidence that the session works on a benchmark"),
        }
    ),
)

PREFERENCE_STATISTICS = TableSpec(
    "preference_statistics",
    "Quality of the preference data, one number a row; scope is a day, or all.",
    ("statistic", "a", "b", "tool"),
    ("scope",),
    schema_of(
        {
            "statistic": (TEXT, "name of the number"),
            "a": (TEXT, "teacher, or agent, or what the number is about; else empty"),
            "b": (TEXT, "the other teacher of an agreement, else empty"),
            "tool": (TEXT, "first tool of the agent's action, else empty"),
            "value": (FLOAT, "the number; null where it could not be measured"),
            "n": (INT64, "what it was measured on: states, pairs or sessions"),
            "note": (TEXT, "why it was not measured, or empty"),
        }
    ),
)

NEAR_DUPLICATES = TableSpec(
    "near_duplicates",
    "Pairs that are much like an earlier one: tail of the prompt and chosen action.",
    ("pair_id",),
    ("scope",),
    schema_of(
        {
            "pair_id": (TEXT, "the pair"),
            "near": (TEXT, "the first pair of its group, by id"),
            "similarity": (FLOAT, "Jaccard of their word 5-grams"),
            "same_session": (FLAG, "both are of one session"),
        }
    ),
)
