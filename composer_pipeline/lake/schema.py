"""The tables of the lake: keys, partitions, columns with their types and descriptions.

Columns of dataset tables are in reading order: task, action as text, messages, numbers, ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from composer_pipeline.errors import InputError

JSON_LIST = pa.list_(pa.json_())
TIMESTAMP = pa.timestamp("us", tz="UTC")
TEXT, FLAG, INT32, INT64, FLOAT = pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.float64()
STRINGS = pa.list_(pa.string())

#: The columns that name a state.
STATE_ID = {
    "state_id": (TEXT, "hash of (session id, message id); stable across harvests"),
    "session_id": (TEXT, "the agent's session"),
}


@dataclass(frozen=True)
class TableSpec:
    """A table: its name, its row key, the keys of its path, and its columns.

    ``compact`` tables have many small partitions that only this project reads: their files lack
    the Arrow schema, the page index and most statistics. The row groups of ``grouped`` tables are
    those that the writer asks for, and their pages are not cut by content, so that the bytes of
    unchanged rows stay as they were.
    """

    name: str
    description: str
    key: tuple[str, ...]
    partition_keys: tuple[str, ...]
    schema: pa.Schema
    compact: bool = False
    grouped: bool = False

    def description_of(self, column: str) -> str:
        """Return the description of a column, or an empty string."""
        metadata = self.schema.field(column).metadata or {}
        return bytes(metadata.get(b"description", b"")).decode()


def schema_of(columns: Mapping[str, tuple[pa.DataType, str]]) -> pa.Schema:
    """Return a schema of columns: name to (type, description)."""
    return pa.schema(
        [
            pa.field(name, kind, metadata={"description": text})
            for name, (kind, text) in columns.items()
        ]
    )


_Columns = dict[str, tuple[pa.DataType, str]]


def _table(
    name: str, description: str, key: tuple[str, ...], partition_keys: tuple[str, ...],
    columns: _Columns, *, compact: bool = False, grouped: bool = False,
) -> TableSpec:  # fmt: skip
    schema = schema_of(columns)
    return TableSpec(name, description, key, partition_keys, schema, compact, grouped)


_WINDOWED = (FLAG, "the teachers saw a window of the prompt; the rest was cut")
PAIR_COLUMNS: _Columns = {
    "pair_id": (TEXT, "hash of (state, chosen action)"),
    **STATE_ID,
    "project": (TEXT, "redacted working directory of the session"),
    "prompt": (JSON_LIST, "chat messages before the action"),
    "chosen": (JSON_LIST, "the teachers' action, or the agent's own as it should have been"),
    "rejected": (JSON_LIST, "the agent's action"),
    "tools": (JSON_LIST, "tool schemas offered"),
    "source": (
        TEXT,
        "teachers; fixup: the agent's edit with its own later fix folded in; recovery: its own"
        " later call that worked in place of the failed one; hindsight: the edit as committed",
    ),
    "evidence": (TEXT, "what the error said, for fixup and recovery; else null"),
    "distance": (INT32, "states from the action to the one that mended it; null for teachers"),
    "verified_by": (TEXT, "state whose check or call worked afterwards; null for teachers"),
    "tier": (TEXT, "gold or silver; of a source without a vote, its name"),
    "n_teachers": (INT32, "usable teacher replies"),
    "n_agree": (INT32, "families in the winning cluster"),
    "n_families": (INT32, "families that voted"),
    "winner_level": (TEXT, "loosest level of agreement inside the winning cluster"),
    "student_level": (TEXT, "level of agreement of the agent with the chosen action"),
    "agreement": (FLOAT, "n_agree / n_families; 0 without a vote"),
    "chosen_models": (STRINGS, "models of the winning cluster"),
    "chosen_families": (STRINGS, "families of the winning cluster"),
    "rejected_model": (TEXT, "the agent's model"),
    "tool_chosen": (TEXT, "first tool of the chosen action, or text"),
    "tool_rejected": (TEXT, "first tool of the rejected action, or text"),
    "turn": (INT32, "turn nodes before the state"),
    "error_turn": (FLAG, "the agent's action failed in the trace"),
    "mutating": (FLAG, "either side changes files or state"),
    "simulated": (FLAG, "any voting teacher was simulated"),
    "windowed": _WINDOWED,
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
    "kept": (FLOAT, "share of the agent's added lines in the commit that carries them, from git"),
    "survival": (FLOAT, "share of them alive at the last look; null where git does not know"),
    "contested": (FLAG, "git kept all of the agent's lines for 20 commits of the file or 7 days"),
    "training_terms": (
        TEXT,
        "the loosest of the voters' (as in replies): enforced, declared, unknown, not enforced;"
        " null in old rows",
    ),
}
PAIRS = _table(
    "pairs",
    "Preference pairs: teachers that agree with each other against the agent, and the agent"
    " against itself.",
    ("pair_id",),
    ("day",),
    PAIR_COLUMNS,
)
NORMALIZED_PAIRS = _table(
    "normalized_pairs",
    "Pairs that survived a data-juicer recipe.",
    ("pair_id",),
    ("day",),
    {**PAIR_COLUMNS, "recipe": (TEXT, "name and hash of the data-juicer recipe")},
)
DROPS = _table(
    "drops",
    "Every row that a stage dropped, and why.",
    ("pair_id", "step"),
    ("stage", "day"),
    {
        "pair_id": (TEXT, "dropped pair; of a row that is no pair, its state"),
        "state_id": (TEXT, "its state"),
        "step": (TEXT, "position and name of the operator, for example 2:text_length_filter"),
        "op": (TEXT, "operator"),
        "field": (TEXT, "column that was judged"),
        "stat": (TEXT, "statistic, or empty"),
        "value": (TEXT, "value of the statistic"),
        "bound": (TEXT, "bound that it broke"),
    },
)


REPLIES = _table(
    "replies",
    "One row for each teacher's answer to a state.",
    ("state_id", "teacher", "request_hash"),
    ("teacher", "day"),
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
        "windowed": _WINDOWED,
        "created_at": (TIMESTAMP, "when the reply was settled"),
        "canonical_slug": (TEXT, "dated name of the model in the catalogue of the run, or null"),
        "training_terms": (
            TEXT,
            "enforced (only models whose author allows training on outputs), declared"
            " (not enforced, allowed by the catalogue), not enforced; null in old rows",
        ),
        "control": (FLAG, "bought as a control: never votes; null in old rows, which are not"),
        "licence": (TEXT, "licence of the model, as in the teacher file; null in old rows"),
    },
)

TOOLSETS = _table(
    "toolsets",
    "The tools that states were offered; a state that was asked keeps its tools for good.",
    ("session_id", "digest"),
    ("day",),
    {
        "session_id": (TEXT, "the agent's session"),
        "digest": (TEXT, "BLAKE2b-128 of the tools; replies in the ledger name it"),
        "source": (TEXT, "where the schemas came from: recorded, registry, installed, inferred"),
        "tools": (JSON_LIST, "tool schemas in OpenAI form, with recorded names"),
        "state_ids": (STRINGS, "states of the session that were asked with them"),
    },
    compact=True,
)


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
    "agent": (TEXT, "whose session it is: claude-code, codex, pi, ..."),
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
    return _table(name, description, key, ("split",), columns, grouped=True)


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
        "survival": (FLOAT, "share of the agent's added lines alive at the last look, from git"),
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
            "one assistant message: the agent's own later call that worked in its place, or"
            " the edit with its later fix folded in; null where the session shows neither",
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

DATASET_KTO = _dataset(
    "dataset_kto",
    "Edits that people kept and edits that they did not, from git, for unpaired training.",
    ("state_id",),
    {
        **_TASK,
        "label": (
            FLAG,
            "true: all added lines were committed, and alive 20 commits of the file or 7 days"
            " later; false: less than half were committed, and the session did not replace them",
        ),
        **_ACTION,
        "kept": PAIR_COLUMNS["kept"],
        "survival": PAIR_COLUMNS["survival"],
        **_IDS,
    },
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


HINTS = _table(
    "hints",
    "What a trace says was wrong with an action, at the state that caused it, and the span it"
    " should teach.",
    ("state_id",),
    ("day",),
    {
        **STATE_ID,
        "source": (TEXT, "as hint_source in states"),
        "error_kind": (TEXT, "as in states, of the error turn"),
        "error_state_id": (TEXT, "the error turn; the state itself for a mistake"),
        "verdict": (TEXT, "of the error turn: mistake, revealed or user_choice"),
        "culprit_by": (TEXT, "how the culprit was found, as in states"),
        "confidence": (FLOAT, "how sure that is, in [0, 1]"),
        "text": (TEXT, "the hint: the lesson of the error turn, redacted, at most 600 characters"),
        "whole": (TEXT, "the whole text that it was cut from"),
        "span_call": (INT32, "index of the call it is about; -1 is the whole action"),
        "span_text": (TEXT, "JSON arguments of that call, or the action's text"),
        "leakage": (FLOAT, "share of the span's word 3-grams that the hint contains"),
    },
)


VOTES = _table(
    "votes",
    "One row for each state: who answered, how far apart the answers are, what came of it.",
    ("state_id",),
    ("day",),
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
        "levels": (pa.list_(INT32), "level of each two raters: (0,1), (0,2) ... (1,2) ...; 5 none"),
        "winners": (STRINGS, "teachers of the winning cluster"),
        "unusable": (STRINGS, "teacher: status: why, of each reply that cannot vote"),
        "cost_picodollars": (INT64, "billed cost of all replies to the state"),
        "simulated": (FLAG, "any teacher was simulated"),
        "windowed": _WINDOWED,
        "features": (STRINGS, "signs of trouble in the trace, from which a pair's chance is told"),
        "contamination": (STRINGS, "evidence that the session works on a benchmark"),
    },
)

PREFERENCE_STATISTICS = _table(
    "preference_statistics",
    "Quality of the preference data, one number a row; scope is a day, or all.",
    ("statistic", "a", "b", "tool"),
    ("scope",),
    {
        "statistic": (TEXT, "name of the number"),
        "a": (TEXT, "teacher, or agent, or what the number is about; else empty"),
        "b": (TEXT, "the other teacher of an agreement, else empty"),
        "tool": (TEXT, "first tool of the agent's action, else empty"),
        "value": (FLOAT, "the number; null where it could not be measured"),
        "n": (INT64, "what it was measured on: states, pairs or sessions"),
        "note": (TEXT, "why it was not measured, or empty"),
    },
)

NEAR_DUPLICATES = _table(
    "near_duplicates",
    "Pairs that are much like an earlier one: tail of the prompt and chosen action.",
    ("pair_id",),
    ("scope",),
    {
        "pair_id": (TEXT, "the pair"),
        "near": (TEXT, "the first pair of its group, by id"),
        "similarity": (FLOAT, "Jaccard of their word 5-grams"),
        "same_session": (FLAG, "both are of one session"),
    },
)


CHAINS = _table(
    "chains",
    "One row for each root-to-leaf path: the numbers of its messages; prefixes are shared.",
    ("chain_id",),
    ("day",),
    {
        "chain_id": (TEXT, "one chain for each path from a root to a leaf"),
        "messages": (pa.list_(INT32), "messages.n of each message of the path, in order"),
        "digest": (TEXT, "BLAKE2b-128 over the messages' hashes: both tables fit together"),
    },
    compact=True,
)
STATES = _table(
    "states",
    "One TraceState for each model response: what the agent saw, and what it did.",
    ("state_id",),
    ("day",),
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
            "exact_request, attachments_rendered, reconstructed, repaired or compacted_encrypted",
        ),
        "on_active_path": (FLAG, "false on an abandoned branch"),
        "repaired": (FLAG, "the prefix crossed a repaired edge"),
        "error_kind": (
            TEXT,
            "user_rejection, failing_tests, exit_code, failed_edit, tool_error,"
            " user_correction, soft_failure (a guess), or null",
        ),
        "hint": (TEXT, "what the trace says was wrong, redacted, as a whole, or null"),
        "hint_source": (
            TEXT,
            "tool_error, exit_code, user_rejection, user_correction or soft_failure",
        ),
        "hint_call": (INT32, "index of the failing call; -1 is the whole action"),
        "verdict": (
            TEXT,
            "whose mistake an error turn was: mistake (of this action), revealed (of an earlier"
            " one), preexisting, not_an_error, user_choice or unclear; null elsewhere",
        ),
        "verdict_reason": (TEXT, "the rule that gave the verdict"),
        "verdict_evidence": (TEXT, "the line of the output that the rule read"),
        "culprit_state_id": (TEXT, "state whose action caused it, or null"),
        "culprit_call": (INT32, "index of the call there; -1 is the whole action"),
        "culprit_by": (TEXT, "how the culprit was found: line, symbol, file or order"),
        "culprit_confidence": (FLOAT, "how sure that is, in [0, 1]"),
        "lesson": (TEXT, "the hint cut down to the lines that would have helped, or null"),
        "caused_error": (
            TEXT,
            "state of the first error turn whose culprit this action is, its own for a mistake or"
            " where the user said what to do instead; null elsewhere",
        ),
        "fixed_action": (
            TEXT,
            "the action with its later fix of the same session folded in, as JSON like action; null"
            " where none is shown to apply and to pass",
        ),
        "fixed_by": (TEXT, "state of the last edit that is folded in"),
        "fix_verified_by": (TEXT, "state whose check passed behind it, and had failed before"),
        "fix_distance": (INT32, "states from the action to that edit"),
        "project": (TEXT, "redacted working directory of the session"),
        "cwd": (TEXT, "redacted working directory of the response"),
        "model": (TEXT, "model that answered"),
        "version": (TEXT, "version of the agent"),
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
        "more_failures": (
            STRINGS,
            "the other calls of a parallel batch that failed for a reason of their own, each as"
            " JSON of error_kind to lesson as above; null in most rows",
        ),
        "agent": (TEXT, "whose session it is: claude-code, codex, pi, ..."),
    },
    compact=True,
)


OUTCOMES = _table(
    "outcomes",
    "What became of the lines that a response added, from git: one row a state and horizon.",
    ("state_id", "horizon"),
    ("day",),
    {
        **STATE_ID,
        "horizon": (
            TEXT,
            "commit: the one that carries the edit; 1, 5, 20: after so many later commits of the"
            " file; 7d, 30d: after so many days; today: at the last look",
        ),
        "status": (TEXT, "known, pending (too early), or unknown"),
        "why": (
            TEXT,
            "why it is not known: too_early, not_committed, no_repository, shallow, rewritten,"
            " missing, binary, too_large, other_user, damaged, no_git",
        ),
        "lines": (INT32, "distinct lines that the response added and that can be followed"),
        "alive": (INT32, "those that the file has at the horizon, however formatted; or null"),
        "by_session": (INT32, "of the others, those that a later edit of the session took out"),
        "by_others": (INT32, "those that an edit of another session did; the rest is not known"),
        "commit": (TEXT, "hash of the commit at the horizon"),
        "how": (
            TEXT,
            "how the commit was found: named (in the session's output), trailer, lines, or time:"
            " the first commit of the file after the edit",
        ),
        "sure": (FLOAT, "how sure that is, in [0, 1]"),
        "seconds": (INT64, "from the edit to the commit at the horizon"),
        "repository": (TEXT, "hash of the repository's first commit, equal for its clones"),
        "committed_action": (
            TEXT,
            "at the horizon commit: the action with its edit as it was committed, before the user"
            " said more, as JSON like action, redacted; null in most rows",
        ),
        "looked_at": (TIMESTAMP, "when git was asked"),
    },
    compact=True,
)

RAW_FILES = _table(
    "raw_files",
    "One row for each harvested session file: where it was and which archived bytes it has.",
    ("path",),
    ("day",),
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
    },
    compact=True,
)

SESSIONS = _table(
    "sessions",
    "One row for each trajectory (main session or subagent) of a file.",
    ("session_id", "agent_id", "path"),
    ("day",),
    {
        "session_id": (TEXT, "the agent's session"),
        "agent_id": (TEXT, "subagent, empty for the main trajectory"),
        "path": (TEXT, "source file, as in raw_files"),
        "project": (TEXT, "redacted working directory of the session"),
        "group_id": (TEXT, "split group: sessions that share records or a first prompt"),
        "first_prompt": (TEXT, "first human prompt, redacted, cut at 500 characters"),
        "versions": (STRINGS, "versions of the agent"),
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
            "call of the parent that started the subagent, told by its prompt; null if not found",
        ),
        "redaction_version": (
            INT32,
            "version of the redaction rules that wrote the day; null in old rows",
        ),
        "agent": (TEXT, "whose session it is: claude-code, codex, pi, ..."),
    },
    compact=True,
)

MESSAGES = _table(
    "messages",
    "One row for each distinct redacted message of a day.",
    ("hash",),
    ("day",),
    {
        "hash": (TEXT, "BLAKE2b-128 of the canonical JSON, hexadecimal"),
        "role": (TEXT, "user, assistant, system or tools"),
        "json": (TEXT, "Anthropic-shaped message, redacted, thinking removed"),
        "n_chars": (INT32, "characters of json"),
        "redactions": (INT32, "placeholders put in by redaction"),
        "redaction_version": (INT32, "version of the redaction rules"),
        "n": (INT32, "number of the message within its day, from 0; chains name it"),
    },
    compact=True,
)

ANCHORS = _table(
    "anchors",
    "Held-out states that every model of the nights is measured on; nothing trains on them.",
    ("state_id",),
    ("anchors",),
    {
        **STATE_ID,
        "kind": (TEXT, "as in an evaluation set: easy, recovery, hard_covered, hard_uncovered"),
        "prompt": (JSON_LIST, "chat messages before the action"),
        "tools": (JSON_LIST, "tool schemas offered"),
        "right": (JSON_LIST, "one assistant message: the right action"),
        "wrong": (JSON_LIST, "one assistant message: the agent's action, where it differs"),
        "hint": (TEXT, "feedback of the error turn, if any"),
        "cwd": (TEXT, "working directory, by which paths are compared"),
        "night": (TEXT, "day of the night that froze the state"),
        "version": (INT32, "model version that later ones are compared with here"),
        "reference": (FLOAT, "1 where that version's answer was right in effect, else 0"),
    },
)

NIGHT_ROWS = _table(
    "night_rows",
    "Which states of the dataset a night was the first to use, and what it made of them.",
    ("state_id",),
    ("day",),
    {
        **STATE_ID,
        "split": (TEXT, "train or validation"),
        "repository": (TEXT, "hash of the repository"),
    },
    compact=True,
)


SCHEMA_VERSION = 3

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
        OUTCOMES,
        PAIRS,
        NORMALIZED_PAIRS,
        DROPS,
        DATASET_PAIRS,
        DATASET_PAIRS_8K,
        DATASET_GROUPS,
        DATASET_HINTS,
        DATASET_SFT,
        DATASET_SUCCESSES,
        DATASET_KTO,
        DATASET_REPLIES,
        DATASET_DROPS,
        VOTES,
        PREFERENCE_STATISTICS,
        NEAR_DUPLICATES,
        ANCHORS,
        NIGHT_ROWS,
    )
}
#: The tables that trainers read; each has a split and a whole prompt in every row.
DATASETS = tuple(
    spec.name for spec in (DATASET_PAIRS, DATASET_GROUPS, DATASET_HINTS, DATASET_SUCCESSES)
)


def spec_of(table: str) -> TableSpec:
    """Return the table's spec."""
    if table not in TABLES:
        raise InputError(f"unknown table {table!r}; known: {', '.join(TABLES)}")
    return TABLES[table]
