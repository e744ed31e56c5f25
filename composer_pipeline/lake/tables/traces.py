"""Tables of what sessions hold: the archive, sessions, messages, chains, states.

Belongs here: keys, partitions and columns. Does not belong here: how a row is computed.
"""

import pyarrow as pa

from composer_pipeline.lake.tables.spec import (
    FLAG,
    INT32,
    INT64,
    STATE_ID,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TableSpec,
    schema_of,
)

RAW_FILES = TableSpec(
    "raw_files",
    "One row for each harvested session file: where it was and which archived bytes it has.",
    ("path",),
    ("day",),
    schema_of(
        {
            "path": (TEXT, "path relative to the harvested folder, home folder removed"),
            "sha256": (TEXT, "key of the raw bytes in archive/"),
            "size": (INT64, "bytes of the raw file"),
            "mtime_ns": (INT64, "modification time when harvested; only a cheap test for change"),
            "session_id": (TEXT, "session of the first record that names one"),
            "agent_id": (TEXT, "subagent, empty for a main file"),
            "parent_path": (TEXT, "main file of a subagent file, else empty"),
            "offset": (INT64, "bytes up to the end of the last complete line"),
            "pieces": (STRINGS, "keys in archive/ of the pieces that make up the file, in order"),
        }
    ),
    compact=True,
)

SESSIONS = TableSpec(
    "sessions",
    "One row for each trajectory (main session or subagent) of a file.",
    ("session_id", "agent_id", "path"),
    ("day",),
    schema_of(
        {
            "session_id": (TEXT, "Claude Code session"),
            "agent_id": (TEXT, "subagent, empty for the main trajectory"),
            "path": (TEXT, "source file, as in raw_files"),
            "project": (TEXT, "redacted working directory of the session"),
            "group_id": (TEXT, "split group: sessions that share records or a first prompt"),
            "first_prompt": (TEXT, "first human prompt, redacted, cut at 500 characters"),
            "versions": (STRINGS, "Claude Code versions"),
            "models": (STRINGS, "models that answered"),
            "tools": (STRINGS, "names of the tools called"),
            "first_ts": (TIMESTAMP, "first timestamp"),
            "last_ts": (TIMESTAMP, "last timestamp"),
            "lines": (INT32, "lines that are not blank"),
            "bad_lines": (INT32, "lines that could not be decoded in full"),
            "glued_lines": (INT32, "lines that held several records"),
            "responses": (INT32, "API responses"),
            "states": (INT32, "responses with a tool call or text"),
            "states_active_path": (INT32, "states on the active path"),
            "tool_calls": (INT32, "distinct tool calls"),
            "tool_results": (INT32, "tool calls with a result"),
            "tool_errors": (INT32, "tool calls whose result is an error"),
            "compactions": (INT32, "compaction boundaries"),
            "roots": (INT32, "nodes without a parent"),
            "branch_points": (INT32, "real rewinds"),
            "repaired_states": (INT32, "states whose prefix crossed a repaired edge"),
            "unknown_types": (TEXT, "JSON object: unknown record type to count"),
            "sha256": (TEXT, "key of the archived bytes that were parsed"),
            "parent_call": (TEXT, "call of the parent that started the subagent, told by its prompt; null if not found"),
            "redaction_version": (INT32, "version of the redaction rules that wrote the day; null in old rows"),
        }
    ),
    compact=True,
)

MESSAGES = TableSpec(
    "messages",
    "One row for each distinct redacted message of a day.",
    ("hash",),
    ("day",),
    schema_of(
        {
            "hash": (TEXT, "BLAKE2b-128 of the canonical JSON, hexadecimal"),
            "role": (TEXT, "user, assistant, system or tools"),
            "json": (TEXT, "Anthropic-shaped message, redacted, thinking removed"),
            "n_chars": (INT32, "characters of json"),
            "redactions": (INT32, "placeholders put in by redaction"),
            "redaction_version": (INT32, "version of the redaction rules"),
            "n": (INT32, "number of the message within its day, from 0; chains name it"),
        }
    ),
    compact=True,
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
