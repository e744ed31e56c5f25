"""Tables of states and of the chains of messages they share.

Belongs here: keys, partitions and columns. Does not belong here: how a row is computed.
"""

import pyarrow as pa

from composer_pipeline.lake.tables.spec import (
    FLAG,
    INT32,
    INT64,
    STATE_ID,
    TEXT,
    TIMESTAMP,
    TableSpec,
    schema_of,
)

CHAINS = TableSpec(
    "chains",
    "One row for each root-to-leaf path: the numbers of its messages; prefixes are shared.",
    ("chain_id",),
    ("day",),
    schema_of(
        {
            "chain_id": (TEXT, "one chain for each path from a root to a leaf"),
            "messages": (pa.list_(INT32), "messages.n of each message of the path, in order"),
            "digest": (TEXT, "BLAKE2b-128 over the messages' hashes: both tables fit together"),
        }
    ),
    compact=True,
)
STATES = TableSpec(
    "states",
    "One TraceState for each model response: what the agent saw, and what it did.",
    ("state_id",),
    ("day",),
    schema_of(
        {
            **STATE_ID,
            "agent_id": (TEXT, "subagent, empty for the main trajectory"),
            "message_id": (TEXT, "id of the API response"),
            "chain_id": (TEXT, "chain that holds the prefix"),
            "n_messages": (INT32, "the prefix is the first n messages of the chain"),
            "system_hash": (TEXT, "recorded system prompt in messages, or null"),
            "tools_hash": (TEXT, "recorded tool schemas in messages, or null"),
            "action": (
                TEXT,
                "JSON {text, tool_calls:[{name, arguments, id}]}, redacted;"
                " null where it is the chain's message n_messages, which load_states reads",
            ),
            "fidelity": (
                TEXT,
                "exact_request, attachments_rendered, reconstructed or repaired",
            ),
            "on_active_path": (FLAG, "false on an abandoned branch"),
            "repaired": (FLAG, "the prefix crossed a repaired edge"),
            "error_kind": (
                TEXT,
                "user_rejection, failing_tests, exit_code, failed_edit, tool_error,"
                " user_correction, soft_failure (a guess), or null",
            ),
            "hint": (TEXT, "what the trace says was wrong, redacted, or null"),
            "hint_source": (
                TEXT,
                "tool_error, exit_code, user_rejection, user_correction or soft_failure",
            ),
            "hint_call": (INT32, "index of the failing call; -1 is the whole action"),
            "project": (TEXT, "redacted working directory of the session"),
            "cwd": (TEXT, "redacted working directory of the response"),
            "model": (TEXT, "model that answered"),
            "version": (TEXT, "Claude Code version"),
            "ts": (TIMESTAMP, "timestamp of the first segment"),
            "input_tokens": (INT64, "prompt tokens as reported, caches included"),
            "output_tokens": (INT64, "completion tokens as reported"),
            "turn": (INT32, "number of turn nodes before this state"),
            "parser_version": (TEXT, "version of the parser"),
            "followed_by_error": (FLAG, "a call failed that was not merely cancelled"),
            "followed_by_correction": (FLAG, "the user rejected it or interrupted and said why"),
            "interrupted": (FLAG, "the user interrupted right after it"),
            "reverted": (FLAG, "its edits were undone later, or the user rewound to before it"),
            "tests_passed": (FLAG, "whether the tests that it ran passed; null where it ran none"),
        }
    ),
    compact=True,
)
