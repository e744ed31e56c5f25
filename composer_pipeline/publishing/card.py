"""The dataset card: README.md of the published repository, byte for byte the same each time.

Belongs here: the YAML that makes ``load_dataset`` find the files, and what a reader must
know before training on them. Does not belong here: which files there are
(``publishing.publish``). Nothing in a card depends on the clock or the machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import yaml

from composer_pipeline.lake import SCHEMA_VERSION, TABLES
from composer_pipeline.publishing.configs import CONFIGS, file_path
from composer_pipeline.publishing.splits import SPLITS
from composer_pipeline.redaction import REDACTION_VERSION

_WHAT = {
    "pairs": "preference pairs for DPO: `prompt`, `chosen`, `rejected`, `tools`",
    "pairs_8k": "the pairs with prompts cut in whole turns to 8,192 tokens",
    "groups": "recorded answers to one state, with their consensus, for GRPO rewards",
    "hints": "error turns with what the trace says was wrong, for self-distillation",
    "sft": "the teachers' consensus at each state that has one",
    "successes": "the agent's own actions that worked, where no teacher decided, for SFT",
    "replies": "each usable answer of a teacher, with tokens, cost and latency",
    "drops": "what was left out, and why",
}

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def size_category(rows: int) -> str:
    """Return the Hub's size category of a number of rows."""
    return next((name for bound, name in _SIZES if rows < bound), "1M<n<10M")


#: Training terms under which the author of a model allows training on its outputs.
_DISTILLABLE = frozenset({"enforced", "declared"})

#: Headline statistics: (name in ``preference_statistics``, what it is).
_HEADLINES = (
    ("krippendorff_alpha", "Krippendorff's alpha of the teachers' votes, all tools"),
    ("separability_auc", "separability: AUC of a classifier that sees only style"),
    ("resample_disagreement", "noise floor: the agent's own family, asked again, differs"),
    ("excess_disagreement", "teachers differ from the agent beyond the noise floor by"),
)


