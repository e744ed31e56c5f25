"""What the published files and the lake say, as numbers for the card.

Belongs here: counting, a few columns at a time. Does not belong here: words and pictures.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import pyarrow.parquet as pq

from composer_pipeline.lake import Lake
from composer_pipeline.preferences.agreement import CONFIRMED
from composer_pipeline.preferences.quality import ALL
from composer_pipeline.publishing.configs import CONFIGS
from composer_pipeline.publishing.terms import AGENT, UNKNOWN

#: Upper ends of the classes of prompt lengths, in tokens; the last class has none.
LENGTHS = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)

#: What stands for a model that the session did not name.
NOT_RECORDED = "not recorded"

Row = dict[str, Any]


class Source(Protocol):
    """A file of the publication on this disk, and what it is."""

    @property
    def config(self) -> str:
        """Its configuration."""

    @property
    def split(self) -> str:
        """Its split."""

    @property
    def local(self) -> Path:
        """Where it is."""


@dataclass
class Teacher:
    """One teacher's answers in the dataset."""

    model: str = ""
    license: str = ""
    terms: str = ""
    answers: int = 0
    cost_usd: float = 0.0
    tokens: "array[int]" = field(default_factory=lambda: array("q"))
    latency_ms: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def median_tokens(self) -> float:
        """Median length of an answer, tokens."""
        return median(self.tokens) if self.tokens else 0.0

    @property
    def median_latency_s(self) -> float:
        """Median time from sending to the last byte, seconds."""
        return median(self.latency_ms) / 1000 if self.latency_ms else 0.0


@dataclass
class Facts:
    """Everything that the card counts.

    ``rows`` is by (configuration, split). ``pairs`` counts the values of some columns of pairs.
    ``chosen`` maps (model, licence, terms) to the pairs it won in. ``agents`` maps an agent's
    model to the rows of each configuration that hold an action of it. ``simulated`` and
    ``marked`` count rows from simulated teachers, and rows that say whether they are.
    ``lengths`` counts prompts by class of :data:`LENGTHS`; empty without a tokenizer. ``traces``
    counts the files of whole sessions.
    """

    rows: dict[tuple[str, str], int] = field(default_factory=dict)
    pairs: dict[str, Counter[str]] = field(default_factory=dict)
    chosen: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    agents: dict[str, Counter[str]] = field(default_factory=dict)
    teachers: dict[str, Teacher] = field(default_factory=dict)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    simulated: int = 0
    marked: int = 0
    days: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    repositories: set[str] = field(default_factory=set)
    traces: int = 0

    def of(self, config: str) -> int:
        """Return the rows of a configuration, all splits."""
        return sum(count for (name, _), count in self.rows.items() if name == config)


#: Columns of pairs whose values are counted.
_COUNTED = ("tier", "outcome", "recipe", "training_terms")


def facts_of(files: Iterable[Source]) -> Facts:
    """Return what the files of a publication say."""
    facts = Facts(pairs={name: Counter() for name in _COUNTED})
    for file in files:
        parquet = pq.ParquetFile(file.local)
        key = (file.config, file.split)  # a large split has several files
        facts.rows[key] = facts.rows.get(key, 0) + parquet.metadata.num_rows
        for row in _rows(parquet, _WANTED.get(file.config, ()) + _EVERY):
            _every(facts, row)
            if file.config in _READ:
                _READ[file.config](facts, row)
    return facts


_EVERY = ("simulated", "day", "session_id", "repository")


def _every(facts: Facts, row: Row) -> None:
    if row.get("simulated") is not None:
        facts.marked += 1
        facts.simulated += row["simulated"]
    for name, found in (
        ("day", facts.days), ("session_id", facts.sessions), ("repository", facts.repositories),
    ):  # fmt: skip
        if row.get(name):
            found.add(row[name])


def _pair(facts: Facts, row: Row) -> None:
    for name in _COUNTED:
        facts.pairs[name][str(row[name] or UNKNOWN)] += 1
    models, licences = row["chosen_models"] or [], row["chosen_licenses"] or []
    terms = row["chosen_terms"] or []
    voters = {
        (model, licences[n] if n < len(licences) else "", terms[n] if n < len(terms) else "")
        for n, model in enumerate(models)
    }
    facts.chosen.update(voters)
    _agent(facts, "pairs", row["rejected_model"])
    if row["prompt_tokens"] is not None:
        facts.lengths = facts.lengths or [0] * (len(LENGTHS) + 1)
        facts.lengths[bisect_right(LENGTHS, row["prompt_tokens"] - 1)] += 1


def _group(facts: Facts, row: Row) -> None:
    for source, model in zip(row["sources"] or (), row["models"] or (), strict=False):
        if source == AGENT:
            _agent(facts, "groups", model)


