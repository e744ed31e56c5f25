"""The commands night, models, promote and rollback."""

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    Table,
    app,
    err,
    open_lake,
    show,
    usd,
)
from composer_pipeline.cli.training import recipe_of, run_root_of
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings

if TYPE_CHECKING:
    from composer_pipeline.nights.model_registry import ModelsReport
    from composer_pipeline.nights.night import Night


@app.command
def night(
    *,
    recipe: str = "",
    rules: str = "",
    max_usd: str = "",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    accept: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Harvest, buy, train and decide whether tonight's model replaces the current one.

    Args:
        recipe: training recipe (COMPOSER_TRAIN).
        rules: night rules (COMPOSER_NIGHTS).
        max_usd: ceiling of the night in USD, over all its starts; 0 buys nothing
            (COMPOSER_MAX_USD).
        dry_run: say what the night would do with the dataset as it is: buy, train and move nothing.
        accept: day of an earlier night that was held or refused, whose states later nights may
            use; nothing else is done.
    """
    from composer_pipeline.nights import night as nights
    from composer_pipeline.nights.learner import ProcessLearner
    from composer_pipeline.nights.page import write_page
    from composer_pipeline.nights.rules import NightRules
    from composer_pipeline.nights.stages import harvest
    from composer_pipeline.preferences.rules import PreferenceRules
    from composer_pipeline.teachers.teachers import TeacherSet
    from composer_pipeline.traces.discover import session_folders
    from composer_pipeline.training.recipe import TrainingRecipe
    from composer_pipeline.training.registry import validate

    settings = Settings.from_env()
    if accept:
        show_night(nights.accept(open_lake(lake), accept), "", as_json)
        return
    given = max_usd or settings.max_usd
    ceiling = usd(given, "--max-usd") if given.strip("0.") else Decimal(0)
    chosen = NightRules.load(rules or settings.nights)
    training = TrainingRecipe.load(recipe_of(recipe, settings))
    validate(training)  # before anything is bought
    store = open_lake(lake, new=not dry_run)
    root = run_root_of(settings, store)
    with Bar() as progress:
        if not dry_run:
            done = harvest(
                store, session_folders(settings.sessions), TeacherSet.load(settings.teachers),
                max_usd=ceiling, rules=PreferenceRules.load(settings.preferences),
                normalize_recipe=settings.normalize, ledger=settings.ledger or None,
                progress=progress,
            )  # fmt: skip
            if done.exhausted:
                err.print(
                    f"ceiling of {done.exhausted} reached: the night goes on with what it has"
                )
        story = nights.run_night(
            store, training, ProcessLearner(root, progress), root / "nights", rules=chosen,
            dry_run=dry_run, progress=progress,
        )  # fmt: skip
    if dry_run:
        show_night(story, "", as_json)
        return
    show_night(story, write_page(store, story), as_json)
    _publish(store, settings)


def _publish(lake: Lake, settings: Settings) -> None:
    """Let the model repository of the settings, if there is one, follow the current version."""
    from composer_pipeline.nights.model_registry import publish_versions

    if settings.model_repo:
        simulated = settings.publish_simulated
        for number in publish_versions(lake, settings.model_repo, allow_simulated=simulated):
            err.print(f"version {number} is at {settings.model_repo}", highlight=False)


@app.command
def models(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """List the versions of the nights' models, and which one is current."""
    from composer_pipeline.nights.model_registry import report

    found = report(open_lake(lake))
    if as_json:
        show(found.to_dict(), True, "")
    else:
        show_models(Console(), found)


@app.command
def promote(
    version: int, /, *, why: str = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """Make a version of the nights' models the current one, whatever its night decided.

    Args:
        version: its number, as `models` lists it.
        why: noted with the move.
    """
    from composer_pipeline.nights.model_registry import promote as run

    store = open_lake(lake)
    moved = run(store, version, why)
    _publish(store, Settings.from_env())
    show({"version": moved.version, "weights": moved.weights or moved.base}, as_json, "promote")


@app.command
def rollback(*, why: str = "", lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Make the version before the current one current again, and set the rows of its night aside.

    Args:
        why: noted with the move.
    """
    from composer_pipeline.nights.model_registry import rollback as run

    store = open_lake(lake)
    moved = run(store, why)
    _publish(store, Settings.from_env())
    show({"version": moved.version, "weights": moved.weights or moved.base}, as_json, "rollback")


def show_night(story: "Night", page: str, as_json: bool) -> None:
    """Print what a night decided and why, or the whole story as JSON."""
    if as_json:
        show(story.to_dict() | ({"page": page} if page else {}), True, "")
        return
    from composer_pipeline.nights.page import CHANGES, changes

    console = Console()
    colour = {"promoted": "green", "worse": "red", "held": "red"}.get(story.outcome, "yellow")
    console.print(Text(f"night {story.night}: {story.outcome}", style=f"bold {colour}"))
    for sentence in (*story.why, *story.notes):
        console.print(Text(f"  {sentence}"))
    if story.moved:
        table = Table(*CHANGES)
        for row in changes(story):
            table.add_row(*row)
        console.print(table)
    rows = ", ".join(f"{count} {name}" for name, count in story.rows.items())
    paid = f"${story.usd:.4f}{' (simulated)' if story.simulated else ''}"
    console.print(Text("; ".join(filter(None, [rows, paid, page])), style="dim"))


def show_models(console: Console, found: "ModelsReport") -> None:
    """Print the versions, the current one marked, and the last moves."""
    table = Table("", "version", "night", "from", "decision", "why")
    for one in found.versions:
        mark = "*" if one.number == found.current else ""
        parent = "" if one.parent is None else str(one.parent)
        why = one.why[0] if one.why else one.base
        table.add_row(mark, str(one.number), one.night, parent, one.decision, Text(why))
    console.print(table)
    for move in found.moves[-3:]:
        console.print(Text(f"{move.at} {move.by}: version {move.to} {move.why}", style="dim"))
