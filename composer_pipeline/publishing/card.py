"""The dataset card: the numbers of a publication, counted and put into ``templates/card.md.j2``."""

import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from composer_pipeline.charts import bars, stacked_shares
from composer_pipeline.dataset.consent import AGENT, UNKNOWN, Consent
from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.dataset.manifest import Build, dataset_info
from composer_pipeline.dataset.splits import SPLITS
from composer_pipeline.lake.schema import SCHEMA_VERSION, TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import code, count, template
from composer_pipeline.preferences.quality import ALL
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.preferences.vote_rows import CONFIRMED
from composer_pipeline.training.models import SMOLLM2
from composer_pipeline.versions import REDACTION_VERSION

#: Upper bounds of the classes of prompt lengths, in tokens; the last class has none.
LENGTHS = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
#: Stands for a model that the session did not name.
NOT_RECORDED = "not recorded"
#: Terms under which the author of a model allows training on its outputs.
_TERMS_THAT_ALLOW = frozenset({"enforced", "declared"})

#: The chat template's path in the repository.
TEMPLATE = "chat_template.jinja"
#: The model of the code example where the dataset was not cut for a model of the Hub.
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
#: A text of the example pair is cut to this many characters.
_SHOWN = 700
#: The example pair is the one whose task and actions come closest to this many characters.
_EXAMPLE = 400

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_TAGS = ["dpo", "preference", "agent-traces", "tool-use", "trl", "datasets", "composer-pipeline"]
#: The card's fields where no consent file names a licence.
_NO_LICENCE = {"license": "other", "license_name": "not-stated", "license_link": "README.md"}

Row = dict[str, Any]
#: Statistics of the whole lake by (statistic, a, b, tool).
Statistics = Mapping[tuple[str, str, str, str], Mapping[str, Any]]


class Source(Protocol):
    """A local file of the publication."""

    @property
    def config(self) -> str:
        """Its configuration."""

    @property
    def split(self) -> str:
        """Its split."""

    @property
    def local(self) -> Path:
        """Its path on this disk."""


@dataclass
class TeacherAnswers:
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
        """Median length of an answer in tokens."""
        return median(self.tokens) if self.tokens else 0.0

    @property
    def median_latency_s(self) -> float:
        """Median time from sending to the last byte in seconds."""
        return median(self.latency_ms) / 1000 if self.latency_ms else 0.0

    @property
    def usd_per_1000(self) -> float:
        """Cost of 1,000 answers in US dollars."""
        return 1000 * self.cost_usd / self.answers


#: Columns of pairs whose values are counted.
_COUNTED = ("tier", "outcome", "recipe", "training_terms")


@dataclass
class Facts:
    """Everything that the card counts.

    ``rows`` is by (configuration, split). ``pairs`` counts the values of some columns of pairs.
    ``chosen`` maps (model, licence, terms) to the pairs it won. ``agents`` maps an agent's model
    to the rows of each configuration that hold an action of it. ``marked`` counts the rows that
    record whether a teacher was simulated, ``simulated`` those where one was. ``lengths`` counts
    prompts by class of :data:`LENGTHS`; it is empty without a tokenizer. ``followed`` counts the
    pairs whose rejected edit git knows, ``contested`` those where it kept it. ``traces`` counts
    files of whole sessions.
    """

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    pairs: dict[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter() for name in _COUNTED}
    )
    chosen: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    agents: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    teachers: dict[str, TeacherAnswers] = field(default_factory=dict)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    followed: int = 0
    contested: int = 0
    simulated: int = 0
    marked: int = 0
    days: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    repositories: set[str] = field(default_factory=set)
    sessions_of: dict[str, set[str]] = field(default_factory=dict)  # by agent
    traces: int = 0

    def of(self, config: str) -> int:
        """Return the rows of a configuration in all splits."""
        return sum(number for (name, _), number in self.rows.items() if name == config)


_ALWAYS = ("simulated", "day", "session_id", "repository", "agent")
_COLUMNS = {
    "pairs": (*_COUNTED, "chosen_models", "chosen_licenses", "chosen_terms", "rejected_model",
              "prompt_tokens", "kept", "contested"),
    "groups": ("sources", "models"),
    "hints": ("model",),
    "successes": ("model",),
    "kto": ("model",),
    "replies": ("teacher", "model", "license", "terms", "cost_usd", "completion_tokens",
                "latency_ms"),
    "drops": ("stage", "op"),
}  # fmt: skip


