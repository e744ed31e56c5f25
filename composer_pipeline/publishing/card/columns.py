"""The columns of each configuration, from the lake's own descriptions.

Belongs here: the tables at the card's end. Does not belong here: what a column means
(``lake.tables``).
"""

from collections.abc import Iterator

import pyarrow as pa

from composer_pipeline.lake import SCHEMA_VERSION, TABLES
from composer_pipeline.markdown import code, table
from composer_pipeline.publishing.card.facts import Facts, configurations
from composer_pipeline.publishing.configs import CONFIGS

#: What a row of each configuration is.
WHAT = {
    "pairs": "a preference pair for DPO: `prompt`, `chosen`, `rejected`, `tools`",
    "pairs_8k": "a pair whose prompt was cut in whole turns to 8,192 tokens",
    "groups": "the recorded answers to one state, with their consensus, for GRPO rewards",
    "hints": "an error turn with what the trace says was wrong, for self-distillation",
    "sft": "the teachers' consensus at a state, where it agrees with the agent too",
    "successes": "an action of the agent that worked, where no teacher decided, for SFT",
    "replies": "an answer of one teacher, with tokens, cost and latency",
    "drops": "a row that was left out, and why",
}


def columns(facts: Facts) -> Iterator[str]:
    """Yield the tables of the configurations that have a row."""
    yield "## Columns"
    for config in configurations(facts):
        spec = TABLES[CONFIGS[config]]
        rows = [[code(f.name), _type(f.type), spec.description_of(f.name)] for f in spec.schema]
        body = table(["column", "type", "meaning"], rows)
        yield (
            f"<details><summary><b>{config}</b>: {len(rows)} columns</summary>\n\n"
            f"{spec.description}\n\n{body}\n\n</details>"
        )
    yield f"Schema version {SCHEMA_VERSION}. Columns are only ever added."


def _type(kind: pa.DataType) -> str:
    text = str(kind)
    if "arrow.json" in text:
        return "list of JSON"
    return "list of string" if pa.types.is_list(kind) else text
