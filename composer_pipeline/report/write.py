"""The HTML report of a dataset version: its numbers, its runs and some of its pairs.

The same lake and runs give the same bytes; nothing depends on the clock or the machine.
"""

import hashlib
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from composer_pipeline import __version__
from composer_pipeline.charts import bars, heatmap, intervals, stacked_shares
from composer_pipeline.dataset.manifest import Build, check_statistics, read_build
from composer_pipeline.diloco.views import read_timeline
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.evaluate import TRAINED
from composer_pipeline.evaluation.report import HEAD, cells_of, pictures
from composer_pipeline.evaluation.report import table as cells_table
from composer_pipeline.files import replace
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.store import Lake, remember_exports
from composer_pipeline.markdown import count, dollars, share
from composer_pipeline.preferences.rules import Separability
from composer_pipeline.preferences.vote_rows import AGENT, REASONS
from composer_pipeline.publishing.card import (
    Facts,
    Source,
    Statistics,
    facts_of,
    funnel,
    statistics_of,
    statistics_table,
    votes_by_tool,
)
from composer_pipeline.publishing.publish import take_files
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.load import failure_chains
from composer_pipeline.states.previews import cut, printable
from composer_pipeline.survival.judge import judge_outcomes
from composer_pipeline.teachers.ledger.ledger import budget_report, ledger_target
from composer_pipeline.training.model_card import evaluation_of
from composer_pipeline.training.run import (
    about,
    curve_charts,
    runs_on,
)

#: Pairs that are shown.
SHOWN = 20
_CHARS, _LINES = 1600, 40
_SEEN_CHARS, _SEEN_LINES = 1200, 24
#: Below this similarity of both sides, marks would be noise.
_ALIKE = 0.35
#: Raters of a heat map, and days of a chart; more do not fit a page.
_MOST, _MOST_DAYS = 12, 31

Row = dict[str, Any]


@dataclass(frozen=True)
class ReportFile(Report):
    """Where a report is, of which dataset version, and what was missing for it."""

    path: Path
    version: str
    pairs: int
    runs: list[str]
    missing: list[str]


def default_place(lake: Lake) -> Path:
    """Return where the report of the lake's dataset version goes: beside its runs."""
    version = build_id(lake)
    if not version:
        raise InputError(f"lake {lake.url} has no dataset; run composer-pipeline dataset")
    root = Path(lake.root) if lake.local else Path()
    return root / "reports" / f"dataset-{version}.html"


def write_report(
    lake: Lake, out: str | Path = "", *, run_root: str | Path = "", progress: Progress | None = None
) -> ReportFile:
    """Write the lake's dataset version as one HTML file.

    The file is self-contained and loads nothing. Only its owner may read it, like everything in a
    lake; ``forget`` removes it when it removes a session that the file shows.

    Args:
        lake: has the dataset, and what it was made of.
        out: the file; by default ``reports/dataset-<version>.html`` in the lake.
        run_root: folder of training runs; those on this version are in the report. By default the
            lake's ``runs``.
        progress: called with ``("report", done, steps)``.

    Raises:
        InputError: there is no dataset, it is half built or older than what it is made of, it has
            no pair, or the file cannot be there.
        StorageError: the file cannot be written.
    """
    path = Path(out).expanduser() if out else default_place(lake)
    if progress:
        progress("report", 0, 1)
    found = _context(lake, run_root)
    text = _rendered(found)
    remember_exports(lake, [path], "--out")
    replace(path, text, f"--out {path}")
    if progress:
        progress("report", 1, 1)
    runs = [run["name"] for run in found["runs"]]
    missing = [*([] if found["measured"] else ["statistics"]), *([] if runs else ["training"])]
    return ReportFile(path, found["build"].id, found["facts"].of("pairs"), runs, missing)


def render_report(lake: Lake, *, run_root: str | Path = "", links: str = "") -> str:
    """Return the report as HTML; with ``links``, the first page of a site of every state.

    ``links`` comes before a state's id in the URL of its page; the rest is as in `write_report`.
    """
    return _rendered(_context(lake, run_root) | {"links": links})