def card(
    repo: str,
    tables: Mapping[tuple[str, str], pa.Table],
    statistics: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the card's text.

    Args:
        repo: ``owner/name``.
        tables: (config, split) to its rows; only those that have any.
        statistics: rows of ``preference_statistics`` of the whole lake; no section without.
    """
    rows = {key: table.num_rows for key, table in tables.items()}
    pairs = [tables["pairs", split] for split in SPLITS if ("pairs", split) in tables]
    total = sum(table.num_rows for table in pairs)
    front = {
        "license": "other",
        "language": ["en", "code"],
        "pretty_name": repo.split("/")[1],
        "size_categories": [size_category(total)],
        "task_categories": ["text-generation"],
        "tags": [
            "dpo",
            "preference",
            "agent-traces",
            "tool-use",
            "trl",
            "composer-pipeline",
        ],
        "configs": [
            {
                "config_name": config,
                **({"default": True} if config == "pairs" else {}),
                "data_files": [
                    {"split": split, "path": file_path(config, split)}
                    for split in SPLITS
                    if (config, split) in tables
                ],
            }
            for config in CONFIGS
            if any((config, split) in tables for split in SPLITS)
        ],
    }
    sections = [
        "---\n" + yaml.safe_dump(front, sort_keys=False, allow_unicode=True) + "---",
        f"# {repo.split('/')[1]}",
        "Preference data made from Claude Code sessions: at each state that a coding agent"
        " was in, several teachers were asked what they would do. Where at least two teacher"
        " families agree with each other and not with the agent, their action is `chosen`"
        " and the agent's is `rejected`.",
        _simulated(tables),
        f'''```python
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

data = load_dataset("{repo}", "pairs", split="train")
```

The columns `prompt`, `chosen`, `rejected` and `tools` are chat messages that TRL's
`DPOTrainer` trains on as they are. They need `datasets>=5` (`List(Json())`). Set `max_length`:
states of agents are long, and the default cuts them.''',
        "## What is in it",
        _table(
            ["configuration", "a row is", *SPLITS],
            [
                [
                    f"`{config}`",
                    _WHAT[config],
                    *(str(rows.get((config, split), 0)) for split in SPLITS),
                ]
                for config in CONFIGS
            ],
        ),
        _counts(pairs),
        _terms(pairs),
        _headlines(statistics),
        "## How pairs were made",
        "1. Sessions are parsed into states: what the agent saw, and what it did next.\n"
        "2. Text is redacted before it is stored, and before a teacher sees it.\n"
        "3. Teachers of different model families answer each state. Answers that do the same"
        " thing, by a graded comparison of tool calls, form a cluster; a family has one vote.\n"
        "4. The largest cluster with at least two families is the consensus; `tier` and"
        " `agreement` say how strong it is. The agent's own action is no vote.\n"
        "5. A data-juicer recipe filters the pairs; `recipe` names it and its hash."
        " Repeats of (prompt, chosen, rejected) are removed.\n\n"
        "Actions are rendered alone: a response with tool calls has no text, so a pair compares"
        " what was done and not how it was announced.",
        "## Splits",
        "A row's split is a hash of its group: sessions that share records, a first prompt or"
        " any identical state prompt. A group is in one split only, and stays there when data"
        " are added. Before publishing it was checked that no group, session or prompt is in"
        " both splits.",
        "## Privacy",
        f"Redaction rules (version {REDACTION_VERSION}) replace keys and tokens of known shapes,"
        " values assigned to telling names, passwords in URLs, e-mail addresses, home folders"
        " and user names by stable placeholders. The decoded strings of the final Parquet files"
        " were scanned with the same rules, and nothing was found. Not covered: names of people"
        " in prose, postal and IP addresses, telephone numbers, and secrets without a known"
        " shape or a telling name.",
        "## Limits",
        "Agreement is not correctness: teachers can share a mistake, and nothing was executed to"
        " check an action. Prefixes are rebuilt from session files; where a file did not hold"
        " the system prompt or the tool schemas, neutral ones stand for them. The licence of"
        " the sessions and the terms of the teachers' outputs apply; `chosen_models` names"
        " the teachers.",
        "## Columns",
    ]
    for config, table in CONFIGS.items():
        spec = TABLES[table]
        sections.append(f"### {config}\n\n{spec.description}")
        sections.append(
            _table(
                ["column", "type", "meaning"],
                [[f"`{f.name}`", _type(f.type), spec.description_of(f.name)] for f in spec.schema],
            )
        )
    sections.append(f"Schema version {SCHEMA_VERSION}. Columns are only ever added.")
    return "\n\n".join(section for section in sections if section) + "\n"


def simulated_rows(tables: Mapping[tuple[str, str], pa.Table]) -> tuple[int, int]:
    """Return (rows from a simulated teacher, rows) over all tables that say so."""
    made = total = 0
    for table in tables.values():
        if "simulated" in table.column_names:
            flags = table.column("simulated").to_pylist()
            made, total = made + sum(map(bool, flags)), total + len(flags)
    return made, total


def _simulated(tables: Mapping[tuple[str, str], pa.Table]) -> str:
    made, total = simulated_rows(tables)
    if not made:
        return ""
    return (
        f"> **Simulated.** {made} of {total} rows come from simulated teachers: scripts that"
        " answer over the real protocol, for demonstrations and tests. No model was asked."
        " Do not train a model for use on them."
    )


def _terms(pairs: Sequence[pa.Table]) -> str:
    """Return one line on pairs whose voters' terms are not known to allow training."""
    terms = Counter(
        value or "unknown"
        for table in pairs
        for value in (
            table.column("training_terms").to_pylist()
            if "training_terms" in table.column_names
            else [None] * table.num_rows
        )
    )
    bad = {name: count for name, count in sorted(terms.items()) if name not in _DISTILLABLE}
    if not bad:
        return ""
    counts = ", ".join(f"{count} `{name}`" for name, count in bad.items())
    return (
        f"> **Training terms.** {sum(bad.values())} of {terms.total()} pairs have a voter whose"
        f" author is not known to allow training on its outputs: {counts} (`training_terms`)."
    )


def _headlines(statistics: Sequence[Mapping[str, Any]]) -> str:
    """Return the section on quality; a number that could not be measured says why."""
    found = {(row["statistic"], row["a"], row["b"], row["tool"]): row for row in statistics}
    if not found:
        return ""

    def said(row: Mapping[str, Any] | None) -> tuple[str, str]:
        if row is None or row["value"] is None:
            note = str(row["note"] or "") if row else ""
            return note if note.startswith("not ") else f"not measured: {note or 'no data'}", "-"
        return f"{row['value']:.3f}", str(row["n"])

    counts = {name: found.get(("rows", name, "", "")) for name in ("voted", "consensus")}
    voted, consensus = (int(row["value"] or 0) if row else 0 for row in counts.values())
    agree = (f"{consensus / voted:.3f}", str(voted)) if voted else said(None)
    lines = [["agreement: states whose teachers, of two families or more, have a winner", *agree]]
    lines += [[what, *said(found.get((name, "", "", "")))] for name, what in _HEADLINES]
    return "## How good it is\n\n" + _table(["statistic", "value", "measured on"], lines)


def _counts(pairs: list[pa.Table]) -> str:
    def count(column: str) -> Counter[str]:
        values: Counter[str] = Counter()
        for table in pairs:
            for value in table.column(column).to_pylist():
                values.update(value if isinstance(value, list) else [str(value)])
        return values

    lines: list[list[str]] = []
    for title, column in (
        ("tier", "tier"),
        ("tool of the chosen action", "tool_chosen"),
        ("teacher in the winning cluster", "chosen_models"),
        ("agent's model", "rejected_model"),
        ("recipe", "recipe"),
    ):
        found = sorted(count(column).items(), key=lambda item: (-item[1], item[0]))[:12]
        lines.extend([title, f"`{name}`", str(number)] for name, number in found)
    days = sorted(count("day"))
    text = _table(["of the pairs", "value", "pairs"], lines)
    return f"{text}\n\nSessions of {days[0]} to {days[-1]}." if days else text


def _type(kind: pa.DataType) -> str:
    text = str(kind)
    return "list of JSON" if "arrow.json" in text else text


def _table(head: list[str], rows: list[list[Any]]) -> str:
    def line(cells: list[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *(line(row) for row in rows)])