def facts_of(files: Iterable[Source]) -> Facts:
    """Count what the files of a publication hold."""
    facts = Facts()
    for file in files:
        parquet = pq.ParquetFile(file.local)
        facts.rows[file.config, file.split] += parquet.metadata.num_rows
        for row in _rows(parquet, (*_COLUMNS.get(file.config, ()), *_ALWAYS)):
            _count_origin(facts, row)
            _count(facts, file.config, row)
    return facts


def _rows(parquet: pq.ParquetFile, columns: Sequence[str]) -> Iterator[Row]:
    have = [name for name in columns if name in parquet.schema_arrow.names]
    for batch in parquet.iter_batches(batch_size=4096, columns=have):
        for row in batch.to_pylist():
            yield dict.fromkeys(columns) | row


def _count_origin(facts: Facts, row: Row) -> None:
    if row["simulated"] is not None:
        facts.marked += 1
        facts.simulated += row["simulated"]
    for name, values in (
        ("day", facts.days), ("session_id", facts.sessions), ("repository", facts.repositories),
    ):  # fmt: skip
        if row[name]:
            values.add(row[name])
    if row["agent"]:
        facts.sessions_of.setdefault(row["agent"], set()).add(row["session_id"])


def _count(facts: Facts, config: str, row: Row) -> None:
    match config:
        case "pairs":
            _count_pair(facts, row)
        case "groups":
            for source, model in zip(row["sources"] or (), row["models"] or (), strict=False):
                if source == AGENT:
                    facts.agents[model or NOT_RECORDED][config] += 1
        case "hints" | "successes" | "kto":
            facts.agents[row["model"] or NOT_RECORDED][config] += 1
        case "replies":
            _count_reply(facts, row)
        case "drops":
            facts.dropped[str(row["stage"]), str(row["op"])] += 1


def _count_pair(facts: Facts, row: Row) -> None:
    for name in _COUNTED:
        facts.pairs[name][str(row[name] or UNKNOWN)] += 1
    facts.followed += row["kept"] is not None
    facts.contested += bool(row["contested"])
    licences, terms = row["chosen_licenses"] or [], row["chosen_terms"] or []
    facts.chosen.update(
        {
            (model, licences[n] if n < len(licences) else "", terms[n] if n < len(terms) else "")
            for n, model in enumerate(row["chosen_models"] or [])
        }
    )
    facts.agents[row["rejected_model"] or NOT_RECORDED]["pairs"] += 1
    if row["prompt_tokens"] is not None:
        facts.lengths = facts.lengths or [0] * (len(LENGTHS) + 1)
        facts.lengths[bisect_right(LENGTHS, row["prompt_tokens"] - 1)] += 1


def _count_reply(facts: Facts, row: Row) -> None:
    teacher = facts.teachers.setdefault(row["teacher"], TeacherAnswers())
    teacher.model, teacher.license = row["model"], row["license"] or ""
    teacher.terms = row["terms"] or ""
    teacher.answers += 1
    teacher.cost_usd += row["cost_usd"] or 0.0
    if row["completion_tokens"] is not None:
        teacher.tokens.append(row["completion_tokens"])
    if row["latency_ms"] is not None:
        teacher.latency_ms.append(row["latency_ms"])


# -- the lake --------------------------------------------------------------------


def statistics_of(lake: Lake) -> Statistics:
    """Return the statistics of the whole lake by (statistic, a, b, tool)."""
    rows = lake.rows("preference_statistics", scope=ALL)
    return {(row["statistic"], row["a"], row["b"], row["tool"]): row for row in rows}


def votes_by_tool(lake: Lake) -> list[tuple[str, int, int, int]]:
    """Return (agent's tool, states voted on, where teachers side with the agent, pairs)."""
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
    """Count the redaction placeholders in the distinct messages of some days, by kind."""
    wanted = sorted(days)
    if not wanted or not lake.days("messages"):
        return {}
    marks = ", ".join("?" * len(wanted))
    sql = (
        "SELECT kind, count(*) FROM (SELECT unnest(regexp_extract_all(json,"
        r" '\[(SECRET_[A-Z0-9_]+|EMAIL|HOST|ACCOUNT|NAME|PHONE|NATIONAL_ID|CARD|IBAN)"
        r"_[0-9a-f]{4}\]', 1)) AS kind"
        f" FROM messages WHERE redactions > 0 AND day IN ({marks}))"
        " GROUP BY kind ORDER BY 2 DESC, kind"
    )
    return {str(kind).removeprefix("SECRET_"): n for kind, n in lake.query(sql, wanted)}


