"""What the published files and the lake say, as numbers for the card.

Belongs here: counting, a few columns at a time. Does not belong here: words and pictures.
"""

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.dataset.consent import AGENT, UNKNOWN, Consent
from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.dataset.manifest import Build
from composer_pipeline.lake.schema import SCHEMA_VERSION, TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import code, count, dollars, fenced, image, share, table
from composer_pipeline.preferences.quality import ALL
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.preferences.vote_rows import CONFIRMED
from composer_pipeline.versions import REDACTION_VERSION

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


Statistics = Mapping[tuple[str, str, str, str], Mapping[str, Any]]

_TIERS = {
    "gold": "the teachers' actions have the same effect, and the agent's is not even similar",
    "silver": "the teachers agree less exactly, or the agent's action is similar and changes"
    " something else",
}
_OUTCOMES = {
    "student_bad": "the agent's action failed, was corrected or undone",
    "student_ok": "the tests that the agent's action ran passed",
    "unknown": "nothing",
}


def quality(
    facts: Facts,
    steps: Mapping[str, int],
    votes: Sequence[tuple[str, int, int, int]],
    statistics: Statistics,
) -> Iterator[str]:
    """Yield the sections on quality.

    Args:
        facts: the numbers of the files.
        steps: what is left after each step, in order.
        votes: (tool, states voted on, where teachers side with the agent, that are pairs).
        statistics: of the whole lake.
    """
    yield "## From sessions to pairs"
    first = next(iter(steps.values()))
    rows = [[name, count(number), share(number, first)] for name, number in steps.items()]
    yield table(["step", "left", "of the first"], rows)
    if dropped := facts.dropped.most_common(8):
        lines = [[stage, code(why), count(number)] for (stage, why), number in dropped]
        yield "What was left out is in `drops`, with its reason; the commonest are:"
        yield table(["stage", "reason", "rows"], lines)
    yield "## How good it is"
    yield from _by_tool(votes)
    yield from _tiers(facts)
    yield from _headlines(statistics)
    yield from _lengths(facts)


def _by_tool(votes: Sequence[tuple[str, int, int, int]]) -> Iterator[str]:
    if not votes:
        return
    yield "**Agreement by the agent's tool**, at states that two families or more answered."
    yield image("assets/agreement.png", "Agreement by tool; the numbers are in the table below")
    yield table(
        ["tool", "states", "with the agent", "against it: a pair", "neither"],
        [
            [
                code(tool),
                count(voted),
                share(same, voted),
                share(pairs, voted),
                share(voted - same - pairs, voted),
            ]
            for tool, voted, same, pairs in votes
        ],
    )


def _tiers(facts: Facts) -> Iterator[str]:
    tiers, total = facts.pairs["tier"], facts.of("pairs")
    yield "**What a pair rests on.**"
    yield table(
        ["`tier`", "pairs", "share", "means"],
        [
            [code(tier), count(tiers[tier]), share(tiers[tier], total), means]
            for tier, means in _TIERS.items()
        ],
    )
    yield table(
        ["`outcome`", "pairs", "what the trace says of the rejected action"],
        [
            [code(name), count(facts.pairs["outcome"][name]), means]
            for name, means in _OUTCOMES.items()
        ],
    )


def _headlines(statistics: Statistics) -> Iterator[str]:
    bound = PreferenceRules().separability.max_auc
    lines = [
        (
            "Krippendorff's alpha of the teachers' votes", "krippendorff_alpha",
            "1 is full agreement, 0 is chance; below 0.667 not even tentative conclusions",
        ),
        (
            "Separability", "separability_auc",
            f"AUC of a classifier that sees only style, such as length; 0.5 is chance, above"
            f" {bound:g} a model may learn the style",
        ),
        (
            "Noise floor", "resample_disagreement",
            "how often the agent's own family, asked again, does otherwise",
        ),
        (
            "Excess disagreement", "excess_disagreement",
            "how much more often teachers differ from the agent than that",
        ),
    ]  # fmt: skip
    if not statistics:
        return
    yield table(
        ["statistic", "value", "measured on", "means"],
        [[name, *_said(statistics.get((key, "", "", ""))), means] for name, key, means in lines],
    )


