"""Commands of the preferences room: pairs, pair, statistics, compare."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from composer_pipeline.cli.common import (
    Bar,
    DayFilter,
    JsonOption,
    LakeOption,
    LedgerOption,
    Table,
    app,
    open_lake,
    show,
    usd,
)
from composer_pipeline.errors import InputError
from composer_pipeline.files import json_objects
from composer_pipeline.settings import Settings


@app.command
def pairs(
    *,
    rules: str = "",
    judge_max_usd: str = "",
    teachers: str = "",
    only: DayFilter = DayFilter(),  # noqa: B008  frozen
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make hints from error turns, and pairs where teachers agree against the agent.

    Args:
        rules: preference recipe (COMPOSER_PREFERENCES).
        judge_max_usd: ceiling in USD of the recipe's semantic_judge, in place of the recipe's.
        teachers: teacher file that has the semantic_judge (COMPOSER_TEACHERS).
    """
    from composer_pipeline.preferences.contamination import Benchmarks
    from composer_pipeline.preferences.hints import build_hints
    from composer_pipeline.preferences.judge import open_judge
    from composer_pipeline.preferences.pairs import build_pairs
    from composer_pipeline.preferences.rules import PreferenceRules

    store = open_lake(lake)
    settings = Settings.from_env()
    recipe = PreferenceRules.load(rules or settings.preferences)
    most = usd(judge_max_usd, "--judge-max-usd") if judge_max_usd else None
    if not store.days("states"):
        raise InputError(f"lake {store.url} has no states; run ingest first")
    days = only.days(store)
    Benchmarks.of_rules(recipe)  # a bad list stops before anything is written
    file = teachers or settings.teachers
    meaning = open_judge(store, recipe.semantic_judge, file, max_usd=most, ledger=ledger)
    with meaning as judge, Bar() as progress:
        hints = build_hints(store, days=days, progress=progress).hints
        report = build_pairs(store, days=days, rules=recipe, judge=judge, progress=progress)
        asked = {"judge": judge.figures()} if judge else {}
    show({**report.to_dict(), "hints": hints, **asked}, as_json, "pairs")


@app.command
def pair(any_id: str, /, *, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Show a pair side by side with every teacher's reply, or why a state made none.

    Args:
        any_id: of a pair or a state; an unambiguous beginning is enough.
    """
    from composer_pipeline.cli.preferences_views import show_pair
    from composer_pipeline.preferences.explain import explain

    facts = explain(open_lake(lake), any_id)
    if as_json:
        show(facts, True, "")
    else:
        show_pair(Console(), facts)


@app.command
def statistics(
    *,
    rules: str = "",
    verbose: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Measure agreement, noise, separability and repeats over the whole lake; say what to look at.

    Args:
        rules: preference recipe (COMPOSER_PREFERENCES).
        verbose: print every figure, by tool and by pair of raters.
    """
    from composer_pipeline.preferences.quality import ALL, verdicts, write_statistics
    from composer_pipeline.preferences.rules import PreferenceRules

    store = open_lake(lake)
    if not store.days("votes"):
        raise InputError(f"lake {store.url} has no votes; run pairs first")
    recipe = PreferenceRules.load(rules or Settings.from_env().preferences)
    with Bar() as progress:
        report = write_statistics(store, rules=recipe, progress=progress)
    quality = report.by_scope[ALL]
    rows, said = quality.rows(), verdicts(quality, recipe)
    if as_json:
        show({"statistics": rows, "verdicts": [asdict(verdict) for verdict in said]}, True, "")
        return
    first = Table("figure", "verdict", "why", title="statistics", title_justify="left")
    for verdict in said:
        first.add_row(verdict.figure, verdict.word, verdict.sentence)
    Console().print(first)
    if not verbose:
        return
    table = Table("statistic", "of", "value", "n")
    for row in rows:
        of = " ".join(row[name] for name in ("a", "b", "tool") if row[name])
        value = row["note"] if row["value"] is None else f"{row['value']:.4g}"
        table.add_row(row["statistic"], of, value, str(row["n"]))
    Console().print(table)


@app.command
def compare(file: Path, /) -> None:
    """Print the level of agreement for each line {a, b, cwd, home, context} of a JSONL file.

    Args:
        file: JSONL file.
    """
    from composer_pipeline.preferences.vote_rows import compare as run

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text") from error
    for number, record in json_objects(file, text):
        try:
            found = run(record)
        except InputError as error:
            raise InputError(f"{file}:{number}: {error}") from error
        sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