def _context(lake: Lake, run_root: str | Path) -> Row:
    """Return everything that the page shows."""
    build = read_build(lake)
    if not any(file.config == "pairs" for file in build.files):
        raise InputError(f"lake {lake.url}: the dataset has no pair; there is nothing to report")
    root = Path(run_root) if run_root else Path(lake.root if lake.local else ".") / "runs"
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        files = take_files(lake, build, Path(folder))
        facts = facts_of(files)
        drawn = _drawn(files)
    runs = list(runs_on(lake, root))
    statistics = _statistics(lake, build)
    chains = failure_chains(lake, [row["state_id"] for row in drawn])
    return {
        **_funnel(facts, statistics),
        **_agreement(lake, statistics),
        **_teachers(lake, facts.days),
        **_verdict(statistics),
        **_errors(lake, facts.days),
        **_outcomes(lake, facts.days),
        "style": _style(statistics),
        "runs": [_run(folder, result) for folder, result in runs],
        "evaluations": [_evaluation(folder, found) for folder, _ in runs
                        if (found := evaluation_of(folder))],
        "pairs": [_pair(row) | {"chain": chains.get(row["state_id"])} for row in drawn],
        "tiles": _tiles(facts, len(runs)),
        "name": _name(lake, facts),
        "dataset_files": [
            [_tag("code", file.path), count(file.rows), count(file.bytes),
             _tag("code", file.sha256[:16])]
            for file in build.files
        ],
        "build": build, "facts": facts, "measured": bool(statistics), "version": __version__,
        "links": "",
    }  # fmt: skip


def _rendered(context: Row) -> str:
    return environment().get_template("report.html.j2").render(context)