_FUNNEL = {
    "states": "states of the sessions",
    "voted": "answered by two families or more",
    "consensus": "with a consensus",
    "candidates": "where the agent did otherwise",
    "pairs": "pairs",
    "normalised": "left by the recipe",
}


def funnel(facts: Facts, statistics: Statistics) -> dict[str, int]:
    """Return how many states and pairs are left after each step, in order."""
    steps = {}
    for name, label in _FUNNEL.items():
        row = statistics.get(("rows", name, "", ""))
        if row and row["value"] is not None:
            steps[label] = int(row["value"])
    return steps | {"in this dataset": facts.of("pairs")}


# -- the card --------------------------------------------------------------------


def card_files(
    lake: Lake,
    repo: str,
    build: Build,
    files: Sequence[Source],
    *,
    facts: Facts | None = None,
    consent: Consent | None = None,
    review: Mapping[str, int] | None = None,
    look: Mapping[str, int] | str = "not made",
) -> dict[str, bytes]:
    """Return the card, its charts and the chat template by their paths in the repository.

    ``facts`` are those of :func:`facts_of`, where the caller has counted them already; ``review``
    and ``look`` count what is left for a person to judge and what a second scanner found, by kind.
    """
    facts = facts or facts_of(files)
    statistics = statistics_of(lake)
    votes = votes_by_tool(lake)[:12]
    steps = funnel(facts, statistics)
    lengths = dict(zip(_length_classes(), facts.lengths, strict=True)) if facts.lengths else {}
    teachers = dict(sorted(facts.teachers.items()))
    charts = {"assets/funnel.svg": bars(steps, total=next(iter(steps.values())))}
    if votes:
        counts = {tool: (same, pairs, voted - same - pairs) for tool, voted, same, pairs in votes}
        names = ("with the agent", "against it: a pair", "neither")
        charts["assets/agreement.svg"] = stacked_shares(names, counts)
    if lengths:
        charts["assets/lengths.svg"] = bars(lengths)
    if teachers:
        tokens = {name: t.median_tokens for name, t in teachers.items()}
        cost = {name: round(t.usd_per_1000, 4) for name, t in teachers.items()}
        charts["assets/tokens.svg"] = bars(tokens)
        charts["assets/cost.svg"] = bars(cost, unit=" $")
    found = {path: image.encode() for path, image in charts.items()}
    if chat_template := build.figures.get("chat_template"):
        found[TEMPLATE] = str(chat_template).encode()
    tokenizer = str(build.figures.get("tokenizer") or "")
    model, counted_by = _model(tokenizer)
    terms = facts.pairs["training_terms"]
    card = template("composer_pipeline.publishing", "card.md.j2").render(
        repo=repo, build=build, facts=facts, consent=consent, review=review, look=look, steps=steps,
        votes=votes,
        lengths=lengths, teachers=teachers, statistics=statistics_table(statistics),
        front=_front_matter(repo, build, facts, consent), configs=_configurations(facts),
        model=model, counted_by=counted_by, example=_example(files), CONTENTS=CONTENTS,
        SPLITS=SPLITS, TIERS=_TIERS, OUTCOMES=_OUTCOMES, ACTIONS=_ACTIONS, TEMPLATE=TEMPLATE,
        NOT_RECORDED=NOT_RECORDED, UNKNOWN=UNKNOWN,
        wins={name: n for (name, _, _), n in facts.chosen.items()},
        agents=sorted(facts.agents.items(), key=lambda item: (-item[1].total(), item[0])),
        silent=sorted({*facts.agents} - {*(consent.agent_models if consent else ())}
                      - {NOT_RECORDED}),
        pairs_with_terms=terms.total(),
        forbidden={n: terms[n] for n in sorted(terms) if n not in _TERMS_THAT_ALLOW},
        split=build.figures.get("split") or {},
        validation_share=float(build.figures.get("validation_share") or 0),
        placeholders=placeholders(lake, facts.days), redaction_version=REDACTION_VERSION,
        schema_version=SCHEMA_VERSION, made_by=_version(), columns=_columns(facts),
        day=max(facts.days, default="no day").replace("-", "."),
    )  # fmt: skip
    found["README.md"] = card.encode()
    return found