def _said(row: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return a value and what it was measured on; one that could not be measured says why."""
    if row is None or row["value"] is None:
        note = str(row["note"] or "") if row else ""
        return note if note.startswith("not ") else f"not measured: {note or 'no data'}", "-"
    return f"{row['value']:.3f}", count(row["n"])


def _lengths(facts: Facts) -> Iterator[str]:
    if not facts.lengths:
        return
    yield "**Lengths.** Tokens of prompt and tools of the pairs:"
    yield image("assets/lengths.png", "Lengths of prompts; the numbers are in the table below")
    total, done, rows = sum(facts.lengths), 0, []
    for name, number in zip(length_classes(), facts.lengths, strict=True):
        done += number
        rows.append([name, count(number), share(done, total)])
    yield table(["tokens", "pairs", "fit so far"], rows)


def length_classes() -> list[str]:
    """Return the names of the classes of lengths, the last for all that are longer."""
    names = [f"to {count(bound)}" for bound in LENGTHS]
    return [*names, f"above {count(LENGTHS[-1])}"]


def making(facts: Facts) -> Iterator[str]:
    """Yield how pairs were made, and the recipe."""
    yield "## How pairs were made"
    yield (
        "1. Sessions are parsed into states: what the agent saw, and what it did next.\n"
        "2. Text is redacted before it is stored, and before a teacher sees it.\n"
        "3. Teachers of different model families answer each state. Answers that do the same"
        " thing, by a graded comparison of tool calls, form a cluster; a family has one vote.\n"
        "4. The largest cluster with at least two families is the consensus. The agent's own"
        " action is no vote.\n"
        "5. A data-juicer recipe filters the pairs. Repeats of (prompt, chosen, rejected) are"
        " removed."
    )
    yield (
        "Actions are rendered alone: a response with tool calls has no text, so a pair compares"
        " what was done and not how it was announced."
    )
    recipes = facts.pairs["recipe"]
    yield table(
        ["`recipe` of data-juicer", "pairs"],
        [[code(name), count(number)] for name, number in sorted(recipes.items())],
    )


def splits(build: Build) -> Iterator[str]:
    """Yield what validation means."""
    yield "## Splits"
    kept = float(build.figures.get("validation_share") or 0)
    found: Mapping[str, Any] = build.figures.get("split") or {}
    groups = (
        f" {count(found['groups'])} groups from {count(found['repositories'])} repositories;"
        if found
        else ""
    )
    yield (
        f"Rows are split by {found.get('by', 'session')}, a group at a time:{groups} {kept:.0%} of"
        " the groups were meant for validation. Sessions that continue each other, share records or"
        " a first prompt, or have an identical state prompt are one group; a group is in one split"
        " only. Before publishing it was checked that no group, session or prompt is in both."
    )
    if found.get("by") == "session":
        yield (
            "With fewer than five repositories, one can be on both sides: validation then says how"
            " a model does on further sessions of the same work, not on other code."
        )
    if found.get("validation_rows"):
        yield table(
            ["of the pairs in validation", "share"],
            [
                ["have a repository that is in train too", f"{found['repository_in_train']:.1%}"],
                [
                    "hold a message of 120 characters or more that stands word for word in train",
                    f"{found['verbatim_in_train']:.1%}",
                ],
            ],
        )


def privacy(found: Mapping[str, int]) -> Iterator[str]:
    """Yield what redaction did.

    Args:
        found: placeholders in the messages, by kind.
    """
    yield "## Privacy"
    yield (
        f"Redaction rules (version {REDACTION_VERSION}) replace keys and tokens of known shapes,"
        " values assigned to telling names, passwords in URLs and commands, e-mail addresses,"
        " host names, accounts and names of people in structured places by stable placeholders,"
        " and home folders and user names by `user`. Everything in this repository, this card"
        " included, was scanned again with the same rules before it left, and nothing was found."
    )
    if found:
        rows = [[code(kind), count(number)] for kind, number in found.items()]
        yield "Placeholders in the distinct messages of the days that the rows are of:"
        yield table(["kind", "placeholders"], rows)
    else:
        yield "The messages of the days that the rows are of hold no placeholder."
    yield (
        "Not covered: names of people in prose, postal and IP addresses, telephone numbers, and"
        " secrets without a known shape or a telling name."
    )


def consenting(consent: Consent | None, facts: Facts) -> Iterator[str]:
    """Yield whose sessions these are, under which licence, and whom to ask for a withdrawal.

    Args:
        consent: what the owner of the sessions attested; ``None`` for a release without it.
        facts: the numbers of the files, for the agent's models.
    """
    yield "## Licence, consent, contact"
    if consent is None:
        yield (
            "No consent file came with this release, so it names no licence: the sessions belong"
            " to those who wrote them, and the terms of the models above apply to their words."
            " Do not pass it on."
        )
        return
    name = consent.license_name or consent.license
    licence = f"[{name}]({consent.license_link})" if consent.license_link else code(name)
    yield (
        f"{consent.attested_by} attests that the sessions of the repositories in this dataset may"
        f" be published under {licence}. The terms of the models above apply to their words."
    )
    if consent.agent_models:
        named = ", ".join(code(model) for model in sorted(consent.agent_models))
        yield f"That prompts and rejected actions repeat words of {named} was acknowledged by name."
    if silent := sorted(set(facts.agents) - set(consent.agent_models) - {NOT_RECORDED}):
        yield f"Not acknowledged: {', '.join(map(code, silent))}."
    yield (
        f"To have a session taken out, ask: {consent.contact}. A withdrawn session leaves every"
        " later version, and the earlier ones are removed."
    )


def limits() -> Iterator[str]:
    """Yield what the data cannot do."""
    yield "## Limits"
    yield (
        "* Agreement is not correctness: teachers can share a mistake.\n"
        "* Nothing was executed to check an action; what the trace says of one is about the"
        " agent's, not about the teachers'.\n"
        "* Session files rarely hold the system prompt and the tool schemas. Where they did not,"
        " neutral ones stand for them: prompts are then close to what the agent saw, not equal.\n"
        "* Thinking is left out on both sides."
    )


def citation(repo: str, build: Build, facts: Facts) -> Iterator[str]:
    """Yield what to cite, and the program and build that made this.

    Args:
        repo: ``owner/name``.
        build: the build of the dataset.
        facts: the numbers of the files.
    """
    key = repo.replace("/", "-").lower()
    year = max(facts.days, default="")[:4]
    entry = "\n".join(
        [
            f"@misc{{{key},",
            f"  title = {{{repo}: preference pairs for coding agents}},",
            f"  author = {{{repo.split('/')[0]}}},",
            *([f"  year = {{{year}}},"] if year else []),
            f"  howpublished = {{\\url{{https://huggingface.co/datasets/{repo}}}}},",
            f"  note = {{build {build.id}}},",
            "}",
        ]
    )
    yield f"## Citation\n\n{fenced(entry, 'bibtex')}"
    yield (
        f"Made by composer-pipeline {_version()}, build `{build.id}`: the same sessions, answers"
        " and recipes give the same files, byte for byte."
    )


def _version() -> str:
    try:
        return version("composer-pipeline")
    except PackageNotFoundError:
        return "from a checkout"


#: Terms under which the author of a model allows training on its outputs.
_ALLOWED = frozenset({"enforced", "declared"})
_ACTIONS = {
    "pairs": "`rejected` of pairs",
    "groups": "candidates of groups",
    "hints": "`action` of hints",
    "successes": "`action` of successes",
}


def models(facts: Facts) -> Iterator[str]:
    """Yield the section on models."""
    yield "## Models and their terms"
    wins = {model: n for (model, _, _), n in facts.chosen.items()}
    teachers = sorted(facts.teachers.items())
    if teachers:
        yield "**Teachers** wrote `chosen`, the other candidates and `replies`."
        yield table(
            ["teacher", "model", "licence", "training terms", "answers", "pairs won"],
            [
                [name, code(t.model), t.license or NOT_RECORDED, code(t.terms or UNKNOWN),
                 count(t.answers), count(wins.get(t.model, 0))]
                for name, t in teachers
            ],
        )  # fmt: skip
    else:
        yield table(
            ["model in `chosen`", "licence", "training terms", "pairs won"],
            [
                [code(model), licence or NOT_RECORDED, code(terms or UNKNOWN), count(number)]
                for (model, licence, terms), number in sorted(facts.chosen.items())
            ],
        )
    terms = facts.pairs["training_terms"]
    if bad := {name: n for name, n in sorted(terms.items()) if name not in _ALLOWED}:
        counts = ", ".join(f"{count(n)} {code(name)}" for name, n in bad.items())
        yield (
            f"> **Training terms.** {count(sum(bad.values()))} of {count(terms.total())} pairs have"
            " a voter whose author is not known to allow training on its outputs:"
            f" {counts} (`training_terms`)."
        )
    yield (
        "`enforced`: only models whose author allows training on their outputs were asked."
        " `declared`: the catalogue says so, and nobody enforced it. Answers under other terms"
        " are in no configuration unless the recipe accepted them by name."
    )
    yield (
        "**The agent's own models** wrote `rejected`, `action`, one candidate of each group, and"
        " the assistant's turns in every prompt. Their authors' terms apply to those words:"
    )
    yield table(
        ["agent's model", *_ACTIONS.values()],
        [
            [code(model), *(count(found[config]) for config in _ACTIONS)]
            for model, found in sorted(facts.agents.items(), key=lambda i: (-i[1].total(), i[0]))
        ],
    )
    if teachers:
        yield "**Length and cost by teacher.**"
        yield image("assets/teachers.png", "Answers by teacher; the numbers are in the table below")
        yield table(
            ["teacher", "answers", "median tokens", "median seconds", "cost", "1,000 answers"],
            [
                [name, count(t.answers), f"{t.median_tokens:,.0f}", f"{t.median_latency_s:.2g}",
                 dollars(t.cost_usd), dollars(1000 * t.cost_usd / t.answers)]
                for name, t in teachers
            ],
        )  # fmt: skip
        total = sum(t.cost_usd for _, t in teachers)
        yield f"The answers in this dataset were billed {dollars(total)} in all."


BEGIN, END = "<!-- versions -->", "<!-- /versions -->"
_BUILD = re.compile(r"build `([0-9a-f]+)`")


def versions(build: Build, facts: Facts) -> Iterator[str]:
    """Yield the section, with this version alone; :func:`with_history` adds the others."""
    day = max(facts.days, default="no day").replace("-", ".")
    rows = ", ".join(f"{count(facts.of(config))} {config}" for config in configurations(facts))
    yield f"## Versions\n\n{BEGIN}\n* **{day}**, build `{build.id}`: {rows}\n{END}"


def with_history(new: str, old: str) -> str:
    """Return a new card with the versions that the old one names below its own.

    A build is named once, so the same data give the same card again.

    Args:
        new: the card of this publication.
        old: the card that the repository has, or an empty text.
    """
    own = _lines(new)
    known = {name for line in own for name in _BUILD.findall(line)}
    older = [line for line in _lines(old) if not known & set(_BUILD.findall(line))]
    head, _, rest = new.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n" + "\n".join([*own, *older]) + f"\n{END}{tail}" if own else new


def _lines(card: str) -> list[str]:
    _, _, rest = card.partition(BEGIN)
    inside, found, _ = rest.partition(END)
    return [line for line in inside.splitlines() if line.startswith("* ")] if found else []


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
