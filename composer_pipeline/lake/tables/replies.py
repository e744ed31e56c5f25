"""Tables of what teachers were offered and answered.

Belongs here: keys, partitions and columns. Does not belong here: how a row is computed.
"""

import pyarrow as pa

from composer_pipeline.lake.tables.spec import (
    FLAG,
    FLOAT,
    INT64,
    JSON_LIST,
    STATE_ID,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TableSpec,
    schema_of,
)

REPLIES = TableSpec(
    "replies",
    "One row for each teacher's answer to a state.",
    ("state_id", "teacher", "request_hash"),
    ("teacher", "day"),
    schema_of(
        {
            **STATE_ID,
            "family": (TEXT, "model family; one vote each"),
            "request_hash": (
                TEXT,
                "key of the call: SHA-256 over endpoint name, wire and body but its price cap",
            ),
            "model": (TEXT, "model asked for"),
            "model_served": (TEXT, "model named in the reply"),
            "provider": (TEXT, "provider named in the reply"),
            "generation_id": (TEXT, "OpenRouter generation"),
            "status": (TEXT, "ok, unusable, unreadable, wrong_model, refused or unknown"),
            "detail": (TEXT, "why a reply is not ok, or empty"),
            "action": (TEXT, "JSON {text, tool_calls}; null unless ok"),
            "finish_reason": (TEXT, "as in the reply"),
            "prompt_tokens": (INT64, "billed prompt tokens"),
            "completion_tokens": (INT64, "billed completion tokens"),
            "cached_tokens": (INT64, "prompt tokens read from a cache"),
            "reasoning_tokens": (INT64, "reasoning tokens"),
            "cost_picodollars": (INT64, "billed cost, exact, 1e-12 USD"),
            "latency_ms": (FLOAT, "from sending to the last byte"),
            "obtained": (TEXT, "bought, or recovered from the provider's response cache"),
            "simulated": (FLAG, "true when a loopback teacher answered"),
            "raw": (pa.binary(), "reply, redacted, zstd; the ledger keeps the bytes as received"),
            "schema_source": (TEXT, "where the tool schemas came from"),
            "converter_version": (TEXT, "version of the message converter"),
            "created_at": (TIMESTAMP, "when the reply was settled"),
            "canonical_slug": (
                TEXT,
                "dated name of the model in the catalogue of the run, or null",
            ),
            "training_terms": (
                TEXT,
                "enforced (only models whose author allows training on outputs), declared"
                " (not enforced, allowed by the catalogue), not enforced; null in old rows",
            ),
            "control": (FLAG, "bought as a control: never votes; null in old rows, which are not"),
            "licence": (TEXT, "licence of the model, as in the teacher file; null in old rows"),
        }
    ),
)

TOOLSETS = TableSpec(
    "toolsets",
    "The tools that states were offered; a state that was asked keeps its tools for good.",
    ("session_id", "digest"),
    ("day",),
    schema_of(
        {
            "session_id": (TEXT, "Claude Code session"),
            "digest": (TEXT, "BLAKE2b-128 of the tools; replies in the ledger name it"),
            "source": (
                TEXT,
                "where the schemas came from: recorded, registry, installed, inferred",
            ),
            "tools": (JSON_LIST, "tool schemas in OpenAI form, with recorded names"),
            "state_ids": (STRINGS, "states of the session that were asked with them"),
        }
    ),
    compact=True,
)