def size_category(rows: int) -> str:
    """Return the Hub's size category of a number of rows."""
    return next((name for bound, name in _SIZES if rows < bound), "1M<n<10M")


def _front_matter(repo: str, build: Build, facts: Facts, consent: Consent | None) -> str:
    """Return the YAML before the card, from which the Hub and ``load_dataset`` read."""
    front = {
        **(consent.card_fields if consent else _NO_LICENCE),
        "language": ["en", "code"],
        "pretty_name": repo.split("/")[1],
        "size_categories": [size_category(facts.of("pairs"))],
        "task_categories": ["text-generation"],
        "tags": _TAGS + (["simulated"] if facts.simulated else []),
        "configs": [
            {
                "config_name": config,
                **({"default": True} if config == "pairs" else {}),
                "data_files": [
                    {"split": split, "path": _path(build, config, split)}
                    for split in SPLITS
                    if facts.rows[config, split]
                ],
            }
            for config in _configurations(facts)
        ],
        "dataset_info": dataset_info(build),
    }
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True)


def _path(build: Build, config: str, split: str) -> str:
    """Return the path of a split's file, or the pattern of its several files."""
    paths = [f.path for f in build.files if (f.config, f.split) == (config, split)]
    return paths[0] if len(paths) == 1 else f"data/{config}/{split}-*.parquet"


def _configurations(facts: Facts) -> list[str]:
    return [config for config in CONFIGS if facts.of(config)]


def _length_classes() -> list[str]:
    return [*(f"to {bound:,}" for bound in LENGTHS), f"above {LENGTHS[-1]:,}"]


def _model(tokenizer: str) -> tuple[str, str]:
    """Return the model of the code example, and whose tokens were counted; never a local path."""
    if tokenizer == SMOLLM2:
        return MODEL, f"the tokenizer of {code(MODEL)}"
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", tokenizer) and not Path(tokenizer).exists():
        return tokenizer, f"the tokenizer of {code(tokenizer)}"
    return MODEL, "a tokenizer of the publisher's own"


_TEXTS = ("task", "chosen_text", "rejected_text")


def _example(files: Iterable[Source]) -> Row | None:
    """Return the pair that shows best what pairs are: gold, two tools, of medium length."""
    columns = [*_TEXTS, "chosen_models", "rejected_model", "tier", "turn", "n_agree", "n_families",
               "outcome", "pair_id", "tool_chosen", "tool_rejected"]  # fmt: skip
    rows = (
        row
        for file in files
        if (file.config, file.split) == ("pairs", "train")
        for row in _rows(pq.ParquetFile(file.local), columns)
    )
    best = min(rows, key=_dullness, default=None)
    return best and best | {name: _cut(best[name] or "") for name in _TEXTS}


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


def _dullness(row: Row) -> tuple[Any, ...]:
    size = sum(len(row[name] or "") for name in _TEXTS)
    return (
        row["tier"] != "gold",
        row["tool_chosen"] == row["tool_rejected"],
        row["outcome"] != "student_bad",
        abs(size - _EXAMPLE),
        row["pair_id"],
    )


_TIERS = {
    "gold": "the teachers' actions have the same effect, and the agent's is not even similar",
    "silver": "the teachers agree less exactly, or the agent's action is similar and changes"
    " something else",
    "fixup": "the agent's edit against the same edit with its own later fix folded in; the check"
    " that failed passes behind it",
    "recovery": "a call that was a mistake against the agent's own later call that worked",
    "hindsight": "the agent's edit against the same edit as it was committed, before the user said"
    " more",
}
_OUTCOMES = {
    "student_bad": "the agent's action failed, was corrected or undone",
    "student_ok": "the tests that the agent's action ran passed",
    "unknown": "nothing",
}
_ACTIONS = {
    "pairs": "`rejected` of pairs",
    "groups": "candidates of groups",
    "hints": "`action` of hints",
    "successes": "`action` of successes",
    "kto": "`action` of kto",
}
#: What a row of each configuration is.
CONTENTS = {
    "pairs": "a preference pair for DPO: `prompt`, `chosen`, `rejected`, `tools`",
    "pairs_8k": "a pair whose prompt was cut in whole turns to 8,192 tokens",
    "groups": "the recorded answers to one state, with their consensus, for GRPO rewards",
    "hints": "an action that caused an error, with what the trace says was wrong, for"
    " self-distillation",
    "sft": "the teachers' consensus at a state, where it agrees with the agent too",
    "successes": "an action of the agent that worked, where no teacher decided, for SFT",
    "kto": "an edit of the agent and whether people kept it, from git, for unpaired training",
    "replies": "an answer of one teacher, with tokens, cost and latency",
    "drops": "a row that was left out, and why",
}


