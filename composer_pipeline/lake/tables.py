"""One pyarrow schema for each table of the lake; the single source of column facts.

Belongs here: tables, their keys, their partition keys, their columns with a
description each. Dagster's column metadata, the schema checks and the README's
tables are all made from this module. Does not belong here: reading and writing
(``lake.store``), and how a row is computed (the room that writes the table).

Columns are only ever added. Partition keys are part of the path, never of the file.
Message columns are ``list<arrow.json>``: one JSON document a message, which
``datasets`` reads as ``List(Json())`` and TRL trains on as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

JSON_LIST = pa.list_(pa.json_())
TIMESTAMP = pa.timestamp("us", tz="UTC")

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class TableSpec:
    """A table: its name, its row key, the keys of its path, and its columns.

    ``compact`` tables have many small partitions that only this project reads: their
    files lack the Arrow schema, the page index and most statistics.
    """

    name: str
    description: str
    key: tuple[str, ...]
    partition_keys: tuple[str, ...]
    schema: pa.Schema
    compact: bool = False

    def description_of(self, column: str) -> str:
        """Return the description of a column, or an empty string."""
        metadata = self.schema.field(column).metadata or {}
        return bytes(metadata.get(b"description", b"")).decode()


def _schema(columns: Mapping[str, tuple[pa.DataType, str]]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, kind, metadata={"description": text})
            for name, (kind, text) in columns.items()
        ]
    )


_S, _B, _I, _L, _F = pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.float64()
_STRINGS = pa.list_(pa.string())

_ID = {
    "state_id": (_S, "hash of (session id, message id); stable across harvests"),
    "session_id": (_S, "Claude Code session"),
}

RAW_FILES = TableSpec(
    "raw_files",
    "One row for each harvested session file: where it was and which archived bytes it has.",
    ("path",),
    ("day",),
    _schema(
        {
            "path": (_S, "path relative to the harvested folder, home folder removed"),
            "sha256": (_S, "key of the raw bytes in archive/"),
            "size": (_L, "bytes of the raw file"),
            "mtime_ns": (_L, "modification time when harvested; only a cheap test for change"),
            "session_id": (_S, "session of the first record that names one"),
            "agent_id": (_S, "subagent, empty for a main file"),
            "parent_path": (_S, "main file of a subagent file, else empty"),
            "offset": (_L, "bytes up to the end of the last complete line"),
            "pieces": (_STRINGS, "keys in archive/ of the pieces that make up the file, in order"),
        }
    ),
    compact=True,
)

SESSIONS = TableSpec(
    "sessions",
    "One row for each trajectory (main session or subagent) of a file.",
    ("session_id", "agent_id", "path"),
    ("day",),
    _schema(
        {
            "session_id": (_S, "Claude Code session"),
            "agent_id": (_S, "subagent, empty for the main trajectory"),
            "path": (_S, "source file, as in raw_files"),
            "project": (_S, "redacted working directory of the session"),
            "group_id": (_S, "split group: sessions that share records or a first prompt"),
            "first_prompt": (_S, "first human prompt, redacted, cut at 500 characters"),
            "versions": (_STRINGS, "Claude Code versions"),
            "models": (_STRINGS, "models that answered"),
            "tools": (_STRINGS, "names of the tools called"),
            "first_ts": (TIMESTAMP, "first timestamp"),
            "last_ts": (TIMESTAMP, "last timestamp"),
            "lines": (_I, "lines that are not blank"),
            "bad_lines": (_I, "lines that could not be decoded in full"),
            "glued_lines": (_I, "lines that held several records"),
            "responses": (_I, "API responses"),
            "states": (_I, "responses with a tool call or text"),
            "states_active_path": (_I, "states on the active path"),
            "tool_calls": (_I, "distinct tool calls"),
            "tool_results": (_I, "tool calls with a result"),
            "tool_errors": (_I, "tool calls whose result is an error"),
            "compactions": (_I, "compaction boundaries"),
            "roots": (_I, "nodes without a parent"),
            "branch_points": (_I, "real rewinds"),
            "repaired_states": (_I, "states whose prefix crossed a repaired edge"),
            "unknown_types": (_S, "JSON object: unknown record type to count"),
            "sha256": (_S, "key of the archived bytes that were parsed"),
            "parent_call": (_S, "call of the parent that started the subagent, told by its prompt; null if not found"),
        }
    ),
    compact=True,
)

MESSAGES = TableSpec(
    "messages",
    "One row for each distinct redacted message of a day.",
    ("hash",),
    ("day",),
    _schema(
        {
            "hash": (_S, "BLAKE2b-128 of the canonical JSON, hexadecimal"),
            "role": (_S, "user, assistant, system or tools"),
            "json": (_S, "Anthropic-shaped message, redacted, thinking removed"),
            "n_chars": (_I, "characters of json"),
            "redactions": (_I, "placeholders put in by redaction"),
            "redaction_version": (_I, "version of the redaction rules"),
            "n": (_I, "number of the message within its day, from 0; chains name it"),
        }
    ),
    compact=True,
)

CHAINS = TableSpec(
    "chains",
    "One row for each root-to-leaf path: the numbers of its messages; prefixes are shared.",
    ("chain_id",),
    ("day",),
    _schema(
        {
            "chain_id": (_S, "one chain for each path from a root to a leaf"),
            "messages": (pa.list_(_I), "messages.n of each message of the path, in order"),
            "digest": (_S, "BLAKE2b-128 over the messages' hashes: both tables fit together"),
        }
    ),
    compact=True,
)

STATES = TableSpec(
    "states",
    "One TraceState for each model response: what the agent saw, and what it did.",
    ("state_id",),
    ("day",),
    _schema(
        {
            **_ID,
            "agent_id": (_S, "subagent, empty for the main trajectory"),
            "message_id": (_S, "id of the API response"),
            "chain_id": (_S, "chain that holds the prefix"),
            "n_messages": (_I, "the prefix is the first n messages of the chain"),
            "system_hash": (_S, "recorded system prompt in messages, or null"),
            "tools_hash": (_S, "recorded tool schemas in messages, or null"),
            "action": (
                _S,
                "JSON {text, tool_calls:[{name, arguments, id}]}, redacted;"
                " null where it is the chain's message n_messages, which load_states reads",
            ),
            "fidelity": (
                _S,
                "exact_request, attachments_rendered, reconstructed or repaired",
            ),
            "on_active_path": (_B, "false on an abandoned branch"),
            "repaired": (_B, "the prefix crossed a repaired edge"),
            "error_kind": (
                _S,
                "user_rejection, failing_tests, exit_code, failed_edit, tool_error,"
                " user_correction, soft_failure (a guess), or null",
            ),
            "hint": (_S, "what the trace says was wrong, redacted, or null"),
            "hint_source": (
                _S,
                "tool_error, exit_code, user_rejection, user_correction or soft_failure",
            ),
            "hint_call": (_I, "index of the failing call; -1 is the whole action"),
            "project": (_S, "redacted working directory of the session"),
            "cwd": (_S, "redacted working directory of the response"),
            "model": (_S, "model that answered"),
            "version": (_S, "Claude Code version"),
            "ts": (TIMESTAMP, "timestamp of the first segment"),
            "input_tokens": (_L, "prompt tokens as reported, caches included"),
            "output_tokens": (_L, "completion tokens as reported"),
            "turn": (_I, "number of turn nodes before this state"),
            "parser_version": (_S, "version of the parser"),
            "followed_by_error": (_B, "a call failed that was not merely cancelled"),
            "followed_by_correction": (_B, "the user rejected it or interrupted and said why"),
            "interrupted": (_B, "the user interrupted right after it"),
            "reverted": (_B, "its edits were undone later, or the user rewound to before it"),
            "tests_passed": (_B, "whether the tests that it ran passed; null where it ran none"),
        }
    ),
    compact=True,
)

REPLIES = TableSpec(
    "replies",
    "One row for each teacher's answer to a state.",
    ("state_id", "teacher", "request_hash"),
    ("teacher", "day"),
    _schema(
        {
            **_ID,
            "family": (_S, "model family; one vote each"),
            "request_hash": (_S, "SHA-256 over endpoint name, wire and the exact body sent"),
            "model": (_S, "model asked for"),
            "model_served": (_S, "model named in the reply"),
            "provider": (_S, "provider named in the reply"),
            "generation_id": (_S, "OpenRouter generation"),
            "status": (_S, "ok, unusable, unreadable, wrong_model, refused or unknown"),
            "detail": (_S, "why a reply is not ok, or empty"),
            "action": (_S, "JSON {text, tool_calls}; null unless ok"),
            "finish_reason": (_S, "as in the reply"),
            "prompt_tokens": (_L, "billed prompt tokens"),
            "completion_tokens": (_L, "billed completion tokens"),
            "cached_tokens": (_L, "prompt tokens read from a cache"),
            "reasoning_tokens": (_L, "reasoning tokens"),
            "cost_picodollars": (_L, "billed cost, exact, 1e-12 USD"),
            "latency_ms": (_F, "from sending to the last byte"),
            "obtained": (_S, "bought, or recovered from the provider's response cache"),
            "simulated": (_B, "true when a loopback teacher answered"),
            "raw": (pa.binary(), "reply, redacted, zstd; the ledger keeps the bytes as received"),
            "schema_source": (_S, "where the tool schemas came from"),
            "converter_version": (_S, "version of the message converter"),
            "created_at": (TIMESTAMP, "when the reply was settled"),
            "canonical_slug": (_S, "dated name of the model in the catalogue of the run, or null"),
            "training_terms": (
                _S,
                "enforced (only models whose author allows training on outputs), declared"
                " (not enforced, allowed by the catalogue), not enforced; null in old rows",
            ),
            "control": (_B, "bought as a control: never votes; null in old rows, which are not"),
        }
    ),
)

TOOLSETS = TableSpec(
    "toolsets",
    "The tools that states were offered; a state that was asked keeps its tools for good.",
    ("session_id", "digest"),
    ("day",),
    _schema(
        {
            "session_id": (_S, "Claude Code session"),
            "digest": (_S, "BLAKE2b-128 of the tools; replies in the ledger name it"),
            "source": (_S, "where the schemas came from: recorded, registry, installed, inferred"),
            "tools": (JSON_LIST, "tool schemas in OpenAI form, with recorded names"),
            "state_ids": (_STRINGS, "states of the session that were asked with them"),
        }
    ),
    compact=True,
)

HINTS = TableSpec(
    "hints",
    "What a trace says was wrong with an action, and the span it should teach.",
    ("state_id",),
    ("day",),
    _schema(
        {
            **_ID,
            "source": (_S, "tool_error, exit_code, user_rejection or user_correction"),
            "error_kind": (_S, "as in states"),
            "text": (_S, "the hint, redacted"),
            "span_call": (_I, "index of the call it is about; -1 is the whole action"),
            "span_text": (_S, "JSON arguments of that call, or the action's text"),
            "leakage": (_F, "share of the span's word 3-grams that the hint contains"),
        }
    ),
)

_PAIR_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "pair_id": (_S, "hash of (state, chosen action)"),
    **_ID,
    "project": (_S, "redacted working directory of the session"),
    "prompt": (JSON_LIST, "chat messages before the action"),
    "chosen": (JSON_LIST, "the teachers' action"),
    "rejected": (JSON_LIST, "the agent's action"),
    "tools": (JSON_LIST, "tool schemas offered"),
    "tier": (_S, "gold or silver"),
    "n_teachers": (_I, "usable teacher replies"),
    "n_agree": (_I, "families in the winning cluster"),
    "n_families": (_I, "families that voted"),
    "winner_level": (_S, "loosest level of agreement inside the winning cluster"),
    "student_level": (_S, "level of agreement of the agent with the chosen action"),
    "agreement": (_F, "n_agree / n_families"),
    "chosen_models": (_STRINGS, "models of the winning cluster"),
    "chosen_families": (_STRINGS, "families of the winning cluster"),
    "rejected_model": (_S, "the agent's model"),
    "tool_chosen": (_S, "first tool of the chosen action, or text"),
    "tool_rejected": (_S, "first tool of the rejected action, or text"),
    "turn": (_I, "turn nodes before the state"),
    "error_turn": (_B, "the agent's action failed in the trace"),
    "mutating": (_B, "either side changes files or state"),
    "simulated": (_B, "any voting teacher was simulated"),
    "cost_picodollars": (_L, "billed cost of all replies to the state"),
    "schema_version": (_I, "version of this table"),
    "margin": (_F, "(winning cluster - runner-up) / families"),
    "entropy": (_F, "of the sizes of the clusters, bits"),
    "chosen_teachers": (_STRINGS, "teachers of the winning cluster, by name"),
    "length_ratio": (_F, "characters of chosen / characters of rejected, as JSON"),
    "outcome": (_S, "what the trace says of the rejected action: student_ok, student_bad, unknown"),
    "weight": (_F, "weight by that outcome; 1 where nothing is known"),
    "weight_reason": (_S, "why the weight is not 1, or empty"),
    "contamination": (_STRINGS, "evidence that the session works on a benchmark's repository"),
    "student": (_S, "recorded, or the name of the model whose sampled action is rejected"),
    "training_terms": (
        _S,
        "the loosest of the voters' (as in replies): enforced, declared, unknown, not enforced;"
        " null in old rows",
    ),
}

PAIRS = TableSpec(
    "pairs",
    "Preference pairs: teachers that agree with each other against the agent.",
    ("pair_id",),
    ("day",),
    _schema(_PAIR_COLUMNS),
)

NORMALIZED_PAIRS = TableSpec(
    "normalized_pairs",
    "Pairs that survived a data-juicer recipe.",
    ("pair_id",),
    ("day",),
    _schema({**_PAIR_COLUMNS, "recipe": (_S, "name and hash of the data-juicer recipe")}),
)

DROPS = TableSpec(
    "drops",
    "Every row that a stage dropped, and why.",
    ("pair_id", "step"),
    ("stage", "day"),
    _schema(
        {
            "pair_id": (_S, "dropped pair"),
            "state_id": (_S, "its state"),
            "step": (_S, "position and name of the operator, for example 2:text_length_filter"),
            "op": (_S, "operator"),
            "field": (_S, "column that was judged"),
            "stat": (_S, "statistic, or empty"),
            "value": (_S, "value of the statistic"),
            "bound": (_S, "bound that it broke"),
        }
    ),
)

VOTES = TableSpec(
    "votes",
    "One row for each state: who answered, how far apart the answers are, what came of it.",
    ("state_id",),
    ("day",),
    _schema(
        {
            **_ID,
            "reason": (_S, "pair, or the one reason why the state made none"),
            "tier": (_S, "gold, silver, style or none"),
            "tool": (_S, "first tool of the agent's action, or text"),
            "n_replies": (_I, "replies, usable or not"),
            "n_usable": (_I, "usable replies, the agent's own family included"),
            "n_families": (_I, "families that voted"),
            "n_agree": (_I, "families in the winning cluster; 0 without a winner"),
            "winner_level": (_S, "loosest level of agreement inside the winning cluster"),
            "student_level": (_S, "level of agreement of the agent with the winning cluster"),
            "margin": (_F, "(winning cluster - runner-up) / families"),
            "entropy": (_F, "of the sizes of the clusters, bits"),
            "mutating": (_B, "either side changes files or state"),
            "raters": (_STRINGS, "agent, then each teacher with a usable reply, by name"),
            "families": (_STRINGS, "family of each rater; empty for the agent"),
            "controls": (pa.list_(_B), "rater is a control: does not vote, by its own family or its entry"),
            "mutates": (pa.list_(_B), "rater's action changes something"),
            "labels": (_STRINGS, "name of each voter's cluster; null where a rater has no vote"),
            "levels": (pa.list_(_I), "level of each two raters: (0,1), (0,2) ... (1,2) ...; 5 none"),
            "winners": (_STRINGS, "teachers of the winning cluster"),
            "unusable": (_STRINGS, "teacher: status: why, of each reply that cannot vote"),
            "cost_picodollars": (_L, "billed cost of all replies to the state"),
            "simulated": (_B, "any teacher was simulated"),
            "contamination": (_STRINGS, "evidence that the session works on a benchmark"),
        }
    ),
)

PREFERENCE_STATISTICS = TableSpec(
    "preference_statistics",
    "Quality of the preference data, one number a row; scope is a day, or all.",
    ("statistic", "a", "b", "tool"),
    ("scope",),
    _schema(
        {
            "statistic": (_S, "name of the number"),
            "a": (_S, "teacher, or agent, or what the number is about; else empty"),
            "b": (_S, "the other teacher of an agreement, else empty"),
            "tool": (_S, "first tool of the agent's action, else empty"),
            "value": (_F, "the number; null where it could not be measured"),
            "n": (_L, "what it was measured on: states, pairs or sessions"),
            "note": (_S, "why it was not measured, or empty"),
        }
    ),
)

NEAR_DUPLICATES = TableSpec(
    "near_duplicates",
    "Pairs that are much like an earlier one: tail of the prompt and chosen action.",
    ("pair_id",),
    ("scope",),
    _schema(
        {
            "pair_id": (_S, "the pair"),
            "near": (_S, "the first pair of its group, by id"),
            "similarity": (_F, "Jaccard of their word 5-grams"),
            "same_session": (_B, "both are of one session"),
        }
    ),
)

DATASET_PAIRS = TableSpec(
    "dataset_pairs",
    "The published preference dataset, one file a split.",
    ("pair_id",),
    ("split",),
    _schema(
        {
            **_PAIR_COLUMNS,
            "recipe": (_S, "name and hash of the data-juicer recipe"),
            "day": (_S, "day of the session"),
            "group_id": (_S, "split group; no group is in two splits"),
        }
    ),
)

DATASET_GROUPS = TableSpec(
    "dataset_groups",
    "Recorded answers to one state, for the GRPO channel.",
    ("state_id",),
    ("split",),
    _schema(
        {
            **_ID,
            "group_id": (_S, "split group"),
            "prompt": (JSON_LIST, "chat messages before the action"),
            "tools": (JSON_LIST, "tool schemas offered"),
            "candidates": (JSON_LIST, "assistant messages: the agent's, then the teachers'"),
            "sources": (_STRINGS, "agent, or the teacher's name, for each candidate"),
            "consensus": (JSON_LIST, "one assistant message: the winning cluster's medoid"),
            "simulated": (_B, "any teacher was simulated"),
        }
    ),
)

DATASET_HINTS = TableSpec(
    "dataset_hints",
    "Error turns with a hint, for the SDPO channel.",
    ("state_id",),
    ("split",),
    _schema(
        {
            **_ID,
            "group_id": (_S, "split group"),
            "prompt": (JSON_LIST, "chat messages before the action"),
            "tools": (JSON_LIST, "tool schemas offered"),
            "action": (JSON_LIST, "one assistant message: the agent's action"),
            "hint": (_S, "what the trace says was wrong"),
            "source": (_S, "as in hints"),
            "span_call": (_I, "index of the call it is about; -1 is the whole action"),
        }
    ),
)

TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        RAW_FILES,
        SESSIONS,
        MESSAGES,
        CHAINS,
        STATES,
        TOOLSETS,
        REPLIES,
        HINTS,
        PAIRS,
        NORMALIZED_PAIRS,
        DROPS,
        DATASET_PAIRS,
        DATASET_GROUPS,
        DATASET_HINTS,
        VOTES,
        PREFERENCE_STATISTICS,
        NEAR_DUPLICATES,
    )
}
