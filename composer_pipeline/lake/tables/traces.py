"""Tables of what sessions hold: the archive, sessions, messages.

Belongs here: keys, partitions and columns. Does not belong here: how a row is computed.
"""

from composer_pipeline.lake.tables.spec import (
    INT32,
    INT64,
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
            "parent_call": (
                TEXT,
                "call of the parent that started the subagent, told by its prompt; "
                "null if not found",
            ),
            "redaction_version": (
                INT32,
                "version of the redaction rules that wrote the day; null in old rows",
            ),
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