def _hint(facts: Facts, row: Row) -> None:
    _agent(facts, "hints", row["model"])


def _success(facts: Facts, row: Row) -> None:
    _agent(facts, "successes", row["model"])


def _reply(facts: Facts, row: Row) -> None:
    teacher = facts.teachers.setdefault(row["teacher"], Teacher())
    teacher.model, teacher.license = row["model"], row["license"] or ""
    teacher.terms = row["terms"] or ""
    teacher.answers += 1
    teacher.cost_usd += row["cost_usd"] or 0.0
    if row["completion_tokens"] is not None:
        teacher.tokens.append(row["completion_tokens"])
    if row["latency_ms"] is not None:
        teacher.latency_ms.append(row["latency_ms"])


def _drop(facts: Facts, row: Row) -> None:
    facts.dropped[str(row["stage"]), str(row["op"])] += 1


_READ = {"pairs": _pair, "groups": _group, "hints": _hint, "successes": _success,
         "replies": _reply, "drops": _drop}  # fmt: skip
_WANTED = {
    "pairs": (*_COUNTED, "chosen_models", "chosen_licenses", "chosen_terms", "rejected_model",
              "prompt_tokens"),
    "groups": ("sources", "models"),
    "hints": ("model",),
    "successes": ("model",),
    "replies": ("teacher", "model", "license", "terms", "cost_usd", "completion_tokens",
                "latency_ms"),
    "drops": ("stage", "op"),
}  # fmt: skip


def _agent(facts: Facts, config: str, model: str | None) -> None:
    facts.agents.setdefault(model or NOT_RECORDED, Counter())[config] += 1


def _rows(parquet: pq.ParquetFile, columns: Sequence[str]) -> Iterator[Row]:
    have = [name for name in columns if name in parquet.schema_arrow.names]
    for batch in parquet.iter_batches(batch_size=4096, columns=have):
        for row in batch.to_pylist():
            yield dict.fromkeys(columns) | row


# -- the lake --------------------------------------------------------------------


def statistics_of(lake: Lake) -> dict[tuple[str, str, str, str], Row]:
    """Return the statistics of the whole lake by (statistic, a, b, tool)."""
    rows = lake.rows("preference_statistics", scope=ALL)
    return {(row["statistic"], row["a"], row["b"], row["tool"]): row for row in rows}


def votes_by_tool(lake: Lake) -> list[tuple[str, int, int, int]]:
    """Return (tool of the agent, states voted on, where teachers side with it, that are pairs)."""
    if not lake.days("votes"):
        return []
    sql = (
        f"SELECT tool, count(*), count(*) FILTER (reason IN ({', '.join('?' * len(CONFIRMED))})),"
        " count(*) FILTER (reason = 'pair')"
        " FROM votes WHERE n_families >= 2 GROUP BY tool ORDER BY 2 DESC, tool"
    )
    found = lake.query(sql, sorted(CONFIRMED))
    return [(str(tool), voted, same, pairs) for tool, voted, same, pairs in found]


def placeholders(lake: Lake, days: Iterable[str]) -> dict[str, int]:
    """Return how often each kind of placeholder stands in the distinct messages of some days."""
    wanted = sorted(days)
    if not wanted or not lake.days("messages"):
        return {}
    marks = ", ".join("?" * len(wanted))
    sql = (
        "SELECT kind, count(*) FROM (SELECT unnest(regexp_extract_all(json,"
        r" '\[(SECRET_[A-Z0-9_]+|EMAIL|HOST|ACCOUNT|NAME)_[0-9a-f]{4}\]', 1)) AS kind"
        f" FROM messages WHERE redactions > 0 AND day IN ({marks}))"
        " GROUP BY kind ORDER BY 2 DESC, kind"
    )
    return {str(kind).removeprefix("SECRET_"): n for kind, n in lake.query(sql, wanted)}


def funnel(facts: Facts, statistics: Mapping[tuple[str, str, str, str], Row]) -> dict[str, int]:
    """Return how many states and pairs are left after each step, in order."""
    steps = {
        "states of the sessions": "states",
        "answered by two families or more": "voted",
        "with a consensus": "consensus",
        "where the agent did otherwise": "candidates",
        "pairs": "pairs",
        "left by the recipe": "normalised",
    }
    found = {}
    for said, name in steps.items():
        row = statistics.get(("rows", name, "", ""))
        if row and row["value"] is not None:
            found[said] = int(row["value"])
    return found | {"in this dataset": facts.of("pairs")}


def configurations(facts: Facts) -> list[str]:
    """Return the configurations that have a row, in their order."""
    return [config for config in CONFIGS if facts.of(config)]