def environment() -> Environment:
    """Return the templates of pages, which escape what they print."""
    found = Environment(
        loader=PackageLoader("composer_pipeline.report"), undefined=StrictUndefined,
        autoescape=True, finalize=_printable, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    found.filters |= {"count": count, "dollars": dollars}
    found.filters["svg"] = lambda image: Markup(printable(image))  # noqa: S704  escaped there
    found.tests["numeric"] = lambda cell: (
        not isinstance(cell, Markup) and bool(re.match(r"[0-9$+\-–<]", str(cell)))
    )
    return found


def _printable(value: Any) -> Any:
    """Replace control characters in everything that the page prints; markup has been cleaned."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _tag(name: str, text: str) -> Markup:
    return Markup("<{0}>{1}</{0}>").format(name, printable(text))


def _statistics(lake: Lake, build: Build) -> Statistics:
    """Return the statistics of this build; nothing where they were measured on another."""
    try:
        check_statistics(lake, build)
    except InputError:
        return {}
    return statistics_of(lake)


def _tiles(facts: Facts, runs: int) -> dict[str, str]:
    train, validation = (facts.rows["pairs", split] for split in ("train", "validation"))
    repositories = len(facts.repositories)
    return {
        f"pairs: {count(train)} train, {count(validation)} validation": count(facts.of("pairs")),
        "states with recorded answers": count(facts.of("groups")),
        "error turns with a hint": count(facts.of("hints")),
        "sessions": count(len(facts.sessions)),
        "repository" if repositories == 1 else "repositories": count(repositories),
        "teachers": count(len(facts.teachers)),
        "billed for the answers in it": dollars(sum(t.cost_usd for t in facts.teachers.values())),
        "model trained on it" if runs == 1 else "models trained on it": count(runs),
    }


def _name(lake: Lake, facts: Facts) -> str:
    """Return the name of the lake's folder, and the days; repositories have no name here."""
    days = " to ".join(sorted({min(facts.days), max(facts.days)})) if facts.days else "no day"
    return f"{lake.url.rstrip('/').rpartition('/')[2]}, {days}"


def _verdict(statistics: Statistics) -> Row:
    """Return how many figures are good, to look at and not measured, and those to look at."""
    found = [(figure, word, str(row["note"]))
             for (name, figure, word, _), row in statistics.items()
             if name == "verdict"]  # fmt: skip
    words = Counter(word for _, word, _ in found)
    order = ("refused", "look", "not measured")
    return {
        "verdicts": {word: words[word] for word in ("good", *order) if words[word]},
        "doubts": sorted((each for each in found if each[1] in order[:2]),
                         key=lambda each: order.index(each[1])),
    }  # fmt: skip


# -- the data ----------------------------------------------------------------------


def _funnel(facts: Facts, statistics: Statistics) -> Row:
    steps = funnel(facts, statistics)
    first = next(iter(steps.values()))
    reasons = {a: int(row["value"]) for (name, a, _, _), row in statistics.items()
               if name == "states_by_reason" and row["value"]}  # fmt: skip
    return {
        "funnel": [[name, count(number), share(number, first)] for name, number in steps.items()],
        "funnel_chart": bars(steps, total=first),
        "reasons": [[REASONS[name], count(reasons[name])] for name in REASONS if name in reasons],
        "dropped": [[stage, op, count(n)] for (stage, op), n in facts.dropped.most_common(8)],
    }


def _agreement(lake: Lake, statistics: Statistics) -> Row:
    matrix = {(a, b): (row["value"] or 0.0, int(row["n"]))
              for (name, a, b, _), row in statistics.items() if name == "agreement_L2"}  # fmt: skip
    names = sorted({name for pair in matrix for name in pair}, key=lambda n: (n != AGENT, n))
    return {
        "matrix_chart": heatmap(names[:_MOST], matrix) if matrix else "",
        "not_drawn": len(names) - _MOST,
        "votes": [
            [_tag("code", tool), count(voted), share(same, voted), share(pairs, voted),
             share(voted - same - pairs, voted)]
            for tool, voted, same, pairs in votes_by_tool(lake)[:12]
        ],
        "statistics": statistics_table(statistics),
    }  # fmt: skip


def _teachers(lake: Lake, days: Iterable[str]) -> Row:
    found = _query(
        lake, "replies", days,
        "SELECT teacher, max(model), max(family), count(*), count(*) FILTER (status = 'ok'),"
        " coalesce(sum(cost_picodollars), 0)::DOUBLE / 1e12, quantile_disc(latency_ms, 0.5),"
        " quantile_disc(latency_ms, 0.95), quantile_disc(completion_tokens, 0.5)"
        " FROM replies WHERE {days} GROUP BY teacher ORDER BY teacher",
    )  # fmt: skip
    bills = _query(
        lake, "replies", days,
        "SELECT day, teacher, coalesce(sum(cost_picodollars), 0)::DOUBLE / 1e12"
        " FROM replies WHERE {days} GROUP BY day, teacher ORDER BY day, teacher",
    )  # fmt: skip
    unusable = _query(
        lake, "replies", days,
        "SELECT teacher, status, count(*) FROM replies"
        " WHERE status <> 'ok' AND {days}"
        " GROUP BY teacher, status ORDER BY teacher, 3 DESC, status",
    )  # fmt: skip
    slow = {name: round(p95 / 1000, 2) for name, *_, p95, _ in found if p95 is not None}
    return {
        "teachers": [
            [_tag("b", teacher), _tag("code", model), family, count(replies),
             share(usable, replies), dollars(cost), dollars(1000 * cost / replies),
             _seconds(median), _seconds(p95), "–" if tokens is None else count(int(tokens))]
            for teacher, model, family, replies, usable, cost, median, p95, tokens in found
        ],
        "billed": sum(row[5] for row in found),
        "ceiling": _ceiling(lake),
        "cost_chart": cost_by_day(bills),
        "latency_chart": bars(slow) if slow else "",
        "unusable": [[_tag("b", teacher), status, count(n)] for teacher, status, n in unusable],
    }  # fmt: skip


def cost_by_day(bills: Sequence[tuple[str, str, float]]) -> str:
    """Draw bills (day, teacher, USD) by day, or by month of many, divided by teacher."""
    teachers = sorted({teacher for _, teacher, _ in bills})
    month = len({day for day, *_ in bills}) > _MOST_DAYS
    costs: dict[str, list[float]] = {}
    for day, teacher, cost in bills:
        of = costs.setdefault(str(day)[: 7 if month else 10], [0.0] * len(teachers))
        of[teachers.index(teacher)] += cost
    return stacked_shares(teachers, costs, unit=" USD", amounts=True)


def _ceiling(lake: Lake) -> Row | None:
    """Return the global ceiling of the lake's ledger and what is left of it; ``None`` without."""
    try:
        scopes = budget_report(ledger_target(lake, None))["scopes"]
    except InputError:
        return None  # a bucket without a ledger
    scope: Row = next((row for row in scopes if row["scope"] == "global"), {})
    if scope.get("ceiling_usd") is None:
        return None
    amounts = ("ceiling", "spent", "reserved", "unknown")
    ceiling, spent, *held = (float(scope[f"{name}_usd"]) for name in amounts)
    parts = (spent, sum(held), max(0.0, ceiling - spent - sum(held)))
    names = ("spent", "reserved or unknown", "left")
    chart = stacked_shares(names, {"ceiling": parts}, unit=" USD")
    return {"usd": ceiling, "spent": spent, "share": share(spent, ceiling), "chart": chart}


def _seconds(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds / 1000:.2f} s"


def _errors(lake: Lake, days: Iterable[str]) -> Row:
    found = _query(
        lake, "states", days,
        "SELECT error_kind, count(*), count(hint) FROM states"
        " WHERE error_kind IS NOT NULL AND {days}"
        " GROUP BY error_kind ORDER BY 2 DESC, 1",
    )  # fmt: skip
    return {
        "errors": [[_tag("code", kind), count(n), count(hints)] for kind, n, hints in found],
        "errors_chart": bars({kind: n for kind, n, _ in found}),
    }


def _outcomes(lake: Lake, days: Iterable[str]) -> Row:
    found = judge_outcomes(lake, days=days)
    alive = {name: round(100 * share.value) for name, share in found.alive.items()
             if share.value is not None}  # fmt: skip
    return {
        "fates": [[_tag("code", name), count(number)] for name, number in found.fates.items()],
        "alive_chart": bars(alive, unit=" %") if alive else "",
        "foretold": [[name, str(sign.auc), str(sign.with_it), str(sign.without_it)]
                     for name, sign in found.foretold().items()],
        "contested": found.contested,
    }  # fmt: skip


def _query(lake: Lake, table: str, days: Iterable[str], sql: str) -> list[Any]:
    """Return the rows of a query whose ``{days}`` is the condition; none without table or days."""
    wanted = sorted(days)
    if not wanted or not lake.days(table):
        return []
    marks = ", ".join("?" * len(wanted))
    return list(lake.query(sql.format(days=f"day IN ({marks})"), wanted))


def _style(statistics: Statistics) -> Row:
    row = statistics.get(("separability_auc", "", "", ""))
    if row is None or row["value"] is None:
        note = str(row["note"] or "") if row else ""
        return {"auc": None, "why": note.removeprefix("not measured: ")}
    weights = {a: row["value"] for (key, a, _, _), row in statistics.items()
               if key == "separability_weight" and row["value"]}  # fmt: skip
    most = sorted(weights.items(), key=lambda item: (-abs(item[1]), item[0]))[:10]
    return {
        "auc": row["value"],
        "n": int(row["n"]),
        "bound": Separability().max_auc,
        "error": statistics.get(("separability_auc_error", "", "", ""), {}).get("value"),
        "chart": intervals({k: (v, None, None) for k, v in most}) if most else "",
    }


# -- the runs ----------------------------------------------------------------------

_MEANINGS = {
    "grpo best gain": "log-probability that the best recorded answers gained; above 0 is better",
    "sdpo": "divergence from the same model that also reads the hint",
    "dpo": "loss on pairs; 0.693 is no preference",
    "sft": "loss on the actions to imitate",
    "held out": "loss on rows that training never sees, by round",
}


def _run(folder: Path, result: Mapping[str, Any]) -> Row:
    facts = about(folder).items()
    return {
        "name": folder.name,
        "about": [[_tag("b", name.replace("_", " ")), value] for name, value in facts],
        "losses": [(name, chart, _MEANINGS[name]) for name, chart in curve_charts(folder).items()],
        "timeline": read_timeline(folder),
        "rounds": len(result["commits"]),
        "merged": sum(bool(commit["merged"]) for commit in result["commits"]),
        "restarts": sum((result.get("restarts") or {}).values()),
    }


def _evaluation(folder: Path, found: Mapping[str, Any]) -> Row:
    if "cells" not in found:
        return {"name": folder.name, "table": None}
    cells = cells_of(found)
    return {
        "name": folder.name,
        "worse": found["worse"],
        "unknown": found["unknown"],
        "charts": pictures(cells, TRAINED).values(),
        "certain": [" ".join((row[0], row[1], row[4].removesuffix(" *")))
                    for row in cells_table(cells, TRAINED) if row[4].endswith("*")],
        "head": HEAD,
        "table": cells_table(cells, TRAINED),
    }  # fmt: skip


# -- the pairs ---------------------------------------------------------------------

_KEYS = ["pair_id", "tier", "outcome", "tool_chosen", "tool_rejected"]
_COLUMNS = ["pair_id", "session_id", "task", "chosen_text", "rejected_text", "prompt",
            "chosen_models", "rejected_model", "tier", "turn", "n_agree", "n_families", "outcome",
            "simulated", "state_id", "source", "distance"]  # fmt: skip
_OUTCOMES = {
    "student_bad": "the trace shows that the agent's action failed, was corrected or undone",
    "student_ok": "the tests that the agent's action ran passed",
    "unknown": "the trace says nothing of the agent's action",
}


def _drawn(files: Iterable[Source]) -> list[Row]:
    """Return pairs of every tool in turn, the same ones for equal files.

    The keys of all pairs are read first, then whole rows of the few that are shown.
    """
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    sources = [file for file in files if file.config == "pairs"]
    for file in sources:
        for batch in pq.ParquetFile(file.local).iter_batches(8192, columns=_KEYS):
            for row in batch.to_pylist():
                kind = (row["tool_rejected"] or "", row["tool_chosen"] or "")
                draw = hashlib.blake2b(row["pair_id"].encode(), digest_size=8).hexdigest()
                # Of each kind those that teach most come first.
                order = f"{row['outcome'] != 'student_bad':d}{row['tier'] != 'gold':d}{draw}"
                groups[kind].append((order, row["pair_id"]))
    queues = [sorted(group) for _, group in sorted(groups.items())]
    queues.sort(key=lambda queue: (-len(queue), queue))
    names = [queue[turn][1] for turn in range(SHOWN) for queue in queues if turn < len(queue)]
    wanted = {name: at for at, name in enumerate(names[:SHOWN])}
    return sorted(_rows(sources, wanted), key=lambda row: wanted[row["pair_id"]])


def _rows(sources: Iterable[Source], wanted: Mapping[str, int]) -> Iterator[Row]:
    """Yield whole rows of some pairs, reading only the row groups that hold one."""
    for file in sources:
        reader = pq.ParquetFile(file.local)
        for group in range(reader.num_row_groups):
            names = reader.read_row_group(group, ["pair_id"])["pair_id"].to_pylist()
            picks = [at for at, name in enumerate(names) if name in wanted]
            if picks:
                yield from reader.read_row_group(group, _COLUMNS).take(picks).to_pylist()


def _pair(row: Row) -> Row:
    rejected, chosen = _marked(
        *(cut(row[f"{side}_text"] or "", _CHARS, _LINES) for side in ("rejected", "chosen"))
    )
    return {
        **row,
        "task": cut(row["task"] or "(no task in words)", 320, 4),
        "outcome": _OUTCOMES.get(row["outcome"] or "unknown", row["outcome"]),
        "seen": _seen(row["prompt"]),
        "rejected_model": row["rejected_model"] or "not recorded",
        "chosen_models": ", ".join(dict.fromkeys(row["chosen_models"] or [])) or "not recorded",
        "rejected": rejected,
        "chosen": chosen,
    }


def _seen(prompt: Sequence[Any] | None) -> str:
    """Return the words of a prompt's last message."""
    if not prompt:
        return ""
    message = json.loads(prompt[-1]) if isinstance(prompt[-1], str) else prompt[-1]
    return cut(str(message.get("content") or ""), _SEEN_CHARS, _SEEN_LINES)


def _marked(left: str, right: str) -> tuple[str, str]:
    """Return both actions with the words marked that the same field of the other one lacks.

    Of two actions that share no field, nothing is marked.
    """
    one, other = (_fields(text) for text in (left, right))
    if left == right or (one[""] != other[""] and one.keys() & other.keys() == {""}):
        return left, right
    marked = {name: _field(one.get(name, ""), other.get(name, "")) for name in one | other}
    joined = (
        Markup("").join(marked[name][side] for name in fields)  # escapes what is not marked
        for side, fields in enumerate((one, other))
    )
    return next(joined), next(joined)


def _fields(text: str) -> dict[str, str]:
    """Return argument to its lines, as ``action_text`` writes them; the head is ``""``."""
    found: dict[str, str] = {}
    for part in re.split(r"(?m)^(?=  [\w-]+: )", text):
        name = part.partition(":")[0] if found else ""
        while name in found:
            name += "+"  # the same argument of a further call
        found[name] = part
    return found


def _field(left: str, right: str) -> tuple[str, str]:
    """Return a field of both with the words marked that the other lacks; all if they differ."""
    a, b = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (left, right))
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    opcodes = matcher.get_opcodes()
    if matcher.ratio() < _ALIKE:
        same = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
        opcodes = [("equal", 0, same, 0, same), ("replace", same, len(a), same, len(b))]
    sides: tuple[list[str], list[str]] = ([], [])
    for op, start, end, at, to in opcodes:
        for parts, words in zip(sides, ("".join(a[start:end]), "".join(b[at:to])), strict=True):
            inner = words.strip()
            if op == "equal" or not inner:
                parts.append(words)
            else:
                before, _, after = words.partition(inner)
                parts += [before, _tag("mark", inner), after]
    return Markup("").join(sides[0]), Markup("").join(sides[1])