def statistics_table(statistics: Statistics) -> list[list[str]]:
    """Return (statistic, value, measured on, meaning); nothing without statistics."""
    bound = PreferenceRules().separability.max_auc
    meanings = {
        "krippendorff_alpha": (
            "Krippendorff's alpha of the teachers' votes",
            "1 is full agreement, 0 is chance; below 0.667 not even tentative conclusions",
        ),
        "separability_auc": (
            "Separability",
            "AUC of a classifier that sees only style, such as length; 0.5 is chance, above"
            f" {bound:g} a model may learn the style",
        ),
        "resample_disagreement": (
            "Noise floor",
            "how often the agent's own family, asked again, does otherwise",
        ),
        "excess_disagreement": (
            "Excess disagreement",
            "how much more often teachers differ from the agent than that",
        ),
    }
    if not statistics:
        return []
    return [
        [name, *measured(statistics, key), meaning] for key, (name, meaning) in meanings.items()
    ]


def measured(statistics: Statistics, key: str) -> tuple[str, str]:
    """Return a statistic's value and what it was measured on, or why it could not be measured."""
    row = statistics.get((key, "", "", ""))
    if row is not None and row["value"] is not None:
        return f"{row['value']:.3f}", count(row["n"])
    note = str(row["note"] or "") if row else ""
    return note if note.startswith("not ") else f"not measured: {note or 'no data'}", "-"


def _columns(facts: Facts) -> dict[str, tuple[str, list[list[str]]]]:
    """Return the description and the columns of each configuration that has a row."""
    specs = {config: TABLES[CONFIGS[config]] for config in _configurations(facts)}
    return {
        config: (
            spec.description,
            [[code(f.name), _type(f.type), spec.description_of(f.name)] for f in spec.schema],
        )
        for config, spec in specs.items()
    }


def _type(kind: pa.DataType) -> str:
    if "arrow.json" in str(kind):
        return "list of JSON"
    return "list of string" if pa.types.is_list(kind) else str(kind)


def _version() -> str:
    try:
        return version("composer-pipeline")
    except PackageNotFoundError:
        return "from a checkout"


# -- what stays of the repository's former card -------------------------------------

_VERSIONS, _VERSIONS_END = "<!-- versions -->", "<!-- /versions -->"
_BUILD = re.compile(r"build `([0-9a-f]+)`")
BEGIN = "<!-- what you write below this line stays -->"
END = "<!-- what you write above this line stays -->"


def with_history(new: str, old: str) -> str:
    """Return the new card with the versions of the old one below its own.

    Each build is listed once, so that the same data give the same card again.
    """
    own = _version_lines(new)
    known = {name for line in own for name in _BUILD.findall(line)}
    older = [line for line in _version_lines(old) if not known & set(_BUILD.findall(line))]
    head, _, rest = new.partition(_VERSIONS)
    _, _, tail = rest.partition(_VERSIONS_END)
    if not own:
        return new
    return f"{head}{_VERSIONS}\n" + "\n".join([*own, *older]) + f"\n{_VERSIONS_END}{tail}"


def _version_lines(card: str) -> list[str]:
    _, _, rest = card.partition(_VERSIONS)
    inside, found, _ = rest.partition(_VERSIONS_END)
    return [line for line in inside.splitlines() if line.startswith("* ")] if found else []


def keep_text(new: str, old: str) -> str:
    """Return the new card with the text that people wrote into the old one."""
    if BEGIN not in new:
        new = f"{new.rstrip()}\n\n{BEGIN}\n{END}\n"
    head, rest = new.split(BEGIN, 1)
    inside, tail = rest.split(END, 1)
    theirs = old.split(BEGIN, 1)[1].split(END, 1)[0] if BEGIN in old and END in old else ""
    return f"{head}{BEGIN}{theirs if theirs.strip() else inside}{END}{tail}"
